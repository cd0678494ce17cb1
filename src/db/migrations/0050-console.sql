-- Console: commands are operations; sessions are terminals with a recording.

create table if not exists console_commands (
  id identifier constraint console_commands_pkey primary key,
  generation integer not null default 1,
  status text not null default 'accepted',
  resource_id identifier not null,
  runtime_id identifier not null,
  connection_id text,
  actor_id text,
  command text not null,
  working_directory text,
  environment jsonb,
  cpu_cores integer,
  memory_bytes bigint,
  timeout_seconds integer not null,
  -- Where it runs, as it was at the acceptance.
  place jsonb not null,
  stdout bytea,
  stderr bytea,
  stdout_truncated boolean not null default false,
  stderr_truncated boolean not null default false,
  exit_code integer,
  external_id text,
  failure_reason text,
  dispatched_at timestamptz,
  cancel_requested_at timestamptz,
  cancel_actor text,
  cancel_reason text,
  last_event_sequence bigint not null default 0,
  created_at timestamptz not null default clock_timestamp(),
  started_at timestamptz,
  finished_at timestamptz,
  constraint console_commands_status check (status in ('accepted', 'running', 'completed', 'failed', 'cancelled'))
);
create index if not exists console_commands_newest on console_commands (created_at desc, id desc);
create index if not exists console_commands_open on console_commands (created_at, id) where status in ('accepted', 'running');

create table if not exists console_sessions (
  id identifier constraint console_sessions_pkey primary key,
  status text not null default 'starting',
  resource_id identifier not null,
  runtime_id identifier not null,
  connection_id text,
  actor_id text,
  place jsonb not null,
  external_id text,
  failure text,
  -- Bytes of the terminal's own recording that are stored here: where the next read of it begins.
  taken_bytes bigint not null default 0,
  recorded_bytes bigint not null default 0,
  close_requested_at timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  connected_at timestamptz,
  finished_at timestamptz,
  constraint console_sessions_status check (status in ('starting', 'connected', 'closed', 'failed'))
);
create index if not exists console_sessions_open on console_sessions (created_at, id) where status in ('starting', 'connected');
create index if not exists console_sessions_finished on console_sessions (finished_at) where finished_at is not null;

create table if not exists console_records (
  session_id identifier not null constraint console_records_session references console_sessions on delete cascade,
  sequence bigint not null,
  direction text not null,
  -- Seconds since the terminal was opened.
  at_seconds double precision not null,
  content bytea not null,
  constraint console_records_pkey primary key (session_id, sequence),
  constraint console_records_direction check (direction in ('input', 'output', 'resize'))
);
