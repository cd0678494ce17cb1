-- Connections are watched: since when their monitor runs, host keys of first contacts, discoveries.

-- Not null once the monitor's workflow was started.
alter table connections add column monitored_since timestamptz;
create index connections_to_monitor on connections (created_at) where monitored_since is null;

create table connection_host_keys (
  connection_id identifier not null constraint connection_host_keys_connection references connections on delete cascade,
  -- As in known_hosts: a name, or [name]:port.
  host text not null,
  key_type text not null,
  fingerprint text not null,
  line text not null,
  recorded_at timestamptz not null default now(),
  constraint connection_host_keys_pkey primary key (connection_id, host)
);

create table connection_discoveries (
  connection_id identifier not null constraint connection_discoveries_connection references connections on delete cascade,
  number integer not null,
  status text not null default 'queued',
  requested_at timestamptz not null default now(),
  dispatched_at timestamptz,
  finished_at timestamptz,
  -- Why it failed, and whether asking again may help.
  problem text,
  transient boolean,
  snapshot_ids text[] not null default '{}',
  constraint connection_discoveries_pkey primary key (connection_id, number),
  constraint connection_discoveries_status check (status in ('queued', 'running', 'completed', 'failed'))
);
create unique index connection_discoveries_one_open on connection_discoveries (connection_id) where status in ('queued', 'running');
create index connection_discoveries_open on connection_discoveries (requested_at) where status in ('queued', 'running');
