import type { Adjacency } from './graph.ts'
import type { PlanningProblem } from './problem.ts'
import { routeSeconds, type Routes } from './routes.ts'

/** Seconds and price from each resource to each other, computed row by row at first use. */
export class TransferTable {
  readonly #problem: PlanningProblem
  readonly #routes: Routes
  readonly #rows: ({ latency: Float64Array; perByte: Float64Array; bySize: boolean } | undefined)[]

  constructor(problem: PlanningProblem, routes: Routes) {
    this.#problem = problem
    this.#routes = routes
    this.#rows = problem.resources.map(() => undefined)
  }

  /**
   * Raises `ready[r]` to the arrival at each resource r of data that leaves `source` at `finished`.
   */
  arrivals(source: number, finished: number, bytes: number, ready: Float64Array): void {
    const width = ready.length
    if (bytes === 0 || this.#problem.links === undefined) {
      for (let at = 0; at < width; at++) if (finished > ready[at]!) ready[at] = finished
      return
    }
    const { latency, perByte, bySize } = (this.#rows[source] ??= this.#row(source))
    for (let at = 0; at < width; at++) {
      const seconds = bySize ? this.#seconds(source, at, bytes) : latency[at]! + bytes * perByte[at]!
      const arrival = finished + seconds
      if (arrival > ready[at]!) ready[at] = arrival
    }
  }

  /** The cost of moving the activity's inputs to `at`. */
  cost(activity: number, at: number, incoming: Adjacency, resourceOf: (activity: number) => number): number {
    let cost = 0
    for (let k = incoming.start[activity]!; k < incoming.start[activity + 1]!; k++) {
      const { from, bytes } = this.#problem.edges[incoming.edge[k]!]!
      const source = bytes > 0 ? resourceOf(from) : at
      if (source !== at) cost += bytes * (this.#routes.between(source, at, bytes)?.pricePerByte ?? 0)
    }
    return cost
  }

  #seconds(source: number, target: number, bytes: number): number {
    if (source === target) return 0
    const route = this.#routes.between(source, target, bytes)
    return route === undefined ? Infinity : routeSeconds(route, bytes)
  }

  #row(source: number): { latency: Float64Array; perByte: Float64Array; bySize: boolean } {
    const width = this.#problem.resources.length
    const latency = new Float64Array(width)
    const perByte = new Float64Array(width)
    let bySize = false
    for (let target = 0; target < width; target++) {
      if (target === source) continue
      const candidates = this.#routes.all(source, target)
      if (candidates.length > 1) bySize = true
      latency[target] = candidates[0]?.latencySeconds ?? Infinity
      perByte[target] = candidates[0] === undefined ? 0 : 8 / candidates[0].bandwidthBitsPerSecond
    }
    return { latency, perByte, bySize }
  }
}
