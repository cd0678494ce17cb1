-- The gauges of the record, one row a series: read at a scrape of the metrics, equal in every
-- process of a fleet.

create or replace view service_gauges as
-- Each branch has an index of its own.
with open_runs as (
  select id, status, mode, paused, dispatched_at, created_at from execution_runs where status = 'running'
  union all
  select id, status, mode, paused, dispatched_at, created_at from execution_runs where status = 'created'
), open_tasks as (
  select t.site, t.status, t.connection_id, t.metadata from open_runs r
  join task_executions t on t.execution_run_id = r.id and t.latest where t.site is not null
), runs as (
  select s.state, m.mode, count(r.id) as runs
  from unnest(array['created', 'running', 'paused']) s (state)
  cross join unnest(array['real', 'simulation']) m (mode)
  left join open_runs r on r.mode = m.mode and case when r.paused then 'paused' else r.status end = s.state
  group by 1, 2
), tasks as (
  select site, status as state, count(*) as tasks from open_tasks group by 1, 2
), silences as (
  -- Of a site that answers, null.
  select site, to_timestamp(min((metadata ->> 'silentSince')::double precision)) as since from open_tasks
    group by site
), leftovers as (
  select site, count(*) as names, min(since) as since from site_leftovers group by site
), checked as (
  select c.id, k.status = 'online' as up, coalesce((k.metadata ->> 'waitsForLogin')::boolean, false)
      or exists (select from open_tasks t where t.connection_id = c.id
        and t.metadata ->> 'waitsFor' = 'login') as waits
  from connections c
  cross join lateral (select k.status, k.metadata from connection_checks k where k.connection_id = c.id
    order by k.checked_at desc, k.id desc limit 1) k
), backlog as (
  select 'execution-run' as kind, count(*) as records, min(created_at) as since from open_runs
    where dispatched_at is null
  union all
  select 'planning-session', count(*), min(created_at) from planning_sessions
  where dispatched_at is null and status in ('queued', 'running')
  union all
  select 'connection-discovery', count(*), min(requested_at) from connection_discoveries
  where dispatched_at is null and status in ('queued', 'running')
  union all
  select 'console-command', count(*), min(created_at) from console_commands
  where dispatched_at is null and status in ('accepted', 'running')
  union all
  select 'storage-download', count(*), min(created_at) from storage_downloads
  where dispatched_at is null and status in ('queued', 'streaming')
  union all
  select 'storage-index', count(*), min(created_at) from storage_index_runs
  where dispatched_at is null and status in ('queued', 'running')
  union all
  select 'cloud-operation', count(*), min(created_at) from cloud_operations
  where dispatched_at is null and status in ('queued', 'running')
  union all
  select 'build-run', count(*), min(created_at) from build_runs
  where dispatched_at is null and status in ('queued', 'running')
  union all
  select 'connection-monitor', count(*), min(created_at) from connections
  where monitored_since is null and connection_is_monitored(type, endpoint, credential_ref)
), gauges as (
  select 'orrery_runs' as name, jsonb_build_object('state', state, 'mode', mode) as labels, runs::double
    precision as value from runs
  union all
  select 'orrery_tasks', jsonb_build_object('site', site, 'state', state), tasks from tasks
  union all
  select 'orrery_site_silent_seconds', jsonb_build_object('site', site),
    coalesce(greatest(0, extract(epoch from clock_timestamp() - since)), 0) from silences
  union all
  select 'orrery_site_leftovers', jsonb_build_object('site', site), names from leftovers
  union all
  select 'orrery_site_leftovers_oldest_seconds', jsonb_build_object('site', site),
    greatest(0, extract(epoch from clock_timestamp() - since)) from leftovers
  union all
  select 'orrery_connection_up', jsonb_build_object('connection', id), up::integer from checked
  union all
  select 'orrery_connection_waits_for_login', jsonb_build_object('connection', id), waits::integer from checked
  union all
  select 'orrery_dispatch_backlog', jsonb_build_object('kind', kind), records from backlog
  union all
  select 'orrery_dispatch_oldest_seconds', jsonb_build_object('kind', kind),
    coalesce(greatest(0, extract(epoch from clock_timestamp() - since)), 0) from backlog
)
select name, labels, value from gauges;
