import pg from 'pg'
import type { z } from 'zod'
import { storableParameter } from '../outside-text.ts'
import { inArchive } from './archive-names.ts'
import { ownSchema, Sql, type Db, type Sign } from './sql.ts'

// int8 and numeric as numbers (documents hold integers up to 2^53 − 1 only), timestamps as RFC 3339
// UTC text.
const parsers = new Map<number, (text: string) => unknown>([
  [20, Number],
  [1700, Number],
  [1184, (text) => new Date(text).toISOString()],
])
const types = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') =>
    parsers.get(oid) ??
    (pg.types.getTypeParser as (oid: number, format?: string) => (text: string) => unknown)(oid, format),
}

const camel = (name: string): string =>
  name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase())

type Runner = Pick<pg.ClientBase, 'query'>
type Open = (begin: string, work: (tx: Db) => Promise<unknown>) => Promise<unknown>

/**
 * Statements name the schema of the service's views. For an archive the schema's name is replaced.
 */
const rewriting = (runner: Runner, rewrite: (text: string) => string): Runner =>
  ({
    query: (query: pg.QueryConfig) =>
      (runner as pg.ClientBase).query({ ...query, text: rewrite(query.text) }),
  }) as unknown as Runner

const atMostOne = <T>(rows: readonly T[]): T | undefined => {
  if (rows.length > 1) throw new Error(`expected one row, got ${String(rows.length)}`)
  return rows[0]
}
const exactlyOne = <T>(rows: readonly T[]): T => {
  if (rows.length === 0) throw new Error('expected one row, got none')
  return atMostOne(rows) as T
}

class Connection implements Db {
  readonly #runner: Runner
  readonly #open: Open | undefined
  readonly #names = new Map<string, string>()

  readonly sign: Sign | undefined
  readonly schema: string

  constructor(runner: Runner, { sign, archive }: { sign?: Sign; archive?: string }, open?: Open) {
    this.#runner = runner
    this.sign = sign
    this.schema = archive ?? ownSchema
    this.#open = open
  }

  async #rows(query: Sql): Promise<pg.QueryResult<Record<string, unknown>>> {
    // Extended mode even without values: the simple protocol would run several statements of one
    // text.
    return this.#runner.query({ ...query.toQuery(), types, queryMode: 'extended' } as pg.QueryConfig)
  }

  async many<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T>[]> {
    const result = await this.#rows(query)
    return result.rows.map((row) => {
      const out: Record<string, unknown> = {}
      for (const key in row) {
        let name = this.#names.get(key)
        if (name === undefined) this.#names.set(key, (name = camel(key)))
        // A null column becomes an absent member: answers omit empty members.
        if (row[key] !== null) out[name] = row[key]
      }
      return schema.parse(out)
    })
  }

  async maybe<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T> | undefined> {
    return atMostOne(await this.many(schema, query))
  }

  async one<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T>> {
    return exactlyOne(await this.many(schema, query))
  }

  async values<T extends z.ZodType>(type: T, query: Sql): Promise<z.output<T>[]> {
    const { fields, rows } = await this.#rows(query)
    const column = fields[0]?.name ?? ''
    return rows.map((row) => type.parse(row[column] ?? undefined))
  }

  async value<T extends z.ZodType>(type: T, query: Sql): Promise<z.output<T> | undefined> {
    return atMostOne(await this.values(type, query))
  }

  async only<T extends z.ZodType>(type: T, query: Sql): Promise<z.output<T>> {
    return exactlyOne(await this.values(type, query))
  }

  async run(query: Sql): Promise<number> {
    return (await this.#rows(query)).rowCount ?? 0
  }

  async prepared<Row extends object>(name: string, text: string, values: unknown[]): Promise<Row[]> {
    return (await this.#runner.query({ name, text, values: values.map(storableParameter), types }))
      .rows as Row[]
  }

  async transaction<T>(work: (tx: Db) => Promise<T>): Promise<T> {
    return this.#open === undefined ? work(this) : ((await this.#open('begin', work)) as T)
  }

  async snapshot<T>(work: (tx: Db) => Promise<T>, options: { genericPlans?: boolean } = {}): Promise<T> {
    if (this.#open === undefined) throw new Error('a snapshot cannot begin inside a transaction')
    // One message to the server.
    const begin = ['begin isolation level repeatable read, read only']
    if (options.genericPlans === true) begin.push('set local plan_cache_mode = force_generic_plan')
    return (await this.#open(begin.join('; '), work)) as T
  }
}

export interface Database extends Db {
  /** A client of its own for LISTEN, COPY or an advisory lock; the caller releases it. */
  client(): Promise<pg.PoolClient>
  /** A connection of its own beside the pool, without deadlines; the caller ends it. */
  session(): Promise<pg.Client>
  /** The same database, read-only, with the tables of an archive's schema. */
  archive(schema: string): Database
  /** Its connections by state. `waiting` counts the requests that wait for one. */
  pool(): { used: number; idle: number; waiting: number; unopened: number }
  [Symbol.asyncDispose](): Promise<void>
}

/**
 * Opens a pool on `url`. `onError` gets the errors of idle connections that are lost before the
 * pool is closed. Every wait has an end: 5 s for a connection, 60 s for a statement.
 */
export const openDatabase = (
  url: string,
  options: {
    max?: number
    onError?: (error: Error) => void
    sign?: Sign
    /**
     * Settings of this process that views can read, by names like `orrery.local_storage`, in clear
     * text.
     */
    settings?: Readonly<Record<string, string>>
    archive?: string
  } = {},
): Database => {
  const { archive } = options
  const pool = new pg.Pool({
    connectionString: url,
    max: options.max ?? 10,
    connectionTimeoutMillis: 5_000,
    idleTimeoutMillis: 60_000,
    keepAlive: true,
    // A statement of the service itself is short; a big import is a few seconds.
    options: Object.entries({
      statement_timeout: '60000',
      idle_in_transaction_session_timeout: '60000',
      ...options.settings,
      ...(archive === undefined ? {} : { search_path: archive, default_transaction_read_only: 'on' }),
    })
      .map(([name, value]) => `-c ${name}=${value}`)
      .join(' '),
  })
  // A server that stops after this process ends sessions that the pool has already given up.
  let closed = false
  pool.on('error', (error) => {
    if (!closed) options.onError?.(error)
  })

  const open: Open = async (begin, work) => {
    const client = await pool.connect()
    let broken: Error | undefined
    // A connection that is lost between two statements emits this error. Without a listener it
    // would end the process.
    const lost = (error: Error): void => {
      broken = error
    }
    client.on('error', lost)
    try {
      await client.query(begin)
      const result = await work(
        new Connection(
          archive === undefined ? client : rewriting(client, (text) => inArchive(text, archive)),
          options,
        ),
      )
      await client.query('commit')
      return result
    } catch (error) {
      await client.query('rollback').catch((failure: unknown) => {
        broken = failure as Error
      })
      throw error
    } finally {
      client.off('error', lost)
      client.release(broken)
    }
  }

  const plain = pool as unknown as Runner
  const runner = archive === undefined ? plain : rewriting(plain, (text) => inArchive(text, archive))
  return Object.assign(new Connection(runner, options, open), {
    client: () => pool.connect(),
    session: async () => {
      const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000, keepAlive: true })
      client.on('error', () => undefined)
      await client.connect()
      // The address, the role or the database may set some.
      await client.query(
        'set statement_timeout = 0; set lock_timeout = 0; set idle_in_transaction_session_timeout = 0',
      )
      return client
    },
    archive: (schema: string) => openDatabase(url, { ...options, archive: schema }),
    pool: () => ({
      used: pool.totalCount - pool.idleCount,
      idle: pool.idleCount,
      waiting: pool.waitingCount,
      unopened: pool.options.max - pool.totalCount,
    }),
    [Symbol.asyncDispose]: () => {
      closed = true
      return pool.end()
    },
  })
}
