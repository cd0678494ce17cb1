-- The generation of the run to which an attempt, or a machine, belongs: a retry has its own patience.

alter table task_executions add column if not exists generation integer not null default 1;
alter table run_machines add column if not exists generation integer not null default 1;
