import { afterEach, describe, expect, test } from '@jest/globals'
import { createHash, randomBytes } from 'node:crypto'
import { createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SshSessionsOptions } from '../../src/clients/ssh/sessions-options.ts'
import type { SshSessions, SshTarget } from '../../src/clients/ssh/target.ts'
import { LinkError, type SiteShell } from '../../src/shell/site-shell.ts'
import { startSshServer, type SshServer, type SshServerOptions } from '../support/ssh-server.ts'
import { freePort } from './sshd.ts'

/** Servers that break, hang, lie and ask. */

const endings: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end()
})

const open = (options: SshSessionsOptions = {}): SshSessions => {
  const sessions = openSshSessions({ backOffMs: { first: 1, longest: 5 }, ...options })
  endings.push(() => sessions.close())
  return sessions
}

const serve = async (options: SshServerOptions = {}): Promise<SshServer> => {
  const server = await startSshServer(options)
  endings.push(() => server.close())
  return server
}

const targetOf = (server: SshServer, changes: Partial<SshTarget> = {}): SshTarget => ({
  host: '127.0.0.1',
  port: server.port,
  username: 'somebody',
  credential: 'key',
  secret: async () => ({ privateKey: server.privateKey }),
  hostKeys: { policy: 'strict', knownHosts: `[127.0.0.1]:${server.port} ${server.hostKey}` },
  ...changes,
})

/** A server that is none: what it does with a connection. */
const strange = async (
  behave: (socket: Socket) => void,
): Promise<SshTarget & { connections: () => number }> => {
  const sockets = new Set<Socket>()
  let connections = 0
  const server: Server = createServer((socket) => {
    connections++
    sockets.add(socket)
    socket.on('error', () => undefined)
    socket.resume()
    behave(socket)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  endings.push(async () => {
    for (const socket of sockets) socket.destroy()
    await new Promise((resolve) => server.close(resolve))
  })
  const { port } = server.address() as { port: number }
  return {
    host: '127.0.0.1',
    port,
    username: 'somebody',
    secret: async () => ({}),
    hostKeys: { policy: 'strict' },
    timeouts: { loginMs: 1_000 },
    connections: () => connections,
  }
}

const streamed = async (shell: SiteShell, sent: Buffer): Promise<Buffer> => {
  const stream = await shell.open('cat')
  stream.stdin.end(sent)
  const chunks: Buffer[] = []
  stream.stdout.on('data', (chunk: Buffer) => chunks.push(chunk))
  await stream.done
  if (!stream.stdout.readableEnded) await new Promise((resolve) => stream.stdout.once('end', resolve))
  return Buffer.concat(chunks)
}

const seen = async (what: string, now: () => boolean | Promise<boolean>): Promise<void> => {
  for (const end = performance.now() + 30_000; !(await now()); await sleep(5))
    if (performance.now() > end) throw new Error(`${what}: not within 30 s`)
}

/** Settles within half a minute whatever happens. */
const bounded = <T>(work: Promise<T>): Promise<T> =>
  Promise.race([
    work,
    sleep(30_000, undefined, { ref: false }).then(() => {
      throw new Error('it hangs')
    }),
  ])

describe('a link that is cut', () => {
  const rounds: [string, (shell: SiteShell) => Promise<void>][] = [
    [
      'a script',
      async (shell) => {
        expect((await shell.run('echo whole', { deadlineMs: 20_000 })).stdout.toString()).toBe('whole\n')
      },
    ],
    [
      'a stream',
      async (shell) => {
        expect((await streamed(shell, Buffer.from('whole'))).toString()).toBe('whole')
      },
    ],
  ]
  test.each(rounds)(
    'at any message, while %s comes and goes: whole or a lost link, and the next one works',
    async (_what, roundTrip) => {
      const server = await serve()
      const first = open()
      await roundTrip(first.shell(targetOf(server)))
      await first.close()
      const total = server.writes
      expect(total).toBeGreaterThan(20)
      let broken = 0
      for (let write = 1; write <= total; write++) {
        const sessions = open()
        const shell = sessions.shell(targetOf(server))
        server.writes = 0
        server.cutAt = { write, lost: write % 2 === 0 }
        const end = await bounded(roundTrip(shell)).catch((error: unknown) => error)
        server.cutAt = undefined
        if (end !== undefined) {
          broken++
          expect([write, end]).toEqual([
            write,
            expect.objectContaining({ name: 'LinkError', permanent: false, waitsForPerson: false }),
          ])
        } else {
          // Cut behind the answer: the connection may still look alive.
          await bounded(shell.run(':', { deadlineMs: 20_000 })).catch((error: unknown) =>
            expect(error).toBeInstanceOf(LinkError),
          )
        }
        await bounded(roundTrip(shell))
        await sessions.close()
      }
      expect(broken).toBeGreaterThan(total / 2)
    },
    240_000,
  )

  test('fifty times, under many scripts: none gets an answer of another', async () => {
    const server = await serve()
    const shell = open().shell(targetOf(server))
    let right = 0
    const ask = async (index: number): Promise<void> => {
      const answer = await bounded(shell.run(`echo ${String(index)}`, { deadlineMs: 20_000 })).catch(
        (error: unknown) => error,
      )
      if (answer instanceof LinkError) return
      expect((answer as { stdout: Buffer }).stdout.toString()).toBe(`${String(index)}\n`)
      right++
    }
    for (let round = 0; round < 50; round++) {
      const asked = Promise.all(Array.from({ length: 10 }, (_one, index) => ask(round * 10 + index)))
      server.cutAt = { write: server.writes + 1 + ((round * 7) % 60), lost: round % 2 === 0 }
      await asked
      server.cutAt = undefined
      server.cut()
    }
    await ask(500)
    expect(right).toBeGreaterThan(0)
    expect((await shell.run('echo end')).stdout.toString()).toBe('end\n')
  }, 120_000)
})

test('keys are exchanged anew in the middle of a stream, and no byte is lost', async () => {
  const server = await serve()
  const shell = open().shell(targetOf(server))
  const sent = randomBytes(8 * 1024 * 1024)
  const running = streamed(shell, sent)
  for (let turn = 0; turn < 4; turn++) {
    await seen('a login', () => server.connections.size > 0 && server.logins > 0)
    const before = server.handshakes
    for (const connection of server.connections) connection.rekey()
    await seen('a new exchange of keys', () => server.handshakes > before)
  }
  const came = await bounded(running)
  expect(createHash('sha256').update(came).digest('hex')).toBe(
    createHash('sha256').update(sent).digest('hex'),
  )
  expect((await shell.run('echo after')).stdout.toString()).toBe('after\n')
  expect(server.handshakes).toBe(5)
  expect(server.logins).toBe(1)
}, 60_000)

describe('a server that hangs', () => {
  test.each([
    ['login', 'login', 1_000],
    ['channel', 'shell', 1_500],
    ['command', 'shell', 1_500],
    ['silence', 'link', 1_500],
  ] as const)(
    'at the %s: the stage %s is named, in time',
    async (hang, stage, least) => {
      const server = await serve({ hang })
      const shell = open().shell(targetOf(server, { timeouts: { loginMs: 1_000 } }))
      const started = performance.now()
      await expect(bounded(shell.run('echo never', { deadlineMs: 1_500 }))).rejects.toMatchObject({
        name: 'LinkError',
        stage,
        permanent: false,
      })
      const took = performance.now() - started
      expect(took).toBeGreaterThan(least - 100)
      expect(took).toBeLessThan(15_000)
    },
    60_000,
  )

  // At once: a probe waits for its own deadline.
  test('at any of these places: a probe tells what went well and the stage that did not', async () => {
    const places = { login: 'login', channel: 'shell', command: 'shell', silence: 'shell' } as const
    await Promise.all(
      Object.entries(places).map(async ([hang, stage]) => {
        const server = await serve({ hang: hang as keyof typeof places })
        const target = targetOf(server, { timeouts: { loginMs: 1_000, keepaliveMs: 200, keepaliveCount: 2 } })
        const { healthy, stages } = await bounded(open().probe(target))
        const way = ['name', 'route', 'host key', 'login', 'shell']
        expect(healthy).toBe(false)
        expect(stages.map((one) => [one.stage, one.ok])).toEqual(
          way.slice(0, way.indexOf(stage) + 1).map((one) => [one, one !== stage]),
        )
      }),
    )
  }, 60_000)

  const never: [string, (socket: Socket) => void][] = [
    ['says nothing', () => undefined],
    ['greets and says no more', (socket) => socket.write('SSH-2.0-Stuck\r\n')],
    ['never ends its greeting', (socket) => socket.write('x'.repeat(3_000))],
  ]
  test.each(never)(
    'before the host key, as it %s: told as such, in time',
    async (_what, behave) => {
      const target = await strange(behave)
      const started = performance.now()
      await expect(bounded(open().shell(target).run(':'))).rejects.toMatchObject({
        stage: 'host key',
        permanent: false,
      })
      expect(performance.now() - started).toBeLessThan(15_000)
      const told = await bounded(open().probe(target))
      expect(told.stages.map(({ stage, ok }) => [stage, ok])).toEqual([
        ['name', true],
        ['route', true],
        ['host key', false],
      ])
    },
    60_000,
  )
})

describe('what is no SSH server', () => {
  const others: [string, (socket: Socket) => void][] = [
    ['a web server', (socket) => socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n')],
    ['noise', (socket) => socket.write(randomBytes(100_000))],
    [
      'a greeting, then noise',
      (socket) => socket.write(Buffer.concat([Buffer.from('SSH-2.0-Noise\r\n'), randomBytes(100_000)])),
    ],
    ['a closed door', (socket) => socket.destroy()],
    ['SSH of 1997', (socket) => socket.end('SSH-1.5-Old\r\n')],
    [
      'endless lines',
      (socket) => {
        const lines = Buffer.alloc(60_000, 'we are glad that you are here\r\n')
        const more = (): void => {
          while (!socket.destroyed && socket.write(lines));
        }
        socket.on('drain', more)
        more()
      },
    ],
    ['one long word', (socket) => socket.end(`SSH-2.0-${'x'.repeat(100_000)}\r\n`)],
  ]
  test.each(others)(
    '%s: told in a few printable words',
    async (_what, behave) => {
      const target = await strange(behave)
      const failure = (await bounded(open().shell(target).run(':')).catch(
        (error: unknown) => error,
      )) as LinkError
      expect(failure).toMatchObject({ name: 'LinkError', stage: 'host key' })
      expect(failure.message.length).toBeLessThan(1_000)
      expect(failure.message).not.toMatch(/\p{Cc}/u)
    },
    60_000,
  )

  test('nobody there, and no such name', async () => {
    const target = { ...(await strange(() => undefined)), port: await freePort() }
    await expect(bounded(open().shell(target).run(':'))).rejects.toMatchObject({
      stage: 'route',
      message: expect.stringMatching(/connection refused/),
    })
    const nameless = { ...target, host: 'no-such-host.invalid' }
    await expect(bounded(open().shell(nameless).run(':'))).rejects.toMatchObject({
      stage: 'name',
      message: expect.stringMatching(/no-such-host\.invalid is not known/),
    })
    expect((await open().probe(nameless)).stages).toEqual([
      expect.objectContaining({ stage: 'name', ok: false }),
    ])
  }, 60_000)

  test('an address that is not allowed: not a byte is sent to it, by whatever name', async () => {
    const target = await strange(() => undefined)
    const asked: string[] = []
    const sessions = open({ addressAllowed: (address) => (asked.push(address), 'is in a denied network') })
    for (const host of ['127.0.0.1', 'localhost', '127.1', '2130706433', '::ffff:127.0.0.1']) {
      const denied = { ...target, host }
      await expect(sessions.shell(denied).run(':')).rejects.toMatchObject({
        stage: expect.stringMatching(/^(route|name)$/),
      })
      expect((await sessions.probe(denied, { fresh: true })).healthy).toBe(false)
    }
    expect(asked).toContain('127.0.0.1')
    expect(target.connections()).toBe(0)
  }, 60_000)
})

describe('a second factor', () => {
  const code = (judge: (answers: string[]) => boolean) => ({
    rounds: [{ prompts: [{ prompt: 'Code: ', echo: false }], judge }],
  })

  test('a code is taken once; a wrong one is asked for again; nothing is tried while it waits', async () => {
    let valid = '111111'
    const judged: string[] = []
    const server = await serve({
      second: code(([given = '']) => {
        judged.push(given)
        const right = given === valid
        if (right) valid = ''
        return right
      }),
    })
    const target = targetOf(server)
    const sessions = open()
    const shell = sessions.shell(target)
    await expect(shell.run(':')).rejects.toMatchObject({ stage: 'login', waitsForPerson: true })
    const attempts = server.attempts
    for (let turn = 0; turn < 20; turn++) {
      await expect(shell.run(':')).rejects.toMatchObject({ waitsForPerson: true })
      expect((await sessions.probe(target)).prompts?.prompts).toEqual([{ prompt: 'Code:', echo: false }])
    }
    expect([server.attempts, judged]).toEqual([attempts, []])

    expect(await sessions.answer(target, ['000000'])).toMatchObject({
      state: 'waiting for login',
      prompts: { prompts: [{ prompt: 'Code:', echo: false }] },
      error: 'the answers were not accepted',
    })
    expect(await sessions.answer(target, ['111111'])).toMatchObject({ state: 'connected' })
    expect((await shell.run('echo in')).stdout.toString()).toBe('in\n')
    expect(judged).toEqual(['000000', '111111'])

    // The code is used up: after a lost link a person is asked anew, and the old code is not sent
    // again.
    server.cut()
    await seen('the loss of the link', async () => (await sessions.state(target)).state !== 'connected')
    await expect(shell.run(':')).rejects.toMatchObject({ waitsForPerson: true })
    expect(judged).toEqual(['000000', '111111'])
    expect(await sessions.answer(target, ['111111'])).toMatchObject({ state: 'waiting for login' })
    valid = '222222'
    expect(await sessions.answer(target, ['222222'])).toMatchObject({ state: 'connected' })
    expect((await shell.run('echo again')).stdout.toString()).toBe('again\n')
    expect(server.logins).toBe(2)
  }, 60_000)

  test('the server hangs up while a person thinks: the answer still logs in, sent once', async () => {
    const judged: string[] = []
    const server = await serve({ second: code(([given = '']) => judged.push(given) > 0) })
    const target = targetOf(server)
    const sessions = open()
    await expect(sessions.shell(target).run(':')).rejects.toMatchObject({ waitsForPerson: true })
    server.cut()
    await seen('the end of all connections', () => server.connections.size === 0)
    await sleep(20)
    const attempts = server.attempts
    await expect(sessions.shell(target).run(':')).rejects.toMatchObject({ waitsForPerson: true })
    expect(server.attempts).toBe(attempts)
    expect(await sessions.answer(target, ['333333'])).toMatchObject({ state: 'connected' })
    expect(judged).toEqual(['333333'])
  }, 60_000)
})

test('a hundred callers of twenty logins at one host: at most five are let in at once, all are answered', async () => {
  const server = await serve({ loginDelayMs: 20 })
  const sessions = open()
  const answers = await Promise.all(
    Array.from({ length: 100 }, async (_one, index) => {
      const shell = sessions.shell(targetOf(server, { username: `user${String(index % 20)}` }))
      return (await shell.run(`echo ${String(index)}`, { deadlineMs: 100_000 })).stdout.toString()
    }),
  )
  expect(answers).toEqual(Array.from({ length: 100 }, (_one, index) => `${String(index)}\n`))
  expect(server.logins).toBe(20)
  expect(server.unauthenticated.most).toBeGreaterThan(1)
  expect(server.unauthenticated.most).toBeLessThanOrEqual(5)
}, 120_000)
