-- Audit events take the types that clients know from the earlier implementation.

update audit_events set event_type = 'connection.health.checked' where event_type in ('connection.checked', 'connection.online', 'connection.offline');

-- A request for discovery was recorded with how it ended, or with 202 while it went on.
update audit_events
set event_type = case
  when metadata ->> 'status' = '202' then 'resource.discovery.requested'
  when outcome = 'succeeded' then 'resource.discovery.completed'
  else 'resource.discovery.failed'
end
where event_type = 'connection.discovered';

update audit_events set event_type = replace(event_type, 'schedule-plan.', 'plan.') where event_type like 'schedule-plan.%';
