-- Sessions and commands of the console in the shape that the feed of runs shows.
create or replace view console_runs as
  select id, 'interactive' as kind, 'interactive' as mode,
      case status when 'starting' then 'created' when 'connected' then 'running'
        when 'closed' then 'completed' else 'failed' end as status,
      'terminal on ' || resource_id as title, resource_id, runtime_id, connection_id, actor_id,
      null::text as command, failure as failure_reason, 1 as generation,
      close_requested_at as cancel_requested_at, created_at, connected_at as started_at, finished_at,
      coalesce(connected_at, created_at) as at
    from console_sessions
  union all
  select id, 'standalone', 'real', case status when 'accepted' then 'created' else status end,
      'command on ' || resource_id, resource_id, runtime_id, connection_id, actor_id,
      left(coalesce(masked ->> 'command', command), 1000), failure_reason, generation,
      cancel_requested_at, created_at, started_at, finished_at, coalesce(started_at, created_at)
    from console_commands;
