-- When the resource of an ended session had nothing of it any more: terminal, recording, Pod.

alter table console_sessions add column if not exists cleared_at timestamptz;
update console_sessions set cleared_at = finished_at where finished_at is not null and cleared_at is null;
create index if not exists console_sessions_uncleared on console_sessions (finished_at)
  where finished_at is not null and cleared_at is null;
