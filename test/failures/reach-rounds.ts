import { mkdirSync, writeFileSync } from 'node:fs'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { loadSystemImage, openDockerEngine } from '../../sites/docker.ts'
import { startFunctions } from '../../sites/functions.ts'
import { startKubernetes } from '../../sites/kubernetes.ts'
import { startSlurm } from '../../sites/slurm.ts'
import { startSsh } from '../../sites/ssh.ts'
import { violationsOf } from '../execution-runs/checker.ts'
import { connectionTo, inCluster, inContainers, onCluster, onFunctions, onHost } from '../support/reach.ts'
import {
  allOf,
  dependenciesOf,
  makeWorld,
  recordOf,
  type WorldPlace,
  type WorldTask,
} from '../support/worlds.ts'
import { ledgerViolations, readLedger, withLedger } from './ledger.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { transferViolations } from './moved.ts'
import { openPrograms, randomOf } from './rounds.ts'

export interface ReachRound {
  number: number
  afterMs: number
  seconds: number
  /** Tasks that the record showed at their sites when the blow came. */
  inFlight: number
  violations: string[]
}

/** What goes to every other site, with a file of two bytes beside it. */
const sourceBytes = 3_000_000

/** A place with its share of the tasks. */
interface Share {
  count: number
  place?: WorldPlace
  connections?: Record<string, unknown>[]
  /** Of the tasks; absent: none is named. */
  image?: string
  /** Path of the ledger as its tasks see it, and as this machine does. */
  ledger: { at: string; seen: string }
}

interface Started {
  shares: Share[]
  /** What the service needs to get there. */
  introduce: (programs: ReturnType<typeof openPrograms>) => Promise<void>
  stop: () => Promise<void>
}

const onHosts = async (perHost: number, onSlurm: number): Promise<Started> => {
  const [ssh, slurm] = await Promise.all([startSsh({ hosts: 3 }), startSlurm({ nodes: 2 })])
  return {
    shares: [
      ...ssh.hosts.map((host, i) => ({
        count: perHost,
        place: onHost(`h${String(i + 1)}`),
        connections: [connectionTo(`h${String(i + 1)}`, host, 'hosts')],
        ledger: { at: `${host.home}/ledger`, seen: host.see(`${host.home}/ledger`) },
      })),
      {
        count: onSlurm,
        place: onCluster('login'),
        connections: [connectionTo('login', slurm.login, 'cluster')],
        ledger: { at: `${slurm.login.home}/ledger`, seen: slurm.login.see(`${slurm.login.home}/ledger`) },
      },
    ],
    introduce: async (programs) => {
      await programs.post('/ssh-keys/import/', { id: 'hosts', privateKey: ssh.key.privateKey })
      await programs.post('/ssh-keys/import/', { id: 'cluster', privateKey: slurm.key.privateKey })
    },
    stop: async () => {
      await Promise.all([ssh.stop(), slurm.stop()])
    },
  }
}

const inPods = async (count: number): Promise<Started> => {
  const site = await startKubernetes()
  return {
    shares: [
      {
        count,
        // More Pods than the machine has processors: their requests are a fiftieth of the plan's.
        place: inCluster('pods', site, { overcommit: 50 }),
        connections: [
          {
            ...{
              id: 'pods',
              name: 'pods',
              type: 'kubernetes',
              endpoint: site.server,
              credentialRef: 'vault:kubernetes-token/pods',
            },
            configuration: { certificateAuthority: site.certificateAuthority, namespace: site.namespace },
          },
        ],
        image: site.images.gnu,
        ledger: { at: '/orrery/ledger', seen: join(site.volume.folder, 'ledger') },
      },
    ],
    introduce: async (programs) => {
      await programs.post('/kubernetes-tokens/', { id: 'pods', token: await site.token() })
    },
    stop: () => site.stop(),
  }
}

const onEngine = async (count: number, dataDir: string): Promise<Started> => {
  const engine = await openDockerEngine({ data: join(dataDir, 'images'), kind: 'tasks' })
  const folder = join(dataDir, 'contained')
  mkdirSync(folder, { mode: 0o755 })
  return {
    shares: [
      {
        count,
        place: inContainers({
          containerRuntime: 'docker',
          containerHost: `unix://${engine.socket}`,
          containerMounts: [folder],
        }),
        image: await loadSystemImage(engine),
        ledger: { at: join(folder, 'ledger'), seen: join(folder, 'ledger') },
      },
    ],
    introduce: () => Promise.resolve(),
    stop: () => engine[Symbol.asyncDispose](),
  }
}

const asCalls = async (count: number, dataDir: string): Promise<Started> => {
  const site = await startFunctions()
  const seen = join(dataDir, 'called')
  return {
    shares: [{ count, place: onFunctions(site.gateway), ledger: { at: seen, seen } }],
    introduce: () => Promise.resolve(),
    stop: () => site.stop(),
  }
}

/**
 * Worker and daemon killed with tasks in flight on all sites at once: this machine, three SSH
 * hosts, a Slurm cluster, and where a number is given containers, Pods and function calls. Each
 * task writes into a ledger of its own site when it starts and when it ends.
 */
export const playReachRounds = async (options: {
  rounds: number
  seed: number
  /** In flight at once: per SSH host, and on the cluster. */
  perHost: number
  onSlurm: number
  contained?: number
  pods?: number
  calls?: number
  taskSeconds: number
  /**
   * The blow falls once so many are in flight, or a share of all drawn by seed, whichever is more.
   */
  least?: number
  say?: (line: string) => void
}): Promise<ReachRound[]> => {
  const random = randomOf(options.seed)
  const dataDir = dataFolder()
  const keyFile = join(dataDir, 'key')
  writeFileSync(keyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  const programs = openPrograms(dataDir, {
    environment: { SERVICE_VAULT_KEY_FILE: keyFile, SERVICE_SEED_ROOT: dataDir },
  })
  const { perHost, onSlurm, contained = 0, pods = 0, calls = 0 } = options
  const started = await Promise.all([
    ...(perHost + onSlurm > 0 ? [onHosts(perHost, onSlurm)] : []),
    ...(contained > 0 ? [onEngine(contained, dataDir)] : []),
    ...(pods > 0 ? [inPods(pods)] : []),
    ...(calls > 0 ? [asCalls(calls, dataDir)] : []),
  ])
  const rounds: ReachRound[] = []
  try {
    await programs.startDaemon()
    await programs.startWorker()
    for (const { introduce } of started) await introduce(programs)
    const localLedger = join(dataDir, 'ledger')
    const shares: Share[] = [
      { count: 3, ledger: { at: localLedger, seen: localLedger } },
      ...started.flatMap((site) => site.shares),
    ]
    // All but those of this machine need its files: the blow falls among transfers too.
    const source: WorldTask = {
      name: 'source',
      run: withLedger(localLedger, `head -c ${String(sourceBytes)} /dev/urandom > data; echo 1 > one`),
      lane: [0, 2],
    }
    const tasks: WorldTask[] = shares.flatMap(({ count, ledger, image }, resource) =>
      Array.from({ length: resource === 0 ? count - 1 : count }, (_, i) => ({
        ...(resource === 0 ? {} : { after: ['source'] }),
        name: `s${String(resource)}-${String(i)}`,
        run: withLedger(ledger.at, `sleep ${String(options.taskSeconds)}; echo ${String(i)} > result`),
        ...(image === undefined ? {} : { image }),
        memory: '64Mi',
        outputs: ['result'],
        lane: [resource, i] as const,
      })),
    )
    tasks.unshift(source)
    const world = await makeWorld(
      { post: (path: string, body?: unknown) => programs.post(path, body) },
      {
        name: 'reach',
        tasks,
        cores: shares.map(({ count }) => count),
        places: shares.map(({ place }) => place),
        connections: shares.flatMap(({ connections = [] }) => connections),
      },
    )
    for (let number = 1; number <= options.rounds; number++) {
      const run = `reach-${String(number)}`
      const violations: string[] = []
      const began = performance.now()
      await programs.post('/execution-runs/', { id: run, schedulePlanId: world.planId, mode: 'real' })
      const count = async (status: string): Promise<number> =>
        (await programs.get(`/execution-runs/${run}/activities/?pageSize=1&status=${status}`)).total as number
      const wanted = Math.max(options.least ?? 0, Math.floor(tasks.length * (0.5 + random() * 0.5)))
      const inFlight = await until('tasks in flight', 120, async () => {
        const now = (await count('running')) + (await count('queued')) + (await count('preparing'))
        return now >= wanted ? now : undefined
      })
      const afterMs = Math.floor(random() * 2_000)
      await pause(afterMs)
      await Promise.all([programs.killWorker(), programs.killDaemon()])
      await programs.startDaemon()
      await programs.startWorker()
      const status = await until(`the end of ${run}`, 600, async () => {
        const answer = await programs.call('GET', `/execution-runs/${run}/`)
        return answer.status === 200 && ['completed', 'failed', 'cancelled'].includes(answer.body.run.status)
          ? String(answer.body.run.status)
          : undefined
      })
      if (status !== 'completed') violations.push(`${run} is ${status}`)
      const record = await recordOf({ get: (path: string) => programs.get(path) }, run)
      violations.push(...violationsOf(record, { dependencies: dependenciesOf(world) }))
      const transfers = await allOf(
        { get: (path: string) => programs.get(path) },
        `/execution-runs/${run}/data-transfers/`,
      )
      violations.push(
        ...transferViolations(
          world,
          transfers,
          new Map([
            [
              'source',
              new Map([
                ['data', sourceBytes],
                ['one', 2],
              ]),
            ],
          ]),
        ),
      )
      for (const [
        resource,
        {
          ledger: { seen },
        },
      ] of shares.entries()) {
        const names = tasks
          .filter(({ lane }) => lane?.[0] === resource)
          .map(({ name }) => world.activityId(name))
        violations.push(
          ...ledgerViolations(readLedger(seen), run, names, Infinity).map(
            (violation) => `${seen}: ${violation}`,
          ),
        )
      }
      rounds.push({ number, afterMs, inFlight, seconds: (performance.now() - began) / 1_000, violations })
      options.say?.(
        `round ${String(number)}: ${String(inFlight)} of ${String(tasks.length)} in flight, killed ` +
          `${String(afterMs)} ms later, ${((performance.now() - began) / 1_000).toFixed(1)} s, ` +
          (violations.length === 0 ? 'fine' : violations.slice(0, 5).join('; ')),
      )
    }
    return rounds
  } finally {
    await programs.stop()
    await Promise.all(started.map((site) => site.stop()))
    removeFolder(dataDir)
  }
}
