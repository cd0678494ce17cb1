import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { once } from 'node:events'
import { WebSocket } from 'ws'
import { consoleEnvironment } from '../support/consoles.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, type Programs } from './rounds.ts'

/** What a console has begun goes on without the daemon. */

const dataDir = dataFolder()
let programs: Programs
beforeAll(async () => {
  programs = openPrograms(dataDir, { environment: { SERVICE_CONSOLE_ENABLED: 'true' } })
  await programs.startDaemon()
  await programs.post('/environments/', consoleEnvironment('desk', { here: { driver: 'local' } }))
}, 300_000)
afterAll(async () => {
  await programs.stop()
  removeFolder(dataDir)
}, 60_000)

const attach = async (id: string): Promise<{ ws: WebSocket; text: () => string }> =>
  until('a connection to the terminal', 60, async () => {
    const ws = new WebSocket(`${programs.baseUrl().replace('http', 'ws')}/console-sessions/${id}/stream/`)
    ws.on('error', () => undefined)
    let text = ''
    ws.on('message', (data: Buffer) => (text += data.toString()))
    const opened = await Promise.race([
      once(ws, 'open').then(() => true),
      once(ws, 'close').then(() => false),
    ]).catch(() => false)
    return opened ? { ws, text: () => text } : undefined
  })

test('a command goes on while the daemon is killed, runs once, and its record has its output', async () => {
  const answer = programs
    .post('/console-commands/', {
      resourceId: 'here',
      command: 'date +%s%N; sleep 8; echo over',
      timeoutSeconds: 60,
    })
    .catch(() => undefined)
  const { id } = await until('its run', 60, async () => {
    const [newest] = await programs.get('/console-commands/?limit=1')
    const found = newest && (await programs.get(`/console-commands/${newest.id}/`))
    return found?.live?.phase === 'running' ? found : undefined
  })
  await new Promise((resolve) => setTimeout(resolve, 2_000))
  await programs.killDaemon()
  await answer
  await programs.startDaemon()
  const record = await until('its end', 90, async () => {
    const found = await programs.get(`/console-commands/${id}/`)
    return found.status === 'running' ? undefined : found
  })
  expect(record).toMatchObject({
    status: 'completed',
    exitCode: 0,
    stdout: expect.stringMatching(/^\d+\nover\n$/),
  })
}, 300_000)

test('a terminal goes on while the daemon is killed in the middle of 10 MiB of output: the record has every byte, and the client attaches again', async () => {
  const { id } = await programs.post('/console-sessions/', { resourceId: 'here' })
  const first = await attach(id)
  // Lines of 64 bytes with their end, numbered.
  first.ws.send(
    'stty -echo; PS1=; awk \'BEGIN { for (i = 1; i <= 163840; i++) printf "<%060d>\\n", i; print "all" "-done" }\'\n',
  )
  await until('the first output', 60, () => first.text().includes(`<${'1'.padStart(60, '0')}>`))
  await programs.killDaemon()
  await programs.startDaemon()
  const second = await attach(id)
  await until('the last output', 120, () => second.text().includes('all-done'))
  second.ws.send('echo again-$((1+1)); exit\n')
  await once(second.ws, 'close')
  const text = await (await fetch(`${programs.baseUrl()}/console-sessions/${id}/log/`)).text()
  const numbers = [...text.matchAll(/<(\d{60})>\n/g)].map(([, digits]) => Number(digits))
  expect(numbers.length).toBe(163_840)
  expect(numbers.findIndex((number, i) => number !== i + 1)).toBe(-1)
  expect(text).toContain('again-2')
}, 300_000)
