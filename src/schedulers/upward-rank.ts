import { CyclicWorkflow } from './algorithm.ts'
import { only, taskPlacesOf, type Choices } from './fit.ts'
import { adjacency, findCycle, topologicalOrder, type Adjacency } from './graph.ts'
import type { PlanningProblem } from './problem.ts'
import type { Routes } from './routes.ts'

/** The dependencies of a problem: a topological order, and the edges by producer and consumer. */
export interface Graph {
  order: Int32Array
  out: Adjacency
  incoming: Adjacency
}

/** @throws CyclicWorkflow where the dependencies have a cycle */
export function graphOf(problem: PlanningProblem): Graph {
  const n = problem.activities.length
  const out = adjacency(n, problem.edges, 'from')
  const order = topologicalOrder(n, problem.edges, out)
  if (order === undefined)
    throw new CyclicWorkflow(findCycle(n, problem.edges)!.map((activity) => problem.activities[activity]!.id))
  return { order, out, incoming: adjacency(n, problem.edges, 'to') }
}

/**
 * Drops, from the last activities to the first, resources from which some consumer of data could
 * not be reached on any resource.
 */
export function withReachableConsumers(
  problem: PlanningProblem,
  routes: Routes,
  { order, out }: Graph,
  choices: readonly Choices[],
): Choices[] {
  const kept = [...choices]
  for (let i = order.length - 1; i >= 0; i--) {
    const activity = order[i]!
    const consumers: Choices[] = []
    for (let k = out.start[activity]!; k < out.start[activity + 1]!; k++) {
      const edge = problem.edges[out.edge[k]!]!
      if (edge.bytes > 0) consumers.push(kept[edge.to]!)
    }
    kept[activity] = only(kept[activity]!, (from) =>
      consumers.every(({ resources }) => resources.some((to) => routes.reachable(from, to))),
    )
  }
  return kept
}

/**
 * Sources of the mean of the network at most, at equal distances among the places: all routes of a
 * thousand places are a million, whatever the workflow is.
 */
const mostSources = 128

/**
 * Mean seconds over ordered pairs of different places of a task for a flow, from `mostSources` of
 * them to all: `latency + bytes · perByte`.
 */
interface MeanNetwork {
  latency: number
  perByte: number
}

function meanNetwork(problem: PlanningProblem, routes: Routes, choices: readonly Choices[]): MeanNetwork {
  const moving = problem.edges.filter(({ bytes }) => bytes > 0)
  const typical = moving.length === 0 ? 0 : moving.reduce((sum, { bytes }) => sum + bytes, 0) / moving.length
  let latency = 0
  let perByte = 0
  let pairs = 0
  if (problem.links === undefined || typical === 0) return { latency, perByte }
  const places = taskPlacesOf(choices)
  const count = Math.min(places.length, mostSources)
  for (let k = 0; k < count; k++) {
    const from = places[Math.floor((k * places.length) / count)]!
    for (const to of places) {
      const route = from === to ? undefined : routes.between(from, to, typical)
      if (route === undefined) continue
      latency += route.latencySeconds
      perByte += 8 / route.bandwidthBitsPerSecond
      pairs++
    }
  }
  return pairs === 0 ? { latency, perByte } : { latency: latency / pairs, perByte: perByte / pairs }
}

/**
 * Activities by falling upward rank; equal ranks keep the topological order, so the sequence is
 * itself a topological order.
 */
export function byUpwardRank(
  problem: PlanningProblem,
  routes: Routes,
  { order, out }: Graph,
  choices: readonly Choices[],
): Int32Array {
  const n = order.length
  const width = problem.resources.length
  const network = meanNetwork(problem, routes, choices)
  const rank = new Float64Array(n)
  const position = new Int32Array(n)
  for (let i = n - 1; i >= 0; i--) {
    const activity = order[i]!
    position[activity] = i
    let longest = 0
    for (let k = out.start[activity]!; k < out.start[activity + 1]!; k++) {
      const { to, bytes } = problem.edges[out.edge[k]!]!
      const communication = bytes > 0 ? network.latency + bytes * network.perByte : 0
      longest = Math.max(longest, communication + rank[to]!)
    }
    const { resources } = choices[activity]!
    let total = 0
    for (let k = 0; k < resources.length; k++) {
      const at = resources[k]!
      total += problem.durations[activity * width + at]! + problem.resources[at]!.containerOverheadSeconds
    }
    rank[activity] = longest + total / resources.length
  }
  return Int32Array.from(order).sort((a, b) => rank[b]! - rank[a]! || position[a]! - position[b]!)
}
