-- Every kind of operation has the same columns and one table of events.

do $$
begin
  if to_regclass('operation_events') is null then
    alter table run_events rename to operation_events;
    alter table operation_events rename column execution_run_id to operation_id;
    -- The default is what programs of the version before write, by the view run_events.
    alter table operation_events add column kind text not null default 'execution-run';
    alter table operation_events drop constraint run_events_pkey;
    alter table operation_events add constraint operation_events_pkey primary key (kind, operation_id, sequence);
  end if;
end
$$;

alter table execution_runs add column if not exists cancel_actor text;
alter table execution_runs add column if not exists cancel_reason text;

alter table planning_sessions add column if not exists generation integer not null default 1;
alter table planning_sessions add column if not exists cancel_requested_at timestamptz;
alter table planning_sessions add column if not exists cancel_actor text;
alter table planning_sessions add column if not exists cancel_reason text;
alter table planning_sessions add column if not exists last_event_sequence bigint not null default 0;

alter table connection_discoveries add column if not exists started_at timestamptz;
alter table connection_discoveries add column if not exists cancel_requested_at timestamptz;
alter table connection_discoveries add column if not exists cancel_actor text;
alter table connection_discoveries add column if not exists cancel_reason text;
alter table connection_discoveries add column if not exists last_event_sequence bigint not null default 0;
