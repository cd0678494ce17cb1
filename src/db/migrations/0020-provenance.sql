-- The read model of provenance: a view for each table that may be asked, with exactly the columns that it shows, and two that are derived.

alter table execution_runs add column if not exists service_version text;

create index if not exists activity_definitions_by_id on activity_definitions (id);
create index if not exists activity_definitions_by_external_id on activity_definitions (workflow_version_id, external_id);
create index if not exists activity_dependencies_of_predecessor on activity_dependencies (workflow_version_id, depends_on_position);
create index if not exists data_objects_of_version on data_objects (workflow_version_id, producer_activity_id);
create index if not exists data_object_instances_of_object on data_object_instances (data_object_id);
create index if not exists data_object_instances_of_producer on data_object_instances (execution_run_id, producer_activity_id);
create index if not exists data_transfer_observations_from on data_transfer_observations (source_resource_id);
create index if not exists data_transfer_observations_to on data_transfer_observations (target_resource_id);
create index if not exists execution_runs_of_content on execution_runs (content_version_id);
create index if not exists planning_sessions_of_version on planning_sessions (workflow_version_id);
create index if not exists planning_sessions_in_scope on planning_sessions (execution_scope_id);
create index if not exists schedule_plans_named_workflow on schedule_plans (workflow_version_id);
-- Of columns that never change: an index on others would take the cheap updates (HOT) from the engine.
create index if not exists task_executions_of_activity on task_executions (execution_run_id, activity_id);
create index if not exists task_executions_planned_on on task_executions (planned_resource_id);
create index if not exists workflow_versions_of_workflow on workflow_versions (workflow_id);

create schema if not exists provenance;

create or replace view provenance.environments as
  select id, name, description, status, created_at from environments;

create or replace view provenance.environment_versions as
  select id, environment_id, version, status, network_model, interference_model, cost_model, configuration_hash, created_at, published_at from environment_versions;

create or replace view provenance.resources as
  select id, environment_version_id, execution_target, parent_resource_id, type, name, provider_id, tier, region, zone, architecture, cpu_cores, cpu_capacity,
    memory_bytes, storage_bytes, compute_speedup, price_per_second, boot_overhead_seconds, container_overhead_seconds, schedulable from resources;

create or replace view provenance.resource_snapshots as
  select id, resource_id, captured_at, available, cpu_used, memory_used_bytes, network_in_bps, network_out_bps, disk_read_bps, disk_write_bps, queue_length
  from resource_snapshots;

create or replace view provenance.resource_relations as
  select environment_version_id, source_resource_id, target_resource_id, relation_type from resource_relations;

create or replace view provenance.execution_scopes as
  select id, name, network_topology_id from execution_scopes;

create or replace view provenance.execution_scope_environments as
  select execution_scope_id, environment_version_id from execution_scope_environments;

create or replace view provenance.network_topologies as
  select id, name, version, execution_scope_id, created_at from network_topologies;

create or replace view provenance.network_links as
  select id, topology_id, source_resource_id, target_resource_id, bandwidth_bits_per_second, latency_seconds, price_per_byte, bidirectional, sharing_policy,
    max_concurrent_transfers from network_links;

create or replace view provenance.workflow_definitions as
  select id, external_id, name, namespace, created_at from workflow_definitions;

create or replace view provenance.workflow_versions as
  select id, workflow_id, version, definition_hash, status, created_at from workflow_versions;

create or replace view provenance.activity_types as
  select id, name, application, default_image, cpu_intensity, memory_intensity, io_intensity, network_intensity from activity_types;

create or replace view provenance.activity_definitions as
  select id, workflow_version_id, activity_type_id, external_id, name, kind, capabilities, command_spec, resource_requirements, service_spec, simulation_spec, policy,
    priority from activity_definitions;

create or replace view provenance.activity_dependencies as
  select a.id as activity_id, b.id as depends_on_activity_id, d.dependency_type
  from activity_dependencies d
  join activity_definitions a on a.workflow_version_id = d.workflow_version_id and a.position = d.activity_position
  join activity_definitions b on b.workflow_version_id = d.workflow_version_id and b.position = d.depends_on_position;

create or replace view provenance.workflow_data_dependencies as
  select p.id as producer_activity_id, c.id as consumer_activity_id, d.logical_name, d.size_bytes
  from workflow_data_dependencies d
  join activity_definitions p on p.workflow_version_id = d.workflow_version_id and p.position = d.producer_position
  join activity_definitions c on c.workflow_version_id = d.workflow_version_id and c.position = d.consumer_position;

create or replace view provenance.activity_resource_profiles as
  select id, activity_type_id, resource_id, runtime_seconds, runtime_stddev_seconds, cpu_utilization, peak_memory_bytes, disk_read_bytes, disk_write_bytes,
    energy_joules, source, sample_size, model_version from activity_resource_profiles;

create or replace view provenance.schedule_plans as
  select id, workflow_version_id, execution_scope_id, network_topology_id, source, algorithm, algorithm_version, objective, status, deadline_seconds, budget,
    predicted_makespan_seconds, predicted_cost, predicted_feasible, created_at from schedule_plans;

create or replace view provenance.schedule_plan_assignments as
  select id, schedule_plan_id, activity_id, resource_id, core_id, slot_id, order_on_resource, priority, predicted_ready_at, predicted_start_at, predicted_finish_at,
    predicted_runtime_seconds, predicted_transfer_seconds, predicted_cost from schedule_plan_assignments;

create or replace view provenance.planning_sessions as
  select id, workflow_version_id, execution_scope_id, network_topology_id, status, algorithms, progress, candidate_count, selected_candidate_id, selected_plan_id,
    deadline_seconds, budget, failure_reason, created_at, started_at, completed_at from planning_sessions;

create or replace view provenance.planning_algorithm_runs as
  select id, planning_session_id, algorithm, objective, status, progress, candidate_count, failure_reason, started_at, completed_at from planning_algorithm_runs;

create or replace view provenance.planning_candidates as
  select id, planning_session_id, algorithm_run_id, algorithm, objective, rank, pareto_optimal, dominated, feasible, predicted_makespan_seconds, predicted_cost, plan,
    fingerprint, created_at from planning_candidates;

create or replace view provenance.execution_runs as
  select id, schedule_plan_id, mode, seed, status, environment_snapshot_id, started_at, finished_at, makespan_seconds, cost, failure_reason, created_at,
    transferred_bytes from execution_runs;

create or replace view provenance.task_executions as
  select id, execution_run_id, plan_assignment_id, activity_id, planned_resource_id, allocated_resource_id, attempt, status, ready_at, data_ready_at, queued_at,
    started_at, finished_at, runtime_seconds, queue_seconds, transfer_seconds, transfer_bytes, interference_seconds, overhead_seconds, cost, failure_reason
  from task_executions;

-- An attempt's time cut at its known moments, as the timeline of its run does it.
create or replace view provenance.activity_lifecycle_events as
  select t.id || '/' || p.phase as id, t.id as task_execution_id, p.phase, t.status, p.started_at, p.finished_at, p.finished_at - p.started_at as duration_seconds,
    case when t.measured_by = 'simulated' then 'simulated' else 'measured' end as source,
    case when p.phase = 'runtime' then t.failure_reason end as error
  from task_executions t
  cross join lateral (select least(coalesce(t.ready_at, t.queued_at, t.started_at), t.started_at) as ready) r
  cross join lateral (select least(r.ready + greatest(t.transfer_seconds, 0), t.started_at) as moved,
    least(t.started_at + greatest(t.overhead_seconds, 0), t.finished_at) as launched) m
  cross join lateral (values ('workspace-transfer', r.ready, m.moved), ('resource-queue', m.moved, t.started_at), ('launch', t.started_at, m.launched),
    ('runtime', m.launched, t.finished_at)) as p (phase, started_at, finished_at)
  where t.started_at is not null and t.finished_at is not null;

create or replace view provenance.data_objects as
  select id, workflow_version_id, producer_activity_id, logical_name, relative_path, declared from data_objects;

create or replace view provenance.data_object_instances as
  select id, data_object_id, execution_run_id, producer_activity_id, attempt, relative_path, size_bytes, checksum, media_type, discovered, created_at
  from data_object_instances;

create or replace view provenance.data_locations as
  select id, data_object_instance_id, storage_resource_id, resource_id, execution_run_id, uri, available_at, verified_at, status from data_locations;

-- A transfer names the file that it was for where one was meant: the only one that its producer left or, where the workflow declares data between the two, the
-- only one declared.
create or replace view provenance.data_transfer_observations as
  select o.id, o.execution_run_id,
    coalesce(o.data_object_id, (
      select min(i.data_object_id)
      from data_object_instances i
      join task_executions p on p.execution_run_id = i.execution_run_id and p.activity_id = i.producer_activity_id and p.attempt = i.attempt
      join execution_runs r on r.id = i.execution_run_id
      left join task_executions c on c.execution_run_id = i.execution_run_id and c.activity_id = o.consumer_activity_id and c.attempt = 1
      left join lateral (select array_agg(d.logical_name) as names from workflow_data_dependencies d
        where d.workflow_version_id = r.content_version_id and d.producer_position = p.activity_position and d.consumer_position = c.activity_position) declared on true
      where i.execution_run_id = o.execution_run_id and i.producer_activity_id = o.producer_activity_id and p.status = 'completed'
        and (declared.names is null or i.relative_path = any (declared.names))
      having count(*) = 1)) as data_object_id,
    coalesce(o.data_object_instance_id, (
      select min(i.id)
      from data_object_instances i
      join task_executions p on p.execution_run_id = i.execution_run_id and p.activity_id = i.producer_activity_id and p.attempt = i.attempt
      join execution_runs r on r.id = i.execution_run_id
      left join task_executions c on c.execution_run_id = i.execution_run_id and c.activity_id = o.consumer_activity_id and c.attempt = 1
      left join lateral (select array_agg(d.logical_name) as names from workflow_data_dependencies d
        where d.workflow_version_id = r.content_version_id and d.producer_position = p.activity_position and d.consumer_position = c.activity_position) declared on true
      where i.execution_run_id = o.execution_run_id and i.producer_activity_id = o.producer_activity_id and p.status = 'completed'
        and (declared.names is null or i.relative_path = any (declared.names))
      having count(*) = 1)) as data_object_instance_id,
    o.producer_activity_id, o.consumer_activity_id, o.source_resource_id, o.target_resource_id, o.bytes, o.status, o.started_at, o.finished_at, o.duration_seconds,
    o.cost
  from data_transfer_observations o;

create or replace view provenance.audit_events as
  select id, event_type, actor_id, actor_type, environment_id, resource_id, connection_id, runtime_id, session_id, execution_id, external_id, outcome, summary,
    occurred_at from audit_events;

-- What an attempt was given of what others had made: everything that its completed predecessors left, or what it declares of that. A predecessor that left
-- nothing of its own hands on what it was given (second part). One that did is an ancestor with uses of its own, so the lineage stays whole without them here.
create or replace view provenance.data_uses as
  select i.id || ':' || t.id as id, i.execution_run_id, t.id as task_execution_id, i.id as data_object_instance_id, i.data_object_id,
    p.id as producer_task_execution_id, t.activity_id as consumer_activity_id, case when d.declared then 'declared' else 'staged' end as basis,
    i.relative_path, i.size_bytes, i.checksum
  from data_object_instances i
  join execution_runs r on r.id = i.execution_run_id
  join task_executions p on p.execution_run_id = i.execution_run_id and p.activity_id = i.producer_activity_id and p.attempt = i.attempt
  join activity_dependencies e on e.workflow_version_id = r.content_version_id and e.depends_on_position = p.activity_position
  join task_executions t on t.execution_run_id = i.execution_run_id and t.activity_position = e.activity_position
  join activity_definitions a on a.workflow_version_id = r.content_version_id and a.position = t.activity_position
  cross join lateral (select exists (select from workflow_data_dependencies w
    where w.workflow_version_id = r.content_version_id and w.producer_position = p.activity_position and w.consumer_position = t.activity_position
      and (w.logical_name = i.relative_path or starts_with(i.relative_path, w.logical_name || '/'))) as declared) d
  where p.status = 'completed' and t.handle_name is not null and (d.declared or a.metadata ->> 'stage' is distinct from 'declared')
  union all
  select i.id || ':' || t.id, i.execution_run_id, t.id, i.id, i.data_object_id, p.id, t.activity_id, case when d.declared then 'declared' else 'staged' end,
    i.relative_path, i.size_bytes, i.checksum
  from data_object_instances i
  join execution_runs r on r.id = i.execution_run_id
  join task_executions p on p.execution_run_id = i.execution_run_id and p.activity_id = i.producer_activity_id and p.attempt = i.attempt
  cross join lateral (
    with recursive handed (position, through) as (
      select e.activity_position, false from activity_dependencies e where e.workflow_version_id = r.content_version_id and e.depends_on_position = p.activity_position
      union
      select e.activity_position, true
      from handed h
      join task_executions x on x.execution_run_id = i.execution_run_id and x.activity_position = h.position and x.status = 'completed'
      join activity_dependencies e on e.workflow_version_id = r.content_version_id and e.depends_on_position = h.position
      where not exists (select from data_object_instances o where o.execution_run_id = x.execution_run_id and o.producer_activity_id = x.activity_id)
    )
    select position from handed group by position having bool_and(through)
  ) h
  join task_executions t on t.execution_run_id = i.execution_run_id and t.activity_position = h.position
  join activity_definitions a on a.workflow_version_id = r.content_version_id and a.position = t.activity_position
  cross join lateral (select exists (select from workflow_data_dependencies w
    where w.workflow_version_id = r.content_version_id and w.consumer_position = t.activity_position
      and (w.logical_name = i.relative_path or starts_with(i.relative_path, w.logical_name || '/'))) as declared) d
  where p.status = 'completed' and t.handle_name is not null and (d.declared or a.metadata ->> 'stage' is distinct from 'declared');

-- One row an attempt with everything that was decided or measured elsewhere, because a statement reads one entity.
create or replace view provenance.attempts as
  select t.id, t.execution_run_id, t.attempt, t.activity_id, a.external_id, a.name as activity_name, y.id as activity_type_id, y.name as activity_type,
    v.workflow_id, v.id as workflow_version_id, r.schedule_plan_id, r.mode, r.actor_id, r.service_version, t.site, t.runtime_id, t.planned_resource_id,
    t.allocated_resource_id, coalesce(t.metadata ->> 'image', a.command_spec ->> 'image', nullif(y.default_image, '')) as image,
    t.metadata ->> 'imageDigest' as image_digest, t.status, t.exit_code, t.failure_class, t.failure_reason,
    case when r.mode <> 'simulation' then to_timestamp(t.started_at) end as started_at, case when r.mode <> 'simulation' then to_timestamp(t.finished_at) end as finished_at,
    t.runtime_seconds, t.queue_seconds, t.transfer_seconds, t.transfer_bytes, t.interference_seconds, t.overhead_seconds, t.cpu_seconds, t.peak_memory_bytes, t.cost,
    (select 'sha256:' || encode(sha256(convert_to(string_agg(u.relative_path || ' ' || coalesce(u.checksum, ''), chr(10) order by u.relative_path, u.checksum), 'UTF8')), 'hex')
      from provenance.data_uses u where u.task_execution_id = t.id) as input_digest,
    array(select u.relative_path from provenance.data_uses u where u.task_execution_id = t.id order by 1) as inputs,
    array(select i.relative_path from data_object_instances i
      where i.execution_run_id = t.execution_run_id and i.producer_activity_id = t.activity_id and i.attempt = t.attempt order by 1) as outputs
  from task_executions t
  join execution_runs r on r.id = t.execution_run_id
  join workflow_versions v on v.id = r.content_version_id
  join activity_definitions a on a.workflow_version_id = r.content_version_id and a.position = t.activity_position
  left join activity_types y on y.id = a.activity_type_id;

-- The names of the entities beside those of the tables.
create or replace view provenance.workflows as select * from provenance.workflow_definitions;
create or replace view provenance.activities as select * from provenance.activity_definitions;
create or replace view provenance.plans as select * from provenance.schedule_plans;
create or replace view provenance.runs as select * from provenance.execution_runs;
create or replace view provenance.data_instances as select * from provenance.data_object_instances;
create or replace view provenance.transfers as select * from provenance.data_transfer_observations;
