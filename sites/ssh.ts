import { createHash } from 'node:crypto'
import { appendFileSync, chmodSync, copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { folderAt, openGround, run, until } from './ground.ts'
import type { Ground } from './ground.ts'
import { hostsMissing, openNetwork } from './hosts.ts'
import type { Host, SiteNetwork } from './hosts.ts'
import { siteLacks } from './needs.ts'
import { libfaketime } from './requirements.ts'

/** Real sshd on several hosts of their own: see `startSsh`. */
export interface SshOptions {
  /** Default 2. They are named `th1`, `th2` … */
  hosts?: number
  /** The hosts mount one storage at `/srv`; by default each has its own there. */
  shared?: boolean
  /**
   * The account has a key on every host that all hosts accept: `scp th2:file .` works between them.
   */
  trust?: boolean
  /** Seconds by which the clocks of a host's sessions are off, by host name. */
  clockOffsetSeconds?: Readonly<Record<string, number>>
  /**
   * The account has SFTP only, in a root of its own: no shell, no other directory than `/files`,
   * which is `/srv/jail/files` of the host.
   */
  sftpOnly?: boolean
  /** Size of the small disk at `/mnt` of each host; default 64. */
  diskMiB?: number
  /** Login shell of the account; default `/bin/sh`. */
  shell?: string
  /**
   * Lines for `sshd_config` before the site's own. OpenSSH uses the first line of a keyword, so
   * these have precedence.
   */
  sshdConfig?: readonly string[]
}

export interface Key {
  /** OpenSSH format, 0600. */
  path: string
  privateKey: string
  /** One line in the format of `authorized_keys`. */
  publicKey: string
}

export interface SshHost extends Host {
  readonly port: 22
  /** The unprivileged account; `root` may log in with the same key. */
  readonly user: string
  readonly home: string
  /** A tmpfs of `diskMiB`, world-writable: for full disks. */
  readonly smallDisk: '/mnt'
  /** World-writable; one storage for all hosts with `shared`, the host's own otherwise. */
  readonly storage: '/srv'
  /** One line of `known_hosts`. */
  knownHosts(): string
  /** `SHA256:…` of the host key. */
  fingerprint(): string
  /** Makes another host key and restarts sshd. */
  changeHostKey(): Promise<void>
  /** Authorizes a public key (one line), for the account and for root. */
  authorize(publicKey: string): void
  /** New connections are refused; sessions go on, as with a real restart. */
  stopSshd(): Promise<void>
  startSshd(): Promise<void>
  /**
   * Ends the sessions of all logins at once, including their TCP connections; detached processes
   * live on.
   */
  dropSessions(): Promise<void>
  /** The log of sshd, level VERBOSE: a line `Connection from …` for each TCP connection. */
  log(): string
}

export interface SshSite extends AsyncDisposable {
  readonly folder: string
  readonly hosts: readonly [SshHost, ...SshHost[]]
  /** Gives access to the account and root on every host. */
  readonly key: Key
  readonly user: string
  /** A file with the keys of all hosts. */
  readonly knownHostsFile: string
  /** Arguments of `ssh` and `scp` that use only this site's key and known hosts. */
  readonly sshOptions: readonly string[]
  stop(): Promise<void>
}

/** The lacks of this machine for the site, as text; undefined where there is none. */
export const sshMissing = async (): Promise<string | undefined> =>
  siteLacks({ kind: 'ssh' }) ?? hostsMissing()

/**
 * Starts hosts with their own network, address, processes, host name and disks, each with sshd on
 * port 22. It takes about half a second. Everything ends with `stop()` and with the calling
 * process, also when that is killed.
 *
 * @throws Error naming what the machine lacks
 */
export const startSsh = async (options: SshOptions = {}): Promise<SshSite> => {
  const missing = await sshMissing()
  if (missing !== undefined) throw new Error(`SSH hosts cannot be had: ${missing}`)
  const ground = openGround('ssh')
  let network: SiteNetwork | undefined
  try {
    network = await openNetwork(ground, { name: 'ada', shell: options.shell ?? '/bin/sh' })
    return await open(ground, network, options)
  } catch (error) {
    await network?.close()
    await ground.leave()
    throw error
  }
}

const open = async (ground: Ground, network: SiteNetwork, options: SshOptions): Promise<SshSite> => {
  const key = await makeKeyPair(join(ground.folder, 'id_ed25519'), 'test')
  const inner =
    options.trust === true ? await makeKeyPair(join(ground.folder, 'inner_ed25519'), 'inner') : undefined
  const storage = folderAt(join(ground.folder, 'storage'), 0o1777)
  const absent = join(ground.folder, 'absent')
  writeFileSync(absent, '', { mode: 0o644 })
  const hosts: SshHost[] = []
  for (let number = 1; number <= (options.hosts ?? 2); number++) {
    const name = `th${number}`
    const host = await network.add(name, {
      diskMiB: options.diskMiB ?? 64,
      mounts: { ...withoutSlurm(absent), ...(options.shared === true ? { '/srv': storage } : {}) },
    })
    chmodSync(join(host.folder, 'srv'), options.sftpOnly === true ? 0o755 : 0o1777)
    // sshd takes a root only whose whole way belongs to root.
    if (options.sftpOnly === true) {
      const { uid } = network.account
      await host.run(
        `mkdir -p /srv/jail/files && chown root:root /srv/jail && chown ${uid}:${uid} /srv/jail/files`,
      )
    }
    hosts.push(
      await serveSsh(host, network, {
        keys: [key, ...(inner === undefined ? [] : [inner])].map((one) => one.publicKey),
        config: [...(options.sftpOnly === true ? sftpOnlyLines : []), ...(options.sshdConfig ?? [])],
        ...(options.sftpOnly === true ? { lastLines: sftpOnlyAccount(network.account.name) } : {}),
        clockOffsetSeconds: options.clockOffsetSeconds?.[name] ?? 0,
      }),
    )
  }
  const [first, ...others] = hosts
  if (first === undefined) throw new Error(`a site of ${options.hosts ?? 2} hosts: at least 1 is needed`)
  const knownHostsFile = join(ground.folder, 'known_hosts')
  const known = hosts.map((host) => `${host.name},${host.knownHosts()}\n`).join('')
  writeFileSync(knownHostsFile, known)
  for (const host of hosts) {
    writeFileSync(join(host.folder, 'ssh', 'ssh_known_hosts'), known)
    if (inner !== undefined) await trust(host, inner)
  }
  const stop = async (): Promise<void> => {
    await network.close()
    await ground.leave()
  }
  return {
    folder: ground.folder,
    hosts: [first, ...others],
    key,
    user: network.account.name,
    knownHostsFile,
    sshOptions: sshOptions(key.path, knownHostsFile),
    stop,
    [Symbol.asyncDispose]: stop,
  }
}

/**
 * The hosts share the machine's programs, and must not show a Slurm that is not set up: a file that
 * cannot be executed is no command.
 */
const withoutSlurm = (absent: string): Record<string, string> =>
  Object.fromEntries(
    ['sbatch', 'squeue', 'sacct', 'scancel', 'scontrol', 'sinfo', 'srun']
      .map((command) => join('/usr/bin', command))
      .filter((path) => existsSync(path))
      .map((path) => [path, absent]),
  )

export const sshOptions = (keyPath: string, knownHostsFile: string): string[] => [
  ...[
    '-F',
    'none',
    '-i',
    keyPath,
    '-o',
    `UserKnownHostsFile=${knownHostsFile}`,
    '-o',
    'GlobalKnownHostsFile=/dev/null',
  ],
  ...['-o', 'IdentitiesOnly=yes', '-o', 'BatchMode=yes', '-o', 'StrictHostKeyChecking=yes'],
]

export const makeKeyPair = async (path: string, comment: string): Promise<Key> => {
  await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', comment, '-f', path])
  return {
    path,
    privateKey: readFileSync(path, 'utf8'),
    publicKey: readFileSync(`${path}.pub`, 'utf8').trim(),
  }
}

/** `SHA256:…` of a public key (`type base64 …`), as OpenSSH prints it. */
export const keyFingerprint = (publicKey: string): string =>
  `SHA256:${createHash('sha256')
    .update(Buffer.from(publicKey.split(' ')[1] ?? '', 'base64'))
    .digest('base64')
    .replace(/=+$/, '')}`

const trust = async (host: SshHost, key: Key): Promise<void> => {
  for (const as of ['root', 'account'] as const)
    await host.run('umask 077; mkdir -p ~/.ssh && cat > ~/.ssh/id_ed25519', as, { input: key.privateKey })
}

const sftpOnlyLines = ['DisableForwarding yes']
/** At the end of the file: a block of `Match` goes on to there. */
const sftpOnlyAccount = (name: string): string[] => [
  `Match User ${name}`,
  '  ChrootDirectory /srv/jail',
  '  ForceCommand internal-sftp',
]

interface ServeOptions {
  keys: readonly string[]
  config: readonly string[]
  lastLines?: readonly string[]
  clockOffsetSeconds: number
  /** The environment of sessions. */
  environment?: Readonly<Record<string, string>>
}

/** Installs sshd on a host and starts it. The host's `/etc/ssh` is `ssh` in its folder. */
export const serveSsh = async (
  host: Host,
  network: SiteNetwork,
  { keys, config, lastLines = [], clockOffsetSeconds, environment = {} }: ServeOptions,
): Promise<SshHost> => {
  const user = network.account.name
  const files = join(host.folder, 'ssh')
  const authorized = join(files, 'authorized_keys')
  const variables = { ...environment, ...(clockOffsetSeconds === 0 ? {} : wrongClock(clockOffsetSeconds)) }
  await makeHome(host, network)
  copyFileSync('/dev/null', join(files, 'ssh_known_hosts'))
  writeFileSync(authorized, keys.map((key) => `${key}\n`).join(''))
  await makeKeyPair(join(files, 'ssh_host_ed25519_key'), host.name)
  writeFileSync(
    join(files, 'sshd_config'),
    [
      ...config,
      ...[
        'HostKey /etc/ssh/ssh_host_ed25519_key',
        'PidFile /run/sshd.pid',
        'Subsystem sftp internal-sftp',
        'UsePAM no',
        'UseDNS no',
      ],
      ...[
        'AuthorizedKeysFile /etc/ssh/authorized_keys .ssh/authorized_keys',
        'StrictModes no',
        'PermitRootLogin prohibit-password',
      ],
      ...['PasswordAuthentication no', 'KbdInteractiveAuthentication no', 'LogLevel VERBOSE'],
      // All on one line, because sshd uses only the first of several.
      ...(Object.keys(variables).length === 0
        ? []
        : [
            `SetEnv ${Object.entries(variables)
              .map(([name, value]) => `${name}=${value}`)
              .join(' ')}`,
          ]),
      ...lastLines,
      '',
    ].join('\n'),
  )
  const hostKey = (): string =>
    readFileSync(join(files, 'ssh_host_ed25519_key.pub'), 'utf8').split(' ').slice(0, 2).join(' ')
  const startSshd = async (): Promise<void> => {
    await host.run('/usr/sbin/sshd -E /etc/ssh/log')
    await until(
      `sshd of ${host.name}`,
      async () => (await host.run('[ -s /run/sshd.pid ]', 'root', { mayFail: true })).code === 0,
    )
  }
  const stopSshd = async (): Promise<void> => {
    await host.run(
      'pid=$(cat /run/sshd.pid) && kill "$pid" && while [ -e "/proc/$pid" ]; do sleep 0.02; done; rm -f /run/sshd.pid',
    )
  }
  const served: SshHost = Object.assign(host, {
    port: 22 as const,
    user,
    home: `/home/${user}`,
    smallDisk: '/mnt' as const,
    storage: '/srv' as const,
    knownHosts: () => `${host.address} ${hostKey()}`,
    fingerprint: () => keyFingerprint(hostKey()),
    changeHostKey: async () => {
      await run('rm', ['-f', join(files, 'ssh_host_ed25519_key'), join(files, 'ssh_host_ed25519_key.pub')])
      await makeKeyPair(join(files, 'ssh_host_ed25519_key'), host.name)
      await stopSshd()
      await startSshd()
    },
    authorize: (publicKey: string) => appendFileSync(authorized, `${publicKey.trim()}\n`),
    stopSshd,
    startSshd,
    dropSessions: async () => {
      // The file names the listener; every other process of the name serves a login.
      await host.run(
        'main=$(cat /run/sshd.pid 2>/dev/null); for pid in $(pgrep -x sshd); do [ "$pid" = "$main" ' +
          '] || kill -KILL "$pid" || :; done',
      )
    },
    log: () => readFileSync(join(files, 'log'), 'utf8'),
  })
  await startSshd()
  return served
}

const makeHome = async (host: Host, { account }: SiteNetwork): Promise<void> => {
  const home = `/home/${account.name}`
  await host.run(`mkdir -p ${home} && chown ${account.uid}:${account.uid} ${home} && chmod 700 ${home}`)
}

const wrongClock = (seconds: number): Record<string, string> => {
  if (!existsSync(libfaketime))
    throw new Error('a host with a wrong clock needs libfaketime (Debian: apt-get install faketime)')
  return {
    LD_PRELOAD: libfaketime,
    FAKETIME: `${seconds < 0 ? '' : '+'}${seconds}s`,
    FAKETIME_DONT_FAKE_MONOTONIC: '1',
  }
}
