import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, connect } from 'node:net'
import { userInfo } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { descendants } from '../../sites/ground.ts'
import type { SshTarget } from '../../src/clients/ssh/target.ts'
import { leash, type Leashed } from '../../src/embedded/leash.ts'
import { runFolder } from '../support/run-folder.ts'

/**
 * A real OpenSSH server on a free port of this machine, for the user that runs the tests. It ends
 * with the process that started it, and its folder ends with the test run.
 */
export interface Sshd {
  port: number
  folder: string
  /** Of the process that listens; undefined while none does. */
  masterPid: () => number | undefined
  /** The key that may log in. */
  privateKey: string
  /** Public host keys by type: `ed25519`, `ecdsa`, `rsa`. */
  hostKeys: Record<string, string>
  fingerprints: Record<string, string>
  /** A target that is right in every way. */
  target: (changes?: Partial<SshTarget>) => SshTarget
  log: () => string
  kill: () => Promise<void>
  start: () => Promise<void>
  stop: () => Promise<void>
}

export const freePort = (): Promise<number> =>
  new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })

export const answers = async (port: number): Promise<void> => {
  for (let attempt = 0; attempt < 600; attempt++) {
    const up = await new Promise<boolean>((resolve) => {
      const socket = connect(port, '127.0.0.1')
      socket.once('data', () => {
        socket.destroy()
        resolve(true)
      })
      socket.once('error', () => resolve(false))
    })
    if (up) return
    await sleep(100)
  }
  throw new Error(`nothing answers on port ${port}`)
}

/**
 * A pair of keys: the private one as OpenSSH text, the public line, its fingerprint as `ssh-keygen`
 * tells it.
 */
export const makeKey = (
  folder: string,
  name: string,
  type: string,
): { privateKey: string; publicKey: string; fingerprint: string } => {
  const file = join(folder, name)
  execFileSync('ssh-keygen', ['-q', '-t', type, '-N', '', '-C', name, '-f', file])
  return {
    privateKey: readFileSync(file, 'utf8'),
    publicKey: readFileSync(`${file}.pub`, 'utf8').trim(),
    fingerprint: execFileSync('ssh-keygen', ['-l', '-f', file], { encoding: 'utf8' }).split(' ')[1]!,
  }
}

/** `settings`: further lines of its configuration. */
export const startSshd = async (settings: string[] = [], hostKeyTypes = ['ed25519']): Promise<Sshd> => {
  const folder = mkdtempSync(join(runFolder(), 'sshd-'))
  // Privilege separation wants its folder, and logins their key, without a closed folder on the
  // way.
  execFileSync('chmod', ['755', folder])
  mkdirSync('/run/sshd', { recursive: true })
  const port = await freePort()
  const user = makeKey(folder, 'user', 'ed25519')
  writeFileSync(join(folder, 'authorized_keys'), `${user.publicKey}\n`)
  const hosts = hostKeyTypes.map((type) => [type, makeKey(folder, `host_${type}`, type)] as const)
  const config = join(folder, 'sshd_config')
  writeFileSync(
    config,
    [
      `Port ${port}`,
      'ListenAddress 127.0.0.1',
      ...hosts.map(([type]) => `HostKey ${join(folder, `host_${type}`)}`),
      'PidFile none',
      `AuthorizedKeysFile ${join(folder, 'authorized_keys')}`,
      'StrictModes no',
      'UsePAM no',
      'PasswordAuthentication no',
      'KbdInteractiveAuthentication no',
      'PermitRootLogin yes',
      'LogLevel VERBOSE',
      // The start files of a developer's shell take their time, and some leave locks behind when
      // they are killed.
      `SetEnv HOME=${folder}`,
      ...settings,
      '',
    ].join('\n'),
  )
  let running: Leashed | undefined
  const start = async (): Promise<void> => {
    running = await leash({
      command: ['/usr/sbin/sshd', '-D', '-f', config, '-E', join(folder, 'log')],
      environment: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' },
      directory: '/',
      logFile: join(folder, 'log'),
      softSignal: 'TERM',
      patienceSeconds: 5,
    })
    await answers(port)
  }
  const kill = async (): Promise<void> => {
    if (running === undefined) return
    const ending = running
    running = undefined
    // Sessions too: those of a killed master live on.
    const children = descendants(ending.process.pid)
    const released = ending.release()
    for (const pid of children) {
      try {
        process.kill(pid, 'SIGKILL')
      } catch {
        // Ended by itself.
      }
    }
    await released
  }
  await start()
  const hostKeys = Object.fromEntries(
    hosts.map(([type, key]) => [type, key.publicKey.split(' ').slice(0, 2).join(' ')]),
  )
  return {
    port,
    folder,
    masterPid: () => running?.process.pid,
    privateKey: user.privateKey,
    hostKeys,
    fingerprints: Object.fromEntries(hosts.map(([type, key]) => [type, key.fingerprint])),
    target: (changes = {}) => ({
      host: '127.0.0.1',
      port,
      username: userInfo().username,
      secret: () => Promise.resolve({ privateKey: user.privateKey }),
      hostKeys: {
        policy: 'strict',
        knownHosts: hosts.map(([type]) => `[127.0.0.1]:${port} ${hostKeys[type]!}`).join('\n'),
      },
      ...changes,
    }),
    log: () => readFileSync(join(folder, 'log'), 'utf8'),
    kill,
    start,
    stop: async () => {
      await kill()
      // What a login has started may still write when sshd is gone.
      rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 50 })
    },
  }
}
