import {
  Infeasible,
  problemSize,
  type Algorithm,
  type AlgorithmOptions,
  type AlgorithmStep,
} from './algorithm.ts'
import { optionsFor } from './beam-size.ts'
import { beamSearch } from './beam.ts'
import { evaluate, lowerBound, type Placement } from './estimate.ts'
import { choicesOf, only, whyNowhere, type Choices } from './fit.ts'
import { LanePool } from './lane-pool.ts'
import type { PlanningProblem, Schedule } from './problem.ts'
import { networkRoutesOf, type Routes } from './routes.ts'
import { TransferTable } from './transfer-table.ts'
import { byUpwardRank, graphOf, withReachableConsumers, type Graph } from './upward-rank.ts'

/** Activities placed between two reports of progress. */
const reportEvery = 4096

/** Groups of resources that are tried alone at most, those with the most lanes. */
const mostIslands = 8

/** Partial schedules kept by the search for a schedule where no construction makes one. */
const fallback = { beamWidth: 16, readyBranchLimit: 1 }

/**
 * Heterogeneous Earliest Finish Time (Topcuoglu, Hariri, Wu 2002) with insertion: activities by
 * upward rank (mean duration plus mean communication along the longest way to the end), each put
 * where it finishes first, also into gaps between tasks already placed. Equal finishes are decided
 * by cost, then the order of the resources, then that of the lanes.
 */
export const heft: Algorithm = {
  descriptor: {
    id: 'heft',
    name: 'HEFT',
    objective: 'time',
    multiple: false,
    description:
      'Heterogeneous Earliest Finish Time: activities by their distance to the end, each where it ' +
      'finishes first, gaps included.',
  },
  estimate: ({ expandedStates, dependencyCount }) => ({
    durationSeconds: Math.round((0.05 + expandedStates * 5.5e-7 + dependencyCount * 1e-6) * 10) / 10,
  }),
  plan,
}

/**
 * One construction: `workDone` counts the examined pairs of activity and resource, and `maxWork`
 * has nothing to cut.
 */
function* plan(problem: PlanningProblem, _options: AlgorithmOptions): Generator<AlgorithmStep, void, void> {
  const graph = graphOf(problem)
  const routes = networkRoutesOf(problem)
  const choices = choicesOf(problem)
  refuseWithoutChoice(problem, choices, (activity) => whyNowhere(problem, activity))
  const bound = lowerBound(problem, choices)
  const { schedule, workDone } = yield* best(problem, routes, graph, choices, bound)
  yield { best: schedule, bound, workDone, progress: 1 }
}

interface Result {
  schedule: Schedule
  workDone: number
}

/**
 * One construction over all resources where every resource reaches every other. Otherwise an early
 * choice can leave a later activity without a resource that all its producers reach. So groups
 * ("islands") of mutually reachable resources are tried alone as well, and one island for each part
 * of the workflow that data joins. The shortest schedule wins. Where none is complete, a narrow beam
 * search goes on from several choices for each activity.
 */
function* best(
  problem: PlanningProblem,
  routes: Routes,
  graph: Graph,
  choices: Choices[],
  bound: number,
): Generator<AlgorithmStep, Result, void> {
  const moving = problem.edges.some(({ bytes }) => bytes > 0)
  const islands = moving
    ? islandsOf(problem.resources.length, routes)
    : [problem.resources.map((_, index) => index)]
  if (islands.length === 1) {
    const found = yield* construct(problem, routes, graph, choices, bound)
    return { schedule: evaluate(problem, routes, found.placement), workDone: found.workDone }
  }
  const reachable = withReachableConsumers(problem, routes, graph, choices)
  refuseWithoutChoice(
    problem,
    reachable,
    () => 'no resource that it fits on has a route to the resources of its consumers',
  )
  let result: Result | undefined
  let workDone = 0
  let refusal: Infeasible | undefined
  for (const attempt of attempts(problem, islands, choices, reachable, () => result)) {
    try {
      const found = yield* construct(problem, routes, graph, attempt, bound)
      workDone += found.workDone
      const schedule = evaluate(problem, routes, found.placement)
      if (result === undefined || schedule.makespanSeconds < result.schedule.makespanSeconds)
        result = { schedule, workDone }
    } catch (error) {
      if (!(error instanceof Infeasible)) throw error
      refusal ??= error
    }
  }
  if (result !== undefined) return { ...result, workDone }
  const found = yield* searched(problem, routes, graph, reachable, bound)
  if (found === undefined) throw refusal!
  return found
}

/** The shortest schedule of a narrow beam search; undefined where it finds none. */
function* searched(
  problem: PlanningProblem,
  routes: Routes,
  graph: Graph,
  choices: readonly Choices[],
  bound: number,
): Generator<AlgorithmStep, Result | undefined, void> {
  const { beamWidth, readyBranchLimit, placements } = optionsFor(problemSize(problem), fallback)
  if (beamWidth === 0) return undefined
  const limits = { objective: 'time' as const, beamWidth, readyBranchLimit, deadlineSeconds: 0, budget: 0 }
  const search = beamSearch(problem, routes, graph, choices, limits)
  const n = problem.activities.length
  const workDone = placements * beamWidth
  let step = search.next()
  for (; step.done !== true; step = search.next())
    yield { best: undefined, bound, workDone, progress: step.value / n }
  const schedules = step.value.map((placement) => evaluate(problem, routes, placement))
  if (schedules.length === 0) return undefined
  return {
    schedule: schedules.reduce((a, b) => (b.makespanSeconds < a.makespanSeconds ? b : a)),
    workDone,
  }
}

/**
 * The choices of each construction, made when it is asked for. An island that holds every activity
 * is tried alone, unless its lanes need as long for the work as the best schedule takes.
 */
function* attempts(
  problem: PlanningProblem,
  islands: readonly (readonly number[])[],
  choices: readonly Choices[],
  reachable: readonly Choices[],
  best: () => Result | undefined,
): Generator<readonly Choices[], void, void> {
  yield reachable
  const islandOf = new Int32Array(problem.resources.length)
  islands.forEach((island, index) => island.forEach((at) => (islandOf[at] = index)))
  const work = leastByIsland(problem, islandOf, choices, choices.keys(), (seconds, lanes) => seconds * lanes)
  const lanes = islands.map((island) =>
    island.reduce((sum, at) => sum + (problem.resources[at]!.opaque ? 1 : problem.resources[at]!.lanes), 0),
  )
  const tried = [...islands.keys()]
    .filter((island) => work[island]! < Infinity)
    .sort((a, b) => lanes[b]! - lanes[a]!)
    .slice(0, mostIslands)
    .sort((a, b) => a - b)
  for (const island of tried)
    if (work[island]! / lanes[island]! < (best()?.schedule.makespanSeconds ?? Infinity))
      yield choices.map((choice) => only(choice, (at) => islandOf[at] === island))
  yield joinedByData(problem, islandOf, reachable)
}

/**
 * By island: the sum of the least that each of the activities takes there; Infinity where one of
 * them fits nowhere there.
 */
function leastByIsland(
  { durations, resources }: PlanningProblem,
  islandOf: Int32Array,
  choices: readonly Choices[],
  activities: Iterable<number>,
  taken: (seconds: number, lanes: number) => number,
): Float64Array {
  const count = islandOf.reduce((most, island) => Math.max(most, island + 1), 0)
  const sums = new Float64Array(count)
  const least = new Float64Array(count)
  for (const activity of activities) {
    least.fill(Infinity)
    choices[activity]!.resources.forEach((at, k) => {
      const seconds = durations[activity * resources.length + at]! + resources[at]!.containerOverheadSeconds
      const island = islandOf[at]!
      least[island] = Math.min(least[island]!, taken(seconds, choices[activity]!.lanes[k]!))
    })
    least.forEach((own, island) => (sums[island]! += own))
  }
  return sums
}

function refuseWithoutChoice(
  problem: PlanningProblem,
  choices: readonly Choices[],
  reason: (activity: number) => string,
): void {
  const nowhere = choices.flatMap(({ resources }, activity) =>
    resources.length === 0 ? [{ id: problem.activities[activity]!.id, reason: reason(activity) }] : [],
  )
  if (nowhere.length > 0) throw new Infeasible(nowhere)
}

/** Groups of resources that reach each other in both directions, by their smallest member. */
function islandsOf(width: number, routes: Routes): number[][] {
  const islands: number[][] = []
  for (let resource = 0; resource < width; resource++) {
    const island = islands.find(
      ([first]) => routes.reachable(first!, resource) && routes.reachable(resource, first!),
    )
    if (island === undefined) islands.push([resource])
    else island.push(resource)
  }
  return islands
}

/**
 * Choices that keep activities which data joins, directly or over others, on the group of resources
 * on which they take least seconds together. The choices stay as they are where no group holds all.
 */
function joinedByData(
  problem: PlanningProblem,
  islandOf: Int32Array,
  choices: readonly Choices[],
): Choices[] {
  const root = Int32Array.from(choices.keys())
  const rootOf = (activity: number): number => {
    let at = activity
    while (root[at] !== at) at = root[at] = root[root[at]!]!
    return at
  }
  for (const { from, to, bytes } of problem.edges) if (bytes > 0) root[rootOf(from)] = rootOf(to)
  const kept = [...choices]
  for (const members of Map.groupBy(choices.keys(), rootOf).values()) {
    if (members.length === 1) continue
    const seconds = leastByIsland(problem, islandOf, choices, members, (own) => own)
    const best = seconds.indexOf(seconds.reduce((a, b) => Math.min(a, b)))
    if (seconds[best] === Infinity) continue
    for (const activity of members) kept[activity] = only(choices[activity]!, (at) => islandOf[at] === best)
  }
  return kept
}

function* construct(
  problem: PlanningProblem,
  routes: Routes,
  graph: Graph,
  choices: readonly Choices[],
  bound: number,
): Generator<AlgorithmStep, { placement: Placement; workDone: number }, void> {
  const n = problem.activities.length
  const width = problem.resources.length
  const { edges, durations } = problem
  const { incoming } = graph
  const sequence = byUpwardRank(problem, routes, graph, choices)
  const resource = new Int32Array(n)
  const resourceOf = (activity: number): number => resource[activity]!
  const lanes = new Array<readonly number[]>(n)
  const start = new Float64Array(n)
  const finish = new Float64Array(n)
  const pools = problem.resources.map((each) => new LanePool(each.opaque ? 1 : each.lanes))
  const network = new TransferTable(problem, routes)
  const ready = new Float64Array(width)
  let workDone = 0
  for (let i = 0; i < n; i++) {
    if (i > 0 && i % reportEvery === 0) yield { best: undefined, bound, workDone, progress: i / n }
    const activity = sequence[i]!
    const choice = choices[activity]!
    ready.fill(0)
    for (let k = incoming.start[activity]!; k < incoming.start[activity + 1]!; k++) {
      const edge = edges[incoming.edge[k]!]!
      network.arrivals(resource[edge.from]!, finish[edge.from]!, edge.bytes, ready)
    }
    let chosen = -1
    let chosenStart = 0
    let chosenFinish = Infinity
    let chosenCost: number | undefined
    for (let k = 0; k < choice.resources.length; k++) {
      const at = choice.resources[k]!
      const { bootOverheadSeconds: boot, containerOverheadSeconds, pricePerSecond } = problem.resources[at]!
      const seconds = durations[activity * width + at]! + containerOverheadSeconds
      const readyAt = Math.max(ready[at]!, problem.resources[at]!.availableAt ?? 0)
      if (!(readyAt + seconds <= chosenFinish) || readyAt === Infinity) continue
      const pool = pools[at]!
      pool.find(choice.lanes[k]!, readyAt, seconds, boot)
      if (pool.finish > chosenFinish || pool.finish === Infinity) continue
      if (pool.finish === chosenFinish) {
        // Costs are compared on ties only; the held candidate's is computed when the first tie with
        // it appears.
        chosenCost ??=
          (chosenFinish - chosenStart) * problem.resources[chosen]!.pricePerSecond +
          network.cost(activity, chosen, incoming, resourceOf)
        const rival =
          (pool.finish - pool.start) * pricePerSecond + network.cost(activity, at, incoming, resourceOf)
        if (rival >= chosenCost) continue
        chosenCost = rival
      } else {
        chosenCost = undefined
      }
      chosen = at
      chosenStart = pool.start
      chosenFinish = pool.finish
    }
    workDone += choice.resources.length
    if (chosen === -1)
      throw new Infeasible([
        {
          id: problem.activities[activity]!.id,
          reason: 'no resource that it fits on has a route from every producer of its data',
        },
      ])
    const k = choice.resources.indexOf(chosen)
    const { bootOverheadSeconds: boot, containerOverheadSeconds } = problem.resources[chosen]!
    const pool = pools[chosen]!
    pool.find(
      choice.lanes[k]!,
      Math.max(ready[chosen]!, problem.resources[chosen]!.availableAt ?? 0),
      durations[activity * width + chosen]! + containerOverheadSeconds,
      boot,
    )
    lanes[activity] = pool.take()
    resource[activity] = chosen
    start[activity] = chosenStart
    finish[activity] = chosenFinish
  }
  const position = new Int32Array(n)
  sequence.forEach((activity, index) => (position[activity] = index))
  sequence.sort((a, b) => start[a]! - start[b]! || finish[a]! - finish[b]! || position[a]! - position[b]!)
  return { placement: { resource, lanes, sequence }, workDone }
}
