import { expect } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { createHash } from 'node:crypto'
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import ssh2 from 'ssh2'
import { KeyAgent } from '../../src/clients/ssh/agent.ts'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import { shellCommand } from '../../src/clients/ssh/session.ts'
import type { SshSessionsOptions } from '../../src/clients/ssh/sessions-options.ts'
import type { SshSessions, SshTarget } from '../../src/clients/ssh/target.ts'
import { poll } from '../../src/pacing/poll.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { until } from '../failures/programs.ts'
import { proved, runsOf } from '../support/share.ts'
import { startSshServer, type SshServer, type SshServerOptions } from '../support/ssh-server.ts'
import { makeKey, startSshd, type Sshd } from './sshd.ts'
import { runFolder } from '../support/run-folder.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, afterEach, beforeAll, describe, test } = needs(...sites.sshd)

/** Against a real OpenSSH server. */

let sshd: Sshd
let folder: string
const opened: SshSessions[] = []
const open = (options?: SshSessionsOptions): SshSessions => {
  const sessions = openSshSessions(options)
  opened.push(sessions)
  return sessions
}
beforeAll(async () => {
  sshd = await startSshd([], ['ed25519', 'rsa'])
  folder = mkdtempSync(join(runFolder(), 'ssh-sessions-'))
})
afterEach(async () => {
  for (const sessions of opened.splice(0)) await sessions.close()
})
afterAll(async () => {
  await sshd.stop()
  rmSync(folder, { recursive: true, force: true })
})

const logins = (): number => sshd.log().split('Accepted publickey').length - 1

describe('scripts', () => {
  test('output, errors, exit code and input come as they are', async () => {
    const shell = open().shell(sshd.target())
    expect(await shell.run('echo out; echo err >&2; exit 3')).toEqual({
      code: 3,
      signal: null,
      stdout: Buffer.from('out\n'),
      stderr: 'err\n',
    })
    expect((await shell.run('printf "no newline"')).stdout.toString()).toBe('no newline')
    expect((await shell.run('cat')).stdout.length).toBe(0)
    expect((await shell.run('cat', { input: 'a b\n$x' })).stdout.toString()).toBe('a b\n$x')
    const bytes = Buffer.from(Array.from({ length: 100_000 }, (_one, index) => index % 256))
    expect((await shell.run('cat', { input: bytes })).stdout.equals(bytes)).toBe(true)
    expect((await shell.run('head -c 4; exit 7', { input: bytes })).code).toBe(7)
  })

  test('a script cannot harm the next one', async () => {
    const shell = open({ channels: 2 }).shell(sshd.target())
    for (const script of [
      'exit 9',
      'cd /; set -eu; false',
      'if',
      "echo 'open",
      'exec >&-',
      'trap "" TERM; exec 2>&1',
      'unset PATH',
      'return 3',
      '}',
    ]) {
      await shell.run(script)
      const { code, stdout } = await shell.run('echo still; pwd')
      expect([script, code, stdout.toString().split('\n')[0]]).toEqual([script, 0, 'still'])
    }
  })

  test('whatever text a script has arrives, at every length', async () => {
    const shell = open().shell(sshd.target())
    await fc.assert(
      fc.asyncProperty(
        fc.string({ unit: 'grapheme', maxLength: 60 }),
        fc.constantFrom(0, 1000, 30_000),
        async (text, padding) => {
          const clean = text.replaceAll('\0', '')
          const words = `: '${'x'.repeat(padding)}'\nprintf %s '${clean.replaceAll("'", `'\\''`)}'`
          expect((await shell.run(words)).stdout.toString()).toBe(clean)
          const answer = await shell.run(`${words}; cat`, { input: Buffer.from('\0in') })
          expect(answer.stdout.toString()).toBe(`${clean}\0in`)
        },
      ),
      { numRuns: 25 },
    )
  })

  test.each(
    ['sh', 'dash', 'bash', 'zsh', 'fish', 'tcsh'].filter(
      (shell) => existsSync(`/bin/${shell}`) || existsSync(`/usr/bin/${shell}`),
    ),
  )('accounts with %s run scripts unharmed', (shell) => {
    fc.assert(
      fc.property(
        fc.string({ unit: fc.constantFrom(...`'"\\\`$!%*?~#&|;<>(){}[]\n\t a0é`), maxLength: 40 }),
        (text) => {
          const script = `printf %s '${text.replaceAll("'", `'\\''`)}'`
          expect(
            execFileSync(shell, ['-c', shellCommand(script)], {
              encoding: 'utf8',
              stdio: ['ignore', 'pipe', 'pipe'],
            }),
          ).toBe(text)
        },
      ),
      { numRuns: runsOf(20, 60) },
    )
  })

  test('one connection carries a thousand at once, each with its own answer', async () => {
    const before = logins()
    const shell = open().shell(sshd.target())
    const answers = await Promise.all(
      Array.from({ length: 1000 }, async (_one, index) =>
        (await shell.run(`echo ${index}; echo e${index} >&2`)).stdout.toString(),
      ),
    )
    expect(answers).toEqual(Array.from({ length: 1000 }, (_one, index) => `${index}\n`))
    expect(logins() - before).toBe(1)
  })

  test('a deadline ends the script and leaves the connection', async () => {
    const before = logins()
    const shell = open().shell(sshd.target())
    const mark = join(folder, 'deadline')
    await expect(shell.run(`(sleep 3; echo late > '${mark}')`, { deadlineMs: 500 })).rejects.toMatchObject({
      name: 'LinkError',
      stage: 'link',
    })
    expect((await shell.run('echo ok')).stdout.toString()).toBe('ok\n')
    expect(logins() - before).toBeLessThanOrEqual(1)
    await sleep(3500)
    expect(existsSync(mark)).toBe(false)
  })

  test('more output than allowed is refused, a lot is brought whole', async () => {
    const shell = open().shell(sshd.target())
    await expect(shell.run('yes', { maxBytes: 100_000 })).rejects.toThrow('more than 100000 bytes')
    const { stdout, stderr } = await shell.run('head -c 20000000 /dev/zero; yes e | head -c 100000 >&2')
    expect(stdout.length).toBe(20_000_000)
    expect(stderr).toBe('e\n'.repeat(32 * 1024))
  })
})

describe('streams', () => {
  test('bytes go in and come out unchanged', async () => {
    const stream = await open().shell(sshd.target()).open('tee /dev/stderr | cat; exit 5')
    const sent = Buffer.alloc(3_000_000, 'abcdefg')
    stream.stdin.end(sent)
    const hash = createHash('sha256')
    for await (const chunk of stream.stdout) hash.update(chunk as Buffer)
    expect(hash.digest('hex')).toBe(createHash('sha256').update(sent).digest('hex'))
    const { code, stderr } = await stream.done
    expect(code).toBe(5)
    expect(stderr.length).toBe(64 * 1024)
  })

  test('a reader that takes its time holds the writer back', async () => {
    const mark = join(folder, 'written')
    const stream = await open().shell(sshd.target()).open(`head -c 50000000 /dev/zero; echo done > '${mark}'`)
    await sleep(1000)
    expect(existsSync(mark)).toBe(false)
    let bytes = 0
    for await (const chunk of stream.stdout) bytes += (chunk as Buffer).length
    expect(bytes).toBe(50_000_000)
    expect((await stream.done).code).toBe(0)
  })

  test('kill ends what runs at the site', async () => {
    const shell = open().shell(sshd.target())
    const stream = await shell.open('echo $$; sleep 30 & wait')
    const pid = await new Promise<string>((resolve) =>
      stream.stdout.once('data', (chunk: Buffer) => resolve(chunk.toString().trim())),
    )
    stream.kill()
    stream.kill()
    expect(await stream.done).toMatchObject({ code: null, signal: 'SIGTERM' })
    await expect(
      shell.run(`while kill -0 -- -${pid} 2>/dev/null; do sleep 0.1; done`, { deadlineMs: 20_000 }),
    ).resolves.toMatchObject({
      code: 0,
    })
  })

  test('streams beyond the channels wait, scripts do not', async () => {
    const shell = open().shell(sshd.target())
    const five = await Promise.all(Array.from({ length: 5 }, () => shell.open('cat')))
    let sixth = false
    const next = shell.open('echo six').then((stream) => {
      sixth = true
      return stream
    })
    expect((await shell.run('echo free')).stdout.toString()).toBe('free\n')
    expect(sixth).toBe(false)
    five[0]!.stdin.end()
    five[0]!.stdout.resume()
    expect((await (await next).done).code).toBe(0)
    for (const stream of five) stream.kill()
  })

  test('a script that ends before its input is told to the writer', async () => {
    const stream = await open().shell(sshd.target()).open('exit 0')
    await stream.done
    expect(stream.stdin.destroyed).toBe(true)
  })
})

describe('host keys', () => {
  const line = (name: string, type = 'ed25519'): string => `${name} ${sshd.hostKeys[type]!}`
  const keys = (knownHosts: string, more: object = {}) => ({
    hostKeys: { policy: 'strict' as const, knownHosts, ...more },
  })
  const probe = (changes: object) => open().probe(sshd.target(changes), { fresh: true })
  let other: ReturnType<typeof makeKey>
  beforeAll(() => {
    other = makeKey(folder, 'other', 'ed25519')
  })

  test('the recorded type is asked for first', async () => {
    const told = await probe(keys(line(`[127.0.0.1]:${sshd.port}`, 'rsa')))
    expect(told).toMatchObject({
      healthy: true,
      hostKey: { type: 'ssh-rsa', fingerprint: sshd.fingerprints['rsa'] },
    })
  })

  test.each(['ed25519', 'rsa'])(
    'a fingerprint of the key of type %s is enough, whatever the host shows first',
    async (type) => {
      const told = await probe(keys('', { fingerprints: [other.fingerprint, sshd.fingerprints[type]!] }))
      expect(told).toMatchObject({ healthy: true, hostKey: { fingerprint: sshd.fingerprints[type] } })
    },
  )

  test.each([
    ['unknown', () => keys(''), () => `is not known: it shows ${sshd.fingerprints['ed25519']!}`],
    [
      'changed',
      () => keys(`[127.0.0.1]:${sshd.port} ${other.publicKey}`),
      () => `has changed: expected ${other.fingerprint}, got ${sshd.fingerprints['ed25519']!}`,
    ],
    [
      'revoked',
      () => keys(`${line('*')}\n@revoked ${line('*')}`),
      () => `${sshd.fingerprints['ed25519']!} (ssh-ed25519), which is marked as revoked`,
    ],
    ['known for another port', () => keys(line('[127.0.0.1]:22')), () => 'is not known'],
    [
      'vouched for by an authority only',
      () => keys(`@cert-authority ${line('*')}`),
      () => 'Host certificates (@cert-authority) are not read',
    ],
    [
      'another fingerprint',
      () => keys('', { fingerprints: [other.fingerprint] }),
      () => `expected ${other.fingerprint}, got ${sshd.fingerprints['ed25519']!}`,
    ],
  ])('%s: refused before the login', async (_what, changes, words) => {
    let asked = 0
    const told = await probe({
      ...changes(),
      secret: () => Promise.resolve({ privateKey: sshd.privateKey }).finally(() => asked++),
    })
    expect(told.healthy).toBe(false)
    expect(told.stages.at(-1)).toMatchObject({ stage: 'host key', ok: false })
    expect(told.message).toContain(words())
    expect(sshd.log().split('\n').at(-2)).not.toContain('Accepted')
  })

  test('wildcard, alias, fingerprint: accepted', async () => {
    expect((await probe(keys(line('*')))).healthy).toBe(true)
    expect((await probe(keys(line('cluster'), { hostKeyAlias: 'Cluster' }))).healthy).toBe(true)
    expect((await probe(keys('', { fingerprints: [sshd.fingerprints['ed25519']!] }))).healthy).toBe(true)
  })

  test('accept-new records at first contact, not while testing, and is strict with what it knows', async () => {
    const recorded: string[] = []
    const record = async ({ line: text }: { line: string }): Promise<void> => {
      recorded.push(text)
    }
    const target = sshd.target({ hostKeys: { policy: 'accept-new', record } })
    const sessions = open()
    expect(await sessions.probe(target, { fresh: true })).toMatchObject({ healthy: true, hostKeyIsNew: true })
    expect(recorded).toEqual([])
    await sessions.shell(target).run(':')
    expect(recorded).toEqual([line(`[127.0.0.1]:${sshd.port}`)])
    expect(
      await probe({ hostKeys: { policy: 'accept-new', knownHosts: `* ${other.publicKey}`, record } }),
    ).toMatchObject({
      healthy: false,
    })
    const refusing = sshd.target({
      hostKeys: { policy: 'accept-new', record: () => Promise.reject(new Error('no database')) },
    })
    await expect(open().shell(refusing).run(':')).rejects.toMatchObject({ stage: 'host key' })
  })
})

describe('ways', () => {
  test('through a jump host, each with its own verdict', async () => {
    const behind = await startSshd()
    try {
      const jump = sshd.target()
      const sessions = open()
      const through = sessions.shell(behind.target({ jump: [jump] }))
      expect((await through.run('echo "$SSH_CONNECTION"')).stdout.toString()).toContain(` ${behind.port}\n`)
      expect((await sessions.state(jump)).state).toBe('connected')
      const wrong = { ...jump, hostKeys: { policy: 'strict' as const } }
      await expect(sessions.shell(behind.target({ jump: [wrong] })).run(':')).rejects.toMatchObject({
        stage: 'route',
        permanent: true,
      })
      const wrongBehind = behind.target({ jump: [jump], hostKeys: { policy: 'strict' } })
      expect((await sessions.probe(wrongBehind, { fresh: true })).stages.at(-1)).toMatchObject({
        stage: 'host key',
        ok: false,
      })
      const nobody = behind.target({ jump: [jump], port: 1 })
      await expect(sessions.shell(nobody).run(':')).rejects.toMatchObject({ stage: 'route' })
      const twice = behind.target({ jump: [jump, { ...behind.target() }] })
      expect((await sessions.shell(twice).run('echo two')).stdout.toString()).toBe('two\n')
    } finally {
      await behind.stop()
    }
  })

  proved('through a proxy command, where it is allowed', async () => {
    const proxyCommand = `exec ssh-proxy %h %p`
    chmodSync(folder, 0o755)
    const command =
      `test "%r" = "${sshd.target().username}" && perl -MIO::Socket::INET -MIO::Select -e 'my $s = ` +
      `IO::Socket::INET->new("$ARGV[0]:$ARGV[1]") or die "no way\\n"; my $l = IO::Select->new($s, ` +
      `\\*STDIN); while (my @r = $l->can_read) { for (@r) { my $n = sysread($_, my $b, 65536); exit ` +
      `unless $n; syswrite($_ == $s ? \\*STDOUT : $s, $b) } }' %h %p`
    await expect(open().shell(sshd.target({ proxyCommand })).run(':')).rejects.toThrow(
      'proxy commands are not allowed here',
    )
    const sessions = open({ allowProxyCommand: true })
    expect(
      (await sessions.shell(sshd.target({ proxyCommand: command })).run('echo through')).stdout.toString(),
    ).toBe('through\n')
    const broken = sshd.target({ proxyCommand: 'echo no such way >&2; exit 1' })
    await expect(sessions.shell(broken).run(':')).rejects.toThrow('no such way')
    // A process that the command has left behind keeps the output open.
    const kept = join(folder, 'kept')
    const left = sshd.target({
      proxyCommand: `setsid sleep 86400 & echo $! > ${kept}; echo no way there >&2; exit 1`,
    })
    await expect(sessions.shell(left).run(':')).rejects.toThrow('no way there')
    process.kill(Number(readFileSync(kept, 'utf8')), 'SIGKILL')
  })

  test('a program at the site signs with the forwarded key and cannot read it', async () => {
    const types = ['ed25519', 'ecdsa', 'rsa']
    for (const type of types) {
      const key = makeKey(folder, `forward_${type}`, type)
      writeFileSync(
        join(sshd.folder, 'authorized_keys'),
        `${readFileSync(join(sshd.folder, 'user.pub'), 'utf8')}${key.publicKey}\n`,
      )
      const secret = () => Promise.resolve({ privateKey: key.privateKey })
      const ssh =
        'ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -p ' +
        `${sshd.port} 127.0.0.1 echo there`
      const sessions = open()
      const plain = await sessions.shell(sshd.target({ secret })).run(ssh)
      expect(plain.code).toBe(255)
      const forwarded = await sessions
        .shell(sshd.target({ secret, forwardAgent: true }))
        .run(`ssh-add -l; ${ssh}`)
      expect([type, forwarded.stdout.toString()]).toEqual([
        type,
        expect.stringMatching(new RegExp(`${key.fingerprint.replace(/[+/]/g, '.')}[^]*there\n`)),
      ])
    }
  })
})

test('an agent answers as much as is read, and the rest when it is read', async () => {
  const key = ssh2.utils.parseKey(sshd.privateKey)
  if (key instanceof Error) throw key
  const stream = await new Promise<Duplex>((resolve, reject) => {
    new KeyAgent(key).getStream((error, made) =>
      made === undefined ? reject(error!) : resolve(made as Duplex),
    )
  })
  const identities = Buffer.from([0, 0, 0, 1, 11])
  const [chunks, inOne] = [20, 1_000]
  let taken = 0
  for (let chunk = 0; chunk < chunks; chunk++)
    stream.write(Buffer.concat(Array.from({ length: inOne }, () => identities)), () => taken++)
  stream.end()
  for (let turn = 0; turn < 100; turn++) await setImmediate()
  expect([taken, stream.readableLength < 100_000]).toEqual([0, true])
  const answers = Buffer.concat(await stream.toArray())
  const size = 4 + answers.readUInt32BE(0)
  expect([answers.length, taken]).toEqual([chunks * inOne * size, chunks])
})

const targetAt = (server: SshServer): SshTarget => ({
  ...{ host: '127.0.0.1', port: server.port, username: 'ada' },
  secret: () => Promise.resolve({ privateKey: server.privateKey }),
  hostKeys: { policy: 'strict', knownHosts: `[127.0.0.1]:${String(server.port)} ${server.hostKey}` },
})
const second: NonNullable<SshServerOptions['second']> = {
  rounds: [{ prompts: [{ prompt: 'Code: ', echo: false }], judge: ([given]) => given === '123456' }],
}

describe('streams that last', () => {
  /** Streams that last, each of which has answered. */
  const lastingAt = (shell: SiteShell, count: number) =>
    Promise.all(
      Array.from({ length: count }, async (_one, index) => {
        const stream = await shell.open('exec cat', { lasting: true })
        stream.stdin.write(`line ${String(index)}\n`)
        const [answer] = (await once(stream.stdout, 'data')) as [Buffer]
        expect(answer.toString()).toBe(`line ${String(index)}\n`)
        return stream
      }),
    )
  const size = { rows: 24, columns: 80 }

  test('leave the channels to others: they have connections of their own, closed when nobody uses them', async () => {
    const sessions = open({ idleMs: 200, forgetMs: 200 })
    const shell = sessions.shell(sshd.target({ credential: 'of lasting streams' }))
    const before = logins()
    const others = await Promise.all(Array.from({ length: 5 }, () => shell.open('exec cat')))
    const lasting = await lastingAt(shell, 12)
    expect((await shell.run('echo free')).stdout.toString()).toBe('free\n')
    expect([logins() - before, sessions.count().logins]).toEqual([3, 3])
    for (const stream of lasting) stream.kill()
    await until('the end of the further connections', 120, () => sessions.count().logins === 1)
    others[0]!.stdin.write('still\n')
    expect(String(await once(others[0]!.stdout, 'data'))).toBe('still\n')
    for (const stream of others) stream.kill()
  })

  test('share a connection as far as the server has channels', async () => {
    const small = await startSshd(['MaxSessions 2'])
    try {
      const sessions = open()
      await lastingAt(sessions.shell(small.target()), 5)
      expect(sessions.count().logins).toBe(4)
      await sessions.forget([small.target()])
      expect(sessions.count().logins).toBe(0)
    } finally {
      await small.stop()
    }
  })

  test('share the login of a person with all others, and one too many is told the remedy', async () => {
    const server = await startSshServer({ second })
    try {
      const target = targetAt(server)
      const sessions = open()
      expect((await sessions.answer(target, [])).state).toBe('waiting for login')
      expect((await sessions.answer(target, ['123456'])).state).toBe('connected')
      const shell = sessions.shell(target)
      const lasting = await lastingAt(shell, 5)
      await expect(shell.open('exec cat', { lasting: true })).rejects.toMatchObject({
        ...{ name: 'LinkError', full: true, permanent: false },
        message: expect.stringMatching(/^ada@.* carries 5 terminals.* a person made .*; close one .* a key/),
      })
      expect((await shell.run('echo free')).stdout.toString()).toBe('free\n')
      lasting[0]!.stdin.end()
      lasting[0]!.stdout.resume()
      await lasting[0]!.done
      await lastingAt(shell, 1)
      expect([server.logins, sessions.count().logins]).toEqual([1, 1])
    } finally {
      await server.close()
    }
  })

  test('share the only connection where a further login is asked for a code, which it tries once', async () => {
    let asked = 0
    const options: SshServerOptions = {}
    const server = await startSshServer(options)
    try {
      const sessions = open()
      const shell = sessions.shell(targetAt(server))
      await shell.run(':')
      options.second = {
        get rounds() {
          asked++
          return second.rounds
        },
      }
      await lastingAt(shell, 5)
      await expect(shell.open('exec cat', { lasting: true })).rejects.toMatchObject({ full: true })
      expect([asked, server.logins]).toEqual([1, 1])
    } finally {
      await server.close()
    }
  })

  test('share the only connection where no further one can be opened, and one too many is told why', async () => {
    let opened = 0
    const target = sshd.target({
      credential: 'good once',
      secret: () =>
        opened++ === 0
          ? Promise.resolve({ privateKey: sshd.privateKey })
          : Promise.reject(new Error('the vault is closed')),
    })
    const sessions = open()
    const shell = sessions.shell(target)
    await lastingAt(shell, 5)
    await expect(shell.open('exec cat', { lasting: true })).rejects.toMatchObject({
      full: true,
      message: expect.stringMatching(/further connection cannot be opened: .*the vault is closed/),
    })
    expect((await sessions.state(target)).state).toBe('connected')
  })

  test('a server that gives no pseudo terminal is told so for good, and runs scripts', async () => {
    const bare = await startSshd(['PermitTTY no'])
    try {
      const shell = open().shell(bare.target())
      await expect(shell.terminal?.(':', size)).rejects.toMatchObject({
        ...{ name: 'LinkError', stage: 'shell', permanent: true },
        message: expect.stringMatching(/gives no pseudo terminal; let it .*PermitTTY/),
      })
      expect((await shell.run('echo still')).stdout.toString()).toBe('still\n')
    } finally {
      await bare.stop()
    }
  })

  test('a server that ends the connection at the request for a terminal ends no shared one, or one once', async () => {
    const options: SshServerOptions = { endsAtTerminal: true }
    const server = await startSshServer(options)
    try {
      const shell = open().shell(targetAt(server))
      await shell.run(':')
      const shared = [...server.connections][0]!
      for (let turn = 0; turn < 3; turn++)
        await expect(shell.terminal?.(':', size)).rejects.toMatchObject({ stage: 'link', permanent: false })
      await shell.run(':')
      expect(server.connections.has(shared)).toBe(true)
      server.cut()
      options.second = second
      const sessions = open()
      await sessions.answer(targetAt(server), [])
      expect((await sessions.answer(targetAt(server), ['123456'])).state).toBe('connected')
      await expect(sessions.shell(targetAt(server)).terminal?.(':', size)).rejects.toMatchObject({
        ...{ stage: 'link', permanent: true },
        message: expect.stringContaining('at the request for a pseudo terminal'),
      })
    } finally {
      await server.close()
    }
  })
})

describe('the connection', () => {
  test('is shared by equal targets, and made again after the server was restarted in the middle', async () => {
    const own = await startSshd()
    try {
      const sessions = open({ backOffMs: { first: 50, longest: 1000 } })
      const shell = sessions.shell(own.target())
      await shell.run(':')
      const tail = await shell.open('echo up; sleep 30')
      const during = shell.run('sleep 30')
      const lost = expect(during).rejects.toMatchObject({ name: 'LinkError', stage: 'link' })
      const ended = expect(tail.done).rejects.toMatchObject({ stage: 'link' })
      await own.kill()
      await lost
      await ended
      expect((await sessions.state(own.target())).state).not.toBe('connected')
      await expect(shell.run(':', { deadlineMs: 5000 })).rejects.toMatchObject({
        name: 'LinkError',
        permanent: false,
      })
      await own.start()
      for (let attempt = 0; ; attempt++) {
        const answer = await sessions
          .shell(own.target())
          .run('echo back')
          .catch((error: unknown) => error as Error)
        if (!(answer instanceof Error)) break
        if (attempt > 50) throw answer
        await sleep(100)
      }
      expect(await sessions.state(own.target())).toMatchObject({ state: 'connected' })
      expect(own.log().split('Accepted publickey').length - 1).toBe(2)
    } finally {
      await own.stop()
    }
  })

  test('is closed when nobody uses it, and made again when needed', async () => {
    const sessions = open({ idleMs: 200 })
    const shell = sessions.shell(sshd.target())
    await shell.run(':')
    await until(
      'the end of the connection',
      120,
      async () => (await sessions.state(sshd.target())).state === 'disconnected',
    )
    expect((await shell.run('echo again')).stdout.toString()).toBe('again\n')
  })

  proved('a hundred logins that are not used any more leave nothing behind', async () => {
    const sessions = open({ idleMs: 200, forgetMs: 200 })
    const targets = Array.from({ length: 100 }, (_one, index) =>
      sshd.target({ credential: `ssh-key:${String(index)}` }),
    )
    const connected = await Promise.all(
      targets.map(async (target) => {
        const { stdout } = await sessions.shell(target).run('echo here', { deadlineMs: 120_000 })
        return stdout.toString()
      }),
    )
    expect(new Set(connected)).toEqual(new Set(['here\n']))
    const asking = await startSshServer({ second })
    expect((await sessions.answer(targetAt(asking), [])).state).toBe('waiting for login')
    await asking.close()
    const nothing = await poll(
      () => (sessions.count().logins + sessions.count().hosts === 0 ? true : undefined),
      {
        everyMs: 50,
        deadlineMs: 60_000,
      },
    )
    expect(nothing).toBe(true)
    expect((await sessions.shell(targets[0]!).run('echo again')).stdout.toString()).toBe('again\n')
    expect(sessions.count()).toEqual({ logins: 1, hosts: 1 })
  })

  test('works with a server that allows one channel', async () => {
    const small = await startSshd(['MaxSessions 1'])
    try {
      const shell = open().shell(small.target())
      const answers = await Promise.all(
        Array.from({ length: 20 }, (_one, index) => shell.run(`echo ${index}`)),
      )
      expect(answers.map(({ stdout }) => Number(stdout))).toEqual(
        Array.from({ length: 20 }, (_one, index) => index),
      )
      const stream = await shell.open('echo stream')
      expect((await stream.done).code).toBe(0)
      expect((await shell.run('cat', { input: Buffer.alloc(100_000) })).stdout.length).toBe(100_000)
      expect((await shell.run('echo end')).stdout.toString()).toBe('end\n')
    } finally {
      await small.stop()
    }
  })

  test('a refused key is refused for good, in words, and not tried again at once', async () => {
    const key = makeKey(folder, 'stranger', 'ed25519')
    const target = sshd.target({
      credential: 'stranger',
      secret: () => Promise.resolve({ privateKey: key.privateKey }),
    })
    const sessions = open()
    const refusals = (): number => sshd.log().split('Failed publickey').length - 1
    const shell = sessions.shell(target)
    await expect(shell.run(':')).rejects.toMatchObject({
      stage: 'login',
      permanent: true,
      message: expect.stringContaining(key.fingerprint),
    })
    const before = refusals()
    for (let turn = 0; turn < 20; turn++)
      await expect(shell.run(':')).rejects.toMatchObject({ stage: 'login', permanent: true })
    expect(refusals()).toBe(before)
    expect(await sessions.state(target)).toMatchObject({ state: 'refused', stage: 'login' })
    expect((await sessions.probe(target)).stages.at(-1)).toMatchObject({ stage: 'login', ok: false })
    expect(refusals()).toBe(before)
  })

  test('an unreadable key is told without a word of it', async () => {
    const secret = 'CANARY-4711'
    const target = sshd.target({
      credential: 'bad',
      secret: () => Promise.resolve({ privateKey: `-----BEGIN OPENSSH PRIVATE KEY-----\n${secret}\n` }),
    })
    const told = await open().probe(target, { fresh: true })
    expect(told).toMatchObject({
      healthy: false,
      message: expect.stringContaining('private key of the credential cannot be read'),
    })
    expect(JSON.stringify(told)).not.toContain(secret)
  })
})
