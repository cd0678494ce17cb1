import { naturally } from '../../natural-order.ts'
import { ranges } from '../../ranges.ts'
import type { GraphActivity } from '../workflow-definitions/graph.ts'
import type { Placed } from '../../simulator/simulate.ts'
import { choicesOf } from '../../schedulers/fit.ts'
import { durationSources } from '../../schedulers/problem.ts'
import type {
  DurationSource,
  PlanningProblem,
  ProblemActivity,
  ProblemLink,
  ProblemResource,
} from '../../schedulers/problem.ts'

/**
 * A workflow by position, as `loadGraph` reads it: control edges with the bytes of the data
 * dependencies that ride on them.
 */
export interface PlannedGraph {
  activities: readonly PlannedActivity[]
  edges: readonly { from: number; to: number; bytes: number }[]
}
export type PlannedActivity = Pick<
  GraphActivity,
  | 'id'
  | 'typeId'
  | 'cpu'
  | 'memoryBytes'
  | 'priority'
  | 'resourceSelector'
  | 'simulation'
  | 'baseRuntimeSeconds'
>

/** The members of a resource document that planning reads (API specification, `resources[]`). */
export interface PlannedResource {
  id: string
  environmentVersionId: string
  type: string
  executionTarget: string
  cpuCores: number
  cpuCapacity: number
  memoryBytes: number
  computeSpeedup: number
  pricePerSecond: number
  bootOverheadSeconds: number
  containerOverheadSeconds: number
  schedulable: boolean
  metadata?: Record<string, unknown> | undefined
}

export interface PlannedLink {
  id: string
  sourceResourceId: string
  targetResourceId: string
  bandwidthBitsPerSecond: number
  latencySeconds: number
  pricePerByte: number
  bidirectional: boolean
  sharingPolicy?: string | undefined
  maxConcurrentTransfers: number
  metadata?: Record<string, unknown> | undefined
}

export interface PlannedProfile {
  activityTypeId: string
  resourceId: string
  runtimeSeconds: number
  modelVersion?: string | undefined
}

/**
 * The duration that an assignment itself gives for its activity. It is read for given plans only.
 */
interface PlannedRuntime {
  executionBaseRuntimeSeconds?: number | undefined
  predictedRuntimeSeconds?: number | undefined
}

/**
 * The durations that an assignment gives. A predicted runtime from the default does not count: it
 * was computed without any given duration.
 */
export const plannedRuntime = (assignment: {
  predictedRuntimeSeconds: number
  durationSource?: string | undefined
  metadata?: Record<string, unknown> | undefined
}): PlannedRuntime => {
  const base = assignment.metadata?.['executionBaseRuntimeSeconds']
  return {
    predictedRuntimeSeconds:
      assignment.durationSource === 'default' ? undefined : assignment.predictedRuntimeSeconds,
    executionBaseRuntimeSeconds: typeof base === 'number' ? base : undefined,
  }
}

/**
 * The profiles that count in a simulation of a plan: those that its predictions were made with.
 * Profiles come, change and go whatever plans there are, and a simulation gives the plan's figures.
 * `profiles`: the present ones; `activities`: of the plan's content, by position like `tasks`.
 */
export const profilesAsPlanned = (
  profiles: readonly PlannedProfile[],
  tasks: readonly {
    resourceId: string
    predictedRuntimeSeconds: number
    durationSource?: string | undefined
  }[],
  activities: readonly Pick<PlannedActivity, 'typeId'>[],
): PlannedProfile[] => {
  const pair = (typeId: string, resourceId: string): string => `${typeId}\0${resourceId}`
  const planned = new Map<string, PlannedProfile | undefined>()
  tasks.forEach(({ resourceId, predictedRuntimeSeconds: runtimeSeconds, durationSource }, position) => {
    // Nothing follows from a base runtime, which comes before a profile, and from a plan of an older
    // version, which has no sources.
    if (durationSource === undefined || durationSource === 'baseRuntime') return
    const activityTypeId = activities[position]!.typeId
    planned.set(
      pair(activityTypeId, resourceId),
      durationSource === 'profile' ? { activityTypeId, resourceId, runtimeSeconds } : undefined,
    )
  })
  return [
    ...profiles.filter(({ activityTypeId, resourceId }) => !planned.has(pair(activityTypeId, resourceId))),
    ...[...planned.values()].filter((profile) => profile !== undefined),
  ]
}

export interface ProblemDocuments {
  graph: PlannedGraph
  /** Every resource of the scope, schedulable or not: unschedulable ones can still forward data. */
  resources: readonly PlannedResource[]
  versions: readonly { id: string; costModel?: string | undefined }[]
  profiles: readonly PlannedProfile[]
  /** Undefined where there is no topology, and so no network. */
  links: readonly PlannedLink[] | undefined
  /**
   * By position of the activity. Given for an existing plan. All its resources count as targets,
   * because the placement is decided.
   */
  runtimes?: readonly PlannedRuntime[] | undefined
  /**
   * By resource: when its machine is there, in seconds from the start; others are there already.
   */
  availability?: ReadonlyMap<string, number> | undefined
}

/**
 * A batch target's own scheduler decides placement and billing inside it, so the target appears as
 * one slot.
 */
const opaqueTypes = new Set(['batch_queue', 'hpc_partition', 'slurm_reservation'])
const referenceFlopsPerSecond = 1e9
/** The duration of an activity without any, on a resource of speedup 1. */
const defaultSeconds = 1

/** An omitted target is batch. */
export const isBatch = (resource: Pick<PlannedResource, 'executionTarget'>): boolean =>
  (resource.executionTarget || 'batch') === 'batch'

export const isOpaque = (resource: Pick<PlannedResource, 'type' | 'executionTarget'>): boolean =>
  isBatch(resource) && opaqueTypes.has(resource.type)

/**
 * Lanes of a resource: its cores, else its whole units of capacity, at least one. An opaque target
 * has one slot.
 */
const lanesOf = (
  resource: Pick<PlannedResource, 'type' | 'executionTarget' | 'cpuCores' | 'cpuCapacity'>,
): number =>
  isOpaque(resource)
    ? 1
    : resource.cpuCores > 0
      ? resource.cpuCores
      : Math.max(1, Math.floor(resource.cpuCapacity))

/**
 * The most lanes that are distinguished on one resource: enough for all tasks at once, and for fine
 * shares of memory. Without this bound, a machine described with 2^31 cores would give a task a
 * billion named lanes and end the process.
 */
const laneBound = (activities: readonly PlannedActivity[]): number =>
  Math.max(
    4096,
    activities.reduce((sum, { cpu }) => sum + Math.max(1, Math.ceil(cpu)), 0),
  )

/**
 * The problem for planners and the simulator. Resources are in the order of their ids, the
 * schedulable ones first. The others take no task (no capacity, no duration) and only forward data.
 * A resource that only a link names is such a one too.
 */
export const problemOf = (documents: ProblemDocuments): PlanningProblem => {
  const byId = (a: { id: string }, b: { id: string }): number => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)
  const targets = documents.resources
    .filter((resource) => resource.schedulable || documents.runtimes !== undefined)
    .toSorted(byId)
  const costModels = new Map(documents.versions.map((version) => [version.id, version.costModel]))
  const bound = laneBound(documents.graph.activities)
  const resources = targets.map((resource) =>
    problemResource(resource, {
      costModel: costModels.get(resource.environmentVersionId),
      bound,
      availableAt: documents.availability?.get(resource.id),
    }),
  )
  const index = new Map(resources.map((resource, position) => [resource.id, position]))
  const hop = (id: string): number => {
    let position = index.get(id)
    if (position === undefined) {
      index.set(id, (position = resources.length))
      resources.push(passage(id))
    }
    return position
  }
  const links = documents.links?.toSorted(byId).map((link) => problemLink(link, hop))
  const activities = documents.graph.activities.map((activity): ProblemActivity => {
    const base = {
      id: activity.id,
      cpu: activity.cpu,
      memoryBytes: activity.memoryBytes,
      priority: activity.priority,
    }
    // A selector without a schedulable match remains a selector: it allows no resource at all.
    return activity.resourceSelector === undefined
      ? base
      : { ...base, selector: index.get(activity.resourceSelector) ?? Number.MAX_SAFE_INTEGER }
  })
  const edges = documents.graph.edges.map(({ from, to, bytes }) => ({ from, to, bytes }))
  return { activities, edges, resources, links, ...durationsOf(documents, targets, resources.length) }
}

/**
 * Whether a resource is billed from its first start to its last finish instead of by its tasks.
 * `costModel`: that of its environment's version.
 */
export const paidByWindow = (executionTarget: string, costModel: string | undefined): boolean =>
  costModel === 'active-window' || executionTarget === 'provisioned'

const problemResource = (
  resource: PlannedResource,
  {
    costModel,
    bound,
    availableAt,
  }: { costModel: string | undefined; bound: number; availableAt: number | undefined },
): ProblemResource => ({
  id: resource.id,
  lanes: Math.min(lanesOf(resource), bound),
  cpuCapacity: resource.cpuCapacity,
  memoryBytes: resource.memoryBytes,
  batch: isBatch(resource),
  opaque: isOpaque(resource),
  pricePerSecond: resource.pricePerSecond,
  bootOverheadSeconds: resource.bootOverheadSeconds,
  containerOverheadSeconds: resource.containerOverheadSeconds,
  activeWindow: paidByWindow(resource.executionTarget, costModel),
  ...(availableAt === undefined ? {} : { availableAt }),
})

const passage = (id: string): ProblemResource => ({
  id,
  lanes: 1,
  cpuCapacity: -1,
  memoryBytes: -1,
  batch: false,
  opaque: false,
  pricePerSecond: 0,
  bootOverheadSeconds: 0,
  containerOverheadSeconds: 0,
  activeWindow: false,
})

const problemLink = (link: PlannedLink, indexOf: (id: string) => number): ProblemLink => ({
  id: link.id,
  source: indexOf(link.sourceResourceId),
  target: indexOf(link.targetResourceId),
  bandwidthBitsPerSecond: link.bandwidthBitsPerSecond,
  latencySeconds: link.latencySeconds,
  pricePerByte: link.pricePerByte,
  maxConcurrentTransfers: link.maxConcurrentTransfers,
  bidirectional: link.bidirectional,
  shared: link.sharingPolicy !== 'independent' && link.sharingPolicy !== 'fatpipe',
  duplexSplit: link.metadata?.['duplex'] === 'split',
})

const sourceIndex = Object.fromEntries(durationSources.map((source, index) => [source, index])) as Record<
  DurationSource,
  number
>

/** Of several models for one (type, resource), the last model version in natural order counts. */
const profileSeconds = (profiles: readonly PlannedProfile[]): Map<string, Map<string, number>> => {
  const byType = new Map<string, Map<string, PlannedProfile>>()
  for (const profile of profiles) {
    if (!(profile.runtimeSeconds > 0)) continue
    let ofType = byType.get(profile.activityTypeId)
    if (ofType === undefined) byType.set(profile.activityTypeId, (ofType = new Map<string, PlannedProfile>()))
    const known = ofType.get(profile.resourceId)
    if (known === undefined || naturally(profile.modelVersion ?? '', known.modelVersion ?? '') > 0)
      ofType.set(profile.resourceId, profile)
  }
  return new Map(
    [...byType].map(([type, ofType]) => [
      type,
      new Map([...ofType].map(([id, profile]) => [id, profile.runtimeSeconds])),
    ]),
  )
}

const positive = (value: unknown): number | undefined =>
  typeof value === 'number' && value > 0 && value < Infinity ? value : undefined
const amount = (value: number | undefined): value is number =>
  value !== undefined && value >= 0 && value < Infinity

/** Seconds at speedup 1, or operations. A duration of 0 beside operations counts as absent. */
const simulatedWork = (simulation: PlannedActivity['simulation']): { seconds?: number; flops?: number } => {
  const flops = positive(simulation?.flops) ?? positive(simulation?.parameters?.['flops'])
  const seconds = simulation?.durationSeconds
  if (amount(seconds) && (seconds > 0 || flops === undefined)) return { seconds }
  return flops === undefined ? {} : { flops }
}

/**
 * One activity's seconds on each resource, and the rule that gave them, in this order:
 * `baseRuntimeSeconds` / speedup; the profile of (type, resource); `simulation.durationSeconds` /
 * speedup; FLOPs / the resource's rate; the plan's prediction; one second / speedup.
 */
const durationsOf = (
  documents: ProblemDocuments,
  targets: readonly PlannedResource[],
  width: number,
): Pick<PlanningProblem, 'durations' | 'durationSource'> => {
  const { activities } = documents.graph
  const durations = new Float64Array(activities.length * width).fill(Infinity)
  const durationSource = new Uint8Array(activities.length * width).fill(sourceIndex.default)
  const profiles = profileSeconds(documents.profiles)
  const machines = targets.map((resource) => {
    const speedup = positive(resource.computeSpeedup) ?? 1
    return {
      id: resource.id,
      speedup,
      flopsPerSecond: positive(resource.metadata?.['flopsPerSecond']) ?? referenceFlopsPerSecond * speedup,
    }
  })
  activities.forEach((activity, row) => {
    const simulated = simulatedWork(activity.simulation)
    const ofType = profiles.get(activity.typeId)
    const runtime = documents.runtimes?.[row]
    const planned = amount(runtime?.executionBaseRuntimeSeconds)
      ? runtime.executionBaseRuntimeSeconds
      : positive(runtime?.predictedRuntimeSeconds)
    machines.forEach((machine, column) => {
      const put = (seconds: number, source: DurationSource): void => {
        // Infinity stands for a resource that cannot run the activity.
        durations[row * width + column] = Math.min(seconds, ranges.planSeconds.most)
        durationSource[row * width + column] = sourceIndex[source]
      }
      const profile = ofType?.get(machine.id)
      if (amount(activity.baseRuntimeSeconds))
        put(activity.baseRuntimeSeconds / machine.speedup, 'baseRuntime')
      else if (profile !== undefined) put(profile, 'profile')
      else if (simulated.seconds !== undefined) put(simulated.seconds / machine.speedup, 'simulation')
      else if (simulated.flops !== undefined) put(simulated.flops / machine.flopsPerSecond, 'flops')
      else if (planned !== undefined) put(planned, 'plan')
      else put(defaultSeconds / machine.speedup, 'default')
    })
  })
  return { durations, durationSource }
}

/**
 * Number of activities with the default duration (1 s / speedup) on at least one resource that can
 * run them.
 */
export const defaultedDurations = (problem: PlanningProblem): number => {
  const width = problem.resources.length
  const isDefault = (row: number) => (column: number) =>
    problem.durationSource[row * width + column] === sourceIndex.default
  return choicesOf(problem).filter(({ resources }, row) => resources.some(isDefault(row))).length
}

/** The members of an assignment that the simulator reads. */
export interface PlacedAssignment {
  resourceId: string
  coreIds: readonly string[]
  slotId: string
  orderOnResource: number
}

/**
 * A plan's assignments, by position of their activities, in the simulator's form.
 * @throws RangeError on a resource that the problem lacks: such a plan is refused earlier
 */
export const placementOf = (problem: PlanningProblem, assignments: readonly PlacedAssignment[]): Placed[] => {
  const index = new Map(problem.resources.map(({ id }, position) => [id, position]))
  return assignments.map(({ resourceId, coreIds, slotId, orderOnResource }) => {
    const resource = index.get(resourceId)
    if (resource === undefined)
      throw new RangeError(`resource ${JSON.stringify(resourceId)} is not among those of the problem`)
    return { resource, lanes: coreIds.map((coreId) => JSON.stringify([coreId, slotId])), orderOnResource }
  })
}
