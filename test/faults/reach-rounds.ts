import { writeFileSync } from 'node:fs'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { startSlurm } from '../sites/slurm.ts'
import { startSsh } from '../sites/ssh.ts'
import { violationsOf } from '../execution-runs/checker.ts'
import { connectionTo, onCluster, onHost } from '../support/reach.ts'
import { dependenciesOf, makeWorld, recordOf, type WorldTask } from '../support/worlds.ts'
import { ledgerFaults, readLedger, withLedger } from './ledger.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, randomOf } from './rounds.ts'

export interface ReachRound {
  number: number
  afterMs: number
  seconds: number
  /** Tasks that the record showed at their sites when the blow came. */
  inFlight: number
  faults: string[]
}

/**
 * Worker and daemon killed with tasks in flight on all sites at once: this machine, three SSH hosts, a Slurm cluster. Each task writes into
 * a ledger of its own site when it starts and when it ends.
 */
export const playReachRounds = async (options: {
  rounds: number
  seed: number
  /** In flight at once: per SSH host, and on the cluster. */
  perHost: number
  onSlurm: number
  taskSeconds: number
  say?: (line: string) => void
}): Promise<ReachRound[]> => {
  const random = randomOf(options.seed)
  const dataDir = dataFolder()
  const keyFile = join(dataDir, 'key')
  writeFileSync(keyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  const programs = openPrograms(dataDir, {
    environment: { SERVICE_VAULT_KEY_FILE: keyFile, SERVICE_SEED_ROOT: dataDir },
  })
  const [ssh, slurm] = await Promise.all([startSsh({ hosts: 3 }), startSlurm({ nodes: 2 })])
  const rounds: ReachRound[] = []
  try {
    await programs.startDaemon()
    programs.startWorker()
    for (const [id, { privateKey }] of [
      ['hosts', ssh.key],
      ['cluster', slurm.key],
    ] as const)
      await programs.post('/ssh-keys/import/', { id, privateKey })
    const localLedger = join(dataDir, 'ledger')
    // The path at the site, and where this machine sees it.
    const ledgers = [
      { at: localLedger, seen: localLedger },
      ...ssh.hosts.map((host) => ({ at: `${host.home}/ledger`, seen: host.see(`${host.home}/ledger`) })),
      { at: `${slurm.login.home}/ledger`, seen: slurm.login.see(`${slurm.login.home}/ledger`) },
    ]
    const counts = [2, ...ssh.hosts.map(() => options.perHost), options.onSlurm]
    const tasks: WorldTask[] = counts.flatMap((count, resource) =>
      Array.from({ length: count }, (_, i) => ({
        name: `s${String(resource)}-${String(i)}`,
        run: withLedger(ledgers[resource]?.at ?? '', `sleep ${String(options.taskSeconds)}; echo ${String(i)} > result`),
        outputs: ['result'],
        lane: [resource, i] as const,
      })),
    )
    const world = await makeWorld(
      { post: (path: string, body?: unknown) => programs.post(path, body) },
      {
        name: 'reach',
        tasks,
        cores: counts,
        places: [undefined, ...ssh.hosts.map((_, i) => onHost(`h${String(i + 1)}`)), onCluster('login')],
        connections: [
          ...ssh.hosts.map((host, i) => connectionTo(`h${String(i + 1)}`, host, 'hosts')),
          connectionTo('login', slurm.login, 'cluster'),
        ],
      },
    )
    for (let number = 1; number <= options.rounds; number++) {
      const run = `reach-${String(number)}`
      const faults: string[] = []
      const began = performance.now()
      await programs.post('/execution-runs/', { id: run, schedulePlanId: world.planId, mode: 'real' })
      const count = async (status: string): Promise<number> =>
        (await programs.get(`/execution-runs/${run}/activities/?pageSize=1&status=${status}`)).total as number
      const wanted = Math.floor(tasks.length * (0.5 + random() * 0.5))
      const inFlight = await until('tasks in flight', 120, async () => {
        const now = (await count('running')) + (await count('queued')) + (await count('preparing'))
        return now >= wanted ? now : undefined
      })
      const afterMs = Math.floor(random() * 2_000)
      await pause(afterMs)
      await Promise.all([programs.killWorker(), programs.killDaemon()])
      await programs.startDaemon()
      programs.startWorker()
      const status = await until(`the end of ${run}`, 600, async () => {
        const answer = await programs.call('GET', `/execution-runs/${run}/`)
        return answer.status === 200 && ['completed', 'failed', 'cancelled'].includes(answer.body.run.status)
          ? String(answer.body.run.status)
          : undefined
      })
      if (status !== 'completed') faults.push(`${run} is ${status}`)
      const record = await recordOf({ get: (path: string) => programs.get(path) }, run)
      faults.push(...violationsOf(record, { dependencies: dependenciesOf(world) }))
      for (const [resource, { seen }] of ledgers.entries()) {
        const names = tasks.filter(({ lane }) => lane?.[0] === resource).map(({ name }) => world.activityId(name))
        faults.push(...ledgerFaults(readLedger(seen), run, names, Infinity).map((fault) => `${seen}: ${fault}`))
      }
      rounds.push({ number, afterMs, inFlight, seconds: (performance.now() - began) / 1_000, faults })
      options.say?.(
        `round ${String(number)}: ${String(inFlight)} of ${String(tasks.length)} in flight, killed ${String(afterMs)} ms later, ${((performance.now() - began) / 1_000).toFixed(1)} s, ${faults.length === 0 ? 'fine' : faults.slice(0, 5).join('; ')}`,
      )
    }
    return rounds
  } finally {
    await programs.stop()
    await Promise.all([ssh.stop(), slurm.stop()])
    removeFolder(dataDir)
  }
}
