import { appendFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { userInfo } from 'node:os'
import { join } from 'node:path'
import { leash } from '../src/embedded/leash.ts'
import type { Leashed } from '../src/embedded/leash.ts'
import { freePort } from '../src/embedded/ports.ts'
import { identify, signalKnown } from '../src/embedded/processes.ts'
import type { KnownProcess } from '../src/embedded/processes.ts'
import { descendants, folderAt, openGround, until } from './ground.ts'
import { siteLacks } from './needs.ts'
import { keyFingerprint, makeKeyPair, sshOptions } from './ssh.ts'
import type { Key } from './ssh.ts'

/** One sshd on a port of this machine. */
export interface LoopbackHost {
  readonly name: string
  /** `127.0.0.1`, or another one of loopback. */
  readonly address: string
  readonly port: number
  /** The account that started it: a login as another account would need root. */
  readonly user: string
  /** Its `$HOME`, empty. */
  readonly folder: string
  knownHosts(): string
  /** The host key's, `SHA256:…`. */
  fingerprint(): string
  /** Makes another host key and restarts sshd; sessions go on. */
  changeHostKey(): Promise<void>
  /** Authorizes a public key (one line). */
  authorize(publicKey: string): void
  /** New connections are refused; sessions go on. */
  stopSshd(): Promise<void>
  /** `address`: another one from now on. */
  startSshd(address?: string): Promise<void>
  /** Ends the sessions of all logins at once; detached processes live on. */
  dropSessions(): void
  log(): string
}

export interface LoopbackSite extends AsyncDisposable {
  readonly folder: string
  readonly hosts: readonly LoopbackHost[]
  readonly key: Key
  readonly knownHostsFile: string
  readonly sshOptions: readonly string[]
  stop(): Promise<void>
}

/**
 * For machines and accounts without namespaces: every "host" is an sshd on a free port of loopback,
 * for the calling account. They share everything but the port, so links cannot be cut and data need
 * not be moved; `startSsh` has both.
 */
export const startLoopbackSsh = async (options: { hosts?: number } = {}): Promise<LoopbackSite> => {
  const missing = siteLacks({ kind: 'ssh', loopback: true })
  if (missing !== undefined) throw new Error(`SSH hosts cannot be had: ${missing}`)
  const ground = openGround('ssh')
  const key = await makeKeyPair(join(ground.folder, 'id_ed25519'), 'test')
  const hosts: LoopbackHost[] = []
  const stop = async (): Promise<void> => {
    await Promise.all(hosts.map((host) => host.stopSshd()))
    await ground.leave()
  }
  try {
    for (let number = 1; number <= (options.hosts ?? 1); number++)
      hosts.push(
        await startHost(`th${number}`, folderAt(join(ground.folder, `th${number}`)), {
          ...{ keys: [key.publicKey], address: '127.0.0.1', port: await freePort() },
        }),
      )
    const knownHostsFile = join(ground.folder, 'known_hosts')
    writeFileSync(knownHostsFile, hosts.map((host) => `${host.knownHosts()}\n`).join(''))
    const parts = {
      folder: ground.folder,
      hosts,
      key,
      knownHostsFile,
      sshOptions: sshOptions(key.path, knownHostsFile),
    }
    return { ...parts, stop, [Symbol.asyncDispose]: stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Starts one such host. `keys`: lines of public keys that may log in. */
export const startHost = async (
  name: string,
  folder: string,
  { keys, port, ...at }: { keys: readonly string[]; address: string; port: number },
): Promise<LoopbackHost> => {
  // sshd as root requires its empty folder. The package's service creates it at boot.
  if (process.getuid?.() === 0) mkdirSync('/run/sshd', { recursive: true, mode: 0o755 })
  let { address } = at
  const file = (part: string): string => join(folder, part)
  await makeKeyPair(file('host_ed25519'), name)
  writeFileSync(file('authorized_keys'), keys.map((line) => `${line}\n`).join(''))
  const configuration = (): string =>
    [
      ...[
        `ListenAddress ${address}`,
        `Port ${port}`,
        `HostKey ${file('host_ed25519')}`,
        `PidFile ${file('pid')}`,
        'StrictModes no',
      ],
      ...[
        `AuthorizedKeysFile ${file('authorized_keys')}`,
        'UsePAM no',
        'PasswordAuthentication no',
        'KbdInteractiveAuthentication no',
      ],
      ...['PermitRootLogin prohibit-password', 'Subsystem sftp internal-sftp', 'LogLevel VERBOSE'],
      // Each host has its own home and runs no start-up file of the account, because one that waits
      // for a lock would block every login.
      ...[`SetEnv HOME=${folderAt(file('work'))} SHLVL=2`, ''],
    ].join('\n')
  let running: Leashed | undefined
  /** Of listeners that have ended: no process names them as its children. */
  const orphans: KnownProcess[] = []
  const sessions = (): KnownProcess[] =>
    running === undefined ? [] : descendants(running.process.pid).flatMap((pid) => identify(pid) ?? [])
  const host: LoopbackHost = {
    name,
    get address() {
      return address
    },
    port,
    user: userInfo().username,
    folder: folderAt(file('work')),
    knownHosts: () =>
      `[${address}]:${port} ${readFileSync(file('host_ed25519.pub'), 'utf8').split(' ').slice(0, 2).join(' ')}`,
    fingerprint: () => keyFingerprint(readFileSync(file('host_ed25519.pub'), 'utf8')),
    changeHostKey: async () => {
      for (const part of ['host_ed25519', 'host_ed25519.pub']) rmSync(file(part))
      await makeKeyPair(file('host_ed25519'), name)
      await host.stopSshd()
      await host.startSshd()
    },
    authorize: (publicKey) => appendFileSync(file('authorized_keys'), `${publicKey.trim()}\n`),
    stopSshd: async () => {
      orphans.push(...sessions())
      const ending = running
      // A start meanwhile keeps its own.
      running = undefined
      await ending?.release()
    },
    startSshd: async (next = address) => {
      address = next
      writeFileSync(file('sshd_config'), configuration())
      running = await leash({
        command: ['/usr/sbin/sshd', '-D', '-e', '-f', file('sshd_config')],
        environment: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' },
        directory: '/',
        logFile: file('log'),
        softSignal: 'TERM',
        patienceSeconds: 5,
      })
      await until(
        `sshd of ${name}`,
        () => listens(address, port),
        () => host.log(),
      )
    },
    dropSessions: () => {
      for (const session of [...orphans.splice(0), ...sessions()]) signalKnown(session, 'SIGKILL')
    },
    log: () => readFileSync(file('log'), 'utf8'),
  }
  await host.startSshd()
  return host
}

const listens = (host: string, port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect({ host, port })
    socket.once('error', () => resolve(false))
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
  })
