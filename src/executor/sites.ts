import { z } from 'zod'
import { containerEngines } from '../drivers/runtime/container.ts'
import type { Capability, ContainerRequest } from '../drivers/runtime/driver.ts'
import { memoryLimits, type MemoryLimit } from '../drivers/runtime/cgroups.ts'
import { defaultMemoryBytes } from '../domains/workflow-definitions/quantities.ts'
import { driverCapabilities } from '../drivers/runtime/registry.ts'
import { kubernetesProblems } from '../drivers/runtime/kubernetes-settings.ts'
import { serverlessProblems } from '../drivers/runtime/serverless-configuration.ts'
import type { Problem } from '../refusal.ts'

const Configuration = z.record(z.string(), z.unknown())
export const SnapshotRuntime = z.looseObject({ id: z.string(), driver: z.string(), configuration: Configuration.optional() })
export const SnapshotBinding = z.looseObject({ resourceId: z.string(), runtimeId: z.string(), configuration: Configuration.optional() })
export const SnapshotResource = z.looseObject({
  id: z.string(),
  pricePerSecond: z.number(),
  providerId: z.string().default(''),
  type: z.string().default(''),
  executionTarget: z.string().default('batch'),
  cpuCores: z.number().default(0),
  metadata: Configuration.optional(),
})

/** What of a run's snapshot decides where its tasks run. */
export interface SiteFacts {
  /** The host that accepted the run. */
  hostId: string
  runtimes: readonly z.output<typeof SnapshotRuntime>[]
  resources: readonly z.output<typeof SnapshotResource>[]
  runtimeBindings: readonly z.output<typeof SnapshotBinding>[]
}

/** Where a task runs: one executor, one driver, one record of what was started, per site and run. */
export interface Place {
  /** `rehearsal`, `local@<host>`, `ssh/<connection>`, `slurm/<runtime>`, `kubernetes/<runtime>` or `serverless/<runtime>`. */
  site: string
  kind: 'rehearsal' | 'local' | 'ssh' | 'slurm' | 'kubernetes' | 'serverless'
  /** How it is reached; absent: this machine. */
  connectionId?: string
  /** Machine whose files and commands the site uses where it is reached without a connection. */
  host?: string
  /** Of the runtime, with the binding's own keys over it. */
  configuration: Readonly<Record<string, unknown>>
  /** Partition that the binding itself names. */
  partition?: string
}

/** The site that starts no process: rehearsal and the figures of the engine itself. */
export const rehearsalSite = 'rehearsal'

const text = (value: unknown): string | undefined => (typeof value === 'string' && value !== '' ? value : undefined)

/**
 * Where tasks of a runtime and a resource run: the question of one run, answered once per pair. An unknown runtime rehearses: admission
 * refuses it before a run is stored.
 */
export const placer = (facts: SiteFacts): ((runtimeId: string, resourceId: string) => Place) => {
  const runtimes = new Map(facts.runtimes.map((runtime) => [runtime.id, runtime]))
  const pair = (runtimeId: string, resourceId: string): string => JSON.stringify([runtimeId, resourceId])
  const bindings = new Map(facts.runtimeBindings.map((binding) => [pair(binding.runtimeId, binding.resourceId), binding.configuration]))
  const places = new Map<string, Place>()
  const find = (runtimeId: string, key: string): Place => {
    const runtime = runtimes.get(runtimeId)
    const configuration = { ...runtime?.configuration, ...bindings.get(key) }
    if (runtime === undefined || configuration['launch'] === 'none') return { site: rehearsalSite, kind: 'rehearsal', configuration }
    const connectionId = text(configuration['connectionId'])
    const reached = connectionId === undefined ? {} : { connectionId }
    if (runtime.driver === 'ssh') return { site: `ssh/${connectionId ?? ''}`, kind: 'ssh', ...reached, configuration }
    if (runtime.driver === 'kubernetes') return { site: `kubernetes/${runtime.id}`, kind: 'kubernetes', ...reached, configuration }
    const host = text(configuration['hostId']) ?? facts.hostId
    const partition = text(bindings.get(key)?.['partition'])
    const named = partition === undefined ? {} : { partition }
    if (runtime.driver === 'slurm')
      return { site: `slurm/${runtime.id}`, kind: 'slurm', ...(connectionId === undefined ? { host } : reached), ...named, configuration }
    // Calls go out from this machine, and what they bring back lies here.
    if (runtime.driver === 'serverless') return { site: `serverless/${runtime.id}`, kind: 'serverless', host, configuration }
    return { site: `local@${host}`, kind: 'local', host, configuration }
  }
  return (runtimeId, resourceId) => {
    const key = pair(runtimeId, resourceId)
    let place = places.get(key)
    if (place === undefined) places.set(key, (place = find(runtimeId, key)))
    return place
  }
}

/** One answer of `placer`. */
export const placeOf = (facts: SiteFacts, runtimeId: string, resourceId: string): Place => placer(facts)(runtimeId, resourceId)

/** The places of all pairs of runtime and resource that a run uses, by site. */
export const placesOf = (facts: SiteFacts, used: readonly { runtimeId: string; resourceId: string }[]): Map<string, Place> => {
  const places = new Map<string, Place>()
  const placed = placer(facts)
  for (const { runtimeId, resourceId } of used) {
    const place = placed(runtimeId, resourceId)
    if (!places.has(place.site)) places.set(place.site, place)
  }
  return places
}

/**
 * The queue that a site's executor polls. What uses a machine's processes, files or commands runs on that machine; so does every other
 * site of the same run, because data goes between them through it. Everything else is anybody's.
 */
export const taskQueueOf = (place: Place, all: Iterable<Place>, sharedQueue: string): string => {
  const host = place.host ?? [...all].map((other) => other.host).find((other) => other !== undefined)
  return host === undefined || place.kind === 'rehearsal' ? sharedQueue : `${sharedQueue}@${host}`
}

/**
 * What a site's scheduler is told besides the amounts: the runtime's words, over them the partition that the resource is, over it what the
 * binding says, over all the activity's own `scheduling`.
 */
export const schedulingOf = (
  place: Place,
  resource: z.output<typeof SnapshotResource> | undefined,
  activity: Readonly<Record<string, unknown>>,
): Record<string, unknown> => {
  const partition = text(resource?.metadata?.['partition']) ?? (resource?.type === 'hpc_partition' ? text(resource.providerId) : undefined)
  const scheduling = activity['scheduling']
  return {
    ...place.configuration,
    ...(partition === undefined ? {} : { partition }),
    ...(typeof scheduling === 'object' && scheduling !== null && !Array.isArray(scheduling) ? scheduling : {}),
  }
}

/** Connection that a site is reached by; a Slurm site may do without. */
const connectionTypeOf: Partial<Record<Place['kind'], string>> = { ssh: 'ssh', slurm: 'ssh', kubernetes: 'kubernetes' }

/** Whether activities with an image run in it there. Elsewhere the image is what a person would build the site's own programs from. */
export const runsContainers = ({ kind, configuration }: Place): boolean =>
  kind === 'kubernetes' || (['local', 'ssh', 'slurm'].includes(kind) && text(configuration['containerRuntime']) !== undefined)

/** Image, engine and allowances of an activity at a place; undefined where it runs in the site's own system. `scope`: the run, in letters and digits. */
export const containerOf = (
  place: Place,
  image: string | undefined,
  activity: Readonly<Record<string, unknown>>,
  scope: string,
): ContainerRequest | undefined => {
  if (image === undefined || image === '' || !runsContainers(place)) return undefined
  const { containerRuntime: engine, containerHost: host, containerMounts: mounts } = ContainerSettings.parse(place.configuration)
  const { network, reuse } = ContainerWishes.parse(activity['container'])
  return {
    ...{ image, network, reuse, scope },
    ...(engine === undefined ? {} : { engine }),
    ...(host === undefined ? {} : { host }),
    ...(mounts === undefined ? {} : { mounts }),
  }
}
/** How a site runs containers, in its runtime's configuration. */
const ContainerSettings = z.object({
  containerRuntime: z.enum(containerEngines, `must be one of ${containerEngines.join(', ')}`).optional(),
  containerHost: z
    .string()
    .regex(/^unix:\/\/\/./, 'must be unix:// and the absolute path of the engine’s socket')
    .optional(),
  containerMounts: z.array(z.string().regex(/^\/./, 'must be an absolute path of the host, with or without :ro')).max(100).optional(),
})
/** What is to hold tasks to their memory, in a runtime's configuration. */
const MemorySettings = z.object({ memoryLimit: z.enum(memoryLimits, `must be one of ${memoryLimits.join(', ')}`).optional() })

/**
 * What is to hold a task to its memory: what its runtime says, else the best that the site has. On this machine nothing holds a task whose
 * author gave no limit (16 MiB by the contract): most programs exceed it.
 */
export const memoryLimitOf = ({ configuration, kind }: Place, memoryBytes: number): { memoryLimit?: MemoryLimit } => {
  const { data } = MemorySettings.safeParse(configuration)
  if (data?.memoryLimit !== undefined) return { memoryLimit: data.memoryLimit }
  return kind === 'local' && memoryBytes === defaultMemoryBytes ? { memoryLimit: 'none' } : {}
}

/** `container` of an activity's metadata. */
const ContainerWishes = z
  .object({ network: z.boolean().catch(false), reuse: z.boolean().catch(false) })
  .catch({ network: false, reuse: false })

/** What an activity demands of a runtime beyond a processor and memory. */
export interface Needs {
  activityId: string
  runtimeId: string
  resourceId: string
  gpus: number
  image: string | undefined
  timeoutSeconds: number
  memoryBytes: number
}

/** Runtimes that can run a task today; the others are part of the API and answer 503 before anything is stored. */
export const builtDrivers: ReadonlySet<string> = new Set(Object.keys(driverCapabilities))

/** What is wrong with the configuration of a site that takes more than a connection, and what of an activity is beyond it. */
const configurationProblems = (place: Place, demand: Omit<Needs, 'activityId' | 'runtimeId' | 'resourceId'>): Problem[] => {
  const { image, ...amounts } = demand
  const wanted = { ...amounts, ...(image === undefined || image === '' ? {} : { image }) }
  if (place.kind === 'serverless') return serverlessProblems(wanted, place.configuration).filter(({ severity }) => severity === 'error')
  if (place.kind === 'kubernetes') return kubernetesProblems(place.configuration).map((message) => ({ path: 'configuration', message }))
  const problems = [ContainerSettings, MemorySettings].flatMap((settings) => settings.safeParse(place.configuration).error?.issues ?? [])
  return problems.map(({ path, message }) => ({ path: ['configuration', ...path].join('.'), message }))
}

/**
 * Reasons why the sites of a plan cannot do what its activities demand: one for each runtime and capability, by name; a runtime without
 * the connection it needs; two machines whose files would have to meet.
 */
export const siteProblems = (facts: SiteFacts, needs: readonly Needs[], connections: ReadonlyMap<string, string>): Problem[] => {
  const problems: Problem[] = []
  const said = new Set<string>()
  const say = (path: string, message: string): void => {
    if (said.has(path + message)) return
    said.add(path + message)
    problems.push({ path, message })
  }
  const hosts = new Map<string, string>()
  const placed = placer(facts)
  const runtimes = new Map(facts.runtimes.map((runtime) => [runtime.id, runtime]))
  for (const { activityId, runtimeId, resourceId, ...demand } of needs) {
    const runtime = runtimes.get(runtimeId)
    const place = placed(runtimeId, resourceId)
    if (runtime === undefined || place.kind === 'rehearsal') continue
    const capabilities = (runtime['capabilities'] ?? {}) as Record<string, unknown>
    const inContainer = demand.image !== undefined && demand.image !== '' && runsContainers(place)
    const demanded: Capability[] = [...(demand.gpus > 0 ? (['gpu'] as const) : []), ...(inContainer ? (['container'] as const) : [])]
    for (const { path, message } of configurationProblems(place, demand))
      say(path.startsWith('configuration') ? `runtimes.${runtimeId}.${path}` : `activities.${activityId}.${path}`, message)
    for (const name of demanded) {
      const has = driverCapabilities[runtime.driver]?.[name] ?? false
      if (!has || capabilities[name] !== true)
        say(
          `runtimes.${runtimeId}.capabilities.${name}`,
          has
            ? `is not declared, and activity ${JSON.stringify(activityId)} needs it; set it to true if the site has it, or plan the activity elsewhere`
            : `is needed by activity ${JSON.stringify(activityId)} and the ${runtime.driver} driver does not have it; plan the activity elsewhere`,
        )
    }
    if (place.host !== undefined) hosts.set(place.host, runtimeId)
    const needed = connectionTypeOf[place.kind]
    if (needed !== undefined && place.connectionId === undefined && place.kind !== 'slurm')
      say(
        `runtimes.${runtimeId}.configuration.connectionId`,
        `is missing: a runtime of driver ${runtime.driver}, or its binding to ${JSON.stringify(resourceId)}, names the connection to use`,
      )
    const type = place.connectionId === undefined ? undefined : connections.get(place.connectionId)
    if (place.connectionId !== undefined && type === undefined)
      say(
        `runtimes.${runtimeId}.configuration.connectionId`,
        `is ${JSON.stringify(place.connectionId)}, which is no connection; save it with its environment or by PUT /environment-connections/`,
      )
    else if (type !== undefined && needed !== undefined && type !== needed && !(needed === 'ssh' && type === 'local'))
      say(
        `runtimes.${runtimeId}.configuration.connectionId`,
        `is ${JSON.stringify(place.connectionId)}, a connection of type ${type}; a runtime of driver ${runtime.driver} needs one of type ${needed}`,
      )
    if (place.connectionId === undefined || type !== 'local') continue
    hosts.set(facts.hostId, runtimeId)
  }
  if (hosts.size > 1)
    say(
      'runtimes',
      `use the files of several machines (${[...hosts.keys()].join(', ')}) without a connection; reach all but one through a connection of type ssh`,
    )
  return problems
}
