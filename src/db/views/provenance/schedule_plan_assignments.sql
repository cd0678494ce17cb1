create or replace view provenance.schedule_plan_assignments as
  select id, schedule_plan_id, activity_id, resource_id, core_id, slot_id, order_on_resource, priority,
    predicted_ready_at, predicted_start_at, predicted_finish_at,
    predicted_runtime_seconds, predicted_transfer_seconds, predicted_cost from schedule_plan_assignments;
