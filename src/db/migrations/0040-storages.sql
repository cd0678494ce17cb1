-- Files that are prepared for download, and artifacts that tasks can be started from.

create table if not exists storage_downloads (
  id identifier constraint storage_downloads_pkey primary key,
  storage_id identifier not null constraint storage_downloads_storage references storages on delete cascade,
  -- Names of bytes, from the endpoint of the storage on.
  path bytea not null,
  strategy text not null,
  status text not null,
  size_bytes bigint,
  transferred_bytes bigint,
  error text,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint storage_downloads_status check (status in ('queued', 'streaming', 'ready', 'completed', 'failed', 'cancelled'))
);
create index if not exists storage_downloads_of_storage on storage_downloads (storage_id, created_at desc, id desc);

create table if not exists artifact_versions (
  id identifier constraint artifact_versions_pkey primary key,
  artifact_id identifier not null,
  name text not null,
  version text not null,
  scope text not null,
  scope_id text not null default '',
  created_at timestamptz not null default now(),
  constraint artifact_versions_number unique (artifact_id, version, scope, scope_id),
  constraint artifact_versions_scope check (scope in ('system', 'organization', 'project', 'workflow', 'run', 'environment'))
);
create index if not exists artifact_versions_by_name on artifact_versions (name collate "C", artifact_id, version collate "C", id);

create table if not exists artifact_variants (
  id identifier constraint artifact_variants_pkey primary key,
  artifact_version_id identifier not null constraint artifact_variants_version references artifact_versions on delete cascade,
  digest text not null,
  format text not null,
  architecture text,
  size_bytes bigint,
  constraint artifact_variants_content unique (artifact_version_id, digest)
);

create table if not exists artifact_locations (
  id identifier constraint artifact_locations_pkey primary key,
  variant_id identifier not null constraint artifact_locations_variant references artifact_variants on delete cascade,
  scope text not null,
  scope_id text not null default '',
  -- The storage that holds the bytes.
  endpoint_id identifier not null,
  uri text not null,
  digest text not null,
  available boolean not null,
  created_at timestamptz not null default now(),
  constraint artifact_locations_place unique (variant_id, uri)
);
create index if not exists artifact_locations_of_endpoint on artifact_locations (endpoint_id);
