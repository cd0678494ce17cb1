import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from '@jest/globals'
import type { ReadyFacts } from '../../src/embedded/ready-file.ts'
import { cacheDir, temporaryFolder, until } from '../embedded/folder.ts'
import { openApi } from './api.ts'

const root = new URL('../../', import.meta.url).pathname
const folder = temporaryFolder()
const readyFile = join(folder.path, 'data', 'ready.json')
let daemon: ChildProcess | undefined
let said = ''

beforeAll(async () => {
  execFileSync(process.execPath, [join(root, 'bin/build.mjs')], { stdio: 'pipe' })
  const started = spawn(process.execPath, [join(root, 'dist/src/main.js')], {
    cwd: folder.path,
    env: {
      PATH: '/usr/bin:/bin',
      HOME: folder.path,
      TMPDIR: folder.path,
      SERVICE_DATA_DIR: join(folder.path, 'data'),
      SERVICE_CACHE_DIR: cacheDir,
      SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  for (const stream of [started.stdout, started.stderr])
    stream.on('data', (chunk: Buffer) => (said += chunk.toString()))
  daemon = started
  await until(
    () => {
      if (started.exitCode !== null) throw new Error(`the daemon ended:\n${said}`)
      return existsSync(readyFile)
    },
    'the ready file',
    600_000,
  )
}, 900_000)
afterAll(() => {
  daemon?.kill('SIGKILL')
  folder[Symbol.dispose]()
})

test('what npm run build makes serves the API, plans, simulates, runs processes and stops', async () => {
  // The workers are ready only with the bundle: the files it was made from are not there.
  const { baseUrl, rootUrl, adminUrl } = JSON.parse(readFileSync(readyFile, 'utf8')) as ReadyFacts
  await until(async () => (await fetch(`${adminUrl}/readyz`)).status === 200, 'all parts are ready', 120_000)
  const api = openApi(baseUrl, undefined)
  expect((await fetch(rootUrl)).headers.get('akoflow-server')).toBe(
    (JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }).version,
  )
  const page = await (await fetch(`${rootUrl}/docs/`)).text()
  const script = /src="([^"]+\.js)"/.exec(page)?.[1] ?? ''
  expect((await fetch(new URL(script, `${rootUrl}/docs/`))).status).toBe(200)

  await api.storeHello()
  // More than 256 KiB of YAML is read in a thread of its own, which has its own compiled file.
  const large = `id: large\nname: Large\nenvironmentVersionIds: [hello-v1]\n# ${'x'.repeat(300_000)}\n`
  expect(
    (await api.post('/execution-scopes/', large)).id ?? (await api.get('/execution-scopes/large/')).id,
  ).toBe('large')

  // A planner works in a thread of its own, too.
  await api.post('/planning-sessions/', {
    id: 'session',
    workflowVersionId: 'hello-v1',
    executionScopeId: 'hello-scope',
    algorithms: [{ id: 'heft' }],
  })
  const session = await until(async () => {
    const detail = await api.get('/planning-sessions/session/')
    return ['completed', 'failed'].includes((detail.session ?? detail).status)
      ? (detail.session ?? detail)
      : undefined
  }, 'the planning session is over')
  expect(session).toMatchObject({ status: 'completed' })

  await api.runToEnd('simulated', 'simulation')
  await api.runToEnd('real')
  expect(await api.get('/execution-runs/real/activities/shout/logs/')).toMatch(/^HELLO FROM \S+\n$/)

  daemon?.kill('SIGTERM')
  expect(
    await until(
      () => (daemon?.exitCode === null ? undefined : { code: daemon?.exitCode }),
      'the daemon has ended',
    ),
  ).toEqual({
    code: 0,
  })
}, 300_000)
