-- A transfer names the file that it was for where one was meant: the only one that its producer
-- left or, where the workflow declares data between the two, the only one declared.
create or replace view provenance.data_transfer_observations as
  select o.id, o.execution_run_id,
    coalesce(o.data_object_id, (
      select min(i.data_object_id)
      from data_object_instances i
      join task_executions p on p.execution_run_id = i.execution_run_id
        and p.activity_id = i.producer_activity_id and p.attempt = i.attempt
      join execution_runs r on r.id = i.execution_run_id
      left join task_executions c on c.execution_run_id = i.execution_run_id
        and c.activity_id = o.consumer_activity_id and c.attempt = 1
      left join lateral (select array_agg(d.logical_name) as names from workflow_data_dependencies d
        where d.workflow_version_id = r.content_version_id and d.producer_position = p.activity_position
          and d.consumer_position = c.activity_position) declared on true
      where i.execution_run_id = o.execution_run_id and i.producer_activity_id = o.producer_activity_id
        and p.status = 'completed'
        and (declared.names is null or i.relative_path = any (declared.names))
      having count(*) = 1)) as data_object_id,
    coalesce(o.data_object_instance_id, (
      select min(i.id)
      from data_object_instances i
      join task_executions p on p.execution_run_id = i.execution_run_id
        and p.activity_id = i.producer_activity_id and p.attempt = i.attempt
      join execution_runs r on r.id = i.execution_run_id
      left join task_executions c on c.execution_run_id = i.execution_run_id
        and c.activity_id = o.consumer_activity_id and c.attempt = 1
      left join lateral (select array_agg(d.logical_name) as names from workflow_data_dependencies d
        where d.workflow_version_id = r.content_version_id and d.producer_position = p.activity_position
          and d.consumer_position = c.activity_position) declared on true
      where i.execution_run_id = o.execution_run_id and i.producer_activity_id = o.producer_activity_id
        and p.status = 'completed'
        and (declared.names is null or i.relative_path = any (declared.names))
      having count(*) = 1)) as data_object_instance_id,
    o.producer_activity_id, o.consumer_activity_id, o.source_resource_id, o.target_resource_id, o.bytes,
      o.status, o.started_at, o.finished_at, o.duration_seconds,
    o.cost
  from data_transfer_observations o;
