import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { makeDataFolder } from '../../src/embedded/folders.ts'
import { cacheDir, temporaryFolder, until } from '../embedded/folder.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { ctrlC, openTerminal } from './terminal.ts'

const root = new URL('../../', import.meta.url).pathname
const folder = temporaryFolder()
const started: ChildProcess[] = []
let database: TestDatabase
beforeAll(async () => {
  database = await cloneDatabase()
})
afterAll(async () => {
  for (const child of started) child.kill('SIGKILL')
  await database.drop()
  folder[Symbol.dispose]()
})

const usual = (data: string): Record<string, string> => ({
  PATH: '/usr/bin:/bin',
  HOME: folder.path,
  TMPDIR: folder.path,
  SERVICE_DATA_DIR: join(folder.path, data),
  SERVICE_CACHE_DIR: cacheDir,
  SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
})

/** No server is needed, or can be reached, where both are named. */
const elsewhere = {
  SERVICE_DATABASE_URL: 'postgres://ada:hidden-password@127.0.0.1:1/lab',
  SERVICE_TEMPORAL_ADDRESS: '127.0.0.1:1',
}

interface Line {
  level: string
  msg: string
  err?: unknown
}

const start = (environment: Record<string, string>) => {
  const child = spawn(process.execPath, [join(root, 'src/main.ts')], {
    env: { ...usual('data'), ...environment },
    cwd: '/',
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  started.push(child)
  let text = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (text += chunk.toString()))
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
  const lines = (): Line[] =>
    text
      .split('\n')
      .slice(0, -1)
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line) as Line)
  return { child, ended, lines, text: () => text }
}

/** The one line that a start which fails leaves, without a stack. */
const failure = async (environment: Record<string, string>): Promise<string> => {
  const program = start(environment)
  expect(await program.ended).toBe(1)
  const [line, ...more] = program.lines().filter(({ level }) => level !== 'info')
  expect(more).toEqual([])
  expect(line).toEqual(expect.objectContaining({ level: 'fatal' }))
  expect(line?.err).toBeUndefined()
  expect(program.text()).not.toContain('    at ')
  return line?.msg ?? ''
}

describe('a start that cannot succeed names the variable, its value and the remedy', () => {
  test('an address that another program listens on, before the servers are started', async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => taken.once('listening', resolve))
    const { port } = taken.address() as AddressInfo
    const message = await failure({ SERVICE_LISTEN_ADDRESS: `127.0.0.1:${port}` })
    expect(message).toContain(
      `SERVICE_LISTEN_ADDRESS=127.0.0.1:${port} cannot be listened on: another program listens there`,
    )
    expect(message).toContain('give another port')
    taken.close()
  }, 120_000)

  test('an address of another machine', async () => {
    const message = await failure({ SERVICE_LISTEN_ADDRESS: '192.0.2.1:8080' })
    expect(message).toMatch(
      /SERVICE_LISTEN_ADDRESS=192\.0\.2\.1:8080 .*this machine has no such address: give one of its own/,
    )
  }, 120_000)

  test('a database that refuses connections, that is on no host, that knows neither the password nor the name', async () => {
    const away = {
      ...elsewhere,
      SERVICE_DATABASE_URL: 'postgres://ada:hidden-password@database.invalid:5432/lab',
    }
    const wrongPassword = new URL(database.url)
    wrongPassword.password = 'hidden-password'
    const wrongName = new URL(database.url)
    wrongName.pathname = '/nothing_here'
    const messages = await Promise.all(
      [
        elsewhere,
        away,
        { ...elsewhere, SERVICE_DATABASE_URL: wrongPassword.href },
        { ...elsewhere, SERVICE_DATABASE_URL: wrongName.href },
      ].map((environment, index) =>
        failure({ ...environment, SERVICE_DATA_DIR: join(folder.path, `database-${String(index)}`) }),
      ),
    )
    for (const message of messages)
      expect(message).toMatch(/SERVICE_DATABASE_URL=postgres:\/\/\w+:\*{4}@\S+ cannot be used: /)
    expect(messages.join('\n')).not.toContain('hidden-password')
    expect(messages[0]).toContain(
      'the connection is refused: start PostgreSQL there or give the right address (ECONNREFUSED)',
    )
    expect(messages[1]).toMatch(/the host name (?:is unknown|cannot be looked up now)/)
    expect(messages[2]).toContain('the password is wrong: give the right user and password (28P01)')
    expect(messages[3]).toContain('the database does not exist: create it or give another name (3D000)')
  }, 240_000)

  test('a data folder that is a file, or that this account may not write in', async () => {
    const file = join(folder.path, 'file')
    writeFileSync(file, '')
    expect(await failure({ SERVICE_DATA_DIR: file })).toContain(
      `SERVICE_DATA_DIR: the folder ${file} cannot be used: it is a file: give a folder`,
    )
    const closed = join(folder.path, 'closed')
    mkdirSync(closed, { mode: 0o555 })
    const below = join(closed, 'below')
    const refused = (path: string): string =>
      `SERVICE_DATA_DIR: the folder ${path} cannot be used: this account may not write there`
    if (process.getuid?.() !== 0)
      for (const path of [closed, below])
        expect(await failure({ SERVICE_DATA_DIR: path })).toContain(refused(path))
    // Root may write everywhere, and another account may not read every checkout: this process is
    // one for a moment.
    else
      try {
        process.seteuid?.(65_534)
        expect(() => {
          makeDataFolder(below)
        }).toThrow(refused(below))
      } finally {
        process.seteuid?.(0)
      }
  }, 240_000)
})

test('a Temporal that does not answer is reported once, with its variable and the remedy; the API answers meanwhile', async () => {
  const program = start({
    ...elsewhere,
    SERVICE_DATABASE_URL: database.url,
    SERVICE_DATA_DIR: join(folder.path, 'temporal'),
  })
  await until(() => program.lines().some(({ level }) => level === 'warn'), 'the warning', 120_000)
  await new Promise((resolve) => setTimeout(resolve, 5_000))
  const warnings = program.lines().filter(({ level }) => level !== 'info')
  expect(warnings.map(({ msg }) => msg)).toEqual([
    'SERVICE_TEMPORAL_ADDRESS=127.0.0.1:1 does not answer (Connection refused): what is accepted ' +
      'begins when it does; start it there or correct SERVICE_TEMPORAL_ADDRESS',
  ])
  expect(warnings[0]?.err).toBeUndefined()
  expect(program.lines().some(({ msg }) => msg === 'ready')).toBe(true)
  program.child.kill('SIGTERM')
  expect(await program.ended).toBe(0)
}, 240_000)

describe('in a terminal', () => {
  const command = `exec ${process.execPath} ${join(root, 'src/main.ts')}`

  test('a start that fails says why in a sentence', async () => {
    const terminal = openTerminal(command, { ...usual('sentence'), ...elsewhere })
    expect(await terminal.ended).toBe(1)
    expect(terminal.screen().trim()).toMatch(
      new RegExp(
        String.raw`^\d\d:\d\d:\d\d fatal: orrery could not be started: ` +
          String.raw`SERVICE_DATABASE_URL=postgres://ada:\*{4}@127\.0\.0\.1:1/lab cannot be used: .*$`,
      ),
    )
  }, 120_000)

  test('a healthy start and a Ctrl-C bring no warning, no JSON and no stack', async () => {
    const terminal = openTerminal(command, usual('healthy'))
    await until(() => terminal.screen().includes(' ready'), 'the service is ready', 900_000)
    // Workers begin to poll a moment later.
    await new Promise((resolve) => setTimeout(resolve, 5_000))
    terminal.type(ctrlC)
    expect(await terminal.ended).toBe(0)
    const lines = terminal
      .screen()
      .split(/[\r\n]+/)
      .filter((line) => /^\d\d:/.test(line.replace(/^\^C/, '')))
    expect(lines.filter((line) => /warn|error|fatal|\{"| {4}at /.test(line))).toEqual([])
    const stopping = lines.findIndex((line) => line.includes('orrery stops; once more to force it'))
    expect(lines.slice(stopping + 1)).toEqual([expect.stringMatching(/orrery stopped$/)])
  }, 1_000_000)
})
