-- The budget of a run, and what its cloud machines cost beside the tasks' own costs.
alter table execution_runs add column if not exists budget double precision;
alter table execution_runs add column if not exists on_budget text;
alter table execution_runs add column if not exists approved_at timestamptz;
alter table execution_runs add column if not exists cloud_cost double precision not null default 0;
-- Open runs whose money is watched, or that wait for a person.
create index if not exists execution_runs_on_budget on execution_runs (id)
  where on_budget in ('ask', 'stop') and status in ('created', 'running');
-- The run's cost holds the whole share of the instance.
alter table run_machines add column if not exists settled boolean not null default false;
create index if not exists run_machines_unsettled on run_machines (execution_run_id) where not settled;
