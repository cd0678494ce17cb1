import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { configFromEnvironment } from '../../src/config.ts'
import { writeReady, type ReadyFacts } from '../../src/embedded/ready-file.ts'
import { openLog } from '../../src/observability/log.ts'
import { openTraces } from '../../src/observability/traces.ts'
import { openKeys } from '../../src/programs/console-keys.ts'
import { openDaemon } from '../../src/programs/daemon.ts'
import type { Stoppable } from '../../src/programs/program.ts'
import { until } from '../failures/programs.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { compiledOnce, runFolder } from '../support/run-folder.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { openProxy } from '../support/tcp-proxy.ts'
import { ctrlC, openTerminal, type Terminal } from './terminal.ts'

/** `npm run console`, in a terminal of its own, on a resource of this machine. */

const program = join(import.meta.dirname, '../../src/programs/console.ts')
const folder = mkdtempSync(join(runFolder(), 'console-'))
const everywhere = '0.0.0.0:0'
let service: TestService
let daemon: Stoppable
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_CONSOLE_ENABLED: 'true', SERVICE_LISTEN_ADDRESS: everywhere },
  })
  const config = configFromEnvironment({
    SERVICE_DATA_DIR: folder,
    SERVICE_LISTEN_ADDRESS: everywhere,
    SERVICE_ADMIN_ADDRESS: everywhere,
    SERVICE_DATABASE_URL: service.databaseUrl,
    SERVICE_TEMPORAL_ADDRESS: temporalAddress(),
  })
  const traces = await openTraces({ tracesEndpoint: undefined }, 'test')
  daemon = await openDaemon({ config, log: openLog('error'), metrics: service.metrics, traces }, () =>
    Promise.resolve({ ...service.service, stop: () => Promise.resolve() }),
  )
  await service.post('/environments/', consoleEnvironment('desk', { here: { driver: 'local' } }))
})
afterAll(async () => {
  for (const { id } of (await service?.get('/console-sessions/')) ?? [])
    await service.call('DELETE', `/console-sessions/${id}/`)
  await daemon?.stop()
  await service?.[Symbol.asyncDispose]()
})

const start = (args: string, readyFile = join(folder, 'ready.json')): Terminal =>
  openTerminal(`${process.execPath} ${program} ${args}`, {
    PATH: process.env['PATH'] ?? '',
    HOME: folder,
    SERVICE_DATA_DIR: folder,
    SERVICE_READY_FILE: readyFile,
    ...compiledOnce(),
  })
const shows = (terminal: Terminal, what: string | RegExp): Promise<unknown> =>
  until(`${String(what)} in ${JSON.stringify(terminal.screen().slice(-500))}`, 90, () =>
    typeof what === 'string' ? terminal.screen().includes(what) : what.test(terminal.screen()),
  )

describe('keys', () => {
  test.each([
    [['ls\r'], 'ls\r', false],
    [['~.'], '', true],
    [['a~.'], 'a~.', false],
    [['a\r~', '.'], 'a\r', true],
    [['~~.'], '~.', false],
    [['~x'], '~x', false],
    [['~', '\r~.'], '~\r', true],
    [['é~.'], 'é~.', false],
  ])('%j are %j, and leave: %s', (pieces, input, leaves) => {
    const read = openKeys()
    const all = pieces.map(read)
    expect(all.map((one) => one.input).join('')).toBe(input)
    expect(all.some((one) => one.leaves)).toBe(leaves)
  })
})

test('the ready file of a service that listens on all addresses names one that answers here', async () => {
  const ready = JSON.parse(readFileSync(join(folder, 'ready.json'), 'utf8')) as ReadyFacts
  expect(service.service.address.host).toBe('0.0.0.0')
  for (const url of [`${ready.baseUrl}/execution-runs/`, ready.rootUrl, `${ready.adminUrl}/livez`])
    expect([url, (await fetch(url)).status]).toEqual([url, 200])
  expect(ready.adminUrl).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/)
})

test('opens a terminal, leaves it open, joins it, watches it, ends it and plays its recording', async () => {
  const first = start('here')
  await shows(first, /session ([0-9a-f-]{36})/)
  const id = /session ([0-9a-f-]{36})/.exec(first.screen())?.[1] ?? ''
  first.type('printf "mark-%d\\n" $((6*7))\r')
  await shows(first, 'mark-42')
  first.type('~.')
  await first.ended
  expect(first.screen()).toContain(`left; go on with --join ${id}`)
  expect((await service.get(`/console-sessions/${id}/`)).status).toBe('connected')

  const watching = start(`--watch ${id}`)
  await shows(watching, 'mark-42')
  const second = start(`--join ${id}`)
  await shows(second, 'mark-42')
  second.type('printf "again-%d\\n" $((6*8))\r')
  await shows(second, 'again-48')
  await shows(watching, 'again-48')
  second.type('exit\r')
  await second.ended
  await watching.ended
  expect(second.screen()).toContain('the session is over')

  const played = start(`--play ${id}`)
  await played.ended
  expect(played.screen()).toContain('again-48')
  const file = join(folder, 'one.cast')
  writeFileSync(file, '{"version":2,"width":80,"height":24}\n[0.1,"o","from a file"]\n')
  const fromFile = start(`--play ${file}`)
  await fromFile.ended
  expect(fromFile.screen()).toContain('from a file')
}, 300_000)

proved(
  'while the service is away it says so and can be left, and ends with a session that ended then',
  async () => {
    const proxy = await openProxy(service.service.address.port)
    try {
      const ready = JSON.parse(readFileSync(join(folder, 'ready.json'), 'utf8')) as ReadyFacts
      const away = join(folder, 'away.json')
      writeReady(away, { ...ready, baseUrl: `http://127.0.0.1:${String(proxy.port)}/api` })
      const first = start('here', away)
      await shows(first, /session ([0-9a-f-]{36})/)
      const id = /session ([0-9a-f-]{36})/.exec(first.screen())?.[1] ?? ''
      first.type('printf "near-%d\\n" $((6*7))\r')
      await shows(first, 'near-42')
      await proxy.cut()
      await shows(first, /the connection is lost.*is tried again for 120 s/)
      first.type(ctrlC)
      await first.ended
      expect(first.screen()).toContain(`left; go on with --join ${id}`)

      await proxy.restore()
      const second = start(`--join ${id}`, away)
      await shows(second, 'near-42')
      await proxy.cut()
      await shows(second, 'the connection is lost')
      second.type('~.')
      await second.ended
      expect(second.screen()).toContain(`left; go on with --join ${id}`)

      await proxy.restore()
      const third = start(`--join ${id}`, away)
      await shows(third, 'near-42')
      await proxy.cut()
      await shows(third, 'the connection is lost')
      let tries = 0
      const refusing = createServer((socket) => {
        tries++
        socket.destroy()
      }).listen(proxy.port, '127.0.0.1')
      await until('two more tries', 120, () => tries >= 2)
      await new Promise((resolve) => refusing.close(resolve))
      third.type('printf "later-%d\\n" $((6*8))\r')
      await proxy.restore()
      await shows(third, 'later-48')
      await proxy.cut()
      await service.call('DELETE', `/console-sessions/${id}/`)
      await until(
        'the end of the session',
        120,
        async () => (await service.get(`/console-sessions/${id}/`)).status === 'closed',
      )
      await proxy.restore()
      await third.ended
      expect(third.screen()).toContain('409: the console session is closed; its log can be read')
    } finally {
      await proxy.close()
    }
  },
  300_000,
)

proved(
  "what a terminal answers to a recording's escape sequences does not reach the shell behind",
  async () => {
    const file = join(folder, 'asks.cast')
    const events = Array.from({ length: 1_000 }, (_, i) =>
      JSON.stringify([2 * i, 'o', `asked ${String(i)}\x1b[6n`]),
    )
    writeFileSync(file, `{"version":2,"width":80,"height":24}\n${events.join('\n')}\n`)
    const terminal = start(`--play ${file}; echo behind; exec cat -v`)
    await shows(terminal, 'asked 0')
    terminal.type('\x1b[1;1R')
    await shows(terminal, 'asked 1')
    terminal.type(`\x1b[1;2R${ctrlC}`)
    await shows(terminal, 'behind')
    terminal.type('typed\r')
    await shows(terminal, /typed\r?\ntyped/)
    expect(terminal.screen()).not.toMatch(/;[12]R/)
    terminal.close()
  },
)

test('names what is wrong: the resource, the session, the arguments', async () => {
  for (const [args, text] of [
    ['nothing', /422: .*"nothing", which does not exist/],
    ['--join nothing', /404: .*nothing/],
    ['', /name one RESOURCE, or one of --join, --watch and --play/],
    ['here --watch x', /name one RESOURCE, or one of/],
  ] as const) {
    const terminal = start(args)
    await terminal.ended
    expect(terminal.screen()).toMatch(text)
  }
})
