-- Instances that were imported: the rows of each stand in a schema of its own.

create table if not exists instance_archives (
  id identifier not null,
  schema_name text not null,
  name text not null,
  description text,
  exported_at timestamp with time zone not null,
  imported_at timestamp with time zone not null default now(),
  last_opened_at timestamp with time zone,
  schema_version integer not null,
  service_version text not null,
  contents jsonb not null,
  constraint instance_archives_pkey primary key (id),
  constraint instance_archives_schema unique (schema_name)
);

-- Which one the API reads; without a row the default instance.
create table if not exists instance_activation (
  singleton boolean not null default true,
  instance_id identifier not null,
  activated_at timestamp with time zone not null default now(),
  constraint instance_activation_pkey primary key (singleton),
  constraint instance_activation_single check (singleton),
  constraint instance_activation_archive foreign key (instance_id) references instance_archives (id)
);
