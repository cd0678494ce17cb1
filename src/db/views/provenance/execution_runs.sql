create or replace view provenance.execution_runs as
  select id, schedule_plan_id, mode, seed, status, environment_snapshot_id, started_at, finished_at,
    makespan_seconds, cost, failure_reason, created_at,
    transferred_bytes from execution_runs;
