/** Statements that somebody may try who wants more than to read one entity. None may run. */

/** Expressions with a function, operator, type or value that a statement may not use. */
export const expressions: readonly string[] = `
pg_sleep(1)
pg_sleep_for('1 s')
pg_sleep_until(now())
pg_catalog.pg_sleep(1)
"pg_sleep"(1)
"pg_catalog"."pg_sleep"(1)
U&"\\0070g_sleep"(1)
pg_read_file('/etc/passwd')
pg_read_file('/etc/passwd', 0, 10)
pg_read_binary_file('/etc/passwd')
pg_ls_dir('/')
pg_ls_logdir()
pg_ls_waldir()
pg_ls_tmpdir()
pg_ls_archive_statusdir()
pg_stat_file('/etc/passwd')
pg_current_logfile()
lo_import('/etc/passwd')
lo_export(1, '/tmp/x')
lo_create(0)
lo_creat(-1)
lo_unlink(1)
lo_open(1, 131072)
lo_put(1, 0, 'x')
lo_get(1)
lo_from_bytea(0, 'x')
loread(1, 1)
lowrite(1, 'x')
dblink('host=localhost', 'select 1')
dblink_exec('host=localhost', 'drop table runs')
dblink_connect('host=localhost')
set_config('statement_timeout', '0', false)
current_setting('data_directory')
current_setting('statement_timeout', true)
pg_reload_conf()
pg_rotate_logfile()
pg_terminate_backend(1)
pg_cancel_backend(1)
pg_signal_backend(1)
pg_backend_pid()
pg_promote()
pg_switch_wal()
pg_create_restore_point('x')
pg_backup_start('x')
pg_backup_stop()
pg_wal_replay_pause()
pg_logical_slot_get_changes('x', null, null)
pg_create_logical_replication_slot('x', 'pgoutput')
pg_drop_replication_slot('x')
pg_replication_origin_create('x')
pg_logical_emit_message(true, 'x', 'y')
pg_export_snapshot()
pg_notify('x', 'y')
pg_advisory_lock(1)
pg_advisory_xact_lock(1)
pg_advisory_lock_shared(1)
pg_try_advisory_lock(1)
pg_try_advisory_xact_lock(1)
pg_advisory_unlock_all()
query_to_xml('select 1', true, true, '')
query_to_xmlschema('select 1', true, true, '')
query_to_xml_and_xmlschema('select 1', true, true, '')
table_to_xml('pg_authid', true, true, '')
schema_to_xml('public', true, true, '')
database_to_xml(true, true, '')
cursor_to_xml('c', 1, true, true, '')
xmlparse(document '<a/>')
xmlelement(name a)
xmlforest(1 as a)
xmlpi(name a)
xmlroot(xmlparse(document '<a/>'), version '1.0')
xmlserialize(content '<a/>' as text)
xpath('/a', '<a/>')
xmlagg(null)
has_table_privilege('pg_authid', 'select')
pg_has_role('postgres', 'member')
pg_get_viewdef('provenance.runs')
pg_get_functiondef(1)
pg_get_constraintdef(1)
pg_get_indexdef(1)
pg_get_expr(null, 0)
pg_get_userbyid(10)
pg_table_size('public.credentials')
pg_relation_size('public.credentials')
pg_total_relation_size('public.credentials')
pg_database_size('orrery')
pg_relation_filepath('public.credentials')
pg_filenode_relation(0, 1)
pg_typeof(id)
pg_column_size(id)
pg_collation_for(id)
to_regclass('public.credentials')
to_regrole('postgres')
to_regproc('pg_sleep')
obj_description(1)
col_description(1, 1)
format_type(25, null)
current_user
session_user
current_role
user
current_catalog
current_schema
current_schemas(true)
current_database()
version()
inet_server_addr()
inet_client_addr()
pg_postmaster_start_time()
pg_conf_load_time()
txid_current()
pg_current_xact_id()
pg_current_snapshot()
pg_stat_get_activity(null)
pg_stat_reset()
pg_stat_get_backend_pid(1)
pg_lock_status()
pg_show_all_settings()
pg_hba_file_rules()
pg_prepared_statement()
pg_cursor()
pg_timezone_names()
pg_available_extensions()
pg_get_keywords()
pg_options_to_table(null)
generate_series(1, 1000000000)
generate_subscripts(array[1], 1)
unnest(array[1, 2])
regexp_split_to_table('a b', ' ')
regexp_matches('a', 'a', 'g')
string_to_table('a,b', ',')
json_array_elements('[1]')
jsonb_array_elements('[1]')
json_each('{}')
jsonb_each_text('{}')
json_object_keys('{}')
json_populate_record(null::record, '{}')
jsonb_to_record('{}')
json_to_recordset('[]')
ts_stat('select to_tsvector(id) from runs')
ts_rewrite('a', 'select 1')
repeat('x', 1000000000)
lpad('x', 1000000000)
rpad('x', 1000000000)
format('%1000000000s', 'x')
random()
setseed(0.5)
gen_random_uuid()
uuidv7()
nextval('audit_events_sequence_seq')
setval('audit_events_sequence_seq', 1)
currval('audit_events_sequence_seq')
lastval()
pg_get_serial_sequence('public.audit_events', 'sequence')
pg_sequence_last_value(1)
row_security_active('runs')
binary_upgrade_set_next_pg_type_oid(1)
plpgsql_call_handler()
fmgr_sql_validator(1)
commit_site('r', 's', 1, null, null, null, null, null, null, null, null, null)
public.commit_site('r', 's', 1, null, null, null, null, null, null, null, null, null)
trigrams.show_trgm('x')
trigrams.similarity('a', 'b')
convert_from('x', 'UTF8')
encode('x', 'hex')
decode('00', 'hex')
sha256('x')
hashtext(id)
set_byte('x', 0, 1)
'pg_authid'::regclass
'public.credentials'::regclass::oid
'postgres'::regrole
'pg_sleep'::regproc
'pg_sleep(float8)'::regprocedure
'public'::regnamespace
'text'::regtype
'x'::oid
'x'::xml
'x'::name::regclass
'x'::bytea
'1'::money
'1'::xid
'(1,2)'::point
'a'::tsvector
'a'::tsquery
'1.2.3.4'::inet
cast('pg_authid' as regclass)
regclass 'pg_authid'
cast(null as provenance.runs)
cast(null as public.credentials)
id operator(public.=) 'x'
id operator(pg_temp.=) 'x'
'a' @@ 'b'
'a' <-> 'b'
id % 'x' @@ 'y'
(select rolpassword from pg_authid limit 1)
(select content from credentials limit 1)
(select content from public.credentials limit 1)
(select usename from pg_catalog.pg_user limit 1)
(select table_name from information_schema.tables limit 1)
(select id from plans limit 1)
(select id from provenance.plans limit 1)
exists (select from schedule_plans)
id in (select execution_run_id from task_executions)
id = any (select execution_run_id from attempts)
array(select id from environments)
(values (1))
(table plans)
(with x as (select id from plans) select id from x limit 1)
(with recursive x as (select 1) select * from x)
(with x as (delete from runs returning id) select id from x)
(select id from runs for update)
(select 1 into x)
json_value('{}', '$')
json_query('{}', '$')
json_exists('{}', '$')
json_object('a': 1)
json_array(1)
json_arrayagg(id)
json_objectagg(id: 1)
json('{}')
json_scalar(1)
json_serialize('{}')
'{}' is json
merge_action()
pg_input_is_valid('x', 'regclass')
make_interval(secs => pg_sleep(1))
lower(str => id)
concat(variadic array['a'])
count(*) over (order by pg_sleep(1))
sum(1) filter (where pg_sleep(1) is null)
percentile_disc(0.5) within group (order by pg_sleep(1))
id collate "pg_temp"."x"
id collate "en_US"
grouping(pg_sleep(1))
nullif(pg_sleep(1)::text, '')
greatest(pg_sleep(1)::text, '')
case pg_sleep(1)::text when '' then 1 end
(array[pg_sleep(1)::text])[1]
row(pg_sleep(1))
localtime::regtype
`
  .trim()
  .split('\n')

/** Whole statements. */
export const statements: readonly string[] = `
insert into runs (id) values ('x')
insert into runs select * from runs
update runs set status = 'x'
update provenance.runs set status = 'x' where true
delete from runs
delete from runs using plans
truncate runs
truncate public.credentials cascade
merge into runs r using runs s on r.id = s.id when matched then delete
drop table runs
drop view provenance.runs
drop schema provenance cascade
drop database orrery
drop role postgres
create table x (a int)
create temp table x as select * from runs
create table x as select * from runs
create view x as select * from runs
create materialized view x as select * from runs
create function x() returns int language sql as 'select 1'
create procedure x() language sql as 'select 1'
create extension dblink
create role x superuser
create user mapping for public server x
create server x foreign data wrapper y
create schema x
create trigger x after insert on runs execute function y()
create rule x as on select to runs do instead select 1
create event trigger x on ddl_command_start execute function y()
create subscription x connection 'host=x' publication y
create publication x for all tables
alter table runs add column x int
alter view provenance.runs owner to postgres
alter role current_user superuser
alter role postgres password 'x'
alter system set shared_preload_libraries = 'x'
alter database orrery set statement_timeout = 0
alter default privileges grant all on tables to public
grant all on public.credentials to public
revoke all on provenance.runs from public
reassign owned by postgres to current_user
set statement_timeout = 0
set session authorization postgres
set role postgres
set local role postgres
set transaction read write
set session characteristics as transaction read write
set constraints all deferred
reset all
reset role
discard all
show all
show data_directory
begin
start transaction read write
commit
rollback
savepoint x
prepare x as select 1
prepare transaction 'x'
execute x
deallocate all
declare c cursor for select * from runs
fetch all from c
move c
close all
copy runs to stdout
copy runs to '/tmp/x'
copy runs to program 'id'
copy runs from program 'id'
copy (select * from runs) to program 'id'
copy (select * from public.credentials) to stdout
copy public.credentials from '/etc/passwd'
do $$ begin perform pg_sleep(1); end $$
do language plpgsql 'begin end'
call x()
explain select * from runs
explain analyze select * from runs
explain (analyze, buffers) delete from runs
explain analyze verbose update runs set id = id
analyze runs
vacuum runs
vacuum full
cluster runs
reindex database orrery
refresh materialized view x
lock table runs in access exclusive mode
listen x
notify x, 'y'
unlisten *
load 'x'
checkpoint
comment on table runs is 'x'
security label on table runs is 'x'
import foreign schema x from server y into z
table plans, runs
table pg_authid
table public.credentials
values (1)
values (pg_read_file('/etc/passwd'))
select 1
select pg_sleep(10)
select * from pg_authid
select * from pg_catalog.pg_authid
select * from pg_user
select * from pg_stat_activity
select * from pg_settings
select * from pg_shadow
select * from pg_views
select * from pg_proc
select * from pg_class
select * from information_schema.tables
select * from information_schema.role_table_grants
select * from public.execution_runs
select * from public.credentials
select * from credentials
select * from connections
select * from idempotency_keys
select * from schema_migrations
select * from audit_head
select * from orrery.provenance.runs
select * from other.public.runs
select * from "public"."credentials"
select * from U&"p\\0067_authid"
select * from "RUNS"
select * from runs, plans
select * from runs r, plans p where r.schedule_plan_id = p.id
select * from runs join plans on true
select * from runs natural join plans
select * from runs cross join plans
select * from runs left join plans using (id)
select * from runs full join public.credentials c on true
select * from runs r, lateral (select * from plans p where p.id = r.schedule_plan_id) q
select * from (select * from plans) p, runs
select * from runs where exists (select 1 from plans)
select * from runs where id in (select id from plans)
select id from runs union select id from plans
select id from runs union all select id from public.credentials
select id from runs intersect select id from plans
select id from runs except (select id from task_executions)
select (select count(*) from plans) from runs
select id from runs order by (select 1 from plans)
select id from runs limit (select count(*) from plans)
select id from runs offset (select count(*) from plans)
select id from runs group by id having (select true from plans)
select id from runs window w as (order by (select 1 from plans))
with x as (select 1) select * from x
with x as (select * from runs) select * from x, plans
with x as (select * from plans) select * from x, runs
with x as (select * from runs), y as (select * from plans) select * from x, y
with x as (select * from runs) select * from y
with x as (select * from y), y as (select * from runs) select * from x
with x as (select * from x) select id from runs
with x as (with y as (select * from plans) select * from y) select runs.id from x, runs
with x as (table plans) select runs.id from runs, x
with x as (values (1)) select id from runs
with x as (select id from runs for update) select * from x
with x as (select id into y from runs) select * from x
with x as (select * from runs, pg_ls_dir('/')) select id from x
with x as not materialized (select * from pg_authid) select id from runs
with x(a) as (select pg_sleep(1)) select id from runs
with x as (copy runs to stdout) select id from runs
with x as (merge into runs r using runs s on r.id = s.id when matched then delete) select id from runs
with recursive x as (select id from runs) select id from x
with pg_authid as (select id from runs) select * from pg_authid
with credentials as (select * from credentials) select id from runs
with credentials as (select id from runs) select * from public.credentials
with runs as (select id from runs) select * from provenance.runs
with plans as (select id from runs) select * from runs, provenance.plans
select * from (with x as (select id from runs) select * from x) q, x
(with x as (select id from runs) select id from x) union select id from x
select id from x union (with x as (select id from runs) select id from x)
select id from plans where exists (with plans as (select id from runs) select 1 from plans)
select * from credentials where exists (with credentials as (select id from runs) select 1 from credentials)
select * from pg_class where exists (with pg_class as (select id from runs) select 1 from pg_class)
select id from runs where id in (with x as (select id from runs) select id from x) and exists (select from x)
select id from runs order by (with x as (select 1) select * from x), (select id from x)
with x as (select id from runs), x as (select id from runs) select * from x
with x as (select * from plans) select id from runs
with x as (insert into runs values ('x') returning *) select * from x
with x as (delete from runs returning *) select * from x
with x as (update runs set id = id returning *) select * from x
with recursive x as (select 1 as n union all select n + 1 from x) select * from x
with recursive x as (select id from runs union all select id from x) select id from x
with x as materialized (select pg_sleep(1)) select * from runs
select * into x from runs
select * into temp x from runs
select id into unlogged x from runs
select * from runs for update
select * from runs for no key update
select * from runs for share
select * from runs for key share
select * from runs for update skip locked
select * from runs for update of runs nowait
select * from generate_series(1, 10)
select * from runs, generate_series(1, 1000000000)
select * from runs, unnest(array[1])
select * from runs, pg_ls_dir('/')
select * from runs, pg_read_file('/etc/passwd') f
select * from runs, rows from (generate_series(1, 2), generate_series(1, 3)) x
select * from runs, json_to_recordset('[]') as x(a int)
select * from runs, xmltable('/a' passing '<a/>' columns b text)
select * from runs, json_table('{}', '$' columns (a int path '$'))
select * from runs tablesample system (10)
select * from runs tablesample bernoulli (10) repeatable (1)
select id from runs; select id from runs
select id from runs; drop table runs
select id from runs; copy runs to program 'id'
select id from runs;; delete from runs
select id from runs; commit; delete from runs
/* x */ drop table runs
-- x
select '; drop table runs' from runs; drop table runs
select $$x$$ from runs; drop table runs
select $a$x$b$ from runs; $a$ from runs; drop table runs
select E'\\'; drop table runs; --' from runs; drop table runs
select U&'\\0027' UESCAPE '!' from plans, runs
select "id" from "plans", "runs"
select id from runs where id = 'x' or pg_sleep(1) is null
select id from runs order by id using operator(public.<)
select id from runs order by id using <
select xmin from pg_class
select * from only pg_authid
select * from runs as r(a, b), pg_authid
select r.* from runs r inner join lateral (select * from pg_authid) a on true
select
select from
select * from
select * from runs where
select id from runs where (
select 'unfinished from runs
select "unfinished from runs
select $$unfinished from runs
/* unfinished
select id from runs /* unfinished
;
;;;
x
select id runs from runs from runs
select * from runs where id = $1
select * from runs where id = $2 and id = $1
select * from runs where current of c
select default from runs
select a.b.c.d from runs
select (7355608153::bigint).pg_advisory_lock as x from runs limit 1
select (2::float8).pg_sleep from runs
select ('server_version'::text).current_setting as x from runs
select (('select to_tsvector(id) from audit_events'::text).ts_stat)::text as x from runs
select (array['x'])[1].pg_ls_dir from runs
select ('x'::text).pg_catalog.pg_advisory_lock from runs
select (?::text).ts_stat from runs
select (r).quote_literal from runs r
select r.quote_literal as x from runs r
select runs.num_nulls from runs
select provenance.runs.record_out from provenance.runs
select id from runs r where r.pg_typeof is null
select id from runs r order by r.hash_record
select q.quote_nullable from (select id from runs) q
with q as (select id from runs) select q.row_to_json from q
select (select r.quote_literal) from runs r
select count(*) filter (where r.pg_column_size > 1) from runs r
select r.json_agg from task_executions r, task_executions b
select r.json_agg, q.json_agg from runs r, (select json_agg(id) from runs) q
select a.quote_literal, 1 as quote_literal from runs a
select (select z.v from (select 1 as to_json) x, (select x.to_json as v) z limit 1) from runs x
select (select x.to_json from (runs a join (select 1 as to_json) x on true) as j limit 1) from runs x
select (select z.to_json from (select * from runs) z) from (select 1 as to_json from runs) o
select (select 1 from (select 1 as num_nulls) x, (runs a join runs b on x.num_nulls > 1)) from runs x
select j.text from runs a join runs b using (id) as j
with q(a) as (select id from runs) select q.to_jsonb from q
select provenance.runs.to_json from runs
`
  .split('\n')
  .filter((line) => line !== '')

/** The names of functions that no statement may call, as if they were attributes. */
export const attributes: readonly string[] = [
  ...new Set(
    expressions.flatMap((text) => {
      const [name] =
        /^(?:pg|lo|dblink|ts|txid|xml|has|query|table|schema|set|current)_[a-z_]+(?=\()/.exec(text) ?? []
      return name === undefined ? [] : [`('x'::text).${name}`, `(id).pg_catalog.${name}`, `runs.${name}`]
    }),
  ),
]

const long = 'a'.repeat(30_000)
const nested = (levels: number, inner: string, around: (inner: string) => string): string =>
  levels === 0 ? inner : around(nested(levels - 1, inner, around))
const doubled = (levels: number): string =>
  nested(levels, 'runs', (inner) => `(select id || id as id from ${inner} x)`)
const repeated = (name: string): string => Array(50).fill(name).join(' || ')

/** Short statements whose values would be hundreds of megabytes long, with their parameters. */
export const growing: readonly (readonly [statement: string, ...params: unknown[]])[] = [
  ["select length(replace(?, 'a', ?)) from runs", long, 'b'.repeat(30_000)],
  [`select length(replace('${long}', 'a', '${long}')) from runs`],
  ['select length(replace(?, id, ?)) from runs', long, long],
  [`select ${nested(30, 'id', (inner) => `replace(${inner}, 'a', 'aa')`)} from runs`],
  ["select length(regexp_replace(?, 'a', ?, 'g')) from runs", long, long],
  ["select length(regexp_replace(?, '', ?, 1, 0)) from runs", long, long],
  [`select ${nested(30, 'id', (inner) => `regexp_replace(${inner}, '.*', '\\1\\&')`)} from runs`],
  [`select ${nested(30, 'id', (inner) => `regexp_replace(${inner}, '', 'a', 'g')`)} from runs`],
  [`select regexp_match(?, '${'('.repeat(3_000)}.*${')'.repeat(3_000)}') from runs`, long],
  ["select length(string_agg(?, '')) from runs a, runs b, runs c", long],
  ['select length(string_agg(id, ?)) from runs a, runs b', long],
  ['select array_length(array_agg(?::text), 1) from runs a, runs b', long],
  ['select json_agg(?::text) from runs a, runs b', long],
  ['select jsonb_object_agg(id, ?::text) from runs a, runs b', long],
  ['select array(select ? || id from runs) from runs', long],
  ['select length(array_to_string(array_agg(id), ?)) from runs', long],
  [`select length(array_to_string(array[${"'',".repeat(9_000)}''], ?)) from runs`, long],
  [`select concat_ws(?${", ''".repeat(90)}) from runs`, long.repeat(30)],
  [`select length(id) from ${doubled(30)} y`],
  [`select count(*) from ${doubled(30)} y where id > 'a'`],
  [`select to_json(y) from ${doubled(30)} y`],
  [`select ${Array(100).fill('a').join(' || ')} from (select ?::text as a from runs) x`, long.repeat(30)],
  [
    `select ${Array.from({ length: 100 }, (_, i) => `a as a${String(i)}`).join(', ')}
      from (select ?::text as a from runs) x`,
    long.repeat(30),
  ],
  [`select ${Array.from({ length: 9 }, () => 'id::char(10000000)').join(' || ')} from runs`],
  ['select string_agg(id::char(100000), id) from runs'],
  [`select length(string_agg('${'a'.repeat(6_000)}', '')) from runs a, runs b`],
  [
    `with a as (select ${repeated('id')} c from runs limit 1), b as (select ${repeated('c')} c from a),
      d as (select ${repeated('c')} c from b), e as (select ${repeated('c')} c from d) select length(c) from e`,
  ],
  [`select (array[id])::char(10000000)[] from runs`],
  ["select string_agg(('1e100000'::numeric)::text, '') from runs"],
  ["select string_agg((?::numeric)::text, '') from runs", '1e100000'],
  ["select string_agg((1e100000)::text, '') from runs"],
  ["select string_agg((10::numeric ^ 100000)::text, '') from runs"],
  ["select string_agg(power(10::numeric, 100000)::text, '') from runs"],
  ["select string_agg(round(1::numeric, 16000)::text, '') from runs"],
  [`select ${nested(40, 'id', (inner) => `to_json(${inner}::text)`)} from runs`],
  [`select ${nested(40, 'id', (inner) => `array[${inner}::text]`)} from runs`],
  [`select ${nested(40, 'id', (inner) => `row(${inner}::text)`)} from runs`],
  [`select ${nested(40, 'id', (inner) => `like_escape(${inner}, '#')`)} from runs`],
  [`select ${nested(40, 'id', (inner) => `to_char(now(), ${inner})`)} from runs`],
  [
    `with t0 as (select ?::text as x from runs limit 1)${Array.from(
      { length: 40 },
      (_, i) => `, t${i + 1} as (select j::text as x from t${i} a join t${i} b using (x) as j)`,
    ).join('')} select length(x) from t40`,
    long,
  ],
]
