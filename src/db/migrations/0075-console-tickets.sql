-- Tickets with which a page opens the stream of a console session: once, within 30 seconds.

create table if not exists console_tickets (
  -- SHA-256 of the ticket: who reads the table can open nothing.
  digest bytea constraint console_tickets_pkey primary key,
  session_id identifier not null constraint console_tickets_session references console_sessions (id) on delete cascade,
  mode text not null constraint console_tickets_mode check (mode in ('write', 'watch')),
  actor_id text not null,
  expires_at timestamptz not null
);
create index if not exists console_tickets_expiry on console_tickets (expires_at);
