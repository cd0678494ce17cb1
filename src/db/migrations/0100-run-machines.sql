-- Machines of runs: which cloud instance a run uses for a capacity target, from when to when. An instance that was made for
-- a run ends when no run uses it any more.
alter table cloud_instances add column if not exists execution_run_id text;
create index if not exists cloud_instances_of_runs on cloud_instances (id) where execution_run_id is not null and not machine_gone;
create index if not exists cloud_operations_of_run on cloud_operations (execution_run_id) where execution_run_id is not null;

create table if not exists run_machines (
  execution_run_id identifier not null constraint run_machines_run references execution_runs on delete cascade,
  capacity_target_id identifier not null,
  -- Counts the instances that the run has had for the target, from 1.
  ordinal integer not null,
  instance_id identifier not null constraint run_machines_instance references cloud_instances on delete cascade,
  acquired_at timestamptz not null default clock_timestamp(),
  -- When the instance first took work of the run.
  ready_at timestamptz,
  released_at timestamptz,
  release_reason text,
  constraint run_machines_pkey primary key (execution_run_id, capacity_target_id, ordinal)
);
create unique index if not exists run_machines_one on run_machines (execution_run_id, capacity_target_id) where released_at is null;
create index if not exists run_machines_of_instance on run_machines (instance_id);
create index if not exists run_machines_held on run_machines (execution_run_id) where released_at is null;
