-- The route of a transfer has one shape in real runs and simulations: {links, strategy, reason, from, to}.

update data_transfer_observations set route = jsonb_build_object('links', route, 'strategy', coalesce(strategy, ''), 'reason', 'simulated: the fastest route for its size',
  'from', source_resource_id, 'to', target_resource_id)
where jsonb_typeof(route) = 'array';

update data_transfer_observations set route = jsonb_build_object('links', '[]'::jsonb, 'strategy', coalesce(strategy, ''), 'reason', coalesce(route ->> 'reason', ''),
  'from', coalesce(route ->> 'fromSite', ''), 'to', coalesce(route ->> 'toSite', ''))
where route ? 'fromSite';

-- Copies inside a site had none.
update data_transfer_observations d set route = jsonb_build_object('links', '[]'::jsonb, 'strategy', coalesce(d.strategy, ''), 'reason', 'both resources are at one site: copied there',
  'from', coalesce(t.site, ''), 'to', coalesce(t.site, ''))
from task_executions t
where d.route is null and t.execution_run_id = d.execution_run_id and t.activity_id = d.consumer_activity_id and t.latest;
