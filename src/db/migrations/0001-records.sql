-- Every record of the service. Identifiers are the caller's own text, compared by C collation so that orders are the same everywhere.
-- Constraint names are the keys to the error texts in src/db/errors.ts.

-- Composed identifiers (run:activity:attempt) hold up to 1,024 bytes, far below what an index page takes.
create domain identifier as text collate "C" check (octet_length(value) between 1 and 1100);

create table system_instance (
  singleton boolean primary key default true constraint system_instance_single check (singleton),
  id identifier not null,
  name text not null,
  description text not null default '',
  organization text not null default '',
  location text not null default '',
  transfer_buffer_bytes bigint not null default 8388608,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

create table user_preferences (
  client_id identifier primary key,
  theme text not null,
  animations_enabled boolean not null,
  updated_at timestamptz not null default now()
);

create table audit_events (
  sequence bigint generated always as identity,
  id identifier constraint audit_events_pkey primary key,
  event_type text not null,
  actor_id text,
  actor_type text,
  environment_id text,
  resource_id text,
  connection_id text,
  runtime_id text,
  session_id text,
  execution_id text,
  external_id text,
  outcome text not null,
  summary text not null,
  metadata jsonb,
  occurred_at timestamptz not null default now()
);
create index audit_events_newest on audit_events (occurred_at desc, id desc);

-- Answers kept for repeated creates: the key is a hash of method, path, caller and the caller's key; no status while being answered.
create table idempotency_keys (
  key text constraint idempotency_keys_pkey primary key,
  fingerprint text not null,
  status integer,
  headers jsonb,
  body text,
  created_at timestamptz not null default now()
);
create index idempotency_keys_age on idempotency_keys (created_at);

-- ------------------------------------------------------------------------------------------------------------ inventory

create table environments (
  id identifier constraint environments_pkey primary key,
  name text not null,
  description text not null default '',
  status text not null default 'defined',
  created_at timestamptz not null default now()
);
create index environments_by_name on environments (name collate "C", id);

create table environment_versions (
  id identifier constraint environment_versions_pkey primary key,
  environment_id identifier not null constraint environment_versions_environment references environments on delete cascade,
  version bigint not null,
  status text not null default '',
  network_model text not null default '',
  interference_model text not null default '',
  cost_model text not null default '',
  configuration_hash text not null default '',
  created_at timestamptz not null default now(),
  published_at timestamptz,
  constraint environment_versions_number unique (environment_id, version)
);

create table runtimes (
  id identifier constraint runtimes_pkey primary key,
  environment_version_id identifier not null constraint runtimes_version references environment_versions on delete cascade,
  position integer not null default 0,
  name text not null,
  driver text not null,
  mode text not null,
  role text not null default '',
  configuration jsonb,
  capabilities jsonb not null default '{}',
  constraint runtimes_name unique (environment_version_id, name),
  constraint runtimes_driver check (driver in ('slurm', 'kubernetes', 'ssh', 'local', 'serverless', 'simgrid', 'cloud')),
  constraint runtimes_mode check (mode in ('execution', 'simulation'))
);

create table resources (
  id identifier constraint resources_pkey primary key,
  environment_version_id identifier not null constraint resources_version references environment_versions on delete cascade,
  position integer not null default 0,
  type text not null default '',
  name text not null,
  provider_id text not null,
  execution_target text not null default 'batch',
  parent_resource_id identifier constraint resources_parent references resources deferrable initially deferred,
  tier text not null default '',
  region text not null default '',
  zone text not null default '',
  architecture text not null default '',
  cpu_cores bigint not null default 0,
  cpu_capacity double precision not null default 0,
  memory_bytes bigint not null default 0,
  storage_bytes bigint not null default 0,
  compute_speedup double precision not null default 0,
  price_per_second double precision not null default 0,
  boot_overhead_seconds double precision not null default 0,
  container_overhead_seconds double precision not null default 0,
  schedulable boolean not null default false,
  metadata jsonb,
  constraint resources_provider_id unique (environment_version_id, provider_id),
  constraint resources_execution_target check (execution_target in ('batch', 'direct', 'provisioned')),
  constraint resources_not_negative check (cpu_cores >= 0 and cpu_capacity >= 0 and memory_bytes >= 0 and storage_bytes >= 0 and compute_speedup >= 0
    and price_per_second >= 0 and boot_overhead_seconds >= 0 and container_overhead_seconds >= 0)
);
create index resources_of_version on resources (environment_version_id);
-- Without an index on each referencing column, deleting 10,000 resources reads the tables 10,000 times.
create index resources_of_parent on resources (parent_resource_id) where parent_resource_id is not null;
create index resources_by_name on resources (name collate "C", id);

create table resource_runtime_bindings (
  resource_id identifier not null constraint resource_runtime_bindings_resource references resources on delete cascade,
  runtime_id identifier not null constraint resource_runtime_bindings_runtime references runtimes on delete cascade,
  environment_version_id identifier not null constraint resource_runtime_bindings_version references environment_versions on delete cascade,
  position integer not null default 0,
  enabled boolean not null default false,
  configuration jsonb,
  constraint resource_runtime_bindings_pkey primary key (resource_id, runtime_id)
);
create index resource_runtime_bindings_of_version on resource_runtime_bindings (environment_version_id);
create index resource_runtime_bindings_of_runtime on resource_runtime_bindings (runtime_id);

create table resource_relations (
  environment_version_id identifier not null constraint resource_relations_version references environment_versions on delete cascade,
  source_resource_id identifier not null constraint resource_relations_source references resources on delete cascade,
  target_resource_id identifier not null constraint resource_relations_target references resources on delete cascade,
  relation_type text not null,
  position integer not null default 0,
  metadata jsonb,
  constraint resource_relations_pkey primary key (source_resource_id, target_resource_id, relation_type),
  constraint resource_relations_type check (relation_type in ('contains', 'member_of', 'accessible_via')),
  constraint resource_relations_not_self check (source_resource_id <> target_resource_id)
);
create index resource_relations_of_version on resource_relations (environment_version_id);
create index resource_relations_of_target on resource_relations (target_resource_id);

create table connections (
  id identifier constraint connections_pkey primary key,
  environment_id identifier not null constraint connections_environment references environments on delete cascade,
  position integer not null default 0,
  name text not null,
  type text not null,
  endpoint text not null default '',
  username text not null default '',
  credential_ref text not null default '',
  configuration jsonb,
  created_at timestamptz not null default now(),
  -- Deferred: a replacement may swap the names of two connections.
  constraint connections_name unique (environment_id, name) deferrable initially deferred
);

create table connection_checks (
  id identifier constraint connection_checks_pkey primary key,
  connection_id identifier not null constraint connection_checks_connection references connections on delete cascade,
  status text not null,
  message text,
  latency_ms double precision not null default 0,
  checked_at timestamptz not null default now(),
  metadata jsonb
);
create index connection_checks_newest on connection_checks (connection_id, checked_at desc);

create table storages (
  id identifier constraint storages_pkey primary key,
  environment_version_id identifier not null constraint storages_version references environment_versions on delete cascade,
  position integer not null default 0,
  name text not null,
  type text not null,
  endpoint text not null default '',
  capacity_bytes bigint not null default 0,
  shared boolean not null default false,
  read_only boolean not null default false,
  credential_reference text not null default '',
  configuration jsonb,
  metadata jsonb,
  constraint storages_name unique (environment_version_id, name),
  constraint storages_in_version unique (environment_version_id, id),
  constraint storages_type check (type in ('local', 'pvc', 'nfs', 's3', 'lustre', 'gcs', 's3-compatible', 'ssh-filesystem')),
  constraint storages_capacity check (capacity_bytes >= 0)
);

alter table runtimes add constraint runtimes_in_version unique (environment_version_id, id);

create table storage_runtime_bindings (
  environment_version_id identifier not null,
  storage_id identifier not null,
  runtime_id identifier not null,
  position integer not null default 0,
  container_path text not null default '/akoflow/data',
  is_default boolean not null default false,
  read_only boolean not null default false,
  host_path text not null default '',
  configuration jsonb,
  constraint storage_runtime_bindings_pkey primary key (storage_id, runtime_id),
  constraint storage_runtime_bindings_storage foreign key (environment_version_id, storage_id) references storages (environment_version_id, id) on delete cascade,
  constraint storage_runtime_bindings_runtime foreign key (environment_version_id, runtime_id) references runtimes (environment_version_id, id) on delete cascade
);
create index storage_runtime_bindings_of_runtime on storage_runtime_bindings (environment_version_id, runtime_id);
create unique index storage_runtime_bindings_one_default on storage_runtime_bindings (environment_version_id, runtime_id) where is_default;

create table resource_snapshots (
  id identifier constraint resource_snapshots_pkey primary key,
  resource_id identifier not null constraint resource_snapshots_resource references resources on delete cascade,
  captured_at timestamptz not null default now(),
  available boolean not null,
  cpu_used double precision not null default 0,
  memory_used_bytes bigint not null default 0,
  network_in_bps double precision not null default 0,
  network_out_bps double precision not null default 0,
  disk_read_bps double precision not null default 0,
  disk_write_bps double precision not null default 0,
  queue_length bigint not null default 0,
  metadata jsonb
);
create index resource_snapshots_newest on resource_snapshots (resource_id, captured_at desc, id desc);

-- --------------------------------------------------------------------------------------------------- scopes, topologies

create table execution_scopes (
  id identifier constraint execution_scopes_pkey primary key,
  name text not null,
  network_topology_id text not null default '',
  metadata jsonb,
  created_at timestamptz not null default now()
);
create index execution_scopes_by_name on execution_scopes (name collate "C", id);

create table execution_scope_environments (
  execution_scope_id identifier not null constraint execution_scope_environments_scope references execution_scopes on delete cascade,
  environment_version_id identifier not null constraint execution_scope_environments_version references environment_versions,
  position integer not null default 0,
  constraint execution_scope_environments_pkey primary key (execution_scope_id, environment_version_id)
);
create index execution_scope_environments_version on execution_scope_environments (environment_version_id);

create table network_topologies (
  id identifier constraint network_topologies_pkey primary key,
  name text not null,
  version bigint not null,
  execution_scope_id identifier not null constraint network_topologies_scope references execution_scopes,
  metadata jsonb,
  created_at timestamptz not null default now(),
  constraint network_topologies_version check (version >= 1)
);
create index network_topologies_by_name on network_topologies (name collate "C", version desc, id);

create table network_links (
  id identifier constraint network_links_pkey primary key,
  topology_id identifier not null constraint network_links_topology references network_topologies on delete cascade,
  position integer not null default 0,
  source_resource_id identifier not null constraint network_links_source references resources,
  target_resource_id identifier not null constraint network_links_target references resources,
  bandwidth_bits_per_second double precision not null,
  latency_seconds double precision not null default 0,
  price_per_byte double precision not null default 0,
  bidirectional boolean not null default false,
  sharing_policy text not null default '',
  max_concurrent_transfers bigint not null default 0,
  metadata jsonb,
  constraint network_links_pair unique (topology_id, source_resource_id, target_resource_id),
  constraint network_links_not_self check (source_resource_id <> target_resource_id),
  constraint network_links_bandwidth check (bandwidth_bits_per_second > 0),
  constraint network_links_not_negative check (latency_seconds >= 0 and price_per_byte >= 0 and max_concurrent_transfers >= 0)
);
create index network_links_source_end on network_links (source_resource_id);
create index network_links_target_end on network_links (target_resource_id);

-- ------------------------------------------------------------------------------------------------------------ workflows

create table workflow_definitions (
  id identifier constraint workflow_definitions_pkey primary key,
  external_id text not null,
  name text not null,
  namespace text not null,
  created_at timestamptz not null default now(),
  constraint workflow_definitions_external_id unique (external_id)
);
create index workflow_definitions_by_namespace on workflow_definitions (namespace collate "C", name collate "C", id);

create table activity_types (
  id identifier constraint activity_types_pkey primary key,
  workflow_id identifier constraint activity_types_workflow references workflow_definitions on delete cascade,
  position integer not null default 0,
  name text not null,
  application text not null default '',
  default_image text not null default '',
  cpu_intensity double precision not null default 0,
  memory_intensity double precision not null default 0,
  io_intensity double precision not null default 0,
  network_intensity double precision not null default 0,
  metadata jsonb
);
create index activity_types_of_workflow on activity_types (workflow_id, position);

-- `embedded` versions hold a workflow that came inside a plan or a run and differs from the stored one of the same id; their id is
-- the version id, '#' and the content's hash, their activities keep the sender's ids. They are never listed.
create table workflow_versions (
  id identifier constraint workflow_versions_pkey primary key,
  workflow_id identifier not null,
  version bigint not null,
  definition_hash text not null,
  status text not null default 'published',
  embedded boolean not null default false,
  activity_count bigint not null,
  dependency_count bigint not null,
  -- Authoring members that are not per activity (spec.image, storage keys, legacy, WfFormat facts), to export what was imported.
  raw_definition jsonb,
  metadata jsonb,
  created_at timestamptz not null default now()
);
create unique index workflow_versions_number on workflow_versions (workflow_id, version) where not embedded;

create table activity_definitions (
  workflow_version_id identifier not null constraint activity_definitions_version references workflow_versions on delete cascade,
  position integer not null,
  id identifier not null,
  activity_type_id identifier not null,
  external_id text not null collate "C",
  name text not null,
  kind text not null default 'task',
  capabilities jsonb not null,
  command_spec jsonb not null,
  resource_requirements jsonb not null,
  service_spec jsonb,
  simulation_spec jsonb,
  policy jsonb not null,
  priority double precision not null default 0,
  metadata jsonb,
  constraint activity_definitions_pkey primary key (workflow_version_id, position),
  constraint activity_definitions_id unique (workflow_version_id, id)
);

-- Edges by position within the version: two integers instead of two long names (a million edges: 40 MB instead of 200).
create table activity_dependencies (
  workflow_version_id identifier not null constraint activity_dependencies_version references workflow_versions on delete cascade,
  activity_position integer not null,
  depends_on_position integer not null,
  dependency_type text not null default 'control',
  constraint activity_dependencies_pkey primary key (workflow_version_id, activity_position, depends_on_position),
  constraint activity_dependencies_not_self check (activity_position <> depends_on_position)
);

create table workflow_data_dependencies (
  workflow_version_id identifier not null constraint workflow_data_dependencies_version references workflow_versions on delete cascade,
  producer_position integer not null,
  consumer_position integer not null,
  logical_name text not null collate "C",
  size_bytes bigint not null,
  constraint workflow_data_dependencies_pkey primary key (workflow_version_id, producer_position, consumer_position, logical_name),
  constraint workflow_data_dependencies_size check (size_bytes >= 0)
);

create index workflow_data_dependencies_of_consumer on workflow_data_dependencies (workflow_version_id, consumer_position);

create table activity_resource_profiles (
  id identifier constraint activity_resource_profiles_pkey primary key,
  environment_version_id identifier not null constraint activity_resource_profiles_environment references environment_versions on delete cascade,
  position integer not null default 0,
  activity_type_id identifier not null constraint activity_resource_profiles_type references activity_types,
  resource_id identifier not null constraint activity_resource_profiles_resource references resources on delete cascade,
  runtime_seconds double precision not null default 0,
  runtime_stddev_seconds double precision not null default 0,
  cpu_utilization double precision not null default 0,
  peak_memory_bytes bigint not null default 0,
  disk_read_bytes bigint not null default 0,
  disk_write_bytes bigint not null default 0,
  energy_joules double precision not null default 0,
  source text not null default 'configured',
  sample_size bigint not null default 0,
  model_version text not null default '',
  metadata jsonb,
  constraint activity_resource_profiles_model unique (activity_type_id, resource_id, model_version),
  constraint activity_resource_profiles_not_negative check (runtime_seconds >= 0)
);
create index activity_resource_profiles_of_version on activity_resource_profiles (environment_version_id);
create index activity_resource_profiles_of_resource on activity_resource_profiles (resource_id);

-- ---------------------------------------------------------------------------------------------------- plans, planning

create table schedule_plans (
  id identifier constraint schedule_plans_pkey primary key,
  workflow_version_id identifier not null,
  -- The version whose activities the plan places: the stored one or the embedded copy that came with it.
  content_version_id identifier not null constraint schedule_plans_content references workflow_versions,
  execution_scope_id identifier not null constraint schedule_plans_scope references execution_scopes,
  network_topology_id text not null default '',
  source text not null,
  algorithm text not null default '',
  algorithm_version text not null default '',
  objective text not null default '',
  status text not null default 'valid',
  deadline_seconds double precision not null default 0,
  budget double precision not null default 0,
  predicted_makespan_seconds double precision not null default 0,
  predicted_cost double precision not null default 0,
  predicted_feasible boolean not null default false,
  assignment_count bigint not null,
  lifecycle_actions jsonb,
  -- What came with the plan and differs from the store: resources, executionScope, networkTopology.
  embedded jsonb,
  metadata jsonb,
  created_at timestamptz not null default now(),
  constraint schedule_plans_source check (source in ('plugin', 'manual', 'imported'))
);
create index schedule_plans_newest on schedule_plans (created_at desc, id desc);
create index schedule_plans_workflow on schedule_plans (content_version_id);
create index schedule_plans_in_scope on schedule_plans (execution_scope_id);

create table schedule_plan_assignments (
  schedule_plan_id identifier not null constraint schedule_plan_assignments_plan references schedule_plans on delete cascade,
  -- Position of the activity in the plan's content version.
  activity_position integer not null,
  -- `<plan>-<activity>` unless the author gave one: two ids in one.
  id text not null collate "C",
  -- As the caller wrote it.
  activity_id text not null collate "C",
  resource_id identifier not null constraint schedule_plan_assignments_resource references resources,
  core_id text not null default '' collate "C",
  slot_id text not null default '' collate "C",
  order_on_resource bigint not null,
  priority double precision not null default 0,
  predicted_ready_at double precision not null default 0,
  predicted_start_at double precision not null default 0,
  predicted_finish_at double precision not null default 0,
  predicted_runtime_seconds double precision not null default 0,
  predicted_transfer_seconds double precision not null default 0,
  predicted_cost double precision not null default 0,
  metadata jsonb,
  constraint schedule_plan_assignments_pkey primary key (schedule_plan_id, activity_position)
);
create index schedule_plan_assignments_on_resource on schedule_plan_assignments (resource_id);

create table planning_sessions (
  id identifier constraint planning_sessions_pkey primary key,
  workflow_version_id identifier not null,
  execution_scope_id identifier not null constraint planning_sessions_scope references execution_scopes,
  network_topology_id text not null default '',
  status text not null default 'queued',
  algorithms jsonb not null,
  progress double precision not null default 0,
  candidate_count bigint not null default 0,
  selected_candidate_id text,
  selected_plan_id identifier constraint planning_sessions_selected_plan references schedule_plans,
  deadline_seconds double precision not null default 0,
  budget double precision not null default 0,
  configuration jsonb,
  defaulted_durations bigint not null default 0,
  failure_reason text,
  -- Set once the engine has taken the session; the dispatcher starts what has none.
  dispatched_at timestamptz,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  completed_at timestamptz,
  constraint planning_sessions_workflow foreign key (workflow_version_id) references workflow_versions,
  constraint planning_sessions_status check (status in ('queued', 'running', 'completed', 'failed', 'cancelled'))
);
create index planning_sessions_selection on planning_sessions (selected_plan_id) where selected_plan_id is not null;
create index planning_sessions_newest on planning_sessions (created_at desc, id desc);
create index planning_sessions_open on planning_sessions (created_at, id) where status in ('queued', 'running');
create index planning_sessions_undispatched on planning_sessions (created_at) where dispatched_at is null and status = 'queued';

create table planning_algorithm_runs (
  id identifier constraint planning_algorithm_runs_pkey primary key,
  planning_session_id identifier not null constraint planning_algorithm_runs_session references planning_sessions on delete cascade,
  position integer not null default 0,
  algorithm text not null,
  objective text not null,
  status text not null default 'queued',
  progress double precision not null default 0,
  candidate_count bigint not null default 0,
  configuration jsonb,
  estimate jsonb,
  -- How often a worker began; one that dies of the problem each time must not be tried for ever.
  attempts integer not null default 0,
  failure_reason text,
  started_at timestamptz,
  completed_at timestamptz,
  constraint planning_algorithm_runs_status check (status in ('queued', 'running', 'completed', 'failed', 'cancelled'))
);
create index planning_algorithm_runs_of_session on planning_algorithm_runs (planning_session_id, position);

create table planning_candidates (
  id identifier constraint planning_candidates_pkey primary key,
  planning_session_id identifier not null constraint planning_candidates_session references planning_sessions on delete cascade,
  algorithm_run_id identifier not null constraint planning_candidates_algorithm_run references planning_algorithm_runs on delete cascade,
  algorithm text not null,
  objective text not null,
  rank bigint,
  pareto_optimal boolean not null default false,
  dominated boolean not null default false,
  feasible boolean not null,
  predicted_makespan_seconds double precision not null,
  predicted_cost double precision not null,
  -- The plan as columns of arrays, compressed by the server: 6,448 assignments are about 200 kB.
  plan jsonb not null,
  fingerprint text not null,
  created_at timestamptz not null default now(),
  constraint planning_candidates_fingerprint unique (planning_session_id, fingerprint)
);
create index planning_candidates_ranked on planning_candidates (planning_session_id, rank, created_at, id);

-- --------------------------------------------------------------------------------------------------------------- runs

create table execution_runs (
  id identifier constraint execution_runs_pkey primary key,
  schedule_plan_id identifier not null constraint execution_runs_plan references schedule_plans,
  content_version_id identifier not null constraint execution_runs_content references workflow_versions,
  mode text not null,
  seed bigint not null default 0,
  status text not null default 'created',
  generation integer not null default 1,
  kind text not null default 'workflow',
  title text,
  actor_id text,
  environment_snapshot_id text,
  -- Host whose work directories hold the files of runtimes that name no host of their own.
  host_id text not null default '',
  network_model text,
  simulator text,
  on_failure text not null default 'stop',
  activity_count bigint not null,
  completed_activity_count bigint not null default 0,
  failed_activity_count bigint not null default 0,
  makespan_seconds double precision not null default 0,
  cost double precision not null default 0,
  compute_seconds double precision not null default 0,
  transfer_seconds double precision not null default 0,
  queue_seconds double precision not null default 0,
  interference_seconds double precision not null default 0,
  overhead_seconds double precision not null default 0,
  transferred_bytes bigint not null default 0,
  defaulted_durations bigint not null default 0,
  failure_reason text,
  paused boolean not null default false,
  cancel_requested_at timestamptz,
  last_event_sequence bigint not null default 0,
  dispatched_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  created_at timestamptz not null default now(),
  constraint execution_runs_mode check (mode in ('real', 'simulation', 'interactive')),
  constraint execution_runs_status check (status in ('created', 'running', 'completed', 'failed', 'cancelled')),
  constraint execution_runs_on_failure check (on_failure in ('stop', 'finish-independent'))
);
create index execution_runs_newest on execution_runs ((coalesce(started_at, created_at)) desc, id desc);
create index execution_runs_undispatched on execution_runs (created_at, id) where dispatched_at is null and status in ('created', 'running');
create index execution_runs_open on execution_runs (created_at, id) where status = 'running';
create index execution_runs_of_plan on execution_runs (schedule_plan_id);

-- What was accepted: the small documents by value, the big ones by the id of an immutable version. Later edits change nothing.
create table run_snapshots (
  execution_run_id identifier constraint run_snapshots_pkey primary key constraint run_snapshots_run references execution_runs on delete cascade,
  resources jsonb not null,
  runtimes jsonb not null,
  runtime_bindings jsonb not null,
  execution_scope jsonb not null,
  network_topology jsonb,
  activity_profiles jsonb not null,
  documents_hash text not null
);

create table task_executions (
  id identifier constraint task_executions_pkey primary key,
  execution_run_id identifier not null constraint task_executions_run references execution_runs on delete cascade,
  activity_position integer not null,
  plan_assignment_id text not null,
  activity_id text not null collate "C",
  external_id text not null collate "C",
  planned_resource_id text not null,
  allocated_resource_id text,
  runtime_id text,
  attempt integer not null default 1,
  -- How many attempts so far were spent on the activity's own failures; infrastructure trouble never counts.
  user_attempts integer not null default 1,
  latest boolean not null default true,
  status text not null default 'blocked',
  core_ids text[] not null default '{}',
  slot_id text not null default '',
  order_on_resource bigint not null default 0,
  ready_at double precision,
  data_ready_at double precision,
  queued_at double precision,
  started_at double precision,
  finished_at double precision,
  runtime_seconds double precision not null default 0,
  queue_seconds double precision not null default 0,
  transfer_seconds double precision not null default 0,
  transfer_bytes bigint not null default 0,
  interference_seconds double precision not null default 0,
  overhead_seconds double precision not null default 0,
  cost double precision not null default 0,
  cpu_seconds double precision,
  peak_memory_bytes bigint,
  measured_by text,
  duration_source text,
  exit_code integer,
  failure_class text,
  failure_reason text,
  not_before double precision,
  -- The handle: what an attempt started outside. Its name is deterministic (a hash of run, activity and attempt), under it the effect is
  -- looked up after a crash. A row of its own would double the cost of a step: a task has exactly one per attempt.
  handle_name text,
  handle_started_at double precision,
  host_id text,
  directory text,
  external_id_at_site text,
  artifacts jsonb,
  metadata jsonb,
  constraint task_executions_attempt unique (execution_run_id, activity_position, attempt),
  constraint task_executions_status check (status in ('blocked', 'ready', 'queued', 'preparing', 'running', 'completed', 'failed', 'cancelled'))
-- A task is updated two to four times and no index column changes: with room on its page no index is touched.
) with (fillfactor = 40);

create table data_transfer_observations (
  id identifier constraint data_transfer_observations_pkey primary key,
  execution_run_id identifier not null constraint data_transfer_observations_run references execution_runs on delete cascade,
  data_object_id text,
  data_object_instance_id text,
  producer_activity_id text not null,
  consumer_activity_id text not null,
  source_resource_id text not null,
  target_resource_id text not null,
  bytes bigint not null,
  status text not null default 'completed',
  strategy text,
  route jsonb,
  files_transferred bigint,
  network_bytes bigint,
  started_at double precision not null,
  finished_at double precision not null,
  duration_seconds double precision not null,
  cost double precision not null default 0
);
create index data_transfer_observations_of_run on data_transfer_observations (execution_run_id, started_at, id);

-- Written by the engine alone, under the lock of the run's row, on its hottest path: no foreign keys in run_events and lane_leases, whose
-- checks cost as much as the rows. Deleting a run deletes them by hand.
create table run_events (
  execution_run_id identifier not null,
  sequence bigint not null,
  event_type text not null,
  aggregate_type text not null,
  aggregate_id text not null,
  payload jsonb,
  occurred_at timestamptz not null default clock_timestamp(),
  constraint run_events_pkey primary key (execution_run_id, sequence)
);

-- The phases of every attempt, derived: what a task row knows is not stored twice.
create view activity_lifecycle_events as
select t.id || ':' || p.phase as id, t.id as task_execution_id, p.phase, t.status, p.started_at, p.finished_at, p.finished_at - p.started_at as duration_seconds,
  case when t.measured_by = 'simulated' then 'simulated' else 'measured' end as source, case when p.phase = 'runtime' then t.failure_reason end as error
from task_executions t
cross join lateral (values ('queue', t.ready_at, t.started_at), ('launch', t.started_at, t.started_at + t.overhead_seconds), ('runtime', t.started_at + t.overhead_seconds, t.finished_at))
  as p (phase, started_at, finished_at)
where p.started_at is not null and p.finished_at is not null;

create table data_objects (
  id identifier constraint data_objects_pkey primary key,
  workflow_version_id identifier not null,
  producer_activity_id text not null,
  logical_name text not null,
  relative_path text not null,
  declared boolean not null default false
);

create table data_object_instances (
  id identifier constraint data_object_instances_pkey primary key,
  data_object_id text not null,
  execution_run_id identifier not null constraint data_object_instances_run references execution_runs on delete cascade,
  producer_activity_id text not null,
  attempt integer not null default 1,
  relative_path text not null,
  size_bytes bigint not null,
  checksum text,
  media_type text,
  discovered boolean not null default true,
  metadata jsonb,
  created_at timestamptz not null default now()
);
create index data_object_instances_of_run on data_object_instances (execution_run_id, id);

create table data_locations (
  id identifier constraint data_locations_pkey primary key,
  data_object_instance_id identifier not null constraint data_locations_instance references data_object_instances on delete cascade,
  storage_resource_id text,
  resource_id text,
  execution_run_id text not null,
  uri text not null,
  status text not null,
  available_at timestamptz,
  verified_at timestamptz,
  metadata jsonb,
  constraint data_locations_status check (status in ('ephemeral', 'staging', 'available', 'failed', 'deleted'))
);
create index data_locations_of_run on data_locations (execution_run_id);

-- -------------------------------------------------------------------------------------------------------------- engine

-- One row per run and site while the run is open. The epoch fences: a commit that carries an older one changes nothing.
create table site_leases (
  execution_run_id identifier not null constraint site_leases_run references execution_runs on delete cascade,
  site text not null,
  epoch bigint not null default 0,
  holder text not null default '',
  renewed_at timestamptz not null default now(),
  constraint site_leases_pkey primary key (execution_run_id, site)
);

-- A lane of a resource, or a core of a host (resource_id '@host/<id>'), while a task holds it; over all runs.
create table lane_leases (
  resource_id text not null collate "C",
  core_id text not null collate "C",
  slot_id text not null collate "C",
  task_execution_id identifier not null,
  execution_run_id identifier not null,
  constraint lane_leases_pkey primary key (resource_id, core_id, slot_id)
);
create index lane_leases_of_task on lane_leases (task_execution_id);
