import { Heap } from '../schedulers/heap.ts'
import type { PlanningProblem } from '../schedulers/problem.ts'
import type { NetworkRoute, Routes } from '../schedulers/routes.ts'
import { bytesPerSecond, channelOf, type Channel, type NetworkModel } from './channel.ts'
import { FairShare, type Load } from './fair-share.ts'
import { TimeHeap } from './time-heap.ts'

/** A flow for the network; `id` is the index of its dependency. */
export interface FlowRequest {
  id: number
  from: number
  to: number
  bytes: number
  /** Of the flows that become ready at one time, the smaller rank goes first; no two have the same. */
  rank: number
}

/**
 * A channel with the bytes it has served to each of its flows since it last became busy; a flow
 * ends when that passes its mark.
 */
interface Line extends Load {
  index: number
  served: number
  since: number
  marks: Heap<Mark>
}

interface Mark {
  flow: number
  mark: number
}

const earlier = (a: Mark, b: Mark): boolean => a.mark < b.mark || (a.mark === b.mark && a.flow < b.flow)

interface Waiting extends FlowRequest {
  readyAt: number
  line: Line
}

/** One order for all queues, so that each flow becomes the first in all queues of its route. */
const readier = (a: Waiting, b: Waiting): boolean =>
  a.readyAt < b.readyAt || (a.readyAt === b.readyAt && a.rank < b.rank)

/**
 * Carries flows over the topology in simulated time. The driver of time reads `nextTime`, moves to
 * it with `advance`, which returns the arrived flows, and adds new ones with `request`; times must
 * not go back.
 *
 * A change costs work only where it matters: flows of one route share one line, and rates are
 * recomputed only for lines that are connected to the change by shared links.
 */
export class Network {
  readonly #problem: PlanningProblem
  readonly #routes: Routes
  readonly #model: NetworkModel
  readonly #lines = new Map<NetworkRoute, Line>()
  readonly #byIndex: Line[] = []
  readonly #lineOf: (Line | undefined)[]
  readonly #bytes: Float64Array
  readonly #startedAt: Float64Array
  /**
   * For flows that need no sharing: their end, known at once. For flows in their latency: their
   * entry into the line.
   */
  readonly #private: TimeHeap
  readonly #latency: TimeHeap
  /** Lines by the end of their next flow. */
  readonly #ends: TimeHeap
  readonly #fairShare: FairShare
  readonly #busy: Set<Line>[]
  readonly #changed = new Set<number>()
  readonly #free: Float64Array
  readonly #queues: (Heap<Waiting> | undefined)[]
  #now = 0

  constructor(problem: PlanningProblem, routes: Routes, model: NetworkModel) {
    const links = problem.links ?? []
    const flows = problem.edges.length
    this.#problem = problem
    this.#routes = routes
    this.#model = model
    this.#lineOf = new Array<Line | undefined>(flows)
    this.#bytes = new Float64Array(flows)
    this.#startedAt = new Float64Array(flows)
    this.#private = new TimeHeap(flows)
    this.#latency = new TimeHeap(flows)
    // At most one line per dependency, since each dependency is one flow over one route.
    this.#ends = new TimeHeap(flows)
    this.#fairShare = new FairShare(
      Float64Array.from({ length: 2 * links.length }, (_, capacity) =>
        bytesPerSecond(links[capacity >> 1]!, model),
      ),
    )
    this.#busy = Array.from({ length: 2 * links.length }, () => new Set<Line>())
    this.#free = Float64Array.from(
      { length: 2 * links.length },
      (_, capacity) => links[capacity >> 1]!.maxConcurrentTransfers,
    )
    this.#queues = new Array<Heap<Waiting> | undefined>(2 * links.length)
  }

  /** The channel a flow would use; undefined when no path joins the two. */
  channel(from: number, to: number, bytes: number): Channel | undefined {
    return this.#line(from, to, bytes)?.channel
  }

  /**
   * When the flow began to move: at its producer's finish, or later when a link's number of
   * concurrent transfers was reached.
   */
  startedAt(flow: number): number {
    return this.#startedAt[flow]!
  }

  /**
   * Flows that become ready now, in any order; they start at once unless a limit of concurrent
   * transfers holds them.
   */
  request(requests: readonly FlowRequest[]): void {
    const limited: number[] = []
    for (const request of requests) {
      const line = this.#line(request.from, request.to, request.bytes)
      if (line === undefined) throw new RangeError(`no route for flow ${request.id}`)
      if (line.channel.limited.length === 0) {
        this.#start(request, line)
        continue
      }
      const waiting: Waiting = { ...request, readyAt: this.#now, line }
      for (const capacity of line.channel.limited) {
        const queue = (this.#queues[capacity] ??= new Heap(readier))
        queue.push(waiting)
        limited.push(capacity)
      }
    }
    this.#admit(limited)
  }

  /** The time of the next event; Infinity: nothing moves. */
  nextTime(): number {
    this.#settle()
    return Math.min(this.#private.time, this.#latency.time, this.#ends.time)
  }

  /** Moves to `time` ≤ `nextTime()`; returns the ids of the flows that arrive then. */
  advance(time: number): number[] {
    this.#settle()
    this.#now = time
    const arrived: number[] = []
    while (this.#private.time <= time) arrived.push(this.#private.pop()!)
    while (this.#ends.time <= time) this.#endOf(this.#byIndex[this.#ends.pop()!]!, arrived)
    while (this.#latency.time <= time) this.#join(this.#latency.pop()!)
    const freed: number[] = []
    for (const flow of arrived) {
      for (const capacity of this.#lineOf[flow]!.channel.limited) {
        this.#free[capacity]!++
        freed.push(capacity)
      }
    }
    this.#admit(freed)
    return arrived
  }

  #line(from: number, to: number, bytes: number): Line | undefined {
    const route = this.#routes.between(from, to, bytes)
    if (route === undefined) return undefined
    let line = this.#lines.get(route)
    if (line === undefined) {
      const channel = channelOf(this.#problem.links ?? [], this.#routes, this.#model, {
        from,
        to,
        bytes,
        route,
      })
      const marks = new Heap(earlier)
      line = { channel, index: this.#byIndex.length, flows: 0, rate: 0, served: 0, since: 0, marks }
      this.#byIndex.push(line)
      this.#lines.set(route, line)
    }
    return line
  }

  #start({ id, bytes }: FlowRequest, line: Line): void {
    this.#lineOf[id] = line
    this.#bytes[id] = bytes
    this.#startedAt[id] = this.#now
    const { channel } = line
    if (channel.uses.length === 0) this.#private.set(id, this.#now + channel.aloneSeconds(bytes))
    else if (channel.latencySeconds > 0) this.#latency.set(id, this.#now + channel.latencySeconds)
    else this.#join(id)
  }

  /**
   * Starts the flows that may start: those that are first in the queue of each limited link of
   * their route while all of them have room.
   */
  #admit(candidates: number[]): void {
    for (let capacity = candidates.pop(); capacity !== undefined; capacity = candidates.pop()) {
      const head = this.#queues[capacity]?.first
      if (head === undefined) continue
      const { limited } = head.line.channel
      if (!limited.every((each) => this.#free[each]! > 0 && this.#queues[each]!.first === head)) continue
      for (const each of limited) {
        this.#free[each]!--
        this.#queues[each]!.pop()
        candidates.push(each)
      }
      this.#start(head, head.line)
    }
  }

  #join(flow: number): void {
    const line = this.#lineOf[flow]!
    this.#serve(line)
    if (line.flows === 0) {
      line.served = 0
      line.rate = 0
      for (const { capacity } of line.channel.uses) this.#busy[capacity]!.add(line)
    }
    line.flows++
    line.marks.push({ flow, mark: line.served + this.#bytes[flow]! })
    this.#touch(line)
  }

  #endOf(line: Line, arrived: number[]): void {
    const { mark } = line.marks.first!
    line.served = mark
    line.since = this.#now
    while (line.marks.first !== undefined && line.marks.first.mark <= mark) {
      arrived.push(line.marks.pop()!.flow)
      line.flows--
    }
    if (line.flows === 0) for (const { capacity } of line.channel.uses) this.#busy[capacity]!.delete(line)
    this.#touch(line)
  }

  #touch(line: Line): void {
    for (const { capacity } of line.channel.uses) this.#changed.add(capacity)
  }

  #serve(line: Line): void {
    line.served += line.rate * (this.#now - line.since)
    line.since = this.#now
  }

  /** Recomputes the shares among the lines connected to a change. */
  #settle(): void {
    if (this.#changed.size === 0) return
    const lines = new Set<Line>()
    // The set of changed capacities grows during the walk; that is the search of the connected
    // part.
    for (const capacity of this.#changed) {
      for (const line of this.#busy[capacity]!) {
        if (lines.has(line)) continue
        lines.add(line)
        for (const use of line.channel.uses) this.#changed.add(use.capacity)
      }
    }
    this.#changed.clear()
    const loads = [...lines]
    for (const line of loads) this.#serve(line)
    this.#fairShare.share(loads)
    for (const line of loads)
      this.#ends.set(line.index, this.#now + Math.max(0, line.marks.first!.mark - line.served) / line.rate)
  }
}
