-- For the read model of provenance, whose views are in src/db/views/provenance.

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
