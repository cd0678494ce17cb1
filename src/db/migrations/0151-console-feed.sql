-- The console's sessions and commands in the order of the feed of runs.

create index if not exists console_commands_feed on console_commands (coalesce(started_at, created_at) desc, id desc);
create index if not exists console_sessions_feed on console_sessions (coalesce(connected_at, created_at) desc, id desc);
create index if not exists console_commands_finished on console_commands (finished_at) where finished_at is not null;
