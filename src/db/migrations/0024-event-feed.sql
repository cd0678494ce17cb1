-- One order over the events of all operations: positions are given behind the commits, so that a reader who has one has all before it.

create table if not exists event_feed (
  position bigint generated always as identity constraint event_feed_pkey primary key,
  kind text not null,
  operation_id identifier not null,
  first_sequence bigint not null,
  last_sequence bigint not null,
  fed_at timestamptz not null default clock_timestamp()
);
create index if not exists event_feed_of_operation on event_feed (kind, operation_id, last_sequence);

-- Operations with events that have no position yet.
create table if not exists event_feed_open (
  kind text not null,
  operation_id identifier not null,
  since timestamptz not null default clock_timestamp(),
  constraint event_feed_open_pkey primary key (kind, operation_id)
);

insert into event_feed (kind, operation_id, first_sequence, last_sequence)
  select kind, operation_id, min(sequence), max(sequence) from operation_events e
  where not exists (select from event_feed f where f.kind = e.kind and f.operation_id = e.operation_id)
  group by kind, operation_id order by max(occurred_at);

alter table connections add column if not exists last_event_sequence bigint not null default 0;
