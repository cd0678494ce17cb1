import { createHmac, createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import pg from 'pg'
import { to as copyTo } from 'pg-copy-streams'
import { databaseAway } from './errors.ts'

/** PostgreSQL refused a statement of a client. */
export class StatementRefused extends Error {
  /** Place in the statement that was run, in characters from 1; undefined where PostgreSQL names none. */
  readonly position: number | undefined
  /** The deadline ended it. */
  readonly late: boolean
  constructor(message: string, position: number | undefined, late: boolean, options?: ErrorOptions) {
    super(message, options)
    this.name = 'StatementRefused'
    this.position = position
    this.late = late
  }
}

/** The reading role cannot be used; `statements` make it. */
export class ReaderUnavailable extends Error {
  readonly statements: string
  constructor(message: string, statements: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'ReaderUnavailable'
    this.statements = statements
  }
}

/** Sessions of a login role that may read the views of schema `provenance` and do nothing else. */
export interface Reader {
  /**
   * The rows of a read-only statement as PostgreSQL writes them: JSON objects one a line, or CSV with its heading. `$n` are not possible.
   * The session is free when the stream has ended or is destroyed.
   */
  copy(statement: string, options: { as: 'json' | 'csv'; limit?: number; deadlineMs: number }): Promise<Readable>
  /** PostgreSQL's plan of a statement, which is not run. */
  explain(statement: string, deadlineMs: number): Promise<unknown>
  [Symbol.asyncDispose](): Promise<void>
}

const schema = 'provenance'
/** Each daemon holds at most this many sessions of the role. */
const sessions = 6

const quoted = (name: string): string => pg.escapeIdentifier(name)

/** The role of a database: roles are shared by all databases of a server, so its name is made of the database's. */
const roleOf = (database: string): string => `orrery_reader_${createHash('sha256').update(database).digest('hex').slice(0, 16)}`

/** What makes the role and gives it the views, in statements that may run again. */
const grants = (role: string): string[] => [
  `grant usage on schema ${schema} to ${quoted(role)}`,
  `grant select on all tables in schema ${schema} to ${quoted(role)}`,
  `alter role ${quoted(role)} set default_transaction_read_only = on`,
  `alter role ${quoted(role)} set statement_timeout = '10s'`,
  `alter role ${quoted(role)} set lock_timeout = '2s'`,
  `alter role ${quoted(role)} set search_path = ${schema}`,
]
const attributes = 'login noinherit connection limit 40'

const statementsFor = (role: string): string =>
  [`create role ${quoted(role)} ${attributes} password '…'`, ...grants(role)].map((line) => `${line};`).join(' ')

/** Any number will do as long as every version of the service uses the same. */
const lock = 7_355_608_152

/**
 * The URL of the role, which is made or renewed with the service's own login. Its password follows from that login's, so that every daemon of
 * a database finds the same one and none is stored.
 * @throws ReaderUnavailable where the login may not make roles or has no password of its own
 */
const ensureRole = async (databaseUrl: string): Promise<string> => {
  const url = new URL(databaseUrl)
  const own = url.password === '' ? (url.searchParams.get('password') ?? '') : decodeURIComponent(url.password)
  const database = decodeURIComponent(url.pathname.slice(1))
  const role = roleOf(database)
  const remedy = statementsFor(role)
  if (own === '')
    throw new ReaderUnavailable("the service's own login has no password that one for the reading role could follow from", remedy)
  const password = createHmac('sha256', own).update(`orrery provenance reader ${database}`).digest('base64url')
  const client = new pg.Client({ connectionString: databaseUrl, connectionTimeoutMillis: 5_000 })
  client.on('error', () => undefined)
  await client.connect()
  try {
    await client.query('begin')
    await client.query('select pg_advisory_xact_lock($1)', [lock])
    const { rows } = await client.query('select from pg_roles where rolname = $1', [role])
    const verb = rows.length === 0 ? `create role ${quoted(role)} ${attributes}` : `alter role ${quoted(role)}`
    await client.query(`${verb} password ${pg.escapeLiteral(password)}`)
    for (const statement of grants(role)) await client.query(statement)
    await client.query('commit')
  } catch (error) {
    if ((error as { code?: string }).code === '42501')
      throw new ReaderUnavailable("the service's login may not make the reading role", remedy, { cause: error })
    throw error
  } finally {
    await client.end()
  }
  url.username = role
  url.password = password
  url.searchParams.delete('password')
  return url.href
}

interface PgError {
  code?: string
  position?: string
  message: string
}

/** Errors of a statement, by class: syntax and access, data, limits, cancelled. Everything else is a fault of ours or an outage. */
const ofStatement = /^(42|22|21|0A|54|57014|25006|20|2F|38|3F|53200|53400)/

const refusedOr = (error: unknown, before: number): unknown => {
  const { code, position, message } = error as PgError
  if (code === undefined || databaseAway(error) || !ofStatement.test(code)) return error
  const at = position === undefined ? undefined : Number(position) - before
  return new StatementRefused(message, at !== undefined && at >= 1 ? at : undefined, code === '57014', { cause: error })
}

/** Characters as PostgreSQL counts them. */
const characters = (text: string): number => [...text].length

/** Neither occurs in JSON text, so COPY quotes nothing. */
const lines = `(format csv, quote E'\\x01', delimiter E'\\x02')`

/**
 * Opens at first use. `readerUrl` names a role that somebody has made; without one the role is made with the service's own login.
 */
export const openReader = (options: { databaseUrl: string; readerUrl: string | undefined }): Reader => {
  let opening: Promise<pg.Pool> | undefined
  const open = async (): Promise<pg.Pool> => {
    const connectionString = options.readerUrl ?? (await ensureRole(options.databaseUrl))
    const pool = new pg.Pool({
      connectionString,
      max: sessions,
      connectionTimeoutMillis: 5_000,
      idleTimeoutMillis: 60_000,
      keepAlive: true,
      // A session whose client has gone notices it within a second, also while it computes.
      options: `-c default_transaction_read_only=on -c search_path=${schema} -c timezone=UTC -c standard_conforming_strings=on -c client_connection_check_interval=1s -c lock_timeout=2s -c max_parallel_workers_per_gather=0`,
    })
    pool.on('error', () => undefined)
    return pool
  }
  const named = decodeURIComponent(new URL(options.databaseUrl).pathname.slice(1))
  const session = async (deadlineMs: number): Promise<pg.PoolClient> => {
    opening ??= open()
    let client: pg.PoolClient | undefined
    try {
      client = await (await opening).connect()
      // A setting outlives its statement, so each one sets its own.
      await client.query(`set statement_timeout = ${String(Math.ceil(deadlineMs))}`)
      return client
    } catch (error) {
      client?.release(true)
      const { code } = error as PgError
      if (code !== '28P01' && code !== '28000' && code !== '42501') throw error
      // Another password, or a role that has gone: the next statement makes it again.
      const pool = opening
      opening = undefined
      await pool.then((one) => one.end()).catch(() => undefined)
      throw new ReaderUnavailable('PostgreSQL does not accept the reading role', statementsFor(roleOf(named)), { cause: error })
    }
  }

  return {
    async copy(statement, { as, limit, deadlineMs }) {
      const before = as === 'csv' ? 'copy (' : 'copy (select row_to_json(q) from (\n'
      const rows = limit === undefined ? '' : ` limit ${String(limit)}`
      const after = as === 'csv' ? '\n) to stdout with (format csv, header)' : `\n) q${rows}) to stdout with ${lines}`
      const client = await session(deadlineMs)
      const lost = (): void => undefined
      client.on('error', lost)
      const stream = client.query(copyTo(before + statement + after))
      const chunks = async function* (): AsyncGenerator<Buffer> {
        let whole = false
        try {
          for await (const chunk of stream) yield chunk as Buffer
          whole = true
        } catch (error) {
          const told = refusedOr(error, characters(before))
          // PostgreSQL said no and its session goes on.
          whole = told !== error
          throw told
        } finally {
          client.off('error', lost)
          // Unread rows stay in a session that was left early: it is ended.
          client.release(!whole)
        }
      }
      return Readable.from(chunks(), { objectMode: false })
    },
    async explain(statement, deadlineMs) {
      const before = 'explain (format json) '
      const client = await session(deadlineMs)
      let broken = false
      try {
        const { rows } = await client.query<Record<string, unknown>>({ text: before + statement, queryMode: 'extended' } as pg.QueryConfig)
        return rows[0]?.['QUERY PLAN']
      } catch (error) {
        const told = refusedOr(error, characters(before))
        broken = told === error
        throw told
      } finally {
        client.release(broken)
      }
    },
    async [Symbol.asyncDispose]() {
      const pool = await opening?.catch(() => undefined)
      await pool?.end()
    },
  }
}
