import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from '@jest/globals'
import pg from 'pg'
import { configFromEnvironment, parseConfig } from '../../src/config.ts'
import { findEndpoints } from '../../src/embedded/ready-file.ts'
import type { ReadyFacts } from '../../src/embedded/ready-file.ts'
import { identify, stillRuns } from '../../src/embedded/processes.ts'
import type { KnownProcess } from '../../src/embedded/processes.ts'
import { cacheDir, temporaryFolder, until } from '../embedded/folder.ts'

const fixture = new URL('./daemon-fixture.ts', import.meta.url).pathname
const folder = temporaryFolder()
const data = join(folder.path, 'data')
const readyFile = join(data, 'ready.json')
const started: ChildProcess[] = []
afterAll(() => {
  for (const child of started) child.kill('SIGKILL')
  folder[Symbol.dispose]()
})

interface Started {
  child: ChildProcess
  output: () => string
  ended: Promise<number | string>
}
const start = (environment: Record<string, string> = {}, args: string[] = []): Started => {
  const child = spawn(process.execPath, [fixture, ...args], {
    env: {
      PATH: '/usr/bin:/bin',
      HOME: folder.path,
      TMPDIR: folder.path,
      SERVICE_DATA_DIR: data,
      SERVICE_CACHE_DIR: cacheDir,
      SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
      ...environment,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  started.push(child)
  let text = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (text += chunk.toString()))
  const ended = new Promise<number | string>((resolve) =>
    child.once('close', (code, signal) => {
      resolve(code ?? signal ?? 'unknown')
    }),
  )
  return { child, output: () => text, ended }
}
const readyOf = ({ child, output }: Started, file = readyFile): Promise<ReadyFacts> =>
  until(
    () => {
      if (child.exitCode !== null) throw new Error(`the daemon ended:\n${output()}`)
      if (!existsSync(file)) return undefined
      const ready = JSON.parse(readFileSync(file, 'utf8')) as ReadyFacts
      return ready.pids.daemon === child.pid ? ready : undefined
    },
    'the ready file',
    900_000,
  )
const serversOf = ({ pids }: ReadyFacts): KnownProcess[] =>
  [pids.postgres, pids.temporal].map((pid) => identify(pid ?? -1)).filter((found) => found !== undefined)
const gone = (servers: KnownProcess[]): Promise<boolean> =>
  until(() => !servers.some(stillRuns), 'the servers have ended', 40_000)
const parts = async (ready: ReadyFacts): Promise<unknown> => (await fetch(`${ready.adminUrl}/readyz`)).json()

describe('the daemon around its service', () => {
  test('writes where everything listens, answers on the admin address, and a stop leaves nothing', async () => {
    const daemon = start({ SERVICE_API_PREFIX: '/v1' })
    const ready = await readyOf(daemon)
    expect(ready).toEqual({
      baseUrl: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+\/v1$/),
      rootUrl: ready.baseUrl.replace(/\/v1$/, ''),
      adminUrl: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/),
      temporalAddress: expect.stringMatching(/^127\.0\.0\.1:\d+$/),
      temporalUiUrl: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/),
      databaseUrl: expect.stringMatching(/^postgres:\/\/orrery@127\.0\.0\.1:\d+\/orrery$/),
      pids: {
        daemon: daemon.child.pid,
        workers: [daemon.child.pid],
        postgres: expect.any(Number),
        temporal: expect.any(Number),
      },
    })
    const password = readFileSync(join(data, 'postgresql.password'), 'utf8').trim()
    expect(daemon.output()).not.toContain(password)
    expect(await (await fetch(ready.rootUrl)).text()).toBe('ok')
    expect((await fetch(`${ready.adminUrl}/livez`)).status).toBe(200)
    expect(await parts(ready)).toEqual({ ready: true, parts: { service: 'ok' } })
    expect(await (await fetch(`${ready.adminUrl}/metrics`)).text()).toMatch(/^process_cpu_seconds_total \d/m)
    expect((await fetch(`${ready.adminUrl}/nothing`)).status).toBe(404)
    expect((await fetch(`${ready.adminUrl}/livez`, { method: 'POST' })).status).toBe(405)

    // A worker on the same machine finds the servers, password included, by the ready file.
    const config = parseConfig(
      { SERVICE_DATA_DIR: data },
      {
        uid: 0,
        home: '/',
        hostname: 'h',
        xdgDataHome: undefined,
        xdgCacheHome: undefined,
        workingDirectory: '/',
        isDirectory: () => true,
        isExecutable: () => true,
        readFile: () => '',
      },
    )
    const endpoints = findEndpoints(config)
    expect(endpoints.temporalAddress).toBe(ready.temporalAddress)
    const client = new pg.Client({ connectionString: endpoints.databaseUrl })
    await client.connect()
    expect((await client.query('select current_user as who')).rows).toEqual([{ who: 'orrery' }])
    await client.end()

    const servers = serversOf(ready)
    expect(servers).toHaveLength(2)
    daemon.child.kill('SIGTERM')
    expect(await daemon.ended).toBe(0)
    expect(servers.some(stillRuns)).toBe(false)
    expect(existsSync(readyFile)).toBe(false)
    expect(() => findEndpoints(config)).toThrow(
      /no daemon runs with the ready file .*npm start.*SERVICE_DATABASE_URL and SERVICE_TEMPORAL_ADDRESS/,
    )
  }, 900_000)

  test('starts a second time in less than ten seconds', async () => {
    const startedAt = performance.now()
    const daemon = start()
    await readyOf(daemon)
    const seconds = (performance.now() - startedAt) / 1000
    daemon.child.kill('SIGINT')
    expect(await daemon.ended).toBe(0)
    expect(seconds).toBeLessThan(10)
  }, 120_000)

  test('refuses a data folder that another daemon uses, which goes on', async () => {
    const first = start()
    const ready = await readyOf(first)
    const second = start()
    expect(await second.ended).toBe(1)
    expect(second.output()).toContain(`SERVICE_DATA_DIR=${data} is in use`)
    expect(JSON.parse(readFileSync(readyFile, 'utf8'))).toEqual(ready)
    expect(await parts(ready)).toMatchObject({ ready: true })
    first.child.kill('SIGTERM')
    expect(await first.ended).toBe(0)
  }, 120_000)

  test('killed, takes its servers with it, and starts again on what it left, on the same ports', async () => {
    const first = start()
    const before = await readyOf(first)
    const servers = serversOf(before)
    first.child.kill('SIGKILL')
    const second = start()
    const after = await readyOf(second)
    await gone(servers)
    expect([after.databaseUrl, after.temporalAddress, after.temporalUiUrl]).toEqual([
      before.databaseUrl,
      before.temporalAddress,
      before.temporalUiUrl,
    ])
    second.child.kill('SIGKILL')
    await gone(serversOf(after))
  }, 120_000)

  test('starts a killed server again on its port and says its new process id', async () => {
    const daemon = start()
    const before = await readyOf(daemon)
    for (const name of ['postgres', 'temporal'] as const) {
      process.kill(before.pids[name] ?? -1, 'SIGKILL')
      await until(() => {
        const { pids } = JSON.parse(readFileSync(readyFile, 'utf8')) as ReadyFacts
        return pids[name] !== null && pids[name] !== before.pids[name] && identify(pids[name]) !== undefined
      }, `${name} runs again`)
    }
    const after = JSON.parse(readFileSync(readyFile, 'utf8')) as ReadyFacts
    expect({ ...after, pids: before.pids }).toEqual(before)
    daemon.child.kill('SIGTERM')
    expect(await daemon.ended).toBe(0)
    expect(serversOf(after).some(stillRuns)).toBe(false)
  }, 120_000)

  test('a second signal forces the end, and one during the start ends at once; the servers go in both cases', async () => {
    const daemon = start()
    const ready = await readyOf(daemon)
    const servers = serversOf(ready)
    await fetch(`${ready.rootUrl}/stick`)
    daemon.child.kill('SIGTERM')
    daemon.child.kill('SIGTERM')
    await until(() => daemon.output().includes('once more to force it'), 'the first signal was taken')
    await new Promise((resolve) => setTimeout(resolve, 500))
    expect(daemon.child.exitCode).toBeNull()
    daemon.child.kill('SIGTERM')
    expect(await daemon.ended).toBe(143)
    await gone(servers)

    const early = start()
    await new Promise((resolve) => setTimeout(resolve, 700))
    const from = performance.now()
    early.child.kill('SIGTERM')
    expect([143, 'SIGTERM', 0]).toContain(await early.ended)
    expect(performance.now() - from).toBeLessThan(10_000)
    const next = start()
    await readyOf(next)
    next.child.kill('SIGTERM')
    expect(await next.ended).toBe(0)
  }, 180_000)
})

test('a configuration that cannot be used ends the program with code 2 and every problem; nothing is opened', async () => {
  const program = start({ SERVICE_PORT: '1', SERVICE_LOG_LEVEL: 'loud' })
  expect(await program.ended).toBe(2)
  expect(program.output()).toContain('SERVICE_PORT is not a variable')
  expect(program.output()).toContain('SERVICE_LOG_LEVEL="loud"')
})

test('--print-config prints what would be used, secrets masked, and ends', async () => {
  const program = start({ SERVICE_API_TOKEN: 'a-very-secret-token' }, ['--print-config'])
  expect(await program.ended).toBe(0)
  expect(program.output()).toContain(`SERVICE_DATA_DIR=${data}\n`)
  expect(program.output()).not.toContain('a-very-secret-token')
})

test('an admin address that is taken is named with the remedy', async () => {
  const taken = join(folder.path, 'taken')
  const holder = start({ SERVICE_DATA_DIR: taken })
  const { adminUrl } = await readyOf(holder, join(taken, 'ready.json'))
  const program = start({
    SERVICE_DATA_DIR: join(folder.path, 'other'),
    SERVICE_ADMIN_ADDRESS: new URL(adminUrl).host,
  })
  expect(await program.ended).toBe(1)
  expect(program.output()).toMatch(/SERVICE_ADMIN_ADDRESS=127\.0\.0\.1:\d+ cannot be listened on/)
  holder.child.kill('SIGTERM')
  expect(await holder.ended).toBe(0)
}, 120_000)

test('a ready file of a daemon that is gone, or cut short, is no address', () => {
  const file = join(folder.path, 'stale.json')
  const config = {
    ...configFromEnvironment(),
    readyFile: file,
    databaseUrl: undefined,
    temporalAddress: undefined,
  }
  for (const content of [
    '{"baseUrl":',
    '{}',
    JSON.stringify({
      baseUrl: 'x',
      rootUrl: 'x',
      adminUrl: 'x',
      temporalAddress: 'x',
      temporalUiUrl: null,
      databaseUrl: 'postgres://a/b',
      pids: { daemon: 2 ** 22 + 1, workers: [], postgres: null, temporal: null },
    }),
  ]) {
    writeFileSync(file, content)
    expect(() => findEndpoints(config)).toThrow(/no daemon runs/)
  }
})
