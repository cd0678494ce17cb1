/**
 * The domains in their order: each imports, and reads tables of, those above it only, so that a new one edits no old one. What a domain
 * has to know of those below comes by a hook (`src/uses.ts`) or a view (`src/db/views`).
 */
export const domainOrder: readonly string[] = [
  'audit-events',
  'credentials',
  'machine-configurations',
  'environments',
  'cloud',
  'resources',
  'environment-connections',
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

/** The tables of each domain: only it writes them. */
export const owners: Readonly<Record<string, readonly string[]>> = {
  'audit-events': ['audit_events', 'audit_head'],
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
  resources: ['resource_snapshots'],
  'environment-connections': ['connection_checks', 'connection_discoveries', 'connection_host_keys', 'login_holders'],
  'execution-scopes': ['execution_scopes', 'execution_scope_environments'],
  'network-topologies': ['network_topologies', 'network_links'],
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
    'run_events',
    'task_executions',
    'data_transfer_observations',
    'data_objects',
    'data_object_instances',
    'data_locations',
    'site_leases',
    'site_leftovers',
    'lane_leases',
  ],
  provenance: [],
  instance: ['system_instance', 'user_preferences'],
  db: ['schema_migrations', 'schema_definitions', 'idempotency_keys'],
}

/** Folders whose code is part of an owner, beside `src/domains/<owner>`; and the owner of each function and view of the database. */
export const partOf: Readonly<Record<string, string>> = {
  // Before that of its parent: the first one counts.
  'src/db/views/provenance': 'provenance',
  'src/vault': 'credentials',
  'src/connections': 'environment-connections',
  'src/executor': 'execution-runs',
  'src/db': 'db',
  'src/db/functions/commit_site.sql': 'execution-runs',
  'src/db/views/activity_lifecycle_events.sql': 'execution-runs',
  'src/db/views/credential_users.sql': 'environments',
  'src/db/views/recorded_connection_checks.sql': 'environment-connections',
  'src/db/views/registered_activity_types.sql': 'workflow-definitions',
}
