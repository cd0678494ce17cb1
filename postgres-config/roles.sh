#!/bin/sh
# Makes a role with its database for Orrery, and a role with its two databases for Temporal, and
# sets their passwords. Connects as the superuser by PG* variables. Harmless when all is there. The
# roles are no superusers; each can connect to its own databases only. Orrery's may make roles, for
# the one that reads for SQL over provenance.
set -eu
psql() { command psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 "$@"; }

psql --dbname postgres <<'SQL'
-- A statement that fails is not logged with its password.
set log_min_error_statement = panic;
\getenv orrery ORRERY_DATABASE_PASSWORD
\getenv temporal TEMPORAL_DATABASE_PASSWORD
select format('create role %I login', name) from unnest(array['orrery_service', 'temporal']) as name
where not exists (select from pg_roles where rolname = name) \gexec
alter role orrery_service password :'orrery';
alter role temporal password :'temporal';
-- From version 16 on such a role administers the roles that it has made itself, and no others.
select 'alter role orrery_service createrole' where current_setting('server_version_num')::int >= 160000 \gexec
-- The one that reads may be of a time in which the superuser made it. Its name follows from the database's.
select format('grant %I to orrery_service with admin option', rolname) from pg_roles
where rolname = 'orrery_reader_' || left(encode(sha256('orrery'), 'hex'), 16)
  and current_setting('server_version_num')::int >= 160000
  and not exists (
    select from pg_auth_members
    where roleid = pg_roles.oid and member = 'orrery_service'::regrole and admin_option
  ) \gexec
SQL

# What somebody else owns in a database goes to its role: a restored dump, and records of a time in
# which the superuser served all.
own() {
  psql --dbname postgres --set database="$1" --set role="$2" <<'SQL'
select format('create database %I', :'database') where not exists (
  select from pg_database where datname = :'database') \gexec
alter database :"database" owner to :"role";
revoke connect, temporary on database :"database" from public;
SQL
  psql --dbname "$1" --set role="$2" <<'SQL'
select format('alter %s %s owner to %I', kind, name, :'role')
from (
  select 'pg_namespace'::regclass as class, oid, 'schema' as kind, quote_ident(nspname) as name,
    oid as namespace, nspowner as owner
  from pg_namespace where nspname <> 'public'
  union all
  select 'pg_class'::regclass, oid, case relkind when 'S' then 'sequence' else 'table' end,
    oid::regclass::text, relnamespace, relowner
  from pg_class where relkind in ('r', 'p', 'v', 'm', 'S')
  union all
  select 'pg_type'::regclass, oid, 'type', oid::regtype::text, typnamespace, typowner
  from pg_type where typtype in ('d', 'e')
  union all
  select 'pg_proc'::regclass, oid, 'routine', oid::regprocedure::text, pronamespace, proowner from pg_proc
) as object
where owner <> :'role'::regrole
  and (select nspname not like 'pg\_%' and nspname <> 'information_schema' from pg_namespace where oid = namespace)
  -- Parts of an extension keep their owner; the sequence of a column follows its table.
  and not exists (
    select from pg_depend
    where classid = object.class and objid = object.oid and (deptype = 'e'
      or (kind = 'sequence' and deptype in ('a', 'i')))
  )
\gexec
SQL
}
own orrery orrery_service
own temporal temporal
own temporal_visibility temporal
