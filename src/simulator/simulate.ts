import { totals, windowCosts } from '../schedulers/estimate.ts'
import { adjacency, describeCycle, findCycle, type IndexEdge } from '../schedulers/graph.ts'
import type { PlanningProblem } from '../schedulers/problem.ts'
import { networkRoutesOf, type Routes } from '../schedulers/routes.ts'
import type { NetworkModel } from './channel.ts'
import { Network, type FlowRequest } from './network.ts'
import { TimeHeap } from './time-heap.ts'

/** The place of an activity in a fixed plan. */
export interface Placed {
  resource: number
  /** The lanes it holds, each as any string that is unique within its resource; at least one. */
  lanes: readonly string[]
  /** Unique per lane; the tasks of a lane run in this order. */
  orderOnResource: number
}

/**
 * `ready → (transfer) → data ready → (queue) → start → overhead, runtime → finish`; seconds from
 * the start of the run.
 */
export interface SimulatedTask {
  activity: number
  resource: number
  /** Every predecessor has finished. */
  readyAt: number
  /** … and its data has arrived. */
  dataReadyAt: number
  startedAt: number
  finishedAt: number
  runtimeSeconds: number
  /** Waiting for its lanes. */
  queueSeconds: number
  /** Waiting for data after the last predecessor's finish. */
  transferSeconds: number
  transferBytes: number
  /**
   * The part of `transferSeconds` that other flows caused: the saving in a network without any
   * other flow.
   */
  interferenceSeconds: number
  /** Boot and container. */
  overheadSeconds: number
  bootOverheadSeconds: number
  containerOverheadSeconds: number
  cost: number
}

export interface SimulatedTransfer {
  /** Index of the dependency in `problem.edges`. */
  edge: number
  producer: number
  consumer: number
  source: number
  target: number
  bytes: number
  /**
   * The producer's finish; `startedAt` is later where a link's number of concurrent transfers was
   * reached.
   */
  readyAt: number
  startedAt: number
  finishedAt: number
  /** Ids of the links in the direction of travel. */
  links: string[]
  cost: number
}

export interface Breakdown {
  computeSeconds: number
  transferSeconds: number
  queueSeconds: number
  interferenceSeconds: number
  overheadSeconds: number
}

export type SimulationResult =
  | {
      state: 'completed'
      /** By activity index. */
      tasks: SimulatedTask[]
      /** By edge index; dependencies within a resource or without bytes have none. */
      transfers: SimulatedTransfer[]
      makespanSeconds: number
      cost: number
      /** Sums over the tasks; they may exceed the makespan. */
      breakdown: Breakdown
      transferredBytes: number
    }
  /** The plan cannot run on this topology; the reason names the fault. */
  | { state: 'failed'; reason: string }

/** A plan on its problem, for all parts of a simulation. */
interface Scene {
  problem: PlanningProblem
  plan: readonly Placed[]
  network: Network
  /** Whether a dependency moves bytes from one resource to another. */
  crosses: (edge: number) => boolean
}

/** Why flows of the plan have no route; undefined where each has one. */
function unreachable({ problem, plan, crosses }: Scene, routes: Routes): string | undefined {
  const { activities, edges, resources } = problem
  const flows = edges.flatMap(({ from, to, bytes }, edge) =>
    crosses(edge) && !routes.reachable(plan[from]!.resource, plan[to]!.resource)
      ? [
          `${bytes} bytes from ${quote(activities[from]!.id)} on ` +
            `${quote(resources[plan[from]!.resource]!.id)} to ${quote(activities[to]!.id)} on ` +
            quote(resources[plan[to]!.resource]!.id),
        ]
      : [],
  )
  if (flows.length === 0) return undefined
  const more = flows.length > 5 ? `, and ${flows.length - 5} more` : ''
  return `no route for ${flows.slice(0, 5).join(', ')}${more}`
}

/**
 * Plays all events of a plan. `waits`: the dependencies, then the orders of the lanes. Fills
 * `tasks` and `arrivals` (by dependency), and returns how many tasks have finished.
 * @throws RangeError on a time that is not a number, as of a duration or bandwidth of NaN
 */
function playEvents(
  { problem, plan, network, crosses }: Scene,
  waits: readonly IndexEdge[],
  tasks: readonly SimulatedTask[],
  arrivals: Float64Array,
): number {
  const { activities, edges } = problem
  const n = activities.length
  const out = adjacency(n, waits, 'from')
  const incoming = adjacency(n, edges, 'to')
  const missing = new Int32Array(n)
  for (const { to } of waits) missing[to]!++
  const rankOf = ranks(activities.map(({ id }) => id))
  const running = new TimeHeap(n)
  let now = 0
  let finished = 0

  const start = (activity: number): void => {
    const task = tasks[activity]!
    let alone = 0
    for (let k = incoming.start[activity]!; k < incoming.start[activity + 1]!; k++) {
      const edge = incoming.edge[k]!
      const { from, bytes } = edges[edge]!
      const producer = tasks[from]!
      task.readyAt = Math.max(task.readyAt, producer.finishedAt)
      task.dataReadyAt = Math.max(task.dataReadyAt, arrivals[edge]!)
      if (crosses(edge)) task.transferBytes += bytes
      const quiet = crosses(edge)
        ? network.channel(producer.resource, task.resource, bytes)!.aloneSeconds(bytes)
        : 0
      alone = Math.max(alone, producer.finishedAt + quiet)
    }
    task.startedAt = now
    task.transferSeconds = task.dataReadyAt - task.readyAt
    task.queueSeconds = now - task.dataReadyAt
    // Where flows are alone both are the same sum, up to rounding, which must not be reported as
    // interference.
    const lost = task.dataReadyAt - alone
    task.interferenceSeconds = lost > 1e-9 * Math.max(1, task.dataReadyAt) ? lost : 0
    task.finishedAt = now + (task.overheadSeconds + task.runtimeSeconds)
    running.set(activity, task.finishedAt)
  }
  const waking = new TimeHeap(n)
  /** A resource that is not there yet starts its tasks when it is. */
  const startOnceThere = (activity: number): void => {
    const thereAt = problem.resources[plan[activity]!.resource]!.availableAt ?? 0
    if (now < thereAt) waking.set(activity, thereAt)
    else start(activity)
  }
  const release = (activity: number): void => {
    if (--missing[activity]! === 0) startOnceThere(activity)
  }
  /**
   * Releases the tasks that waited for a finished activity; its flows are collected, and added
   * together with those of the same moment.
   */
  const finish = (activity: number, flows: FlowRequest[]): void => {
    finished++
    for (let k = out.start[activity]!; k < out.start[activity + 1]!; k++) {
      const edge = out.edge[k]!
      const { to } = waits[edge]!
      if (edge < edges.length && crosses(edge)) {
        flows.push({
          id: edge,
          from: plan[activity]!.resource,
          to: plan[to]!.resource,
          bytes: edges[edge]!.bytes,
          rank: rankOf[to]! * n + rankOf[activity]!,
        })
        continue
      }
      if (edge < edges.length) arrivals[edge] = now
      release(to)
    }
  }

  for (let activity = 0; activity < n; activity++) if (missing[activity] === 0) startOnceThere(activity)
  while (finished < n) {
    now = Math.min(running.time, network.nextTime(), waking.time)
    if (now === Infinity) break
    // No time is before or after NaN, so nothing would ever end.
    if (Number.isNaN(now)) throw new RangeError('a time of the simulation is not a number (NaN)')
    for (const edge of network.advance(now)) {
      arrivals[edge] = now
      release(edges[edge]!.to)
    }
    while (waking.time <= now) start(waking.pop()!)
    const flows: FlowRequest[] = []
    while (running.time <= now) finish(running.pop()!, flows)
    network.request(flows)
  }
  return finished
}

/** The flows of a played plan; their cost goes to their consumers. */
function transfersOf(
  { problem: { edges, links }, plan, network, crosses }: Scene,
  tasks: readonly SimulatedTask[],
  arrivals: Float64Array,
): SimulatedTransfer[] {
  return edges.flatMap(({ from, to, bytes }, edge): SimulatedTransfer[] => {
    if (!crosses(edge)) return []
    const { route } = network.channel(plan[from]!.resource, plan[to]!.resource, bytes)!
    const cost = bytes * route.pricePerByte
    tasks[to]!.cost += cost
    return [
      {
        edge,
        producer: from,
        consumer: to,
        source: plan[from]!.resource,
        target: plan[to]!.resource,
        bytes,
        readyAt: tasks[from]!.finishedAt,
        startedAt: network.startedAt(edge),
        finishedAt: arrivals[edge]!,
        links: route.links.map((link) => links![link]!.id),
        cost,
      },
    ]
  })
}

/** Adds the price of computing to the tasks, and sums their time by cause. */
function priceAndSum(problem: PlanningProblem, tasks: readonly SimulatedTask[]): Breakdown {
  const timed = tasks.map(({ resource, startedAt, finishedAt, runtimeSeconds }) => ({
    resource,
    startAt: startedAt,
    finishAt: finishedAt,
    runtimeSeconds,
  }))
  const windows = windowCosts(problem, timed)
  const breakdown: Breakdown = {
    computeSeconds: 0,
    transferSeconds: 0,
    queueSeconds: 0,
    interferenceSeconds: 0,
    overheadSeconds: 0,
  }
  for (const task of tasks) {
    const { activeWindow, pricePerSecond } = problem.resources[task.resource]!
    task.cost += activeWindow
      ? windows[task.activity]!
      : (task.overheadSeconds + task.runtimeSeconds) * pricePerSecond
    breakdown.computeSeconds += task.runtimeSeconds
    breakdown.transferSeconds += task.transferSeconds
    breakdown.queueSeconds += task.queueSeconds
    breakdown.interferenceSeconds += task.interferenceSeconds
    breakdown.overheadSeconds += task.overheadSeconds
  }
  return breakdown
}

/**
 * Plays a fixed plan: all decisions follow from it. A task starts when all data has arrived, all
 * predecessors and the previous task of each of its lanes have finished; it occupies its lanes for
 * boot (first use of one of them), container and runtime. A flow leaves when its producer finishes.
 * Deterministic, without clock or randomness.
 */
export function simulate(
  problem: PlanningProblem,
  plan: readonly Placed[],
  model: NetworkModel = 'by-policy',
): SimulationResult {
  const { activities, edges, links } = problem
  const n = activities.length
  if (plan.length !== n)
    return { state: 'failed', reason: `the plan places ${plan.length} activities, the workflow has ${n}` }
  const routes = networkRoutesOf(problem)
  const network = new Network(problem, routes, model)
  const crosses = (edge: number): boolean => {
    const { from, to, bytes } = edges[edge]!
    return bytes > 0 && links !== undefined && plan[from]!.resource !== plan[to]!.resource
  }
  const scene: Scene = { problem, plan, network, crosses }
  const reason = unreachable(scene, routes)
  if (reason !== undefined) return { state: 'failed', reason }

  const lanes = laneOrders(plan)
  const waits: IndexEdge[] = [...edges, ...lanes.edges]
  const tasks = plan.map(({ resource }, activity) =>
    untouched(problem, activity, resource, lanes.first[activity] === 1),
  )
  const arrivals = new Float64Array(edges.length)
  if (playEvents(scene, waits, tasks, arrivals) < n) {
    const cycle = findCycle(n, waits) ?? []
    return {
      state: 'failed',
      reason:
        'the lane orders contradict the dependencies: ' +
        describeCycle(cycle.map((activity) => activities[activity]!.id)),
    }
  }
  const transfers = transfersOf(scene, tasks, arrivals)
  const breakdown = priceAndSum(problem, tasks)
  return {
    state: 'completed',
    tasks,
    transfers,
    ...totals(
      tasks.map(({ startedAt, finishedAt, cost }) => ({ startAt: startedAt, finishAt: finishedAt, cost })),
    ),
    breakdown,
    transferredBytes: transfers.reduce((sum, { bytes }) => sum + bytes, 0),
  }
}

/** A task before its start. `boots`: it is the first use of one of its lanes. */
function untouched(
  { resources, durations }: PlanningProblem,
  activity: number,
  resource: number,
  boots: boolean,
): SimulatedTask {
  const boot = boots ? resources[resource]!.bootOverheadSeconds : 0
  const container = resources[resource]!.containerOverheadSeconds
  return {
    activity,
    resource,
    readyAt: 0,
    dataReadyAt: 0,
    startedAt: 0,
    finishedAt: 0,
    runtimeSeconds: durations[activity * resources.length + resource]!,
    queueSeconds: 0,
    transferSeconds: 0,
    transferBytes: 0,
    interferenceSeconds: 0,
    overheadSeconds: boot + container,
    bootOverheadSeconds: boot,
    containerOverheadSeconds: container,
    cost: 0,
  }
}

const quote = (id: string): string => JSON.stringify(id)

/** The order of the ids by code unit, as numbers. */
function ranks(ids: readonly string[]): Int32Array {
  const rank = new Int32Array(ids.length)
  const sorted = [...ids.keys()].sort((a, b) => (ids[a]! < ids[b]! ? -1 : ids[a]! > ids[b]! ? 1 : a - b))
  sorted.forEach((activity, index) => (rank[activity] = index))
  return rank
}

/**
 * The waits from lanes (each task for the one before it on each lane), and for each task whether it
 * is the first on one of its lanes.
 */
function laneOrders(plan: readonly Placed[]): { edges: IndexEdge[]; first: Uint8Array } {
  const lanes = new Map<string, number[]>()
  plan.forEach(({ resource, lanes: held }, activity) => {
    for (const lane of new Set(held)) {
      const key = `${resource}\0${lane}`
      const tasks = lanes.get(key)
      if (tasks === undefined) lanes.set(key, [activity])
      else tasks.push(activity)
    }
  })
  const edges: IndexEdge[] = []
  const first = new Uint8Array(plan.length)
  for (const tasks of lanes.values()) {
    tasks.sort((a, b) => plan[a]!.orderOnResource - plan[b]!.orderOnResource || a - b)
    first[tasks[0]!] = 1
    for (let i = 1; i < tasks.length; i++) edges.push({ from: tasks[i - 1]!, to: tasks[i]! })
  }
  return { edges, first }
}
