import { Heap } from './heap.ts'
import type { PlanningProblem, ProblemLink } from './problem.ts'

/**
 * A path through the topology that can be the fastest one for some size. One flow of `b` bytes
 * alone on it takes `latencySeconds + b · 8 / bandwidthBitsPerSecond` (domain-reference 6: bytes
 * against bits).
 */
export interface NetworkRoute {
  /** Indices into `problem.links`, in the direction of travel. */
  links: readonly number[]
  /** For each link whether it is travelled from its source to its target. */
  forward: readonly boolean[]
  latencySeconds: number
  /** Of the narrowest link. */
  bandwidthBitsPerSecond: number
  /** Σ over the links. */
  pricePerByte: number
}

/** Seconds for one flow of `bytes` alone on the route. */
export const routeSeconds = (route: NetworkRoute, bytes: number): number =>
  route.latencySeconds + (bytes * 8) / route.bandwidthBitsPerSecond

/**
 * The routes of a topology. Every query names a size, because a path with more latency and a wider
 * bottleneck is faster only above some size. For each pair it keeps the paths that no other path
 * beats in both, which is exact for every size.
 */
export interface Routes {
  /**
   * The fastest path for `bytes`; equal ones are decided by lower price, then fewer links, then the
   * smaller link indices. Undefined: unreachable. Source and target must differ.
   */
  between(source: number, target: number, bytes: number): NetworkRoute | undefined
  /** All candidates of a pair by rising latency (and rising bandwidth); empty: unreachable. */
  all(source: number, target: number): readonly NetworkRoute[]
  reachable(source: number, target: number): boolean
}

const here: NetworkRoute = {
  links: [],
  forward: [],
  latencySeconds: 0,
  bandwidthBitsPerSecond: Infinity,
  pricePerByte: 0,
}
const local: readonly NetworkRoute[] = [here]

/**
 * Computed per source at its first query of a route; what is reachable is known without routes.
 * Without a topology there is no network: every transfer
 * takes no time and costs nothing.
 */
export function networkRoutesOf(problem: Pick<PlanningProblem, 'links' | 'resources'>): Routes {
  const { links } = problem
  const n = problem.resources.length
  const tables = new Array<NetworkRoute[][] | undefined>(n)
  const reached = new Array<Uint8Array | undefined>(n)
  const hops = links === undefined ? [] : hopsBySource(n, links)
  const all = (source: number, target: number): readonly NetworkRoute[] => {
    if (links === undefined || source === target) return local
    const table = (tables[source] ??= routesFrom(source, n, links, hops))
    return table[target]!
  }
  return {
    all,
    reachable: (source, target) =>
      links === undefined ||
      source === target ||
      (reached[source] ??= reachedFrom(source, hops))[target] === 1,
    between: (source, target, bytes) => {
      const candidates = all(source, target)
      let best = candidates[0]
      for (let i = 1; i < candidates.length; i++)
        if (faster(candidates[i]!, best!, bytes)) best = candidates[i]
      return best
    },
  }
}

function faster(a: NetworkRoute, b: NetworkRoute, bytes: number): boolean {
  const seconds = routeSeconds(a, bytes) - routeSeconds(b, bytes)
  return seconds < 0 || (seconds === 0 && tieBreak(a, b) < 0)
}

function tieBreak(a: NetworkRoute, b: NetworkRoute): number {
  if (a.pricePerByte !== b.pricePerByte) return a.pricePerByte - b.pricePerByte
  if (a.links.length !== b.links.length) return a.links.length - b.links.length
  for (let i = 0; i < a.links.length; i++) if (a.links[i] !== b.links[i]) return a.links[i]! - b.links[i]!
  return 0
}

interface Hop {
  link: number
  to: number
  forward: boolean
}

function hopsBySource(n: number, links: readonly ProblemLink[]): Hop[][] {
  const hops = Array.from({ length: n }, (): Hop[] => [])
  links.forEach((link, index) => {
    hops[link.source]!.push({ link: index, to: link.target, forward: true })
    if (link.bidirectional) hops[link.target]!.push({ link: index, to: link.source, forward: false })
  })
  return hops
}

/** By resource: 1 where a path leads there from the source. */
function reachedFrom(source: number, hops: readonly Hop[][]): Uint8Array {
  const reached = new Uint8Array(hops.length)
  reached[source] = 1
  const open = [source]
  for (let at = open.pop(); at !== undefined; at = open.pop())
    for (const { to } of hops[at]!) {
      if (reached[to] === 1) continue
      reached[to] = 1
      open.push(to)
    }
  return reached
}

/**
 * Dijkstra by latency with labels (latency, bottleneck): a label is final when no final label at
 * its node is at least as good in both. Labels leave the queue by latency, then wider bottleneck,
 * then the tie-break, so the first of equal ones is kept.
 */
function routesFrom(
  source: number,
  n: number,
  links: readonly ProblemLink[],
  hops: readonly Hop[][],
): NetworkRoute[][] {
  const final = Array.from({ length: n }, (): NetworkRoute[] => [])
  const queue = new Heap<Label>(before)
  queue.push({ node: source, route: here })
  for (let label = queue.pop(); label !== undefined; label = queue.pop()) {
    const kept = final[label.node]!
    const widest = kept.at(-1)
    if (widest !== undefined && widest.bandwidthBitsPerSecond >= label.route.bandwidthBitsPerSecond) continue
    kept.push(label.route)
    for (const { link: index, to, forward } of hops[label.node]!) {
      const link = links[index]!
      const bandwidth = Math.min(label.route.bandwidthBitsPerSecond, link.bandwidthBitsPerSecond)
      const dominated = (final[to]!.at(-1)?.bandwidthBitsPerSecond ?? 0) >= bandwidth
      if (to === source || dominated) continue
      queue.push({
        node: to,
        route: {
          links: [...label.route.links, index],
          forward: [...label.route.forward, forward],
          latencySeconds: label.route.latencySeconds + link.latencySeconds,
          bandwidthBitsPerSecond: bandwidth,
          pricePerByte: label.route.pricePerByte + link.pricePerByte,
        },
      })
    }
  }
  return final
}

interface Label {
  node: number
  route: NetworkRoute
}

function before(a: Label, b: Label): boolean {
  if (a.route.latencySeconds !== b.route.latencySeconds)
    return a.route.latencySeconds < b.route.latencySeconds
  if (a.route.bandwidthBitsPerSecond !== b.route.bandwidthBitsPerSecond)
    return a.route.bandwidthBitsPerSecond > b.route.bandwidthBitsPerSecond
  return tieBreak(a.route, b.route) < 0
}
