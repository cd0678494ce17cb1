-- One row an attempt with everything that was decided or measured elsewhere, because a statement
-- reads one entity.
create or replace view provenance.attempts as
  select t.id, t.execution_run_id, t.attempt, t.activity_id, a.external_id, a.name as activity_name, y.id as
    activity_type_id, y.name as activity_type,
    v.workflow_id, v.id as workflow_version_id, r.schedule_plan_id, r.mode, r.actor_id, r.service_version,
      t.site, t.runtime_id, t.planned_resource_id,
    t.allocated_resource_id, coalesce(t.metadata ->> 'image', a.command_spec ->> 'image',
      nullif(y.default_image, '')) as image,
    t.metadata ->> 'imageDigest' as image_digest, t.status, t.exit_code, t.failure_class, t.failure_reason,
    case when r.mode <> 'simulation' then to_timestamp(t.started_at) end as started_at, case
      when r.mode <> 'simulation' then to_timestamp(t.finished_at) end as finished_at,
    t.runtime_seconds, t.queue_seconds, t.transfer_seconds, t.transfer_bytes, t.interference_seconds,
      t.overhead_seconds, t.cpu_seconds, t.peak_memory_bytes, t.cost,
    (select 'sha256:' || encode(sha256(convert_to(string_agg(u.relative_path || ' ' || coalesce(u.checksum,
      ''), chr(10) order by u.relative_path, u.checksum), 'UTF8')), 'hex')
      from provenance.data_uses u where u.task_execution_id = t.id) as input_digest,
    array(select u.relative_path from provenance.data_uses u where u.task_execution_id = t.id
      order by 1) as inputs,
    array(select i.relative_path from data_object_instances i
      where i.execution_run_id = t.execution_run_id and i.producer_activity_id = t.activity_id
        collate "default"
        and i.attempt = t.attempt order by 1) as outputs
  from task_executions t
  join execution_runs r on r.id = t.execution_run_id
  join workflow_versions v on v.id = r.content_version_id
  join activity_definitions a on a.workflow_version_id = r.content_version_id and a.position = t.activity_position
  left join activity_types y on y.id = a.activity_type_id;
