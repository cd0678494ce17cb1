-- Build contexts, builds of artifacts, their runs, and where their bytes were brought.

create table if not exists build_contexts (
  digest identifier constraint build_contexts_pkey primary key,
  storage_uri text not null,
  size_bytes bigint not null constraint build_contexts_size check (size_bytes > 0),
  media_type text not null,
  -- Whose files hold the bytes.
  host_id text not null,
  created_at timestamptz not null default now()
);

create table if not exists artifact_builds (
  id identifier constraint artifact_builds_pkey primary key,
  artifact_version_id identifier not null constraint artifact_builds_version references artifact_versions on delete cascade,
  source_type text not null,
  -- Of docker-image: its name.
  image text,
  context_digest text not null,
  recipe_path text,
  recipe_digest text not null,
  target_format text not null,
  target_os text not null,
  target_architecture text not null,
  build_arguments text not null default '{}',
  network boolean not null default false,
  cache_key identifier not null constraint artifact_builds_cache_key unique,
  created_at timestamptz not null default now()
);
create index if not exists artifact_builds_of_version on artifact_builds (artifact_version_id, created_at desc, id desc);

create table if not exists build_runs (
  id identifier constraint build_runs_pkey primary key,
  artifact_build_id identifier not null constraint build_runs_build references artifact_builds on delete cascade,
  generation integer not null default 1,
  status text not null default 'queued',
  -- Of one that is under way: the state that readers see.
  step text not null default 'preparing' constraint build_runs_step check (step in ('preparing', 'building', 'verifying', 'publishing')),
  fresh boolean not null default false,
  -- Whose engine and files it uses.
  host_id text not null,
  -- Of the image in the engine.
  image_id text,
  output_variant_id identifier,
  output_digest text,
  output_bytes bigint,
  logs text,
  live jsonb,
  error text,
  dispatched_at timestamptz,
  cancel_requested_at timestamptz,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  finished_at timestamptz,
  constraint build_runs_status check (status in ('queued', 'running', 'completed', 'failed', 'cancelled'))
);
create index if not exists build_runs_of_build on build_runs (artifact_build_id, created_at desc, id desc);
create index if not exists build_runs_open on build_runs (created_at, id) where status in ('queued', 'running');
-- An open run of a build is what a second start gets.
create unique index if not exists build_runs_open_once on build_runs (artifact_build_id) where status in ('queued', 'running');

create table if not exists artifact_materializations (
  id identifier constraint artifact_materializations_pkey primary key,
  run_id identifier,
  activity_id identifier,
  variant_id identifier not null constraint artifact_materializations_variant references artifact_variants on delete cascade,
  digest text not null,
  resource_id identifier not null,
  environment_id identifier,
  destination_path text not null,
  status text not null constraint artifact_materializations_status
    check (status in ('planned', 'reconciling', 'transferring', 'verifying', 'committed', 'failed')),
  verified_digest text,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint artifact_materializations_verified check (status <> 'committed' or verified_digest = digest)
);
create index if not exists artifact_materializations_in_order on artifact_materializations (created_at, id);
create index if not exists artifact_materializations_of_run on artifact_materializations (run_id, created_at, id);
