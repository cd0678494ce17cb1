import { afterEach, beforeAll, describe, expect, test } from '@jest/globals'
import { createHash, createSecretKey, randomBytes } from 'node:crypto'
import { connect as connectHttp2 } from 'node:http2'
import { connect } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { setTimeout as sleep } from 'node:timers/promises'
import { clientTls, relayKey, type FleetKeys } from '../../src/clients/ssh/relay-keys.ts'
import { openRelay, type LoginRecord, type LoginRecords } from '../../src/clients/ssh/relay.ts'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import type { SshSessions, SshTarget } from '../../src/clients/ssh/target.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import {
  makeServerKeys,
  startSshServer,
  type SshServer,
  type SshServerOptions,
} from '../support/ssh-server.ts'

/**
 * Several processes' worth of sessions that share a record, against an SSH server that asks a
 * person; logins are counted there.
 */

const makeKey = () => ({ id: randomBytes(8).toString('hex'), secret: createSecretKey(randomBytes(32)) })
const keysOf = (...keys: ReturnType<typeof makeKey>[]): FleetKeys => ({
  primary: () => Promise.resolve(keys[0]!),
  all: () => Promise.resolve(keys),
})

const makeRecords = (): LoginRecords & { rows: LoginRecord[] } => {
  const made = {
    rows: [] as LoginRecord[],
    read: () => Promise.resolve([...made.rows]),
    write: (process: string, records: readonly Omit<LoginRecord, 'process'>[]) => {
      made.rows = [
        ...made.rows.filter((row) => row.process !== process),
        ...records.map((record) => ({ ...record, process })),
      ]
      return Promise.resolve()
    },
  }
  return made
}

const code = '123456'
const second: NonNullable<SshServerOptions['second']> = {
  rounds: [{ prompts: [{ prompt: 'Code: ', echo: false }], judge: ([given]) => given === code }],
}
let keys: ReturnType<typeof makeServerKeys>
let fleetKey: ReturnType<typeof makeKey>
let records: ReturnType<typeof makeRecords>
const warnings: string[] = []
const ends: (() => Promise<unknown>)[] = []
beforeAll(() => {
  keys = makeServerKeys()
  fleetKey = makeKey()
})
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
  warnings.length = 0
})

const serve = async (options: SshServerOptions = {}): Promise<SshServer> => {
  const server = await startSshServer({ keys, second, ...options })
  ends.push(() => server.close())
  return server
}
const targetOf = ({ port, privateKey, hostKey }: SshServer): SshTarget => ({
  host: '127.0.0.1',
  port,
  username: 'ada',
  credential: 'person',
  secret: () => Promise.resolve({ privateKey }),
  hostKeys: { policy: 'strict', knownHosts: `[127.0.0.1]:${String(port)} ${hostKey}` },
})

interface Member {
  sessions: SshSessions
  /** Cuts what leads to this process, as its sudden end would. */
  dies: () => void
}
const member = (fleet: FleetKeys = keysOf(fleetKey), port = 0): Member => {
  let dies = (): void => undefined
  const sessions = openSshSessions({
    backOffMs: { first: 20, longest: 200 },
    others: (held) => {
      const relay = openRelay(
        {
          keys: fleet,
          records,
          address: { host: '127.0.0.1', port },
          renewMs: 200,
          warn: (error, message) => warnings.push(`${message}: ${String(error)}`),
        },
        held,
      )
      dies = () => void relay.close()
      return relay
    },
  })
  ends.push(() => sessions.close())
  return { sessions, dies: () => dies() }
}

/** A login that a person made at the first of two processes, and the shell of the second one. */
const pair = async (options: SshServerOptions = {}) => {
  records = makeRecords()
  const server = await serve(options)
  const target = targetOf(server)
  const [holder, other] = [member(), member()]
  await expect(holder.sessions.shell(target).run(':')).rejects.toMatchObject({ waitsForPerson: true })
  expect(await holder.sessions.answer(target, [code])).toMatchObject({ state: 'connected' })
  return { server, target, holder, other, shell: other.sessions.shell(target) }
}

const seen = async (what: string, probe: () => unknown): Promise<void> => {
  const until = Date.now() + 45_000
  while (!(await probe())) {
    if (Date.now() > until) throw new Error(`not seen: ${what}`)
    await sleep(20)
  }
}

/**
 * What a script writes; after the last of `size` bytes it is told to end, since this server forgets
 * what is under way at an end.
 */
const drained = async (shell: SiteShell, script: string, size: number): Promise<Buffer> => {
  const stream = await shell.open(`${script}; read line`)
  const chunks: Buffer[] = []
  let bytes = 0
  stream.stdout.on('data', (chunk: Buffer) => {
    chunks.push(chunk)
    bytes += chunk.length
    if (bytes === size) stream.stdin.end('\n')
  })
  expect(await stream.done).toMatchObject({ code: 0 })
  return Buffer.concat(chunks)
}
const numbers = (size: number): Buffer => {
  const parts: string[] = []
  for (let length = 0, next = 1; length < size; next++)
    length += parts[parts.push(`${String(next)}\n`) - 1]!.length
  return Buffer.from(parts.join('').slice(0, size))
}
const hash = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')

describe('a shell over the login of another process', () => {
  test('scripts: output, errors, exit code and input come as they are, over one login', async () => {
    const { server, shell } = await pair()
    expect(await shell.run('echo out; echo err >&2; exit 3')).toEqual({
      code: 3,
      signal: null,
      stdout: Buffer.from('out\n'),
      stderr: 'err\n',
    })
    expect((await shell.run('cat')).stdout.length).toBe(0)
    expect((await shell.run('cat', { input: 'a b\n$x' })).stdout.toString()).toBe('a b\n$x')
    const bytes = randomBytes(100_000)
    expect((await shell.run('cat', { input: bytes })).stdout.equals(bytes)).toBe(true)
    expect((await shell.run('head -c 4; exit 7', { input: bytes })).code).toBe(7)
    const long = `: '${'x'.repeat(600_000)}'\necho long`
    expect((await shell.run(long)).stdout.toString()).toBe('long\n')
    expect(server.logins).toBe(1)
  }, 60_000)

  test('a terminal: its size, a new size, its echo, and its end', async () => {
    const { shell, server } = await pair()
    const stream = await shell.terminal?.('stty size; exec /bin/sh -i', { rows: 31, columns: 117 })
    if (stream === undefined) throw new Error('the shell has no terminals')
    let text = ''
    stream.stdout.on('data', (chunk: Buffer) => (text += chunk.toString()))
    stream.resize?.(40, 120)
    await seen('the new size', () => {
      stream.stdin.write('stty size\n')
      return text.includes('40 120')
    })
    stream.stdin.write('exit 3\n')
    expect(await stream.done).toMatchObject({ code: 3 })
    expect(text).toContain('stty size\r\n')
    const other = await shell.terminal?.('sleep 300', { rows: 24, columns: 80 })
    other?.kill()
    await other?.done
    expect(server.logins).toBe(1)
  }, 60_000)

  test('a hundred at once, each with its own answer', async () => {
    const { shell } = await pair()
    const answers = await Promise.all(
      Array.from({ length: 100 }, async (_one, index) =>
        (await shell.run(`echo ${index}`)).stdout.toString(),
      ),
    )
    expect(answers).toEqual(Array.from({ length: 100 }, (_one, index) => `${index}\n`))
  }, 60_000)

  test('a deadline ends a script, more output than allowed is refused, and what follows works', async () => {
    const { shell } = await pair()
    const began = performance.now()
    await expect(shell.run('sleep 30', { deadlineMs: 300 })).rejects.toMatchObject({
      name: 'LinkError',
      stage: 'link',
    })
    expect(performance.now() - began).toBeLessThan(3_000)
    await expect(shell.run('head -c 100000 /dev/zero', { maxBytes: 1_000 })).rejects.toThrow(RangeError)
    await expect(shell.run('cat', { input: Buffer.alloc(100_000), maxBytes: 1_000 })).rejects.toThrow(
      RangeError,
    )
    expect((await shell.run('echo ok')).stdout.toString()).toBe('ok\n')
  }, 60_000)

  test('64 MiB go in and come out unchanged', async () => {
    const { shell } = await pair()
    const bytes = randomBytes(64 * 1024 * 1024)
    const { stdout } = await shell.run('sha256sum', { input: bytes, deadlineMs: 100_000 })
    expect(stdout.toString().split(' ')[0]).toBe(hash(bytes))
    expect(hash(await drained(shell, `seq 1 9000000 | head -c ${bytes.length}`, bytes.length))).toBe(
      hash(numbers(bytes.length)),
    )
  }, 120_000)

  test('a reader that takes its time holds the writer back', async () => {
    const { shell } = await pair()
    const stream = await shell.open('head -c 40000000 /dev/zero; read line; exit 5')
    let ended = false
    stream.done.then(
      () => (ended = true),
      () => undefined,
    )
    await sleep(700)
    expect(ended).toBe(false)
    let bytes = 0
    stream.stdout.on('data', (chunk: Buffer) => (bytes += chunk.length))
    await seen('the last byte', () => bytes === 40_000_000)
    expect(ended).toBe(false)
    stream.stdin.end('\n')
    expect(await stream.done).toMatchObject({ code: 5 })
  }, 60_000)

  test('kill ends what runs at the site, and an early end is told to the writer', async () => {
    const { server, shell } = await pair()
    const stream = await shell.open('echo $$; exec sleep 600')
    const [pid] = (await new Promise<Buffer>((resolve) => stream.stdout.once('data', resolve)))
      .toString()
      .split('\n')
    stream.kill()
    await seen(
      'the end of the process',
      async () => (await shell.run(`kill -0 ${pid!} 2>/dev/null`)).code !== 0,
    )
    expect(await stream.done).toMatchObject({ code: null, signal: 'SIGTERM' })
    const early = await shell.open('exit 4')
    const failure = new Promise<NodeJS.ErrnoException>((resolve) => early.stdin.once('error', resolve))
    expect(await early.done).toMatchObject({ code: 4 })
    expect((await failure).code).toBe('EPIPE')
    expect(server.logins).toBe(1)
  }, 60_000)

  test('state and probe are those of the login; without a relay each process would wait', async () => {
    const { server, target, holder, other } = await pair()
    const { attempts } = server
    expect(records.rows).toEqual([
      {
        login: expect.stringMatching(/^[0-9a-f]{64}$/),
        process: expect.any(String),
        waiting: false,
        address: expect.stringMatching(/^127\.0\.0\.1:\d+$/),
        since: expect.any(String),
      },
    ])
    expect(await other.sessions.state(target)).toMatchObject({
      state: 'connected',
      since: (await holder.sessions.state(target)).since,
    })
    expect(await other.sessions.probe(target)).toMatchObject({
      healthy: true,
      address: '127.0.0.1',
      hostKey: { type: 'ssh-ed25519' },
    })
    expect(await other.sessions.answer(target, ['000000'])).toMatchObject({ state: 'connected' })
    expect(server.attempts).toBe(attempts)
    const alone = openSshSessions()
    ends.push(() => alone.close())
    await expect(alone.shell(target).run(':')).rejects.toMatchObject({ waitsForPerson: true })
  }, 60_000)

  test('a host behind a jump host that a person logged in at', async () => {
    const { server, target, other } = await pair()
    const behind = await serve({ second: undefined as never })
    const way: SshTarget = { ...targetOf(behind), jump: [target] }
    expect((await other.sessions.shell(way).run('echo behind')).stdout.toString()).toBe('behind\n')
    expect([server.logins, behind.logins]).toEqual([1, 1])
    const size = 4 * 1024 * 1024
    expect(hash(await drained(other.sessions.shell(way), `seq 1 9000000 | head -c ${size}`, size))).toBe(
      hash(numbers(size)),
    )
  }, 60_000)
})

describe('the end of the login', () => {
  test('ends what runs over it as a lost link; then all wait, and a login at any process serves all', async () => {
    const { server, target, holder, other, shell } = await pair()
    const stream = await shell.open('cat')
    const call = shell.run('sleep 60')
    call.catch(() => undefined)
    await seen('both at the site', () => server.commands.size >= 2)
    server.cut()
    await expect(call).rejects.toMatchObject({ name: 'LinkError', stage: 'link', waitsForPerson: false })
    await expect(stream.done).rejects.toMatchObject({ name: 'LinkError', stage: 'link' })
    await expect(shell.run(':')).rejects.toMatchObject({ waitsForPerson: true })
    // The first one is asked for how it stands, as by the API, and asks the person as well.
    await seen(
      'the prompt at the first process',
      async () => (await holder.sessions.state(target)).state === 'waiting for login',
    )
    expect(await other.sessions.answer(target, [code])).toMatchObject({ state: 'connected' })
    await seen('the first process goes on', () =>
      holder.sessions
        .shell(target)
        .run(':')
        .then(
          () => true,
          () => false,
        ),
    )
    expect(server.logins).toBe(2)
    // The first one has none of its own: it tells of the other's.
    const state = await other.sessions.state(target)
    expect(state.state).toBe('connected')
    expect(await holder.sessions.state(target)).toEqual(state)
  }, 60_000)

  test('with the process that held it, in the middle of calls: a lost link, no login is tried twice', async () => {
    const { server, target, holder, other, shell } = await pair()
    const stream = await shell.open('cat')
    const call = shell.run('sleep 60')
    call.catch(() => undefined)
    await seen('both at the site', () => server.commands.size >= 2)
    const rows = [...records.rows]
    holder.dies()
    await expect(call).rejects.toMatchObject({ name: 'LinkError', stage: 'link' })
    await expect(stream.done).rejects.toMatchObject({ name: 'LinkError', stage: 'link' })
    // Its records stay for a while when it is killed.
    await seen('its farewell', () => records.rows.length === 0)
    records.rows = rows
    await expect(shell.run(':')).rejects.toMatchObject({ waitsForPerson: true })
    const { attempts } = server
    for (let turn = 0; turn < 10; turn++)
      await expect(shell.run(':')).rejects.toMatchObject({ waitsForPerson: true })
    expect(server.attempts).toBe(attempts)
    expect(await other.sessions.answer(target, [code])).toMatchObject({ state: 'connected' })
    expect((await shell.run('echo on')).stdout.toString()).toBe('on\n')
  }, 60_000)

  test('forgetting it anywhere ends it everywhere', async () => {
    const { server, target, other } = await pair()
    await other.sessions.forget([target])
    await seen('the end of the connection', () => server.connections.size === 0)
    await seen('the end of its record', () => records.rows.length === 0)
  }, 60_000)

  test('the end of many logins reads the record of the fleet once', async () => {
    const { server, target, other } = await pair()
    const { read } = records
    let reads = 0
    records.read = () => {
      reads += 1
      return read()
    }
    await other.sessions.forget([target, ...['bob', 'eve'].map((username) => ({ ...target, username }))])
    expect(reads).toBe(1)
    await seen('the end of the connection', () => server.connections.size === 0)
  }, 60_000)
})

describe('the key of the fleet', () => {
  test('another one opens nothing: that process waits for a login of its own', async () => {
    const { server, target } = await pair()
    const stranger = member(keysOf(makeKey()))
    await expect(stranger.sessions.shell(target).run(':')).rejects.toMatchObject({ waitsForPerson: true })
    expect(server.logins).toBe(1)
  }, 60_000)

  test('may be in the middle of a rotation, on either side', async () => {
    records = makeRecords()
    const server = await serve()
    const target = targetOf(server)
    const [old, fresh] = [makeKey(), makeKey()]
    const holder = member(keysOf(old))
    await holder.sessions.answer(target, [])
    expect(await holder.sessions.answer(target, [code])).toMatchObject({ state: 'connected' })
    for (const keys of [keysOf(fresh, old), keysOf(old, fresh)])
      expect((await member(keys).sessions.shell(target).run('echo in')).stdout.toString()).toBe('in\n')
    expect(server.logins).toBe(1)
  }, 60_000)

  test('is needed to learn anything of the port', async () => {
    const { shell } = await pair()
    const port = Number(records.rows[0]!.address!.split(':')[1])
    for (const hello of ['GET / HTTP/1.1\r\n\r\n', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', randomBytes(4_096)]) {
      const socket = connect(port, '127.0.0.1')
      let told = 0
      socket.on('data', (chunk: Buffer) => (told += chunk.length))
      socket.on('error', () => undefined)
      socket.write(hello)
      await new Promise((resolve) => socket.once('close', resolve))
      // An alert of TLS at most.
      expect(told).toBeLessThanOrEqual(7)
    }
    const silent = connect(port, '127.0.0.1')
    silent.on('error', () => undefined)
    const plain = connectTls({ host: '127.0.0.1', port, rejectUnauthorized: false, ALPNProtocols: ['h2'] })
    expect(
      await new Promise((resolve) =>
        plain.once('secureConnect', () => resolve('in')).once('error', () => resolve('out')),
      ),
    ).toBe('out')
    // Who says nothing is left after 5 s.
    await new Promise((resolve) => silent.once('close', resolve))
    expect((await shell.run('echo on')).stdout.toString()).toBe('on\n')
  }, 60_000)

  test('who has it and talks nonsense harms nobody', async () => {
    const { target, holder, shell } = await pair()
    const port = Number(records.rows[0]!.address!.split(':')[1])
    const socket = connectTls({ ...clientTls(relayKey(fleetKey)), host: '127.0.0.1', port })
    await new Promise((resolve) => socket.once('secureConnect', resolve))
    const session = connectHttp2('https://relay', { createConnection: () => socket })
    session.on('error', () => undefined)
    const answer = async (bytes: Buffer): Promise<string> => {
      const stream = session.request({ ':method': 'POST', ':path': '/' })
      stream.end(bytes)
      const chunks: Buffer[] = []
      for await (const chunk of stream) chunks.push(chunk as Buffer)
      return Buffer.concat(chunks).toString('latin1', 5)
    }
    const head = (value: unknown): Buffer => {
      const text = Buffer.from(JSON.stringify(value))
      const length = Buffer.alloc(4)
      length.writeUInt32BE(text.length)
      return Buffer.concat([length, text])
    }
    const id = '0'.repeat(32)
    expect(await answer(Buffer.alloc(0))).toMatch(/not whole/)
    expect(await answer(Buffer.from([255, 255, 255, 255, 1]))).toMatch(/longer than/)
    expect(await answer(head({ call: 'steal', login: 'x', id }))).toMatch(/call/)
    expect(
      await answer(
        head({ call: 'run', login: '0'.repeat(64), id, script: ':', deadlineMs: 1_000, maxBytes: 1 }),
      ),
    ).toMatch(/not held/)
    session.destroy()
    expect((await holder.sessions.state(target)).state).toBe('connected')
    expect((await shell.run('echo on')).stdout.toString()).toBe('on\n')
  }, 60_000)
})

test('an address that cannot be listened at is told, and logins are this process alone', async () => {
  records = makeRecords()
  const server = await serve()
  const target = targetOf(server)
  const one = member(keysOf(fleetKey), server.port)
  await one.sessions.answer(target, [])
  expect(await one.sessions.answer(target, [code])).toMatchObject({ state: 'connected' })
  expect(warnings).toEqual([
    expect.stringMatching(
      new RegExp(`SERVICE_RELAY_ADDRESS=127.0.0.1:${String(server.port)} cannot be listened at`),
    ),
  ])
  expect((await one.sessions.shell(target).run('echo in')).stdout.toString()).toBe('in\n')
  expect(records.rows).toEqual([])
}, 60_000)
