-- Seconds for which tasks hold their lanes on machines beside their runtimes and the transfers to
-- them: the median of each capacity target over the last five completed runs that kept their first
-- machine. A task is free to begin when its machine is there, its predecessors are over, and so is
-- the task before it in its lane.

create or replace function machine_task_overheads(p_targets text[])
returns table (target_id text, seconds double precision)
language sql stable
as $$
  with runs as (
    select x.target_id, x.run_id, x.content_version_id, x.ready_at from (
      select m.capacity_target_id as target_id, r.id as run_id, r.content_version_id, m.ready_at,
        row_number() over (partition by m.capacity_target_id order by r.finished_at desc, r.id) as place
      from run_machines m join execution_runs r on r.id = m.execution_run_id
      where m.capacity_target_id = any(p_targets) and m.ordinal = 1 and m.ready_at is not null
        and r.mode = 'real' and r.status = 'completed') x
    where x.place <= 5
  ), tasks as (
    select u.target_id,
      t.finished_at - t.runtime_seconds - t.transfer_seconds - coalesce(t.site_queue_seconds, 0) as begun_at,
      greatest(
        extract(epoch from u.ready_at)::double precision,
        lag(t.finished_at) over (
          partition by u.run_id, u.target_id, coalesce(t.core_ids[1], t.slot_id) order by t.started_at),
        (select max(b.finished_at) from activity_dependencies d
          join task_executions b on b.execution_run_id = u.run_id and b.latest
            and b.activity_position = d.depends_on_position
          where d.workflow_version_id = u.content_version_id and d.activity_position = t.activity_position)
      ) as free_at
    from runs u join task_executions t on t.execution_run_id = u.run_id and t.latest
      and t.planned_resource_id = u.target_id and t.status = 'completed'
  )
  select tasks.target_id::text,
    percentile_cont(0.5) within group (order by greatest(0, tasks.begun_at - tasks.free_at))
  from tasks group by tasks.target_id
$$;
