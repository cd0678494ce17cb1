import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { loadSystemImage, openDockerEngine } from '../../sites/docker.ts'
import { startKubernetes } from '../../sites/kubernetes.ts'
import { startLoopbackSsh } from '../../sites/loopback.ts'
import { startSlurm } from '../../sites/slurm.ts'
import type { Failures } from '../../bench/tally.ts'
import {
  connectionTo,
  inCluster,
  inContainers,
  makeVaultKeyFile,
  onCluster,
  onHost,
} from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import type { WorldTask } from '../support/worlds.ts'
import { ledgerTasks, openRounds, type RoundsOptions, type RoundsSite } from './rounds.ts'

/** Does one of these at each call, by turns. */
const byTurns = (...outages: RoundsSite['outage'][]): RoundsSite['outage'] => {
  let turn = 0
  return (forMs) => outages[turn++ % outages.length]!(forMs)
}

/** The rounds of a kind of site: every attempt writes its start and its end into a ledger there. */
interface LedgerSite extends Pick<RoundsOptions, 'seed' | 'latestPass' | 'site'> {
  /** The number of tasks of a run. */
  tasks: number
  /** More of each task. */
  more?: Pick<WorldTask, 'image' | 'memory'>
}

const openSshHost = async (stack: AsyncDisposableStack): Promise<LedgerSite> => {
  const ssh = stack.use(await startLoopbackSsh())
  const [host] = ssh.hosts
  if (host === undefined) throw new Error('the site has one host')
  const ledger = `${host.folder}/ledger`
  const site: RoundsSite = {
    place: onHost('host'),
    connections: [connectionTo('host', host, 'hosts')],
    environment: {
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
    },
    ledger: { at: ledger, seen: ledger },
    introduce: ({ post }) => post('/ssh-keys/import/', { id: 'hosts', privateKey: ssh.key.privateKey }),
    outage: async (forMs) => {
      await host.stopSshd()
      host.dropSessions()
      await pause(forMs)
      await host.startSshd()
    },
  }
  return { seed: 92, tasks: 40, site }
}

const openSlurm = async (stack: AsyncDisposableStack): Promise<LedgerSite> => {
  const slurm = stack.use(await startSlurm({ nodes: 2 }))
  const { login } = slurm
  const ledger = `${login.home}/ledger`
  const site: RoundsSite = {
    place: onCluster('cluster'),
    connections: [connectionTo('cluster', login, 'cluster')],
    environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() },
    ledger: { at: ledger, seen: login.see(ledger) },
    introduce: ({ post }) => post('/ssh-keys/import/', { id: 'cluster', privateKey: slurm.key.privateKey }),
    outage: byTurns(
      async (forMs) => {
        await slurm.kill('slurmctld', 'TERM')
        await login.stopSshd()
        await login.dropSessions()
        await pause(forMs)
        await slurm.start('slurmctld')
        await login.startSshd()
      },
      // It answers, and does not mention our jobs.
      async (forMs) => {
        await slurm.slurm('scontrol update PartitionName=main Hidden=YES')
        await pause(3 * forMs)
        await slurm.slurm('scontrol update PartitionName=main Hidden=NO')
      },
      async (forMs) => {
        slurm.disturb(
          'squeue',
          `case " $* " in *' -j '*) ;; *) SLURM_CONF=${slurm.conf} /usr/bin/squeue "$@" | ` +
            'grep -v orrery-; exit 0 ;; esac',
        )
        await pause(3 * forMs)
        slurm.disturb('squeue', undefined)
      },
    ),
  }
  return { seed: 93, tasks: 25, site, latestPass: 20 }
}

const openPods = async (stack: AsyncDisposableStack): Promise<LedgerSite> => {
  const cluster = stack.use(await startKubernetes())
  const { certificateAuthority, namespace } = cluster
  // 200 rounds take up to four hours.
  const token = await cluster.token('orrery', 86_400)
  const unlabel = (...what: string[]): Promise<string> =>
    cluster.kubectl('label', ...what, '-l', 'orrery.dev/part=task', 'orrery.dev/runtime-')
  const site: RoundsSite = {
    // More Pods than the machine has processors: their requests are a fiftieth of the plan's.
    place: inCluster('pods', cluster, { overcommit: 50, settleSeconds: 3 }),
    connections: [
      {
        ...{ id: 'pods', name: 'pods', type: 'kubernetes', endpoint: cluster.server },
        credentialRef: 'vault:kubernetes-token/pods',
        configuration: { certificateAuthority, namespace },
      },
    ],
    environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() },
    ledger: { at: '/orrery/ledger', seen: `${cluster.volume.folder}/ledger` },
    introduce: ({ post }) => post('/kubernetes-tokens/', { id: 'pods', token }),
    outage: byTurns(
      async (forMs) => {
        await cluster.killApiServer()
        await pause(forMs)
        await cluster.startApiServer()
      },
      // It answers, and does not mention our Pods; then not our Jobs either.
      async () => void (await unlabel('pods')),
      async () => void (await unlabel('jobs,pods')),
      async (forMs) => {
        for (const node of cluster.nodes) await node.killKubelet()
        await pause(forMs)
        for (const node of cluster.nodes) await node.startKubelet()
      },
    ),
  }
  const more = { image: cluster.images.gnu, memory: '64Mi' }
  // Tasks that can start together are one submit, and there are five layers.
  return { seed: 94, tasks: 20, site, more, latestPass: 5 }
}

const openContainers = async (stack: AsyncDisposableStack): Promise<LedgerSite> => {
  const data = mkdtempSync(join(runFolder(), 'orrery-ledgers-'))
  const engine = stack.use(await openDockerEngine({ data, kind: 'tasks' }))
  // Its containers outlive it: a task that an engine ends at its start leaves no line of its end.
  await engine.stop()
  await engine.start({ liveRestore: true })
  const image = await loadSystemImage(engine)
  const folder = mkdtempSync(join(runFolder(), 'orrery-ledger-'))
  const ledger = join(folder, 'ledger')
  const site: RoundsSite = {
    place: inContainers({
      ...{ containerRuntime: 'docker', containerHost: `unix://${engine.socket}` },
      containerMounts: [folder],
    }),
    connections: [],
    environment: {},
    ledger: { at: ledger, seen: ledger },
    introduce: () => Promise.resolve(),
    outage: async (forMs) => {
      await engine.kill()
      await pause(forMs)
      await engine.start({ liveRestore: true })
    },
  }
  return { seed: 95, tasks: 30, site, more: { image, memory: '64Mi' } }
}

const ledgerSites = {
  'on this machine': () => Promise.resolve<LedgerSite>({ seed: 91, tasks: 60 }),
  'at an SSH host': openSshHost,
  'on a Slurm cluster': openSlurm,
  'on a Kubernetes cluster': openPods,
  'in containers of this machine': openContainers,
}

/**
 * Runs at a kind of site, each hit by one blow: processes of the service and the site fail by seed.
 * A violation is an attempt that was started twice, two of an activity that were alive at once, an
 * activity that did not end once, or a record that differs.
 * @param say receives a line of each round
 */
export const openLedgers = async (
  at: keyof typeof ledgerSites,
  say: (line: string) => void = () => undefined,
): Promise<Failures> => {
  await using opened = new AsyncDisposableStack()
  const { tasks, more = {}, ...rest } = await ledgerSites[at](opened)
  const rounds = await openRounds({
    ...{ say, runSeconds: 300, latestPass: 25, ...rest },
    tasks: (ledger, random) =>
      ledgerTasks(tasks, ledger, random, rest.site !== undefined).map((task) => ({ ...task, ...more })),
  })
  opened.defer(() => rounds.close())
  const held = opened.move()
  return {
    what: `runs ${at} that were hit by a death or an outage: no attempt starts twice, each ends once`,
    play: async (number) => ({ counted: 1, violations: (await rounds.play(number + 1)).violations }),
    close: () => held.disposeAsync(),
  }
}
