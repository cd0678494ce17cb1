-- The events of runs by the name and the columns that programs of before 0023 write, until the last
-- of them is gone.
create or replace view run_events as
  select operation_id as execution_run_id, sequence, event_type, aggregate_type, aggregate_id, payload, occurred_at
  from operation_events where kind = 'execution-run';
