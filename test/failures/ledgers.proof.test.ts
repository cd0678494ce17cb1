import { expect } from '@jest/globals'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { loadSystemImage, openDockerEngine } from '../../sites/docker.ts'
import { startKubernetes } from '../../sites/kubernetes.ts'
import { startLoopbackSsh } from '../../sites/loopback.ts'
import { sites } from '../../sites/requirements.ts'
import { startSlurm } from '../../sites/slurm.ts'
import { needs } from '../support/needs.ts'
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
import { ledgerTasks, playRounds, type RoundsSite } from './rounds.ts'

const { test } = needs('root')
const overSsh = needs('root', ...sites.sshd).test
const onSlurm = needs(...sites.slurm).test
const inPods = needs(...sites.kubernetes).test
const inDocker = needs(...sites.docker).test

/** Does one of these at each call, by turns. */
const byTurns = (...outages: RoundsSite['outage'][]): RoundsSite['outage'] => {
  let turn = 0
  return (forMs) => outages[turn++ % outages.length]!(forMs)
}

/**
 * Every attempt writes its start and its end into a ledger of its site, while processes of the
 * service and the site fail by seed: none is started twice, no two of an activity are alive at once,
 * and each activity ends once. `ORRERY_LEDGER_ROUNDS`: rounds at each kind of site, 200 by default.
 */
const rounds = Number(process.env['ORRERY_LEDGER_ROUNDS'] ?? 200)
const hours = 3_600_000
const say = (line: string): void => void process.stderr.write(`${line}\n`)

/** @param tasks of a run @param more of each task */
const play = async (
  seed: number,
  tasks: number,
  site?: RoundsSite,
  more: Pick<WorldTask, 'image' | 'memory'> = {},
  latestPass = 25,
): Promise<void> => {
  const played = await playRounds({
    ...{ seed, rounds, say, runSeconds: 300, latestPass },
    tasks: (ledger, random) =>
      ledgerTasks(tasks, ledger, random, site !== undefined).map((task) => ({ ...task, ...more })),
    ...(site === undefined ? {} : { site }),
  })
  expect(played.flatMap(({ violations }) => violations)).toEqual([])
  expect(played).toHaveLength(rounds)
}

test('on this machine nothing is done twice, whatever dies', () => play(91, 60), 6 * hours)

overSsh(
  'at an SSH host nothing is done twice, whatever dies',
  async () => {
    await using ssh = await startLoopbackSsh()
    const [host] = ssh.hosts
    if (host === undefined) throw new Error('the site has one host')
    const ledger = `${host.folder}/ledger`
    await play(92, 40, {
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
    })
  },
  6 * hours,
)

onSlurm(
  'on a Slurm cluster nothing is done twice, whatever dies',
  async () => {
    await using slurm = await startSlurm({ nodes: 2 })
    const { login } = slurm
    const ledger = `${login.home}/ledger`
    await play(93, 25, {
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
    })
  },
  12 * hours,
)

inPods(
  'on a Kubernetes cluster nothing is done twice, whatever dies',
  async () => {
    await using cluster = await startKubernetes()
    const { certificateAuthority, namespace } = cluster
    const token = await cluster.token()
    const unlabel = (...what: string[]): Promise<string> =>
      cluster.kubectl('label', ...what, '-l', 'orrery.dev/part=task', 'orrery.dev/runtime-')
    await play(
      94,
      20,
      {
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
      },
      { image: cluster.images.gnu, memory: '64Mi' },
      // Tasks that can start together are one submit, and there are five layers.
      5,
    )
  },
  12 * hours,
)

inDocker(
  'in containers of this machine nothing is done twice, whatever dies',
  async () => {
    const data = mkdtempSync(join(runFolder(), 'orrery-ledgers-'))
    await using engine = await openDockerEngine({ data, kind: 'tasks' })
    // Its containers outlive it: a task that an engine ends at its start leaves no line of its end.
    await engine.stop()
    await engine.start({ liveRestore: true })
    const image = await loadSystemImage(engine)
    const folder = mkdtempSync(join(runFolder(), 'orrery-ledger-'))
    const ledger = join(folder, 'ledger')
    await play(
      95,
      30,
      {
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
      },
      { image, memory: '64Mi' },
    )
  },
  12 * hours,
)
