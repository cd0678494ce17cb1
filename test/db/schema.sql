-- What the migrations result in; made by `npm run docs:schema`, compared by a test. Not run by anything.

create domain identifier as text collate "C" CHECK (((octet_length(VALUE) >= 1) AND (octet_length(VALUE) <= 1100)));

create table activity_definitions (
  workflow_version_id identifier not null,
  position integer not null,
  id identifier not null,
  activity_type_id identifier not null,
  external_id text collate "C" not null,
  name text not null,
  kind text not null default 'task'::text,
  capabilities jsonb not null,
  command_spec jsonb not null,
  resource_requirements jsonb not null,
  service_spec jsonb,
  simulation_spec jsonb,
  policy jsonb not null,
  priority double precision not null default 0,
  metadata jsonb,
  constraint activity_definitions_id UNIQUE (workflow_version_id, id),
  constraint activity_definitions_pkey PRIMARY KEY (workflow_version_id, "position"),
  constraint activity_definitions_version FOREIGN KEY (workflow_version_id) REFERENCES workflow_versions(id) ON DELETE CASCADE
);

create table activity_dependencies (
  workflow_version_id identifier not null,
  activity_position integer not null,
  depends_on_position integer not null,
  dependency_type text not null default 'control'::text,
  constraint activity_dependencies_not_self CHECK ((activity_position <> depends_on_position)),
  constraint activity_dependencies_pkey PRIMARY KEY (workflow_version_id, activity_position, depends_on_position),
  constraint activity_dependencies_version FOREIGN KEY (workflow_version_id) REFERENCES workflow_versions(id) ON DELETE CASCADE
);

create table activity_resource_profiles (
  id identifier not null,
  environment_version_id identifier not null,
  position integer not null default 0,
  activity_type_id identifier not null,
  resource_id identifier not null,
  runtime_seconds double precision not null default 0,
  runtime_stddev_seconds double precision not null default 0,
  cpu_utilization double precision not null default 0,
  peak_memory_bytes bigint not null default 0,
  disk_read_bytes bigint not null default 0,
  disk_write_bytes bigint not null default 0,
  energy_joules double precision not null default 0,
  source text not null default 'configured'::text,
  sample_size bigint not null default 0,
  model_version text not null default ''::text,
  metadata jsonb,
  constraint activity_resource_profiles_environment FOREIGN KEY (environment_version_id) REFERENCES environment_versions(id) ON DELETE CASCADE,
  constraint activity_resource_profiles_not_negative CHECK ((runtime_seconds >= (0)::double precision)),
  constraint activity_resource_profiles_pkey PRIMARY KEY (id),
  constraint activity_resource_profiles_resource FOREIGN KEY (resource_id) REFERENCES resources(id) ON DELETE CASCADE,
  constraint activity_resource_profiles_type FOREIGN KEY (activity_type_id) REFERENCES activity_types(id)
);

create table activity_types (
  id identifier not null,
  workflow_id identifier,
  position integer not null default 0,
  name text not null,
  application text not null default ''::text,
  default_image text not null default ''::text,
  cpu_intensity double precision not null default 0,
  memory_intensity double precision not null default 0,
  io_intensity double precision not null default 0,
  network_intensity double precision not null default 0,
  metadata jsonb,
  constraint activity_types_pkey PRIMARY KEY (id),
  constraint activity_types_workflow FOREIGN KEY (workflow_id) REFERENCES workflow_definitions(id) ON DELETE CASCADE
);

create table artifact_builds (
  id identifier not null,
  artifact_version_id identifier not null,
  source_type text not null,
  image text,
  context_digest text not null,
  recipe_path text,
  recipe_digest text not null,
  target_format text not null,
  target_os text not null,
  target_architecture text not null,
  build_arguments text not null default '{}'::text,
  network boolean not null default false,
  cache_key identifier not null,
  created_at timestamp with time zone not null default now(),
  credential_ref text,
  constraint artifact_builds_cache_key UNIQUE (cache_key),
  constraint artifact_builds_pkey PRIMARY KEY (id),
  constraint artifact_builds_version FOREIGN KEY (artifact_version_id) REFERENCES artifact_versions(id) ON DELETE CASCADE
);

create table artifact_locations (
  id identifier not null,
  variant_id identifier not null,
  scope text not null,
  scope_id text not null default ''::text,
  endpoint_id identifier not null,
  uri text not null,
  digest text not null,
  available boolean not null,
  created_at timestamp with time zone not null default now(),
  constraint artifact_locations_pkey PRIMARY KEY (id),
  constraint artifact_locations_place UNIQUE (variant_id, uri),
  constraint artifact_locations_variant FOREIGN KEY (variant_id) REFERENCES artifact_variants(id) ON DELETE CASCADE
);

create table artifact_materializations (
  id identifier not null,
  run_id identifier,
  activity_id identifier,
  variant_id identifier,
  digest text not null,
  resource_id identifier not null,
  environment_id identifier,
  destination_path text not null,
  status text not null,
  verified_digest text,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  site text,
  constraint artifact_materializations_pkey PRIMARY KEY (id),
  constraint artifact_materializations_status CHECK ((status = ANY (ARRAY['planned'::text, 'reconciling'::text, 'transferring'::text, 'verifying'::text, 'committed'::text, 'failed'::text]))),
  constraint artifact_materializations_variant FOREIGN KEY (variant_id) REFERENCES artifact_variants(id) ON DELETE CASCADE,
  constraint artifact_materializations_verified CHECK (((status <> 'committed'::text) OR (verified_digest = digest)))
);

create table artifact_transfer_runs (
  id identifier not null,
  materialization_id identifier not null,
  execution_run_id identifier not null,
  activity_id identifier,
  strategy text not null,
  reason text not null,
  status text not null,
  bytes bigint not null default 0,
  network_bytes bigint not null default 0,
  started_at double precision not null,
  finished_at double precision,
  failure_reason text,
  constraint artifact_transfer_runs_materialization FOREIGN KEY (materialization_id) REFERENCES artifact_materializations(id) ON DELETE CASCADE,
  constraint artifact_transfer_runs_pkey PRIMARY KEY (id),
  constraint artifact_transfer_runs_status CHECK ((status = ANY (ARRAY['running'::text, 'completed'::text, 'failed'::text])))
);

create table artifact_variants (
  id identifier not null,
  artifact_version_id identifier not null,
  digest text not null,
  format text not null,
  architecture text,
  size_bytes bigint,
  verification text,
  constraint artifact_variants_content UNIQUE (artifact_version_id, digest),
  constraint artifact_variants_pkey PRIMARY KEY (id),
  constraint artifact_variants_verification CHECK ((verification = ANY (ARRAY['executed'::text, 'structural'::text]))),
  constraint artifact_variants_version FOREIGN KEY (artifact_version_id) REFERENCES artifact_versions(id) ON DELETE CASCADE
);

create table artifact_versions (
  id identifier not null,
  artifact_id identifier not null,
  name text not null,
  version text not null,
  scope text not null,
  scope_id text not null default ''::text,
  created_at timestamp with time zone not null default now(),
  constraint artifact_versions_number UNIQUE (artifact_id, version, scope, scope_id),
  constraint artifact_versions_pkey PRIMARY KEY (id),
  constraint artifact_versions_scope CHECK ((scope = ANY (ARRAY['system'::text, 'organization'::text, 'project'::text, 'workflow'::text, 'run'::text, 'environment'::text])))
);

create table audit_events (
  sequence bigint generated always as identity not null,
  id identifier not null,
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
  occurred_at timestamp with time zone not null default now(),
  signature text,
  signature_key text,
  seal_number bigint,
  digest text,
  seal text,
  seal_key text,
  constraint audit_events_pkey PRIMARY KEY (id)
);

create table audit_head (
  singleton boolean not null default true,
  number bigint not null,
  event_id text not null,
  seal text not null,
  signature text not null,
  signature_key text not null,
  constraint audit_head_pkey PRIMARY KEY (singleton),
  constraint audit_head_single CHECK (singleton)
);

create table build_contexts (
  digest identifier not null,
  storage_uri text not null,
  size_bytes bigint not null,
  media_type text not null,
  host_id text not null,
  created_at timestamp with time zone not null default now(),
  constraint build_contexts_pkey PRIMARY KEY (digest),
  constraint build_contexts_size CHECK ((size_bytes > 0))
);

create table build_runs (
  id identifier not null,
  artifact_build_id identifier not null,
  generation integer not null default 1,
  status text not null default 'queued'::text,
  step text not null default 'preparing'::text,
  fresh boolean not null default false,
  host_id text not null,
  image_id text,
  output_variant_id identifier,
  output_digest text,
  output_bytes bigint,
  logs text,
  live jsonb,
  error text,
  dispatched_at timestamp with time zone,
  cancel_requested_at timestamp with time zone,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  created_at timestamp with time zone not null default now(),
  started_at timestamp with time zone,
  finished_at timestamp with time zone,
  packer text,
  bases jsonb,
  constraint build_runs_build FOREIGN KEY (artifact_build_id) REFERENCES artifact_builds(id) ON DELETE CASCADE,
  constraint build_runs_pkey PRIMARY KEY (id),
  constraint build_runs_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text]))),
  constraint build_runs_step CHECK ((step = ANY (ARRAY['preparing'::text, 'building'::text, 'verifying'::text, 'publishing'::text])))
);

create table cloud_capacity_targets (
  id identifier not null,
  environment_id identifier not null,
  name text not null,
  provider text not null,
  provider_machine_type text not null,
  image_reference text not null,
  region text not null default ''::text,
  fixed_zone text,
  zone_policy text not null default 'any-compatible'::text,
  architecture text not null default 'amd64'::text,
  vcpu double precision not null,
  memory_mib bigint not null,
  provisioning_mode text not null default 'standard'::text,
  maximum_instances bigint not null default 1,
  lifecycle_policy text not null default 'destroy-after-execution'::text,
  configuration jsonb,
  machine_configurations jsonb not null default '[]'::jsonb,
  enabled boolean not null default true,
  created_at timestamp with time zone not null default now(),
  constraint cloud_capacity_targets_environment FOREIGN KEY (environment_id) REFERENCES environments(id) ON DELETE CASCADE,
  constraint cloud_capacity_targets_mode CHECK ((provisioning_mode = ANY (ARRAY['standard'::text, 'spot'::text]))),
  constraint cloud_capacity_targets_pkey PRIMARY KEY (id),
  constraint cloud_capacity_targets_positive CHECK (((vcpu > (0)::double precision) AND (memory_mib > 0) AND (maximum_instances > 0))),
  constraint cloud_capacity_targets_provider CHECK ((provider = ANY (ARRAY['gcp'::text, 'aws'::text, 'azure'::text])))
);

create table cloud_catalogs (
  environment_id identifier not null,
  connection_id text not null,
  document jsonb,
  discovered_at timestamp with time zone,
  refreshing_since timestamp with time zone,
  constraint cloud_catalogs_environment FOREIGN KEY (environment_id) REFERENCES environments(id) ON DELETE CASCADE,
  constraint cloud_catalogs_pkey PRIMARY KEY (environment_id, connection_id)
);

create table cloud_instances (
  id identifier not null,
  capacity_target_id identifier not null,
  environment_id identifier not null,
  connection_id text not null,
  provider text not null,
  reference uuid not null default gen_random_uuid(),
  asked_at timestamp with time zone,
  provider_id text,
  name text not null,
  status text not null,
  machine_gone boolean not null default false,
  region text not null,
  zone text,
  public_address text,
  private_address text,
  ssh_username text not null,
  ssh_credential_ref text,
  ssh_public_key text,
  host_key text,
  disk jsonb,
  failure_reason text,
  created_at timestamp with time zone not null default now(),
  ready_at timestamp with time zone,
  destroyed_at timestamp with time zone,
  billing_started_at timestamp with time zone,
  billing_finished_at timestamp with time zone,
  compute_started_at timestamp with time zone,
  accumulated_compute_seconds double precision not null default 0,
  compute_price_per_second double precision not null default 0,
  disk_price_per_second double precision not null default 0,
  execution_run_id text,
  configuring_at timestamp with time zone,
  project_id text,
  account text,
  compute_spans tstzmultirange not null default '{}'::tstzmultirange,
  billing_gaps tstzmultirange not null default '{}'::tstzmultirange,
  constraint cloud_instances_environment FOREIGN KEY (environment_id) REFERENCES environments(id) ON DELETE CASCADE,
  constraint cloud_instances_pkey PRIMARY KEY (id),
  constraint cloud_instances_reference UNIQUE (reference),
  constraint cloud_instances_status CHECK ((status = ANY (ARRAY['provisioning'::text, 'configuring'::text, 'ready'::text, 'stopped'::text, 'destroying'::text, 'destroyed'::text, 'failed'::text]))),
  constraint cloud_instances_target FOREIGN KEY (capacity_target_id) REFERENCES cloud_capacity_targets(id) ON DELETE CASCADE
);

create table cloud_operations (
  id identifier not null,
  generation integer not null default 1,
  kind text not null,
  status text not null default 'queued'::text,
  environment_id identifier not null,
  capacity_target_id identifier,
  instance_id identifier,
  execution_run_id text,
  activity_id text,
  phase text not null default 'queued'::text,
  request jsonb not null default '{}'::jsonb,
  failure_reason text,
  created_at timestamp with time zone not null default now(),
  started_at timestamp with time zone,
  finished_at timestamp with time zone,
  dispatched_at timestamp with time zone,
  cancel_requested_at timestamp with time zone,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  configured jsonb not null default '[]'::jsonb,
  constraint cloud_operations_environment FOREIGN KEY (environment_id) REFERENCES environments(id) ON DELETE CASCADE,
  constraint cloud_operations_instance FOREIGN KEY (instance_id) REFERENCES cloud_instances(id) ON DELETE CASCADE,
  constraint cloud_operations_kind CHECK ((kind = ANY (ARRAY['provision'::text, 'configure'::text, 'validate'::text, 'start'::text, 'stop'::text, 'destroy'::text, 'attach-volume'::text, 'detach-volume'::text]))),
  constraint cloud_operations_pkey PRIMARY KEY (id),
  constraint cloud_operations_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text]))),
  constraint cloud_operations_target FOREIGN KEY (capacity_target_id) REFERENCES cloud_capacity_targets(id) ON DELETE CASCADE
);

create table cloud_service (
  one boolean not null default true,
  reference uuid not null default gen_random_uuid(),
  swept_at timestamp with time zone,
  constraint cloud_service_one CHECK (one),
  constraint cloud_service_pkey PRIMARY KEY (one)
);

create table connection_checks (
  id identifier not null,
  connection_id identifier not null,
  status text not null,
  message text,
  latency_ms double precision not null default 0,
  checked_at timestamp with time zone not null default now(),
  metadata jsonb,
  constraint connection_checks_connection FOREIGN KEY (connection_id) REFERENCES connections(id) ON DELETE CASCADE,
  constraint connection_checks_pkey PRIMARY KEY (id)
);

create table connection_discoveries (
  connection_id identifier not null,
  number integer not null,
  status text not null default 'queued'::text,
  requested_at timestamp with time zone not null default now(),
  dispatched_at timestamp with time zone,
  finished_at timestamp with time zone,
  problem text,
  transient boolean,
  snapshot_ids text[] not null default '{}'::text[],
  started_at timestamp with time zone,
  cancel_requested_at timestamp with time zone,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  host_id text,
  constraint connection_discoveries_connection FOREIGN KEY (connection_id) REFERENCES connections(id) ON DELETE CASCADE,
  constraint connection_discoveries_pkey PRIMARY KEY (connection_id, number),
  constraint connection_discoveries_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text])))
);

create table connection_host_keys (
  connection_id identifier not null,
  host text not null,
  key_type text not null,
  fingerprint text not null,
  line text not null,
  recorded_at timestamp with time zone not null default now(),
  constraint connection_host_keys_connection FOREIGN KEY (connection_id) REFERENCES connections(id) ON DELETE CASCADE,
  constraint connection_host_keys_pkey PRIMARY KEY (connection_id, host)
);

create table connections (
  id identifier not null,
  environment_id identifier not null,
  position integer not null default 0,
  name text not null,
  type text not null,
  endpoint text not null default ''::text,
  username text not null default ''::text,
  credential_ref text not null default ''::text,
  configuration jsonb,
  created_at timestamp with time zone not null default now(),
  monitored_since timestamp with time zone,
  last_event_sequence bigint not null default 0,
  constraint connections_environment FOREIGN KEY (environment_id) REFERENCES environments(id) ON DELETE CASCADE,
  constraint connections_name UNIQUE (environment_id, name) DEFERRABLE INITIALLY DEFERRED,
  constraint connections_pkey PRIMARY KEY (id)
);

create table console_commands (
  id identifier not null,
  generation integer not null default 1,
  status text not null default 'accepted'::text,
  resource_id identifier not null,
  runtime_id identifier not null,
  connection_id text,
  actor_id text,
  command text not null,
  working_directory text,
  environment jsonb,
  cpu_cores integer,
  memory_bytes bigint,
  timeout_seconds integer not null,
  place jsonb not null,
  stdout bytea,
  stderr bytea,
  stdout_truncated boolean not null default false,
  stderr_truncated boolean not null default false,
  exit_code integer,
  external_id text,
  failure_reason text,
  dispatched_at timestamp with time zone,
  cancel_requested_at timestamp with time zone,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  created_at timestamp with time zone not null default clock_timestamp(),
  started_at timestamp with time zone,
  finished_at timestamp with time zone,
  cleared_at timestamp with time zone,
  masked jsonb,
  constraint console_commands_pkey PRIMARY KEY (id),
  constraint console_commands_status CHECK ((status = ANY (ARRAY['accepted'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
);

create table console_records (
  session_id identifier not null,
  sequence bigint not null,
  direction text not null,
  at_seconds double precision not null,
  content bytea not null,
  constraint console_records_direction CHECK ((direction = ANY (ARRAY['input'::text, 'output'::text, 'resize'::text]))),
  constraint console_records_pkey PRIMARY KEY (session_id, sequence),
  constraint console_records_session FOREIGN KEY (session_id) REFERENCES console_sessions(id) ON DELETE CASCADE
);

create table console_sessions (
  id identifier not null,
  status text not null default 'starting'::text,
  resource_id identifier not null,
  runtime_id identifier not null,
  connection_id text,
  actor_id text,
  place jsonb not null,
  external_id text,
  failure text,
  taken_bytes bigint not null default 0,
  recorded_bytes bigint not null default 0,
  close_requested_at timestamp with time zone,
  created_at timestamp with time zone not null default clock_timestamp(),
  connected_at timestamp with time zone,
  finished_at timestamp with time zone,
  cleared_at timestamp with time zone,
  served_by text,
  served_at timestamp with time zone,
  constraint console_sessions_pkey PRIMARY KEY (id),
  constraint console_sessions_status CHECK ((status = ANY (ARRAY['starting'::text, 'connected'::text, 'closed'::text, 'failed'::text])))
);

create table console_tickets (
  digest bytea not null,
  session_id identifier not null,
  mode text not null,
  actor_id text not null,
  expires_at timestamp with time zone not null,
  constraint console_tickets_mode CHECK ((mode = ANY (ARRAY['write'::text, 'watch'::text]))),
  constraint console_tickets_pkey PRIMARY KEY (digest),
  constraint console_tickets_session FOREIGN KEY (session_id) REFERENCES console_sessions(id) ON DELETE CASCADE
);

create table credentials (
  kind text collate "C" not null,
  id identifier not null,
  version integer not null,
  shown jsonb not null,
  key_id text not null,
  data_key bytea not null,
  content bytea not null,
  created_at timestamp with time zone not null default now(),
  changed_at timestamp with time zone not null default now(),
  last_used_at timestamp with time zone,
  constraint credentials_kind CHECK ((kind = ANY (ARRAY['ssh-key'::text, 'kubernetes-token'::text, 'cloud-credential'::text, 'registry-credential'::text, 'signing-key'::text, 'machine-variables'::text]))),
  constraint credentials_pkey PRIMARY KEY (kind, id)
);

create table data_locations (
  id identifier not null,
  data_object_instance_id identifier not null,
  storage_resource_id text,
  resource_id text,
  execution_run_id text,
  uri text not null,
  status text not null,
  available_at timestamp with time zone,
  verified_at timestamp with time zone,
  metadata jsonb,
  constraint data_locations_instance FOREIGN KEY (data_object_instance_id) REFERENCES data_object_instances(id) ON DELETE CASCADE,
  constraint data_locations_pkey PRIMARY KEY (id),
  constraint data_locations_status CHECK ((status = ANY (ARRAY['ephemeral'::text, 'staging'::text, 'available'::text, 'failed'::text, 'deleted'::text])))
);

create table data_object_instances (
  id identifier not null,
  data_object_id text not null,
  execution_run_id identifier,
  producer_activity_id text,
  attempt integer not null default 1,
  relative_path text not null,
  size_bytes bigint not null,
  checksum text,
  media_type text,
  discovered boolean not null default true,
  metadata jsonb,
  created_at timestamp with time zone not null default now(),
  path_bytes text,
  constraint data_object_instances_pkey PRIMARY KEY (id),
  constraint data_object_instances_run FOREIGN KEY (execution_run_id) REFERENCES execution_runs(id) ON DELETE CASCADE
);

create table data_objects (
  id identifier not null,
  workflow_version_id identifier,
  producer_activity_id text,
  logical_name text not null,
  relative_path text not null,
  declared boolean not null default false,
  constraint data_objects_pkey PRIMARY KEY (id)
);

create table data_transfer_observations (
  id identifier not null,
  execution_run_id identifier not null,
  data_object_id text,
  data_object_instance_id text,
  producer_activity_id text not null,
  consumer_activity_id text not null,
  source_resource_id text not null,
  target_resource_id text not null,
  bytes bigint not null,
  status text not null default 'completed'::text,
  strategy text,
  route jsonb,
  files_transferred bigint,
  network_bytes bigint,
  started_at double precision not null,
  finished_at double precision not null,
  duration_seconds double precision not null,
  cost double precision not null default 0,
  constraint data_transfer_observations_pkey PRIMARY KEY (id),
  constraint data_transfer_observations_run FOREIGN KEY (execution_run_id) REFERENCES execution_runs(id) ON DELETE CASCADE
);

create table environment_versions (
  id identifier not null,
  environment_id identifier not null,
  version bigint not null,
  status text not null default ''::text,
  network_model text not null default ''::text,
  interference_model text not null default ''::text,
  cost_model text not null default ''::text,
  configuration_hash text not null default ''::text,
  created_at timestamp with time zone not null default now(),
  published_at timestamp with time zone,
  constraint environment_versions_environment FOREIGN KEY (environment_id) REFERENCES environments(id) ON DELETE CASCADE,
  constraint environment_versions_number UNIQUE (environment_id, version),
  constraint environment_versions_pkey PRIMARY KEY (id)
);

create table environments (
  id identifier not null,
  name text not null,
  description text not null default ''::text,
  status text not null default 'defined'::text,
  created_at timestamp with time zone not null default now(),
  constraint environments_pkey PRIMARY KEY (id)
);

create table event_feed (
  position bigint generated always as identity not null,
  kind text not null,
  operation_id identifier not null,
  first_sequence bigint not null,
  last_sequence bigint not null,
  fed_at timestamp with time zone not null default clock_timestamp(),
  constraint event_feed_pkey PRIMARY KEY ("position")
);

create table event_feed_open (
  kind text not null,
  operation_id identifier not null,
  since timestamp with time zone not null default clock_timestamp(),
  constraint event_feed_open_pkey PRIMARY KEY (kind, operation_id)
);

create table execution_runs (
  id identifier not null,
  schedule_plan_id identifier not null,
  content_version_id identifier not null,
  mode text not null,
  seed bigint not null default 0,
  status text not null default 'created'::text,
  generation integer not null default 1,
  kind text not null default 'workflow'::text,
  title text,
  actor_id text,
  environment_snapshot_id text,
  host_id text not null default ''::text,
  network_model text,
  simulator text,
  on_failure text not null default 'stop'::text,
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
  cancel_requested_at timestamp with time zone,
  last_event_sequence bigint not null default 0,
  dispatched_at timestamp with time zone,
  started_at timestamp with time zone,
  finished_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  effect_key text not null default (gen_random_uuid())::text,
  warnings jsonb,
  service_version text,
  cancel_actor text,
  cancel_reason text,
  budget double precision,
  on_budget text,
  approved_at timestamp with time zone,
  cloud_cost double precision not null default 0,
  searched_places text,
  constraint execution_runs_content FOREIGN KEY (content_version_id) REFERENCES workflow_versions(id),
  constraint execution_runs_mode CHECK ((mode = ANY (ARRAY['real'::text, 'simulation'::text, 'interactive'::text]))),
  constraint execution_runs_on_failure CHECK ((on_failure = ANY (ARRAY['stop'::text, 'finish-independent'::text]))),
  constraint execution_runs_pkey PRIMARY KEY (id),
  constraint execution_runs_plan FOREIGN KEY (schedule_plan_id) REFERENCES schedule_plans(id),
  constraint execution_runs_status CHECK ((status = ANY (ARRAY['created'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
);

create table execution_scope_environments (
  execution_scope_id identifier not null,
  environment_version_id identifier not null,
  position integer not null default 0,
  constraint execution_scope_environments_pkey PRIMARY KEY (execution_scope_id, environment_version_id),
  constraint execution_scope_environments_scope FOREIGN KEY (execution_scope_id) REFERENCES execution_scopes(id) ON DELETE CASCADE,
  constraint execution_scope_environments_version FOREIGN KEY (environment_version_id) REFERENCES environment_versions(id)
);

create table execution_scopes (
  id identifier not null,
  name text not null,
  network_topology_id text not null default ''::text,
  metadata jsonb,
  created_at timestamp with time zone not null default now(),
  searched_environments text,
  constraint execution_scopes_pkey PRIMARY KEY (id)
);

create table idempotency_keys (
  key text not null,
  fingerprint text not null,
  status integer,
  headers jsonb,
  body text,
  created_at timestamp with time zone not null default now(),
  constraint idempotency_keys_pkey PRIMARY KEY (key)
);

create table instance_activation (
  singleton boolean not null default true,
  instance_id identifier not null,
  activated_at timestamp with time zone not null default now(),
  constraint instance_activation_archive FOREIGN KEY (instance_id) REFERENCES instance_archives(id),
  constraint instance_activation_pkey PRIMARY KEY (singleton),
  constraint instance_activation_single CHECK (singleton)
);

create table instance_archives (
  id identifier not null,
  schema_name text not null,
  name text not null,
  description text,
  exported_at timestamp with time zone not null,
  imported_at timestamp with time zone not null default now(),
  last_opened_at timestamp with time zone,
  schema_version integer not null,
  service_version text not null,
  contents jsonb not null,
  constraint instance_archives_pkey PRIMARY KEY (id),
  constraint instance_archives_schema UNIQUE (schema_name)
);

create table instance_cleanups (
  id identifier not null,
  requested_at timestamp with time zone not null default now(),
  files_aside boolean not null default false,
  constraint instance_cleanups_pkey PRIMARY KEY (id)
);

create table lane_leases (
  resource_id text collate "C" not null,
  core_id text collate "C" not null,
  slot_id text collate "C" not null,
  task_execution_id identifier not null,
  execution_run_id identifier not null
);

create table login_holders (
  login text collate "C" not null,
  process text collate "C" not null,
  waiting boolean not null,
  address text,
  since timestamp with time zone not null,
  seen_at timestamp with time zone not null default clock_timestamp(),
  constraint login_holders_address CHECK ((waiting = (address IS NULL))),
  constraint login_holders_pkey PRIMARY KEY (login, process)
);

create table machine_configuration_versions (
  id identifier not null,
  machine_configuration_id identifier not null,
  version bigint not null,
  status text not null,
  playbook_yaml text not null,
  content_sha256 text not null,
  compatibility jsonb not null default '{}'::jsonb,
  variables_schema jsonb,
  validation_checks jsonb,
  created_at timestamp with time zone not null default now(),
  constraint machine_configuration_versions_configuration FOREIGN KEY (machine_configuration_id) REFERENCES machine_configurations(id) ON DELETE CASCADE,
  constraint machine_configuration_versions_number UNIQUE (machine_configuration_id, version),
  constraint machine_configuration_versions_pkey PRIMARY KEY (id),
  constraint machine_configuration_versions_positive CHECK ((version > 0)),
  constraint machine_configuration_versions_status CHECK ((status = ANY (ARRAY['draft'::text, 'published'::text, 'deprecated'::text])))
);

create table machine_configurations (
  id identifier not null,
  name text not null,
  description text not null default ''::text,
  ownership text not null default 'user'::text,
  enabled boolean not null default true,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  constraint machine_configurations_ownership CHECK ((ownership = ANY (ARRAY['system'::text, 'user'::text]))),
  constraint machine_configurations_pkey PRIMARY KEY (id)
);

create table network_links (
  id identifier not null,
  topology_id identifier not null,
  position integer not null default 0,
  source_resource_id identifier not null,
  target_resource_id identifier not null,
  bandwidth_bits_per_second double precision not null,
  latency_seconds double precision not null default 0,
  price_per_byte double precision not null default 0,
  bidirectional boolean not null default false,
  sharing_policy text not null default ''::text,
  max_concurrent_transfers bigint not null default 0,
  metadata jsonb,
  constraint network_links_bandwidth CHECK ((bandwidth_bits_per_second > (0)::double precision)),
  constraint network_links_not_negative CHECK (((latency_seconds >= (0)::double precision) AND (price_per_byte >= (0)::double precision) AND (max_concurrent_transfers >= 0))),
  constraint network_links_not_self CHECK (((source_resource_id)::text <> (target_resource_id)::text)),
  constraint network_links_pkey PRIMARY KEY (id),
  constraint network_links_source FOREIGN KEY (source_resource_id) REFERENCES resources(id),
  constraint network_links_target FOREIGN KEY (target_resource_id) REFERENCES resources(id),
  constraint network_links_topology FOREIGN KEY (topology_id) REFERENCES network_topologies(id) ON DELETE CASCADE
);

create table network_topologies (
  id identifier not null,
  name text not null,
  version bigint not null,
  execution_scope_id identifier not null,
  metadata jsonb,
  created_at timestamp with time zone not null default now(),
  constraint network_topologies_pkey PRIMARY KEY (id),
  constraint network_topologies_scope FOREIGN KEY (execution_scope_id) REFERENCES execution_scopes(id),
  constraint network_topologies_version CHECK ((version >= 1))
);

create table operation_events (
  operation_id identifier not null,
  sequence bigint not null,
  event_type text not null,
  aggregate_type text not null,
  aggregate_id text not null,
  payload jsonb,
  occurred_at timestamp with time zone not null default clock_timestamp(),
  kind text not null default 'execution-run'::text,
  constraint operation_events_pkey PRIMARY KEY (kind, operation_id, sequence)
);

create table planning_algorithm_runs (
  id identifier not null,
  planning_session_id identifier not null,
  position integer not null default 0,
  algorithm text not null,
  objective text not null,
  status text not null default 'queued'::text,
  progress double precision not null default 0,
  candidate_count bigint not null default 0,
  configuration jsonb,
  estimate jsonb,
  attempts integer not null default 0,
  failure_reason text,
  started_at timestamp with time zone,
  completed_at timestamp with time zone,
  constraint planning_algorithm_runs_pkey PRIMARY KEY (id),
  constraint planning_algorithm_runs_session FOREIGN KEY (planning_session_id) REFERENCES planning_sessions(id) ON DELETE CASCADE,
  constraint planning_algorithm_runs_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
);

create table planning_candidates (
  id identifier not null,
  planning_session_id identifier not null,
  algorithm_run_id identifier not null,
  algorithm text not null,
  objective text not null,
  rank bigint,
  pareto_optimal boolean not null default false,
  dominated boolean not null default false,
  feasible boolean not null,
  predicted_makespan_seconds double precision not null,
  predicted_cost double precision not null,
  plan jsonb not null,
  fingerprint text not null,
  created_at timestamp with time zone not null default now(),
  contention_free_makespan_seconds double precision,
  defaulted_durations bigint not null default 0,
  lifecycle jsonb,
  constraint planning_candidates_algorithm_run FOREIGN KEY (algorithm_run_id) REFERENCES planning_algorithm_runs(id) ON DELETE CASCADE,
  constraint planning_candidates_fingerprint UNIQUE (planning_session_id, fingerprint),
  constraint planning_candidates_pkey PRIMARY KEY (id),
  constraint planning_candidates_session FOREIGN KEY (planning_session_id) REFERENCES planning_sessions(id) ON DELETE CASCADE
);

create table planning_sessions (
  id identifier not null,
  workflow_version_id identifier not null,
  execution_scope_id identifier not null,
  network_topology_id text not null default ''::text,
  status text not null default 'queued'::text,
  algorithms jsonb not null,
  progress double precision not null default 0,
  candidate_count bigint not null default 0,
  selected_candidate_id text,
  selected_plan_id identifier,
  deadline_seconds double precision not null default 0,
  budget double precision not null default 0,
  configuration jsonb,
  defaulted_durations bigint not null default 0,
  failure_reason text,
  dispatched_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  started_at timestamp with time zone,
  completed_at timestamp with time zone,
  network_model text,
  warnings jsonb,
  generation integer not null default 1,
  cancel_requested_at timestamp with time zone,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  constraint planning_sessions_pkey PRIMARY KEY (id),
  constraint planning_sessions_scope FOREIGN KEY (execution_scope_id) REFERENCES execution_scopes(id),
  constraint planning_sessions_selected_plan FOREIGN KEY (selected_plan_id) REFERENCES schedule_plans(id),
  constraint planning_sessions_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text]))),
  constraint planning_sessions_workflow FOREIGN KEY (workflow_version_id) REFERENCES workflow_versions(id)
);

create table resource_relations (
  environment_version_id identifier not null,
  source_resource_id identifier not null,
  target_resource_id identifier not null,
  relation_type text not null,
  position integer not null default 0,
  metadata jsonb,
  constraint resource_relations_not_self CHECK (((source_resource_id)::text <> (target_resource_id)::text)),
  constraint resource_relations_pkey PRIMARY KEY (source_resource_id, target_resource_id, relation_type),
  constraint resource_relations_source FOREIGN KEY (source_resource_id) REFERENCES resources(id) ON DELETE CASCADE,
  constraint resource_relations_target FOREIGN KEY (target_resource_id) REFERENCES resources(id) ON DELETE CASCADE,
  constraint resource_relations_type CHECK ((relation_type = ANY (ARRAY['contains'::text, 'member_of'::text, 'accessible_via'::text]))),
  constraint resource_relations_version FOREIGN KEY (environment_version_id) REFERENCES environment_versions(id) ON DELETE CASCADE
);

create table resource_runtime_bindings (
  resource_id identifier not null,
  runtime_id identifier not null,
  environment_version_id identifier not null,
  position integer not null default 0,
  enabled boolean not null default false,
  configuration jsonb,
  constraint resource_runtime_bindings_pkey PRIMARY KEY (resource_id, runtime_id),
  constraint resource_runtime_bindings_resource FOREIGN KEY (resource_id) REFERENCES resources(id) ON DELETE CASCADE,
  constraint resource_runtime_bindings_runtime FOREIGN KEY (runtime_id) REFERENCES runtimes(id) ON DELETE CASCADE,
  constraint resource_runtime_bindings_version FOREIGN KEY (environment_version_id) REFERENCES environment_versions(id) ON DELETE CASCADE
);

create table resource_snapshots (
  id identifier not null,
  resource_id identifier not null,
  captured_at timestamp with time zone not null default now(),
  available boolean not null,
  cpu_used double precision not null default 0,
  memory_used_bytes bigint not null default 0,
  network_in_bps double precision not null default 0,
  network_out_bps double precision not null default 0,
  disk_read_bps double precision not null default 0,
  disk_write_bps double precision not null default 0,
  queue_length bigint not null default 0,
  metadata jsonb,
  constraint resource_snapshots_pkey PRIMARY KEY (id),
  constraint resource_snapshots_resource FOREIGN KEY (resource_id) REFERENCES resources(id) ON DELETE CASCADE
);

create table resources (
  id identifier not null,
  environment_version_id identifier not null,
  position integer not null default 0,
  type text not null default ''::text,
  name text not null,
  provider_id text not null,
  execution_target text not null default 'batch'::text,
  parent_resource_id identifier,
  tier text not null default ''::text,
  region text not null default ''::text,
  zone text not null default ''::text,
  architecture text not null default ''::text,
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
  constraint resources_execution_target CHECK ((execution_target = ANY (ARRAY['batch'::text, 'direct'::text, 'provisioned'::text]))),
  constraint resources_not_negative CHECK (((cpu_cores >= 0) AND (cpu_capacity >= (0)::double precision) AND (memory_bytes >= 0) AND (storage_bytes >= 0) AND (compute_speedup >= (0)::double precision) AND (price_per_second >= (0)::double precision) AND (boot_overhead_seconds >= (0)::double precision) AND (container_overhead_seconds >= (0)::double precision))),
  constraint resources_parent FOREIGN KEY (parent_resource_id) REFERENCES resources(id) DEFERRABLE INITIALLY DEFERRED,
  constraint resources_pkey PRIMARY KEY (id),
  constraint resources_provider_id UNIQUE (environment_version_id, provider_id),
  constraint resources_version FOREIGN KEY (environment_version_id) REFERENCES environment_versions(id) ON DELETE CASCADE
);

create table run_machines (
  execution_run_id identifier not null,
  capacity_target_id identifier not null,
  ordinal integer not null,
  instance_id identifier not null,
  acquired_at timestamp with time zone not null default clock_timestamp(),
  ready_at timestamp with time zone,
  released_at timestamp with time zone,
  release_reason text,
  settled boolean not null default false,
  generation integer not null default 1,
  constraint run_machines_instance FOREIGN KEY (instance_id) REFERENCES cloud_instances(id) ON DELETE CASCADE,
  constraint run_machines_pkey PRIMARY KEY (execution_run_id, capacity_target_id, ordinal),
  constraint run_machines_run FOREIGN KEY (execution_run_id) REFERENCES execution_runs(id) ON DELETE CASCADE
);

create table run_snapshots (
  execution_run_id identifier not null,
  resources jsonb not null,
  runtimes jsonb not null,
  runtime_bindings jsonb not null,
  execution_scope jsonb not null,
  network_topology jsonb,
  activity_profiles jsonb not null,
  documents_hash text not null,
  storage_mounts jsonb not null default '[]'::jsonb,
  executables jsonb,
  constraint run_snapshots_pkey PRIMARY KEY (execution_run_id),
  constraint run_snapshots_run FOREIGN KEY (execution_run_id) REFERENCES execution_runs(id) ON DELETE CASCADE
);

create table runtimes (
  id identifier not null,
  environment_version_id identifier not null,
  position integer not null default 0,
  name text not null,
  driver text not null,
  mode text not null,
  role text not null default ''::text,
  configuration jsonb,
  capabilities jsonb not null default '{}'::jsonb,
  constraint runtimes_driver CHECK ((driver = ANY (ARRAY['slurm'::text, 'kubernetes'::text, 'ssh'::text, 'local'::text, 'serverless'::text, 'simgrid'::text, 'cloud'::text]))),
  constraint runtimes_in_version UNIQUE (environment_version_id, id),
  constraint runtimes_mode CHECK ((mode = ANY (ARRAY['execution'::text, 'simulation'::text]))),
  constraint runtimes_name UNIQUE (environment_version_id, name),
  constraint runtimes_pkey PRIMARY KEY (id),
  constraint runtimes_version FOREIGN KEY (environment_version_id) REFERENCES environment_versions(id) ON DELETE CASCADE
);

create table schedule_plan_assignments (
  schedule_plan_id identifier not null,
  activity_position integer not null,
  id text collate "C" not null,
  activity_id text collate "C" not null,
  resource_id identifier not null,
  core_id text collate "C" not null default ''::text,
  slot_id text collate "C" not null default ''::text,
  order_on_resource bigint not null,
  priority double precision not null default 0,
  predicted_ready_at double precision not null default 0,
  predicted_start_at double precision not null default 0,
  predicted_finish_at double precision not null default 0,
  predicted_runtime_seconds double precision not null default 0,
  predicted_transfer_seconds double precision not null default 0,
  predicted_cost double precision not null default 0,
  metadata jsonb,
  duration_source text,
  submitted_prediction jsonb,
  constraint schedule_plan_assignments_pkey PRIMARY KEY (schedule_plan_id, activity_position),
  constraint schedule_plan_assignments_plan FOREIGN KEY (schedule_plan_id) REFERENCES schedule_plans(id) ON DELETE CASCADE,
  constraint schedule_plan_assignments_resource FOREIGN KEY (resource_id) REFERENCES resources(id)
);

create table schedule_plans (
  id identifier not null,
  workflow_version_id identifier not null,
  content_version_id identifier not null,
  execution_scope_id identifier not null,
  network_topology_id text not null default ''::text,
  source text not null,
  algorithm text not null default ''::text,
  algorithm_version text not null default ''::text,
  objective text not null default ''::text,
  status text not null default 'valid'::text,
  deadline_seconds double precision not null default 0,
  budget double precision not null default 0,
  predicted_makespan_seconds double precision not null default 0,
  predicted_cost double precision not null default 0,
  predicted_feasible boolean not null default false,
  assignment_count bigint not null,
  lifecycle_actions jsonb,
  embedded jsonb,
  metadata jsonb,
  created_at timestamp with time zone not null default now(),
  network_model text,
  prediction_failure text,
  contention_free_makespan_seconds double precision,
  submitted_prediction jsonb,
  defaulted_durations bigint not null default 0,
  constraint schedule_plans_content FOREIGN KEY (content_version_id) REFERENCES workflow_versions(id),
  constraint schedule_plans_pkey PRIMARY KEY (id),
  constraint schedule_plans_scope FOREIGN KEY (execution_scope_id) REFERENCES execution_scopes(id),
  constraint schedule_plans_source CHECK ((source = ANY (ARRAY['plugin'::text, 'manual'::text, 'imported'::text])))
);

create table schema_definitions (
  number integer not null,
  hash text not null,
  applied_at timestamp with time zone not null default now(),
  constraint schema_definitions_pkey PRIMARY KEY (number)
);

create table schema_migrations (
  number integer not null,
  name text not null,
  hash text not null,
  applied_at timestamp with time zone not null default now(),
  constraint schema_migrations_pkey PRIMARY KEY (number)
);

create table site_leases (
  execution_run_id identifier not null,
  site text not null,
  epoch bigint not null default 0,
  holder text not null default ''::text,
  renewed_at timestamp with time zone not null default now(),
  constraint site_leases_pkey PRIMARY KEY (execution_run_id, site),
  constraint site_leases_run FOREIGN KEY (execution_run_id) REFERENCES execution_runs(id) ON DELETE CASCADE
);

create table site_leftovers (
  site text collate "C" not null,
  name text collate "C" not null,
  execution_run_id text not null,
  since timestamp with time zone not null default now(),
  tries integer not null default 0,
  next_try_at timestamp with time zone not null default now(),
  last_error text not null,
  constraint site_leftovers_pkey PRIMARY KEY (site, name)
);

create table site_removals (
  id bigint generated always as identity not null,
  site text collate "C" not null,
  host_id text,
  execution_run_id text not null,
  scope text not null,
  names text[] not null,
  facts jsonb not null,
  since timestamp with time zone not null default now(),
  tries integer not null default 0,
  next_try_at timestamp with time zone not null default now(),
  last_error text,
  constraint site_removals_pkey PRIMARY KEY (id)
);

create table storage_download_entries (
  download_id identifier not null,
  position bigint not null,
  path bytea not null,
  type text not null,
  size_bytes bigint,
  state text not null default 'pending'::text,
  attempt integer not null default 0,
  modified_at double precision,
  upload text,
  mode integer,
  link_target bytea,
  is_made boolean not null default false,
  constraint storage_download_entries_download FOREIGN KEY (download_id) REFERENCES storage_downloads(id) ON DELETE CASCADE,
  constraint storage_download_entries_pkey PRIMARY KEY (download_id, "position"),
  constraint storage_download_entries_state CHECK ((state = ANY (ARRAY['pending'::text, 'sending'::text, 'done'::text]))),
  constraint storage_download_entries_type CHECK ((type = ANY (ARRAY['file'::text, 'directory'::text, 'link'::text])))
);

create table storage_downloads (
  id identifier not null,
  storage_id identifier not null,
  path bytea not null,
  strategy text not null,
  status text not null,
  size_bytes bigint,
  transferred_bytes bigint,
  error text,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  generation integer not null default 1,
  destination_storage_id identifier,
  destination_path bytea,
  on_conflict text,
  bytes_per_second bigint,
  host_id text,
  live jsonb,
  listed_at timestamp with time zone,
  entries bigint,
  skipped_entries bigint,
  dispatched_at timestamp with time zone,
  cancel_requested_at timestamp with time zone,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  started_at timestamp with time zone,
  finished_at timestamp with time zone,
  sent_bytes bigint,
  verification text,
  route jsonb,
  listing integer not null default 0,
  constraint storage_downloads_conflict CHECK ((on_conflict = ANY (ARRAY['fail'::text, 'skip-equal'::text, 'overwrite'::text]))),
  constraint storage_downloads_pkey PRIMARY KEY (id),
  constraint storage_downloads_status CHECK ((status = ANY (ARRAY['queued'::text, 'streaming'::text, 'ready'::text, 'completed'::text, 'failed'::text, 'cancelled'::text]))),
  constraint storage_downloads_storage FOREIGN KEY (storage_id) REFERENCES storages(id) ON DELETE CASCADE,
  constraint storage_downloads_verification CHECK ((verification = ANY (ARRAY['sha256'::text, 'store'::text])))
);

create table storage_index_changes (
  run_id identifier not null,
  parent bytea not null,
  name bytea not null,
  is_directory boolean not null,
  type text,
  size_bytes bigint,
  modified_at double precision,
  media_type text,
  sha256 bytea,
  is_unread boolean not null default false,
  constraint storage_index_changes_pkey PRIMARY KEY (run_id, parent, name, is_directory),
  constraint storage_index_changes_run FOREIGN KEY (run_id) REFERENCES storage_index_runs(id) ON DELETE CASCADE
);

create table storage_index_entries (
  storage_id identifier not null,
  parent bytea not null,
  name bytea not null,
  is_directory boolean not null,
  type text not null,
  size_bytes bigint,
  modified_at double precision,
  media_type text,
  sha256 bytea,
  constraint storage_index_entries_pkey PRIMARY KEY (storage_id, parent, name, is_directory),
  constraint storage_index_entries_storage FOREIGN KEY (storage_id) REFERENCES storages(id) ON DELETE CASCADE
);

create table storage_index_folders (
  run_id identifier not null,
  depth integer not null,
  parent bytea not null,
  after text,
  constraint storage_index_folders_pkey PRIMARY KEY (run_id, depth, parent),
  constraint storage_index_folders_run FOREIGN KEY (run_id) REFERENCES storage_index_runs(id) ON DELETE CASCADE
);

create table storage_index_pages (
  run_id identifier not null,
  parent bytea not null,
  step bigint not null,
  names bytea[] not null,
  directories boolean[] not null,
  constraint storage_index_pages_pkey PRIMARY KEY (run_id, parent, step),
  constraint storage_index_pages_run FOREIGN KEY (run_id) REFERENCES storage_index_runs(id) ON DELETE CASCADE
);

create table storage_index_runs (
  id identifier not null,
  generation integer not null default 1,
  storage_id identifier not null,
  status text not null,
  policy jsonb not null,
  checksums boolean not null default false,
  host_id text,
  step bigint not null default 0,
  spent_ms bigint not null default 0,
  walked_at timestamp with time zone,
  indexed_entries bigint not null default 0,
  indexed_bytes bigint not null default 0,
  skipped_entries bigint not null default 0,
  truncated_by text,
  added_entries bigint,
  changed_entries bigint,
  removed_entries bigint,
  recorded_at timestamp with time zone,
  live jsonb,
  error text,
  dispatched_at timestamp with time zone,
  cancel_requested_at timestamp with time zone,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  created_at timestamp with time zone not null default now(),
  started_at timestamp with time zone,
  finished_at timestamp with time zone,
  constraint storage_index_runs_pkey PRIMARY KEY (id),
  constraint storage_index_runs_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text]))),
  constraint storage_index_runs_storage FOREIGN KEY (storage_id) REFERENCES storages(id) ON DELETE CASCADE,
  constraint storage_index_runs_truncated CHECK ((truncated_by = ANY (ARRAY['depth'::text, 'entries'::text, 'time'::text])))
);

create table storage_runtime_bindings (
  environment_version_id identifier not null,
  storage_id identifier not null,
  runtime_id identifier not null,
  position integer not null default 0,
  container_path text not null default '/akoflow/data'::text,
  is_default boolean not null default false,
  read_only boolean not null default false,
  host_path text not null default ''::text,
  configuration jsonb,
  constraint storage_runtime_bindings_pkey PRIMARY KEY (storage_id, runtime_id),
  constraint storage_runtime_bindings_runtime FOREIGN KEY (environment_version_id, runtime_id) REFERENCES runtimes(environment_version_id, id) ON DELETE CASCADE,
  constraint storage_runtime_bindings_storage FOREIGN KEY (environment_version_id, storage_id) REFERENCES storages(environment_version_id, id) ON DELETE CASCADE
);

create table storages (
  id identifier not null,
  environment_version_id identifier not null,
  position integer not null default 0,
  name text not null,
  type text not null,
  endpoint text not null default ''::text,
  capacity_bytes bigint not null default 0,
  shared boolean not null default false,
  read_only boolean not null default false,
  credential_reference text not null default ''::text,
  configuration jsonb,
  metadata jsonb,
  probe jsonb,
  constraint storages_capacity CHECK ((capacity_bytes >= 0)),
  constraint storages_in_version UNIQUE (environment_version_id, id),
  constraint storages_name UNIQUE (environment_version_id, name),
  constraint storages_pkey PRIMARY KEY (id),
  constraint storages_type CHECK ((type = ANY (ARRAY['local'::text, 'pvc'::text, 'nfs'::text, 's3'::text, 'lustre'::text, 'gcs'::text, 's3-compatible'::text, 'ssh-filesystem'::text]))),
  constraint storages_version FOREIGN KEY (environment_version_id) REFERENCES environment_versions(id) ON DELETE CASCADE
);

create table system_instance (
  singleton boolean not null default true,
  id identifier not null,
  name text not null,
  description text not null default ''::text,
  organization text not null default ''::text,
  location text not null default ''::text,
  transfer_buffer_bytes bigint not null default 8388608,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  constraint system_instance_pkey PRIMARY KEY (singleton),
  constraint system_instance_single CHECK (singleton)
);

create table task_executions (
  id identifier not null,
  execution_run_id identifier not null,
  activity_position integer not null,
  plan_assignment_id text not null,
  activity_id text collate "C" not null,
  external_id text collate "C" not null,
  planned_resource_id text not null,
  allocated_resource_id text,
  runtime_id text,
  attempt integer not null default 1,
  user_attempts integer not null default 1,
  latest boolean not null default true,
  status text not null default 'blocked'::text,
  core_ids text[] not null default '{}'::text[],
  slot_id text not null default ''::text,
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
  handle_name text,
  handle_started_at double precision,
  host_id text,
  directory text,
  external_id_at_site text,
  artifacts jsonb,
  metadata jsonb,
  site_queue_seconds double precision,
  walltime_extensions integer not null default 0,
  ahead boolean not null default false,
  site text,
  connection_id text,
  runtime_reason text,
  generation integer not null default 1,
  constraint task_executions_attempt UNIQUE (execution_run_id, activity_position, attempt),
  constraint task_executions_pkey PRIMARY KEY (id),
  constraint task_executions_run FOREIGN KEY (execution_run_id) REFERENCES execution_runs(id) ON DELETE CASCADE,
  constraint task_executions_status CHECK ((status = ANY (ARRAY['blocked'::text, 'ready'::text, 'queued'::text, 'preparing'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
) with (fillfactor=40);

create table user_preferences (
  client_id identifier not null,
  theme text not null,
  animations_enabled boolean not null,
  updated_at timestamp with time zone not null default now(),
  constraint user_preferences_pkey PRIMARY KEY (client_id)
);

create table workflow_data_dependencies (
  workflow_version_id identifier not null,
  producer_position integer not null,
  consumer_position integer not null,
  logical_name text collate "C" not null,
  size_bytes bigint not null,
  constraint workflow_data_dependencies_pkey PRIMARY KEY (workflow_version_id, producer_position, consumer_position, logical_name),
  constraint workflow_data_dependencies_size CHECK ((size_bytes >= 0)),
  constraint workflow_data_dependencies_version FOREIGN KEY (workflow_version_id) REFERENCES workflow_versions(id) ON DELETE CASCADE
);

create table workflow_definitions (
  id identifier not null,
  external_id text not null,
  name text not null,
  namespace text not null,
  created_at timestamp with time zone not null default now(),
  constraint workflow_definitions_external_id UNIQUE (external_id),
  constraint workflow_definitions_pkey PRIMARY KEY (id)
);

create table workflow_versions (
  id identifier not null,
  workflow_id identifier not null,
  version bigint not null,
  definition_hash text not null,
  status text not null default 'published'::text,
  embedded boolean not null default false,
  activity_count bigint not null,
  dependency_count bigint not null,
  raw_definition jsonb,
  metadata jsonb,
  created_at timestamp with time zone not null default now(),
  constraint workflow_versions_pkey PRIMARY KEY (id)
);

CREATE INDEX activity_definitions_by_external_id ON public.activity_definitions USING btree (workflow_version_id, external_id);

CREATE INDEX activity_definitions_by_id ON public.activity_definitions USING btree (id);

CREATE INDEX activity_dependencies_of_predecessor ON public.activity_dependencies USING btree (workflow_version_id, depends_on_position);

CREATE UNIQUE INDEX activity_resource_profiles_model ON public.activity_resource_profiles USING btree (activity_type_id, resource_id, md5(model_version));

CREATE INDEX activity_resource_profiles_of_resource ON public.activity_resource_profiles USING btree (resource_id);

CREATE INDEX activity_resource_profiles_of_version ON public.activity_resource_profiles USING btree (environment_version_id);

CREATE INDEX activity_types_of_workflow ON public.activity_types USING btree (workflow_id, "position");

CREATE INDEX artifact_builds_of_credential ON public.artifact_builds USING btree (credential_ref) WHERE (credential_ref IS NOT NULL);

CREATE INDEX artifact_builds_of_version ON public.artifact_builds USING btree (artifact_version_id, created_at DESC, id DESC);

CREATE INDEX artifact_locations_of_endpoint ON public.artifact_locations USING btree (endpoint_id);

CREATE INDEX artifact_locations_of_uri ON public.artifact_locations USING btree (uri);

CREATE INDEX artifact_materializations_in_order ON public.artifact_materializations USING btree (created_at, id);

CREATE INDEX artifact_materializations_of_run ON public.artifact_materializations USING btree (run_id, created_at, id);

CREATE INDEX artifact_materializations_texts ON public.artifact_materializations USING gin (replace(lower((((((((((((((((((chr(10) || COALESCE((id)::text, ''::text)) || chr(10)) || COALESCE((variant_id)::text, ''::text)) || chr(10)) || COALESCE(digest, ''::text)) || chr(10)) || COALESCE((resource_id)::text, ''::text)) || chr(10)) || COALESCE((run_id)::text, ''::text)) || chr(10)) || COALESCE((activity_id)::text, ''::text)) || chr(10)) || COALESCE(destination_path, ''::text)) || chr(10)) || COALESCE(status, ''::text)) || chr(10)) COLLATE "default")), chr(10), (chr(10) || 'qq'::text)) trigrams.gin_trgm_ops);

CREATE INDEX artifact_transfer_runs_of_materialization ON public.artifact_transfer_runs USING btree (materialization_id);

CREATE INDEX artifact_transfer_runs_of_run ON public.artifact_transfer_runs USING btree (execution_run_id, started_at, id);

CREATE INDEX artifact_versions_by_name ON public.artifact_versions USING btree (name COLLATE "C", artifact_id, version COLLATE "C", id);

CREATE INDEX artifact_versions_texts ON public.artifact_versions USING gin (replace(lower((((((((((chr(10) || COALESCE((artifact_id)::text, ''::text)) || chr(10)) || COALESCE((id)::text, ''::text)) || chr(10)) || COALESCE(name, ''::text)) || chr(10)) || COALESCE(version, ''::text)) || chr(10)) COLLATE "default")), chr(10), (chr(10) || 'qq'::text)) trigrams.gin_trgm_ops);

CREATE INDEX audit_events_newest ON public.audit_events USING btree (occurred_at DESC, id DESC);

CREATE INDEX audit_events_of_actor ON public.audit_events USING btree (actor_id, occurred_at DESC, id DESC) WHERE (actor_id IS NOT NULL);

CREATE INDEX audit_events_of_connection ON public.audit_events USING btree (connection_id, occurred_at DESC, id DESC) WHERE (connection_id IS NOT NULL);

CREATE INDEX audit_events_of_environment ON public.audit_events USING btree (environment_id, occurred_at DESC, id DESC) WHERE (environment_id IS NOT NULL);

CREATE INDEX audit_events_of_resource ON public.audit_events USING btree (resource_id, occurred_at DESC, id DESC) WHERE (resource_id IS NOT NULL);

CREATE INDEX audit_events_of_run ON public.audit_events USING btree (execution_id, occurred_at DESC, id DESC) WHERE (execution_id IS NOT NULL);

CREATE INDEX audit_events_of_session ON public.audit_events USING btree (session_id, occurred_at DESC, id DESC) WHERE (session_id IS NOT NULL);

CREATE INDEX audit_events_of_type ON public.audit_events USING btree (event_type, occurred_at DESC, id DESC);

CREATE UNIQUE INDEX audit_events_sealed ON public.audit_events USING btree (seal_number) WHERE (seal_number IS NOT NULL);

CREATE INDEX audit_events_unsealed ON public.audit_events USING btree (sequence) WHERE (seal_number IS NULL);

CREATE INDEX bindings_of_credential ON public.resource_runtime_bindings USING hash (((configuration ->> 'credentialRef'::text))) WHERE ((configuration ->> 'credentialRef'::text) IS NOT NULL);

CREATE INDEX bindings_of_slurm_credential ON public.resource_runtime_bindings USING hash (((configuration #>> '{slurmrestd,credentialRef}'::text[]))) WHERE ((configuration #>> '{slurmrestd,credentialRef}'::text[]) IS NOT NULL);

CREATE INDEX build_runs_of_build ON public.build_runs USING btree (artifact_build_id, created_at DESC, id DESC);

CREATE INDEX build_runs_open ON public.build_runs USING btree (created_at, id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE UNIQUE INDEX build_runs_open_once ON public.build_runs USING btree (artifact_build_id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE UNIQUE INDEX cloud_capacity_targets_name ON public.cloud_capacity_targets USING btree (environment_id, name) WHERE enabled;

CREATE UNIQUE INDEX cloud_instances_name ON public.cloud_instances USING btree (capacity_target_id, name) WHERE ((status <> 'destroyed'::text) AND (NOT machine_gone));

CREATE INDEX cloud_instances_of_credential ON public.cloud_instances USING btree (ssh_credential_ref) WHERE (ssh_credential_ref IS NOT NULL);

CREATE INDEX cloud_instances_of_environment ON public.cloud_instances USING btree (environment_id, created_at DESC, id DESC);

CREATE INDEX cloud_instances_of_runs ON public.cloud_instances USING btree (id) WHERE ((execution_run_id IS NOT NULL) AND (NOT machine_gone));

CREATE INDEX cloud_instances_of_target ON public.cloud_instances USING btree (capacity_target_id, created_at DESC, id DESC);

CREATE INDEX cloud_operations_newest ON public.cloud_operations USING btree (created_at DESC, id DESC);

CREATE INDEX cloud_operations_of_environment ON public.cloud_operations USING btree (environment_id);

CREATE INDEX cloud_operations_of_instance ON public.cloud_operations USING btree (instance_id, created_at DESC);

CREATE INDEX cloud_operations_of_run ON public.cloud_operations USING btree (execution_run_id) WHERE (execution_run_id IS NOT NULL);

CREATE INDEX cloud_operations_of_target ON public.cloud_operations USING btree (capacity_target_id);

CREATE UNIQUE INDEX cloud_operations_one_open ON public.cloud_operations USING btree (instance_id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE INDEX cloud_operations_open ON public.cloud_operations USING btree (created_at, id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE INDEX connection_checks_newest ON public.connection_checks USING btree (connection_id, checked_at DESC);

CREATE UNIQUE INDEX connection_discoveries_one_open ON public.connection_discoveries USING btree (connection_id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE INDEX connection_discoveries_open ON public.connection_discoveries USING btree (requested_at) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE INDEX connections_credential ON public.connections USING btree (credential_ref) WHERE (credential_ref <> ''::text);

CREATE INDEX connections_to_monitor ON public.connections USING btree (created_at) WHERE (monitored_since IS NULL);

CREATE INDEX console_commands_feed ON public.console_commands USING btree (COALESCE(started_at, created_at) DESC, id DESC);

CREATE INDEX console_commands_finished ON public.console_commands USING btree (finished_at) WHERE (finished_at IS NOT NULL);

CREATE INDEX console_commands_newest ON public.console_commands USING btree (created_at DESC, id DESC);

CREATE INDEX console_commands_open ON public.console_commands USING btree (created_at, id) WHERE (status = ANY (ARRAY['accepted'::text, 'running'::text]));

CREATE INDEX console_commands_uncleared ON public.console_commands USING btree (finished_at) WHERE ((finished_at IS NOT NULL) AND (cleared_at IS NULL));

CREATE INDEX console_sessions_feed ON public.console_sessions USING btree (COALESCE(connected_at, created_at) DESC, id DESC);

CREATE INDEX console_sessions_finished ON public.console_sessions USING btree (finished_at) WHERE (finished_at IS NOT NULL);

CREATE INDEX console_sessions_open ON public.console_sessions USING btree (created_at, id) WHERE (status = ANY (ARRAY['starting'::text, 'connected'::text]));

CREATE INDEX console_sessions_uncleared ON public.console_sessions USING btree (finished_at) WHERE ((finished_at IS NOT NULL) AND (cleared_at IS NULL));

CREATE INDEX console_tickets_expiry ON public.console_tickets USING btree (expires_at);

CREATE INDEX data_locations_of_instance ON public.data_locations USING btree (data_object_instance_id);

CREATE INDEX data_locations_of_run ON public.data_locations USING btree (execution_run_id);

CREATE INDEX data_locations_of_uri ON public.data_locations USING btree (uri) WHERE (storage_resource_id IS NOT NULL);

CREATE INDEX data_object_instances_of_object ON public.data_object_instances USING btree (data_object_id);

CREATE INDEX data_object_instances_of_producer ON public.data_object_instances USING btree (execution_run_id, producer_activity_id);

CREATE INDEX data_object_instances_of_run ON public.data_object_instances USING btree (execution_run_id, id);

CREATE INDEX data_objects_of_version ON public.data_objects USING btree (workflow_version_id, producer_activity_id);

CREATE INDEX data_transfer_observations_from ON public.data_transfer_observations USING btree (source_resource_id);

CREATE INDEX data_transfer_observations_of_run ON public.data_transfer_observations USING btree (execution_run_id, started_at, id);

CREATE INDEX data_transfer_observations_to ON public.data_transfer_observations USING btree (target_resource_id);

CREATE INDEX environments_by_name ON public.environments USING btree (name COLLATE "C", id);

CREATE INDEX environments_texts ON public.environments USING gin (replace(lower((((((((((chr(10) || COALESCE((id)::text, ''::text)) || chr(10)) || COALESCE(name, ''::text)) || chr(10)) || COALESCE(description, ''::text)) || chr(10)) || COALESCE(status, ''::text)) || chr(10)) COLLATE "default")), chr(10), (chr(10) || 'qq'::text)) trigrams.gin_trgm_ops);

CREATE INDEX event_feed_of_operation ON public.event_feed USING btree (kind, operation_id, last_sequence);

CREATE INDEX execution_runs_by_cost ON public.execution_runs USING btree (cost, id);

CREATE INDEX execution_runs_by_created ON public.execution_runs USING btree (created_at, id);

CREATE INDEX execution_runs_by_finished ON public.execution_runs USING btree (COALESCE(finished_at, 'infinity'::timestamp with time zone), id);

CREATE INDEX execution_runs_by_makespan ON public.execution_runs USING btree (makespan_seconds, id);

CREATE INDEX execution_runs_by_title ON public.execution_runs USING btree (COALESCE(title, ''::text) COLLATE "C", id);

CREATE INDEX execution_runs_created ON public.execution_runs USING btree (created_at) WHERE (status = 'created'::text);

CREATE INDEX execution_runs_newest ON public.execution_runs USING btree (COALESCE(started_at, created_at) DESC, id DESC);

CREATE INDEX execution_runs_of_content ON public.execution_runs USING btree (content_version_id);

CREATE INDEX execution_runs_of_plan ON public.execution_runs USING btree (schedule_plan_id);

CREATE INDEX execution_runs_on_budget ON public.execution_runs USING btree (id) WHERE ((on_budget = ANY (ARRAY['ask'::text, 'stop'::text])) AND (status = ANY (ARRAY['created'::text, 'running'::text])));

CREATE INDEX execution_runs_open ON public.execution_runs USING btree (created_at, id) WHERE (status = 'running'::text);

CREATE INDEX execution_runs_texts ON public.execution_runs USING gin (replace(lower((((((((((((chr(10) || COALESCE((id)::text, ''::text)) || chr(10)) || COALESCE(title, ''::text)) || chr(10)) || COALESCE(searched_places, ''::text)) || chr(10)) || COALESCE(failure_reason, ''::text)) || chr(10)) || COALESCE(status, ''::text)) || chr(10)) COLLATE "default")), chr(10), (chr(10) || 'qq'::text)) trigrams.gin_trgm_ops);

CREATE INDEX execution_runs_titles ON public.execution_runs USING gin (lower((title COLLATE "default")) trigrams.gin_trgm_ops);

CREATE INDEX execution_runs_undispatched ON public.execution_runs USING btree (created_at, id) WHERE ((dispatched_at IS NULL) AND (status = ANY (ARRAY['created'::text, 'running'::text])));

CREATE INDEX execution_scope_environments_version ON public.execution_scope_environments USING btree (environment_version_id);

CREATE INDEX execution_scopes_by_name ON public.execution_scopes USING btree (name COLLATE "C", id);

CREATE INDEX execution_scopes_texts ON public.execution_scopes USING gin (replace(lower((((((((((chr(10) || COALESCE((id)::text, ''::text)) || chr(10)) || COALESCE(name, ''::text)) || chr(10)) || COALESCE(network_topology_id, ''::text)) || chr(10)) || COALESCE(searched_environments, ''::text)) || chr(10)) COLLATE "default")), chr(10), (chr(10) || 'qq'::text)) trigrams.gin_trgm_ops);

CREATE INDEX idempotency_keys_age ON public.idempotency_keys USING btree (created_at);

CREATE UNIQUE INDEX lane_leases_lane ON public.lane_leases USING btree (md5(resource_id), core_id, md5(slot_id));

CREATE INDEX lane_leases_of_task ON public.lane_leases USING btree (task_execution_id);

CREATE UNIQUE INDEX network_links_pair ON public.network_links USING btree (topology_id, md5((source_resource_id)::text), md5((target_resource_id)::text));

CREATE INDEX network_links_source_end ON public.network_links USING btree (source_resource_id);

CREATE INDEX network_links_target_end ON public.network_links USING btree (target_resource_id);

CREATE INDEX network_topologies_by_name ON public.network_topologies USING btree (name COLLATE "C", version DESC, id);

CREATE INDEX planning_algorithm_runs_of_session ON public.planning_algorithm_runs USING btree (planning_session_id, "position");

CREATE INDEX planning_candidates_of_algorithm_run ON public.planning_candidates USING btree (algorithm_run_id);

CREATE INDEX planning_candidates_ranked ON public.planning_candidates USING btree (planning_session_id, rank, created_at, id);

CREATE INDEX planning_candidates_resources ON public.planning_candidates USING gin (((plan -> 'resourceIds'::text)));

CREATE INDEX planning_sessions_by_completed ON public.planning_sessions USING btree (COALESCE(completed_at, 'infinity'::timestamp with time zone), id);

CREATE INDEX planning_sessions_in_scope ON public.planning_sessions USING btree (execution_scope_id);

CREATE INDEX planning_sessions_newest ON public.planning_sessions USING btree (created_at DESC, id DESC);

CREATE INDEX planning_sessions_of_version ON public.planning_sessions USING btree (workflow_version_id);

CREATE INDEX planning_sessions_open ON public.planning_sessions USING btree (created_at, id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE INDEX planning_sessions_selection ON public.planning_sessions USING btree (selected_plan_id) WHERE (selected_plan_id IS NOT NULL);

CREATE INDEX planning_sessions_undispatched ON public.planning_sessions USING btree (created_at) WHERE ((dispatched_at IS NULL) AND (status = 'queued'::text));

CREATE INDEX resource_relations_of_target ON public.resource_relations USING btree (target_resource_id);

CREATE INDEX resource_relations_of_version ON public.resource_relations USING btree (environment_version_id);

CREATE INDEX resource_runtime_bindings_of_runtime ON public.resource_runtime_bindings USING btree (runtime_id);

CREATE INDEX resource_runtime_bindings_of_version ON public.resource_runtime_bindings USING btree (environment_version_id);

CREATE INDEX resource_snapshots_newest ON public.resource_snapshots USING btree (resource_id, captured_at DESC, id DESC);

CREATE INDEX resources_by_name ON public.resources USING btree (name COLLATE "C", id);

CREATE INDEX resources_of_parent ON public.resources USING btree (parent_resource_id) WHERE (parent_resource_id IS NOT NULL);

CREATE INDEX resources_of_version ON public.resources USING btree (environment_version_id);

CREATE INDEX resources_texts ON public.resources USING gin (replace(lower((((((((((((((chr(10) || COALESCE((id)::text, ''::text)) || chr(10)) || COALESCE(name, ''::text)) || chr(10)) || COALESCE(provider_id, ''::text)) || chr(10)) || COALESCE(region, ''::text)) || chr(10)) || COALESCE(zone, ''::text)) || chr(10)) || COALESCE(type, ''::text)) || chr(10)) COLLATE "default")), chr(10), (chr(10) || 'qq'::text)) trigrams.gin_trgm_ops);

CREATE INDEX run_machines_held ON public.run_machines USING btree (execution_run_id) WHERE (released_at IS NULL);

CREATE INDEX run_machines_of_instance ON public.run_machines USING btree (instance_id);

CREATE UNIQUE INDEX run_machines_one ON public.run_machines USING btree (execution_run_id, capacity_target_id) WHERE (released_at IS NULL);

CREATE INDEX run_machines_unsettled ON public.run_machines USING btree (execution_run_id) WHERE (NOT settled);

CREATE INDEX runtimes_of_credential ON public.runtimes USING hash (((configuration ->> 'credentialRef'::text))) WHERE (driver = 'serverless'::text);

CREATE INDEX runtimes_of_slurm_credential ON public.runtimes USING hash (((configuration #>> '{slurmrestd,credentialRef}'::text[]))) WHERE (driver = 'slurm'::text);

CREATE INDEX schedule_plan_assignments_on_resource ON public.schedule_plan_assignments USING btree (resource_id);

CREATE INDEX schedule_plans_by_cost ON public.schedule_plans USING btree (predicted_cost, id);

CREATE INDEX schedule_plans_by_makespan ON public.schedule_plans USING btree (predicted_makespan_seconds, id);

CREATE INDEX schedule_plans_in_scope ON public.schedule_plans USING btree (execution_scope_id);

CREATE INDEX schedule_plans_named_workflow ON public.schedule_plans USING btree (workflow_version_id);

CREATE INDEX schedule_plans_newest ON public.schedule_plans USING btree (created_at DESC, id DESC);

CREATE INDEX schedule_plans_texts ON public.schedule_plans USING gin (replace(lower((((((((((((chr(10) || COALESCE((id)::text, ''::text)) || chr(10)) || COALESCE(algorithm, ''::text)) || chr(10)) || COALESCE(objective, ''::text)) || chr(10)) || COALESCE((workflow_version_id)::text, ''::text)) || chr(10)) || COALESCE((execution_scope_id)::text, ''::text)) || chr(10)) COLLATE "default")), chr(10), (chr(10) || 'qq'::text)) trigrams.gin_trgm_ops);

CREATE INDEX schedule_plans_workflow ON public.schedule_plans USING btree (content_version_id);

CREATE INDEX site_leftovers_of_run ON public.site_leftovers USING btree (execution_run_id);

CREATE INDEX site_removals_due ON public.site_removals USING btree (next_try_at);

CREATE INDEX storage_download_entries_left ON public.storage_download_entries USING btree (download_id, "position") WHERE (state <> 'done'::text);

CREATE INDEX storage_download_entries_made ON public.storage_download_entries USING btree (download_id, "position") WHERE is_made;

CREATE INDEX storage_downloads_of_storage ON public.storage_downloads USING btree (storage_id, created_at DESC, id DESC);

CREATE INDEX storage_downloads_open ON public.storage_downloads USING btree (created_at, id) WHERE (status = ANY (ARRAY['queued'::text, 'streaming'::text]));

CREATE INDEX storage_index_changes_unread ON public.storage_index_changes USING btree (run_id, parent, name) WHERE is_unread;

CREATE INDEX storage_index_entries_by_digest ON public.storage_index_entries USING btree (storage_id, sha256, parent, name, is_directory) WHERE (sha256 IS NOT NULL);

CREATE INDEX storage_index_runs_of_storage ON public.storage_index_runs USING btree (storage_id, created_at DESC, id DESC);

CREATE UNIQUE INDEX storage_index_runs_one_open ON public.storage_index_runs USING btree (storage_id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE INDEX storage_index_runs_open ON public.storage_index_runs USING btree (created_at, id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));

CREATE INDEX storage_runtime_bindings_of_runtime ON public.storage_runtime_bindings USING btree (environment_version_id, runtime_id);

CREATE UNIQUE INDEX storage_runtime_bindings_one_default ON public.storage_runtime_bindings USING btree (environment_version_id, runtime_id) WHERE is_default;

CREATE INDEX storages_of_credential ON public.storages USING hash (credential_reference) WHERE (credential_reference <> ''::text);

CREATE INDEX task_executions_of_activity ON public.task_executions USING btree (execution_run_id, activity_id);

CREATE INDEX task_executions_planned_on ON public.task_executions USING btree (planned_resource_id);

CREATE INDEX workflow_data_dependencies_of_consumer ON public.workflow_data_dependencies USING btree (workflow_version_id, consumer_position);

CREATE INDEX workflow_definitions_by_namespace ON public.workflow_definitions USING btree (namespace COLLATE "C", name COLLATE "C", id);

CREATE INDEX workflow_definitions_texts ON public.workflow_definitions USING gin (replace(lower((((((((((chr(10) || COALESCE((id)::text, ''::text)) || chr(10)) || COALESCE(external_id, ''::text)) || chr(10)) || COALESCE(name, ''::text)) || chr(10)) || COALESCE(namespace, ''::text)) || chr(10)) COLLATE "default")), chr(10), (chr(10) || 'qq'::text)) trigrams.gin_trgm_ops);

CREATE UNIQUE INDEX workflow_versions_number ON public.workflow_versions USING btree (workflow_id, version) WHERE (NOT embedded);

CREATE INDEX workflow_versions_of_workflow ON public.workflow_versions USING btree (workflow_id);

CREATE OR REPLACE FUNCTION public.commit_site(p_run text, p_site text, p_epoch bigint, p_ends jsonb, p_retries jsonb, p_states jsonb, p_intents jsonb, p_outputs jsonb, p_transfers jsonb, p_leftovers jsonb, p_taken_back jsonb, p_starts jsonb, OUT acquired text[], OUT holders jsonb, OUT cancelled boolean, OUT paused boolean, OUT failed bigint, OUT run_status text)
 RETURNS record
 LANGUAGE plpgsql
 SET enable_seqscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
declare
  sequence bigint;
  ended bigint;
  completed bigint;
  lost bigint;
  started bigint;
begin
  perform from site_leases l where l.execution_run_id = p_run and l.site = p_site and l.epoch = p_epoch for update;
  if not found then
    raise exception 'the lease of site % of run % has passed on', p_site, p_run using errcode = 'OR001';
  end if;
  update site_leases l set renewed_at = clock_timestamp() where l.execution_run_id = p_run and l.site = p_site;

  -- The run's row is the lock under which its events are numbered, so that a reader who saw n has
  -- seen all before n.
  select r.last_event_sequence into sequence from execution_runs r where r.id = p_run for update;

  if p_taken_back is not null then
    -- Forgotten without a trace: nothing was started under the name, and it may be intended again.
    with gone as (
      update task_executions t set ahead = false, host_id = null, directory = null
      from jsonb_array_elements_text(p_taken_back) as x(id) where t.id = x.id and t.ahead
      returning t.id
    )
    delete from lane_leases l using gone g where l.task_execution_id = g.id;
  end if;

  if p_ends is not null or p_starts is not null then
    with begun as (
      update task_executions t set status = 'preparing', ready_at = x."readyAt",
        queued_at = coalesce(t.queued_at, x."startedAt"), started_at = x."startedAt",
        handle_name = x.name, handle_started_at = x."startedAt", allocated_resource_id = t.planned_resource_id,
        ahead = false, metadata = nullif(t.metadata - 'queueReason' - 'waitsFor' - 'silentSince' - 'silentFor', '{}')
      from jsonb_to_recordset(coalesce(p_starts, '[]')) as x(id text, name text, "readyAt" double precision,
        "startedAt" double precision, "order" integer)
      where t.id = x.id and t.ahead
      returning t.id, t.activity_id, t.attempt, t.planned_resource_id, x."order"
    ), given as (
      select * from jsonb_to_recordset(coalesce(p_ends, '[]')) as x(
        id text, status text, "readyAt" double precision, "startedAt" double precision,
        "finishedAt" double precision, "runtimeSeconds" double precision,
        "queueSeconds" double precision, "overheadSeconds" double precision, "transferSeconds" double precision,
        "transferBytes" bigint, cost double precision,
        "cpuSeconds" double precision, "peakMemoryBytes" bigint, "measuredBy" text, "exitCode" integer,
        "failureClass" text, "failureReason" text,
        manifest jsonb, "siteQueueSeconds" double precision, place jsonb, "externalId" text, final boolean,
        "order" integer, "startOrder" integer, name text, heir text)
    ), changed as (
      update task_executions t set
        status = g.status, ready_at = coalesce(g."readyAt", t.ready_at),
        data_ready_at = coalesce(g."startedAt", t.data_ready_at), started_at = coalesce(g."startedAt",
          t.started_at),
        queued_at = coalesce(t.queued_at, g."startedAt"), handle_name = coalesce(t.handle_name, g.name),
        handle_started_at = coalesce(t.handle_started_at, g."startedAt"),
        ahead = false, allocated_resource_id = t.planned_resource_id,
        finished_at = g."finishedAt", runtime_seconds = g."runtimeSeconds", queue_seconds = g."queueSeconds",
        overhead_seconds = g."overheadSeconds",
        transfer_seconds = g."transferSeconds", transfer_bytes = g."transferBytes", cost = g.cost,
        cpu_seconds = g."cpuSeconds",
        peak_memory_bytes = g."peakMemoryBytes", measured_by = g."measuredBy", exit_code = g."exitCode",
        failure_class = g."failureClass", failure_reason = g."failureReason", artifacts = g.manifest,
        site_queue_seconds = g."siteQueueSeconds",
        external_id_at_site = coalesce(g."externalId", t.external_id_at_site),
        metadata = case when t.metadata is null and g.place is null then null
          else nullif(coalesce(t.metadata, '{}') - 'queueReason' - 'waitsFor' - 'silentSince' - 'silentFor' ||
            coalesce(g.place, '{}'), '{}') end
      from given g where t.id = g.id and t.status not in ('completed', 'failed', 'cancelled')
      returning t.id, t.activity_id, t.attempt, t.planned_resource_id, t.status, g."exitCode", g."failureReason",
        g.final, g."order", g."startOrder", g.heir
    ), freed as (
      delete from lane_leases l using changed c where l.task_execution_id = c.id and c.heir is null
    ), passed_on as (
      update lane_leases l set task_execution_id = c.heir from changed c
      where l.task_execution_id = c.id and c.heir is not null
    ), happened as (
      select 'activity.started' as event, b.id, b."order",
        jsonb_build_object('activityId', b.activity_id, 'attempt', b.attempt, 'resourceId', b.planned_resource_id)
          as payload
      from begun b
      union all
      select 'activity.started', c.id, c."startOrder",
        jsonb_build_object('activityId', c.activity_id, 'attempt', c.attempt, 'resourceId', c.planned_resource_id)
      from changed c where c."startOrder" is not null
      union all
      select 'activity.' || c.status, c.id, c."order",
        jsonb_strip_nulls(jsonb_build_object('activityId', c.activity_id, 'attempt', c.attempt,
          'exitCode', c."exitCode", 'failureReason', c."failureReason"))
      from changed c
    ), told as (
      insert into operation_events (kind, operation_id, sequence, event_type, aggregate_type, aggregate_id,
        payload)
      select 'execution-run', p_run, sequence + row_number() over (order by h."order"), h.event,
        'activity_execution', h.id, h.payload
      from happened h
      returning 1
    )
    select (select count(*) from told), count(*) filter (where c.status = 'completed'),
      count(*) filter (where c.status = 'failed' and c.final)
    into ended, completed, lost from changed c;
    sequence := sequence + ended;
    update execution_runs r set completed_activity_count = r.completed_activity_count + completed,
      failed_activity_count = r.failed_activity_count + lost
    where r.id = p_run and completed + lost > 0;
  end if;

  if p_outputs is not null then
    insert into data_objects (id, workflow_version_id, producer_activity_id, logical_name, relative_path, declared)
    select distinct on (x."objectId") x."objectId", x."versionId", x."activityId", x.path, x.path, x.declared
    from jsonb_to_recordset(p_outputs) as x("objectId" text, "versionId" text, "activityId" text, path text,
      declared boolean)
    on conflict do nothing;
    insert into data_object_instances (id, data_object_id, execution_run_id, producer_activity_id, attempt,
      relative_path, path_bytes, size_bytes, checksum)
    select x.id, x."objectId", p_run, x."activityId", x.attempt, x.path, x."pathBytes", x."sizeBytes", x.checksum
    from jsonb_to_recordset(p_outputs) as x(id text, "objectId" text, "activityId" text, attempt integer,
      path text, "pathBytes" text, "sizeBytes" bigint, checksum text, uri text, "resourceId" text)
    on conflict do nothing;
    insert into data_locations (id, data_object_instance_id, resource_id, execution_run_id, uri, status,
      available_at)
    select 'location-' || md5(x.id || ' ' || coalesce(x."resourceId", '')), x.id, x."resourceId", p_run, x.uri,
      'available', clock_timestamp()
    from jsonb_to_recordset(p_outputs) as x(id text, uri text, "resourceId" text)
    on conflict do nothing;
  end if;

  if p_transfers is not null then
    insert into data_transfer_observations (id, execution_run_id, producer_activity_id, consumer_activity_id,
      source_resource_id, target_resource_id, bytes,
      network_bytes, files_transferred, strategy, route, started_at, finished_at, duration_seconds, cost)
    select x.id, p_run, x.producer, x.consumer, x.source, x.target, x.bytes, x."networkBytes",
      x."filesTransferred", x.strategy, x.route, x."startedAt", x."finishedAt",
      x."finishedAt" - x."startedAt", x.cost
    from jsonb_to_recordset(p_transfers) as x(id text, producer text, consumer text, source text, target text,
      bytes bigint, "networkBytes" bigint, "filesTransferred" bigint,
      strategy text, route jsonb, "startedAt" double precision, "finishedAt" double precision, cost double
        precision)
    on conflict do nothing;
  end if;

  if p_leftovers is not null then
    insert into site_leftovers (site, name, execution_run_id, last_error)
    select p_site, x.name, p_run, x.words from jsonb_to_recordset(p_leftovers) as x(name text, words text)
    on conflict do nothing;
  end if;

  if p_retries is not null then
    update task_executions t set latest = false from jsonb_to_recordset(p_retries) as x("after" text)
      where t.id = x."after";
    insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id, activity_id,
      external_id, planned_resource_id, runtime_id, site, connection_id, attempt, generation, user_attempts,
      status, core_ids, slot_id, order_on_resource, ready_at, not_before, walltime_extensions)
    select x.id, p_run, t.activity_position, t.plan_assignment_id, t.activity_id, t.external_id,
      t.planned_resource_id, t.runtime_id, t.site, t.connection_id, x.attempt, t.generation, x."userAttempts",
      'ready', t.core_ids, t.slot_id, t.order_on_resource, x."readyAt", x."notBefore", x."walltimeExtensions"
    from jsonb_to_recordset(p_retries) as x(id text, "after" text, attempt integer, "userAttempts" integer,
      "readyAt" double precision, "notBefore" double precision,
      "walltimeExtensions" integer)
    join task_executions t on t.id = x."after"
    on conflict do nothing;
  end if;

  if p_states is not null then
    update task_executions t set status = coalesce(x.status, t.status),
      ready_at = coalesce(x."readyAt", t.ready_at), queued_at = coalesce(x."queuedAt", t.queued_at),
      external_id_at_site = coalesce(x."externalId", t.external_id_at_site),
      metadata = case when x.reason is null then t.metadata
        when x.reason = '' then nullif(t.metadata - 'queueReason' - 'waitsFor' - 'silentSince' - 'silentFor', '{}')
        else coalesce(t.metadata, '{}') - 'waitsFor' - 'silentSince' - 'silentFor' ||
          jsonb_strip_nulls(jsonb_build_object('queueReason', x.reason, 'waitsFor', x."waitsFor",
            'silentSince', x."silentSince", 'silentFor', x."silentFor")) end
    from jsonb_to_recordset(p_states) as x(id text, status text, "atSite" boolean, "readyAt" double precision,
      "queuedAt" double precision, reason text, "waitsFor" text,
      "silentSince" double precision, "silentFor" double precision, "externalId" text)
    -- Given again after a lost answer, a state from before the intent must not undo the intent that
    -- the first call recorded.
    where t.id = x.id and t.status not in ('completed', 'failed', 'cancelled')
      and x."atSite" = (t.handle_name is not null);
  end if;

  if p_states is not null then
    delete from lane_leases l using jsonb_to_recordset(p_states) as x(id text, "freesCores" boolean)
    where x."freesCores" and l.task_execution_id = x.id and l.resource_id like '@host/%';
  end if;

  select r.cancel_requested_at is not null, r.paused, r.failed_activity_count, r.status
  into cancelled, paused, failed, run_status from execution_runs r where r.id = p_run;

  -- No effect may start once a cancel is visible, nor after the run has ended.
  acquired := '{}';
  holders := null;
  if p_intents is not null and not cancelled and not paused and run_status = 'running' then
    -- All lanes of a task or none; in one order everywhere, so that two runs never wait for each
    -- other.
    insert into lane_leases (resource_id, core_id, slot_id, task_execution_id, execution_run_id)
    select lane ->> 0, lane ->> 1, lane ->> 2, x.id, p_run
    from jsonb_to_recordset(p_intents) as x(id text, lanes jsonb) cross join jsonb_array_elements(x.lanes) as lane
    order by 1, 2, 3
    on conflict do nothing;

    select array_agg(x.id) into acquired
    from jsonb_to_recordset(p_intents) as x(id text, lanes jsonb)
    where not exists (
      select from jsonb_array_elements(x.lanes) as lane
      where not exists (select from lane_leases l where l.resource_id = lane ->> 0 and l.core_id = lane ->> 1
        and l.slot_id = lane ->> 2 and l.task_execution_id = x.id));
    acquired := coalesce(acquired, '{}');

    if cardinality(acquired) < jsonb_array_length(p_intents) then
      -- The last of a task's counts: a lane of the plan before a core of the host, which is told
      -- apart from one.
      select jsonb_object_agg(x.id, case when l.resource_id like '@host/%' then '' else l.task_execution_id end
        order by l.resource_id not like '@host/%', l.resource_id, l.core_id, l.slot_id) into holders
      from jsonb_to_recordset(p_intents) as x(id text, lanes jsonb) cross
        join jsonb_array_elements(x.lanes) as lane
      join lane_leases l on md5(l.resource_id) = md5(lane ->> 0) and l.core_id = lane ->> 1
        and md5(l.slot_id) = md5(lane ->> 2)
      where x.id <> all (acquired) and l.task_execution_id <> x.id;
      delete from lane_leases l using jsonb_to_recordset(p_intents) as x(id text)
        where l.task_execution_id = x.id and x.id <> all (acquired);
    end if;

    with given as (
      select * from jsonb_to_recordset(p_intents) as x(id text, name text, directory text, host text,
        "readyAt" double precision, "startedAt" double precision, ahead boolean)
      where x.id = any (acquired)
    ), changed as (
      update task_executions t set host_id = g.host, directory = g.directory, ahead = g.ahead,
        handle_name = case when not g.ahead then g.name end,
        handle_started_at = case when not g.ahead then g."startedAt" end,
        status = case when g.ahead then t.status else 'preparing' end,
        ready_at = case when g.ahead then t.ready_at else g."readyAt" end,
        queued_at = case when g.ahead then t.queued_at else coalesce(t.queued_at, g."startedAt") end,
        started_at = case when not g.ahead then g."startedAt" end,
        allocated_resource_id = case when not g.ahead then t.planned_resource_id end,
        -- What it waited for it has.
        metadata = case when g.ahead then t.metadata
          else nullif(t.metadata - 'queueReason' - 'waitsFor' - 'silentSince' - 'silentFor', '{}') end
      from given g
      where t.id = g.id and t.status in ('blocked', 'ready', 'queued') and t.handle_name is null and not t.ahead
      returning t.id, t.activity_id, t.attempt, t.planned_resource_id, g."startedAt", g.ahead
    ), told as (
      insert into operation_events (kind, operation_id, sequence, event_type, aggregate_type, aggregate_id,
        payload)
      select 'execution-run', p_run, sequence + row_number() over (order by c."startedAt", c.id),
        'activity.started',
        'activity_execution', c.id,
        jsonb_build_object('activityId', c.activity_id, 'attempt', c.attempt, 'resourceId', c.planned_resource_id)
      from changed c where not c.ahead
      returning 1
    )
    select count(*) into started from told;
    sequence := sequence + started;
  elsif p_intents is not null and paused and not cancelled and run_status = 'running' then
    -- Given again after a lost answer: a pause since the first call takes nothing back that this
    -- call recorded. Otherwise the task would stay on record as started, without its lanes.
    select coalesce(array_agg(t.id), '{}') into acquired
    from jsonb_to_recordset(p_intents) as x(id text, name text)
    join task_executions t on t.id = x.id
    where t.handle_name = x.name and t.status not in ('completed', 'failed', 'cancelled');
  end if;

  update execution_runs r set last_event_sequence = sequence where r.id = p_run
    and r.last_event_sequence <> sequence;
  if found then
    insert into event_feed_open as o (kind, operation_id) values ('execution-run', p_run)
    on conflict on constraint event_feed_open_pkey do update set since = o.since;
  end if;
end
$function$
;

CREATE OR REPLACE FUNCTION public.connection_is_monitored(p_type text, p_endpoint text, p_credential_ref text)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE
AS $function$
  select p_type = 'local' or (p_type in ('ssh', 'kubernetes') and p_endpoint <> '')
    or (p_type = 'cloud' and p_credential_ref <> '')
$function$
;

CREATE OR REPLACE FUNCTION public.machine_task_overheads(p_targets text[])
 RETURNS TABLE(target_id text, seconds double precision)
 LANGUAGE sql
 STABLE
AS $function$
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
$function$
;

CREATE OR REPLACE FUNCTION public.machine_uses(p_instances text[])
 RETURNS TABLE(instance_id text, run_id text, due_at timestamp with time zone, used_at timestamp with time zone)
 LANGUAGE sql
 STABLE
AS $function$
  select m.instance_id::text, m.execution_run_id::text,
    r.started_at + make_interval(secs => coalesce((
      select min((a ->> 'earliestStart')::double precision) from jsonb_array_elements(p.lifecycle_actions) a
      where a ->> 'capacityTargetId' = m.capacity_target_id::text and a ->> 'action' = 'provision'), 0)),
    m.ready_at
  from run_machines m join execution_runs r on r.id = m.execution_run_id
  join schedule_plans p on p.id = r.schedule_plan_id
  where m.instance_id = any(p_instances)
$function$
;

create view activity_lifecycle_events as
 SELECT (((t.id)::text || ':'::text) || p.phase) AS id,
    t.id AS task_execution_id,
    p.phase,
    t.status,
    p.started_at,
    p.finished_at,
    (p.finished_at - p.started_at) AS duration_seconds,
        CASE
            WHEN (t.measured_by = 'simulated'::text) THEN 'simulated'::text
            ELSE 'measured'::text
        END AS source,
        CASE
            WHEN (p.phase = 'runtime'::text) THEN t.failure_reason
            ELSE NULL::text
        END AS error
   FROM (task_executions t
     CROSS JOIN LATERAL ( VALUES ('queue'::text,t.ready_at,t.started_at), ('launch'::text,t.started_at,(t.started_at + t.overhead_seconds)), ('runtime'::text,(t.started_at + t.overhead_seconds),t.finished_at)) p(phase, started_at, finished_at))
  WHERE ((p.started_at IS NOT NULL) AND (p.finished_at IS NOT NULL));

create view console_runs as
 SELECT console_sessions.id,
    'interactive'::text AS kind,
    'interactive'::text AS mode,
        CASE console_sessions.status
            WHEN 'starting'::text THEN 'created'::text
            WHEN 'connected'::text THEN 'running'::text
            WHEN 'closed'::text THEN 'completed'::text
            ELSE 'failed'::text
        END AS status,
    ('terminal on '::text || (console_sessions.resource_id)::text) AS title,
    console_sessions.resource_id,
    console_sessions.runtime_id,
    console_sessions.connection_id,
    console_sessions.actor_id,
    NULL::text AS command,
    console_sessions.failure AS failure_reason,
    1 AS generation,
    console_sessions.close_requested_at AS cancel_requested_at,
    console_sessions.created_at,
    console_sessions.connected_at AS started_at,
    console_sessions.finished_at,
    COALESCE(console_sessions.connected_at, console_sessions.created_at) AS at
   FROM console_sessions
UNION ALL
 SELECT console_commands.id,
    'standalone'::text AS kind,
    'real'::text AS mode,
        CASE console_commands.status
            WHEN 'accepted'::text THEN 'created'::text
            ELSE console_commands.status
        END AS status,
    ('command on '::text || (console_commands.resource_id)::text) AS title,
    console_commands.resource_id,
    console_commands.runtime_id,
    console_commands.connection_id,
    console_commands.actor_id,
    "left"(COALESCE((console_commands.masked ->> 'command'::text), console_commands.command), 1000) AS command,
    console_commands.failure_reason,
    console_commands.generation,
    console_commands.cancel_requested_at,
    console_commands.created_at,
    console_commands.started_at,
    console_commands.finished_at,
    COALESCE(console_commands.started_at, console_commands.created_at) AS at
   FROM console_commands;

create view credential_users as
 SELECT c.credential_ref,
    c.id AS connection_id,
    c.environment_id,
    c.name,
    'connection'::text AS kind
   FROM connections c
  WHERE (c.credential_ref <> ''::text)
UNION ALL
 SELECT b.credential_ref,
    b.id AS connection_id,
    (NULL::text)::identifier AS environment_id,
    (b.id)::text AS name,
    'build'::text AS kind
   FROM artifact_builds b
  WHERE (b.credential_ref IS NOT NULL)
UNION ALL
 SELECT i.ssh_credential_ref AS credential_ref,
    i.id AS connection_id,
    i.environment_id,
    i.name,
    'instance'::text AS kind
   FROM cloud_instances i
  WHERE (i.ssh_credential_ref IS NOT NULL)
UNION ALL
 SELECT s.credential_reference AS credential_ref,
    s.id AS connection_id,
    v.environment_id,
    s.name,
    'storage'::text AS kind
   FROM (storages s
     JOIN environment_versions v ON (((v.id)::text = (s.environment_version_id)::text)))
  WHERE ((s.credential_reference <> ''::text) AND ((s.configuration -> 'signed'::text) = 'true'::jsonb))
UNION ALL
 SELECT (r.configuration ->> 'credentialRef'::text) AS credential_ref,
    r.id AS connection_id,
    v.environment_id,
    r.name,
    'runtime'::text AS kind
   FROM (runtimes r
     JOIN environment_versions v ON (((v.id)::text = (r.environment_version_id)::text)))
  WHERE ((r.driver = 'serverless'::text) AND ((r.configuration ->> 'credentialRef'::text) <> ''::text))
UNION ALL
 SELECT (r.configuration #>> '{slurmrestd,credentialRef}'::text[]) AS credential_ref,
    r.id AS connection_id,
    v.environment_id,
    r.name,
    'runtime'::text AS kind
   FROM (runtimes r
     JOIN environment_versions v ON (((v.id)::text = (r.environment_version_id)::text)))
  WHERE ((r.driver = 'slurm'::text) AND ((r.configuration #>> '{slurmrestd,credentialRef}'::text[]) <> ''::text))
UNION ALL
 SELECT DISTINCT (b.configuration ->> 'credentialRef'::text) AS credential_ref,
    r.id AS connection_id,
    v.environment_id,
    r.name,
    'runtime'::text AS kind
   FROM ((resource_runtime_bindings b
     JOIN runtimes r ON (((r.id)::text = (b.runtime_id)::text)))
     JOIN environment_versions v ON (((v.id)::text = (r.environment_version_id)::text)))
  WHERE ((r.driver = 'serverless'::text) AND ((b.configuration ->> 'credentialRef'::text) <> ''::text) AND ((b.configuration ->> 'credentialRef'::text) IS DISTINCT FROM (r.configuration ->> 'credentialRef'::text)))
UNION ALL
 SELECT DISTINCT (b.configuration #>> '{slurmrestd,credentialRef}'::text[]) AS credential_ref,
    r.id AS connection_id,
    v.environment_id,
    r.name,
    'runtime'::text AS kind
   FROM ((resource_runtime_bindings b
     JOIN runtimes r ON (((r.id)::text = (b.runtime_id)::text)))
     JOIN environment_versions v ON (((v.id)::text = (r.environment_version_id)::text)))
  WHERE ((r.driver = 'slurm'::text) AND ((b.configuration #>> '{slurmrestd,credentialRef}'::text[]) <> ''::text) AND ((b.configuration #>> '{slurmrestd,credentialRef}'::text[]) IS DISTINCT FROM (r.configuration #>> '{slurmrestd,credentialRef}'::text[])));

create view recorded_connection_checks as
 SELECT id,
    connection_id,
    status,
    message,
    latency_ms,
    checked_at,
    metadata
   FROM connection_checks k;

create view registered_activity_types as
 SELECT id
   FROM activity_types t;

create view run_events as
 SELECT operation_id AS execution_run_id,
    sequence,
    event_type,
    aggregate_type,
    aggregate_id,
    payload,
    occurred_at
   FROM operation_events
  WHERE (kind = 'execution-run'::text);

create view service_gauges as
 WITH open_runs AS (
         SELECT execution_runs.id,
            execution_runs.status,
            execution_runs.mode,
            execution_runs.paused,
            execution_runs.dispatched_at,
            execution_runs.created_at
           FROM execution_runs
          WHERE (execution_runs.status = 'running'::text)
        UNION ALL
         SELECT execution_runs.id,
            execution_runs.status,
            execution_runs.mode,
            execution_runs.paused,
            execution_runs.dispatched_at,
            execution_runs.created_at
           FROM execution_runs
          WHERE (execution_runs.status = 'created'::text)
        ), open_tasks AS (
         SELECT t.site,
            t.status,
            t.connection_id,
            t.metadata
           FROM (open_runs r
             JOIN task_executions t ON ((((t.execution_run_id)::text = (r.id)::text) AND t.latest)))
          WHERE (t.site IS NOT NULL)
        ), runs AS (
         SELECT s.state,
            m.mode,
            count(r.id) AS runs
           FROM ((unnest(ARRAY['created'::text, 'running'::text, 'paused'::text]) s(state)
             CROSS JOIN unnest(ARRAY['real'::text, 'simulation'::text]) m(mode))
             LEFT JOIN open_runs r ON (((r.mode = m.mode) AND (
                CASE
                    WHEN r.paused THEN 'paused'::text
                    ELSE r.status
                END = s.state))))
          GROUP BY s.state, m.mode
        ), tasks AS (
         SELECT open_tasks.site,
            open_tasks.status AS state,
            count(*) AS tasks
           FROM open_tasks
          GROUP BY open_tasks.site, open_tasks.status
        ), silences AS (
         SELECT open_tasks.site,
            to_timestamp(min(((open_tasks.metadata ->> 'silentSince'::text))::double precision)) AS since
           FROM open_tasks
          GROUP BY open_tasks.site
        ), leftovers AS (
         SELECT site_leftovers.site,
            count(*) AS names,
            min(site_leftovers.since) AS since
           FROM site_leftovers
          GROUP BY site_leftovers.site
        ), checked AS (
         SELECT c.id,
            (k.status = 'online'::text) AS up,
            (COALESCE(((k.metadata ->> 'waitsForLogin'::text))::boolean, false) OR (EXISTS ( SELECT
                   FROM open_tasks t
                  WHERE ((t.connection_id = (c.id)::text) AND ((t.metadata ->> 'waitsFor'::text) = 'login'::text))))) AS waits
           FROM (connections c
             CROSS JOIN LATERAL ( SELECT k_1.status,
                    k_1.metadata
                   FROM connection_checks k_1
                  WHERE ((k_1.connection_id)::text = (c.id)::text)
                  ORDER BY k_1.checked_at DESC, k_1.id DESC
                 LIMIT 1) k)
        ), backlog AS (
         SELECT 'execution-run'::text AS kind,
            count(*) AS records,
            min(open_runs.created_at) AS since
           FROM open_runs
          WHERE (open_runs.dispatched_at IS NULL)
        UNION ALL
         SELECT 'planning-session'::text,
            count(*) AS count,
            min(planning_sessions.created_at) AS min
           FROM planning_sessions
          WHERE ((planning_sessions.dispatched_at IS NULL) AND (planning_sessions.status = ANY (ARRAY['queued'::text, 'running'::text])))
        UNION ALL
         SELECT 'connection-discovery'::text,
            count(*) AS count,
            min(connection_discoveries.requested_at) AS min
           FROM connection_discoveries
          WHERE ((connection_discoveries.dispatched_at IS NULL) AND (connection_discoveries.status = ANY (ARRAY['queued'::text, 'running'::text])))
        UNION ALL
         SELECT 'console-command'::text,
            count(*) AS count,
            min(console_commands.created_at) AS min
           FROM console_commands
          WHERE ((console_commands.dispatched_at IS NULL) AND (console_commands.status = ANY (ARRAY['accepted'::text, 'running'::text])))
        UNION ALL
         SELECT 'storage-download'::text,
            count(*) AS count,
            min(storage_downloads.created_at) AS min
           FROM storage_downloads
          WHERE ((storage_downloads.dispatched_at IS NULL) AND (storage_downloads.status = ANY (ARRAY['queued'::text, 'streaming'::text])))
        UNION ALL
         SELECT 'storage-index'::text,
            count(*) AS count,
            min(storage_index_runs.created_at) AS min
           FROM storage_index_runs
          WHERE ((storage_index_runs.dispatched_at IS NULL) AND (storage_index_runs.status = ANY (ARRAY['queued'::text, 'running'::text])))
        UNION ALL
         SELECT 'cloud-operation'::text,
            count(*) AS count,
            min(cloud_operations.created_at) AS min
           FROM cloud_operations
          WHERE ((cloud_operations.dispatched_at IS NULL) AND (cloud_operations.status = ANY (ARRAY['queued'::text, 'running'::text])))
        UNION ALL
         SELECT 'build-run'::text,
            count(*) AS count,
            min(build_runs.created_at) AS min
           FROM build_runs
          WHERE ((build_runs.dispatched_at IS NULL) AND (build_runs.status = ANY (ARRAY['queued'::text, 'running'::text])))
        UNION ALL
         SELECT 'connection-monitor'::text,
            count(*) AS count,
            min(connections.created_at) AS min
           FROM connections
          WHERE ((connections.monitored_since IS NULL) AND connection_is_monitored(connections.type, connections.endpoint, connections.credential_ref))
        ), gauges AS (
         SELECT 'orrery_runs'::text AS name,
            jsonb_build_object('state', runs.state, 'mode', runs.mode) AS labels,
            (runs.runs)::double precision AS value
           FROM runs
        UNION ALL
         SELECT 'orrery_tasks'::text,
            jsonb_build_object('site', tasks.site, 'state', tasks.state) AS jsonb_build_object,
            tasks.tasks
           FROM tasks
        UNION ALL
         SELECT 'orrery_site_silent_seconds'::text,
            jsonb_build_object('site', silences.site) AS jsonb_build_object,
            COALESCE(GREATEST((0)::numeric, EXTRACT(epoch FROM (clock_timestamp() - silences.since))), (0)::numeric) AS "coalesce"
           FROM silences
        UNION ALL
         SELECT 'orrery_site_leftovers'::text,
            jsonb_build_object('site', leftovers.site) AS jsonb_build_object,
            leftovers.names
           FROM leftovers
        UNION ALL
         SELECT 'orrery_site_leftovers_oldest_seconds'::text,
            jsonb_build_object('site', leftovers.site) AS jsonb_build_object,
            GREATEST((0)::numeric, EXTRACT(epoch FROM (clock_timestamp() - leftovers.since))) AS "greatest"
           FROM leftovers
        UNION ALL
         SELECT 'orrery_connection_up'::text,
            jsonb_build_object('connection', checked.id) AS jsonb_build_object,
            (checked.up)::integer AS up
           FROM checked
        UNION ALL
         SELECT 'orrery_connection_waits_for_login'::text,
            jsonb_build_object('connection', checked.id) AS jsonb_build_object,
            (checked.waits)::integer AS waits
           FROM checked
        UNION ALL
         SELECT 'orrery_dispatch_backlog'::text,
            jsonb_build_object('kind', backlog.kind) AS jsonb_build_object,
            backlog.records
           FROM backlog
        UNION ALL
         SELECT 'orrery_dispatch_oldest_seconds'::text,
            jsonb_build_object('kind', backlog.kind) AS jsonb_build_object,
            COALESCE(GREATEST((0)::numeric, EXTRACT(epoch FROM (clock_timestamp() - backlog.since))), (0)::numeric) AS "coalesce"
           FROM backlog
        )
 SELECT name,
    labels,
    value
   FROM gauges;

create view storage_index_status as
 SELECT DISTINCT ON (storage_id) storage_id,
        CASE
            WHEN (status = 'queued'::text) THEN 'running'::text
            ELSE status
        END AS status,
    indexed_entries,
    error AS message,
    ( SELECT max(d.finished_at) AS max
           FROM storage_index_runs d
          WHERE (((d.storage_id)::text = (r.storage_id)::text) AND (d.status = 'completed'::text))) AS last_indexed_at
   FROM storage_index_runs r
  ORDER BY storage_id, created_at DESC, id DESC;
