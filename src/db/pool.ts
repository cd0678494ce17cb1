import pg from 'pg'
import type { z } from 'zod'
import { Sql, type Db, type Sign } from './sql.ts'

// int8 and numeric as numbers (documents hold integers up to 2^53 − 1 only), timestamps as RFC 3339 UTC text.
const parsers = new Map<number, (text: string) => unknown>([
  [20, Number],
  [1700, Number],
  [1184, (text) => new Date(text).toISOString()],
])
const types = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') =>
    parsers.get(oid) ?? (pg.types.getTypeParser as (oid: number, format?: string) => (text: string) => unknown)(oid, format),
}

const camel = (name: string): string => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase())

type Runner = Pick<pg.ClientBase, 'query'>

class Connection implements Db {
  readonly #runner: Runner
  readonly #open: ((work: (tx: Db) => Promise<unknown>) => Promise<unknown>) | undefined
  readonly #names = new Map<string, string>()

  readonly sign: Sign | undefined

  constructor(runner: Runner, sign: Sign | undefined, open?: (work: (tx: Db) => Promise<unknown>) => Promise<unknown>) {
    this.#runner = runner
    this.sign = sign
    this.#open = open
  }

  async #rows(query: Sql): Promise<pg.QueryResult<Record<string, unknown>>> {
    // Extended mode even without values: the simple protocol would run several statements of one text.
    return this.#runner.query({ ...query.toQuery(), types, queryMode: 'extended' } as pg.QueryConfig)
  }

  async many<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T>[]> {
    const result = await this.#rows(query)
    return result.rows.map((row) => {
      const out: Record<string, unknown> = {}
      for (const key in row) {
        let name = this.#names.get(key)
        if (name === undefined) this.#names.set(key, (name = camel(key)))
        // Absent columns are absent members: answers omit what is empty.
        if (row[key] !== null) out[name] = row[key]
      }
      return schema.parse(out)
    })
  }

  async maybe<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T> | undefined> {
    const rows = await this.many(schema, query)
    if (rows.length > 1) throw new Error(`expected one row, got ${String(rows.length)}`)
    return rows[0]
  }

  async one<T extends z.ZodType>(schema: T, query: Sql): Promise<z.output<T>> {
    const row = await this.maybe(schema, query)
    if (row === undefined) throw new Error('expected one row, got none')
    return row
  }

  async run(query: Sql): Promise<number> {
    return (await this.#rows(query)).rowCount ?? 0
  }

  async prepared<Row extends object>(name: string, text: string, values: unknown[]): Promise<Row[]> {
    return (await this.#runner.query({ name, text, values, types })).rows as Row[]
  }

  async transaction<T>(work: (tx: Db) => Promise<T>): Promise<T> {
    return this.#open === undefined ? work(this) : ((await this.#open(work)) as T)
  }
}

export interface Database extends Db {
  /** A client of its own for LISTEN, COPY or an advisory lock; the caller releases it. */
  client(): Promise<pg.PoolClient>
  [Symbol.asyncDispose](): Promise<void>
}

/** Opens a pool on `url`; `onError` hears of idle connections that are lost before the pool is closed. Every wait has an end: 5 s for a connection, 30 s for a statement. */
export const openDatabase = (url: string, options: { max?: number; onError?: (error: Error) => void; sign?: Sign } = {}): Database => {
  const pool = new pg.Pool({
    connectionString: url,
    max: options.max ?? 10,
    connectionTimeoutMillis: 5_000,
    idleTimeoutMillis: 60_000,
    keepAlive: true,
    // A statement of the service itself is short; a big import is a few seconds.
    options: '-c statement_timeout=60000 -c idle_in_transaction_session_timeout=60000',
  })
  // A server that stops after us ends sessions which the pool has taken leave of.
  let closed = false
  pool.on('error', (error) => {
    if (!closed) options.onError?.(error)
  })

  const open = async (work: (tx: Db) => Promise<unknown>): Promise<unknown> => {
    const client = await pool.connect()
    let broken: Error | undefined
    // A connection that is lost between two statements says so here; unheard, it would end the process.
    const lost = (error: Error): void => {
      broken = error
    }
    client.on('error', lost)
    try {
      await client.query('begin')
      const result = await work(new Connection(client, options.sign))
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

  return Object.assign(new Connection(pool as unknown as Runner, options.sign, open), {
    client: () => pool.connect(),
    [Symbol.asyncDispose]: () => {
      closed = true
      return pool.end()
    },
  })
}
