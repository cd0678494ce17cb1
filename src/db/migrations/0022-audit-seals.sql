-- Audit records are signed where they are written, then numbered and chained, so that a later change of them shows.

alter table audit_events add column if not exists signature text;
alter table audit_events add column if not exists signature_key text;
alter table audit_events add column if not exists seal_number bigint;
alter table audit_events add column if not exists digest text;
alter table audit_events add column if not exists seal text;
alter table audit_events add column if not exists seal_key text;

create unique index if not exists audit_events_sealed on audit_events (seal_number) where seal_number is not null;
create index if not exists audit_events_unsealed on audit_events (sequence) where seal_number is null;
create index if not exists audit_events_of_type on audit_events (event_type, occurred_at desc, id desc);
create index if not exists audit_events_of_actor on audit_events (actor_id, occurred_at desc, id desc) where actor_id is not null;
create index if not exists audit_events_of_run on audit_events (execution_id, occurred_at desc, id desc) where execution_id is not null;
create index if not exists audit_events_of_environment on audit_events (environment_id, occurred_at desc, id desc) where environment_id is not null;
create index if not exists audit_events_of_resource on audit_events (resource_id, occurred_at desc, id desc) where resource_id is not null;
create index if not exists audit_events_of_connection on audit_events (connection_id, occurred_at desc, id desc) where connection_id is not null;
create index if not exists audit_events_of_session on audit_events (session_id, occurred_at desc, id desc) where session_id is not null;

-- The newest link of the chain: without it a record could be taken from the end.
create table if not exists audit_head (
  singleton boolean primary key default true constraint audit_head_single check (singleton),
  number bigint not null,
  event_id text not null,
  seal text not null,
  signature text not null,
  signature_key text not null
);
