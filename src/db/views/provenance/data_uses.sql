-- What an attempt was given of what others had made: everything that its completed predecessors
-- left, or what it declares of that. A predecessor that left nothing of its own hands on what it
-- was given (second part). One that did is an ancestor with uses of its own, so the lineage stays
-- whole without them here. Ids are compared in the collation of the index of files by their producer:
-- in another one it gives all files of a run for each task.
create or replace view provenance.data_uses as
  select i.id || ':' || t.id as id, i.execution_run_id, t.id as task_execution_id, i.id as
    data_object_instance_id, i.data_object_id,
    p.id as producer_task_execution_id, t.activity_id as consumer_activity_id, case
      when d.declared then 'declared' else 'staged' end as basis,
    i.relative_path, i.size_bytes, i.checksum
  from data_object_instances i
  join execution_runs r on r.id = i.execution_run_id
  join task_executions p on p.execution_run_id = i.execution_run_id and i.producer_activity_id = p.activity_id
    collate "default" and p.attempt = i.attempt
  join activity_dependencies e on e.workflow_version_id = r.content_version_id
    and e.depends_on_position = p.activity_position
  join task_executions t on t.execution_run_id = i.execution_run_id and t.activity_position = e.activity_position
  join activity_definitions a on a.workflow_version_id = r.content_version_id and a.position = t.activity_position
  cross join lateral (select exists (select from workflow_data_dependencies w
    where w.workflow_version_id = r.content_version_id and w.producer_position = p.activity_position
      and w.consumer_position = t.activity_position
      and (w.logical_name = i.relative_path or starts_with(i.relative_path, w.logical_name || '/'))) as declared) d
  where p.status = 'completed' and t.handle_name is not null and (d.declared
    or a.metadata ->> 'stage' is distinct from 'declared')
  union all
  select i.id || ':' || t.id, i.execution_run_id, t.id, i.id, i.data_object_id, p.id, t.activity_id, case
    when d.declared then 'declared' else 'staged' end,
    i.relative_path, i.size_bytes, i.checksum
  from task_executions t
  join execution_runs r on r.id = t.execution_run_id
  join activity_definitions a on a.workflow_version_id = r.content_version_id and a.position = t.activity_position
  -- Begins at the consumer: from each file of a run it would take minutes for a large one.
  cross join lateral (
    with recursive bare (position) as (
      select t.activity_position
      union
      select x.activity_position
      from bare b
      join activity_dependencies e on e.workflow_version_id = r.content_version_id
        and e.activity_position = b.position
      join task_executions x on x.execution_run_id = t.execution_run_id
        and x.activity_position = e.depends_on_position and x.status = 'completed'
      -- "offset 0" keeps this a look into an index at each step. As a join it would read all files of
      -- the run for each task of the run.
      where not exists (select from data_object_instances o where o.execution_run_id = x.execution_run_id
        and o.producer_activity_id = x.activity_id collate "default" offset 0)
    )
    select e.depends_on_position as position
    from bare b
    join activity_dependencies e on e.workflow_version_id = r.content_version_id and e.activity_position = b.position
    group by e.depends_on_position having bool_and(b.position <> t.activity_position)
  ) h
  join task_executions p on p.execution_run_id = t.execution_run_id and p.activity_position = h.position
  join data_object_instances i on i.execution_run_id = p.execution_run_id and i.producer_activity_id = p.activity_id
    collate "default" and i.attempt = p.attempt
  cross join lateral (select exists (select from workflow_data_dependencies w
    where w.workflow_version_id = r.content_version_id and w.consumer_position = t.activity_position
      and (w.logical_name = i.relative_path or starts_with(i.relative_path, w.logical_name || '/'))) as declared) d
  where p.status = 'completed' and t.handle_name is not null and (d.declared
    or a.metadata ->> 'stage' is distinct from 'declared');
