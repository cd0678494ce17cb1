import { createHmac, hash, pbkdf2 } from 'node:crypto'
import { Readable } from 'node:stream'
import { promisify } from 'node:util'
import pg from 'pg'
import { to as copyTo } from 'pg-copy-streams'
import { databaseAway } from './errors.ts'

/** PostgreSQL refused a statement of a client. */
export class StatementRefused extends Error {
  /**
   * Position in the statement that was run, in characters from 1; undefined where PostgreSQL gives
   * none.
   */
  readonly position: number | undefined
  /** True where the deadline ended the statement. */
  readonly late: boolean
  constructor(message: string, position: number | undefined, late: boolean, options?: ErrorOptions) {
    super(message, options)
    this.name = 'StatementRefused'
    this.position = position
    this.late = late
  }
}

/** A login cannot be used; `statements` make it usable, and `setting` names it. */
export class ReaderUnavailable extends Error {
  readonly statements: string
  readonly setting: string
  constructor(
    message: string,
    statements: string,
    { setting = 'SERVICE_PROVENANCE_DATABASE_URL', cause }: { setting?: string; cause?: unknown } = {},
  ) {
    super(message, { cause })
    this.name = 'ReaderUnavailable'
    this.statements = statements
    this.setting = setting
  }
}

/** Sessions of a login role that may read the views of schema `provenance` and do nothing else. */
export interface Reader {
  /**
   * The rows of a read-only statement as JSON objects, as PostgreSQL writes them. `values` are the
   * texts of its parameters `$n`. A statement that is asked `again` stays planned in the session.
   * `whole` is false where the rows would have had more than `mostBytes`.
   */
  rows(
    statement: string,
    options: {
      values: readonly (string | null)[]
      again: boolean
      limit: number
      mostBytes: number
      deadlineMs: number
      signal: AbortSignal
    },
  ): Promise<{ rows: string[]; whole: boolean }>
  /**
   * The rows of a read-only statement as CSV with a heading. Parameters `$n` are not possible. The
   * session is free once the stream has ended or is destroyed; where PostgreSQL still computes, once
   * `signal` is aborted too.
   */
  copy(statement: string, options: { deadlineMs: number; signal: AbortSignal }): Promise<Readable>
  /** PostgreSQL's plan of a statement. The statement is not run. */
  explain(statement: string, deadlineMs: number): Promise<unknown>
  [Symbol.asyncDispose](): Promise<void>
}

const usualSchema = 'provenance'
/** Each daemon holds at most this many sessions of the role. */
const sessions = 6

const quoted = (name: string): string => pg.escapeIdentifier(name)

/**
 * The role for a database. All databases of a server share its roles, so the role's name is derived
 * from the name of the database.
 */
const roleOf = (database: string): string => `orrery_reader_${hash('sha256', database).slice(0, 16)}`

/** Statements that grant a role the views. */
const viewGrants = (role: string, schema: string): string[] => [
  `grant usage on schema ${schema} to ${quoted(role)}`,
  `grant select on all tables in schema ${schema} to ${quoted(role)}`,
]

/**
 * Statements that grant the role of a database its views and bound its sessions. They may run
 * again.
 */
const grants = (role: string, database: string, schema = usualSchema): string[] => [
  // A database may admit nobody else, as that of the compose file.
  `grant connect on database ${quoted(database)} to ${quoted(role)}`,
  ...viewGrants(role, schema),
  `alter role ${quoted(role)} set default_transaction_read_only = on`,
  `alter role ${quoted(role)} set statement_timeout = '10s'`,
  `alter role ${quoted(role)} set lock_timeout = '2s'`,
  `alter role ${quoted(role)} set search_path = ${usualSchema}`,
]
const attributes = 'login noinherit connection limit 40'

/** Whether PostgreSQL refuses a login: for its password, by its rules, or by the rights of the database. */
const loginRefused = (error: unknown): boolean =>
  ['28P01', '28000', '42501'].includes((error as PgError).code ?? '')

/** Why PostgreSQL refuses the service's own login, and what mends it. */
const ownLoginRefused = (databaseUrl: string, error: unknown): ReaderUnavailable => {
  const { username, pathname } = new URL(databaseUrl)
  const [login, database] = [username, pathname.slice(1)].map((name) => quoted(decodeURIComponent(name)))
  return new ReaderUnavailable(
    "PostgreSQL does not accept the service's own login",
    `alter role ${login} login password '…'; grant connect on database ${database} to ${login};`,
    { setting: 'SERVICE_DATABASE_URL', cause: error },
  )
}

/** Runs work in a session of the service's own login. @throws ReaderUnavailable where it is refused */
const withOwnLogin = async <T>(databaseUrl: string, work: (client: pg.Client) => Promise<T>): Promise<T> => {
  const client = new pg.Client({ connectionString: databaseUrl, connectionTimeoutMillis: 5_000 })
  client.on('error', () => undefined)
  await client.connect().catch((error: unknown) => {
    throw loginRefused(error) ? ownLoginRefused(databaseUrl, error) : error
  })
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

/**
 * The name of the database, which a pooler may call otherwise, the begin of a statement that makes the role
 * or changes it where it is there, and the statements with which an administrator makes it usable.
 */
const findRole = async (
  client: pg.Client,
  role: string,
): Promise<{ named: string; change: string; remedy: string }> => {
  const { rows } = await client.query<{ named: string; isThere: boolean }>(
    `select current_database() as named, exists (select from pg_roles where rolname = $1) as "isThere"`,
    [role],
  )
  const { named = '', isThere = false } = rows[0] ?? {}
  const change = `${isThere ? 'alter' : 'create'} role ${quoted(role)} ${attributes}`
  const remedy = [`${change} password '…'`, ...grants(role, named)].map((line) => `${line};`).join(' ')
  return { named, change, remedy }
}

/** PostgreSQL's own number. */
const iterations = 4_096

/**
 * What PostgreSQL stores of a password, by which it checks the password and nobody can log in (RFC
 * 5803). A statement with the password itself would leave it in logs of the server.
 */
const verifierOf = async (password: string, salt: Buffer): Promise<string> => {
  const salted = await promisify(pbkdf2)(password, salt, iterations, 32, 'sha256')
  const keyOf = (name: string): Buffer => createHmac('sha256', salted).update(name).digest()
  const stored = hash('sha256', keyOf('Client Key'), 'base64')
  const server = keyOf('Server Key').toString('base64')
  return `SCRAM-SHA-256$${String(iterations)}:${salt.toString('base64')}$${stored}:${server}`
}

/** An arbitrary number. Every version of the service has to use the same one. */
const lock = 7_355_608_152

/**
 * The URL of the role. The service's own login creates or renews the role. The role's password is
 * derived from that login's password, so every daemon of a database computes the same one and
 * stores none.
 * @throws ReaderUnavailable where the login may not create roles or has no password of its own
 */
const ensureRole = async (databaseUrl: string, schema: string): Promise<string> => {
  const url = new URL(databaseUrl)
  const own =
    url.password === '' ? (url.searchParams.get('password') ?? '') : decodeURIComponent(url.password)
  const database = decodeURIComponent(url.pathname.slice(1))
  const role = roleOf(database)
  const derived = (of: string): Buffer =>
    createHmac('sha256', own).update(`orrery provenance ${of} ${database}`).digest()
  const password = derived('reader').toString('base64url')
  const verifier = await verifierOf(password, derived('salt').subarray(0, 16))
  await withOwnLogin(databaseUrl, async (client) => {
    await client.query('begin')
    await client.query('select pg_advisory_xact_lock($1)', [lock])
    const { named, change, remedy } = await findRole(client, role)
    if (own === '')
      throw new ReaderUnavailable(
        "the service's own login has no password that one for the reading role could follow from",
        remedy,
      )
    try {
      await client.query(`${change} password ${pg.escapeLiteral(verifier)}`)
      for (const statement of grants(role, named, schema)) await client.query(statement)
      await client.query('commit')
    } catch (error) {
      if ((error as PgError).code !== '42501') throw error
      throw new ReaderUnavailable("the service's login may not make the reading role", remedy, {
        cause: error,
      })
    }
  })
  url.username = role
  url.password = password
  url.searchParams.delete('password')
  return url.href
}

/**
 * Grants the views to a role that an operator has made. The service owns them: its login may do
 * that for the views of archives and of later versions too. Where it may not, the operator's own
 * grants decide.
 */
const grantViews = (databaseUrl: string, readerUrl: string, schema: string): Promise<void> =>
  withOwnLogin(databaseUrl, async (client) => {
    try {
      for (const statement of viewGrants(decodeURIComponent(new URL(readerUrl).username), schema))
        await client.query(statement)
    } catch (error) {
      if (!/^42/.test((error as PgError).code ?? '')) throw error
    }
  })

interface PgError {
  code?: string
  position?: string
  message: string
}

/**
 * Classes of errors that a statement causes: syntax and access, data, limits, cancelled. Every
 * other error is a fault of the service or an outage.
 */
const ofStatement = /^(42|22|21|0A|54|57014|25006|20|2F|38|3F|53200|53400)/

const refusedOr = (error: unknown, before: number): unknown => {
  const { code, position, message } = error as PgError
  if (code === undefined || databaseAway(error) || !ofStatement.test(code)) return error
  const at = position === undefined ? undefined : Number(position) - before
  return new StatementRefused(message, at !== undefined && at >= 1 ? at : undefined, code === '57014', {
    cause: error,
  })
}

/** Characters as PostgreSQL counts them. */
const characters = (text: string): number => [...text].length

/**
 * Refuses a statement two of whose columns have one name, as a JSON object keeps only one of them.
 * PostgreSQL names the columns, and reads no row.
 */
const checkColumns = async (
  client: pg.PoolClient,
  statement: string,
  values: readonly (string | null)[],
): Promise<void> => {
  const before = 'select * from (\n'
  const { fields } = await client
    .query({
      text: `${before}${statement}\n) q limit 0`,
      values: [...values],
      queryMode: 'extended',
    } as pg.QueryConfig)
    .catch((error: unknown) => {
      throw refusedOr(error, characters(before))
    })
  const names = fields.map(({ name }) => name)
  const repeated = new Set(names.filter((name, i) => names.indexOf(name) < i))
  if (repeated.size === 0) return
  const shown = Array.from(repeated, (name) => JSON.stringify(name)).join(', ')
  throw new StatementRefused(
    `more than one column is named ${shown}; give each a name of its own with AS`,
    undefined,
    false,
  )
}

/** A session that keeps more planned statements than this is ended. */
const mostPlanned = 200

/** A lost session shows at its query. */
const lost = (): void => undefined

/** The chunks of a `copy` whose text begins with `before`; its end gives the session back. */
const csvOf = (client: pg.PoolClient, copied: Readable, before: string, signal: AbortSignal): Readable => {
  let begun = false
  const cut = (): void => {
    copied.destroy(signal.reason as Error)
  }
  copied.on('error', lost)
  signal.addEventListener('abort', cut, { once: true })
  const chunks = async function* (): AsyncGenerator<Buffer> {
    begun = true
    let whole = false
    try {
      for await (const chunk of copied) yield chunk as Buffer
      whole = true
    } catch (error) {
      const shown = refusedOr(error, characters(before))
      // PostgreSQL refused the statement, and the session remains usable.
      whole = shown !== error
      throw shown
    } finally {
      // Unread rows stay in a session that was left early, so the session is ended.
      client.release(!whole)
    }
  }
  // A generator that was never asked has no end of its own.
  return Readable.from(chunks(), { objectMode: false }).once('close', () => {
    signal.removeEventListener('abort', cut)
    if (!begun) client.release(true)
  })
}

/** Rows have one column, the text of a row. */
const asText = { getTypeParser: () => (text: string) => text }

/** Runs a query whose rows are texts, up to a number of bytes. A null is a row that is too long. */
const collected = (
  client: pg.PoolClient,
  config: pg.QueryConfig,
  mostBytes: number,
): Promise<{ rows: string[]; whole: boolean }> =>
  new Promise((resolve, reject) => {
    const rows: string[] = []
    let size = 2
    const query = client.query(
      new pg.Query<[string | null]>({ ...config, rowMode: 'array', types: asText } as pg.QueryConfig),
    )
    query.on('row', ([text]: [string | null]) => {
      size += text === null ? mostBytes : Buffer.byteLength(text) + 1
      // The caller ends the session, and with it the rest of the rows.
      if (text === null || size > mostBytes) resolve({ rows, whole: false })
      else rows.push(text)
    })
    query.on('error', reject)
    query.on('end', () => resolve({ rows, whole: true }))
  })

/**
 * Opens at first use. `readerUrl` names a role that an operator has made. Without it the service's
 * own login makes the role.
 */
export const openReader = (options: {
  databaseUrl: string
  readerUrl: string | undefined
  /** The schema of the views; absent: that of this installation. */
  schema?: string
}): Reader => {
  const { schema = usualSchema } = options
  let opening: Promise<pg.Pool> | undefined
  const open = async (): Promise<pg.Pool> => {
    const { databaseUrl, readerUrl } = options
    if (readerUrl !== undefined) await grantViews(databaseUrl, readerUrl, schema)
    const connectionString = readerUrl ?? (await ensureRole(databaseUrl, schema))
    const pool = new pg.Pool({
      connectionString,
      max: sessions,
      connectionTimeoutMillis: 5_000,
      idleTimeoutMillis: 60_000,
      keepAlive: true,
      // A session whose client has closed notices it within a second, also while it computes.
      options:
        `-c default_transaction_read_only=on -c search_path=${schema} -c timezone=UTC -c ` +
        'standard_conforming_strings=on -c client_connection_check_interval=1s -c lock_timeout=2s -c ' +
        'max_parallel_workers_per_gather=0',
    })
    pool.on('error', lost)
    // The pool takes its own listener away while a session is in use.
    pool.on('connect', (client) => void client.on('error', lost))
    return pool
  }
  const named = decodeURIComponent(new URL(options.databaseUrl).pathname.slice(1))
  const deadlines = new WeakMap<pg.PoolClient, number>()
  const planned = new WeakMap<pg.PoolClient, Set<string>>()
  const session = async (deadlineMs: number): Promise<pg.PoolClient> => {
    const pool = (opening ??= open())
    let client: pg.PoolClient | undefined
    try {
      client = await (await pool).connect()
      // A setting outlives its statement, so each statement sets its own where it differs.
      const deadline = Math.ceil(deadlineMs / 100) * 100
      if (deadlines.get(client) !== deadline) {
        deadlines.delete(client)
        await client.query(`set statement_timeout = ${String(deadline)}`)
        deadlines.set(client, deadline)
      }
      return client
    } catch (error) {
      client?.release(true)
      const isRefused = loginRefused(error)
      const opened = await pool.catch(() => undefined)
      // The next statement opens again. Where the password has changed or the role was dropped, that
      // makes the role again.
      if (opening === pool && (isRefused || opened === undefined)) opening = undefined
      if (!isRefused || opened === undefined) throw error
      await opened.end().catch(() => undefined)
      const { remedy } = await withOwnLogin(options.databaseUrl, (own) => findRole(own, roleOf(named)))
      throw new ReaderUnavailable('PostgreSQL does not accept the reading role', remedy, { cause: error })
    }
  }
  /** A session for a client that is still there. @throws the signal's reason where it has gone */
  const wantedSession = async (deadlineMs: number, signal: AbortSignal): Promise<pg.PoolClient> => {
    const client = await session(deadlineMs)
    if (!signal.aborted) return client
    client.release()
    throw signal.reason
  }

  return {
    async rows(statement, { values, again, limit, mostBytes, deadlineMs, signal }) {
      // The length is judged where the row is, so that no row of any length comes here. `q.*` is the
      // row; `q` alone is the statement's column of that name where it has one.
      const before =
        `select case when octet_length(j) <= ${String(mostBytes)} then j end from ` +
        '(select row_to_json(q.*)::text as j from (\n'
      const text = `${before}${statement}\n) q limit ${String(limit)}) r`
      const name = again ? hash('sha256', text).slice(0, 40) : undefined
      const client = await wantedSession(deadlineMs, signal)
      let broken = true
      const leave = (): void => {
        client.release(true)
      }
      try {
        signal.addEventListener('abort', leave, { once: true })
        const names = planned.get(client) ?? new Set()
        if (name === undefined || !names.has(name)) await checkColumns(client, statement, values)
        const found = await collected(
          client,
          { text, values: [...values], queryMode: 'extended', ...(name && { name }) } as pg.QueryConfig,
          mostBytes,
        )
        if (name !== undefined) planned.set(client, names.add(name))
        broken = !found.whole || names.size > mostPlanned
        return found
      } catch (error) {
        const told = refusedOr(error, characters(before))
        broken = !(told instanceof StatementRefused)
        throw told
      } finally {
        signal.removeEventListener('abort', leave)
        if (!signal.aborted) client.release(broken)
      }
    },
    async copy(statement, { deadlineMs, signal }) {
      const before = 'copy ('
      const after = '\n) to stdout with (format csv, header)'
      const client = await wantedSession(deadlineMs, signal)
      return csvOf(client, client.query(copyTo(before + statement + after)), before, signal)
    },
    async explain(statement, deadlineMs) {
      const before = 'explain (format json) '
      const client = await session(deadlineMs)
      let broken = false
      try {
        const { rows } = await client.query<Record<string, unknown>>({
          text: before + statement,
          queryMode: 'extended',
        } as pg.QueryConfig)
        return rows[0]?.['QUERY PLAN']
      } catch (error) {
        const shown = refusedOr(error, characters(before))
        broken = shown === error
        throw shown
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
