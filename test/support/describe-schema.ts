import type { Database } from '../../src/db/pool.ts'

const statements = `
  with tables as (select c.oid, c.relname as name, c.reloptions from pg_class c join pg_namespace n
    on n.oid = c.relnamespace where n.nspname = 'public' and c.relkind = 'r')
  select 1 as part, t.typname as name, format(E'create domain %s as %s%s %s;', t.typname,
    format_type(t.typbasetype, t.typtypmod), case when t.typcollation <> 0 then ' collate "' || (select
      collname from pg_collation where oid = t.typcollation) || '"' else '' end,
      (select string_agg(pg_get_constraintdef(k.oid), ' ' order by k.conname) from pg_constraint k
        where k.contypid = t.oid)) as text
    from pg_type t join pg_namespace n on n.oid = t.typnamespace where n.nspname = 'public' and t.typtype = 'd'
  union all
  select 2, t.name, format(E'create table %s (\\n%s\\n)%s;', t.name,
      (select string_agg('  ' || line, E',\\n' order by kind, place, line) from (
        select 1 as kind, a.attnum::int as place, a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
            || case when a.attcollation <> ty.typcollation then ' collate "' || (select collname
              from pg_collation where oid = a.attcollation) || '"' else '' end
            || case when a.attidentity <> '' then ' generated always as identity' else '' end
            || case when a.attnotnull then ' not null' else ''
              end || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '') as line
          from pg_attribute a join pg_type ty on ty.oid = a.atttypid left join pg_attrdef d
            on d.adrelid = a.attrelid and d.adnum = a.attnum where a.attrelid = t.oid and a.attnum > 0
              and not a.attisdropped
        union all select 2, 0, 'constraint ' || k.conname || ' ' || pg_get_constraintdef(k.oid)
          from pg_constraint k where k.conrelid = t.oid and k.contype <> 'n') lines),
      coalesce(' with (' || array_to_string(t.reloptions, ', ') || ')', ''))
    from tables t
  union all
  select 3, i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) || ';' from pg_index i join tables t
    on t.oid = i.indrelid
    where not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))
  union all
  select 4, p.proname, pg_get_functiondef(p.oid) || ';' from pg_proc p join pg_namespace n
    on n.oid = p.pronamespace where n.nspname = 'public'
  union all
  select 5, c.relname, format(E'create view %s as\\n%s', c.relname, pg_get_viewdef(c.oid)) from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'public' and c.relkind = 'v'
  order by 1, 2`

/**
 * The database's schema after all migrations, as text to review: domains, tables with constraints,
 * indexes, functions, views.
 */
export const describeSchema = async (db: Database): Promise<string> => {
  const rows = await db.prepared<{ text: string }>('describe_schema', statements, [])
  return (
    `-- What the migrations result in; made by \`npm run docs:schema\`, compared by a test. Not ` +
    `run by anything.\n\n${rows.map((row) => row.text).join('\n\n')}\n`
  )
}
