import { adjacency, topologicalOrder } from './graph.ts'
import { choicesOf, laneName, type Choices } from './fit.ts'
import type { ProblemAssignment, PlanningProblem, Schedule } from './problem.ts'
import { routeSeconds, type Routes } from './routes.ts'

/**
 * A plan by index: the resource and lanes of each activity, and all activities in an order that
 * respects the workflow and every lane.
 */
export interface Placement {
  resource: Int32Array
  /** Lane numbers of the activity's resource, ascending. */
  lanes: readonly (readonly number[])[]
  /** A topological order of dependencies and lane orders together. */
  sequence: Int32Array
}

/**
 * The times and costs of an undisturbed plan, by the one rule of planner, simulator and run:
 *
 * - data: one flow per (producer, consumer) from the producer's finish, `latency + bytes · 8 /
 *   bandwidth` of the fastest route, alone on it; none between tasks of one resource and none for 0
 *   bytes;
 * - start = max(every predecessor's finish, every arrival, the previous finish on each of its
 *   lanes, the time at which the resource is there);
 * - finish = start + boot (when one of its lanes is used for the first time) + container + runtime;
 * - cost = (boot + container + runtime) · pricePerSecond + Σ bytes · price of the route, charged to
 *   the consumer. An active-window resource costs (last finish − first start) · pricePerSecond
 *   instead, shared among its tasks by runtime.
 *
 * `readyAt` of an assignment is the arrival of its last data; `transferSeconds` is the wait for
 * data after the last predecessor's finish. Throws RangeError on a pair without a route: the
 * planner must not make such a placement.
 */
export function evaluate(problem: PlanningProblem, routes: Routes, placement: Placement): Schedule {
  const { activities, edges, resources, durations } = problem
  const n = activities.length
  const width = resources.length
  const incoming = adjacency(n, edges, 'to')
  const finish = new Float64Array(n)
  const laneFree = resources.map((): number[] => [])
  const position = new Int32Array(width)
  const assignments = new Array<ProblemAssignment>(n)
  for (const activity of placement.sequence) {
    const at = placement.resource[activity]!
    const resource = resources[at]!
    let doneAt = 0
    let readyAt = 0
    let transferCost = 0
    for (let k = incoming.start[activity]!; k < incoming.start[activity + 1]!; k++) {
      const edge = edges[incoming.edge[k]!]!
      const finished = finish[edge.from]!
      if (finished > doneAt) doneAt = finished
      let arrival = finished
      const source = placement.resource[edge.from]!
      if (edge.bytes > 0 && source !== at) {
        const route = routes.between(source, at, edge.bytes)
        if (route === undefined)
          throw new RangeError(`no route from ${resources[source]!.id} to ${resource.id}`)
        arrival += routeSeconds(route, edge.bytes)
        transferCost += edge.bytes * route.pricePerByte
      }
      if (arrival > readyAt) readyAt = arrival
    }
    const free = laneFree[at]!
    const lanes = placement.lanes[activity]!
    let startAt = Math.max(readyAt, resource.availableAt ?? 0)
    let boot = 0
    for (const lane of lanes) {
      const previous = free[lane]
      if (previous === undefined) boot = resource.bootOverheadSeconds
      else if (previous > startAt) startAt = previous
    }
    const runtime = durations[activity * width + at]!
    const occupied = boot + resource.containerOverheadSeconds + runtime
    const finishAt = startAt + occupied
    for (const lane of lanes) free[lane] = finishAt
    finish[activity] = finishAt
    const names = lanes.map((lane) => laneName(resource, lane))
    assignments[activity] = {
      activity,
      resource: at,
      coreIds: resource.opaque ? [] : names.map(({ coreId }) => coreId),
      slotId: names[0]!.slotId,
      orderOnResource: ++position[at]!,
      readyAt,
      startAt,
      finishAt,
      runtimeSeconds: runtime,
      transferSeconds: readyAt - doneAt,
      bootOverheadSeconds: boot,
      containerOverheadSeconds: resource.containerOverheadSeconds,
      cost: transferCost + (resource.activeWindow ? 0 : occupied * resource.pricePerSecond),
    }
  }
  const windows = windowCosts(problem, assignments)
  for (const assignment of assignments) assignment.cost += windows[assignment.activity]!
  return { assignments, ...totals(assignments) }
}

/** Makespan = last finish − first start; cost = Σ. For an empty list: 0 and 0. */
export function totals(items: readonly { startAt: number; finishAt: number; cost: number }[]): {
  makespanSeconds: number
  cost: number
} {
  let first = Infinity
  let last = -Infinity
  let cost = 0
  for (const item of items) {
    if (item.startAt < first) first = item.startAt
    if (item.finishAt > last) last = item.finishAt
    cost += item.cost
  }
  return { makespanSeconds: items.length === 0 ? 0 : last - first, cost }
}

/**
 * The use of a resource: first start, last finish, seconds in which programs ran, and how many ran.
 */
export interface ResourceUse {
  first: number
  last: number
  runtimeSeconds: number
  count: number
}

/**
 * The price of an active window, for planner, simulator and run: (last finish − first start) ·
 * pricePerSecond, shared by runtime, evenly where all runtimes are 0. A task of r seconds owes `r ·
 * perRuntimeSecond + each`.
 */
export function windowPrice(
  use: ResourceUse,
  pricePerSecond: number,
): { perRuntimeSecond: number; each: number } {
  if (use.count === 0) return { perRuntimeSecond: 0, each: 0 }
  const cost = (use.last - use.first) * pricePerSecond
  return use.runtimeSeconds > 0
    ? { perRuntimeSecond: cost / use.runtimeSeconds, each: 0 }
    : { perRuntimeSecond: 0, each: cost / use.count }
}

/**
 * Each activity's share of the active windows of resources with that price; zero on other
 * resources. By activity index.
 */
export function windowCosts(
  problem: Pick<PlanningProblem, 'resources'>,
  items: readonly { resource: number; startAt: number; finishAt: number; runtimeSeconds: number }[],
): Float64Array {
  const costs = new Float64Array(items.length)
  const uses = problem.resources.map((): ResourceUse => ({
    first: Infinity,
    last: -Infinity,
    runtimeSeconds: 0,
    count: 0,
  }))
  for (const item of items) {
    const use = uses[item.resource]!
    use.first = Math.min(use.first, item.startAt)
    use.last = Math.max(use.last, item.finishAt)
    use.runtimeSeconds += item.runtimeSeconds
    use.count++
  }
  const prices = problem.resources.map(({ activeWindow, pricePerSecond }, i) =>
    activeWindow ? windowPrice(uses[i]!, pricePerSecond) : undefined,
  )
  items.forEach((item, index) => {
    const price = prices[item.resource]
    if (price !== undefined) costs[index] = item.runtimeSeconds * price.perRuntimeSecond + price.each
  })
  return costs
}

/**
 * A makespan that no plan can beat: the longest chain at each activity's fastest resource without
 * transfers, or all work (lane seconds at the cheapest choice) spread evenly over all lanes,
 * whichever is more. It omits boot, so the bound stays true when one lane takes all. 0 when an
 * activity has no choice.
 */
export function lowerBound(
  problem: PlanningProblem,
  choices: readonly Choices[] = choicesOf(problem),
): number {
  const n = problem.activities.length
  const width = problem.resources.length
  const out = adjacency(n, problem.edges, 'from')
  const order = topologicalOrder(n, problem.edges, out)
  if (order === undefined) return 0
  const longest = new Float64Array(n)
  let chain = 0
  let work = 0
  for (let i = n - 1; i >= 0; i--) {
    const activity = order[i]!
    const { resources, lanes } = choices[activity]!
    let seconds = Infinity
    let laneSeconds = Infinity
    resources.forEach((at, k) => {
      const occupied =
        problem.durations[activity * width + at]! + problem.resources[at]!.containerOverheadSeconds
      seconds = Math.min(seconds, occupied)
      laneSeconds = Math.min(laneSeconds, occupied * lanes[k]!)
    })
    if (seconds === Infinity) return 0
    let after = 0
    for (let k = out.start[activity]!; k < out.start[activity + 1]!; k++)
      after = Math.max(after, longest[problem.edges[out.edge[k]!]!.to]!)
    longest[activity] = after + seconds
    chain = Math.max(chain, longest[activity])
    work += laneSeconds
  }
  const lanes = problem.resources.reduce((sum, resource) => sum + (resource.opaque ? 1 : resource.lanes), 0)
  return Math.max(chain, lanes > 0 ? work / lanes : 0)
}
