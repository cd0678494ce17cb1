import { roundingSlack } from './limits.ts'
import type { PlanningProblem, ProblemActivity, ProblemResource } from './problem.ts'

type Demand = Pick<ProblemActivity, 'cpu' | 'memoryBytes'>
type Supply = Pick<ProblemResource, 'lanes' | 'cpuCapacity' | 'memoryBytes' | 'batch' | 'opaque'>

/**
 * The number of lanes of a resource for a task: its cores rounded up, at least one, and more where
 * the task's share of memory or of CPU capacity is larger than its share of the lanes; never more
 * than there are. Tasks of one lane never overlap, so tasks planned by this rule overcommit a
 * resource only where one of them alone does. On an opaque target every task takes the one slot.
 * Undefined when the task does not fit at all.
 */
export function lanesFor(activity: Demand, resource: Supply): number | undefined {
  if (resource.opaque) return 1
  if (misfit(activity, resource) !== undefined) return undefined
  const cores = Math.max(1, Math.ceil(activity.cpu - roundingSlack))
  const byCpu =
    resource.cpuCapacity > 0
      ? Math.ceil((activity.cpu / resource.cpuCapacity) * resource.lanes - roundingSlack)
      : 0
  const byMemory =
    resource.memoryBytes > 0
      ? Math.ceil((activity.memoryBytes / resource.memoryBytes) * resource.lanes - roundingSlack)
      : 0
  return Math.min(Math.max(cores, byCpu, byMemory), resource.lanes)
}

/**
 * Why a single task can never run on a resource: it needs more CPU than its capacity or more memory
 * than it has. Undefined: it can. Batch targets accept every task (API specification,
 * `resources[]`).
 */
export function misfit(
  activity: Demand,
  resource: Omit<Supply, 'lanes' | 'opaque'>,
): 'cpu' | 'memory' | undefined {
  if (resource.batch) return undefined
  if (activity.cpu > resource.cpuCapacity) return 'cpu'
  return activity.memoryBytes > resource.memoryBytes ? 'memory' : undefined
}

/**
 * The name of lane `index` (from 0) of a resource in a plan: cores as `coreId`, the slot of an
 * opaque target as `slotId`.
 */
export function laneName(
  resource: Pick<ProblemResource, 'id' | 'opaque'>,
  index: number,
): { coreId: string; slotId: string } {
  return resource.opaque
    ? { coreId: '', slotId: `${resource.id}-slot` }
    : { coreId: `${resource.id}-core-${index}`, slotId: '' }
}

/**
 * The possible resources of activities: per activity the resources and, beside each, the lanes it
 * takes there. Equal demands share one object.
 */
export interface Choices {
  /** Ascending. */
  resources: Int32Array
  lanes: Int32Array
}

/** A resource without a finite, non-negative duration for the activity is no choice. */
export function choicesOf(problem: PlanningProblem): Choices[] {
  const width = problem.resources.length
  const byDemand = new Map<string, Choices>()
  return problem.activities.map((activity, index) => {
    const key = `${activity.cpu} ${activity.memoryBytes} ${activity.selector ?? ''}`
    let choices = byDemand.get(key)
    if (choices === undefined) byDemand.set(key, (choices = choicesFor(activity, problem.resources)))
    const row = index * width
    if (choices.resources.every((resource) => runnable(problem.durations[row + resource]!))) return choices
    return only(choices, (resource) => runnable(problem.durations[row + resource]!))
  })
}

const runnable = (seconds: number): boolean => seconds >= 0 && seconds < Infinity

/** The choices for which `keep` holds. */
export function only(choices: Choices, keep: (resource: number) => boolean): Choices {
  const kept = [...choices.resources.keys()].filter((k) => keep(choices.resources[k]!))
  return {
    resources: Int32Array.from(kept, (k) => choices.resources[k]!),
    lanes: Int32Array.from(kept, (k) => choices.lanes[k]!),
  }
}

/** The resources on which some activity can be placed, ascending. Others only forward data. */
export function taskPlacesOf(choices: readonly Choices[]): number[] {
  const places = new Set<number>()
  for (const { resources } of new Set(choices)) for (const resource of resources) places.add(resource)
  return [...places].sort((a, b) => a - b)
}

function choicesFor(activity: ProblemActivity, resources: readonly ProblemResource[]): Choices {
  const found: number[] = []
  const lanes: number[] = []
  resources.forEach((resource, index) => {
    if (activity.selector !== undefined && activity.selector !== index) return
    const count = lanesFor(activity, resource)
    if (count === undefined) return
    found.push(index)
    lanes.push(count)
  })
  return { resources: Int32Array.from(found), lanes: Int32Array.from(lanes) }
}

/** Whether a resource is a target of tasks; one of a capacity below 0 only forwards data. */
const takesTasks = ({ cpuCapacity }: ProblemResource): boolean => cpuCapacity >= 0

/** Why no resource of the problem can run the activity, as text for the author of the workflow. */
export function whyNowhere(problem: PlanningProblem, activity: number): string {
  const demand = problem.activities[activity]!
  const needs = `needs ${demand.cpu} cpu and ${demand.memoryBytes} bytes of memory`
  if (demand.selector !== undefined) {
    const resource = problem.resources[demand.selector]
    if (resource === undefined || !takesTasks(resource))
      return 'its resourceSelector names a resource that is not schedulable in this scope'
    const reason = whyNot(problem, activity, demand.selector)
    return `its resourceSelector allows only ${JSON.stringify(resource.id)}: ${needs}; ${reason}`
  }
  const targets = [...problem.resources.keys()].filter((index) => takesTasks(problem.resources[index]!))
  if (targets.length === 0) return 'the scope has no schedulable resource'
  const shown = targets
    .slice(0, 3)
    .map((index) => `${JSON.stringify(problem.resources[index]!.id)} ${whyNot(problem, activity, index)}`)
  const more = targets.length - shown.length
  return `${needs}; ${shown.join('; ')}${more > 0 ? `; and ${more} more do not fit either` : ''}`
}

function whyNot(problem: PlanningProblem, activity: number, index: number): string {
  const demand = problem.activities[activity]!
  const resource = problem.resources[index]!
  const cause = misfit(demand, resource)
  if (cause === 'cpu') return `has cpuCapacity ${resource.cpuCapacity}`
  if (cause === 'memory') return `has ${resource.memoryBytes} bytes of memory`
  return 'has no duration for it'
}
