import { z } from 'zod'
import { containerEngines } from '../drivers/runtime/container/driver.ts'
import type { Capability, ContainerRequest } from '../drivers/runtime/contract/driver.ts'
import { memoryLimits, type MemoryLimit } from '../drivers/runtime/contract/cgroups.ts'
import { defaultMemoryBytes } from '../domains/workflow-definitions/quantities.ts'
import { builtDrivers, kindNamed, kindOf, type KindName } from '../drivers/runtime/registry.ts'
import type { Problem } from '../refusal.ts'
import { isFields } from '../json-object.ts'
import { queueOfHost } from '../task-queues.ts'

const Configuration = z.record(z.string(), z.unknown())
export const SnapshotRuntime = z.looseObject({
  id: z.string(),
  driver: z.string(),
  configuration: Configuration.optional(),
})
export const SnapshotBinding = z.looseObject({
  resourceId: z.string(),
  runtimeId: z.string(),
  configuration: Configuration.optional(),
})
export const SnapshotResource = z.looseObject({
  id: z.string(),
  pricePerSecond: z.number(),
  providerId: z.string().default(''),
  type: z.string().default(''),
  executionTarget: z.string().default('batch'),
  cpuCores: z.number().default(0),
  metadata: Configuration.optional(),
})

/** The part of a run's snapshot that decides where its tasks run. */
export interface SiteFacts {
  /** The host that accepted the run. */
  hostId: string
  runtimes: readonly z.output<typeof SnapshotRuntime>[]
  resources: readonly z.output<typeof SnapshotResource>[]
  runtimeBindings: readonly z.output<typeof SnapshotBinding>[]
  /** From it the run's names outside are made, those of its folders too. */
  effectKey?: string
  /** The cloud instances that the run uses now, by capacity target. */
  machines?: readonly { targetId: string; instanceId: string }[] | undefined
}

/** The place of a task: one executor, one driver, one record of starts, per site and run. */
export interface Place {
  /**
   * `rehearsal`, `local@<host>`, `ssh/<connection>`, `slurm/<runtime>`, `kubernetes/<runtime>`,
   * `serverless/<runtime>` or `cloud/<target>`.
   */
  site: string
  kind: KindName
  /** The connection to it; absent: this machine. */
  connectionId?: string
  /** The cloud instance that the run uses there; absent: it has none now. */
  machine?: string
  /** Machine whose files and commands the site uses where it is reached without a connection. */
  host?: string
  /** The runtime's, overridden by the binding's own keys. */
  configuration: Readonly<Record<string, unknown>>
  /** Partition that the binding itself names. */
  partition?: string
}

/** The site that starts no process: for rehearsals and measurements of the engine itself. */
export const rehearsalSite = 'rehearsal'

const text = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' ? value : undefined

/**
 * The place of tasks of a runtime and a resource, for one run, computed once per pair. An unknown
 * runtime rehearses: admission refuses it before a run is stored.
 */
export const placer = (facts: SiteFacts): ((runtimeId: string, resourceId: string) => Place) => {
  const runtimes = new Map(facts.runtimes.map((runtime) => [runtime.id, runtime]))
  const pair = (runtimeId: string, resourceId: string): string => JSON.stringify([runtimeId, resourceId])
  const bindings = new Map(
    facts.runtimeBindings.map((binding) => [
      pair(binding.runtimeId, binding.resourceId),
      binding.configuration,
    ]),
  )
  const places = new Map<string, Place>()
  const machines = new Map(facts.machines?.map(({ targetId, instanceId }) => [targetId, instanceId]))
  const find = (runtimeId: string, resourceId: string): Place => {
    const key = pair(runtimeId, resourceId)
    const runtime = runtimes.get(runtimeId)
    const configuration = { ...runtime?.configuration, ...bindings.get(key) }
    if (runtime === undefined || configuration['launch'] === 'none')
      return { site: rehearsalSite, kind: 'rehearsal', configuration }
    const connectionId = text(configuration['connectionId'])
    const kind: KindName = builtDrivers.has(runtime.driver) ? (runtime.driver as KindName) : 'local'
    const { connection, hasPartitions, onMachines, siteOf } = kindOf(kind)
    const machine = onMachines === true ? machines.get(resourceId) : undefined
    const host = text(configuration['hostId']) ?? facts.hostId
    const partition = hasPartitions ? text(bindings.get(key)?.['partition']) : undefined
    const isHere = connection === undefined || (connection.optional && connectionId === undefined)
    return {
      site: siteOf({ runtimeId, resourceId, connectionId, host }),
      kind,
      ...(isHere ? { host } : connectionId === undefined ? {} : { connectionId }),
      ...(partition === undefined ? {} : { partition }),
      ...(machine === undefined ? {} : { machine }),
      configuration,
    }
  }
  return (runtimeId, resourceId) => {
    const key = pair(runtimeId, resourceId)
    let place = places.get(key)
    if (place === undefined) places.set(key, (place = find(runtimeId, resourceId)))
    return place
  }
}

/** One answer of `placer`. */
export const placeOf = (facts: SiteFacts, runtimeId: string, resourceId: string): Place =>
  placer(facts)(runtimeId, resourceId)

/** A host of the service, as a place. */
export const ownPlace = (host: string): Place => ({
  ...{ site: `local@${host}`, kind: 'local', host, configuration: {} },
})

/** Host of a machine's files and cores, as `task_executions.host_id` and the leases have it. */
export const machineHost = (instanceId: string): string => `machine:${instanceId}`

/** Whether runs get machines of their own at a place. */
export const runsOnMachines = ({ kind }: Place): boolean => kindOf(kind).onMachines === true

/** The places of all pairs of runtime and resource that a run uses, by site. */
export const placesOf = (
  facts: SiteFacts,
  used: readonly { runtimeId: string; resourceId: string }[],
): Map<string, Place> => {
  const places = new Map<string, Place>()
  const placed = placer(facts)
  for (const { runtimeId, resourceId } of used) {
    const place = placed(runtimeId, resourceId)
    if (!places.has(place.site)) places.set(place.site, place)
  }
  return places
}

/**
 * The queue that a site's executor polls. A site that uses a machine's processes, files or commands
 * runs on that machine. So does every other site of the same run, because data moves between them
 * through it. All other sites may run on any machine.
 */
export const taskQueueOf = (place: Place, all: Iterable<Place>, sharedQueue: string): string => {
  const host = place.host ?? [...all].map((other) => other.host).find((other) => other !== undefined)
  return queueOfHost(sharedQueue, place.site === rehearsalSite ? undefined : host)
}

/**
 * The settings for a site's scheduler besides the amounts: the runtime's, overridden by the
 * partition that the resource is, then by the binding, then by the activity's own `scheduling`.
 */
export const schedulingOf = (
  place: Place,
  resource: z.output<typeof SnapshotResource> | undefined,
  activity: Readonly<Record<string, unknown>>,
): Record<string, unknown> => {
  const partition =
    text(resource?.metadata?.['partition']) ??
    (resource?.type === 'hpc_partition' ? text(resource.providerId) : undefined)
  const scheduling = activity['scheduling']
  return {
    ...place.configuration,
    ...(partition === undefined ? {} : { partition }),
    ...(isFields(scheduling) ? scheduling : {}),
  }
}

/**
 * Whether activities with an image run in that image there. Elsewhere the image only describes how
 * a person would build the site's own programs.
 */
export const runsContainers = ({ kind, configuration }: Place): boolean => {
  const { containers } = kindOf(kind)
  return (
    containers === 'always' ||
    (containers === 'configured' && text(configuration['containerRuntime']) !== undefined)
  )
}

/** Whether activities without an image run in one too, that the driver of the place chooses. */
export const isAlwaysInImage = ({ kind }: Place): boolean => kindOf(kind).containers === 'always'

/**
 * Whether tasks of a place are processes of this machine, whose runtime has no settings that could
 * be wrong.
 */
export const isOwnMachine = ({ kind }: Place): boolean => kindOf(kind).open === undefined

/**
 * Image, engine and limits of an activity at a place; undefined where it runs in the site's own
 * system. `scope`: the run, in letters and digits.
 */
export const containerOf = (
  place: Place,
  image: string | undefined,
  activity: Readonly<Record<string, unknown>>,
  scope: string,
): ContainerRequest | undefined => {
  if (image === undefined || image === '' || !runsContainers(place)) return undefined
  const {
    containerRuntime: engine,
    containerHost: host,
    containerMounts: mounts,
  } = ContainerSettings.parse(place.configuration)
  const { network, reuse } = ContainerOptions.parse(activity['container'])
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
  containerMounts: z
    .array(z.string().regex(/^\/./, 'must be an absolute path of the host, with or without :ro'))
    .max(100)
    .optional(),
})
/** How memory limits are enforced, in a runtime's configuration. */
const MemorySettings = z.object({
  memoryLimit: z.enum(memoryLimits, `must be one of ${memoryLimits.join(', ')}`).optional(),
})

/**
 * How a task's memory limit is enforced: by the runtime's setting, else by the best way that the
 * site has. On this machine a task without a limit of its author (16 MiB by the contract) has none:
 * most programs exceed it.
 */
export const memoryLimitOf = (
  { configuration, kind }: Place,
  memoryBytes: number,
): { memoryLimit?: MemoryLimit } => {
  const { data } = MemorySettings.safeParse(configuration)
  if (data?.memoryLimit !== undefined) return { memoryLimit: data.memoryLimit }
  return !kindOf(kind).holdsDefaultMemory && memoryBytes === defaultMemoryBytes ? { memoryLimit: 'none' } : {}
}

/** `container` of an activity's metadata. */
const ContainerOptions = z
  .object({ network: z.boolean().catch(false), reuse: z.boolean().catch(false) })
  .catch({ network: false, reuse: false })

/** An activity's demands on a runtime beyond a processor and memory. */
export interface Needs {
  activityId: string
  runtimeId: string
  resourceId: string
  gpus: number
  image: string | undefined
  timeoutSeconds: number
  memoryBytes: number
}

/**
 * The faults of a configuration of a site that needs more than a connection, and the demands of an
 * activity that it cannot meet.
 */
const configurationProblems = (
  place: Place,
  { gpus, image, timeoutSeconds, memoryBytes }: Needs,
): Problem[] => {
  const amounts = { gpus, timeoutSeconds, memoryBytes }
  const wanted = { ...amounts, ...(image === undefined || image === '' ? {} : { image }) }
  const { problems: ofKind } = kindOf(place.kind)
  if (ofKind !== undefined) return ofKind(place.configuration, wanted)
  const problems = [ContainerSettings, MemorySettings].flatMap(
    (settings) => settings.safeParse(place.configuration).error?.issues ?? [],
  )
  return problems.map(({ path, message }) => ({ path: ['configuration', ...path].join('.'), message }))
}

/** The capabilities that an activity needs and its runtime has not, or does not declare. */
const capabilityProblems = (
  runtime: z.output<typeof SnapshotRuntime>,
  place: Place,
  { activityId, gpus, image }: Needs,
): Problem[] => {
  const declared = (runtime['capabilities'] ?? {}) as Record<string, unknown>
  const inContainer = image !== undefined && image !== '' && runsContainers(place)
  const demanded: Capability[] = [
    ...(gpus > 0 ? (['gpu'] as const) : []),
    ...(inContainer ? (['container'] as const) : []),
  ]
  return demanded.flatMap((name) => {
    const has = kindNamed(runtime.driver)?.capabilities[name] ?? false
    if (has && declared[name] === true) return []
    const message = has
      ? `is not declared, and activity ${JSON.stringify(activityId)} needs it; set it to true ` +
        'if the site has it, or plan the activity elsewhere'
      : `is needed by activity ${JSON.stringify(activityId)} and the ${runtime.driver} driver ` +
        'does not have it; plan the activity elsewhere'
    return { path: `runtimes.${runtime.id}.capabilities.${name}`, message }
  })
}

/** Why a place cannot be reached by its connection, whose type is `type`. */
const connectionProblems = (
  { id, driver }: z.output<typeof SnapshotRuntime>,
  { kind, connectionId }: Place,
  resourceId: string,
  type: string | undefined,
): Problem[] => {
  const { connection } = kindOf(kind)
  const problem = (message: string): Problem[] => [
    { path: `runtimes.${id}.configuration.connectionId`, message },
  ]
  if (connectionId === undefined)
    return connection?.optional === false
      ? problem(
          `is missing: a runtime of driver ${driver}, or its binding to ${JSON.stringify(resourceId)}, ` +
            'names the connection to use',
        )
      : []
  if (type === undefined)
    return problem(
      `is ${JSON.stringify(connectionId)}, which is no connection; save it with its environment or by ` +
        'PUT /environment-connections/',
    )
  const needed = connection?.type
  if (needed === undefined || type === needed || (needed === 'ssh' && type === 'local')) return []
  return problem(
    `is ${JSON.stringify(connectionId)}, a connection of type ${type}; a runtime of driver ${driver} needs ` +
      `one of type ${needed}`,
  )
}

/**
 * Reasons why the sites of a plan cannot meet its activities' demands: one for each runtime and
 * capability, by name; a runtime without the connection it needs; two machines whose files would
 * have to meet. `connections`: their types by id.
 */
export const siteProblems = (
  facts: SiteFacts,
  needs: readonly Needs[],
  connections: ReadonlyMap<string, string>,
): Problem[] => {
  const problems = new Map<string, Problem>()
  const report = (problem: Problem): void => {
    const key = problem.path + problem.message
    if (!problems.has(key)) problems.set(key, problem)
  }
  const hosts = new Set<string>()
  const placed = placer(facts)
  const runtimes = new Map(facts.runtimes.map((runtime) => [runtime.id, runtime]))
  for (const need of needs) {
    const { activityId, runtimeId, resourceId } = need
    const runtime = runtimes.get(runtimeId)
    const place = placed(runtimeId, resourceId)
    if (runtime === undefined || place.site === rehearsalSite) continue
    for (const { path, message } of configurationProblems(place, need)) {
      const of = path.startsWith('configuration') ? `runtimes.${runtimeId}` : `activities.${activityId}`
      report({ path: `${of}.${path}`, message })
    }
    const type = place.connectionId === undefined ? undefined : connections.get(place.connectionId)
    capabilityProblems(runtime, place, need).forEach(report)
    connectionProblems(runtime, place, resourceId, type).forEach(report)
    if (place.host !== undefined) hosts.add(place.host)
    if (type === 'local') hosts.add(facts.hostId)
  }
  if (hosts.size > 1)
    report({
      path: 'runtimes',
      message:
        `use the files of several machines (${[...hosts].join(', ')}) without a connection; ` +
        'reach all but one through a connection of type ssh',
    })
  return [...problems.values()]
}
