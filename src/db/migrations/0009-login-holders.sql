-- Logins at sites that a person made at a process of the fleet, which lends them to the others, and those that wait there for a person.

create table login_holders (
  -- A hash of who logs in where, made without any secret.
  login text not null collate "C",
  -- Drawn at its start.
  process text not null collate "C",
  waiting boolean not null,
  -- Where the process lends it; it asks for the fleet's key.
  address text,
  since timestamptz not null,
  -- Renewed every few seconds: a process that does not is gone.
  seen_at timestamptz not null default clock_timestamp(),
  constraint login_holders_pkey primary key (login, process),
  constraint login_holders_address check (waiting = (address is null))
);
