-- Of a file in an archive: milliseconds since 1970.

alter table storage_download_entries add column if not exists modified_at double precision;
