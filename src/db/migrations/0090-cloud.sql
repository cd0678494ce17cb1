-- Cloud capacity: targets that are resources of plans, machines that are made for them, and the operations that make, use and end those.

-- Marks what this service has made at a provider; another service has another one.
create table if not exists cloud_service (
  one boolean constraint cloud_service_pkey primary key default true constraint cloud_service_one check (one),
  reference uuid not null default gen_random_uuid()
);
insert into cloud_service default values on conflict do nothing;

create table if not exists cloud_capacity_targets (
  id identifier constraint cloud_capacity_targets_pkey primary key,
  environment_id identifier not null
    constraint cloud_capacity_targets_environment references environments on delete cascade,
  name text not null,
  provider text not null constraint cloud_capacity_targets_provider check (provider in ('gcp', 'aws', 'azure')),
  provider_machine_type text not null,
  image_reference text not null,
  region text not null default '',
  fixed_zone text,
  zone_policy text not null default 'any-compatible',
  architecture text not null default 'amd64',
  vcpu double precision not null,
  memory_mib bigint not null,
  provisioning_mode text not null default 'standard'
    constraint cloud_capacity_targets_mode check (provisioning_mode in ('standard', 'spot')),
  maximum_instances bigint not null default 1,
  lifecycle_policy text not null default 'destroy-after-execution',
  configuration jsonb,
  machine_configurations jsonb not null default '[]',
  enabled boolean not null default true,
  created_at timestamptz not null default now(),
  constraint cloud_capacity_targets_positive check (vcpu > 0 and memory_mib > 0 and maximum_instances > 0)
);
-- A target that was deleted stays for its instances; its name is free.
create unique index if not exists cloud_capacity_targets_name on cloud_capacity_targets (environment_id, name) where enabled;

create table if not exists cloud_instances (
  id identifier constraint cloud_instances_pkey primary key,
  capacity_target_id identifier not null
    constraint cloud_instances_target references cloud_capacity_targets on delete cascade,
  environment_id identifier not null constraint cloud_instances_environment references environments on delete cascade,
  connection_id text not null,
  provider text not null,
  -- Sent with the request to make the machine, and found again by it.
  reference uuid not null constraint cloud_instances_reference unique default gen_random_uuid(),
  -- When the provider was first asked for the machine; before that there is none.
  asked_at timestamptz,
  provider_id text,
  name text not null,
  status text not null constraint cloud_instances_status
    check (status in ('provisioning', 'configuring', 'ready', 'stopped', 'destroying', 'destroyed', 'failed')),
  -- The provider has no machine of it, and will have none.
  machine_gone boolean not null default false,
  region text not null,
  zone text,
  public_address text,
  private_address text,
  ssh_username text not null,
  ssh_credential_ref text,
  ssh_public_key text,
  -- As in known_hosts, without the name.
  host_key text,
  disk jsonb,
  failure_reason text,
  created_at timestamptz not null default now(),
  ready_at timestamptz,
  destroyed_at timestamptz,
  billing_started_at timestamptz,
  billing_finished_at timestamptz,
  compute_started_at timestamptz,
  accumulated_compute_seconds double precision not null default 0,
  compute_price_per_second double precision not null default 0,
  disk_price_per_second double precision not null default 0
);
create index if not exists cloud_instances_of_target on cloud_instances (capacity_target_id, created_at desc, id desc);
create index if not exists cloud_instances_of_environment on cloud_instances (environment_id, created_at desc, id desc);
create unique index if not exists cloud_instances_name on cloud_instances (capacity_target_id, name)
  where status <> 'destroyed' and not machine_gone;

create table if not exists cloud_operations (
  id identifier constraint cloud_operations_pkey primary key,
  generation integer not null default 1,
  kind text not null constraint cloud_operations_kind
    check (kind in ('provision', 'configure', 'validate', 'start', 'stop', 'destroy', 'attach-volume', 'detach-volume')),
  status text not null default 'queued'
    constraint cloud_operations_status check (status in ('queued', 'running', 'completed', 'failed', 'cancelled')),
  environment_id identifier not null constraint cloud_operations_environment references environments on delete cascade,
  capacity_target_id identifier
    constraint cloud_operations_target references cloud_capacity_targets on delete cascade,
  instance_id identifier constraint cloud_operations_instance references cloud_instances on delete cascade,
  execution_run_id text,
  activity_id text,
  phase text not null default 'queued',
  request jsonb not null default '{}',
  failure_reason text,
  created_at timestamptz not null default now(),
  started_at timestamptz,
  finished_at timestamptz,
  dispatched_at timestamptz,
  cancel_requested_at timestamptz,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0
);
create index if not exists cloud_operations_newest on cloud_operations (created_at desc, id desc);
create index if not exists cloud_operations_open on cloud_operations (created_at, id) where status in ('queued', 'running');
create unique index if not exists cloud_operations_one_open on cloud_operations (instance_id) where status in ('queued', 'running');
create index if not exists cloud_operations_of_instance on cloud_operations (instance_id, created_at desc);
create index if not exists cloud_operations_of_target on cloud_operations (capacity_target_id);
create index if not exists cloud_operations_of_environment on cloud_operations (environment_id);

-- What a provider offers over a connection, as it was read last.
create table if not exists cloud_catalogs (
  environment_id identifier not null constraint cloud_catalogs_environment references environments on delete cascade,
  connection_id text not null,
  document jsonb,
  discovered_at timestamptz,
  refreshing_since timestamptz,
  constraint cloud_catalogs_pkey primary key (environment_id, connection_id)
);
