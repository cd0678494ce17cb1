import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { recordRun } from '../../bench/provenance/rows.ts'
import { openReader, type Reader } from '../../src/db/reader.ts'
import { provenanceRoutes } from '../../src/domains/provenance/routes.ts'
import { until } from '../failures/programs.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

/** A login of the service that owns the views and may make no role. */
const login = `limited_${randomBytes(6).toString('hex')}`
const password = 'own password'
let app: OpenedRoutes
let readers: Reader[] = []
let named: string | undefined
let serviceUrl: string
let databaseUrl: string

const run = async (...statements: string[]): Promise<void> => {
  const client = await app.db.client()
  try {
    for (const statement of statements) await client.query(statement)
  } finally {
    client.release()
  }
}
/** The same database with another login. */
const as = (user: string, secret: string): string => {
  const url = new URL(databaseUrl)
  url.username = user
  url.password = encodeURIComponent(secret)
  return url.href
}
const database = (): string => `"${new URL(databaseUrl).pathname.slice(1)}"`
const reader = (schema?: string): Reader => {
  const made = openReader({
    databaseUrl: serviceUrl,
    readerUrl: named,
    ...(schema === undefined ? {} : { schema }),
  })
  readers.push(made)
  return made
}

beforeAll(async () => {
  let now: Reader
  app = await openRoutes((db, _, url) => {
    databaseUrl = url
    serviceUrl = as(login, password)
    now = reader()
    return provenanceRoutes({
      db,
      reader: {
        rows: (...given) => now.rows(...given),
        copy: (...given) => now.copy(...given),
        explain: (...given) => now.explain(...given),
        [Symbol.asyncDispose]: () => Promise.resolve(),
      },
    })
  })
  setReader = (other) => (now = other)
  await recordRun(app.db, { name: 'w', activities: 1, edges: [] })
  await run(
    `create role "${login}" login nocreaterole password '${password}'`,
    `grant "${login}" to current_user`,
    `do $$ declare v record; begin
      alter schema provenance owner to "${login}";
      for v in select relname from pg_class where relkind = 'v' and relnamespace = 'provenance'::regnamespace loop
        execute format('alter view provenance.%I owner to "${login}"', v.relname);
      end loop;
    end $$`,
    `grant select on all tables in schema public to "${login}"`,
    `revoke connect on database ${database()} from public`,
    `grant connect on database ${database()} to "${login}"`,
  )
})
let setReader: (other: Reader) => void
afterAll(async () => {
  await Promise.all(readers.map((each) => each[Symbol.asyncDispose]()))
  readers = []
  await run(
    `reassign owned by "${login}" to current_user`,
    `drop owned by "${login}"`,
    `drop role "${login}"`,
  )
  await app.close()
})

/** Ends the reading roles of the database. */
const dropRoles = (): Promise<void> =>
  run(`do $$ declare r record; begin
    for r in select rolname from pg_roles where rolname like 'orrery\\_reader\\_%'
      and has_database_privilege(oid, current_database(), 'connect') loop
      execute format('grant %1$I to current_user', r.rolname);
      execute format('drop owned by %1$I', r.rolname);
      execute format('drop role %1$I', r.rolname);
    end loop;
  end $$`)

const ask = (statement = 'select id from runs') => app.call('POST', '/provenance/sql/', { statement })

test('without a role SQL is 503 with the statements that make one; that login, once named, reads everything', async () => {
  const { status, body } = await ask()
  expect([status, body.code]).toEqual([503, 'unavailable'])
  expect(body.error).toMatch(/may not make the reading role.*SERVICE_PROVENANCE_DATABASE_URL/)
  const statementsIn = (error: string): string => /run: (.*;) Then name/.exec(error)?.[1] ?? ''
  const statements = statementsIn(String(body.error))
  const role = /create role "?(orrery_reader_\w+)"?/.exec(statements)?.[1] ?? ''
  const runAll = (all: string) => run(...all.replace("'…'", "'theirs'").split(/(?<=;) /))
  await runAll(statements)
  try {
    const others = await ask()
    expect([others.status, others.body.error]).toEqual([503, expect.not.stringContaining('create role')])
    await runAll(statementsIn(String(others.body.error)))
    named = as(`${role}_gone`, 'theirs')
    setReader(reader())
    const gone = await ask()
    expect([gone.status, gone.body.error]).toEqual([503, expect.not.stringContaining('create role')])
    named = as(role, 'theirs')
    setReader(reader())
    const answer = await ask()
    expect([answer.status, answer.body]).toEqual([200, [{ id: 'w-run' }]])

    // Views that come later, of an archive, need no statement of the operator.
    await run(
      `create schema later_provenance authorization "${login}"`,
      `create view later_provenance.execution_runs as select 'archived'::text as id`,
      `create view later_provenance.runs as select * from later_provenance.execution_runs`,
      `alter view later_provenance.execution_runs owner to "${login}"`,
      `alter view later_provenance.runs owner to "${login}"`,
    )
    setReader(reader('later_provenance'))
    expect((await ask()).body).toEqual([{ id: 'archived' }])
    // The schema that a statement names is that of the selected instance.
    for (const statement of [
      'select provenance.runs.id from provenance.runs',
      'select "é".id from (select * from "provenance" /* here */ . runs) as "é"',
    ])
      expect((await ask(statement)).body).toEqual([{ id: 'archived' }])
    expect((await ask(`select id from U&"\\0070rovenance".runs`)).status).toBe(400)
  } finally {
    await Promise.all(readers.map((each) => each[Symbol.asyncDispose]()))
    readers = []
    await run(`grant "${role}" to current_user`, `drop owned by "${role}"`, `drop role "${role}"`)
  }
})

test("where PostgreSQL refuses the service's own login too, SQL is 503 with the statements for that login", async () => {
  await run(`alter role "${login}" nologin`)
  try {
    for (const reading of [undefined, as(`${login}_gone`, 'theirs')]) {
      named = reading
      setReader(reader())
      const { status, body } = await ask()
      expect([status, body.code]).toEqual([503, 'unavailable'])
      expect(body.error).toMatch(
        new RegExp(
          `own login.* run: alter role "${login}" login .*Then name that login in SERVICE_DATABASE_URL$`,
        ),
      )
    }
  } finally {
    named = undefined
    await run(`alter role "${login}" login`)
  }
})

test('the login that roles.sh makes for the compose file reads by a role that it makes itself', async () => {
  const script = readFileSync(new URL('../../postgres-config/roles.sh', import.meta.url), 'utf8')
  const [, attributes = 'nocreaterole'] = /alter role orrery_service (\w+)' where/.exec(script) ?? []
  await run(`alter role "${login}" ${attributes}`, `alter database ${database()} owner to "${login}"`)
  named = undefined
  try {
    setReader(reader())
    const answer = await ask()
    expect([answer.status, answer.body]).toEqual([200, [{ id: 'w-run' }]])
  } finally {
    await Promise.all(readers.map((each) => each[Symbol.asyncDispose]()))
    readers = []
    await run(`alter database ${database()} owner to current_user`, `alter role "${login}" nocreaterole`)
    await dropRoles()
  }
})

test('a pooler may have another name for the database', async () => {
  const alias = `pooled_${randomBytes(6).toString('hex')}`
  const { hostname, port, pathname } = new URL(databaseUrl)
  let sentAll = ''
  const pooler = createServer((socket) => {
    const onward = connect(Number(port), hostname)
    socket.on('data', (bytes) => (sentAll += bytes.toString('latin1')))
    socket.once('data', (first) => {
      const sent = first
        .toString('latin1')
        .replace(`database\0${alias}\0`, `database\0${pathname.slice(1)}\0`)
      const start = Buffer.from(sent, 'latin1')
      start.writeInt32BE(start.length)
      onward.write(start)
      socket.pipe(onward).pipe(socket)
    })
    for (const [one, other] of [
      [socket, onward],
      [onward, socket],
    ] as const)
      one.on('error', () => other.destroy())
  })
  await new Promise<void>((resolve) => pooler.listen(0, '127.0.0.1', resolve))
  const url = new URL(databaseUrl)
  url.hostname = '127.0.0.1'
  url.port = String((pooler.address() as AddressInfo).port)
  url.pathname = alias
  const through = openReader({ databaseUrl: url.href, readerUrl: undefined })
  try {
    const { rows } = await through.rows('select id from runs', {
      ...{ values: [], again: false, limit: 10, mostBytes: 1_000, deadlineMs: 60_000 },
      signal: new AbortController().signal,
    })
    expect(rows).toEqual([JSON.stringify({ id: 'w-run' })])
    // Logs of the server may keep the statement.
    expect(sentAll).toMatch(/create role "orrery_reader_\w+" [a-z0-9 ]+ password 'SCRAM-SHA-256\$4096:/)
  } finally {
    await through[Symbol.asyncDispose]()
    pooler.close()
    await dropRoles()
  }
})

test('after a database that was away at the first statement the next one is answered', async () => {
  const { hostname, port } = new URL(databaseUrl)
  const relay = createServer((socket) => {
    const onward = connect(Number(port), hostname)
    socket.pipe(onward).pipe(socket)
    for (const each of [socket, onward]) each.on('error', () => socket.destroy())
  })
  const listen = (at: number): Promise<number> =>
    new Promise((resolve) =>
      relay.listen(at, '127.0.0.1', () => resolve((relay.address() as AddressInfo).port)),
    )
  const free = await listen(0)
  await new Promise((resolve) => relay.close(resolve))
  const url = new URL(databaseUrl)
  url.hostname = '127.0.0.1'
  url.port = String(free)
  const late = openReader({ databaseUrl: url.href, readerUrl: undefined })
  const rows = async (): Promise<string> => {
    const pieces: Buffer[] = []
    const stream = await late.copy('select id from runs', {
      deadlineMs: 5_000,
      signal: new AbortController().signal,
    })
    for await (const piece of stream) pieces.push(piece as Buffer)
    return Buffer.concat(pieces).toString()
  }
  await expect(rows()).rejects.toThrow(/ECONNREFUSED/)
  await listen(free)
  expect(await rows()).toBe('id\nw-run\n')
  await late[Symbol.asyncDispose]()
  await new Promise((resolve) => relay.close(resolve))
})

test('a client that is gone before its statement begins, or a session that breaks, keeps no session', async () => {
  const { hostname, port } = new URL(databaseUrl)
  const sockets: Socket[] = []
  const relay = createServer((socket) => {
    const onward = connect(Number(port), hostname)
    sockets.push(socket)
    socket.pipe(onward).pipe(socket)
    for (const [one, other] of [
      [socket, onward],
      [onward, socket],
    ] as const)
      one.on('error', () => other.destroy()).on('close', () => other.destroy())
  })
  await new Promise<void>((resolve) => relay.listen(0, '127.0.0.1', resolve))
  const url = new URL(databaseUrl)
  url.hostname = '127.0.0.1'
  url.port = String((relay.address() as AddressInfo).port)
  await using through = openReader({ databaseUrl: url.href, readerUrl: undefined })
  const rows = (signal: AbortSignal) =>
    through.rows('select id from runs', {
      ...{ values: [], again: false, limit: 10, mostBytes: 1_000, deadlineMs: 60_000, signal },
    })
  for (let each = 0; each < 7; each++)
    await expect(rows(AbortSignal.abort())).rejects.toMatchObject({ name: 'AbortError' })
  expect((await rows(new AbortController().signal)).rows).toHaveLength(1)
  const holder = await app.db.client()
  const cut = (): void => sockets.forEach((socket) => void socket.destroy())
  let cutting: NodeJS.Timeout | undefined
  try {
    await holder.query('begin')
    await holder.query('lock table execution_runs in access exclusive mode')
    const ask = (): Promise<unknown> =>
      through
        .explain('select id from runs', 60_000)
        .catch((error: unknown) => (/lock timeout/.test(String(error)) ? ask() : error))
    const broken = ask()
    await until('the statement that waits', 30, async () => {
      const { rowCount } = await holder.query(
        `select 1 from pg_locks join pg_database d on d.oid = database
           where not granted and d.datname = current_database()`,
      )
      return rowCount === 1
    })
    cutting = setInterval(cut, 100)
    expect(String(await broken)).toMatch(/terminated|ended|closed/i)
  } finally {
    clearInterval(cutting)
    await holder.query('rollback')
    holder.release()
  }
  expect(await through.explain('select id from runs', 60_000)).toEqual([expect.anything()])
  relay.close()
})
