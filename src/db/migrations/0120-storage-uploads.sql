-- Copies go on behind the bytes that have arrived, and keep links, modes and times.

alter table storage_download_entries
  -- The unfinished upload at the destination, as its driver names it.
  add column if not exists upload text,
  -- Permission bits of the source.
  add column if not exists mode integer,
  -- Where a link leads, as it is written there.
  add column if not exists link_target bytea,
  -- Whether the copy has made this directory.
  add column if not exists is_made boolean not null default false;
alter table storage_download_entries drop constraint if exists storage_download_entries_type;
alter table storage_download_entries add constraint storage_download_entries_type
  check (type in ('file', 'directory', 'link'));
create index if not exists storage_download_entries_made on storage_download_entries (download_id, position)
  where is_made;

alter table storage_downloads
  -- Bytes that were handed to the destination, those that were sent again included.
  add column if not exists sent_bytes bigint;
