import { spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { openGround, run, until } from './ground.ts'
import { siteLacks } from './needs.ts'
import { makeKeyPair, sshOptions } from './ssh.ts'
import type { Key } from './ssh.ts'

/**
 * An SSH host with its own Linux (User-Mode Linux, a kernel that is a program), for features that
 * the machine's kernel may lack: cgroups of version 2 only, and systemd as the first process. The
 * programs are the machine's, read-only; written files end with the host.
 */
export interface KernelHost extends AsyncDisposable {
  readonly address: string
  /** The account `ada`; root may log in with the same key. */
  readonly user: string
  readonly key: Key
  /** Lines of `known_hosts` for every port. */
  readonly knownHosts: string
  /**
   * Ports by the cgroup in which logins start. `own`: one delegated to the account, with no other
   * of its cgroups above. `below`: a cgroup below such a one. `foreign`: a cgroup of root.
   * `session`: systemd's cgroup of that login, which ends with all its processes at the logout; the
   * account lingers.
   */
  readonly ports: Readonly<Record<'own' | 'below' | 'foreign' | 'session', number>>
  /** Runs a script on the host as root. */
  run(script: string): Promise<string>
}

const program = '/usr/bin/linux.uml'
const compiler = '/usr/bin/gcc'

/**
 * A library between that kernel and the C library. The kernel sets the registers of its processes
 * as it read them, with room for the registers of 2022. A processor with more registers (AMX)
 * accepts only all of them at once (`EFAULT`), and the kernel panics. So this library reads the
 * rest and passes it too.
 */
const registers = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>
static long (*real)(int, ...);
static char room[65536];
__attribute__((constructor)) static void find(void) { *(void **)&real = dlsym(RTLD_NEXT, "ptrace"); }
long ptrace(enum __ptrace_request request, ...) {
  va_list more;
  va_start(more, request);
  pid_t pid = va_arg(more, pid_t);
  void *kind = va_arg(more, void *), *data = va_arg(more, void *);
  va_end(more);
  long result = real(request, pid, kind, data);
  if (result != -1 || errno != EFAULT || request != PTRACE_SETREGSET) return result;
  struct iovec *given = data, all = {room, sizeof room};
  if (real(PTRACE_GETREGSET, pid, kind, &all) == -1 || all.iov_len < given->iov_len) return result;
  memcpy(room, given->iov_base, given->iov_len);
  return real(PTRACE_SETREGSET, pid, kind, &all);
}
`

/** The lacks of this machine for the site, as text; undefined where there is none. */
export const kernelHostMissing = (): string | undefined => {
  const lacks = siteLacks({ kind: 'ssh-kernel' })
  if (lacks !== undefined) return lacks
  return existsSync('/dev/net/tun') ? undefined : '/dev/net/tun is missing: the host would have no network'
}

const ports = { own: 22, below: 23, foreign: 24, session: 25 }

/**
 * The script that becomes systemd there. The kernel ends when the console does: at a stop or at the
 * death of this process.
 */
const init = `#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
folder=$1 address=$2
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t hostfs -o "$folder" host /mnt
for file in passwd group shadow; do mount --bind "/mnt/$file" "/etc/$file"; done
for place in /run /tmp /var/tmp /root /home /dev/shm; do mount -t tmpfs -o mode=1777 tmp "$place"; done
for place in /var/lib/systemd /var/log; do mount -t tmpfs -o mode=755 tmp "$place"; done
mount --bind /mnt/systemd /etc/systemd
chmod 755 /run
chmod 700 /root
mkdir -m 755 /run/sshd
mkdir -m 700 /home/ada
chown 1000:1000 /home/ada
hostname kernel
ip link set lo up
ip addr add "$address/24" dev vec0
ip link set vec0 up
mkdir /var/lib/systemd/linger
: > /var/lib/systemd/linger/ada
( read -r line < /dev/console; halt -f || echo o > /proc/sysrq-trigger ) &
exec /lib/systemd/systemd --unit=site.target --show-status=no
`

/** Steps of a usual start that are done or not needed here. They take most of a start's time. */
const masked = [
  ...['sysinit', 'local-fs', 'timers'].flatMap((target) => {
    const folder = `/lib/systemd/system/${target}.target.wants`
    return existsSync(folder) ? readdirSync(folder) : []
  }),
  ...[
    'systemd-journald.socket',
    'systemd-journald-dev-log.socket',
    'systemd-journald-audit.socket',
    'systemd-udevd-control.socket',
  ],
  ...['systemd-udevd-kernel.socket', 'systemd-initctl.socket', 'modprobe@.service'],
]

const units = {
  'site.target': `[Unit]
Requires=dbus.socket systemd-logind.service site-sshd.service site-logins.service site-up.service user@1000.service
`,
  'site-sshd.service': `[Unit]
After=systemd-logind.service
[Service]
ExecStart=/usr/sbin/sshd -D -f /mnt/sshd_config -o UsePAM=yes -p ${ports.session}
KillMode=process
`,
  'site-logins.service': `[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /mnt/logins
`,
  'site-up.service': `[Unit]
After=user@1000.service site-sshd.service site-logins.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'echo up > /dev/console'
`,
}

/** Servers whose logins start in cgroups that systemd does not manage. */
const logins = `set -e
cd /sys/fs/cgroup
echo '+memory +cpu +pids' > cgroup.subtree_control
mkdir own given given/session foreign
for each in own given given/session; do
  chown 1000:1000 "$each" "$each/cgroup.procs" "$each/cgroup.subtree_control" "$each/cgroup.threads"
done
for pair in own:${ports.own} given/session:${ports.below} foreign:${ports.foreign}; do
  ( echo 0 > "\${pair%:*}/cgroup.procs" &&
    exec /usr/sbin/sshd -f /mnt/sshd_config -p "\${pair#*:}" -E "/tmp/log-\${pair#*:}" )
done
`

/**
 * Starts the host in about five seconds. It ends with `asyncDispose` and with the calling process,
 * also when that is killed.
 *
 * @throws Error naming what the machine lacks, or with the kernel's output
 */
export const startKernelHost = async (): Promise<KernelHost> => {
  const missing = kernelHostMissing()
  if (missing !== undefined) throw new Error(`an SSH host with a kernel of its own cannot be had: ${missing}`)
  const ground = openGround('kernel')
  const { folder } = ground
  const key = await makeKeyPair(join(folder, 'id_ed25519'), 'test')
  const hostKey = await makeKeyPair(join(folder, 'host_ed25519'), 'kernel')
  for (const [file, line] of [
    ['passwd', 'ada:x:1000:1000:ada:/home/ada:/bin/sh'],
    ['group', 'ada:x:1000:'],
    ['shadow', 'ada:*:19000:0:99999:7:::'],
  ] as const) {
    copyFileSync(join('/etc', file), join(folder, file))
    const others = readFileSync(join(folder, file), 'utf8')
      .split('\n')
      .filter((entry) => entry !== '' && !/^[^:]*:[^:]*:1000:/.test(entry))
    writeFileSync(join(folder, file), [...others, line, ''].join('\n'))
  }
  writeFileSync(join(folder, 'authorized_keys'), `${key.publicKey}\n`)
  writeFileSync(
    join(folder, 'sshd_config'),
    [
      ...[
        'HostKey /mnt/host_ed25519',
        'PidFile none',
        'UsePAM no',
        'UseDNS no',
        'AuthorizedKeysFile /mnt/authorized_keys',
      ],
      ...[
        'StrictModes no',
        'PermitRootLogin prohibit-password',
        'PasswordAuthentication no',
        'LogLevel VERBOSE',
        '',
      ],
    ].join('\n'),
  )
  const script = join(folder, 'init')
  writeFileSync(script, init, { mode: 0o755 })
  writeFileSync(join(folder, 'logins'), logins)
  const system = join(folder, 'systemd', 'system')
  mkdirSync(system, { recursive: true })
  for (const name of new Set(masked)) symlinkSync('/dev/null', join(system, name))
  for (const [name, text] of Object.entries(units)) writeFileSync(join(system, name), text)
  writeFileSync(join(folder, 'systemd', 'logind.conf'), '[Login]\nKillUserProcesses=yes\n')
  const shim = join(folder, 'registers.so')
  await run(compiler, ['-shared', '-fPIC', '-O1', '-x', 'c', '-o', shim, '-'], { input: registers })
  const cable = `uml${ground.token}`
  const prefix = `10.${randomInt(64, 128)}.${randomInt(0, 256)}`
  const address = `${prefix}.2`
  mkdirSync(join(folder, 'uml'))
  const child = spawn(
    program,
    [
      ...[
        'mem=640M',
        'rootfstype=hostfs',
        'rootflags=/',
        'ro',
        'quiet',
        `uml_dir=${join(folder, 'uml')}`,
        `umid=${ground.token}`,
      ],
      ...[
        `init=/bin/sh`,
        // Without gro the kernel stops taking packets once this machine hands it several in one: a
        // write of 1 MB stood still until the link counted as lost; with it it takes 0.6 s.
        `vec0:transport=tap,ifname=${cable},depth=512,gro=1`,
        'con=null',
        'con0=fd:0,fd:1',
        '--',
        script,
        folder,
        address,
      ],
    ],
    {
      cwd: '/',
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', TMPDIR: '/dev/shm', LD_PRELOAD: shim },
    },
  )
  let said = ''
  child.stdin.on('error', () => {
    // The process has ended; `ended` reports it.
  })
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  let up = false
  child.stdout.on('data', (bytes: Buffer) => {
    said += bytes.toString()
    up ||= /^up\r?$/m.test(said)
  })
  child.stderr.on('data', (bytes: Buffer) => (said += bytes.toString()))
  const stop = async (): Promise<void> => {
    child.stdin.end()
    const late = setTimeout(() => process.kill(-child.pid!, 'SIGKILL'), 5000)
    await ended
    clearTimeout(late)
    await ground.leave()
  }
  try {
    await until(
      'the kernel is up',
      async () => up || child.exitCode !== null,
      () => said,
      150_000,
    )
    await run('ip', ['addr', 'add', `${prefix}.1/24`, 'dev', cable])
    await run('ip', ['link', 'set', cable, 'up'])
    await until(
      'sshd of the kernel answers',
      () => answers(address),
      () => said,
      150_000,
    )
  } catch (error) {
    await stop()
    throw error
  }
  const line = hostKey.publicKey.split(' ').slice(0, 2).join(' ')
  const knownHosts = Object.values(ports)
    .map((port) => `${port === 22 ? address : `[${address}]:${port}`} ${line}\n`)
    .join('')
  const knownHostsFile = join(folder, 'known_hosts')
  writeFileSync(knownHostsFile, knownHosts)
  return {
    address,
    user: 'ada',
    key,
    knownHosts,
    ports,
    run: async (words) =>
      (
        await run('ssh', [
          ...sshOptions(key.path, knownHostsFile),
          '-p',
          String(ports.foreign),
          `root@${address}`,
          words,
        ])
      ).stdout,
    [Symbol.asyncDispose]: stop,
  }
}

const answers = (address: string): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(22, address)
    socket.setTimeout(1000, () => socket.destroy())
    socket.once('data', () => {
      resolve(true)
      socket.destroy()
    })
    socket.once('error', () => undefined)
    socket.once('close', () => resolve(false))
  })
