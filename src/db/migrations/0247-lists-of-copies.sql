-- An attempt that is over, and does not know it, adds nothing to the list of the attempt after it.
alter table storage_downloads
  -- How often the list of entries was begun.
  add column if not exists listing integer not null default 0;
