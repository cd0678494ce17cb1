-- When the resource of an ended command had nothing of it any more: process, folder.

alter table console_commands add column if not exists cleared_at timestamptz;
update console_commands set cleared_at = finished_at where finished_at is not null and cleared_at is null;
create index if not exists console_commands_uncleared on console_commands (finished_at)
  where finished_at is not null and cleared_at is null;
