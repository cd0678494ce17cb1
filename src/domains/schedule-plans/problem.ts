import type { GraphActivity } from '../workflow-definitions/graph.ts'
import type { Placed } from '../../simulator/simulate.ts'
import { durationSources } from '../../schedulers/problem.ts'
import type { DurationSource, Problem, ProblemActivity, ProblemLink, ProblemResource } from '../../schedulers/problem.ts'

/** A workflow by position, as `loadGraph` reads it: control edges with the bytes of the data dependencies that ride on them. */
export interface PlannedGraph {
  activities: readonly PlannedActivity[]
  edges: readonly { from: number; to: number; bytes: number }[]
}
export type PlannedActivity = Pick<
  GraphActivity,
  'id' | 'typeId' | 'cpu' | 'memoryBytes' | 'priority' | 'resourceSelector' | 'simulation' | 'baseRuntimeSeconds'
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

/** What an assignment itself says of its activity's duration; read for given plans only. */
interface PlannedRuntime {
  executionBaseRuntimeSeconds?: number | undefined
  predictedRuntimeSeconds?: number | undefined
}

/** The durations that an assignment brings. A predicted runtime that was the default is none: it was computed, nothing gave it. */
export const plannedRuntime = (assignment: {
  predictedRuntimeSeconds: number
  durationSource?: string | undefined
  metadata?: Record<string, unknown> | undefined
}): PlannedRuntime => {
  const base = assignment.metadata?.['executionBaseRuntimeSeconds']
  return {
    predictedRuntimeSeconds: assignment.durationSource === 'default' ? undefined : assignment.predictedRuntimeSeconds,
    executionBaseRuntimeSeconds: typeof base === 'number' ? base : undefined,
  }
}

export interface ProblemDocuments {
  graph: PlannedGraph
  /** Every resource of the scope, schedulable or not: the others can still pass data on. */
  resources: readonly PlannedResource[]
  versions: readonly { id: string; costModel?: string | undefined }[]
  profiles: readonly PlannedProfile[]
  /** Undefined: no topology, so no network. */
  links: readonly PlannedLink[] | undefined
  /** By position of the activity; given for a plan that is there, whose resources are all taken as targets: what may be planned is decided. */
  runtimes?: readonly PlannedRuntime[] | undefined
}

/** Billing of a batch target happens inside it: its own scheduler decides what fits, and it shows one slot. */
const opaqueTypes = new Set(['batch_queue', 'hpc_partition', 'slurm_reservation'])
const referenceFlopsPerSecond = 1e9
/** Of an activity without any duration, on a resource of speedup 1. */
const defaultSeconds = 1

/** An omitted target is batch. */
export const isBatch = (resource: Pick<PlannedResource, 'executionTarget'>): boolean => (resource.executionTarget || 'batch') === 'batch'

export const isOpaque = (resource: Pick<PlannedResource, 'type' | 'executionTarget'>): boolean =>
  isBatch(resource) && opaqueTypes.has(resource.type)

/** Lanes that a resource offers: its cores, else its whole units of capacity, at least one; one slot of an opaque target. */
const lanesOf = (resource: Pick<PlannedResource, 'type' | 'executionTarget' | 'cpuCores' | 'cpuCapacity'>): number =>
  isOpaque(resource) ? 1 : resource.cpuCores > 0 ? resource.cpuCores : Math.max(1, Math.floor(resource.cpuCapacity))

/**
 * Lanes that are told apart on one resource: every task at once needs no more, and shares of memory stay fine enough. A machine
 * described with 2^31 cores would otherwise give a task a billion lanes, by name, and end the process.
 */
const laneBound = (activities: readonly PlannedActivity[]): number =>
  Math.max(
    4096,
    activities.reduce((sum, { cpu }) => sum + Math.max(1, Math.ceil(cpu)), 0),
  )

/**
 * The problem that planners and the simulator read. Resources keep the order of their ids, the schedulable ones first; the others
 * take no task (no capacity, no duration) and only pass data on. A resource that only a link knows is such a one too.
 */
export const problemOf = (documents: ProblemDocuments): Problem => {
  const byId = (a: { id: string }, b: { id: string }): number => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)
  const targets = documents.resources.filter((resource) => resource.schedulable || documents.runtimes !== undefined).toSorted(byId)
  const costModels = new Map(documents.versions.map((version) => [version.id, version.costModel]))
  const bound = laneBound(documents.graph.activities)
  const resources = targets.map((resource) => problemResource(resource, costModels.get(resource.environmentVersionId), bound))
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
    const base = { id: activity.id, cpu: activity.cpu, memoryBytes: activity.memoryBytes, priority: activity.priority }
    // A selector that names nothing schedulable stays a selector: it allows no resource at all.
    return activity.resourceSelector === undefined
      ? base
      : { ...base, selector: index.get(activity.resourceSelector) ?? Number.MAX_SAFE_INTEGER }
  })
  const edges = documents.graph.edges.map(({ from, to, bytes }) => ({ from, to, bytes }))
  return { activities, edges, resources, links, ...durationsOf(documents, targets, resources.length) }
}

/** Whether a resource is paid from its first start to its last finish, not by what ran. `costModel`: of its environment's version. */
export const paidByWindow = (executionTarget: string, costModel: string | undefined): boolean =>
  costModel === 'active-window' || executionTarget === 'provisioned'

const problemResource = (resource: PlannedResource, costModel: string | undefined, bound: number): ProblemResource => ({
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

const sourceIndex = Object.fromEntries(durationSources.map((source, index) => [source, index])) as Record<DurationSource, number>

/** Of several models of one (type, resource) the one with the greatest model version counts. */
const profileSeconds = (profiles: readonly PlannedProfile[]): Map<string, Map<string, number>> => {
  const byType = new Map<string, Map<string, PlannedProfile>>()
  for (const profile of profiles) {
    if (!(profile.runtimeSeconds > 0)) continue
    let ofType = byType.get(profile.activityTypeId)
    if (ofType === undefined) byType.set(profile.activityTypeId, (ofType = new Map<string, PlannedProfile>()))
    const known = ofType.get(profile.resourceId)
    if (known === undefined || (profile.modelVersion ?? '') > (known.modelVersion ?? '')) ofType.set(profile.resourceId, profile)
  }
  return new Map([...byType].map(([type, ofType]) => [type, new Map([...ofType].map(([id, profile]) => [id, profile.runtimeSeconds]))]))
}

const positive = (value: unknown): number | undefined => (typeof value === 'number' && value > 0 && value < Infinity ? value : undefined)
const amount = (value: number | undefined): value is number => value !== undefined && value >= 0 && value < Infinity

/** Seconds at speedup 1, or operations. A duration of 0 beside operations is one that nobody wrote. */
const simulatedWork = (simulation: PlannedActivity['simulation']): { seconds?: number; flops?: number } => {
  const flops = positive(simulation?.flops) ?? positive(simulation?.parameters?.['flops'])
  const seconds = simulation?.durationSeconds
  if (amount(seconds) && (seconds > 0 || flops === undefined)) return { seconds }
  return flops === undefined ? {} : { flops }
}

/**
 * One activity's seconds on each resource, and the rule that gave them, in this order: `baseRuntimeSeconds` / speedup; the profile of
 * (type, resource); `simulation.durationSeconds` / speedup; FLOPs / the resource's rate; what the plan predicted; one second / speedup.
 */
const durationsOf = (
  documents: ProblemDocuments,
  targets: readonly PlannedResource[],
  width: number,
): Pick<Problem, 'durations' | 'durationSource'> => {
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
        durations[row * width + column] = seconds
        durationSource[row * width + column] = sourceIndex[source]
      }
      const profile = ofType?.get(machine.id)
      if (amount(activity.baseRuntimeSeconds)) put(activity.baseRuntimeSeconds / machine.speedup, 'baseRuntime')
      else if (profile !== undefined) put(profile, 'profile')
      else if (simulated.seconds !== undefined) put(simulated.seconds / machine.speedup, 'simulation')
      else if (simulated.flops !== undefined) put(simulated.flops / machine.flopsPerSecond, 'flops')
      else if (planned !== undefined) put(planned, 'plan')
      else put(defaultSeconds / machine.speedup, 'default')
    })
  })
  return { durations, durationSource }
}

/** Number of activities whose duration is the default (1 s / speedup) on at least one resource they could run on. */
export const defaultedDurations = (problem: Problem): number => {
  const width = problem.resources.length
  return problem.activities.reduce((count, _, row) => {
    for (let column = 0; column < width; column++)
      if (problem.durations[row * width + column]! < Infinity && problem.durationSource[row * width + column] === sourceIndex.default)
        return count + 1
    return count
  }, 0)
}

/** What the simulator reads of an assignment. */
export interface PlacedAssignment {
  resourceId: string
  coreIds: readonly string[]
  slotId: string
  orderOnResource: number
}

/**
 * A plan's assignments, by position of their activities, as the simulator takes them. Throws RangeError on a resource that the problem
 * does not have: such a plan is refused before.
 */
export const placementOf = (problem: Problem, assignments: readonly PlacedAssignment[]): Placed[] => {
  const index = new Map(problem.resources.map(({ id }, position) => [id, position]))
  return assignments.map(({ resourceId, coreIds, slotId, orderOnResource }) => {
    const resource = index.get(resourceId)
    if (resource === undefined) throw new RangeError(`resource ${JSON.stringify(resourceId)} is not among those of the problem`)
    return { resource, lanes: coreIds.map((coreId) => JSON.stringify([coreId, slotId])), orderOnResource }
  })
}
