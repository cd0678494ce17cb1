-- Files that a factory reset has still to remove; a start of the service goes on with it.

create table if not exists instance_cleanups (
  id identifier not null,
  requested_at timestamp with time zone not null default now(),
  constraint instance_cleanups_pkey primary key (id)
);
