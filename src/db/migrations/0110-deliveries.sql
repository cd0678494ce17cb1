-- Executables of runs: what admission pinned, where their bytes were brought, and how.

alter table run_snapshots add column if not exists executables jsonb;

-- An image that an engine pulled by itself has no variant here.
alter table artifact_materializations alter column variant_id drop not null;
-- The site in the sense of the executor: local@host, ssh/connection, …
alter table artifact_materializations add column if not exists site text;

create table if not exists artifact_transfer_runs (
  id identifier constraint artifact_transfer_runs_pkey primary key,
  materialization_id identifier not null constraint artifact_transfer_runs_materialization
    references artifact_materializations on delete cascade,
  execution_run_id identifier not null,
  -- Whose task caused it.
  activity_id identifier,
  strategy text not null,
  reason text not null,
  status text not null constraint artifact_transfer_runs_status check (status in ('running', 'completed', 'failed')),
  bytes bigint not null default 0,
  network_bytes bigint not null default 0,
  -- Seconds since the epoch.
  started_at double precision not null,
  finished_at double precision,
  failure_reason text
);
create index if not exists artifact_transfer_runs_of_run
  on artifact_transfer_runs (execution_run_id, started_at, id);
create index if not exists artifact_transfer_runs_of_materialization
  on artifact_transfer_runs (materialization_id);
