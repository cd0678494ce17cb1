/**
 * The domains in their order, after the records of events (audit records, events of operations).
 * Each domain imports, and reads tables of, only those above it, so a new domain edits no old one.
 * A domain gets facts about domains below it through a hook (`src/uses.ts`) or a view
 * (`src/db/views`).
 */
export const domainOrder: readonly string[] = [
  'audit-events',
  'operations',
  'credentials',
  'environments',
  'machine-configurations',
  'resources',
  'environment-connections',
  'cloud',
  'execution-scopes',
  'network-topologies',
  'artifacts',
  'storages',
  'workflow-definitions',
  'schedule-plans',
  'planning-sessions',
  'execution-runs',
  'function-calls',
  'console',
  'provenance',
  'search',
  'instance',
]

/** The tables of each domain. Only that domain writes them. */
export const owners: Readonly<Record<string, readonly string[]>> = {
  'audit-events': ['audit_events', 'audit_head'],
  operations: ['operation_events', 'event_feed', 'event_feed_open'],
  credentials: ['credentials'],
  environments: [
    'environments',
    'environment_versions',
    'runtimes',
    'resources',
    'resource_runtime_bindings',
    'resource_relations',
    'storages',
    'storage_runtime_bindings',
    'activity_resource_profiles',
    'connections',
  ],
  'machine-configurations': ['machine_configurations', 'machine_configuration_versions'],
  resources: ['resource_snapshots'],
  'environment-connections': [
    'connection_checks',
    'connection_discoveries',
    'connection_host_keys',
    'login_holders',
  ],
  cloud: ['cloud_service', 'cloud_capacity_targets', 'cloud_instances', 'cloud_operations', 'cloud_catalogs'],
  'execution-scopes': ['execution_scopes', 'execution_scope_environments'],
  'network-topologies': ['network_topologies', 'network_links'],
  artifacts: [
    'artifact_versions',
    'artifact_variants',
    'artifact_locations',
    'build_contexts',
    'artifact_builds',
    'build_runs',
    'artifact_materializations',
    'artifact_transfer_runs',
  ],
  storages: [
    'storage_downloads',
    'storage_download_entries',
    'storage_index_runs',
    'storage_index_entries',
    'storage_index_folders',
    'storage_index_pages',
    'storage_index_changes',
  ],
  'workflow-definitions': [
    'workflow_definitions',
    'workflow_versions',
    'activity_types',
    'activity_definitions',
    'activity_dependencies',
    'workflow_data_dependencies',
  ],
  'schedule-plans': ['schedule_plans', 'schedule_plan_assignments'],
  'planning-sessions': ['planning_sessions', 'planning_algorithm_runs', 'planning_candidates'],
  'execution-runs': [
    'execution_runs',
    'run_snapshots',
    'task_executions',
    'data_transfer_observations',
    'data_objects',
    'data_object_instances',
    'data_locations',
    'site_leases',
    'site_leftovers',
    'site_removals',
    'lane_leases',
    'run_machines',
  ],
  console: ['console_commands', 'console_sessions', 'console_records', 'console_tickets'],
  provenance: [],
  instance: [
    'system_instance',
    'user_preferences',
    'instance_archives',
    'instance_activation',
    'instance_cleanups',
  ],
  db: ['schema_migrations', 'schema_definitions', 'idempotency_keys'],
}

/**
 * Folders whose code belongs to an owner, beside `src/domains/<owner>`, and the owner of each
 * function and view of the database.
 */
export const partOf: Readonly<Record<string, string>> = {
  // This entry comes before that of its parent folder, because the first match counts.
  'src/db/views/provenance': 'provenance',
  'src/operations': 'operations',
  'src/vault': 'credentials',
  'src/connections': 'environment-connections',
  'src/executor': 'execution-runs',
  'src/db': 'db',
  'src/db/functions/commit_site.sql': 'execution-runs',
  'src/db/functions/connection_is_monitored.sql': 'environment-connections',
  'src/db/functions/machine_task_overheads.sql': 'execution-runs',
  'src/db/functions/machine_uses.sql': 'execution-runs',
  'src/db/views/activity_lifecycle_events.sql': 'execution-runs',
  'src/db/views/run_events.sql': 'execution-runs',
  'src/db/views/console_runs.sql': 'console',
  'src/db/views/credential_users.sql': 'artifacts',
  'src/db/views/recorded_connection_checks.sql': 'environment-connections',
  'src/db/views/registered_activity_types.sql': 'workflow-definitions',
  'src/db/views/service_gauges.sql': 'instance',
  'src/db/views/storage_index_status.sql': 'storages',
}
