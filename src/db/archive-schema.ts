import { pipeline } from 'node:stream/promises'
import pg from 'pg'
import { from as copyFrom, to as copyTo } from 'pg-copy-streams'
import { z } from 'zod'
import { inArchive, provenanceOf } from './archive-names.ts'
import { readDefinitions } from './definitions.ts'
import { databaseAway } from './errors.ts'
import { toCopyLines, toJsonLines, type ColumnKind } from './json-lines.ts'
import { readMigrations } from './migrations.ts'
import { raw, sql, type Db, type Sql } from './sql.ts'

/** Tables that belong to this installation and to no archive. */
export const leftOut: ReadonlySet<string> = new Set([
  'credentials',
  'idempotency_keys',
  'site_leases',
  'lane_leases',
  'site_removals',
  'login_holders',
  'console_records',
  'event_feed_open',
  'schema_migrations',
  'schema_definitions',
  'instance_archives',
  'instance_activation',
  'instance_cleanups',
])

export interface ArchiveTable {
  name: string
  columns: string[]
  /** How COPY writes each column; `other` types go through `to_json`. */
  kinds: (ColumnKind | 'other')[]
  /** The columns of its primary key, in their order. */
  key: string[]
}

const quoted = (name: string): string => pg.escapeIdentifier(name)
const listOf = (columns: readonly string[]): string => columns.map(quoted).join(', ')

/** The tables that an archive holds. Each table comes after those that it refers to. */
export const archiveTables = async (client: pg.ClientBase, schema: string): Promise<ArchiveTable[]> => {
  const { rows } = await client.query<ArchiveTable & { needs: string[] }>(
    `select c.relname as name,
       array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
         and not a.attisdropped and a.attgenerated = '' order by a.attnum) as columns,
       array(select case
           when t.typtype = 'd' then 'other'
           when t.typcategory = 'S' or t.typtype = 'e' then 'text'
           when t.oid in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'float4'::regtype,
             'float8'::regtype, 'numeric'::regtype) then 'number'
           when t.oid = 'bool'::regtype then 'boolean'
           when t.oid in ('json'::regtype, 'jsonb'::regtype) then 'json' else 'other' end
         from pg_attribute a join pg_type t on t.oid = a.atttypid where a.attrelid = c.oid and a.attnum > 0
         and not a.attisdropped and a.attgenerated = '' order by a.attnum) as kinds,
       array(select a.attname::text from pg_index i, unnest(i.indkey) with ordinality as k (attnum, at)
         join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
         where i.indrelid = c.oid and i.indisprimary order by k.at) as key,
       array(select r.relname::text from pg_constraint f join pg_class r on r.oid = f.confrelid
         where f.conrelid = c.oid and f.contype = 'f' and f.confrelid <> c.oid) as needs
     from pg_class c where c.relkind = 'r' and c.relnamespace = $1::regnamespace order by 1`,
    [quoted(schema)],
  )
  const waiting = rows.filter(({ name }) => !leftOut.has(name))
  const ordered: ArchiveTable[] = []
  const placed = new Set<string>(leftOut)
  while (waiting.length > 0) {
    const at = waiting.findIndex(({ needs }) => needs.every((need) => placed.has(need)))
    const [next] = waiting.splice(at, at === -1 ? 0 : 1)
    if (next === undefined) throw new Error('tables refer to each other in a circle')
    placed.add(next.name)
    ordered.push({ name: next.name, columns: next.columns, kinds: next.kinds, key: next.key })
  }
  return ordered
}

/** One state of the whole database, on a connection of its own. */
export interface Snapshot {
  tables: ArchiveTable[]
  count(table: string): Promise<number>
  /** Rows as JSON objects, one a line, whole lines, with PostgreSQL's texts of their values. */
  rows(table: ArchiveTable): AsyncIterable<string>
}

/** Whole lines of a stream of bytes. @throws SyntaxError for bytes that are not UTF-8 */
const wholeLines = async function* (chunks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
  const decoded = (chunk: Buffer): string => {
    try {
      return decoder.decode(chunk, { stream: true })
    } catch {
      throw new SyntaxError('bytes that are not UTF-8')
    }
  }
  let rest: string[] = []
  for await (const chunk of chunks) {
    const text = decoded(chunk)
    const end = text.lastIndexOf('\n') + 1
    if (end > 0) {
      yield rest.join('') + text.slice(0, end)
      rest = []
    }
    rest.push(text.slice(end))
  }
}

const readRows = async function* (
  client: pg.ClientBase,
  { name, columns, kinds }: ArchiveTable,
): AsyncGenerator<string> {
  const convert = toJsonLines(
    columns.map((column, at) => {
      const kind = kinds[at] ?? 'other'
      return { name: column, kind: kind === 'other' ? 'json' : kind }
    }),
  )
  const list = columns.map((column, at) =>
    kinds[at] === 'other' ? `to_json(${quoted(column)})` : quoted(column),
  )
  const stream = client.query(copyTo(`copy (select ${list.join(', ')} from ${quoted(name)}) to stdout`))
  for await (const lines of wholeLines(stream as AsyncIterable<Buffer>)) yield convert(lines)
}

/**
 * Runs `work` on one state of the database, however long it takes. No other session waits for it.
 */
export const withSnapshot = async <T>(
  session: () => Promise<pg.Client>,
  work: (snapshot: Snapshot) => Promise<T>,
): Promise<T> => {
  const client = await session()
  try {
    await client.query("set timezone = 'UTC'")
    await client.query('begin isolation level repeatable read, read only')
    return await work({
      tables: await archiveTables(client, 'public'),
      count: async (table) =>
        Number(
          (await client.query<{ n: string }>(`select count(*) as n from ${quoted(table)}`)).rows[0]?.n ?? 0,
        ),
      rows: (table) => readRows(client, table),
    })
  } finally {
    await client.end().catch(() => undefined)
  }
}

const applyMigrations = async (
  client: pg.ClientBase,
  schema: string,
  after: number,
  upTo: number,
): Promise<void> => {
  for (const { number, name, text, hash } of await readMigrations()) {
    if (number <= after || number > upTo) continue
    await client.query(inArchive(text, schema))
    await client.query('insert into schema_migrations (number, name, hash) values ($1, $2, $3)', [
      number,
      name,
      hash,
    ])
  }
}

const applyDefinitions = async (client: pg.ClientBase, schema: string): Promise<void> => {
  const { files, hash, number } = await readDefinitions()
  for (const { text } of files) await client.query(inArchive(text, schema))
  await client.query(
    'insert into schema_definitions (number, hash) values ($1, $2) on conflict (number) do update set hash = $2',
    [number, hash],
  )
}

/** An arbitrary number. Every version of the service has to use the same one. */
const lock = 7_355_608_154

/** The actions of a transaction that fills the schema of an archive. */
export interface Filling {
  tables: ArchiveTable[]
  /** Loads rows as `Snapshot.rows` gives them. @returns their number */
  load(table: ArchiveTable, columns: readonly string[], rows: AsyncIterable<Buffer>): Promise<number>
  count(table: string): Promise<number>
  /** Records the archive itself, in the same transaction. */
  record(statement: Sql): Promise<void>
}

const loadRows = async (
  client: pg.ClientBase,
  schema: string,
  { name, columns: own, kinds }: ArchiveTable,
  columns: readonly string[],
  rows: AsyncIterable<Buffer>,
): Promise<number> => {
  const convert = toCopyLines(
    columns.map((column) => ({ name: column, kind: kinds[own.indexOf(column)] ?? 'other' })),
  )
  const fields = async function* (): AsyncGenerator<Buffer> {
    for await (const lines of wholeLines(rows)) yield Buffer.from(convert(lines))
  }
  const taken = client.query(
    copyFrom(`copy ${quoted(schema)}.${quoted(name)} (${listOf(columns)}) from stdin`),
  )
  await pipeline(fields(), taken)
  return taken.rowCount
}

/**
 * Removes the foreign keys and the indexes that are not unique from the tables of a schema that are
 * about to be filled. Both are made faster of all rows than row by row.
 * @returns makes them again, and checks every row
 */
export const withoutIndexes = async (client: pg.ClientBase, schema: string): Promise<() => Promise<void>> => {
  const { rows } = await client.query<{ drop: string; make: string }>(
    `select 1 as turn, format('drop index %s', i.indexrelid::regclass) as drop, pg_get_indexdef(i.indexrelid) as make
       from pg_index i join pg_class c on c.oid = i.indrelid
       where c.relnamespace = $1::regnamespace and c.relkind = 'r' and not i.indisunique
     union all
     select 2, format('alter table %s drop constraint %I', f.conrelid::regclass, f.conname),
         format('alter table %s add constraint %I %s', f.conrelid::regclass, f.conname, pg_get_constraintdef(f.oid))
       from pg_constraint f where f.connamespace = $1::regnamespace and f.contype = 'f'
     order by turn, make`,
    [quoted(schema)],
  )
  for (const { drop } of rows.toReversed()) await client.query(drop)
  return async () => {
    await client.query("set local maintenance_work_mem = '256MB'")
    for (const { make } of rows) await client.query(make)
  }
}

/**
 * Creates the schema of an archive in one transaction: creates the tables as of `version`, lets
 * `fill` load the rows, then applies the later migrations. A failure, and the end of `deadline` in
 * any of the steps, leave no schema behind.
 */
export const createArchiveSchema = async (
  session: () => Promise<pg.Client>,
  schema: string,
  version: number,
  fill: (filling: Filling) => Promise<void>,
  deadline: AbortSignal,
): Promise<void> => {
  const client = await session()
  client.on('error', () => undefined)
  let end = (): void => undefined
  try {
    // The server goes on with a statement whose client is gone.
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid')
    end = () => void endSession(session, rows[0]?.pid ?? 0).catch(() => undefined)
    deadline.addEventListener('abort', end, { once: true })
    deadline.throwIfAborted()
    await client.query("set timezone = 'UTC'")
    await client.query('begin')
    // Migrations name objects that archives share, such as an extension: one import after another.
    await client.query('select pg_advisory_xact_lock($1)', [lock])
    await client.query(`create schema ${quoted(schema)}`)
    await client.query(`set local search_path = ${quoted(schema)}`)
    await client.query(
      'create table schema_migrations (number integer primary key, name text not null, hash text not ' +
        'null, applied_at timestamptz not null default now())',
    )
    await client.query(
      'create table schema_definitions (number integer primary key, hash text not null, applied_at ' +
        'timestamptz not null default now())',
    )
    await applyMigrations(client, schema, 0, version)
    const tables = await archiveTables(client, schema)
    // Migrations insert rows too. The archive holds the same rows, so these are deleted first.
    for (const { name } of tables.toReversed()) await client.query(`delete from ${quoted(name)}`)
    const remake = await withoutIndexes(client, schema)
    await fill({
      tables,
      load: (table, columns, rows) => loadRows(client, schema, table, columns, rows),
      count: async (table) =>
        Number(
          (await client.query<{ n: string }>(`select count(*) as n from ${quoted(table)}`)).rows[0]?.n ?? 0,
        ),
      record: async (statement) => void (await client.query(statement.toQuery())),
    })
    await remake()
    // Without figures the reads of an archive would be planned as those of empty tables.
    for (const { name } of tables) await client.query(`analyze ${quoted(name)}`)
    // Deferred constraints are checked here: pending ones would make the migrations fail.
    await client.query('set constraints all immediate')
    await applyMigrations(client, schema, version, Number.POSITIVE_INFINITY)
    await applyDefinitions(client, schema)
    await client.query('commit')
  } finally {
    deadline.removeEventListener('abort', end)
    await client.end().catch(() => undefined)
  }
}

/** Has the server end a session, whatever it does. */
const endSession = async (session: () => Promise<pg.Client>, pid: number): Promise<void> => {
  const other = await session()
  try {
    await other.query('select pg_terminate_backend($1)', [pid])
  } finally {
    await other.end()
  }
}

/** An archive that stays as it was, because its tables or views could not be made those of this version. */
export interface OldArchive {
  id: string
  error: unknown
}

/** Errors that another start need not meet: the database is away, full or busy. */
const passes = (error: unknown): boolean =>
  databaseAway(error) || /^(53|55P03|40P01|57014)/.test((error as { code?: string }).code ?? '')

/**
 * Migrates the schemas of archives to the newest tables and views, one transaction each.
 * @returns those that could not be migrated: they keep no other from its migration
 * @throws an error that passes by itself
 */
export const migrateArchives = async (client: pg.ClientBase): Promise<OldArchive[]> => {
  const { rows } = await client.query<{ id: string; schema: string }>(
    'select id, schema_name as schema from public.instance_archives order by id',
  )
  const { hash } = await readDefinitions()
  const old: OldArchive[] = []
  for (const { id, schema } of rows) {
    await client.query('begin')
    try {
      await client.query(`set local search_path = ${quoted(schema)}`)
      const [state] = (
        await client.query<{ number: number; hash: string | null }>(
          'select (select max(number) from schema_migrations) as number, (select hash from ' +
            'schema_definitions order by number desc limit 1) as hash',
        )
      ).rows
      const before = state?.number ?? 0
      const newest = (await readMigrations()).at(-1)?.number ?? 0
      await applyMigrations(client, schema, before, newest)
      if (before < newest || state?.hash !== hash) await applyDefinitions(client, schema)
      await client.query('commit')
    } catch (error) {
      await client.query('rollback')
      // The next start may migrate it.
      if (passes(error)) throw error
      old.push({ id, error })
    }
  }
  return old
}

const stateOf = (schema: string): Sql =>
  raw(`(select max(number) from ${quoted(schema)}.schema_migrations),
    (select hash from ${quoted(schema)}.schema_definitions order by number desc limit 1)`)

/** Whether the tables and views of an archive are those of this installation. */
export const isMigrated = (db: Db, schema: string): Promise<boolean> =>
  db.only(
    z.boolean(),
    sql`select (${stateOf(schema)}) is not distinct from (${stateOf('public')}) as migrated`,
  )

/** Statements that remove the schemas of an archive. */
export const dropArchiveSchema = (schema: string): Sql[] =>
  [schema, provenanceOf(schema)].map((name) => raw(`drop schema if exists ${quoted(name)} cascade`))
