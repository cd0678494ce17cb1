-- What a storage holds, as the last index run that came to its end has found it.

create table if not exists storage_index_runs (
  id identifier constraint storage_index_runs_pkey primary key,
  generation integer not null default 1,
  storage_id identifier not null constraint storage_index_runs_storage references storages on delete cascade,
  status text not null,
  -- The policy of the storage when the run was accepted, its defaults filled in.
  policy jsonb not null,
  -- Whether the SHA-256 of files is computed where it is not known.
  checksums boolean not null default false,
  -- Whose files they are; null: any worker reaches the storage.
  host_id text,
  -- Pages of directories that are compared; a second worker of the run sees that it is late.
  step bigint not null default 0,
  -- Milliseconds of work, for the time that the policy gives.
  spent_ms bigint not null default 0,
  walked_at timestamptz,
  indexed_entries bigint not null default 0,
  indexed_bytes bigint not null default 0,
  skipped_entries bigint not null default 0,
  -- What of the policy has cut the run off.
  truncated_by text,
  added_entries bigint,
  changed_entries bigint,
  removed_entries bigint,
  recorded_at timestamptz,
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
  constraint storage_index_runs_status check (status in ('queued', 'running', 'completed', 'failed', 'cancelled')),
  constraint storage_index_runs_truncated check (truncated_by in ('depth', 'entries', 'time'))
);
create index if not exists storage_index_runs_of_storage on storage_index_runs (storage_id, created_at desc, id desc);
create unique index if not exists storage_index_runs_one_open on storage_index_runs (storage_id)
  where status in ('queued', 'running');
create index if not exists storage_index_runs_open on storage_index_runs (created_at, id)
  where status in ('queued', 'running');

-- The names of a directory's path are separated by a byte 0, which no name holds: what lies below a
-- directory is one range then.
create table if not exists storage_index_entries (
  storage_id identifier not null constraint storage_index_entries_storage references storages on delete cascade,
  parent bytea not null,
  name bytea not null,
  is_directory boolean not null,
  type text not null,
  size_bytes bigint,
  -- Milliseconds since the epoch.
  modified_at double precision,
  media_type text,
  sha256 bytea,
  constraint storage_index_entries_pkey primary key (storage_id, parent, name, is_directory)
);
create index if not exists storage_index_entries_by_digest on storage_index_entries
  (storage_id, sha256, parent, name, is_directory) where sha256 is not null;

-- Of an open run: directories that are to be read, and where a list goes on.
create table if not exists storage_index_folders (
  run_id identifier not null constraint storage_index_folders_run references storage_index_runs on delete cascade,
  depth integer not null,
  parent bytea not null,
  after text,
  constraint storage_index_folders_pkey primary key (run_id, depth, parent)
);
-- Of an open run: names of directories whose list has more than one page.
create table if not exists storage_index_pages (
  run_id identifier not null constraint storage_index_pages_run references storage_index_runs on delete cascade,
  parent bytea not null,
  step bigint not null,
  names bytea[] not null,
  directories boolean[] not null,
  constraint storage_index_pages_pkey primary key (run_id, parent, step)
);
-- Of an open run: how the storage differs from its index. Without a type: it is gone.
create table if not exists storage_index_changes (
  run_id identifier not null constraint storage_index_changes_run references storage_index_runs on delete cascade,
  parent bytea not null,
  name bytea not null,
  is_directory boolean not null,
  type text,
  size_bytes bigint,
  modified_at double precision,
  media_type text,
  sha256 bytea,
  -- Whether the digest is to be computed.
  is_unread boolean not null default false,
  constraint storage_index_changes_pkey primary key (run_id, parent, name, is_directory)
);
create index if not exists storage_index_changes_unread on storage_index_changes (run_id, parent, name)
  where is_unread;
