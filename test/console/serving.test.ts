import { afterAll, afterEach, beforeAll, expect, jest, test } from '@jest/globals'
import { PassThrough, Readable } from 'node:stream'
import { sql } from '../../src/db/sql.ts'
import { frameOf, sizeContent } from '../../src/domains/console/frames.ts'
import { openConsoleKeeper } from '../../src/domains/console/keeper.ts'
import { Served } from '../../src/domains/console/served.ts'
import { serveSession, type ServingParts } from '../../src/domains/console/serving.ts'
import { readConsoleSession, removeOldSessions } from '../../src/domains/console/sessions.ts'
import { removeOldCommands } from '../../src/domains/console/store.ts'
import { openLog } from '../../src/observability/log.ts'
import { LinkError, type ShellStream, type SiteShell } from '../../src/shell/site-shell.ts'
import { until } from '../failures/programs.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { recordStatements } from '../support/statements.ts'

/** How the end of a terminal is recorded, with resources that answer as these tests want. */

let database: TestDatabase
beforeAll(async () => {
  database = await cloneDatabase()
})
afterAll(() => database?.drop())
afterEach(() => void jest.restoreAllMocks())

const recordingOf = (end: string): Buffer =>
  Buffer.concat([
    frameOf('r', sizeContent(24, 80)),
    frameOf('o', Buffer.from('shown')),
    frameOf('x', Buffer.from(end)),
  ])
const streamOf = (stdout: Readable, done: ShellStream['done']): ShellStream => ({
  ...{ stdin: new PassThrough().resume(), stdout, done, kill: () => stdout.destroy() },
})
const wholeStream = (recording: Buffer, offset: number): ShellStream =>
  streamOf(
    Readable.from([recording.subarray(offset)]),
    Promise.resolve({ code: 0, signal: null, stderr: '' }),
  )

/** A terminal at a resource; `attach` gives its recording, `answer` the output of a script, or that it fails. */
const openSession = async (
  id: string,
  attach: (offset: number) => ShellStream,
  {
    place = {},
    answer = () => '',
    terminal,
    server,
  }: {
    place?: object
    server?: string
    answer?: (script: string) => string | undefined
    terminal?: () => Promise<ShellStream>
  } = {},
) => {
  const { db } = database
  const site = { site: 'site', kind: 'local', configuration: {}, ...place }
  await db.run(sql`insert into console_sessions (id, resource_id, runtime_id, place, served_by, served_at)
    select ${id}, 'r', 'u', ${JSON.stringify(site)}, given, case when given is not null then clock_timestamp() end
    from (select ${server ?? null}::text as given) g`)
  const shell: SiteShell = {
    run: (script) => {
      const stdout = answer(script)
      const code = stdout === undefined ? 1 : 0
      return Promise.resolve({ code, signal: null, stdout: Buffer.from(stdout ?? ''), stderr: '' })
    },
    open: async (script) => attach(Number(/(\d+)'?$/.exec(script)?.[1])),
    ...(terminal && { terminal }),
    close: () => Promise.resolve(),
  }
  const nothing = () => Promise.resolve()
  const parts: ServingParts = {
    ...{ db, hostId: 'this', vault: { values: () => Promise.resolve([]) } },
    holderPrograms: () => Promise.resolve({ path: import.meta.filename, name: 'console-holder-test' }),
    sites: {
      terminalAt: () => ({
        ...{ shell, root: () => Promise.resolve('/root'), ownEnvironment: false },
        ...{ ready: nothing, remove: nothing, close: nothing },
      }),
    },
  }
  const row = async () => {
    const found = await readConsoleSession(db, id)
    if (found === undefined) throw new Error(`there is no session ${id}`)
    return found
  }
  const keeper = (server: string, own = db) =>
    openConsoleKeeper({
      ...{ ...parts, db: own },
      sites: {
        ...parts.sites,
        at: () => {
          throw new Error('no command is there')
        },
      },
      ...{ log: openLog('fatal'), server, enabled: true, idleSeconds: 3_600, retentionDays: 30 },
    })
  const serve = async (session = new Served()) =>
    serveSession(parts, await row(), session, new AbortController().signal)
  return { serve, row, keeper }
}

test('while no terminal is open and nothing is left, two statements a round look for both', async () => {
  const { keeper } = await openSession('over', () => {
    throw new Error('it has ended')
  })
  await database.db.run(
    sql`update console_sessions set status = 'closed', finished_at = now(), cleared_at = now()`,
  )
  const { db, statements } = recordStatements(database.db)
  const opened = keeper('idle', db)
  const repeated = () => new Set(statements.filter((text, i) => statements.indexOf(text) < i))
  try {
    await until('further rounds', 120, () => statements.length >= 9 && repeated().size >= 2)
    expect(repeated().size).toBe(2)
  } finally {
    await opened.stop()
  }
})

test('an end that could not be recorded is recorded as it was', async () => {
  const recording = recordingOf('the shell ended with exit status 0')
  const { serve, row } = await openSession('twice', (offset) => wholeStream(recording, offset))
  // As a service that is killed between the last byte and the end.
  await database.db.run(sql`create sequence failed_ends`)
  await database.db.run(sql`create function fail_end() returns trigger language plpgsql as
    $$ begin if nextval('failed_ends') < 3 then raise 'not now'; end if; return new; end $$`)
  await database.db.run(sql`create trigger fail_end before update of finished_at on console_sessions
    for each row execute function fail_end()`)
  await expect(serve()).rejects.toThrow('not now')
  await serve()
  await database.db.run(sql`drop trigger fail_end on console_sessions`)
  const { status, failure, takenBytes } = await row()
  expect([status, failure]).toEqual(['closed', undefined])
  expect(takenBytes).toBe(recording.indexOf('shown') + 'shown'.length)
})

test('a terminal that is older than a day waits for its link as a new one does', async () => {
  const recording = recordingOf('the shell ended with exit status 0')
  const cut = new PassThrough()
  let attached = 0
  const { serve, row } = await openSession('old', (offset) =>
    attached++ === 0 ? streamOf(cut, new Promise(() => undefined)) : wholeStream(recording, offset),
  )
  const served = serve()
  await until('the connection', 120, async () => (await row()).status === 'connected')
  const now = performance.now.bind(performance)
  jest.spyOn(performance, 'now').mockImplementation(() => now() + 25 * 3_600_000)
  cut.destroy(new LinkError('link', 'the link was cut'))
  await served
  const { status, failure } = await row()
  expect([status, failure, attached]).toEqual(['closed', undefined, 2])
})

test('a terminal to which no link is opened for a day ends with the reason', async () => {
  const now = performance.now.bind(performance)
  let later = 0
  jest.spyOn(performance, 'now').mockImplementation(() => now() + later)
  const { serve, row } = await openSession('unreachable', () => {
    later += 13 * 3_600_000
    throw new LinkError('link', 'no channel is free')
  })
  await serve()
  const { status, failure } = await row()
  expect([status, failure]).toEqual(['failed', 'no channel is free'])
})

test('what a terminal waits for stands in its record until it is connected', async () => {
  const recording = recordingOf('the shell ended with exit status 0')
  const cut = new PassThrough()
  let isFree = false
  let attached = 0
  const { serve, row } = await openSession('waiting', (offset) => {
    if (!isFree) throw new LinkError('link', 'no channel is free')
    return attached++ === 0 ? streamOf(cut, new Promise(() => undefined)) : wholeStream(recording, offset)
  })
  const served = serve()
  await until('the reason', 120, async () => (await row()).failure === 'no channel is free')
  isFree = true
  await until('the connection', 120, async () => (await row()).status === 'connected')
  expect((await row()).failure).toBeUndefined()
  cut.destroy(new LinkError('link', 'the link was cut'))
  await served
  expect((await row()).status).toBe('closed')
})

test.each([
  ['five-losses', false, 5],
  ['one-refusal', true, 1],
])('no holder and %s of a plain terminal end the session with both reasons', async (id, permanent, most) => {
  let asked = 0
  const attach = () => {
    throw new Error('there is no holder')
  }
  const { serve, row } = await openSession(id, attach, {
    answer: (script) => (script === 'uname -m' ? 'x86_64' : undefined),
    terminal: () => {
      asked++
      return Promise.reject(new LinkError('link', 'no terminal comes', { permanent }))
    },
  })
  await serve()
  const { status, failure } = await row()
  expect([status, asked]).toEqual(['failed', most])
  expect(failure).toMatch(/no terminal comes; .*the holder of terminals cannot be put/)
})

test('of two processes on one database one serves a terminal, until it stops', async () => {
  const shown = new PassThrough()
  const over = Promise.withResolvers<Awaited<ShellStream['done']>>()
  const terminal = (): Promise<ShellStream> =>
    Promise.resolve({
      ...{ stdin: new PassThrough().resume(), stdout: shown, done: over.promise },
      kill: () => over.resolve({ code: null, signal: 'SIGHUP', stderr: '' }),
    })
  const plain = await openSession('plain', () => wholeStream(recordingOf('never'), 0), {
    answer: (script) => (script === 'uname -m' ? 'x86_64' : undefined),
    terminal,
  })
  const first = plain.keeper('first')
  await until('the connection', 120, async () => (await plain.row()).externalId === 'pty')
  const recording = recordingOf('the shell ended with exit status 0')
  const other = await openSession('of-the-second', (offset) => wholeStream(recording, offset), {
    server: 'second',
  })
  const second = other.keeper('second')
  try {
    // A round looks at the older session before.
    await until('a round of the second', 120, async () => (await other.row()).finishedAt)
    expect((await plain.row()).status).toBe('connected')
    await first.stop()
    await until('the end', 120, async () => (await plain.row()).finishedAt)
    expect((await plain.row()).failure).toMatch('the connection that held the terminal is over')
  } finally {
    await first.stop()
    await second.stop()
  }
})

const taken = 'the cluster ended the job of the terminal: '
test.each([
  ['cancelled', 143, ['CANCELLED|N/A|N/A|n1|None'], `${taken}CANCELLED`],
  [
    'out-of-time',
    143,
    ['COMPLETING|N/A|N/A|n1|TimeLimit', 'TIMEOUT|N/A|N/A|n1|TimeLimit'],
    `${taken}TIMEOUT (TimeLimit)`,
  ],
  ['waiting-for-a-node', 1, ['CANCELLED|N/A|N/A||None'], undefined],
  ['out-of-memory', 137, ['OUT_OF_MEMORY|N/A|N/A|n1|OutOfMemory'], undefined],
  ['silent-at-first', 143, ['silent', 'NODE_FAIL|N/A|N/A|n1|None'], `${taken}NODE_FAIL`],
  ['erred', 3, ['FAILED|N/A|N/A|n1|NonZeroExitCode'], undefined],
  ['forgotten', 3, [''], undefined],
  ['ended', 0, [], undefined],
] as const)('a terminal on a node whose job is %s', async (id, code, states, failure) => {
  const left = [...states] as string[]
  const recording = recordingOf(`the shell ended with exit status ${String(code)}`)
  const scripts: string[] = []
  const { serve, row } = await openSession(id, (offset) => wholeStream(recording, offset), {
    place: { kind: 'slurm', onNode: true, configuration: { partition: 'main' } },
    answer: (script) => {
      scripts.push(script)
      if (!script.includes('squeue')) return ''
      const state = left.length > 1 ? left.shift() : left[0]
      if (state === 'silent') return undefined
      return `${String(Math.floor(Date.now() / 1_000))}\n7|N/A|orrery-console-other|CANCELLED|N/A|N/A|n1|None\n${
        state === '' ? '' : `8|N/A|orrery-console-${id}|${state ?? ''}\n`
      }`
    },
  })
  await serve()
  const session = await row()
  expect([session.status, session.failure]).toEqual([failure === undefined ? 'closed' : 'failed', failure])
  const words = scripts.join(' ').replaceAll("'", '')
  expect(words).toContain(`srun --pty --job-name=orrery-console-${id} --partition=main`)
  expect(scripts.some((script) => script.includes('squeue'))).toBe(code !== 0)
})

test('a terminal on a node that its user ended has no failure', async () => {
  const recording = recordingOf('the shell ended with exit status 143')
  const { serve, row } = await openSession('asked', (offset) => wholeStream(recording, offset), {
    place: { kind: 'slurm', onNode: true },
    answer: (script) =>
      script.includes('squeue') ? '1\n8|N/A|orrery-console-asked|CANCELLED|N/A|N/A|n1|None\n' : '',
  })
  const session = new Served()
  session.close()
  await serve(session)
  expect((await row()).status).toBe('closed')
})

test('what may be left at a resource is looked for for 30 days, however short recordings are kept', async () => {
  const { db } = database
  for (const [id, days, isCleared] of [
    ['cleared', 2, true],
    ['uncleared', 29, false],
    ['given-up', 31, false],
  ] as const) {
    const ended = sql`now() - make_interval(days => ${days})`
    const of = sql`'r', 'r', '{}', ${ended}, ${isCleared ? ended : null}`
    await db.run(sql`insert into console_sessions (id, status, resource_id, runtime_id, place, finished_at, cleared_at)
      values (${`kept-${id}`}, 'closed', ${of})`)
    await db.run(sql`insert into console_commands (id, status, command, timeout_seconds, resource_id, runtime_id,
      place, finished_at, cleared_at) values (${`kept-${id}`}, 'completed', 'true', 1, ${of})`)
  }
  await removeOldSessions(db, 1)
  await removeOldCommands(db, 1)
  for (const table of ['sessions', 'commands'])
    expect(
      await db.prepared(table, `select id from console_${table} where id like 'kept-%' order by id`, []),
    ).toEqual([{ id: 'kept-uncleared' }])
  await db.run(sql`delete from console_sessions where id = 'kept-uncleared'`)
})
