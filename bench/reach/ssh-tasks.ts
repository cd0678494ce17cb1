import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { run } from '../../sites/ground.ts'
import { sshMissing, startSsh, type SshSite } from '../../sites/ssh.ts'
import { startDaemon } from '../daemon.ts'
import { allMissing, parallelMissing, rootMissing } from '../needs.ts'
import { timedRun } from '../planned-run.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, medianRatio, secondsOf } from '../rounds.ts'
import { bag, checkLedgers, importKey, notingScript, planOn, versionOf } from './places.ts'

const fullCount = 1_000
/** Below sshd's MaxSessions of 10, the limit of a shared connection. */
const perHost = 8

/**
 * GNU parallel, `perHost` at once on each host, every session over one connection per host
 * (ControlMaster).
 */
const parallel = async (site: SshSite, tasks: readonly string[]): Promise<number> => {
  const config = join(site.folder, 'master.conf')
  const [, , , identity] = site.sshOptions
  writeFileSync(
    config,
    [
      `IdentityFile ${identity ?? ''}`,
      ...[
        `UserKnownHostsFile ${site.knownHostsFile}`,
        'IdentitiesOnly yes',
        'BatchMode yes',
        `User ${site.user}`,
      ],
      ...['ControlMaster auto', 'ControlPersist 20', `ControlPath ${site.folder}/master-%h`, ''],
    ].join('\n'),
  )
  const logins = site.hosts.map((host) => `${perHost}/${host.address}`).join(',')
  const args = ['--will-cite', '--ssh', `ssh -F ${config}`, '--sshlogin', logins, notingScript('{}')]
  // parallel quotes the value of {}; $HOME is expanded on the host.
  return secondsOf(() =>
    run('parallel', args, {
      input: `${tasks.join('\n')}\n`,
      environment: { HOME: site.folder },
      deadlineMs: 900_000,
    }),
  )
}

/** A connection and a login for each task, `perHost` at once on each host. */
const sshEach = (site: SshSite, tasks: readonly string[]): Promise<number> =>
  secondsOf(() =>
    Promise.all(
      site.hosts.map((host, i) => {
        const mine = tasks.filter((_, t) => t % site.hosts.length === i)
        const args = [
          ...['-P', String(perHost), '-I', '{}', 'ssh'],
          ...site.sshOptions,
          `${site.user}@${host.address}`,
          notingScript('{}'),
        ]
        return run('xargs', args, { input: `${mine.join('\n')}\n`, deadlineMs: 900_000 })
      }),
    ),
  )

export const sshTasks: Benchmark = {
  about:
    `${fullCount} short tasks on three SSH hosts, ${perHost} at once on each, against GNU parallel ` +
    'with ControlMaster and one ssh per task',
  missing: async () => rootMissing() ?? allMissing(await sshMissing(), parallelMissing()),
  async run({ rounds, tiny }) {
    const count = tiny ? 24 : fullCount
    await using site = await startSsh({ hosts: 3 })
    const daemon = await startDaemon()
    try {
      const dag = bag(count)
      const tasks = Object.keys(dag)
      const credentialRef = await importKey(daemon, 'bench', site.key.privateKey)
      const planned = await planOn(daemon, {
        name: 'ssh-tasks',
        dag,
        command: (task) => ({
          entrypoint: 'sh',
          arguments: ['-c', `HOME=/home/${site.user}; ${notingScript(task)}`],
        }),
        places: site.hosts.map((host) => ({ host, driver: 'ssh', cores: perHost })),
        credentialRef,
      })
      let number = 0
      const checked = async (who: string, measured: Promise<number>): Promise<number> => {
        const seconds = await measured
        await checkLedgers(who, site.hosts, tasks)
        return seconds
      }
      const { cold, warm } = await interleaved(rounds, {
        Orrery: () =>
          checked(
            'Orrery',
            timedRun(daemon, planned, `run-${++number}`, 20).then(({ seconds }) => seconds),
          ),
        parallel: () => checked('parallel', parallel(site, tasks)),
        ssh: () => checked('ssh', sshEach(site, tasks)),
      })
      return {
        sides: [
          { name: 'Orrery', unit: 's', cold: cold.Orrery, warm: warm.Orrery },
          {
            name: 'GNU parallel --sshlogin, ControlMaster',
            unit: 's',
            cold: cold.parallel,
            warm: warm.parallel,
          },
          { name: 'one ssh per task', unit: 's', cold: cold.ssh, warm: warm.ssh },
        ],
        goals: [
          {
            what: 'wall against parallel',
            unit: '×',
            measured: medianRatio(warm.Orrery, warm.parallel),
            sense: 'most',
            goal: 1,
          },
          {
            what: 'speed against one ssh per task',
            unit: '×',
            measured: medianRatio(warm.ssh, warm.Orrery),
            sense: 'least',
            goal: 5,
          },
        ],
        notes: [
          `${count} processes on every side, each noted itself once in a ledger of its host; hosts ` +
            'and clients share one machine',
          'Orrery besides makes a work directory, records of start and end and a manifest per task, ' +
            'durably; the others keep nothing',
        ],
        versions: {
          'GNU parallel': versionOf((await run('parallel', ['--version'])).stdout),
          OpenSSH: versionOf((await run('ssh', ['-V'])).stderr),
        },
      }
    } finally {
      await daemon.stop()
    }
  },
}
