-- Where the storages that a run's runtimes name are mounted at their sites: what is on one of them needs no transfer.
alter table run_snapshots add column storage_mounts jsonb not null default '[]';

-- Where a task runs and how that is reached, from its acceptance on; null in simulations.
alter table task_executions add column site text, add column connection_id text;
