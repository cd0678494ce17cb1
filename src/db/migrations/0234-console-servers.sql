-- The process that serves an open terminal, and when it last said so: others leave the terminal alone meanwhile.

alter table console_sessions add column if not exists served_by text;
alter table console_sessions add column if not exists served_at timestamptz;
