import type { ProblemLink } from '../schedulers/problem.ts'
import type { NetworkRoute, Routes } from '../schedulers/routes.ts'

/**
 * How flows share links.
 * - `contention-free`: every flow has every link for itself without a limit of concurrent
 *   transfers: HEFT's assumption during construction.
 * - `max-min`: all links are shared, `fatpipe` and `independent` ones too; `by-policy`: those with
 *   a shared
 *   policy. Weighted max-min fairness as SimGrid has it (the weight of a flow is 1
 *   / the latency of its route, 1 where that is 0), exact times.
 * - `lv08`, `cm02`: SimGrid's models of these names, links by policy: factors on latency and
 *   bandwidth, 5 % cross traffic on the way back, the TCP window.
 */
export const networkModels = ['contention-free', 'max-min', 'by-policy', 'lv08', 'cm02'] as const
export type NetworkModel = (typeof networkModels)[number]

export const isNetworkModel = (text: string): text is NetworkModel =>
  (networkModels as readonly string[]).includes(text)

interface Physics {
  latencyFactor: number
  bandwidthFactor: number
  /** Part of a flow's rate that its acknowledgements take on the way back. */
  crossTraffic: number
  /** Bytes; a flow is no faster than half of it per latency. Infinity: no window. */
  tcpWindow: number
  /**
   * Bytes; adds its quotient by each link's bandwidth to the latency that weighs a flow's share.
   */
  weightBytes: number
}

/**
 * The constants are SimGrid's defaults (network/latency-factor, bandwidth-factor, crosstraffic,
 * TCP-gamma, weight-S).
 */
const simgridWindow = 4194304
const exact: Physics = {
  latencyFactor: 1,
  bandwidthFactor: 1,
  crossTraffic: 0,
  tcpWindow: Infinity,
  weightBytes: 0,
}
const physics: Record<NetworkModel, Physics> = {
  'contention-free': exact,
  'max-min': exact,
  'by-policy': exact,
  lv08: {
    latencyFactor: 13.01,
    bandwidthFactor: 0.97,
    crossTraffic: 0.05,
    tcpWindow: simgridWindow,
    weightBytes: 20537,
  },
  cm02: {
    latencyFactor: 1,
    bandwidthFactor: 1,
    crossTraffic: 0.05,
    tcpWindow: simgridWindow,
    weightBytes: 0,
  },
}

/** A flow's use of one shared capacity per byte per second of its own rate. */
export interface CapacityUse {
  /** Number of the capacity: 2 · link, plus 1 for the way back of a split duplex link. */
  capacity: number
  amount: number
}

/**
 * All flows over one route: they have the same weight, bound and rates, so the network shares among
 * channels, not flows.
 */
export interface Channel {
  route: NetworkRoute
  latencySeconds: number
  /** Share of a saturated link in proportion to it. */
  weight: number
  /** Limit for a flow's bytes per second in all conditions. */
  bound: number
  /** `bound / weight`: the level at which a flow stops when all rise together. */
  boundLevel: number
  uses: readonly CapacityUse[]
  /** Capacities whose number of concurrent transfers is limited. */
  limited: readonly number[]
  /** Seconds for one flow of `bytes` when it is alone. */
  aloneSeconds(bytes: number): number
}

export const capacityOf = (link: ProblemLink, index: number, forward: boolean): number =>
  2 * index + (link.duplexSplit && !forward ? 1 : 0)

/** Bytes per second of a link under a model. */
export const bytesPerSecond = (link: ProblemLink, model: NetworkModel): number =>
  (link.bandwidthBitsPerSecond / 8) * physics[model].bandwidthFactor

/** The channel of a route from one resource to another. */
export function channelOf(
  links: readonly ProblemLink[],
  routes: Routes,
  model: NetworkModel,
  way: { from: number; to: number; bytes: number; route: NetworkRoute },
): Channel {
  const { route } = way
  const { latencyFactor, crossTraffic, tcpWindow, weightBytes } = physics[model]
  const amounts = new Map<number, { link: ProblemLink; amount: number }>()
  const take = (each: NetworkRoute, amount: number): void =>
    each.links.forEach((index, hop) => {
      const link = links[index]!
      const capacity = capacityOf(link, index, each.forward[hop]!)
      const held = amounts.get(capacity)?.amount ?? 0
      amounts.set(capacity, { link, amount: isShared(link, model) ? held + amount : Math.max(held, amount) })
    })
  take(route, 1)
  const back = crossTraffic > 0 ? routes.between(way.to, way.from, way.bytes) : undefined
  if (back !== undefined) take(back, crossTraffic)

  let bound = route.latencySeconds > 0 ? tcpWindow / (2 * route.latencySeconds) : Infinity
  let alone = Infinity
  const uses: CapacityUse[] = []
  for (const [capacity, { link, amount }] of amounts) {
    const rate = bytesPerSecond(link, model) / amount
    alone = Math.min(alone, rate)
    if (isShared(link, model)) uses.push({ capacity, amount })
    else bound = Math.min(bound, rate)
  }
  alone = Math.min(alone, bound)
  const latencySeconds = route.latencySeconds * latencyFactor
  const penalty = route.links.reduce(
    (sum, index) => sum + (weightBytes * 8) / links[index]!.bandwidthBitsPerSecond,
    route.latencySeconds,
  )
  const limited = route.links.flatMap((index, hop) =>
    model !== 'contention-free' && links[index]!.maxConcurrentTransfers > 0
      ? [capacityOf(links[index]!, index, route.forward[hop]!)]
      : [],
  )
  const weight = route.latencySeconds > 0 ? 1 / penalty : 1
  return {
    route,
    latencySeconds,
    weight,
    bound,
    boundLevel: bound / weight,
    uses,
    limited,
    aloneSeconds: (bytes) => latencySeconds + bytes / alone,
  }
}

const isShared = (link: ProblemLink, model: NetworkModel): boolean =>
  model === 'max-min' || (model !== 'contention-free' && link.shared)
