SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'SQL_ASCII';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE DOMAIN public.identifier AS text COLLATE pg_catalog."C"
	CONSTRAINT identifier_check CHECK (((octet_length(VALUE) >= 1) AND (octet_length(VALUE) <= 1100)));
CREATE FUNCTION public.commit_site(p_run text, p_site text, p_epoch bigint, p_ends jsonb, p_retries jsonb, p_states jsonb, p_intents jsonb, p_outputs jsonb, p_transfers jsonb, p_leftovers jsonb, p_taken_back jsonb, p_starts jsonb, OUT acquired text[], OUT holders jsonb, OUT cancelled boolean, OUT paused boolean, OUT failed bigint, OUT run_status text) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
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
  -- The run's row is the lock under which its events are numbered, so that a reader who saw n has seen all before n.
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
      update task_executions t set status = 'preparing', ready_at = x."readyAt", queued_at = coalesce(t.queued_at, x."startedAt"), started_at = x."startedAt",
        handle_name = x.name, handle_started_at = x."startedAt", allocated_resource_id = t.planned_resource_id, ahead = false
      from jsonb_to_recordset(coalesce(p_starts, '[]')) as x(id text, name text, "readyAt" double precision, "startedAt" double precision, "order" integer)
      where t.id = x.id and t.ahead
      returning t.id, t.activity_id, t.attempt, t.planned_resource_id, x."order"
    ), given as (
      select * from jsonb_to_recordset(coalesce(p_ends, '[]')) as x(
        id text, status text, "readyAt" double precision, "startedAt" double precision, "finishedAt" double precision, "runtimeSeconds" double precision,
        "queueSeconds" double precision, "overheadSeconds" double precision, "transferSeconds" double precision, "transferBytes" bigint, cost double precision,
        "cpuSeconds" double precision, "peakMemoryBytes" bigint, "measuredBy" text, "exitCode" integer, "failureClass" text, "failureReason" text,
        manifest jsonb, "siteQueueSeconds" double precision, place jsonb, "externalId" text, final boolean, "order" integer, "startOrder" integer, name text, heir text)
    ), changed as (
      update task_executions t set
        status = g.status, ready_at = coalesce(g."readyAt", t.ready_at), data_ready_at = coalesce(g."startedAt", t.data_ready_at), started_at = coalesce(g."startedAt", t.started_at),
        queued_at = coalesce(t.queued_at, g."startedAt"), handle_name = coalesce(t.handle_name, g.name), handle_started_at = coalesce(t.handle_started_at, g."startedAt"),
        ahead = false, allocated_resource_id = t.planned_resource_id,
        finished_at = g."finishedAt", runtime_seconds = g."runtimeSeconds", queue_seconds = g."queueSeconds", overhead_seconds = g."overheadSeconds",
        transfer_seconds = g."transferSeconds", transfer_bytes = g."transferBytes", cost = g.cost, cpu_seconds = g."cpuSeconds",
        peak_memory_bytes = g."peakMemoryBytes", measured_by = g."measuredBy", exit_code = g."exitCode", failure_class = g."failureClass", failure_reason = g."failureReason", artifacts = g.manifest,
        site_queue_seconds = g."siteQueueSeconds", external_id_at_site = coalesce(g."externalId", t.external_id_at_site),
        metadata = case when t.metadata is null and g.place is null then null
          else nullif(coalesce(t.metadata, '{}') - 'queueReason' - 'silentSince' || coalesce(g.place, '{}'), '{}') end
      from given g where t.id = g.id and t.status not in ('completed', 'failed', 'cancelled')
      returning t.id, t.activity_id, t.attempt, t.planned_resource_id, t.status, g."exitCode", g."failureReason", g.final, g."order", g."startOrder", g.heir
    ), freed as (
      delete from lane_leases l using changed c where l.task_execution_id = c.id and c.heir is null
    ), passed_on as (
      update lane_leases l set task_execution_id = c.heir from changed c where l.task_execution_id = c.id and c.heir is not null
    ), happened as (
      select 'activity.started' as event, b.id, b."order", jsonb_build_object('activityId', b.activity_id, 'attempt', b.attempt, 'resourceId', b.planned_resource_id) as payload from begun b
      union all
      select 'activity.started', c.id, c."startOrder", jsonb_build_object('activityId', c.activity_id, 'attempt', c.attempt, 'resourceId', c.planned_resource_id)
      from changed c where c."startOrder" is not null
      union all
      select 'activity.' || c.status, c.id, c."order",
        jsonb_strip_nulls(jsonb_build_object('activityId', c.activity_id, 'attempt', c.attempt, 'exitCode', c."exitCode", 'failureReason', c."failureReason"))
      from changed c
    ), told as (
      insert into run_events (execution_run_id, sequence, event_type, aggregate_type, aggregate_id, payload)
      select p_run, sequence + row_number() over (order by h."order"), h.event, 'activity_execution', h.id, h.payload from happened h
      returning 1
    )
    select (select count(*) from told), count(*) filter (where c.status = 'completed'), count(*) filter (where c.status = 'failed' and c.final)
    into ended, completed, lost from changed c;
    sequence := sequence + ended;
    update execution_runs r set completed_activity_count = r.completed_activity_count + completed, failed_activity_count = r.failed_activity_count + lost
    where r.id = p_run and completed + lost > 0;
  end if;
  if p_outputs is not null then
    insert into data_objects (id, workflow_version_id, producer_activity_id, logical_name, relative_path, declared)
    select distinct on (x."objectId") x."objectId", x."versionId", x."activityId", x.path, x.path, x.declared
    from jsonb_to_recordset(p_outputs) as x("objectId" text, "versionId" text, "activityId" text, path text, declared boolean)
    on conflict do nothing;
    insert into data_object_instances (id, data_object_id, execution_run_id, producer_activity_id, attempt, relative_path, size_bytes, checksum)
    select x.id, x."objectId", p_run, x."activityId", x.attempt, x.path, x."sizeBytes", x.checksum
    from jsonb_to_recordset(p_outputs) as x(id text, "objectId" text, "activityId" text, attempt integer, path text, "sizeBytes" bigint, checksum text, uri text, "resourceId" text)
    on conflict do nothing;
    insert into data_locations (id, data_object_instance_id, resource_id, execution_run_id, uri, status, available_at)
    select x.id, x.id, x."resourceId", p_run, x.uri, 'available', clock_timestamp()
    from jsonb_to_recordset(p_outputs) as x(id text, uri text, "resourceId" text)
    on conflict do nothing;
  end if;
  if p_transfers is not null then
    insert into data_transfer_observations (id, execution_run_id, producer_activity_id, consumer_activity_id, source_resource_id, target_resource_id, bytes,
      network_bytes, files_transferred, strategy, route, started_at, finished_at, duration_seconds, cost)
    select x.id, p_run, x.producer, x.consumer, x.source, x.target, x.bytes, x."networkBytes", x."filesTransferred", x.strategy, x.route, x."startedAt", x."finishedAt",
      x."finishedAt" - x."startedAt", x.cost
    from jsonb_to_recordset(p_transfers) as x(id text, producer text, consumer text, source text, target text, bytes bigint, "networkBytes" bigint, "filesTransferred" bigint,
      strategy text, route jsonb, "startedAt" double precision, "finishedAt" double precision, cost double precision)
    on conflict do nothing;
  end if;
  if p_leftovers is not null then
    insert into site_leftovers (site, name, execution_run_id, last_error)
    select p_site, x.name, p_run, x.words from jsonb_to_recordset(p_leftovers) as x(name text, words text)
    on conflict do nothing;
  end if;
  if p_retries is not null then
    update task_executions t set latest = false from jsonb_to_recordset(p_retries) as x("after" text) where t.id = x."after";
    insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id, activity_id, external_id, planned_resource_id, runtime_id, site, connection_id, attempt, user_attempts,
      status, core_ids, slot_id, order_on_resource, ready_at, not_before, walltime_extensions)
    select x.id, p_run, t.activity_position, t.plan_assignment_id, t.activity_id, t.external_id, t.planned_resource_id, t.runtime_id, t.site, t.connection_id, x.attempt, x."userAttempts",
      'ready', t.core_ids, t.slot_id, t.order_on_resource, x."readyAt", x."notBefore", x."walltimeExtensions"
    from jsonb_to_recordset(p_retries) as x(id text, "after" text, attempt integer, "userAttempts" integer, "readyAt" double precision, "notBefore" double precision,
      "walltimeExtensions" integer)
    join task_executions t on t.id = x."after"
    on conflict do nothing;
  end if;
  if p_states is not null then
    update task_executions t set status = coalesce(x.status, t.status), ready_at = coalesce(x."readyAt", t.ready_at), queued_at = coalesce(x."queuedAt", t.queued_at),
      external_id_at_site = coalesce(x."externalId", t.external_id_at_site),
      metadata = case when x.reason is null then t.metadata when x.reason = '' then nullif(t.metadata - 'queueReason' - 'silentSince', '{}')
        else coalesce(t.metadata, '{}') - 'silentSince' || jsonb_strip_nulls(jsonb_build_object('queueReason', x.reason, 'silentSince', x."silentSince")) end
    from jsonb_to_recordset(p_states) as x(id text, status text, "atSite" boolean, "readyAt" double precision, "queuedAt" double precision, reason text,
      "silentSince" double precision, "externalId" text)
    -- Given again after a lost answer, a state of before the intent must not undo the intent that the first time recorded.
    where t.id = x.id and t.status not in ('completed', 'failed', 'cancelled') and x."atSite" = (t.handle_name is not null);
  end if;
  select r.cancel_requested_at is not null, r.paused, r.failed_activity_count, r.status into cancelled, paused, failed, run_status from execution_runs r where r.id = p_run;
  -- No effect may start once a cancel is visible, nor after the run has ended.
  acquired := '{}';
  holders := null;
  if p_intents is not null and not cancelled and not paused and run_status = 'running' then
    -- All lanes of a task or none; in one order everywhere, so that two runs never wait for each other.
    insert into lane_leases (resource_id, core_id, slot_id, task_execution_id, execution_run_id)
    select lane ->> 0, lane ->> 1, lane ->> 2, x.id, p_run
    from jsonb_to_recordset(p_intents) as x(id text, lanes jsonb) cross join jsonb_array_elements(x.lanes) as lane
    order by 1, 2, 3
    on conflict do nothing;
    select array_agg(x.id) into acquired
    from jsonb_to_recordset(p_intents) as x(id text, lanes jsonb)
    where not exists (
      select from jsonb_array_elements(x.lanes) as lane
      where not exists (select from lane_leases l where l.resource_id = lane ->> 0 and l.core_id = lane ->> 1 and l.slot_id = lane ->> 2 and l.task_execution_id = x.id));
    acquired := coalesce(acquired, '{}');
    if cardinality(acquired) < jsonb_array_length(p_intents) then
      select jsonb_object_agg(x.id, l.task_execution_id) into holders
      from jsonb_to_recordset(p_intents) as x(id text, lanes jsonb) cross join jsonb_array_elements(x.lanes) as lane
      join lane_leases l on l.resource_id = lane ->> 0 and l.core_id = lane ->> 1 and l.slot_id = lane ->> 2
      where x.id <> all (acquired) and l.task_execution_id <> x.id;
      delete from lane_leases l using jsonb_to_recordset(p_intents) as x(id text) where l.task_execution_id = x.id and x.id <> all (acquired);
    end if;
    with given as (
      select * from jsonb_to_recordset(p_intents) as x(id text, name text, directory text, host text, "readyAt" double precision, "startedAt" double precision, ahead boolean)
      where x.id = any (acquired)
    ), changed as (
      update task_executions t set host_id = g.host, directory = g.directory, ahead = g.ahead,
        handle_name = case when not g.ahead then g.name end, handle_started_at = case when not g.ahead then g."startedAt" end,
        status = case when g.ahead then t.status else 'preparing' end, ready_at = case when g.ahead then t.ready_at else g."readyAt" end,
        queued_at = case when g.ahead then t.queued_at else coalesce(t.queued_at, g."startedAt") end, started_at = case when not g.ahead then g."startedAt" end,
        allocated_resource_id = case when not g.ahead then t.planned_resource_id end
      from given g where t.id = g.id and t.status in ('blocked', 'ready', 'queued') and t.handle_name is null and not t.ahead
      returning t.id, t.activity_id, t.attempt, t.planned_resource_id, g."startedAt", g.ahead
    ), told as (
      insert into run_events (execution_run_id, sequence, event_type, aggregate_type, aggregate_id, payload)
      select p_run, sequence + row_number() over (order by c."startedAt", c.id), 'activity.started', 'activity_execution', c.id,
        jsonb_build_object('activityId', c.activity_id, 'attempt', c.attempt, 'resourceId', c.planned_resource_id)
      from changed c where not c.ahead
      returning 1
    )
    select count(*) into started from told;
    sequence := sequence + started;
  end if;
  update execution_runs r set last_event_sequence = sequence where r.id = p_run and r.last_event_sequence <> sequence;
end
$$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.activity_definitions (
    workflow_version_id public.identifier NOT NULL,
    "position" integer NOT NULL,
    id public.identifier NOT NULL,
    activity_type_id public.identifier NOT NULL,
    external_id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    kind text DEFAULT 'task'::text NOT NULL,
    capabilities jsonb NOT NULL,
    command_spec jsonb NOT NULL,
    resource_requirements jsonb NOT NULL,
    service_spec jsonb,
    simulation_spec jsonb,
    policy jsonb NOT NULL,
    priority double precision DEFAULT 0 NOT NULL,
    metadata jsonb
);
CREATE TABLE public.activity_dependencies (
    workflow_version_id public.identifier NOT NULL,
    activity_position integer NOT NULL,
    depends_on_position integer NOT NULL,
    dependency_type text DEFAULT 'control'::text NOT NULL,
    CONSTRAINT activity_dependencies_not_self CHECK ((activity_position <> depends_on_position))
);
CREATE TABLE public.task_executions (
    id public.identifier NOT NULL,
    execution_run_id public.identifier NOT NULL,
    activity_position integer NOT NULL,
    plan_assignment_id text NOT NULL,
    activity_id text NOT NULL COLLATE pg_catalog."C",
    external_id text NOT NULL COLLATE pg_catalog."C",
    planned_resource_id text NOT NULL,
    allocated_resource_id text,
    runtime_id text,
    attempt integer DEFAULT 1 NOT NULL,
    user_attempts integer DEFAULT 1 NOT NULL,
    latest boolean DEFAULT true NOT NULL,
    status text DEFAULT 'blocked'::text NOT NULL,
    core_ids text[] DEFAULT '{}'::text[] NOT NULL,
    slot_id text DEFAULT ''::text NOT NULL,
    order_on_resource bigint DEFAULT 0 NOT NULL,
    ready_at double precision,
    data_ready_at double precision,
    queued_at double precision,
    started_at double precision,
    finished_at double precision,
    runtime_seconds double precision DEFAULT 0 NOT NULL,
    queue_seconds double precision DEFAULT 0 NOT NULL,
    transfer_seconds double precision DEFAULT 0 NOT NULL,
    transfer_bytes bigint DEFAULT 0 NOT NULL,
    interference_seconds double precision DEFAULT 0 NOT NULL,
    overhead_seconds double precision DEFAULT 0 NOT NULL,
    cost double precision DEFAULT 0 NOT NULL,
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
    walltime_extensions integer DEFAULT 0 NOT NULL,
    ahead boolean DEFAULT false NOT NULL,
    site text,
    connection_id text,
    CONSTRAINT task_executions_status CHECK ((status = ANY (ARRAY['blocked'::text, 'ready'::text, 'queued'::text, 'preparing'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
)
WITH (fillfactor='40');
CREATE VIEW public.activity_lifecycle_events AS
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
   FROM (public.task_executions t
     CROSS JOIN LATERAL ( VALUES ('queue'::text,t.ready_at,t.started_at), ('launch'::text,t.started_at,(t.started_at + t.overhead_seconds)), ('runtime'::text,(t.started_at + t.overhead_seconds),t.finished_at)) p(phase, started_at, finished_at))
  WHERE ((p.started_at IS NOT NULL) AND (p.finished_at IS NOT NULL));
CREATE TABLE public.activity_resource_profiles (
    id public.identifier NOT NULL,
    environment_version_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    activity_type_id public.identifier NOT NULL,
    resource_id public.identifier NOT NULL,
    runtime_seconds double precision DEFAULT 0 NOT NULL,
    runtime_stddev_seconds double precision DEFAULT 0 NOT NULL,
    cpu_utilization double precision DEFAULT 0 NOT NULL,
    peak_memory_bytes bigint DEFAULT 0 NOT NULL,
    disk_read_bytes bigint DEFAULT 0 NOT NULL,
    disk_write_bytes bigint DEFAULT 0 NOT NULL,
    energy_joules double precision DEFAULT 0 NOT NULL,
    source text DEFAULT 'configured'::text NOT NULL,
    sample_size bigint DEFAULT 0 NOT NULL,
    model_version text DEFAULT ''::text NOT NULL,
    metadata jsonb,
    CONSTRAINT activity_resource_profiles_not_negative CHECK ((runtime_seconds >= (0)::double precision))
);
CREATE TABLE public.activity_types (
    id public.identifier NOT NULL,
    workflow_id public.identifier,
    "position" integer DEFAULT 0 NOT NULL,
    name text NOT NULL,
    application text DEFAULT ''::text NOT NULL,
    default_image text DEFAULT ''::text NOT NULL,
    cpu_intensity double precision DEFAULT 0 NOT NULL,
    memory_intensity double precision DEFAULT 0 NOT NULL,
    io_intensity double precision DEFAULT 0 NOT NULL,
    network_intensity double precision DEFAULT 0 NOT NULL,
    metadata jsonb
);
CREATE TABLE public.audit_events (
    sequence bigint NOT NULL,
    id public.identifier NOT NULL,
    event_type text NOT NULL,
    actor_id text,
    actor_type text,
    environment_id text,
    resource_id text,
    connection_id text,
    runtime_id text,
    session_id text,
    execution_id text,
    external_id text,
    outcome text NOT NULL,
    summary text NOT NULL,
    metadata jsonb,
    occurred_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.audit_events ALTER COLUMN sequence ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.audit_events_sequence_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.connection_checks (
    id public.identifier NOT NULL,
    connection_id public.identifier NOT NULL,
    status text NOT NULL,
    message text,
    latency_ms double precision DEFAULT 0 NOT NULL,
    checked_at timestamp with time zone DEFAULT now() NOT NULL,
    metadata jsonb
);
CREATE TABLE public.connection_discoveries (
    connection_id public.identifier NOT NULL,
    number integer NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    requested_at timestamp with time zone DEFAULT now() NOT NULL,
    dispatched_at timestamp with time zone,
    finished_at timestamp with time zone,
    problem text,
    transient boolean,
    snapshot_ids text[] DEFAULT '{}'::text[] NOT NULL,
    CONSTRAINT connection_discoveries_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text])))
);
CREATE TABLE public.connection_host_keys (
    connection_id public.identifier NOT NULL,
    host text NOT NULL,
    key_type text NOT NULL,
    fingerprint text NOT NULL,
    line text NOT NULL,
    recorded_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.connections (
    id public.identifier NOT NULL,
    environment_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    name text NOT NULL,
    type text NOT NULL,
    endpoint text DEFAULT ''::text NOT NULL,
    username text DEFAULT ''::text NOT NULL,
    credential_ref text DEFAULT ''::text NOT NULL,
    configuration jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    monitored_since timestamp with time zone
);
CREATE TABLE public.credentials (
    kind text NOT NULL COLLATE pg_catalog."C",
    id public.identifier NOT NULL,
    version integer NOT NULL,
    shown jsonb NOT NULL,
    key_id text NOT NULL,
    data_key bytea NOT NULL,
    content bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    changed_at timestamp with time zone DEFAULT now() NOT NULL,
    last_used_at timestamp with time zone,
    CONSTRAINT credentials_kind CHECK ((kind = ANY (ARRAY['ssh-key'::text, 'kubernetes-token'::text, 'cloud-credential'::text])))
);
CREATE TABLE public.data_locations (
    id public.identifier NOT NULL,
    data_object_instance_id public.identifier NOT NULL,
    storage_resource_id text,
    resource_id text,
    execution_run_id text NOT NULL,
    uri text NOT NULL,
    status text NOT NULL,
    available_at timestamp with time zone,
    verified_at timestamp with time zone,
    metadata jsonb,
    CONSTRAINT data_locations_status CHECK ((status = ANY (ARRAY['ephemeral'::text, 'staging'::text, 'available'::text, 'failed'::text, 'deleted'::text])))
);
CREATE TABLE public.data_object_instances (
    id public.identifier NOT NULL,
    data_object_id text NOT NULL,
    execution_run_id public.identifier NOT NULL,
    producer_activity_id text NOT NULL,
    attempt integer DEFAULT 1 NOT NULL,
    relative_path text NOT NULL,
    size_bytes bigint NOT NULL,
    checksum text,
    media_type text,
    discovered boolean DEFAULT true NOT NULL,
    metadata jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.data_objects (
    id public.identifier NOT NULL,
    workflow_version_id public.identifier NOT NULL,
    producer_activity_id text NOT NULL,
    logical_name text NOT NULL,
    relative_path text NOT NULL,
    declared boolean DEFAULT false NOT NULL
);
CREATE TABLE public.data_transfer_observations (
    id public.identifier NOT NULL,
    execution_run_id public.identifier NOT NULL,
    data_object_id text,
    data_object_instance_id text,
    producer_activity_id text NOT NULL,
    consumer_activity_id text NOT NULL,
    source_resource_id text NOT NULL,
    target_resource_id text NOT NULL,
    bytes bigint NOT NULL,
    status text DEFAULT 'completed'::text NOT NULL,
    strategy text,
    route jsonb,
    files_transferred bigint,
    network_bytes bigint,
    started_at double precision NOT NULL,
    finished_at double precision NOT NULL,
    duration_seconds double precision NOT NULL,
    cost double precision DEFAULT 0 NOT NULL
);
CREATE TABLE public.environment_versions (
    id public.identifier NOT NULL,
    environment_id public.identifier NOT NULL,
    version bigint NOT NULL,
    status text DEFAULT ''::text NOT NULL,
    network_model text DEFAULT ''::text NOT NULL,
    interference_model text DEFAULT ''::text NOT NULL,
    cost_model text DEFAULT ''::text NOT NULL,
    configuration_hash text DEFAULT ''::text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    published_at timestamp with time zone
);
CREATE TABLE public.environments (
    id public.identifier NOT NULL,
    name text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    status text DEFAULT 'defined'::text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.execution_runs (
    id public.identifier NOT NULL,
    schedule_plan_id public.identifier NOT NULL,
    content_version_id public.identifier NOT NULL,
    mode text NOT NULL,
    seed bigint DEFAULT 0 NOT NULL,
    status text DEFAULT 'created'::text NOT NULL,
    generation integer DEFAULT 1 NOT NULL,
    kind text DEFAULT 'workflow'::text NOT NULL,
    title text,
    actor_id text,
    environment_snapshot_id text,
    host_id text DEFAULT ''::text NOT NULL,
    network_model text,
    simulator text,
    on_failure text DEFAULT 'stop'::text NOT NULL,
    activity_count bigint NOT NULL,
    completed_activity_count bigint DEFAULT 0 NOT NULL,
    failed_activity_count bigint DEFAULT 0 NOT NULL,
    makespan_seconds double precision DEFAULT 0 NOT NULL,
    cost double precision DEFAULT 0 NOT NULL,
    compute_seconds double precision DEFAULT 0 NOT NULL,
    transfer_seconds double precision DEFAULT 0 NOT NULL,
    queue_seconds double precision DEFAULT 0 NOT NULL,
    interference_seconds double precision DEFAULT 0 NOT NULL,
    overhead_seconds double precision DEFAULT 0 NOT NULL,
    transferred_bytes bigint DEFAULT 0 NOT NULL,
    defaulted_durations bigint DEFAULT 0 NOT NULL,
    failure_reason text,
    paused boolean DEFAULT false NOT NULL,
    cancel_requested_at timestamp with time zone,
    last_event_sequence bigint DEFAULT 0 NOT NULL,
    dispatched_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    effect_key text DEFAULT (gen_random_uuid())::text NOT NULL,
    CONSTRAINT execution_runs_mode CHECK ((mode = ANY (ARRAY['real'::text, 'simulation'::text, 'interactive'::text]))),
    CONSTRAINT execution_runs_on_failure CHECK ((on_failure = ANY (ARRAY['stop'::text, 'finish-independent'::text]))),
    CONSTRAINT execution_runs_status CHECK ((status = ANY (ARRAY['created'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
);
CREATE TABLE public.execution_scope_environments (
    execution_scope_id public.identifier NOT NULL,
    environment_version_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL
);
CREATE TABLE public.execution_scopes (
    id public.identifier NOT NULL,
    name text NOT NULL,
    network_topology_id text DEFAULT ''::text NOT NULL,
    metadata jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.idempotency_keys (
    key text NOT NULL,
    fingerprint text NOT NULL,
    status integer,
    headers jsonb,
    body text,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.lane_leases (
    resource_id text NOT NULL COLLATE pg_catalog."C",
    core_id text NOT NULL COLLATE pg_catalog."C",
    slot_id text NOT NULL COLLATE pg_catalog."C",
    task_execution_id public.identifier NOT NULL,
    execution_run_id public.identifier NOT NULL
);
CREATE TABLE public.network_links (
    id public.identifier NOT NULL,
    topology_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    source_resource_id public.identifier NOT NULL,
    target_resource_id public.identifier NOT NULL,
    bandwidth_bits_per_second double precision NOT NULL,
    latency_seconds double precision DEFAULT 0 NOT NULL,
    price_per_byte double precision DEFAULT 0 NOT NULL,
    bidirectional boolean DEFAULT false NOT NULL,
    sharing_policy text DEFAULT ''::text NOT NULL,
    max_concurrent_transfers bigint DEFAULT 0 NOT NULL,
    metadata jsonb,
    CONSTRAINT network_links_bandwidth CHECK ((bandwidth_bits_per_second > (0)::double precision)),
    CONSTRAINT network_links_not_negative CHECK (((latency_seconds >= (0)::double precision) AND (price_per_byte >= (0)::double precision) AND (max_concurrent_transfers >= 0))),
    CONSTRAINT network_links_not_self CHECK (((source_resource_id)::text <> (target_resource_id)::text))
);
CREATE TABLE public.network_topologies (
    id public.identifier NOT NULL,
    name text NOT NULL,
    version bigint NOT NULL,
    execution_scope_id public.identifier NOT NULL,
    metadata jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT network_topologies_version CHECK ((version >= 1))
);
CREATE TABLE public.planning_algorithm_runs (
    id public.identifier NOT NULL,
    planning_session_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    algorithm text NOT NULL,
    objective text NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    progress double precision DEFAULT 0 NOT NULL,
    candidate_count bigint DEFAULT 0 NOT NULL,
    configuration jsonb,
    estimate jsonb,
    attempts integer DEFAULT 0 NOT NULL,
    failure_reason text,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    CONSTRAINT planning_algorithm_runs_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
);
CREATE TABLE public.planning_candidates (
    id public.identifier NOT NULL,
    planning_session_id public.identifier NOT NULL,
    algorithm_run_id public.identifier NOT NULL,
    algorithm text NOT NULL,
    objective text NOT NULL,
    rank bigint,
    pareto_optimal boolean DEFAULT false NOT NULL,
    dominated boolean DEFAULT false NOT NULL,
    feasible boolean NOT NULL,
    predicted_makespan_seconds double precision NOT NULL,
    predicted_cost double precision NOT NULL,
    plan jsonb NOT NULL,
    fingerprint text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.planning_sessions (
    id public.identifier NOT NULL,
    workflow_version_id public.identifier NOT NULL,
    execution_scope_id public.identifier NOT NULL,
    network_topology_id text DEFAULT ''::text NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    algorithms jsonb NOT NULL,
    progress double precision DEFAULT 0 NOT NULL,
    candidate_count bigint DEFAULT 0 NOT NULL,
    selected_candidate_id text,
    selected_plan_id public.identifier,
    deadline_seconds double precision DEFAULT 0 NOT NULL,
    budget double precision DEFAULT 0 NOT NULL,
    configuration jsonb,
    defaulted_durations bigint DEFAULT 0 NOT NULL,
    failure_reason text,
    dispatched_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    CONSTRAINT planning_sessions_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
);
CREATE TABLE public.resource_relations (
    environment_version_id public.identifier NOT NULL,
    source_resource_id public.identifier NOT NULL,
    target_resource_id public.identifier NOT NULL,
    relation_type text NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    metadata jsonb,
    CONSTRAINT resource_relations_not_self CHECK (((source_resource_id)::text <> (target_resource_id)::text)),
    CONSTRAINT resource_relations_type CHECK ((relation_type = ANY (ARRAY['contains'::text, 'member_of'::text, 'accessible_via'::text])))
);
CREATE TABLE public.resource_runtime_bindings (
    resource_id public.identifier NOT NULL,
    runtime_id public.identifier NOT NULL,
    environment_version_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    enabled boolean DEFAULT false NOT NULL,
    configuration jsonb
);
CREATE TABLE public.resource_snapshots (
    id public.identifier NOT NULL,
    resource_id public.identifier NOT NULL,
    captured_at timestamp with time zone DEFAULT now() NOT NULL,
    available boolean NOT NULL,
    cpu_used double precision DEFAULT 0 NOT NULL,
    memory_used_bytes bigint DEFAULT 0 NOT NULL,
    network_in_bps double precision DEFAULT 0 NOT NULL,
    network_out_bps double precision DEFAULT 0 NOT NULL,
    disk_read_bps double precision DEFAULT 0 NOT NULL,
    disk_write_bps double precision DEFAULT 0 NOT NULL,
    queue_length bigint DEFAULT 0 NOT NULL,
    metadata jsonb
);
CREATE TABLE public.resources (
    id public.identifier NOT NULL,
    environment_version_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    type text DEFAULT ''::text NOT NULL,
    name text NOT NULL,
    provider_id text NOT NULL,
    execution_target text DEFAULT 'batch'::text NOT NULL,
    parent_resource_id public.identifier,
    tier text DEFAULT ''::text NOT NULL,
    region text DEFAULT ''::text NOT NULL,
    zone text DEFAULT ''::text NOT NULL,
    architecture text DEFAULT ''::text NOT NULL,
    cpu_cores bigint DEFAULT 0 NOT NULL,
    cpu_capacity double precision DEFAULT 0 NOT NULL,
    memory_bytes bigint DEFAULT 0 NOT NULL,
    storage_bytes bigint DEFAULT 0 NOT NULL,
    compute_speedup double precision DEFAULT 0 NOT NULL,
    price_per_second double precision DEFAULT 0 NOT NULL,
    boot_overhead_seconds double precision DEFAULT 0 NOT NULL,
    container_overhead_seconds double precision DEFAULT 0 NOT NULL,
    schedulable boolean DEFAULT false NOT NULL,
    metadata jsonb,
    CONSTRAINT resources_execution_target CHECK ((execution_target = ANY (ARRAY['batch'::text, 'direct'::text, 'provisioned'::text]))),
    CONSTRAINT resources_not_negative CHECK (((cpu_cores >= 0) AND (cpu_capacity >= (0)::double precision) AND (memory_bytes >= 0) AND (storage_bytes >= 0) AND (compute_speedup >= (0)::double precision) AND (price_per_second >= (0)::double precision) AND (boot_overhead_seconds >= (0)::double precision) AND (container_overhead_seconds >= (0)::double precision)))
);
CREATE TABLE public.run_events (
    execution_run_id public.identifier NOT NULL,
    sequence bigint NOT NULL,
    event_type text NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    payload jsonb,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE public.run_snapshots (
    execution_run_id public.identifier NOT NULL,
    resources jsonb NOT NULL,
    runtimes jsonb NOT NULL,
    runtime_bindings jsonb NOT NULL,
    execution_scope jsonb NOT NULL,
    network_topology jsonb,
    activity_profiles jsonb NOT NULL,
    documents_hash text NOT NULL,
    storage_mounts jsonb DEFAULT '[]'::jsonb NOT NULL
);
CREATE TABLE public.runtimes (
    id public.identifier NOT NULL,
    environment_version_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    name text NOT NULL,
    driver text NOT NULL,
    mode text NOT NULL,
    role text DEFAULT ''::text NOT NULL,
    configuration jsonb,
    capabilities jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT runtimes_driver CHECK ((driver = ANY (ARRAY['slurm'::text, 'kubernetes'::text, 'ssh'::text, 'local'::text, 'serverless'::text, 'simgrid'::text, 'cloud'::text]))),
    CONSTRAINT runtimes_mode CHECK ((mode = ANY (ARRAY['execution'::text, 'simulation'::text])))
);
CREATE TABLE public.schedule_plan_assignments (
    schedule_plan_id public.identifier NOT NULL,
    activity_position integer NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    activity_id text NOT NULL COLLATE pg_catalog."C",
    resource_id public.identifier NOT NULL,
    core_id text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    slot_id text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    order_on_resource bigint NOT NULL,
    priority double precision DEFAULT 0 NOT NULL,
    predicted_ready_at double precision DEFAULT 0 NOT NULL,
    predicted_start_at double precision DEFAULT 0 NOT NULL,
    predicted_finish_at double precision DEFAULT 0 NOT NULL,
    predicted_runtime_seconds double precision DEFAULT 0 NOT NULL,
    predicted_transfer_seconds double precision DEFAULT 0 NOT NULL,
    predicted_cost double precision DEFAULT 0 NOT NULL,
    metadata jsonb
);
CREATE TABLE public.schedule_plans (
    id public.identifier NOT NULL,
    workflow_version_id public.identifier NOT NULL,
    content_version_id public.identifier NOT NULL,
    execution_scope_id public.identifier NOT NULL,
    network_topology_id text DEFAULT ''::text NOT NULL,
    source text NOT NULL,
    algorithm text DEFAULT ''::text NOT NULL,
    algorithm_version text DEFAULT ''::text NOT NULL,
    objective text DEFAULT ''::text NOT NULL,
    status text DEFAULT 'valid'::text NOT NULL,
    deadline_seconds double precision DEFAULT 0 NOT NULL,
    budget double precision DEFAULT 0 NOT NULL,
    predicted_makespan_seconds double precision DEFAULT 0 NOT NULL,
    predicted_cost double precision DEFAULT 0 NOT NULL,
    predicted_feasible boolean DEFAULT false NOT NULL,
    assignment_count bigint NOT NULL,
    lifecycle_actions jsonb,
    embedded jsonb,
    metadata jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT schedule_plans_source CHECK ((source = ANY (ARRAY['plugin'::text, 'manual'::text, 'imported'::text])))
);
CREATE TABLE public.schema_migrations (
    number integer NOT NULL,
    name text NOT NULL,
    hash text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.site_leases (
    execution_run_id public.identifier NOT NULL,
    site text NOT NULL,
    epoch bigint DEFAULT 0 NOT NULL,
    holder text DEFAULT ''::text NOT NULL,
    renewed_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.site_leftovers (
    site text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    execution_run_id text NOT NULL,
    since timestamp with time zone DEFAULT now() NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    next_try_at timestamp with time zone DEFAULT now() NOT NULL,
    last_error text NOT NULL
);
CREATE TABLE public.storage_runtime_bindings (
    environment_version_id public.identifier NOT NULL,
    storage_id public.identifier NOT NULL,
    runtime_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    container_path text DEFAULT '/akoflow/data'::text NOT NULL,
    is_default boolean DEFAULT false NOT NULL,
    read_only boolean DEFAULT false NOT NULL,
    host_path text DEFAULT ''::text NOT NULL,
    configuration jsonb
);
CREATE TABLE public.storages (
    id public.identifier NOT NULL,
    environment_version_id public.identifier NOT NULL,
    "position" integer DEFAULT 0 NOT NULL,
    name text NOT NULL,
    type text NOT NULL,
    endpoint text DEFAULT ''::text NOT NULL,
    capacity_bytes bigint DEFAULT 0 NOT NULL,
    shared boolean DEFAULT false NOT NULL,
    read_only boolean DEFAULT false NOT NULL,
    credential_reference text DEFAULT ''::text NOT NULL,
    configuration jsonb,
    metadata jsonb,
    CONSTRAINT storages_capacity CHECK ((capacity_bytes >= 0)),
    CONSTRAINT storages_type CHECK ((type = ANY (ARRAY['local'::text, 'pvc'::text, 'nfs'::text, 's3'::text, 'lustre'::text, 'gcs'::text, 's3-compatible'::text, 'ssh-filesystem'::text])))
);
CREATE TABLE public.system_instance (
    singleton boolean DEFAULT true NOT NULL,
    id public.identifier NOT NULL,
    name text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    organization text DEFAULT ''::text NOT NULL,
    location text DEFAULT ''::text NOT NULL,
    transfer_buffer_bytes bigint DEFAULT 8388608 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT system_instance_single CHECK (singleton)
);
CREATE TABLE public.user_preferences (
    client_id public.identifier NOT NULL,
    theme text NOT NULL,
    animations_enabled boolean NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.workflow_data_dependencies (
    workflow_version_id public.identifier NOT NULL,
    producer_position integer NOT NULL,
    consumer_position integer NOT NULL,
    logical_name text NOT NULL COLLATE pg_catalog."C",
    size_bytes bigint NOT NULL,
    CONSTRAINT workflow_data_dependencies_size CHECK ((size_bytes >= 0))
);
CREATE TABLE public.workflow_definitions (
    id public.identifier NOT NULL,
    external_id text NOT NULL,
    name text NOT NULL,
    namespace text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.workflow_versions (
    id public.identifier NOT NULL,
    workflow_id public.identifier NOT NULL,
    version bigint NOT NULL,
    definition_hash text NOT NULL,
    status text DEFAULT 'published'::text NOT NULL,
    embedded boolean DEFAULT false NOT NULL,
    activity_count bigint NOT NULL,
    dependency_count bigint NOT NULL,
    raw_definition jsonb,
    metadata jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
INSERT INTO public.activity_definitions VALUES ('hello-v1', 0, 'hello-greet', 'hello-activity', 'greet', 'greet', 'task', '["real"]', '{"image": "busybox:1.36", "arguments": ["-c", "echo \"hello from $(hostname)\" | tee greeting.txt"], "entrypoint": "sh", "executable": {"source": {"type": "oci", "reference": "busybox:1.36"}, "delivery": {"strategy": "auto"}}}', '{"cpu": 1, "memoryBytes": 16777216, "storageBytes": 0}', NULL, NULL, '{"maxAttempts": 1, "timeoutSeconds": 3600, "retryDelaySeconds": 0}', 0, '{"expectedOutputs": ["greeting.txt"]}');
INSERT INTO public.activity_definitions VALUES ('hello-v1', 1, 'hello-shout', 'hello-activity', 'shout', 'shout', 'task', '["real"]', '{"image": "busybox:1.36", "arguments": ["-c", "tr a-z A-Z < \"$AKOFLOW_INPUT_GREETING_TXT\" | tee shout.txt"], "entrypoint": "sh", "executable": {"source": {"type": "oci", "reference": "busybox:1.36"}, "delivery": {"strategy": "auto"}}}', '{"cpu": 1, "memoryBytes": 16777216, "storageBytes": 0}', NULL, NULL, '{"maxAttempts": 1, "timeoutSeconds": 3600, "retryDelaySeconds": 0}', 2, '{"expectedOutputs": ["shout.txt"]}');
INSERT INTO public.activity_definitions VALUES ('steps-v1', 0, 'steps-one', 'steps-activity', 'one', 'one', 'task', '["real"]', '{"image": "busybox:1.36", "arguments": ["-c", "sleep 2; echo \"step one\""], "entrypoint": "sh", "executable": {"source": {"type": "oci", "reference": "busybox:1.36"}, "delivery": {"strategy": "auto"}}}', '{"cpu": 1, "memoryBytes": 16777216, "storageBytes": 0}', NULL, NULL, '{"maxAttempts": 1, "timeoutSeconds": 3600, "retryDelaySeconds": 0}', 0, NULL);
INSERT INTO public.activity_definitions VALUES ('steps-v1', 1, 'steps-two', 'steps-activity', 'two', 'two', 'task', '["real"]', '{"image": "busybox:1.36", "arguments": ["-c", "sleep 2; echo \"step two\""], "entrypoint": "sh", "executable": {"source": {"type": "oci", "reference": "busybox:1.36"}, "delivery": {"strategy": "auto"}}}', '{"cpu": 1, "memoryBytes": 16777216, "storageBytes": 0}', NULL, NULL, '{"maxAttempts": 1, "timeoutSeconds": 3600, "retryDelaySeconds": 0}', 2, NULL);
INSERT INTO public.activity_definitions VALUES ('steps-v1', 2, 'steps-three', 'steps-activity', 'three', 'three', 'task', '["real"]', '{"image": "busybox:1.36", "arguments": ["-c", "sleep 2; echo \"step three\""], "entrypoint": "sh", "executable": {"source": {"type": "oci", "reference": "busybox:1.36"}, "delivery": {"strategy": "auto"}}}', '{"cpu": 1, "memoryBytes": 16777216, "storageBytes": 0}', NULL, NULL, '{"maxAttempts": 1, "timeoutSeconds": 3600, "retryDelaySeconds": 0}', 3, NULL);
INSERT INTO public.activity_definitions VALUES ('steps-v1', 3, 'steps-gate', 'steps-activity', 'gate', 'gate', 'task', '["real"]', '{"image": "busybox:1.36", "arguments": ["-c", "is_open() { folder=$PWD; while [ -n \"$folder\" ]; do [ ! -e \"$folder/gate\" ] || return 0; folder=${folder%/*}; done; return 1; }\nuntil is_open; do sleep 0.2; done\necho open | tee gate.txt"], "entrypoint": "sh", "executable": {"source": {"type": "oci", "reference": "busybox:1.36"}, "delivery": {"strategy": "auto"}}}', '{"cpu": 1, "memoryBytes": 16777216, "storageBytes": 0}', NULL, NULL, '{"maxAttempts": 1, "timeoutSeconds": 3600, "retryDelaySeconds": 0}', 4, '{"expectedOutputs": ["gate.txt"]}');
INSERT INTO public.activity_dependencies VALUES ('hello-v1', 1, 0, 'control');
INSERT INTO public.activity_dependencies VALUES ('steps-v1', 1, 0, 'control');
INSERT INTO public.activity_dependencies VALUES ('steps-v1', 2, 1, 'control');
INSERT INTO public.activity_dependencies VALUES ('steps-v1', 3, 2, 'control');
INSERT INTO public.activity_types VALUES ('hello-activity', 'hello', 0, 'hello activity', '', '', 0, 0, 0, 0, NULL);
INSERT INTO public.activity_types VALUES ('steps-activity', 'steps', 0, 'steps activity', '', '', 0, 0, 0, 0, NULL);
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (1, 'audit-02eaf2a0-6bdb-4f79-a2ac-4f0de00716b8', 'workflow.created', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'workflow "hello" created', '{"path": "/workflow-definitions/", "method": "POST", "status": 201, "requestId": "4a826b3b-675a-4621-a78e-d46221ffd4e4"}', '2026-11-23 13:06:23.891056+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (2, 'audit-b8db4967-7acc-42ad-97da-476f5c6b7824', 'environment.created', 'api-token', 'token', 'hello', NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'environment hello created', '{"path": "/environments/", "method": "POST", "status": 201, "requestId": "5a97ea3f-8b98-4aed-a21b-48fd7c2de1c7"}', '2026-11-23 13:06:25.095206+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (3, 'audit-1b0fd7be-c1ec-4e2c-9b7d-641d250fdb02', 'execution-scope.created', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'execution scope hello-scope created', '{"path": "/execution-scopes/", "method": "POST", "status": 201, "requestId": "a152c95f-aee7-4ea0-b7de-a5eb2d4c616f"}', '2026-11-23 13:06:26.115973+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (4, 'audit-27c805b8-f5d1-4a3e-a1c0-df61bbe4ad5c', 'schedule-plan.imported', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'schedule plan hello-plan imported', '{"path": "/schedule-plans/import/", "method": "POST", "status": 201, "requestId": "d6a47152-abd6-4994-aac8-f91e21309291"}', '2026-11-23 13:06:27.314503+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (5, 'audit-86b1d26d-4435-44ae-a0eb-14f472442056', 'execution.run.accepted', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, 'before', NULL, 'succeeded', 'run before accepted', '{"path": "/execution-runs/", "method": "POST", "status": 202, "requestId": "471d05c2-27be-4474-ac26-4bf8ab2b3115"}', '2026-11-23 13:06:27.893549+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (6, 'audit-72bd5a50-c87d-45cb-a462-f59e5e86ba37', 'workflow.created', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'workflow "steps" created', '{"path": "/workflow-definitions/", "method": "POST", "status": 201, "requestId": "9911b663-327e-40c3-9ca9-cfbcc0e4f43c"}', '2026-11-23 13:06:35.497364+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (7, 'audit-96df731b-b043-4e18-ac60-a037ff63b3e4', 'environment.created', 'api-token', 'token', 'steps-api', NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'environment steps-api created', '{"path": "/environments/", "method": "POST", "status": 201, "requestId": "5cdc54ab-4e49-4abb-b7b9-e653fbf984cd"}', '2026-11-23 13:06:35.805347+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (8, 'audit-1bfeeb6d-3bed-4d01-9c87-0f46075bc27d', 'execution-scope.created', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'execution scope steps-api created', '{"path": "/execution-scopes/", "method": "POST", "status": 201, "requestId": "97f6cc55-deba-4af7-b379-a79ea318df7d"}', '2026-11-23 13:06:36.114806+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (9, 'audit-28efd7fa-ee3e-478e-82c4-2bd86193b174', 'schedule-plan.imported', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'schedule plan steps-api imported', '{"path": "/schedule-plans/import/", "method": "POST", "status": 201, "requestId": "0dc94098-a121-4bc5-8284-7fc7a58d96bb"}', '2026-11-23 13:06:36.308141+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (10, 'audit-23e25b30-82e8-44ed-a8d5-d9b3edd282af', 'environment.created', 'api-token', 'token', 'steps-worker-1', NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'environment steps-worker-1 created', '{"path": "/environments/", "method": "POST", "status": 201, "requestId": "4af6a7c7-d809-4dcb-925e-4d91994c88a2"}', '2026-11-23 13:06:36.408853+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (11, 'audit-685076a8-565a-48e8-ae0b-f6857090385c', 'execution-scope.created', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'execution scope steps-worker-1 created', '{"path": "/execution-scopes/", "method": "POST", "status": 201, "requestId": "a5a62889-d607-4a4d-9572-5ee99290b57d"}', '2026-11-23 13:06:36.511304+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (12, 'audit-b20ec068-57c9-4aa2-b301-047b521d3b7e', 'schedule-plan.imported', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'schedule plan steps-worker-1 imported', '{"path": "/schedule-plans/import/", "method": "POST", "status": 201, "requestId": "b845eded-2a9f-4b3f-bc45-60dc198f4498"}', '2026-11-23 13:06:36.631242+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (13, 'audit-c66be5f8-3c83-4345-99b6-7215454b304a', 'environment.created', 'api-token', 'token', 'steps-worker-2', NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'environment steps-worker-2 created', '{"path": "/environments/", "method": "POST", "status": 201, "requestId": "a6b6fa93-aacd-4131-8e48-9035fd357095"}', '2026-11-23 13:06:36.76908+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (14, 'audit-db15ec6f-40a5-4779-a6a2-95c8c24ed381', 'execution-scope.created', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'execution scope steps-worker-2 created', '{"path": "/execution-scopes/", "method": "POST", "status": 201, "requestId": "cf30f5ee-93f3-471c-81c4-02325b459af0"}', '2026-11-23 13:06:36.936013+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (15, 'audit-a93553a6-255f-4d60-b1ac-acd700c267a1', 'schedule-plan.imported', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'succeeded', 'schedule plan steps-worker-2 imported', '{"path": "/schedule-plans/import/", "method": "POST", "status": 201, "requestId": "2d5061ce-6388-43eb-a916-d8a149bf2a44"}', '2026-11-23 13:06:37.348853+00');
INSERT INTO public.audit_events OVERRIDING SYSTEM VALUE VALUES (16, 'audit-60d1ae28-3a56-4c0a-ba05-61fee7dfdab0', 'execution.run.accepted', 'api-token', 'token', NULL, NULL, NULL, NULL, NULL, 'open', NULL, 'succeeded', 'run open accepted', '{"path": "/execution-runs/", "method": "POST", "status": 202, "requestId": "265a9723-4cbc-4a2c-bf3e-53b22b3289cd"}', '2026-11-23 13:06:38.53228+00');
INSERT INTO public.data_locations VALUES ('file-a0ec23ca903bec1d339a61e09a7a3be47f39af93', 'file-a0ec23ca903bec1d339a61e09a7a3be47f39af93', NULL, 'hello-machine', 'before', 'file://api/var/lib/orrery/work/7b24a4ebcc8416830519d614/0-greet/1/greeting.txt', 'available', '2026-11-23 13:06:32.68932+00', NULL, NULL);
INSERT INTO public.data_locations VALUES ('file-95106131a0b3f90f68bab6ec6bc0f40bdd24c9e8', 'file-95106131a0b3f90f68bab6ec6bc0f40bdd24c9e8', NULL, 'hello-machine', 'before', 'file://api/var/lib/orrery/work/7b24a4ebcc8416830519d614/1-shout/1/shout.txt', 'available', '2026-11-23 13:06:33.197192+00', NULL, NULL);
INSERT INTO public.data_object_instances VALUES ('file-a0ec23ca903bec1d339a61e09a7a3be47f39af93', 'data-4a5ab3afc606647262e98f031a5ccbea34e98b50', 'before', 'greet', 1, 'greeting.txt', 24, 'sha256:273df4a5ff0a6cb366ced3edd9345a93783b3ca11627511b9d7c7dd4065d3313', NULL, true, NULL, '2026-11-23 13:06:32.659489+00');
INSERT INTO public.data_object_instances VALUES ('file-95106131a0b3f90f68bab6ec6bc0f40bdd24c9e8', 'data-07dffa1a9d3506e9e2e4c4c6c7094ef350d5ec7f', 'before', 'shout', 1, 'shout.txt', 24, 'sha256:65b37a82683ab7dc562a69e809c85caca56e05acc39dc9a43b0a968d18258ad7', NULL, true, NULL, '2026-11-23 13:06:33.191229+00');
INSERT INTO public.data_objects VALUES ('data-4a5ab3afc606647262e98f031a5ccbea34e98b50', 'hello-v1', 'greet', 'greeting.txt', 'greeting.txt', true);
INSERT INTO public.data_objects VALUES ('data-07dffa1a9d3506e9e2e4c4c6c7094ef350d5ec7f', 'hello-v1', 'shout', 'shout.txt', 'shout.txt', true);
INSERT INTO public.environment_versions VALUES ('hello-v1', 'hello', 1, 'published', '', '', '', '', '2026-11-23 13:06:24.510557+00', '2026-11-23 13:06:24.510557+00');
INSERT INTO public.environment_versions VALUES ('steps-api-v1', 'steps-api', 1, 'published', '', '', '', '', '2026-11-23 13:06:35.559812+00', '2026-11-23 13:06:35.559812+00');
INSERT INTO public.environment_versions VALUES ('steps-worker-1-v1', 'steps-worker-1', 1, 'published', '', '', '', '', '2026-11-23 13:06:36.384507+00', '2026-11-23 13:06:36.384507+00');
INSERT INTO public.environment_versions VALUES ('steps-worker-2-v1', 'steps-worker-2', 1, 'published', '', '', '', '', '2026-11-23 13:06:36.646896+00', '2026-11-23 13:06:36.646896+00');
INSERT INTO public.environments VALUES ('hello', 'This machine', '', 'defined', '2026-11-23 13:06:24.510557+00');
INSERT INTO public.environments VALUES ('steps-api', 'api', '', 'defined', '2026-11-23 13:06:35.559812+00');
INSERT INTO public.environments VALUES ('steps-worker-1', 'worker-1', '', 'defined', '2026-11-23 13:06:36.384507+00');
INSERT INTO public.environments VALUES ('steps-worker-2', 'worker-2', '', 'defined', '2026-11-23 13:06:36.646896+00');
INSERT INTO public.execution_runs VALUES ('before', 'hello-plan', 'hello-v1', 'real', 0, 'completed', 1, 'workflow', NULL, 'api-token', NULL, 'api', NULL, NULL, 'stop', 2, 2, 0, 1.328387975692749, 0, 0.6682376861572266, 0, 0.5202691555023193, 0, 0.396881103515625, 0, 0, NULL, false, NULL, 6, '2026-11-23 13:06:27.884436+00', '2026-11-23 13:06:30.813566+00', '2026-11-23 13:06:34.34095+00', '2026-11-23 13:06:27.48248+00', 'dc505703-8738-4166-9b1b-0610a3aaeb84');
INSERT INTO public.execution_runs VALUES ('open', 'steps-api', 'steps-v1', 'real', 0, 'running', 1, 'workflow', NULL, 'api-token', NULL, 'api', NULL, NULL, 'stop', 4, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, false, NULL, 8, '2026-11-23 13:06:38.327821+00', '2026-11-23 13:06:48.446983+00', NULL, '2026-11-23 13:06:37.425694+00', '68eacb82-409f-4065-b9ac-9600b99c8f98');
INSERT INTO public.execution_scope_environments VALUES ('hello-scope', 'hello-v1', 1);
INSERT INTO public.execution_scope_environments VALUES ('steps-api', 'steps-api-v1', 1);
INSERT INTO public.execution_scope_environments VALUES ('steps-worker-1', 'steps-worker-1-v1', 1);
INSERT INTO public.execution_scope_environments VALUES ('steps-worker-2', 'steps-worker-2-v1', 1);
INSERT INTO public.execution_scopes VALUES ('hello-scope', 'This machine', '', NULL, '2026-11-23 13:06:25.153667+00');
INSERT INTO public.execution_scopes VALUES ('steps-api', 'api', '', NULL, '2026-11-23 13:06:35.855373+00');
INSERT INTO public.execution_scopes VALUES ('steps-worker-1', 'worker-1', '', NULL, '2026-11-23 13:06:36.454384+00');
INSERT INTO public.execution_scopes VALUES ('steps-worker-2', 'worker-2', '', NULL, '2026-11-23 13:06:36.853767+00');
INSERT INTO public.lane_leases VALUES ('@host/api', 'core-1', '', 'open:gate', 'open');
INSERT INTO public.lane_leases VALUES ('steps-api', 'core-0', '', 'open:gate', 'open');
INSERT INTO public.resource_runtime_bindings VALUES ('hello-machine', 'hello-local', 'hello-v1', 0, true, NULL);
INSERT INTO public.resource_runtime_bindings VALUES ('hello-machine', 'hello-simulated', 'hello-v1', 1, true, NULL);
INSERT INTO public.resource_runtime_bindings VALUES ('steps-api', 'steps-api', 'steps-api-v1', 0, true, NULL);
INSERT INTO public.resource_runtime_bindings VALUES ('steps-worker-1', 'steps-worker-1', 'steps-worker-1-v1', 0, true, NULL);
INSERT INTO public.resource_runtime_bindings VALUES ('steps-worker-2', 'steps-worker-2', 'steps-worker-2-v1', 0, true, NULL);
INSERT INTO public.resources VALUES ('hello-machine', 'hello-v1', 0, 'local_machine', 'This machine', 'hello-machine', 'direct', NULL, '', '', '', '', 1, 1, 1073741824, 0, 1, 0, 0, 0, true, NULL);
INSERT INTO public.resources VALUES ('steps-api', 'steps-api-v1', 0, 'local_machine', 'api', 'steps-api', 'direct', NULL, '', '', '', '', 1, 1, 1073741824, 0, 1, 0, 0, 0, true, NULL);
INSERT INTO public.resources VALUES ('steps-worker-1', 'steps-worker-1-v1', 0, 'local_machine', 'worker-1', 'steps-worker-1', 'direct', NULL, '', '', '', '', 1, 1, 1073741824, 0, 1, 0, 0, 0, true, NULL);
INSERT INTO public.resources VALUES ('steps-worker-2', 'steps-worker-2-v1', 0, 'local_machine', 'worker-2', 'steps-worker-2', 'direct', NULL, '', '', '', '', 1, 1, 1073741824, 0, 1, 0, 0, 0, true, NULL);
INSERT INTO public.run_events VALUES ('before', 1, 'execution.run.started', 'execution_run', 'before', '{"mode": "real", "generation": 1}', '2026-11-23 13:06:30.815139+00');
INSERT INTO public.run_events VALUES ('before', 2, 'activity.started', 'activity_execution', 'before:greet', '{"attempt": 1, "activityId": "greet", "resourceId": "hello-machine"}', '2026-11-23 13:06:31.793384+00');
INSERT INTO public.run_events VALUES ('before', 3, 'activity.completed', 'activity_execution', 'before:greet', '{"attempt": 1, "exitCode": 0, "activityId": "greet"}', '2026-11-23 13:06:32.686962+00');
INSERT INTO public.run_events VALUES ('before', 4, 'activity.started', 'activity_execution', 'before:shout', '{"attempt": 1, "activityId": "shout", "resourceId": "hello-machine"}', '2026-11-23 13:06:32.690504+00');
INSERT INTO public.run_events VALUES ('before', 5, 'activity.completed', 'activity_execution', 'before:shout', '{"attempt": 1, "exitCode": 0, "activityId": "shout"}', '2026-11-23 13:06:33.196411+00');
INSERT INTO public.run_events VALUES ('before', 6, 'execution.run.completed', 'execution_run', 'before', '{"total": 2, "completed": 2}', '2026-11-23 13:06:34.636002+00');
INSERT INTO public.run_events VALUES ('open', 1, 'execution.run.started', 'execution_run', 'open', '{"mode": "real", "generation": 1}', '2026-11-23 13:06:48.447685+00');
INSERT INTO public.run_events VALUES ('open', 2, 'activity.started', 'activity_execution', 'open:one', '{"attempt": 1, "activityId": "one", "resourceId": "steps-api"}', '2026-11-23 13:06:48.523134+00');
INSERT INTO public.run_events VALUES ('open', 3, 'activity.completed', 'activity_execution', 'open:one', '{"attempt": 1, "exitCode": 0, "activityId": "one"}', '2026-11-23 13:06:52.126125+00');
INSERT INTO public.run_events VALUES ('open', 4, 'activity.started', 'activity_execution', 'open:two', '{"attempt": 1, "activityId": "two", "resourceId": "steps-api"}', '2026-11-23 13:06:52.409027+00');
INSERT INTO public.run_events VALUES ('open', 5, 'activity.completed', 'activity_execution', 'open:two', '{"attempt": 1, "exitCode": 0, "activityId": "two"}', '2026-11-23 13:06:55.784207+00');
INSERT INTO public.run_events VALUES ('open', 6, 'activity.started', 'activity_execution', 'open:three', '{"attempt": 1, "activityId": "three", "resourceId": "steps-api"}', '2026-11-23 13:06:55.862115+00');
INSERT INTO public.run_events VALUES ('open', 7, 'activity.completed', 'activity_execution', 'open:three', '{"attempt": 1, "exitCode": 0, "activityId": "three"}', '2026-11-23 13:06:58.678997+00');
INSERT INTO public.run_events VALUES ('open', 8, 'activity.started', 'activity_execution', 'open:gate', '{"attempt": 1, "activityId": "gate", "resourceId": "steps-api"}', '2026-11-23 13:06:58.679876+00');
INSERT INTO public.run_snapshots VALUES ('before', '[{"id": "hello-machine", "name": "This machine", "tier": "", "type": "local_machine", "zone": "", "region": "", "cpuCores": 1, "providerId": "hello-machine", "cpuCapacity": 1, "memoryBytes": 1073741824, "schedulable": true, "architecture": "", "storageBytes": 0, "computeSpeedup": 1, "pricePerSecond": 0, "executionTarget": "direct", "bootOverheadSeconds": 0, "environmentVersionId": "hello-v1", "containerOverheadSeconds": 0}]', '[{"id": "hello-local", "mode": "execution", "name": "Processes of this machine", "role": "", "driver": "local", "capabilities": {"gpu": false, "mpi": false, "batch": false, "container": false, "serverless": false, "simulation": false, "dataStaging": false, "interactive": false, "cancellation": false, "logStreaming": false, "sharedStorage": false}, "environmentVersionId": "hello-v1"}]', '[{"enabled": true, "runtimeId": "hello-local", "resourceId": "hello-machine"}, {"enabled": true, "runtimeId": "hello-simulated", "resourceId": "hello-machine"}]', '{"id": "hello-scope", "name": "This machine", "networkTopologyId": "", "environmentVersionIds": ["hello-v1"]}', NULL, '[]', '4981c33e9868d4660e790930d21007944e6e255655112db3fccb5b70933ac4de', '[]');
INSERT INTO public.run_snapshots VALUES ('open', '[{"id": "steps-api", "name": "api", "tier": "", "type": "local_machine", "zone": "", "region": "", "cpuCores": 1, "providerId": "steps-api", "cpuCapacity": 1, "memoryBytes": 1073741824, "schedulable": true, "architecture": "", "storageBytes": 0, "computeSpeedup": 1, "pricePerSecond": 0, "executionTarget": "direct", "bootOverheadSeconds": 0, "environmentVersionId": "steps-api-v1", "containerOverheadSeconds": 0}]', '[{"id": "steps-api", "mode": "execution", "name": "api", "role": "", "driver": "local", "capabilities": {"gpu": false, "mpi": false, "batch": false, "container": false, "serverless": false, "simulation": false, "dataStaging": false, "interactive": false, "cancellation": false, "logStreaming": false, "sharedStorage": false}, "configuration": {"hostId": "api"}, "environmentVersionId": "steps-api-v1"}]', '[{"enabled": true, "runtimeId": "steps-api", "resourceId": "steps-api"}]', '{"id": "steps-api", "name": "api", "networkTopologyId": "", "environmentVersionIds": ["steps-api-v1"]}', NULL, '[]', 'c9a9127ec40c0813e124d810bd9d3fecac078936793b7c878b2570768bb2e1ed', '[]');
INSERT INTO public.runtimes VALUES ('hello-local', 'hello-v1', 0, 'Processes of this machine', 'local', 'execution', '', NULL, '{"gpu": false, "mpi": false, "batch": false, "container": false, "serverless": false, "simulation": false, "dataStaging": false, "interactive": false, "cancellation": false, "logStreaming": false, "sharedStorage": false}');
INSERT INTO public.runtimes VALUES ('hello-simulated', 'hello-v1', 1, 'Simulation', 'simgrid', 'simulation', '', NULL, '{"gpu": false, "mpi": false, "batch": false, "container": false, "serverless": false, "simulation": false, "dataStaging": false, "interactive": false, "cancellation": false, "logStreaming": false, "sharedStorage": false}');
INSERT INTO public.runtimes VALUES ('steps-api', 'steps-api-v1', 0, 'api', 'local', 'execution', '', '{"hostId": "api"}', '{"gpu": false, "mpi": false, "batch": false, "container": false, "serverless": false, "simulation": false, "dataStaging": false, "interactive": false, "cancellation": false, "logStreaming": false, "sharedStorage": false}');
INSERT INTO public.runtimes VALUES ('steps-worker-1', 'steps-worker-1-v1', 0, 'worker-1', 'local', 'execution', '', '{"hostId": "worker-1"}', '{"gpu": false, "mpi": false, "batch": false, "container": false, "serverless": false, "simulation": false, "dataStaging": false, "interactive": false, "cancellation": false, "logStreaming": false, "sharedStorage": false}');
INSERT INTO public.runtimes VALUES ('steps-worker-2', 'steps-worker-2-v1', 0, 'worker-2', 'local', 'execution', '', '{"hostId": "worker-2"}', '{"gpu": false, "mpi": false, "batch": false, "container": false, "serverless": false, "simulation": false, "dataStaging": false, "interactive": false, "cancellation": false, "logStreaming": false, "sharedStorage": false}');
INSERT INTO public.schedule_plan_assignments VALUES ('hello-plan', 0, 'hello-plan-greet', 'greet', 'hello-machine', 'core-0', '', 1, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('hello-plan', 1, 'hello-plan-shout', 'shout', 'hello-machine', 'core-0', '', 2, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-api', 0, 'steps-api-one', 'one', 'steps-api', 'core-0', '', 1, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-api', 1, 'steps-api-two', 'two', 'steps-api', 'core-0', '', 2, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-api', 2, 'steps-api-three', 'three', 'steps-api', 'core-0', '', 3, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-api', 3, 'steps-api-gate', 'gate', 'steps-api', 'core-0', '', 4, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-worker-1', 0, 'steps-worker-1-one', 'one', 'steps-worker-1', 'core-0', '', 1, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-worker-1', 1, 'steps-worker-1-two', 'two', 'steps-worker-1', 'core-0', '', 2, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-worker-1', 2, 'steps-worker-1-three', 'three', 'steps-worker-1', 'core-0', '', 3, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-worker-1', 3, 'steps-worker-1-gate', 'gate', 'steps-worker-1', 'core-0', '', 4, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-worker-2', 0, 'steps-worker-2-one', 'one', 'steps-worker-2', 'core-0', '', 1, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-worker-2', 1, 'steps-worker-2-two', 'two', 'steps-worker-2', 'core-0', '', 2, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-worker-2', 2, 'steps-worker-2-three', 'three', 'steps-worker-2', 'core-0', '', 3, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plan_assignments VALUES ('steps-worker-2', 3, 'steps-worker-2-gate', 'gate', 'steps-worker-2', 'core-0', '', 4, 0, 0, 0, 0, 0, 0, 0, NULL);
INSERT INTO public.schedule_plans VALUES ('hello-plan', 'hello-v1', 'hello-v1', 'hello-scope', '', 'imported', 'by-hand', '', '', 'valid', 0, 0, 0, 0, false, 2, NULL, NULL, NULL, '2026-11-23 13:06:26.621761+00');
INSERT INTO public.schedule_plans VALUES ('steps-api', 'steps-v1', 'steps-v1', 'steps-api', '', 'imported', 'by-hand', '', '', 'valid', 0, 0, 0, 0, false, 4, NULL, NULL, NULL, '2026-11-23 13:06:36.169277+00');
INSERT INTO public.schedule_plans VALUES ('steps-worker-1', 'steps-v1', 'steps-v1', 'steps-worker-1', '', 'imported', 'by-hand', '', '', 'valid', 0, 0, 0, 0, false, 4, NULL, NULL, NULL, '2026-11-23 13:06:36.621077+00');
INSERT INTO public.schedule_plans VALUES ('steps-worker-2', 'steps-v1', 'steps-v1', 'steps-worker-2', '', 'imported', 'by-hand', '', '', 'valid', 0, 0, 0, 0, false, 4, NULL, NULL, NULL, '2026-11-23 13:06:37.002283+00');
INSERT INTO public.schema_migrations VALUES (1, '0001-records.sql', 'cc8f16d4d8279427954d1335f3cdf9f311244adc42eaa7d86be551866369146c', '2026-11-23 13:05:29.455056+00');
INSERT INTO public.schema_migrations VALUES (2, '0002-site-commit.sql', '03da60691fcdbe2295249e3c8ea0310e52bf987898bcfc2f480ca7be650546e5', '2026-11-23 13:05:31.755955+00');
INSERT INTO public.schema_migrations VALUES (3, '0003-credentials.sql', '96fc83c4098453d68234a7cc452fc6ae583624542b4fbcb4079aedca11f83bf8', '2026-11-23 13:05:32.367319+00');
INSERT INTO public.schema_migrations VALUES (4, '0004-connections.sql', '61440da34d707954ce4a2d7d66d8f111475658e3b83af76b532f6ecc0927e015', '2026-11-23 13:05:32.57545+00');
INSERT INTO public.schema_migrations VALUES (5, '0005-executor.sql', 'd5ddf83642b62fef08d2ccd30cd0b2a7b53e11bb56a612ed45c5854121bede54', '2026-11-23 13:05:32.887497+00');
INSERT INTO public.schema_migrations VALUES (6, '0006-sites.sql', '4ac2c747cca8a90be5e765177e355833aac8fead3281be0c52c73486f4138067', '2026-11-23 13:05:33.098916+00');
INSERT INTO public.schema_migrations VALUES (7, '0007-places.sql', '1cd31c21b41013ed6a7d090fff5ab1398a4060c96f39757e7c65585b8a593a93', '2026-11-23 13:05:33.114552+00');
INSERT INTO public.schema_migrations VALUES (8, '0008-effect-keys.sql', 'e11deb77173096a7231d79e5a56354c442821443ac55d7a756b5a45d363c9503', '2026-11-23 13:05:33.147885+00');
INSERT INTO public.site_leases VALUES ('open', 'local@api', 1, 'api/6', '2026-11-23 13:07:01.446036+00');
INSERT INTO public.system_instance VALUES (true, 'instance-37c91c7fcb91', '37c91c7fcb91', '', '', '', 8388608, '2026-11-23 13:05:34.577997+00', '2026-11-23 13:05:34.577997+00');
INSERT INTO public.task_executions VALUES ('before:greet', 'before', 0, 'hello-plan-greet', 'greet', 'greet', 'hello-machine', 'hello-machine', 'hello-local', 1, 1, true, 'completed', '{core-0}', '', 1, 1795439191.556, 1795439191.813, 1795439191.556, 1795439191.813, 1795439192.429731, 0.31177377700805664, 0.2569999694824219, 0, 0, 0, 0.30495715141296387, 0, 0.007148, 2670592, 'rusage', NULL, 0, NULL, NULL, NULL, 't-b090a0d589e3a99e042857c09563bfe4954784ba', 1795439191.556, 'api', '/var/lib/orrery/work/7b24a4ebcc8416830519d614/0-greet/1', '169', '{"root": "/var/lib/orrery/work/7b24a4ebcc8416830519d614/0-greet/1", "files": [{"path": "greeting.txt", "change": "created", "checksum": "sha256:273df4a5ff0a6cb366ced3edd9345a93783b3ca11627511b9d7c7dd4065d3313", "sizeBytes": 24, "modifiedUnixNano": "1795439192409747826"}], "runtime": "local", "summary": {"finalFiles": 1, "outputBytes": 24, "createdFiles": 1, "deletedFiles": 0, "initialFiles": 0, "modifiedFiles": 0}, "hostname": "37c91c7fcb91", "schemaVersion": 1}', NULL, NULL, 0, false, 'local@api', NULL);
INSERT INTO public.task_executions VALUES ('before:shout', 'before', 1, 'hello-plan-shout', 'shout', 'shout', 'hello-machine', 'hello-machine', 'hello-local', 1, 1, true, 'completed', '{core-0}', '', 2, 1795439192.429731, 1795439192.693, 1795439192.549, 1795439192.693, 1795439193.141388, 0.3564639091491699, 0.26326918601989746, 0, 0, 0, 0.09192395210266113, 0, 0.005161, 2342912, 'rusage', NULL, 0, NULL, NULL, NULL, 't-4c6be57de01de240afb9001fd3208e3f68b4f755', 1795439192.549, 'api', '/var/lib/orrery/work/7b24a4ebcc8416830519d614/1-shout/1', '186', '{"root": "/var/lib/orrery/work/7b24a4ebcc8416830519d614/1-shout/1", "files": [{"path": "shout.txt", "change": "created", "checksum": "sha256:65b37a82683ab7dc562a69e809c85caca56e05acc39dc9a43b0a968d18258ad7", "sizeBytes": 24, "modifiedUnixNano": "1795439193117747793"}], "runtime": "local", "summary": {"finalFiles": 2, "outputBytes": 24, "createdFiles": 1, "deletedFiles": 0, "initialFiles": 1, "modifiedFiles": 0}, "hostname": "37c91c7fcb91", "schemaVersion": 1}', NULL, NULL, 0, false, 'local@api', NULL);
INSERT INTO public.task_executions VALUES ('open:one', 'open', 0, 'steps-api-one', 'one', 'one', 'steps-api', 'steps-api', 'steps-api', 1, 1, true, 'completed', '{core-0}', '', 1, 1795439208.494, 1795439208.555, 1795439208.494, 1795439208.555, 1795439210.66663, 2.1086740493774414, 0.06100010871887207, 0, 0, 0, 0.002955913543701172, 0, 0.003299, 2605056, 'rusage', NULL, 0, NULL, NULL, NULL, 't-ab2ab1cc7c4b588ec01d2db0d9aec818bd8bb3d3', 1795439208.494, 'api', '/var/lib/orrery/work/0924833b868d508bfa4eb891/0-one/1', '225', '{"root": "/var/lib/orrery/work/0924833b868d508bfa4eb891/0-one/1", "files": [], "runtime": "local", "summary": {"finalFiles": 0, "outputBytes": 0, "createdFiles": 0, "deletedFiles": 0, "initialFiles": 0, "modifiedFiles": 0}, "hostname": "37c91c7fcb91", "schemaVersion": 1}', NULL, NULL, 0, false, 'local@api', NULL);
INSERT INTO public.task_executions VALUES ('open:gate', 'open', 3, 'steps-api-gate', 'gate', 'gate', 'steps-api', 'steps-api', 'steps-api', 1, 1, true, 'running', '{core-0}', '', 4, 1795439218.353424, NULL, 1795439218.42, 1795439218.42, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 't-e77c22fb34df6e30e1c9fbdaca39451a42b01c61', 1795439218.42, 'api', '/var/lib/orrery/work/0924833b868d508bfa4eb891/3-gate/1', '250', NULL, NULL, NULL, 0, false, 'local@api', NULL);
INSERT INTO public.task_executions VALUES ('open:two', 'open', 1, 'steps-api-two', 'two', 'two', 'steps-api', 'steps-api', 'steps-api', 1, 1, true, 'completed', '{core-0}', '', 2, 1795439210.66663, 1795439212.791, 1795439211.757, 1795439212.791, 1795439215.425512, 2.3211510181427, 2.1243698596954346, 0, 0, 0, 0.31336116790771484, 0, 0.003834, 2605056, 'rusage', NULL, 0, NULL, NULL, NULL, 't-4460c947848411e2baa93c9bd531a45ec477bbfa', 1795439211.757, 'api', '/var/lib/orrery/work/0924833b868d508bfa4eb891/1-two/1', '243', '{"root": "/var/lib/orrery/work/0924833b868d508bfa4eb891/1-two/1", "files": [], "runtime": "local", "summary": {"finalFiles": 0, "outputBytes": 0, "createdFiles": 0, "deletedFiles": 0, "initialFiles": 0, "modifiedFiles": 0}, "hostname": "37c91c7fcb91", "schemaVersion": 1}', NULL, NULL, 0, false, 'local@api', NULL);
INSERT INTO public.task_executions VALUES ('open:three', 'open', 2, 'steps-api-three', 'three', 'three', 'steps-api', 'steps-api', 'steps-api', 1, 1, true, 'completed', '{core-0}', '', 3, 1795439215.425512, 1795439216.224, 1795439215.777, 1795439216.224, 1795439218.353424, 2.056694984436035, 0.7984879016876221, 0, 0, 0, 0.07272911071777344, 0, 0.002814, 2342912, 'rusage', NULL, 0, NULL, NULL, NULL, 't-e331f062288ee10fb6fd33b6b6c7a52e6ddede72', 1795439215.777, 'api', '/var/lib/orrery/work/0924833b868d508bfa4eb891/2-three/1', '248', '{"root": "/var/lib/orrery/work/0924833b868d508bfa4eb891/2-three/1", "files": [], "runtime": "local", "summary": {"finalFiles": 0, "outputBytes": 0, "createdFiles": 0, "deletedFiles": 0, "initialFiles": 0, "modifiedFiles": 0}, "hostname": "37c91c7fcb91", "schemaVersion": 1}', NULL, NULL, 0, false, 'local@api', NULL);
INSERT INTO public.workflow_data_dependencies VALUES ('hello-v1', 0, 1, 'greeting.txt', 32);
INSERT INTO public.workflow_definitions VALUES ('hello', 'hello', 'hello', 'examples', '2026-11-23 13:06:23.609503+00');
INSERT INTO public.workflow_definitions VALUES ('steps', 'steps', 'steps', 'examples', '2026-11-23 13:06:35.062219+00');
INSERT INTO public.workflow_versions VALUES ('hello-v1', 'hello', 1, 'sha256:d2a610f2f73e4a722b8a7223cf1443ee67819e67e06a2a6cbaae4a8ac35862f1', 'published', false, 2, 1, '{"image": "busybox:1.36"}', NULL, '2026-11-23 13:06:23.609503+00');
INSERT INTO public.workflow_versions VALUES ('steps-v1', 'steps', 1, 'sha256:47d3426e2c3bb511ce97d16ff0e0a0522dce8e99e65bba040ff8ef8c412ee0a2', 'published', false, 4, 3, '{"image": "busybox:1.36"}', NULL, '2026-11-23 13:06:35.062219+00');
SELECT pg_catalog.setval('public.audit_events_sequence_seq', 16, true);
ALTER TABLE ONLY public.activity_definitions
    ADD CONSTRAINT activity_definitions_id UNIQUE (workflow_version_id, id);
ALTER TABLE ONLY public.activity_definitions
    ADD CONSTRAINT activity_definitions_pkey PRIMARY KEY (workflow_version_id, "position");
ALTER TABLE ONLY public.activity_dependencies
    ADD CONSTRAINT activity_dependencies_pkey PRIMARY KEY (workflow_version_id, activity_position, depends_on_position);
ALTER TABLE ONLY public.activity_resource_profiles
    ADD CONSTRAINT activity_resource_profiles_model UNIQUE (activity_type_id, resource_id, model_version);
ALTER TABLE ONLY public.activity_resource_profiles
    ADD CONSTRAINT activity_resource_profiles_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.activity_types
    ADD CONSTRAINT activity_types_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.audit_events
    ADD CONSTRAINT audit_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.connection_checks
    ADD CONSTRAINT connection_checks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.connection_discoveries
    ADD CONSTRAINT connection_discoveries_pkey PRIMARY KEY (connection_id, number);
ALTER TABLE ONLY public.connection_host_keys
    ADD CONSTRAINT connection_host_keys_pkey PRIMARY KEY (connection_id, host);
ALTER TABLE ONLY public.connections
    ADD CONSTRAINT connections_name UNIQUE (environment_id, name) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE ONLY public.connections
    ADD CONSTRAINT connections_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.credentials
    ADD CONSTRAINT credentials_pkey PRIMARY KEY (kind, id);
ALTER TABLE ONLY public.data_locations
    ADD CONSTRAINT data_locations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.data_object_instances
    ADD CONSTRAINT data_object_instances_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.data_objects
    ADD CONSTRAINT data_objects_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.data_transfer_observations
    ADD CONSTRAINT data_transfer_observations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.environment_versions
    ADD CONSTRAINT environment_versions_number UNIQUE (environment_id, version);
ALTER TABLE ONLY public.environment_versions
    ADD CONSTRAINT environment_versions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.environments
    ADD CONSTRAINT environments_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.execution_runs
    ADD CONSTRAINT execution_runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.execution_scope_environments
    ADD CONSTRAINT execution_scope_environments_pkey PRIMARY KEY (execution_scope_id, environment_version_id);
ALTER TABLE ONLY public.execution_scopes
    ADD CONSTRAINT execution_scopes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.lane_leases
    ADD CONSTRAINT lane_leases_pkey PRIMARY KEY (resource_id, core_id, slot_id);
ALTER TABLE ONLY public.network_links
    ADD CONSTRAINT network_links_pair UNIQUE (topology_id, source_resource_id, target_resource_id);
ALTER TABLE ONLY public.network_links
    ADD CONSTRAINT network_links_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.network_topologies
    ADD CONSTRAINT network_topologies_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.planning_algorithm_runs
    ADD CONSTRAINT planning_algorithm_runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.planning_candidates
    ADD CONSTRAINT planning_candidates_fingerprint UNIQUE (planning_session_id, fingerprint);
ALTER TABLE ONLY public.planning_candidates
    ADD CONSTRAINT planning_candidates_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.planning_sessions
    ADD CONSTRAINT planning_sessions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.resource_relations
    ADD CONSTRAINT resource_relations_pkey PRIMARY KEY (source_resource_id, target_resource_id, relation_type);
ALTER TABLE ONLY public.resource_runtime_bindings
    ADD CONSTRAINT resource_runtime_bindings_pkey PRIMARY KEY (resource_id, runtime_id);
ALTER TABLE ONLY public.resource_snapshots
    ADD CONSTRAINT resource_snapshots_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.resources
    ADD CONSTRAINT resources_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.resources
    ADD CONSTRAINT resources_provider_id UNIQUE (environment_version_id, provider_id);
ALTER TABLE ONLY public.run_events
    ADD CONSTRAINT run_events_pkey PRIMARY KEY (execution_run_id, sequence);
ALTER TABLE ONLY public.run_snapshots
    ADD CONSTRAINT run_snapshots_pkey PRIMARY KEY (execution_run_id);
ALTER TABLE ONLY public.runtimes
    ADD CONSTRAINT runtimes_in_version UNIQUE (environment_version_id, id);
ALTER TABLE ONLY public.runtimes
    ADD CONSTRAINT runtimes_name UNIQUE (environment_version_id, name);
ALTER TABLE ONLY public.runtimes
    ADD CONSTRAINT runtimes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schedule_plan_assignments
    ADD CONSTRAINT schedule_plan_assignments_pkey PRIMARY KEY (schedule_plan_id, activity_position);
ALTER TABLE ONLY public.schedule_plans
    ADD CONSTRAINT schedule_plans_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.site_leases
    ADD CONSTRAINT site_leases_pkey PRIMARY KEY (execution_run_id, site);
ALTER TABLE ONLY public.site_leftovers
    ADD CONSTRAINT site_leftovers_pkey PRIMARY KEY (site, name);
ALTER TABLE ONLY public.storage_runtime_bindings
    ADD CONSTRAINT storage_runtime_bindings_pkey PRIMARY KEY (storage_id, runtime_id);
ALTER TABLE ONLY public.storages
    ADD CONSTRAINT storages_in_version UNIQUE (environment_version_id, id);
ALTER TABLE ONLY public.storages
    ADD CONSTRAINT storages_name UNIQUE (environment_version_id, name);
ALTER TABLE ONLY public.storages
    ADD CONSTRAINT storages_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.system_instance
    ADD CONSTRAINT system_instance_pkey PRIMARY KEY (singleton);
ALTER TABLE ONLY public.task_executions
    ADD CONSTRAINT task_executions_attempt UNIQUE (execution_run_id, activity_position, attempt);
ALTER TABLE ONLY public.task_executions
    ADD CONSTRAINT task_executions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.user_preferences
    ADD CONSTRAINT user_preferences_pkey PRIMARY KEY (client_id);
ALTER TABLE ONLY public.workflow_data_dependencies
    ADD CONSTRAINT workflow_data_dependencies_pkey PRIMARY KEY (workflow_version_id, producer_position, consumer_position, logical_name);
ALTER TABLE ONLY public.workflow_definitions
    ADD CONSTRAINT workflow_definitions_external_id UNIQUE (external_id);
ALTER TABLE ONLY public.workflow_definitions
    ADD CONSTRAINT workflow_definitions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.workflow_versions
    ADD CONSTRAINT workflow_versions_pkey PRIMARY KEY (id);
CREATE INDEX activity_resource_profiles_of_resource ON public.activity_resource_profiles USING btree (resource_id);
CREATE INDEX activity_resource_profiles_of_version ON public.activity_resource_profiles USING btree (environment_version_id);
CREATE INDEX activity_types_of_workflow ON public.activity_types USING btree (workflow_id, "position");
CREATE INDEX audit_events_newest ON public.audit_events USING btree (occurred_at DESC, id DESC);
CREATE INDEX connection_checks_newest ON public.connection_checks USING btree (connection_id, checked_at DESC);
CREATE UNIQUE INDEX connection_discoveries_one_open ON public.connection_discoveries USING btree (connection_id) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));
CREATE INDEX connection_discoveries_open ON public.connection_discoveries USING btree (requested_at) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));
CREATE INDEX connections_credential ON public.connections USING btree (credential_ref) WHERE (credential_ref <> ''::text);
CREATE INDEX connections_to_monitor ON public.connections USING btree (created_at) WHERE (monitored_since IS NULL);
CREATE INDEX data_locations_of_run ON public.data_locations USING btree (execution_run_id);
CREATE INDEX data_object_instances_of_run ON public.data_object_instances USING btree (execution_run_id, id);
CREATE INDEX data_transfer_observations_of_run ON public.data_transfer_observations USING btree (execution_run_id, started_at, id);
CREATE INDEX environments_by_name ON public.environments USING btree (name COLLATE "C", id);
CREATE INDEX execution_runs_newest ON public.execution_runs USING btree (COALESCE(started_at, created_at) DESC, id DESC);
CREATE INDEX execution_runs_of_plan ON public.execution_runs USING btree (schedule_plan_id);
CREATE INDEX execution_runs_open ON public.execution_runs USING btree (created_at, id) WHERE (status = 'running'::text);
CREATE INDEX execution_runs_undispatched ON public.execution_runs USING btree (created_at, id) WHERE ((dispatched_at IS NULL) AND (status = ANY (ARRAY['created'::text, 'running'::text])));
CREATE INDEX execution_scope_environments_version ON public.execution_scope_environments USING btree (environment_version_id);
CREATE INDEX execution_scopes_by_name ON public.execution_scopes USING btree (name COLLATE "C", id);
CREATE INDEX idempotency_keys_age ON public.idempotency_keys USING btree (created_at);
CREATE INDEX lane_leases_of_task ON public.lane_leases USING btree (task_execution_id);
CREATE INDEX network_links_source_end ON public.network_links USING btree (source_resource_id);
CREATE INDEX network_links_target_end ON public.network_links USING btree (target_resource_id);
CREATE INDEX network_topologies_by_name ON public.network_topologies USING btree (name COLLATE "C", version DESC, id);
CREATE INDEX planning_algorithm_runs_of_session ON public.planning_algorithm_runs USING btree (planning_session_id, "position");
CREATE INDEX planning_candidates_ranked ON public.planning_candidates USING btree (planning_session_id, rank, created_at, id);
CREATE INDEX planning_sessions_newest ON public.planning_sessions USING btree (created_at DESC, id DESC);
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
CREATE INDEX schedule_plan_assignments_on_resource ON public.schedule_plan_assignments USING btree (resource_id);
CREATE INDEX schedule_plans_in_scope ON public.schedule_plans USING btree (execution_scope_id);
CREATE INDEX schedule_plans_newest ON public.schedule_plans USING btree (created_at DESC, id DESC);
CREATE INDEX schedule_plans_workflow ON public.schedule_plans USING btree (content_version_id);
CREATE INDEX storage_runtime_bindings_of_runtime ON public.storage_runtime_bindings USING btree (environment_version_id, runtime_id);
CREATE UNIQUE INDEX storage_runtime_bindings_one_default ON public.storage_runtime_bindings USING btree (environment_version_id, runtime_id) WHERE is_default;
CREATE INDEX workflow_data_dependencies_of_consumer ON public.workflow_data_dependencies USING btree (workflow_version_id, consumer_position);
CREATE INDEX workflow_definitions_by_namespace ON public.workflow_definitions USING btree (namespace COLLATE "C", name COLLATE "C", id);
CREATE UNIQUE INDEX workflow_versions_number ON public.workflow_versions USING btree (workflow_id, version) WHERE (NOT embedded);
ALTER TABLE ONLY public.activity_definitions
    ADD CONSTRAINT activity_definitions_version FOREIGN KEY (workflow_version_id) REFERENCES public.workflow_versions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.activity_dependencies
    ADD CONSTRAINT activity_dependencies_version FOREIGN KEY (workflow_version_id) REFERENCES public.workflow_versions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.activity_resource_profiles
    ADD CONSTRAINT activity_resource_profiles_environment FOREIGN KEY (environment_version_id) REFERENCES public.environment_versions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.activity_resource_profiles
    ADD CONSTRAINT activity_resource_profiles_resource FOREIGN KEY (resource_id) REFERENCES public.resources(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.activity_resource_profiles
    ADD CONSTRAINT activity_resource_profiles_type FOREIGN KEY (activity_type_id) REFERENCES public.activity_types(id);
ALTER TABLE ONLY public.activity_types
    ADD CONSTRAINT activity_types_workflow FOREIGN KEY (workflow_id) REFERENCES public.workflow_definitions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.connection_checks
    ADD CONSTRAINT connection_checks_connection FOREIGN KEY (connection_id) REFERENCES public.connections(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.connection_discoveries
    ADD CONSTRAINT connection_discoveries_connection FOREIGN KEY (connection_id) REFERENCES public.connections(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.connection_host_keys
    ADD CONSTRAINT connection_host_keys_connection FOREIGN KEY (connection_id) REFERENCES public.connections(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.connections
    ADD CONSTRAINT connections_environment FOREIGN KEY (environment_id) REFERENCES public.environments(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.data_locations
    ADD CONSTRAINT data_locations_instance FOREIGN KEY (data_object_instance_id) REFERENCES public.data_object_instances(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.data_object_instances
    ADD CONSTRAINT data_object_instances_run FOREIGN KEY (execution_run_id) REFERENCES public.execution_runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.data_transfer_observations
    ADD CONSTRAINT data_transfer_observations_run FOREIGN KEY (execution_run_id) REFERENCES public.execution_runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.environment_versions
    ADD CONSTRAINT environment_versions_environment FOREIGN KEY (environment_id) REFERENCES public.environments(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.execution_runs
    ADD CONSTRAINT execution_runs_content FOREIGN KEY (content_version_id) REFERENCES public.workflow_versions(id);
ALTER TABLE ONLY public.execution_runs
    ADD CONSTRAINT execution_runs_plan FOREIGN KEY (schedule_plan_id) REFERENCES public.schedule_plans(id);
ALTER TABLE ONLY public.execution_scope_environments
    ADD CONSTRAINT execution_scope_environments_scope FOREIGN KEY (execution_scope_id) REFERENCES public.execution_scopes(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.execution_scope_environments
    ADD CONSTRAINT execution_scope_environments_version FOREIGN KEY (environment_version_id) REFERENCES public.environment_versions(id);
ALTER TABLE ONLY public.network_links
    ADD CONSTRAINT network_links_source FOREIGN KEY (source_resource_id) REFERENCES public.resources(id);
ALTER TABLE ONLY public.network_links
    ADD CONSTRAINT network_links_target FOREIGN KEY (target_resource_id) REFERENCES public.resources(id);
ALTER TABLE ONLY public.network_links
    ADD CONSTRAINT network_links_topology FOREIGN KEY (topology_id) REFERENCES public.network_topologies(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.network_topologies
    ADD CONSTRAINT network_topologies_scope FOREIGN KEY (execution_scope_id) REFERENCES public.execution_scopes(id);
ALTER TABLE ONLY public.planning_algorithm_runs
    ADD CONSTRAINT planning_algorithm_runs_session FOREIGN KEY (planning_session_id) REFERENCES public.planning_sessions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.planning_candidates
    ADD CONSTRAINT planning_candidates_algorithm_run FOREIGN KEY (algorithm_run_id) REFERENCES public.planning_algorithm_runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.planning_candidates
    ADD CONSTRAINT planning_candidates_session FOREIGN KEY (planning_session_id) REFERENCES public.planning_sessions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.planning_sessions
    ADD CONSTRAINT planning_sessions_scope FOREIGN KEY (execution_scope_id) REFERENCES public.execution_scopes(id);
ALTER TABLE ONLY public.planning_sessions
    ADD CONSTRAINT planning_sessions_selected_plan FOREIGN KEY (selected_plan_id) REFERENCES public.schedule_plans(id);
ALTER TABLE ONLY public.planning_sessions
    ADD CONSTRAINT planning_sessions_workflow FOREIGN KEY (workflow_version_id) REFERENCES public.workflow_versions(id);
ALTER TABLE ONLY public.resource_relations
    ADD CONSTRAINT resource_relations_source FOREIGN KEY (source_resource_id) REFERENCES public.resources(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.resource_relations
    ADD CONSTRAINT resource_relations_target FOREIGN KEY (target_resource_id) REFERENCES public.resources(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.resource_relations
    ADD CONSTRAINT resource_relations_version FOREIGN KEY (environment_version_id) REFERENCES public.environment_versions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.resource_runtime_bindings
    ADD CONSTRAINT resource_runtime_bindings_resource FOREIGN KEY (resource_id) REFERENCES public.resources(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.resource_runtime_bindings
    ADD CONSTRAINT resource_runtime_bindings_runtime FOREIGN KEY (runtime_id) REFERENCES public.runtimes(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.resource_runtime_bindings
    ADD CONSTRAINT resource_runtime_bindings_version FOREIGN KEY (environment_version_id) REFERENCES public.environment_versions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.resource_snapshots
    ADD CONSTRAINT resource_snapshots_resource FOREIGN KEY (resource_id) REFERENCES public.resources(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.resources
    ADD CONSTRAINT resources_parent FOREIGN KEY (parent_resource_id) REFERENCES public.resources(id) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE ONLY public.resources
    ADD CONSTRAINT resources_version FOREIGN KEY (environment_version_id) REFERENCES public.environment_versions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.run_snapshots
    ADD CONSTRAINT run_snapshots_run FOREIGN KEY (execution_run_id) REFERENCES public.execution_runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.runtimes
    ADD CONSTRAINT runtimes_version FOREIGN KEY (environment_version_id) REFERENCES public.environment_versions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.schedule_plan_assignments
    ADD CONSTRAINT schedule_plan_assignments_plan FOREIGN KEY (schedule_plan_id) REFERENCES public.schedule_plans(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.schedule_plan_assignments
    ADD CONSTRAINT schedule_plan_assignments_resource FOREIGN KEY (resource_id) REFERENCES public.resources(id);
ALTER TABLE ONLY public.schedule_plans
    ADD CONSTRAINT schedule_plans_content FOREIGN KEY (content_version_id) REFERENCES public.workflow_versions(id);
ALTER TABLE ONLY public.schedule_plans
    ADD CONSTRAINT schedule_plans_scope FOREIGN KEY (execution_scope_id) REFERENCES public.execution_scopes(id);
ALTER TABLE ONLY public.site_leases
    ADD CONSTRAINT site_leases_run FOREIGN KEY (execution_run_id) REFERENCES public.execution_runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.storage_runtime_bindings
    ADD CONSTRAINT storage_runtime_bindings_runtime FOREIGN KEY (environment_version_id, runtime_id) REFERENCES public.runtimes(environment_version_id, id) ON DELETE CASCADE;
ALTER TABLE ONLY public.storage_runtime_bindings
    ADD CONSTRAINT storage_runtime_bindings_storage FOREIGN KEY (environment_version_id, storage_id) REFERENCES public.storages(environment_version_id, id) ON DELETE CASCADE;
ALTER TABLE ONLY public.storages
    ADD CONSTRAINT storages_version FOREIGN KEY (environment_version_id) REFERENCES public.environment_versions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.task_executions
    ADD CONSTRAINT task_executions_run FOREIGN KEY (execution_run_id) REFERENCES public.execution_runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.workflow_data_dependencies
    ADD CONSTRAINT workflow_data_dependencies_version FOREIGN KEY (workflow_version_id) REFERENCES public.workflow_versions(id) ON DELETE CASCADE;
