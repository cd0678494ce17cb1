create or replace view provenance.task_executions as
  select id, execution_run_id, plan_assignment_id, activity_id, planned_resource_id, allocated_resource_id,
    attempt, status, ready_at, data_ready_at, queued_at,
    started_at, finished_at, runtime_seconds, queue_seconds, transfer_seconds, transfer_bytes,
      interference_seconds, overhead_seconds, cost, failure_reason
  from task_executions;
