-- Copies and archives: downloads that a workflow works for.

alter table storage_downloads
  add column if not exists generation integer not null default 1,
  add column if not exists destination_storage_id identifier,
  add column if not exists destination_path bytea,
  add column if not exists on_conflict text constraint storage_downloads_conflict check (on_conflict in ('fail', 'skip-equal', 'overwrite')),
  -- At most, of both ends together.
  add column if not exists bytes_per_second bigint,
  -- Whose files one end is; null: any worker reaches both.
  add column if not exists host_id text,
  -- What the work says of itself while it is open.
  add column if not exists live jsonb,
  -- When the entries were all listed.
  add column if not exists listed_at timestamptz,
  add column if not exists entries bigint,
  add column if not exists skipped_entries bigint,
  add column if not exists dispatched_at timestamptz,
  add column if not exists cancel_requested_at timestamptz,
  add column if not exists cancel_actor text,
  add column if not exists cancel_reason text,
  add column if not exists last_event_sequence bigint not null default 0,
  add column if not exists started_at timestamptz,
  add column if not exists finished_at timestamptz;
create index if not exists storage_downloads_open on storage_downloads (created_at, id) where status in ('queued', 'streaming');

-- What an open copy has to send, and has sent.
create table if not exists storage_download_entries (
  download_id identifier not null constraint storage_download_entries_download references storage_downloads on delete cascade,
  position bigint not null,
  -- Names of bytes, below the path of the download.
  path bytea not null,
  type text not null,
  size_bytes bigint,
  state text not null default 'pending',
  -- Names what an unfinished attempt keeps at the destination.
  attempt integer not null default 0,
  constraint storage_download_entries_pkey primary key (download_id, position),
  constraint storage_download_entries_type check (type in ('file', 'directory')),
  constraint storage_download_entries_state check (state in ('pending', 'sending', 'done'))
);
create index if not exists storage_download_entries_left on storage_download_entries (download_id, position) where state <> 'done';
