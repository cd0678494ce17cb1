-- As the view of that name beside it, which a migration may take away.

create or replace view provenance.activity_lifecycle_events as
select t.id || ':' || p.phase as id, t.id as task_execution_id, p.phase, t.status, p.started_at, p.finished_at,
  p.finished_at - p.started_at as duration_seconds,
  case when t.measured_by = 'simulated' then 'simulated' else 'measured' end as source,
  case when p.phase = 'runtime' then t.failure_reason end as error
from task_executions t
cross join lateral (values
  ('queue', t.ready_at, t.started_at),
  ('launch', t.started_at, t.started_at + t.overhead_seconds),
  ('runtime', t.started_at + t.overhead_seconds, t.finished_at)
) as p (phase, started_at, finished_at)
where p.started_at is not null and p.finished_at is not null;
