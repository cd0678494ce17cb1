import { randomBytes } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import type { Failures } from '../../bench/tally.ts'
import {
  cloudEnvironment,
  livingMachines,
  machinesOf,
  openClouds,
  withoutPlaybooks,
  type Provider,
} from '../support/cloud.ts'
import { kill } from '../support/kill.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms, randomOf, type Programs } from './rounds.ts'

/** Runs whose machines a provider makes, with one round of failures each: the providers in turn. */

const providers = ['aws', 'gcp'] as const
const providerOf = (round: number): Provider => providers[round % providers.length]!
const ended = ['completed', 'failed', 'cancelled']
const cores = 4

interface World {
  site: CloudSite
  programs: Programs
  series: string
  close(): Promise<void>
}

/** `withWorker`: a worker of its own runs beside the daemon. */
const openWorld = async ({ withWorker = false } = {}): Promise<World> => {
  const dataDir = dataFolder()
  const keyFile = join(dataDir, 'key')
  writeFileSync(keyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  const site = await startCloud({ machines: 'ssh' })
  const programs = openPrograms(dataDir, {
    environment: cloudEnvironment(keyFile),
  })
  const close = async (): Promise<void> => {
    await programs.stop()
    await site.stop()
    removeFolder(dataDir)
  }
  try {
    await programs.startDaemon()
    if (withWorker) await programs.startWorker()
    await openClouds(programs, site, providers)
    await programs.post('/machine-configurations/', { id: 'own', name: 'own' })
    const playbookYaml = [
      '- hosts: all',
      '  gather_facts: false',
      '  tasks:',
      '    - {name: a file, copy: {dest: /home/akoflow/configured, content: "yes"}}',
      '    - {name: takes its time, command: sleep 1}',
      '',
    ].join('\n')
    await programs.post('/machine-configurations/own/versions/', {
      ...{ id: 'own-v1', status: 'published', playbookYaml },
    })
    for (const provider of providers)
      for (const [kind, more] of Object.entries({
        spots: { provisioningMode: 'spot', ...withoutPlaybooks },
        configured: {
          machineConfigurations: [
            ...withoutPlaybooks.machineConfigurations,
            { configurationVersionId: 'own-v1', executionOrder: 1 },
          ],
        },
      })) {
        const id = `${kind}-${provider}`
        await programs.post('/environments/clouds/cloud-capacity-targets/', {
          ...{ id, name: id, ...machinesOf(provider, cores), maximumInstances: 2 },
          ...{ configuration: { pricePerHour: 1 }, ...more },
        })
      }
    await programs.post('/execution-scopes/', {
      ...{ id: 'scope', name: 'scope', networkTopologyId: '', environmentVersionIds: ['clouds-v1'] },
    })
    return { site, programs, series: Date.now().toString(36), close }
  } catch (error) {
    await close()
    throw error
  }
}

/** A workflow of one task on each core, and one task behind them all; its plan has the same id. */
const makePlan = async ({ programs }: World, id: string, run: string, target: string): Promise<void> => {
  const names = Array.from({ length: cores }, (_, core) => `t${String(core)}`)
  const limits = { cpuLimit: '1', memoryLimit: '64Mi' }
  await programs.post('/workflow-definitions/', {
    name: id,
    spec: {
      ...{ namespace: 'tests', image: 'busybox:1.36' },
      activities: [
        ...names.map((name) => ({ ...{ name, run: `${run}; echo ${name} > ${name}` }, ...limits })),
        { ...{ name: 'last', run: `cat ${names.join(' ')}`, dependsOn: names }, ...limits },
      ],
    },
  })
  await programs.post('/schedule-plans/import/', {
    plan: {
      ...{ id, workflowVersionId: `${id}-v1`, executionScopeId: 'scope', algorithm: 'by-hand' },
      assignments: [...names, 'last'].map((activityId, k) => ({
        ...{ activityId, resourceId: target, coreId: `core-${String(k % cores)}`, orderOnResource: k },
      })),
    },
  })
}

/** Waits for the end of a run and of its machines. @returns what is wrong */
const endOf = async (world: World, run: string): Promise<string[]> => {
  const { programs } = world
  // While PostgreSQL is away nothing answers.
  const read = (path: string): Promise<any> => programs.get(path).catch(() => undefined)
  const detail = await until(`the end of ${run}`, 180, async () => {
    const found = await read(`/execution-runs/${run}/?attempts=all`)
    return found !== undefined && ended.includes(found.run.status as string) ? found : undefined
  }).catch(async (error: unknown) => {
    const paths = [
      `/execution-runs/${run}/?attempts=all`,
      '/cloud-operations/',
      '/environments/clouds/cloud-instances/',
    ]
    const facts = await Promise.all(paths.map(read))
    throw new Error(`${(error as Error).message}: ${JSON.stringify(facts, null, 1)}`)
  })
  const violations: string[] = []
  if (detail.run.status !== 'completed')
    violations.push(`${run} is ${String(detail.run.status)}: ${String(detail.run.failureReason)}`)
  for (const { activityId, attempt, status, failureClass } of detail.activities)
    if (status === 'failed' && failureClass !== 'infrastructure')
      violations.push(`attempt ${String(attempt)} of ${String(activityId)} failed as ${String(failureClass)}`)
  await until(`the ends of the machines of ${run}`, 60, () =>
    Promise.resolve(livingMachines(world.site).length === 0),
  ).catch(() => violations.push(`${run} left ${String(livingMachines(world.site).length)} machines`))
  const orphans: unknown[] = await programs.get('/environments/clouds/cloud-orphans/')
  if (orphans.length > 0) violations.push(`${run} left ${String(orphans.length)} orphans`)
  const log = await fetch(`${programs.baseUrl()}/execution-runs/${run}/activities/last/logs/`)
  if ((await log.text()) !== 't0\nt1\nt2\nt3\n') violations.push(`the log of ${run} is not what it wrote`)
  return violations
}

/** A machine that the provider takes back while four activities run that may fail no more than once. */
export const openSpots = async (): Promise<Failures> => {
  const world = await openWorld()
  const { site, programs, series } = world
  return {
    what: 'spot machines taken back under running activities with `maxAttempts: 1`: the run completes elsewhere',
    async play(number) {
      const run = `spots-${series}-${String(number)}`
      const target = `spots-${providerOf(number)}`
      await makePlan(world, run, '[ "$AKOFLOW_ATTEMPT" -gt 1 ] || sleep 600', target)
      await programs.post('/execution-runs/', { id: run, schedulePlanId: run, mode: 'real' })
      await until('all activities to run', 90, async () => {
        const { activities } = await programs.get(`/execution-runs/${run}/`)
        return activities.filter(({ status }: any) => status === 'running').length === cores || undefined
      })
      const [machine] = livingMachines(world.site)
      await pause(randomOf(number + 1)() * 1_000)
      site.faults.takeBack(machine!.id)
      const violations = await endOf(world, run)
      const { instances } = await programs.get(`/execution-runs/${run}/receipt/`)
      if (instances[0]?.releaseReason !== 'lost') violations.push(`${run} was not told of the loss`)
      return { counted: 1, violations }
    },
    close: () => world.close(),
  }
}

const childrenOf = (pid: number): number[] => {
  try {
    const own = readFileSync(`/proc/${String(pid)}/task/${String(pid)}/children`, 'utf8')
    return own.split(' ').filter(Boolean).map(Number)
  } catch {
    return []
  }
}

/** The sandbox of a playbook below a process; undefined while none runs. */
const playOf = (pid: number): number | undefined => {
  for (const child of childrenOf(pid)) {
    if (readFileSync(`/proc/${String(child)}/cmdline`, 'latin1').startsWith('bwrap\0')) return child
    const below = playOf(child)
    if (below !== undefined) return below
  }
  return undefined
}

const victims = ['daemon', 'postgres', 'temporal', 'ansible', 'worker'] as const

/** Kills a process of the service, or the playbook of a machine where one comes to run. */
const strike = async ({ programs }: World, victim: (typeof victims)[number]): Promise<void> => {
  if (victim === 'daemon') {
    await programs.killDaemon()
    await programs.startDaemon()
    return
  }
  if (victim === 'worker') {
    await programs.killWorker()
    await programs.startWorker()
    return
  }
  const pids = await programs.pids()
  if (victim !== 'ansible') return kill(pids[victim])
  const play = await until('a playbook', 60, () => {
    try {
      return Promise.resolve(playOf(pids.daemon) ?? playOf(programs.worker?.child.pid ?? 0))
    } catch {
      // A process ended between two looks.
      return Promise.resolve(undefined)
    }
  })
  kill(play)
}

/**
 * The daemon, PostgreSQL, Temporal, the playbook of a machine and a worker beside the daemon are
 * killed in turn, at a random moment of a run: while its machine is made, configured, used or ended.
 */
export const openCloudKills = async (): Promise<Failures> => {
  const world = await openWorld({ withWorker: true })
  const { programs, series } = world
  return {
    what:
      'deaths of daemon, PostgreSQL, Temporal, ansible, worker at any moment of a run on a machine: the run ' +
      'completes, nothing is left',
    async play(number) {
      const run = `killed-${series}-${String(number)}`
      const victim = victims[number % victims.length]!
      await makePlan(world, run, 'sleep 2', `configured-${providerOf(number)}`)
      await programs.post('/execution-runs/', { id: run, schedulePlanId: run, mode: 'real' })
      // A playbook is killed as soon as it runs.
      if (victim !== 'ansible') await pause(randomOf(number + 1)() * 15_000)
      await strike(world, victim)
      const violations = await endOf(world, run)
      return { counted: 1, violations: violations.map((one) => `${victim} at ${providerOf(number)}: ${one}`) }
    },
    close: () => world.close(),
  }
}
