-- When machines were due by the plans of runs, and when the runs took them, for durations in plans.
-- A machine that no run asked for has no row.

create or replace function machine_uses(p_instances text[])
returns table (instance_id text, run_id text, due_at timestamptz, used_at timestamptz)
language sql stable
as $$
  select m.instance_id::text, m.execution_run_id::text,
    r.started_at + make_interval(secs => coalesce((
      select min((a ->> 'earliestStart')::double precision) from jsonb_array_elements(p.lifecycle_actions) a
      where a ->> 'capacityTargetId' = m.capacity_target_id::text and a ->> 'action' = 'provision'), 0)),
    m.ready_at
  from run_machines m join execution_runs r on r.id = m.execution_run_id
  join schedule_plans p on p.id = r.schedule_plan_id
  where m.instance_id = any(p_instances)
$$;
