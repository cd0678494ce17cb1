-- The way that the large files of a copy between two logins take, and why: {"strategy", "reason"}.
alter table storage_downloads add column if not exists route jsonb;
