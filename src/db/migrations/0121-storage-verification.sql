-- What shows that a copy has the bytes of its source: their SHA-256, or the store that has copied them itself.
alter table storage_downloads add column if not exists verification text;
alter table storage_downloads drop constraint if exists storage_downloads_verification;
alter table storage_downloads add constraint storage_downloads_verification
  check (verification in ('sha256', 'store'));
