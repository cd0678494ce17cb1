import { chmodSync, chownSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { startAccounting } from './accounting.ts'
import { folderAt, openGround, until } from './ground.ts'
import type { Ground } from './ground.ts'
import { hostsMissing, openNetwork } from './hosts.ts'
import type { Host, SiteNetwork } from './hosts.ts'
import { siteLacks } from './needs.ts'
import { makeKeyPair, serveSsh, sshOptions } from './ssh.ts'
import type { Key, SshHost } from './ssh.ts'

/** A real Slurm cluster: see `startSlurm`. */
export interface SlurmOptions {
  /**
   * Compute nodes `n1`, `n2` … of 4 CPUs and 4,000 MB each; the last has two GPUs by name. Default
   * 2.
   */
  nodes?: number
  /**
   * slurmdbd with MariaDB, account `lab` with qualities of service `normal` and `high`: adds about
   * 3 s.
   */
  accounting?: boolean
  /** slurmrestd on port 6820 of the login node. */
  rest?: boolean
  /**
   * Seconds without a heartbeat after which a node is down. The default is 30, because a loaded
   * machine causes false alarms.
   */
  slurmdTimeoutSeconds?: number
  /** Seconds for which squeue and scontrol show an ended job; default 3600. */
  minJobAgeSeconds?: number
  /** Seconds by which the clock of logins is off. */
  clockOffsetSeconds?: number
  /** More lines of `slurm.conf`. */
  slurmConf?: readonly string[]
  /** More lines of `sshd_config` of the login node. They precede the site's own. */
  sshdConfig?: readonly string[]
}

export type SlurmDaemon = 'munged' | 'slurmctld' | 'slurmdbd' | 'slurmrestd'
export type SlurmCommand = (typeof commands)[number]

export interface SlurmNode extends Host {
  /** Kills slurmd without a warning; its jobs' processes stay. For the whole node: `crash()`. */
  killSlurmd(): Promise<void>
  /** After `killSlurmd()`, or after `boot()`. */
  startSlurmd(): Promise<void>
}

export interface SlurmSite extends AsyncDisposable {
  readonly folder: string
  /**
   * The login node: sshd for the account and root, and the cluster's daemons. It shares `/home`
   * with all nodes.
   */
  readonly login: SshHost
  readonly nodes: readonly SlurmNode[]
  readonly user: string
  readonly key: Key
  readonly knownHostsFile: string
  readonly sshOptions: readonly string[]
  /** `slurm.conf` for commands of this machine. */
  readonly conf: string
  /**
   * A folder for the front of `PATH`: `sbatch` and the other commands, on this machine and on the
   * login node. `calls()` lists their calls.
   */
  readonly commands: string
  /**
   * A world-writable folder, at the same path on this machine, the login node and the nodes, for
   * jobs of local commands.
   */
  readonly scratch: string
  /**
   * `main` (default, no limit), `short` (5 minutes), `spare` (jobs are requeued when `main` needs
   * their place), `drained` (takes none).
   */
  readonly partitions: readonly ['main', 'short', 'spare', 'drained']
  readonly restUrl: string | undefined
  /** A token for slurmrestd, sent as `X-SLURM-USER-TOKEN` beside `X-SLURM-USER-NAME`. */
  token(user?: string, lifespanSeconds?: number): Promise<string>
  /**
   * Runs a script as root on the login node, with Slurm's commands on PATH. @returns its standard
   * output
   */
  slurm(script: string): Promise<string>
  /**
   * Each call of a Slurm command since the start or `forgetCalls()`: the command and its arguments,
   * one line.
   */
  calls(): string[]
  forgetCalls(): void
  /**
   * Sets a script for `sh` that the command runs before or (with `exit`) instead of its work from
   * now on; undefined removes it.
   */
  disturb(command: SlurmCommand, script: string | undefined): void
  /**
   * Resolves when the daemon is gone. After KILL slurmctld loses unsaved state (it saves jobs
   * within 5 s): a job submitted since then is unknown and its id is assigned again; a job that
   * began since then is ended and fails. At TERM it saves first.
   */
  kill(daemon: SlurmDaemon, how?: 'KILL' | 'TERM'): Promise<void>
  start(daemon: SlurmDaemon): Promise<void>
  /** Waits until every node is up and idle. */
  idle(): Promise<void>
  stop(): Promise<void>
}

const commands = [
  'sbatch',
  'squeue',
  'sacct',
  'scancel',
  'scontrol',
  'sinfo',
  'srun',
  'sacctmgr',
  'sdiag',
  'sstat',
] as const

/** The lacks of this machine for the site, as text; undefined where there is none. */
export const slurmMissing = async (
  options: { accounting?: boolean; rest?: boolean } = {},
): Promise<string | undefined> => {
  const lacks = siteLacks({ ...options, kind: 'slurm' })
  if (lacks !== undefined) return lacks
  if (existsSync('/usr/sbin/slurmctld-wlm-emulator') || existsSync('/usr/sbin/slurmd-wlm-emulator'))
    return 'slurm-wlm-emulator is installed, which replaces the real daemons: apt-get remove slurm-wlm-emulator'
  return hostsMissing()
}

/**
 * Starts a cluster: a login node with the controller, and compute nodes, each a host of its own
 * (network, processes, name), with one `/home` and this machine's `/tmp`. It takes about 2 s.
 * Everything ends with `stop()` and with the calling process, also when that is killed.
 *
 * Memory is scheduled, not enforced: Slurm 22.05 cannot use the cgroups of the test machines.
 *
 * @throws Error naming what the machine lacks
 */
export const startSlurm = async (options: SlurmOptions = {}): Promise<SlurmSite> => {
  const missing = await slurmMissing(options)
  if (missing !== undefined) throw new Error(`Slurm cannot be had: ${missing}`)
  const ground = openGround('slurm')
  let network: SiteNetwork | undefined
  try {
    network = await openNetwork(ground, { name: 'ada', shell: '/bin/sh' })
    return await open(ground, network, options)
  } catch (error) {
    await network?.close()
    await ground.leave()
    throw error
  }
}

const open = async (ground: Ground, network: SiteNetwork, options: SlurmOptions): Promise<SlurmSite> => {
  const folder = ground.folder
  const etc = folderAt(join(folder, 'etc'))
  const bin = folderAt(join(folder, 'bin'))
  const scratch = folderAt(join(folder, 'scratch'), 0o1777)
  const failures = folderAt(join(folder, 'failures'))
  const callsFile = join(folder, 'calls')
  const mounts = { '/home': folderAt(join(folder, 'home')), '/etc/slurm': etc }
  const controllerAddress = `${network.prefix}.11`
  for (const name of ['state', 'spool', 'log']) folderAt(join(folder, name))
  prepareMunge(folder)
  writeFileSync(join(etc, 'jwt.key'), randomBytes(32), { mode: 0o600 })
  writeFileSync(callsFile, '', { mode: 0o666 })
  chmodSync(callsFile, 0o666)
  for (const command of commands) writeFileSync(join(bin, command), wrapper(folder, command), { mode: 0o755 })
  const nodeNames = Array.from({ length: options.nodes ?? 2 }, (_, index) => `n${index + 1}`)
  writeFileSync(join(etc, 'slurm.conf'), slurmConf(folder, network.prefix, nodeNames, options))
  writeFileSync(join(etc, 'gres.conf'), `NodeName=${nodeNames.at(-1)!} Name=gpu File=/dev/tty[0-1]\n`)

  const key = await makeKeyPair(join(folder, 'id_ed25519'), 'test')
  const login = await serveSsh(
    await network.add('login', { diskMiB: 64, mounts, sharesTmp: true }),
    network,
    {
      keys: [key.publicKey],
      config: options.sshdConfig ?? [],
      clockOffsetSeconds: options.clockOffsetSeconds ?? 0,
      environment: { PATH: `${bin}:/usr/local/bin:/usr/bin:/bin` },
    },
  )
  const knownHostsFile = join(folder, 'known_hosts')
  writeFileSync(knownHostsFile, `${login.knownHosts()}\n`)

  const slurm = async (script: string): Promise<string> =>
    (await login.run(`PATH=/usr/sbin:/usr/bin:/sbin:/bin; ${script}`)).stdout
  const answers = (script: string) => async (): Promise<boolean> =>
    (await login.run(`exec 2>/dev/null; ${script}`, 'root', { mayFail: true })).code === 0
  const lastWords = (name: string) => (): string => {
    const file = join(folder, 'log', `${name}.log`)
    return existsSync(file) ? readFileSync(file, 'utf8').slice(-2000) : ''
  }
  const start = async (daemon: SlurmDaemon): Promise<void> => {
    switch (daemon) {
      case 'munged':
        await login.run(
          'setpriv --reuid munge --regid munge --init-groups munged --force --key-file ' +
            `${folder}/munge/key --socket ${folder}/munge/socket ` +
            `--pid-file ${folder}/munge/pid --log-file ${folder}/munge/log --seed-file ${folder}/munge/seed`,
        )
        return until('munged answers', answers(`munge -n -S ${folder}/munge/socket`))
      case 'slurmdbd':
        return startAccounting(login, folder, controllerAddress)
      case 'slurmctld':
        await login.run('slurmctld -i')
        return until(
          'slurmctld answers',
          answers('timeout 5 scontrol ping | grep -q UP'),
          lastWords('slurmctld'),
        )
      case 'slurmrestd':
        // slurmrestd refuses to run as root and as SlurmUser. Without -s it requires slurmdbd's
        // part of the API too, also where there is none.
        await login.run(
          'SLURM_JWT=daemon setsid setpriv --reuid nobody --regid nogroup --clear-groups slurmrestd ' +
            '-s openapi/v0.0.38 -a rest_auth/jwt 0.0.0.0:6820 ' +
            `</dev/null >>${folder}/log/slurmrestd.log 2>&1 &`,
        )
        return until(
          'slurmrestd answers',
          answers('exec 3<>/dev/tcp/127.0.0.1/6820'.replace(/^/, 'bash -c "') + '"'),
          lastWords('slurmrestd'),
        )
    }
  }
  const kill = async (daemon: SlurmDaemon, how: 'KILL' | 'TERM' = 'KILL'): Promise<void> => {
    await login.run(`pkill -${how} -x ${daemon}; while pgrep -x ${daemon} >/dev/null; do sleep 0.02; done`)
  }
  await start('munged')
  if (options.accounting === true) await start('slurmdbd')
  const nodes: SlurmNode[] = []
  for (const name of nodeNames)
    nodes.push(withSlurmd(await network.add(name, { diskMiB: 64, mounts, sharesTmp: true }), lastWords(name)))
  await start('slurmctld')
  await Promise.all(nodes.map((node) => node.startSlurmd()))
  const idle = (): Promise<void> =>
    until('all nodes are idle', answers(`[ "$(timeout 5 sinfo -h -p main -o %T | sort -u)" = idle ]`), () =>
      ['slurmctld', ...nodeNames].map((name) => lastWords(name)()).join('\n'),
    )
  await idle()
  if (options.accounting === true)
    await slurm(
      'sacctmgr -i add account lab Description=lab >/dev/null && sacctmgr -i add qos high Priority=100 >/dev/null && ' +
        `for user in root ${network.account.name}; do sacctmgr -i add user $user account=lab ` +
        'qos=normal,high defaultqos=normal >/dev/null; done',
    )
  if (options.rest === true) await start('slurmrestd')
  const stop = async (): Promise<void> => {
    await network.close()
    await ground.leave()
  }
  return {
    folder,
    login,
    nodes,
    user: network.account.name,
    key,
    knownHostsFile,
    sshOptions: sshOptions(key.path, knownHostsFile),
    conf: join(etc, 'slurm.conf'),
    commands: bin,
    scratch,
    partitions: ['main', 'short', 'spare', 'drained'],
    restUrl: options.rest === true ? `http://${login.address}:6820` : undefined,
    token: async (user = network.account.name, lifespanSeconds = 86_400) =>
      (await slurm(`scontrol token username=${user} lifespan=${lifespanSeconds}`))
        .trim()
        .replace(/^SLURM_JWT=/, ''),
    slurm,
    calls: () =>
      readFileSync(callsFile, 'utf8')
        .split('\n')
        .filter((line) => line !== ''),
    forgetCalls: () => writeFileSync(callsFile, ''),
    disturb: (command, script) => {
      if (script === undefined) rmSync(join(failures, command), { force: true })
      else writeFileSync(join(failures, command), `${script}\n`)
    },
    kill,
    start,
    idle,
    stop,
    [Symbol.asyncDispose]: stop,
  }
}

const prepareMunge = (folder: string): void => {
  const [, , uid, gid] = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .find((line) => line.startsWith('munge:'))!
    .split(':')
  const place = folderAt(join(folder, 'munge'))
  writeFileSync(join(place, 'key'), randomBytes(1024), { mode: 0o400 })
  for (const path of [place, join(place, 'key')]) chownSync(path, Number(uid), Number(gid))
}

/**
 * The command's own shell reads the disturbance, so it may fail, hang, print, or let the real
 * command run.
 */
const wrapper = (folder: string, command: string): string => `#!/bin/sh
printf '%s\\n' '${command}'" $(printf '%s ' "$@" | tr '\\n' ' ')" >> ${folder}/calls
[ ! -f ${folder}/failures/${command} ] || . ${folder}/failures/${command}
SLURM_CONF=${folder}/etc/slurm.conf exec /usr/bin/${command} "$@"
`

const withSlurmd = (node: Host, lastWords: () => string): SlurmNode =>
  Object.assign(node, {
    killSlurmd: async () => {
      await node.run('while pkill -KILL -x slurmd; do sleep 0.02; done')
    },
    startSlurmd: async () => {
      await node.run(`slurmd -N ${node.name}`)
      await until(
        `slurmd of ${node.name}`,
        async () => (await node.run('pgrep -x slurmd', 'root', { mayFail: true })).code === 0,
        lastWords,
      )
    },
  })

const slurmConf = (folder: string, prefix: string, nodes: readonly string[], options: SlurmOptions): string =>
  [
    `ClusterName=site`,
    `SlurmctldHost=login(${prefix}.11)`,
    'SlurmUser=root',
    'SlurmdUser=root',
    'AuthType=auth/munge',
    `AuthInfo=socket=${folder}/munge/socket`,
    ...(options.rest === true
      ? ['AuthAltTypes=auth/jwt', `AuthAltParameters=jwt_key=${folder}/etc/jwt.key`]
      : []),
    'CredType=cred/munge',
    `StateSaveLocation=${folder}/state`,
    `SlurmctldPidFile=/run/slurmctld.pid`,
    `SlurmctldLogFile=${folder}/log/slurmctld.log`,
    `SlurmdSpoolDir=${folder}/spool/%n`,
    'SlurmdPidFile=/run/slurmd.pid',
    `SlurmdLogFile=${folder}/log/%n.log`,
    // The nodes have more configured CPUs than the machine has.
    'SlurmdParameters=config_overrides',
    'ProctrackType=proctrack/linuxproc',
    'TaskPlugin=task/none',
    'JobAcctGatherType=jobacct_gather/linux',
    'JobAcctGatherFrequency=task=1',
    ...(options.accounting === true
      ? [
          'AccountingStorageType=accounting_storage/slurmdbd',
          `AccountingStorageHost=${prefix}.11`,
          // With munge this "password" is the path of its socket.
          `AccountingStoragePass=${folder}/munge/socket`,
          'AccountingStorageTRES=gres/gpu',
        ]
      : ['AccountingStorageType=accounting_storage/none']),
    'SelectType=select/cons_tres',
    'SelectTypeParameters=CR_Core_Memory',
    'GresTypes=gpu',
    'SchedulerType=sched/backfill',
    'SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0',
    'PreemptType=preempt/partition_prio',
    'PreemptMode=REQUEUE',
    'SwitchType=switch/none',
    'MpiDefault=none',
    'ReturnToService=2',
    'SlurmctldTimeout=30',
    `SlurmdTimeout=${options.slurmdTimeoutSeconds ?? 30}`,
    'InactiveLimit=0',
    `MinJobAge=${options.minJobAgeSeconds ?? 3600}`,
    'KillWait=5',
    'PropagateResourceLimits=NONE',
    ...(options.slurmConf ?? []),
    ...nodes.map(
      (name, index) =>
        `NodeName=${name} NodeAddr=${prefix}.${index + 12} CPUs=4 ` +
        `RealMemory=4000${name === nodes.at(-1) ? ' Gres=gpu:2' : ''} State=UNKNOWN`,
    ),
    `PartitionName=main Nodes=${nodes.join(',')} Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP`,
    'PartitionName=short Nodes=n1 MaxTime=5 PriorityTier=10 PreemptMode=OFF State=UP',
    `PartitionName=spare Nodes=${nodes.join(',')} MaxTime=INFINITE PriorityTier=1 State=UP`,
    `PartitionName=drained Nodes=${nodes.join(',')} MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=DRAIN`,
    '',
  ].join('\n')
