import type { Problem as Violation } from '../refusal.ts'
import { misfit } from './fit.ts'
import { describeCycle, findCycle, topologicalOrder, type IndexEdge } from './graph.ts'

/**
 * A plan from its document, with the records that it names; ids are those of the stored workflow
 * and inventory.
 */
export interface ResolvedPlan {
  activities: readonly {
    id: string
    cpu: number
    memoryBytes: number
    resourceSelector?: string | undefined
  }[]
  /** Dependencies, control and data alike: `to` waits for `from`. */
  edges: readonly { from: string; to: string }[]
  /** Every resource that the plan may name, by id. */
  resources: ReadonlyMap<
    string,
    { inScope: boolean; schedulable: boolean; batch: boolean; cpuCapacity: number; memoryBytes: number }
  >
  /** Stored resources by id, where the plan came with documents of its own in `resources`. */
  stored?: Pick<ReadonlySet<string>, 'has'>
  assignments: readonly PlannedAssignment[]
}

export interface PlannedAssignment {
  activityId: string
  resourceId: string
  coreId?: string | undefined
  slotId?: string | undefined
  orderOnResource: number
  predictedStartAt?: number | null | undefined
  predictedFinishAt?: number | null | undefined
  metadata?: { resourceSelectorOverride?: unknown; coreIds?: unknown } | null | undefined
}

/**
 * Limit for contradictions between orders and dependencies in one answer; the rest appear at the
 * next try.
 */
const contradictionsNamed = 20

/**
 * All faults of a plan, in the order of the document; empty: it can be stored. `paths` gives the
 * positions of the parts in the caller's request, e.g. `plan.assignments`.
 *
 * Rules: every activity exactly once and no other; the resource known, in the scope, schedulable,
 * large enough for the single task unless it is a batch target (several together may overcommit it:
 * that is the author's choice) and the one its selector names unless overridden; finish ≥ start;
 * dependencies without a cycle; orders unique on each lane (resource, core, slot) and not against
 * the dependencies.
 */
export function validatePlan(
  plan: ResolvedPlan,
  paths: { assignments: string; dependencies: string },
): Violation[] {
  const violations: Violation[] = []
  const report = (path: string, message: string): void => void violations.push({ path, message })
  const indexOf = new Map(plan.activities.map(({ id }, index) => [id, index]))
  const holder = new Array<number | undefined>(plan.activities.length)

  plan.assignments.forEach((assignment, at) => {
    const path = `${paths.assignments}.${at}`
    const activity = indexOf.get(assignment.activityId)
    if (activity === undefined)
      report(`${path}.activityId`, `activity ${quote(assignment.activityId)} is not part of the workflow`)
    else if (holder[activity] !== undefined)
      report(
        `${path}.activityId`,
        `activity ${quote(assignment.activityId)} is already assigned at ` +
          `${paths.assignments}.${holder[activity]}; assign it once`,
      )
    else holder[activity] = at
    checkResource(plan, assignment, activity, path, report)
    checkTimes(assignment, path, report)
    checkLanes(assignment, path, report)
  })
  plan.activities.forEach(({ id }, activity) => {
    if (holder[activity] === undefined)
      report(paths.assignments, `activity ${quote(id)} is not assigned; every activity needs one assignment`)
  })
  checkOrders(plan, indexOf, holder, paths, report)
  return violations
}

/**
 * The faults of a plan's orders alone, by the rules of `validatePlan`; the assignments are those of
 * the activities, in their order.
 */
export function orderViolations(
  plan: OrderedPlan,
  paths: { assignments: string; dependencies: string },
): Violation[] {
  const violations: Violation[] = []
  const indexOf = new Map(plan.activities.map(({ id }, index) => [id, index]))
  const report = (path: string, message: string): void => void violations.push({ path, message })
  checkOrders(plan, indexOf, [...plan.activities.keys()], paths, report)
  return violations
}

type OrderedPlan = Pick<ResolvedPlan, 'edges' | 'assignments'> & { activities: readonly { id: string }[] }
type Report = (path: string, message: string) => void

function checkResource(
  plan: ResolvedPlan,
  { resourceId, metadata }: PlannedAssignment,
  index: number | undefined,
  at: string,
  report: Report,
): void {
  const path = `${at}.resourceId`
  const resource = plan.resources.get(resourceId)
  const activity = index === undefined ? undefined : plan.activities[index]!
  if (resource === undefined)
    report(
      path,
      plan.stored?.has(resourceId) === true
        ? `resource ${quote(resourceId)} is not among the envelope's resources; add its document, or import the plan`
        : `resource ${quote(resourceId)} does not exist`,
    )
  else if (!resource.inScope) report(path, `resource ${quote(resourceId)} is outside the execution scope`)
  else if (!resource.schedulable) report(path, `resource ${quote(resourceId)} is not schedulable`)
  if (activity === undefined) return
  const { id, resourceSelector, cpu, memoryBytes } = activity
  if (
    resourceSelector !== undefined &&
    resourceSelector !== resourceId &&
    metadata?.resourceSelectorOverride !== true
  )
    report(
      path,
      `activity ${quote(id)} selects resource ${quote(resourceSelector)}, not ${quote(resourceId)}; ` +
        'set metadata.resourceSelectorOverride to true to override',
    )
  if (resource === undefined) return
  const cause = misfit(activity, resource)
  if (cause === 'cpu')
    report(
      path,
      `activity ${quote(id)} needs ${cpu} cpu, resource ${quote(resourceId)} has cpuCapacity ${resource.cpuCapacity}`,
    )
  if (cause === 'memory')
    report(
      path,
      `activity ${quote(id)} needs ${memoryBytes} bytes of memory, resource ${quote(resourceId)} ` +
        `has ${resource.memoryBytes}`,
    )
}

function checkTimes(
  { predictedStartAt: start, predictedFinishAt: finish }: PlannedAssignment,
  path: string,
  report: Report,
): void {
  if (typeof start === 'number' && typeof finish === 'number' && finish < start)
    report(`${path}.predictedFinishAt`, `finish ${finish} is before start ${start}`)
}

function checkLanes({ coreId, metadata }: PlannedAssignment, path: string, report: Report): void {
  const cores = metadata?.coreIds
  if (cores === undefined) return
  const valid = Array.isArray(cores) && cores.every((core) => typeof core === 'string')
  if (!valid) report(`${path}.metadata.coreIds`, 'must be a list of core ids')
  else if (cores.length > 0 && !cores.includes(coreId ?? ''))
    report(
      `${path}.metadata.coreIds`,
      `must contain coreId ${quote(coreId ?? '')}, the first core of the task`,
    )
}

/** The cores of an assignment: all of `metadata.coreIds` where given, else its one `coreId`. */
export function assignedCores({
  coreId,
  metadata,
}: Pick<PlannedAssignment, 'coreId' | 'metadata'>): string[] {
  const cores: unknown = metadata?.coreIds
  const named = Array.isArray(cores) ? cores.filter((core): core is string => typeof core === 'string') : []
  return named.length > 0 ? [...new Set(named)] : [coreId ?? '']
}

function checkOrders(
  plan: OrderedPlan,
  indexOf: ReadonlyMap<string, number>,
  holder: readonly (number | undefined)[],
  paths: { assignments: string; dependencies: string },
  report: Report,
): void {
  const n = plan.activities.length
  const name = (activity: number): string => plan.activities[activity]!.id
  const edges = plan.edges.flatMap(({ from, to }): IndexEdge[] => {
    const [a, b] = [indexOf.get(from), indexOf.get(to)]
    return a === undefined || b === undefined ? [] : [{ from: a, to: b }]
  })
  const cycle = findCycle(n, edges)
  if (cycle !== undefined)
    report(paths.dependencies, `the dependencies have a cycle: ${describeCycle(cycle.map(name))}`)

  const lanes = new Map<string, { assignment: number; activity: number; order: number }[]>()
  holder.forEach((assignment, activity) => {
    if (assignment === undefined) return
    const planned = plan.assignments[assignment]!
    for (const core of assignedCores(planned)) {
      const key = JSON.stringify([planned.resourceId, core, planned.slotId ?? ''])
      const lane = lanes.get(key)
      const entry = { assignment, activity, order: planned.orderOnResource }
      if (lane === undefined) lanes.set(key, [entry])
      else lane.push(entry)
    }
  })
  const laneEdges: (IndexEdge & { path: string; lane: string })[] = []
  const clashes = new Set<string>()
  for (const [key, lane] of lanes) {
    lane.sort((a, b) => a.order - b.order || a.assignment - b.assignment)
    for (let i = 1; i < lane.length; i++) {
      const [earlier, later] = [lane[i - 1]!, lane[i]!]
      const path = `${paths.assignments}.${later.assignment}.orderOnResource`
      if (earlier.order < later.order)
        laneEdges.push({ from: earlier.activity, to: later.activity, path, lane: key })
      else if (!clashes.has(`${path} ${earlier.assignment}`)) {
        clashes.add(`${path} ${earlier.assignment}`)
        report(
          path,
          `order ${later.order} on lane ${laneText(key)} is already taken by ` +
            `${paths.assignments}.${earlier.assignment}`,
        )
      }
    }
  }
  if (cycle === undefined) contradictions(n, edges, laneEdges, name, report)
}

/**
 * Each contradiction is named at the lane order that closes it; that order is then set aside to
 * find the next. The order that closes it leads back in an order of the dependencies, so it is none
 * that follows from them.
 */
function contradictions(
  n: number,
  edges: readonly IndexEdge[],
  laneEdges: readonly (IndexEdge & { path: string; lane: string })[],
  name: (activity: number) => string,
  report: Report,
): void {
  let open = [...laneEdges]
  const position = new Int32Array(n)
  topologicalOrder(n, edges)?.forEach((activity, at) => (position[activity] = at))
  for (let named = 0; named < contradictionsNamed; named++) {
    const cycle = findCycle(n, [...edges, ...open])
    if (cycle === undefined) return
    const steps = new Set(cycle.map((from, i) => `${from} ${cycle[(i + 1) % cycle.length]!}`))
    const closing = open.find(
      ({ from, to }) => position[from]! > position[to]! && steps.has(`${from} ${to}`),
    )!
    report(
      closing.path,
      `on lane ${laneText(closing.lane)} ${quote(name(closing.to))} comes after ` +
        `${quote(name(closing.from))}, against the dependencies: ${describeCycle(cycle.map(name))}`,
    )
    open = open.filter(({ from, to }) => from !== closing.from || to !== closing.to)
  }
}

function laneText(key: string): string {
  const [resource, core, slot] = JSON.parse(key) as [string, string, string]
  return `(resource ${quote(resource)}, core ${quote(core)}, slot ${quote(slot)})`
}

const quote = (id: string): string => JSON.stringify(id)
