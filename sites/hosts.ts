import { spawn } from 'node:child_process'
import type { ChildProcessByStdio } from 'node:child_process'
import { randomInt, randomUUID } from 'node:crypto'
import { copyFileSync, readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import { folderAt, run, until } from './ground.ts'
import type { CommandAnswer, Ground } from './ground.ts'

/**
 * Machines in a machine: namespaces of network, mounts, processes and host name, on one switch. No
 * name in the file system pins a namespace: a host lives as long as its first process, and that
 * process as long as its owner. So a killed test leaves no host, no bridge and no process. The
 * hosts share the kernel, the programs and the read-only part of the file system; written files are
 * their own.
 */

/**
 * Why this account cannot have such hosts; undefined where it can. `siteLacks` checks the packages
 * before.
 */
export const hostsMissing = async (): Promise<string | undefined> => {
  const probe = await run(
    'unshare',
    ['--net', '--mount', '--pid', '--uts', '--fork', '--mount-proc', 'true'],
    { mayFail: true },
  )
  return probe.code === 0
    ? undefined
    : `this account may make no namespaces (${probe.stderr.trim()}): run as root, or use the loopback variant`
}

/** An account of the site: it exists on its hosts only, not on this machine. */
export interface Account {
  name: string
  uid: number
  /** The login shell. */
  shell: string
}

export interface HostOptions {
  /** Seconds by which the clock of its sessions is off. */
  clockOffsetSeconds?: number
  /** Size of the small disk at `/mnt`. */
  diskMiB: number
  /**
   * Folders of this machine, by their mount points on the host, for files that several hosts share.
   * Every other writable folder is the host's own.
   */
  mounts?: Readonly<Record<string, string>>
  /** True where the host shares this machine's `/tmp`; otherwise it has its own. */
  sharesTmp?: boolean
  /**
   * A folder with a whole system, which stays as it is: the host writes over it. Without it a host
   * has the programs of this machine.
   */
  system?: string
}

export interface Host {
  readonly name: string
  readonly address: string
  /** The host's files on this machine: `ssh/log` and others. They survive a crash. */
  readonly folder: string
  /** The path on this machine of a host's path while the host is up, read and written as root. */
  see(path: string): string
  /** Runs a script for `/bin/sh` on the host, without the network, as root or as the account. */
  run(
    script: string,
    as?: 'root' | 'account',
    options?: { input?: string; mayFail?: boolean; deadlineMs?: number },
  ): Promise<CommandAnswer>
  /** Unplugs the network cable: packets are neither answered nor refused. */
  cut(): Promise<void>
  heal(): Promise<void>
  /** Limits the host's sending rate, in the syntax of `tc` (`10mbit`); no limit without one. */
  limit(rate?: string): Promise<void>
  /** Bytes that have come over its network so far, with their headers. */
  received(): Promise<number>
  /**
   * Makes the host reachable from other hosts only, not from this machine, like a host behind a
   * jump host.
   */
  hide(): Promise<void>
  /** Power off: every process ends at once, and data that was not on the disks is lost. */
  crash(): Promise<void>
  /** While it is off: another address from the next boot on. */
  move(): void
  /** Power on after a crash: the same disks and address, another boot id; no daemon runs yet. */
  boot(): Promise<void>
  isUp(): boolean
}

export interface SiteNetwork {
  readonly account: Account
  /** The first three numbers of its addresses; this machine is `.1`. */
  readonly prefix: string
  add(name: string, options: HostOptions): Promise<Host>
  close(): Promise<void>
}

const guest = readFileSync(join(import.meta.dirname, 'guest.pl'), 'utf8')

/**
 * Mounts of a host, made right before its first process. `/tmp` comes last, because the folders
 * themselves may be below it.
 */
const setUp = `
set -e
name=$1 folder=$2 diskMiB=$3 tmp=$4 guest=$5 system=$6 account=$7; shift 7
hostname "$name"
ip link set lo up
if [ -n "$system" ]; then
  new=$folder/system
  mkdir -p "$folder/upper" "$folder/work" "$folder/docker" "$new"
  mount -t overlay -o "lowerdir=$system,upperdir=$folder/upper,workdir=$folder/work" system "$new"
  mkdir -p "$new$folder" "$new/.old" "$new/var/lib/docker"
  mount -t proc proc "$new/proc"
  for place in /dev /sys "$folder"; do mount --rbind "$place" "$new$place"; done
  # A list of its own: Docker's script of Debian adds folders to it, and kubelets of this machine
  # would use them as trees of cgroups.
  if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "$folder/cgroup"
    mount -t tmpfs -o mode=755 cgroup "$folder/cgroup"
    for tree in /sys/fs/cgroup/*; do
      mountpoint -q "$tree" || continue
      mkdir "$folder/cgroup/\${tree##*/}"
      mount --rbind "$tree" "$folder/cgroup/\${tree##*/}"
    done
    mount --move "$folder/cgroup" "$new/sys/fs/cgroup"
  fi
  # Docker's layers cannot lie on layers.
  mount --bind "$folder/docker" "$new/var/lib/docker"
  cd "$new"
  pivot_root . .old
  umount -l /.old
  if ! grep -q "^$account:" /etc/passwd; then
    for file in passwd group shadow; do grep "^$account:" "$folder/etc/$file" >>"/etc/$file"; done
    cp "$folder/etc/resolv.conf" /etc/resolv.conf
  fi
  cp "$folder/etc/hosts" /etc/hosts
fi
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id
if [ -z "$system" ]; then
  # A copy: the kernel takes a mount away everywhere once its place is renamed over, as useradd does
  # with this machine's /etc/passwd.
  mount -t tmpfs -o mode=755 etc /mnt
  cp -a /etc/. /mnt/
  mount --move /mnt /etc
  for file in passwd group shadow hosts resolv.conf; do mount --bind "$folder/etc/$file" "/etc/$file"; done
fi
mount --bind "$folder/ssh" /etc/ssh
mount -t tmpfs -o mode=755 run /run
mkdir /run/sshd /run/lock
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o "mode=1777,size=\${diskMiB}m" disk /mnt
for place in home root srv; do mount --bind "$folder/$place" "/$place"; done
while [ $# -gt 0 ]; do mount --bind "$2" "$1"; shift 2; done
mount --bind "$folder/tmp" /var/tmp
[ "$tmp" = shared ] || mount --bind "$folder/tmp" /tmp
exec perl -e "$guest"
`

/** Opens a switch with this machine at address `.1` of a network that no other site uses. */
export const openNetwork = async (ground: Ground, account: Omit<Account, 'uid'>): Promise<SiteNetwork> => {
  const cable = `os${ground.token}`
  const bridge = await firstProcess(['--net'], ['perl', '-e', guest])
  const inSwitch = (...words: string[]): string[] => ['-t', String(bridge.pid), '-n', ...words]
  await run(
    'nsenter',
    inSwitch('/bin/sh', '-c', 'ip link set lo up; ip link add br0 type bridge; ip link set br0 up'),
  )
  await run('ip', ['link', 'add', cable, 'type', 'veth', 'peer', 'name', 'ctl', 'netns', String(bridge.pid)])
  await run('nsenter', inSwitch('/bin/sh', '-c', 'ip link set ctl master br0; ip link set ctl up'))
  const prefix = await takePrefix(cable)
  // Accounts of two sites have different uids, so that effects by uid (limits, signals) stay inside
  // a site.
  const user: Account = { ...account, uid: 20_000 + (Number.parseInt(ground.token, 16) % 30_000) }
  let lastNumber = 10
  const nextNumber = (): number => ++lastNumber
  const hosts: { name: string; readonly address: string; folder: string; kill: () => Promise<void> }[] = []

  const add = async (name: string, options: HostOptions): Promise<Host> => {
    const number = nextNumber()
    let address = `${prefix}.${number}`
    const folder = folderAt(join(ground.folder, name))
    const port = `h${number}`
    furnish(folder, user)
    let first: FirstProcess | undefined
    const pid = (): string => {
      if (first === undefined) throw new Error(`host ${name} is down`)
      return String(first.pid)
    }
    // A host with a system of its own has another root.
    const place = options.system === undefined ? ['--wd=/'] : ['--root', '--wd']
    const inHost = (...words: string[]): string[] => ['-t', pid(), '-a', ...place, ...words]
    const host: Host = {
      name,
      get address() {
        return address
      },
      folder,
      see: (path) => `/proc/${pid()}/root${path}`,
      run: (script, as = 'root', { input, mayFail = false, deadlineMs = 120_000 } = {}) => {
        const account = [
          'setpriv',
          `--reuid=${user.uid}`,
          `--regid=${user.uid}`,
          '--init-groups',
          'env',
          `HOME=/home/${user.name}`,
          `USER=${user.name}`,
        ]
        const words = as === 'root' ? ['env', 'HOME=/root', 'USER=root'] : account
        return run('nsenter', inHost(...words, '/bin/sh', '-c', script), { input, mayFail, deadlineMs })
      },
      cut: async () => {
        await run('nsenter', inSwitch('ip', 'link', 'set', port, 'down'))
      },
      heal: async () => {
        await run('nsenter', inSwitch('ip', 'link', 'set', port, 'up'))
        await run('nsenter', inHost('iptables', '-F'))
      },
      limit: async (rate) => {
        await run('nsenter', inHost('tc', 'qdisc', 'del', 'dev', 'eth0', 'root'), { mayFail: true })
        if (rate !== undefined)
          await run(
            'nsenter',
            inHost(
              'tc',
              'qdisc',
              'add',
              'dev',
              'eth0',
              'root',
              'tbf',
              'rate',
              rate,
              'burst',
              '64kbit',
              'latency',
              '400ms',
            ),
          )
      },
      received: async () => {
        // The host sees the interfaces of this machine in /sys, and in /proc its own.
        const { stdout } = await run('nsenter', inHost('cat', '/proc/net/dev'))
        return Number(/^ *eth0: *(\d+)/m.exec(stdout)?.[1])
      },
      hide: async () => {
        await run('nsenter', inHost('iptables', '-A', 'INPUT', '-s', `${prefix}.1`, '-j', 'DROP'))
      },
      crash: async () => {
        const before = first
        first = undefined
        await before?.kill()
        // The kernel removes the host's end of the cable with its network. This machine's end must
        // be gone before the next boot creates it again.
        await until(
          `the cable of ${name} is gone`,
          async () =>
            (await run('nsenter', inSwitch('ip', 'link', 'show', port), { mayFail: true })).code !== 0,
        )
      },
      move: () => {
        address = `${prefix}.${nextNumber()}`
      },
      boot: async () => {
        if (first !== undefined) throw new Error(`host ${name} is up`)
        writeFileSync(join(folder, 'boot_id'), `${randomUUID()}\n`)
        writeFileSync(join(folder, 'etc', 'hosts'), hostsFile(hosts))
        const mounts = Object.entries(options.mounts ?? {}).flat()
        const tmp = options.sharesTmp === true ? 'shared' : 'own'
        first = await firstProcess(
          ['--net', '--mount', '--uts', '--ipc', '--mount-proc', '--propagation', 'private'],
          [
            ...['/bin/sh', '-c', setUp, 'set-up', name, folder, String(options.diskMiB), tmp, guest],
            ...[options.system ?? '', user.name, ...mounts],
          ],
        )
        // The hardware address is the same at every boot, so that neighbours' caches stay valid.
        const three = ground.token.replace(/(..)(..)(..).*/, '$1:$2:$3')
        const hardware = `02:00:${three}:${number.toString(16).padStart(2, '0')}`
        await run(
          'nsenter',
          inSwitch(
            'ip',
            'link',
            'add',
            port,
            'type',
            'veth',
            'peer',
            'name',
            'eth0',
            'address',
            hardware,
            'netns',
            pid(),
          ),
        )
        await run(
          'nsenter',
          inSwitch('/bin/sh', '-c', `ip link set ${port} master br0; ip link set ${port} up`),
        )
        await run(
          'nsenter',
          inHost(
            '/bin/sh',
            '-c',
            `ip addr add ${address}/24 dev eth0; ip link set eth0 up; ip route add default via ${prefix}.1`,
          ),
        )
      },
      isUp: () => first !== undefined,
    }
    hosts.push({
      name,
      get address() {
        return address
      },
      folder,
      kill: async () => first?.kill(),
    })
    for (const other of hosts) writeFileSync(join(other.folder, 'etc', 'hosts'), hostsFile(hosts))
    await host.boot()
    return host
  }

  return {
    account: user,
    prefix,
    add,
    close: async () => {
      await Promise.all(hosts.map((host) => host.kill()))
      await bridge.kill()
    },
  }
}

/**
 * A free /24 of 10.64.0.0/10. Two sites that choose at the same moment see each other afterwards,
 * and the later one tries again.
 */
const takePrefix = async (cable: string): Promise<string> => {
  for (;;) {
    const prefix = `10.${randomInt(64, 128)}.${randomInt(0, 256)}`
    const taken = async (): Promise<number> =>
      (await run('ip', ['-o', '-4', 'addr'])).stdout
        .split('\n')
        .filter((line) => line.includes(` ${prefix}.`)).length
    if ((await taken()) > 0) continue
    await run('ip', ['addr', 'add', `${prefix}.1/24`, 'dev', cable])
    await run('ip', ['link', 'set', cable, 'up'])
    if ((await taken()) === 1) return prefix
    await run('ip', ['addr', 'del', `${prefix}.1/24`, 'dev', cable])
  }
}

const hostsFile = (hosts: readonly { name: string; address: string }[]): string =>
  ['127.0.0.1 localhost', ...hosts.map(({ name, address }) => `${address} ${name}`), ''].join('\n')

/**
 * Writes the files of a host: its accounts (those of this machine and its own), homes and folders.
 */
const furnish = (folder: string, account: Account): void => {
  const etc = folderAt(join(folder, 'etc'))
  for (const [file, line, mode] of [
    [
      'passwd',
      `${account.name}:x:${account.uid}:${account.uid}:${account.name}:/home/${account.name}:${account.shell}`,
      '644',
    ],
    ['group', `${account.name}:x:${account.uid}:`, '644'],
    // An account with * has no password; one with ! is locked for sshd without PAM.
    ['shadow', `${account.name}:*:19000:0:99999:7:::`, '640'],
  ] as const) {
    copyFileSync(join('/etc', file), join(etc, file))
    const before = readFileSync(join(etc, file), 'utf8')
      .split('\n')
      .filter((entry) => entry !== '' && !entry.startsWith('root:'))
    const root = {
      passwd: 'root:x:0:0:root:/root:/bin/sh',
      group: 'root:x:0:',
      shadow: 'root:*:19000:0:99999:7:::',
    }[file]
    writeFileSync(join(etc, file), [root, ...before, line, ''].join('\n'), { mode: Number.parseInt(mode, 8) })
  }
  writeFileSync(join(etc, 'hosts'), '')
  // No route leads from here to a name server. With the machine's resolver every unknown name would
  // cost 20 s.
  writeFileSync(join(etc, 'resolv.conf'), 'nameserver 127.0.0.1\n')
  for (const name of ['home', 'ssh', 'srv']) folderAt(join(folder, name))
  folderAt(join(folder, 'root'), 0o700)
  folderAt(join(folder, 'tmp'), 0o1777)
}

interface FirstProcess {
  pid: number
  /** Ends the process and with it its whole namespace; resolves when the kernel has finished. */
  kill(): Promise<void>
}

/**
 * Starts the first process of new namespaces. @throws Error with its output when it does not come
 * up
 */
const firstProcess = async (namespaces: string[], command: string[]): Promise<FirstProcess> => {
  const child: ChildProcessByStdio<Writable, Readable, Readable> = spawn(
    'unshare',
    [...namespaces, '--pid', '--fork', '--kill-child=KILL', '--', ...command],
    {
      cwd: '/',
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    },
  )
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  let said = ''
  child.stdin.on('error', () => {
    // The process has ended; `ended` reports it.
  })
  child.stderr.on('data', (chunk: Buffer) => (said += chunk.toString()))
  await new Promise<void>((resolve, reject) => {
    child.once('error', reject)
    child.stdout.on('data', () => resolve())
    child.once('close', () => reject(new Error(`a host did not come up: ${said}`)))
  })
  const pid = readdirSync('/proc').find((name) => /^\d+$/.test(name) && parentOf(name) === child.pid)
  if (pid === undefined) throw new Error(`a host went down while it came up: ${said}`)
  return {
    pid: Number(pid),
    kill: async () => {
      child.kill('SIGKILL')
      await ended
      await until('the processes of the host are gone', async () => parentOf(pid) === undefined)
    },
  }
}

/** The parent of a living process. */
const parentOf = (pid: string): number | undefined => {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return fields[0] === 'Z' || fields[0] === 'X' ? undefined : Number(fields[1])
  } catch {
    return undefined
  }
}
