create or replace view provenance.audit_events as
  select id, event_type, actor_id, actor_type, environment_id, resource_id, connection_id, runtime_id,
    session_id, execution_id, external_id, outcome, summary,
    occurred_at from audit_events;
