-- The one statement by which a site's executor changes a run: ends and intents of a moment in one
-- round trip and one fsync. (As five statements the hop of a chain cost 2.1 ms instead of 1.2.) It
-- is idempotent: sent again after a lost answer it changes nothing and answers the same. A stale
-- epoch changes nothing and raises OR001.

create or replace function commit_site(
  p_run text, p_site text, p_epoch bigint,
  p_ends jsonb, p_retries jsonb, p_states jsonb, p_intents jsonb, p_outputs jsonb, p_transfers jsonb,
  p_leftovers jsonb, p_taken_back jsonb, p_starts jsonb,
  out acquired text[], out holders jsonb, out cancelled boolean, out paused boolean, out failed bigint,
  out run_status text
) language plpgsql
-- The planner takes each document for 100 rows and would read a young table of tasks whole for
-- them; that plan, once made, stays with the connection while the table grows: committing one task
-- then read every task of every run.
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
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
$$;
