import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import type { Socket } from 'node:net'
import type { WebSocket } from 'ws'
import { removeOldCommands } from '../../src/domains/console/store.ts'
import { removeOldSessions } from '../../src/domains/console/sessions.ts'
import { sql } from '../../src/db/sql.ts'
import { until } from '../failures/programs.ts'
import { attachTo, openTerminal } from '../support/console-streams.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { openService, type TestService } from '../support/service.ts'
import { startSshServer, type SshServer } from '../support/ssh-server.ts'
import { makeVaultKeyFile } from '../support/reach.ts'

/** The bounds of the console, and where its work is shown. */

let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: {
      SERVICE_CONSOLE_ENABLED: 'true',
      SERVICE_CONSOLE_IDLE_SECONDS: '10',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    },
  })
  await service.post('/environments/', consoleEnvironment('desk', { here: { driver: 'local' } }))
}, 120_000)
afterAll(async () => {
  for (const { id } of (await service?.get('/console-sessions/')) ?? [])
    await service.call('DELETE', `/console-sessions/${id}/`)
  await service?.[Symbol.asyncDispose]()
})

const ended = (id: string, seconds = 60) =>
  until('the end of the session', seconds, async () => {
    const session = await service.get(`/console-sessions/${id}/`)
    return session.finishedAt === undefined ? undefined : session
  })
const close = async (id: string): Promise<void> => {
  await service.call('DELETE', `/console-sessions/${id}/`)
  await ended(id)
}

test('a terminal without keys and output is closed after its time, one in use is not', async () => {
  const [silent, used] = [await openTerminal(service, 'here'), await openTerminal(service, 'here')]
  const desk = await attachTo(service, used)
  const typing = setInterval(() => desk.ws.send('\n'), 1_000)
  try {
    const { status, connectedAt, finishedAt } = await ended(silent)
    expect(status).toBe('closed')
    expect(Date.parse(finishedAt) - Date.parse(connectedAt)).toBeGreaterThan(9_000)
    expect((await service.get(`/console-sessions/${used}/`)).status).toBe('connected')
  } finally {
    clearInterval(typing)
  }
  await close(used)
}, 120_000)

test('a recording of 64 MiB ends its session; its readers that keep up see the last byte', async () => {
  const id = await openTerminal(service, 'here')
  const desk = await attachTo(service, id)
  desk.ws.send(
    'stty -echo; yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 80000000\n',
  )
  const session = await ended(id, 120)
  expect(session).toMatchObject({ status: 'failed', failure: 'the recording has reached 64 MiB' })
  const { text } = await service.call('GET', `/console-sessions/${id}/log/`)
  expect(text.length).toBeGreaterThan(60 * 1024 * 1024)
  expect(text.length).toBeLessThan(66 * 1024 * 1024)
}, 240_000)

test('a reader that takes nothing is cut; the one that writes sees every byte, and memory stays bounded', async () => {
  const id = await openTerminal(service, 'here')
  const desk = await attachTo(service, id)
  const asleep = await attachTo(service, id, '?mode=watch')
  const socket = (asleep.ws as unknown as { _socket: Socket })._socket
  socket.pause()
  let bytes = 0
  let mostRss = 0
  const before = process.memoryUsage().rss
  desk.ws.on('message', (data: Buffer) => {
    bytes += data.length
    mostRss = Math.max(mostRss, process.memoryUsage().rss)
  })
  const size = 32 * 1024 * 1024
  desk.ws.send(`stty -echo -onlcr; PS1=; head -c ${String(size)} /dev/zero | tr '\\0' x; echo ov""er\n`)
  await desk.shows('over', 120)
  expect(bytes).toBeGreaterThanOrEqual(size)
  expect(mostRss - before).toBeLessThan(256 * 1024 * 1024)
  socket.resume()
  expect([4008, 1006]).toContain((await asleep.closed)[0])
  expect(asleep.text().length).toBeLessThan(size / 2)
  const { text } = await service.call('GET', `/console-sessions/${id}/log/`)
  expect(text.split('x').length - 1).toBeGreaterThanOrEqual(size)
  await close(id)
}, 240_000)

test('recordings and commands are removed when their days are over, with all that belongs to them', async () => {
  const id = await openTerminal(service, 'here')
  await close(id)
  const { id: command } = await service.post('/console-commands/', { resourceId: 'here', command: 'true' })
  const old = sql`finished_at = now() - interval '91 days'`
  await service.db.run(sql`update console_sessions set ${old} where id = ${id}`)
  await service.db.run(sql`update console_commands set ${old} where id = ${command}`)
  await removeOldSessions(service.db, 90)
  await removeOldCommands(service.db, 90)
  for (const path of [
    `/console-sessions/${id}/log/`,
    `/console-sessions/${id}/`,
    `/console-commands/${command}/`,
  ])
    expect((await service.call('GET', path)).status).toBe(404)
  const left = await service.db.prepared<{ n: number }>(
    'left',
    `select ((select count(*) from console_records where session_id = $1)
      + (select count(*) from operation_events where operation_id = $2)
      + (select count(*) from event_feed where operation_id = $2))::int as n`,
    [id, command],
  )
  expect(left).toEqual([{ n: 0 }])
}, 120_000)

test('sessions and commands stand in the feed of runs, newest first, by kind, status and title', async () => {
  const { total: before } = await service.get('/execution-runs/')
  const session = await openTerminal(service, 'here')
  const command = await service.post('/console-commands/', {
    resourceId: 'here',
    command: 'exit 3',
    actorId: 'ada',
  })
  const feed = await service.get('/execution-runs/?pageSize=2')
  expect(feed.total).toBe(before + 2)
  expect(feed.items.map(({ run }: any) => run)).toMatchObject([
    {
      ...{
        id: command.id,
        kind: 'standalone',
        status: 'failed',
        resourceId: 'here',
        runtimeId: 'here-runtime',
      },
      ...{ command: 'exit 3', actorId: 'ada', title: 'command on here', schedulePlanId: '' },
      failureReason: expect.stringContaining('exit code 3'),
    },
    { id: session, kind: 'interactive', mode: 'interactive', status: 'running', title: 'terminal on here' },
  ])
  const ids = async (search: string): Promise<string[]> =>
    (await service.get(`/execution-runs/?${search}`)).items.map(({ run }: any) => run.id)
  expect(await ids('kind=interactive&status=running')).toEqual([session])
  expect((await ids('kind=standalone'))[0]).toBe(command.id)
  expect(await ids('kind=workflow')).toEqual([])
  expect(await ids('title=TERMINAL&status=running')).toEqual([session])
  expect(await ids('planId=none')).toEqual([])
  const pages = [await ids('page=1&pageSize=1'), await ids('page=2&pageSize=1')]
  expect(pages.flat()).toEqual([command.id, session])
  await close(session)
  expect(await ids('kind=interactive&status=completed')).toContain(session)
}, 120_000)

test('the audit tells who had which session and command, where, and how it ended', async () => {
  const { id } = await service.post('/console-sessions/', { resourceId: 'here', actorId: 'ada' })
  await until(
    'the terminal',
    60,
    async () => (await service.get(`/console-sessions/${id}/`)).status === 'connected',
  )
  await close(id)
  const command = await service.post('/console-commands/', {
    ...{ resourceId: 'here', command: 'exit 3', actorId: 'ada' },
  })
  const common = { actorId: 'ada', actorType: 'user', resourceId: 'here', runtimeId: 'here-runtime' }
  const events = await service.get(`/audit-events/?sessionId=${id}`)
  expect(events.filter(({ actorType }: any) => actorType === 'user')).toMatchObject([
    { eventType: 'console.session.closed', outcome: 'succeeded', ...common },
    { eventType: 'console.session.connected', outcome: 'succeeded', ...common },
    { eventType: 'console.session.started', outcome: 'started', ...common },
  ])
  const all = await service.get('/audit-events/?limit=1000&actorId=ada')
  expect(all.filter(({ externalId }: any) => externalId === command.id)).toMatchObject([
    { eventType: 'console.command.failed', outcome: 'failed', ...common },
    { eventType: 'console.command.started', outcome: 'started', ...common },
  ])
}, 120_000)

describe('what a client may not send', () => {
  test('frames that break the protocol end the connection, and the session goes on', async () => {
    const id = await openTerminal(service, 'here')
    const socketOf = (ws: WebSocket): { write: (bytes: Buffer) => void } => (ws as any)._socket
    for (const [bytes, code] of [
      // Without a mask; with a reserved bit; of a reserved kind; a text that is not UTF-8.
      [Buffer.from([0x81, 0x01, 0x41]), 1002],
      [Buffer.from([0xc1, 0x81, 0, 0, 0, 0, 0x41]), 1002],
      [Buffer.from([0x83, 0x81, 0, 0, 0, 0, 0x41]), 1002],
      [Buffer.from([0x81, 0x81, 0, 0, 0, 0, 0xff]), 1007],
    ] as const) {
      const desk = await until('a connection', 30, () => attachTo(service, id).catch(() => undefined))
      socketOf(desk.ws).write(Buffer.from(bytes))
      expect((await desk.closed)[0]).toBe(code)
    }
    const desk = await until('a connection', 30, () => attachTo(service, id).catch(() => undefined))
    desk.ws.send(Buffer.alloc(2 * 1024 * 1024))
    expect((await desk.closed)[0]).toBe(1009)
    const last = await until('a connection', 30, () => attachTo(service, id).catch(() => undefined))
    last.ws.send('printf "mark-%d\\n" $((6*7))\n')
    await last.shows('mark-42')
    await close(id)
  }, 120_000)

  test('100 MiB of input reach a program that reads it, byte for byte', async () => {
    const id = await openTerminal(service, 'here')
    const desk = await attachTo(service, id)
    desk.ws.send("stty raw -echo; echo re''ady; head -c 104857600 | sha256sum; stty sane\n")
    await desk.shows('ready')
    const chunk = Buffer.alloc(256 * 1024)
    for (let i = 0; i < chunk.length; i++) chunk[i] = (i * 31 + (i >> 8)) % 256
    const hash = (await import('node:crypto')).createHash('sha256')
    for (let i = 0; i < 400; i++) {
      hash.update(chunk)
      await new Promise((resolve) => desk.ws.send(chunk, resolve))
    }
    await desk.shows(hash.digest('hex'), 120)
    desk.ws.send('exit\n')
    await desk.closed
    const cast = await service.call('GET', `/console-sessions/${id}/log/?format=asciicast`)
    expect(cast.text.length).toBeLessThan(1024 * 1024)
  }, 240_000)
})

describe('a login that a person made', () => {
  let server: SshServer
  afterAll(async () => {
    await server?.close()
  })

  test('serves commands and sessions; when its factor is no longer good, they wait for the next login', async () => {
    let code = '111111'
    server = await startSshServer({
      second: {
        rounds: [{ prompts: [{ prompt: 'Code: ', echo: false }], judge: ([given]) => given === code }],
      },
    })
    await service.post('/ssh-keys/import/', { id: 'person', privateKey: server.privateKey })
    const connection = {
      ...{ id: 'mfa-c', name: 'mfa-c', type: 'ssh', endpoint: `127.0.0.1:${String(server.port)}` },
      ...{ username: 'root', credentialRef: 'vault:ssh-key/person' },
      configuration: { knownHosts: `[127.0.0.1]:${String(server.port)} ${server.hostKey}` },
    }
    await service.post(
      '/environments/',
      consoleEnvironment(
        'mfa',
        {
          mfa: {
            driver: 'ssh',
            configuration: { connectionId: 'mfa-c', workDirectory: `${service.dataDir}/mfa` },
          },
        },
        [connection],
      ),
    )
    const { id } = await service.post('/console-sessions/', { resourceId: 'mfa' })
    const prompted = () =>
      until('the prompt', 60, async () => {
        const login = await service.get('/environment-connections/mfa-c/login/')
        return login.state === 'waiting for login'
      })
    await prompted()
    expect((await service.get(`/console-sessions/${id}/`)).status).toBe('starting')
    await service.post('/environment-connections/mfa-c/login/', { answers: [code] })
    await until('the terminal', 60, async () => {
      const { status, failure } = await service.get(`/console-sessions/${id}/`)
      if (status === 'failed') throw new Error(failure)
      return status === 'connected'
    })
    // The login cannot be made again, so its one connection carries them all.
    const more = await Promise.all(Array.from({ length: 4 }, () => openTerminal(service, 'mfa')))
    const { id: tooMany } = await service.post('/console-sessions/', { resourceId: 'mfa' })
    expect(await ended(tooMany)).toMatchObject({
      status: 'failed',
      failure: expect.stringMatching(/carries 5 terminals.*a person made this login.*close one of them/),
    })
    for (const other of more) await close(other)
    const desk = await attachTo(service, id)
    desk.ws.send('(sleep 2; printf "mark-%d\\n" $((6*7))) &\n')
    await desk.shows('mark-%d')
    expect(
      (await service.post('/console-commands/', { resourceId: 'mfa', command: 'echo one' })).stdout,
    ).toBe('one\n')
    code = '222222'
    server.cut()
    await prompted()
    expect((await service.get(`/console-sessions/${id}/`)).status).toBe('connected')
    await service.post('/environment-connections/mfa-c/login/', { answers: [code] })
    // The terminal went on meanwhile.
    await desk.shows('mark-42', 60)
    await close(id)
    expect(server.logins).toBe(2)
  }, 180_000)
})
