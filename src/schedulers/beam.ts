import { taskPlacesOf, type Choices } from './fit.ts'
import type { Placement } from './estimate.ts'
import { exceeds } from './limits.ts'
import { findSlot, occupied, unused, type LaneTails, type Slot } from './lane-tails.ts'
import type { PlanningProblem } from './problem.ts'
import type { Routes } from './routes.ts'
import { TransferTable } from './transfer-table.ts'
import { byUpwardRank, type Graph } from './upward-rank.ts'
import { VersionedColumn } from './versioned-column.ts'

/** Activities behind the first unplaced one, by rank, among which ready ones are sought. */
const lookAhead = 64

export interface BeamOptions {
  objective: 'time' | 'cost'
  beamWidth: number
  readyBranchLimit: number
  /** Limits of makespan (seconds) and cost of a feasible schedule; 0: none. */
  deadlineSeconds: number
  budget: number
}

/** One placement of a partial schedule, and those before it. */
interface Step {
  before: Step | undefined
  activity: number
  resource: number
  lanes: readonly number[]
}

/** First start and last finish on each resource that is paid by its active window. */
interface Windows {
  first: Float64Array
  last: Float64Array
}

interface PartialSchedule {
  last: Step | undefined
  /** Activities before this one, by rank, are all placed. */
  cursor: number
  /** By activity: its finish (NaN: not placed), its resource, its unplaced producers. */
  finish: VersionedColumn
  resource: VersionedColumn
  missing: VersionedColumn
  tails: readonly LaneTails[]
  windows: Windows | undefined
  firstStart: number
  /** Bound of the last finish: the longest chain through a placed activity. */
  chain: number
  /** Lane seconds: taken by the placed activities, and of the others where they take least. */
  busy: number
  workLeft: number
  /** Of the placed activities, and of the others where they cost least. */
  cost: number
  costLeft: number
  /** By resource: of its activities and their finishes, in whichever order they were placed. */
  loads: Int32Array
  /** Of all loads: equal where two schedules differ only in which of equal resources have them. */
  digest: number
}

/** A partial schedule with one activity more, judged and not made yet. */
interface Continuation extends Slot {
  of: PartialSchedule
  activity: number
  resource: number
  lanes: number
  /** Bounds of the makespan and the cost of any schedule that begins so. */
  time: number
  total: number
  late: boolean
  chain: number
  cost: number
  load: number
  digest: number
}

/**
 * Beam search (Lowerre 1976) over partial schedules, as PRISM: each step places one activity. Each
 * partial schedule of the beam is continued by its first `readyBranchLimit` ready activities, by
 * upward rank, on each resource that they fit, behind the tasks that are there. The next beam keeps
 * the front of the bounds of makespan and cost, thinned to half of the beam, and then the best by
 * the objective; those above a limit come last. Yields the number of placed activities; returns
 * complete placements, none where every way ends at an activity that no data reaches.
 */
export function* beamSearch(
  problem: PlanningProblem,
  routes: Routes,
  graph: Graph,
  choices: readonly Choices[],
  options: BeamOptions,
): Generator<number, Placement[], void> {
  const search = new Search(problem, routes, graph, choices, options)
  let beam = [search.empty()]
  for (let step = 0; step < problem.activities.length && beam.length > 0; step++) {
    yield step
    beam = search
      .best(beam.flatMap((partial) => search.continuations(partial)))
      .map((one) => search.made(one))
  }
  return beam.map(({ last }) => placementOf(problem.activities.length, last))
}

function placementOf(n: number, last: Step | undefined): Placement {
  const resource = new Int32Array(n)
  const lanes = new Array<readonly number[]>(n)
  const sequence = new Int32Array(n)
  for (let step = last, at = n - 1; step !== undefined; step = step.before, at--) {
    resource[step.activity] = step.resource
    lanes[step.activity] = step.lanes
    sequence[at] = step.activity
  }
  return { resource, lanes, sequence }
}

class Search {
  readonly #problem: PlanningProblem
  readonly #graph: Graph
  readonly #choices: readonly Choices[]
  readonly #options: BeamOptions
  readonly #network: TransferTable
  readonly #sequence: Int32Array
  /** By activity, at its best resource: the longest chain behind it, its lane seconds, its cost. */
  readonly #behind: Float64Array
  readonly #work: Float64Array
  readonly #price: Float64Array
  readonly #laneCount: number
  /** By place: equal numbers for equal places. */
  readonly #kinds: Int32Array

  constructor(
    problem: PlanningProblem,
    routes: Routes,
    graph: Graph,
    choices: readonly Choices[],
    options: BeamOptions,
  ) {
    this.#problem = problem
    this.#graph = graph
    this.#choices = choices
    this.#options = options
    this.#network = new TransferTable(problem, routes)
    this.#sequence = byUpwardRank(problem, routes, graph, choices)
    const n = problem.activities.length
    this.#behind = new Float64Array(n)
    this.#work = new Float64Array(n)
    this.#price = new Float64Array(n)
    const longest = new Float64Array(n)
    for (let i = n - 1; i >= 0; i--) {
      const activity = graph.order[i]!
      let seconds = Infinity
      this.#work[activity] = Infinity
      this.#price[activity] = Infinity
      choices[activity]!.resources.forEach((at, k) => {
        const { activeWindow, pricePerSecond } = problem.resources[at]!
        const own = this.#seconds(activity, at)
        seconds = Math.min(seconds, own)
        this.#work[activity] = Math.min(this.#work[activity]!, own * choices[activity]!.lanes[k]!)
        this.#price[activity] = Math.min(this.#price[activity]!, activeWindow ? 0 : own * pricePerSecond)
      })
      for (let k = graph.out.start[activity]!; k < graph.out.start[activity + 1]!; k++)
        this.#behind[activity] = Math.max(
          this.#behind[activity]!,
          longest[problem.edges[graph.out.edge[k]!]!.to]!,
        )
      longest[activity] = this.#behind[activity]! + seconds
    }
    this.#kinds = kindsOf(problem, choices)
    this.#laneCount = problem.resources.reduce((sum, { opaque, lanes }) => sum + (opaque ? 1 : lanes), 0)
  }

  /** Seconds on the lanes of a resource without its boot. */
  #seconds(activity: number, at: number): number {
    const { durations, resources } = this.#problem
    return durations[activity * resources.length + at]! + resources[at]!.containerOverheadSeconds
  }

  empty(): PartialSchedule {
    const { activities, resources } = this.#problem
    const { start } = this.#graph.incoming
    const sum = (values: Float64Array): number => values.reduce((a, b) => a + b, 0)
    return {
      last: undefined,
      cursor: 0,
      finish: VersionedColumn.of(activities.map(() => Number.NaN)),
      resource: VersionedColumn.of(activities.map(() => -1)),
      missing: VersionedColumn.of(activities.map((_, activity) => start[activity + 1]! - start[activity]!)),
      tails: resources.map(() => unused),
      windows: resources.some(({ activeWindow }) => activeWindow)
        ? {
            first: new Float64Array(resources.length).fill(Infinity),
            last: new Float64Array(resources.length).fill(-Infinity),
          }
        : undefined,
      firstStart: Infinity,
      chain: 0,
      busy: 0,
      workLeft: sum(this.#work),
      cost: 0,
      costLeft: sum(this.#price),
      loads: new Int32Array(resources.length),
      digest: 0,
    }
  }

  /** The first ready activities by rank. The one at the cursor always is. */
  #ready({ cursor, finish, missing }: PartialSchedule): number[] {
    const found: number[] = []
    const end = Math.min(this.#sequence.length, cursor + lookAhead)
    for (let at = cursor; at < end && found.length < this.#options.readyBranchLimit; at++) {
      const activity = this.#sequence[at]!
      if (Number.isNaN(finish.get(activity)) && missing.get(activity) === 0) found.push(activity)
    }
    return found
  }

  /** All continuations of a partial schedule; none where one of its ready activities fits nowhere. */
  continuations(of: PartialSchedule): Continuation[] {
    const found: Continuation[] = []
    for (const activity of this.#ready(of)) {
      const before = found.length
      this.#continue(of, activity, found)
      if (found.length === before) return []
    }
    return found
  }

  #continue(of: PartialSchedule, activity: number, found: Continuation[]): void {
    const { resources, edges } = this.#problem
    const { incoming } = this.#graph
    const { deadlineSeconds, budget } = this.#options
    const ready = new Float64Array(resources.length)
    for (let k = incoming.start[activity]!; k < incoming.start[activity + 1]!; k++) {
      const { from, bytes } = edges[incoming.edge[k]!]!
      this.#network.arrivals(of.resource.get(from), of.finish.get(from), bytes, ready)
    }
    const choice = this.#choices[activity]!
    const work = of.workLeft - this.#work[activity]!
    const costLeft = of.costLeft - this.#price[activity]!
    for (let k = 0; k < choice.resources.length; k++) {
      const at = choice.resources[k]!
      const resource = resources[at]!
      const readyAt = Math.max(ready[at]!, resource.availableAt ?? 0)
      if (readyAt === Infinity) continue
      const lanes = choice.lanes[k]!
      const slot = { start: 0, finish: Infinity, fresh: false }
      const boot = resource.bootOverheadSeconds
      const total = resource.opaque ? 1 : resource.lanes
      findSlot(of.tails[at]!, total, lanes, readyAt, this.#seconds(activity, at), boot, slot)
      const taken = slot.finish - slot.start
      const chain = Math.max(of.chain, slot.finish + this.#behind[activity]!)
      const cost =
        of.cost +
        this.#network.cost(activity, at, incoming, (from) => of.resource.get(from)) +
        (resource.activeWindow ? this.#windowGrowth(of.windows!, at, slot) : taken) * resource.pricePerSecond
      const time = Math.max(
        chain - Math.min(of.firstStart, slot.start),
        (of.busy + taken * lanes + work) / this.#laneCount,
      )
      const late = exceeds(time, deadlineSeconds) || exceeds(cost + costLeft, budget)
      const load = of.loads[at]! ^ digestOf(activity, slot.finish)
      const kind = this.#kinds[at]!
      found.push({
        ...slot,
        ...{
          of,
          activity,
          resource: at,
          lanes,
          time: coarse(time),
          total: coarse(cost + costLeft),
          late,
          chain,
          cost,
          load,
          digest: (of.digest - mixed(kind, of.loads[at]!) + mixed(kind, load)) | 0,
        },
      })
    }
  }

  /** Seconds by which the paid window of a resource grows. */
  #windowGrowth({ first, last }: Windows, at: number, { start, finish }: Slot): number {
    const before = last[at] === -Infinity ? 0 : last[at]! - first[at]!
    return Math.max(last[at]!, finish) - Math.min(first[at]!, start) - before
  }

  /** The continuations that make the next beam. */
  best(all: Continuation[]): Continuation[] {
    const [primary, secondary] =
      this.#options.objective === 'time' ? (['time', 'total'] as const) : (['total', 'time'] as const)
    all.sort(
      (a, b) =>
        Number(a.late) - Number(b.late) ||
        a[primary] - b[primary] ||
        a[secondary] - b[secondary] ||
        a.finish - b.finish ||
        a.digest - b.digest,
    )
    // The same placements in another order, or on other ones of equal resources, are left out.
    const seen = new Set<number>()
    const distinct = all.filter(({ digest }) => !seen.has(digest) && seen.add(digest))
    const { beamWidth } = this.#options
    if (distinct.length <= beamWidth) return distinct
    return chosen(distinct, {
      isLate: ({ late }) => late,
      other: (one) => one[secondary],
      most: Math.ceil(beamWidth / 2),
      count: beamWidth,
    })
  }

  /** The partial schedule of a continuation. */
  made(one: Continuation): PartialSchedule {
    const { of, activity, resource: at, lanes, start, finish, chain, cost, load, digest } = one
    const { out } = this.#graph
    const { tails: own, taken } = occupied(of.tails[at]!, lanes, one)
    const columns = { finish: of.finish.copy(), resource: of.resource.copy(), missing: of.missing.copy() }
    columns.finish.set(activity, finish)
    columns.resource.set(activity, at)
    for (let k = out.start[activity]!; k < out.start[activity + 1]!; k++) {
      const { to } = this.#problem.edges[out.edge[k]!]!
      columns.missing.set(to, columns.missing.get(to) - 1)
    }
    let { cursor } = of
    while (cursor < this.#sequence.length && !Number.isNaN(columns.finish.get(this.#sequence[cursor]!)))
      cursor++
    return {
      ...columns,
      last: { before: of.last, activity, resource: at, lanes: taken },
      cursor,
      tails: of.tails.with(at, own),
      windows: of.windows && {
        first: of.windows.first.with(at, Math.min(of.windows.first[at]!, start)),
        last: of.windows.last.with(at, Math.max(of.windows.last[at]!, finish)),
      },
      firstStart: Math.min(of.firstStart, start),
      chain,
      busy: of.busy + (finish - start) * lanes,
      workLeft: of.workLeft - this.#work[activity]!,
      cost,
      costLeft: of.costLeft - this.#price[activity]!,
      loads: of.loads.with(at, load),
      digest,
    }
  }
}

/** 40 of 53 bits (Dekker 1971), so that sums of the same terms in another order are equal. */
function coarse(value: number): number {
  const scaled = value * 8_193
  return scaled - (scaled - value)
}

/**
 * A number for each place of a task, equal for two that can be exchanged for each other: the same
 * members and durations, equal links to and from each other resource, and no activity that may run
 * on one of them alone.
 */
function kindsOf(problem: PlanningProblem, choices: readonly Choices[]): Int32Array {
  const { activities, edges, resources, links = [], durations } = problem
  const width = resources.length
  const places = taskPlacesOf(choices)
  const pinned = new Set(activities.map(({ selector }) => selector))
  const isMoving = edges.some(({ bytes }) => bytes > 0)
  /** By resource and neighbour: a digest of the links from the one to the other. */
  const ways = resources.map(() => new Map<number, number>())
  const way = (from: number, to: number): number => ways[from]!.get(to) ?? 0
  const add = (from: number, to: number, digest: number): void =>
    void ways[from]!.set(to, (way(from, to) + digest) | 0)
  for (const { source, target, bidirectional, ...link } of links) {
    let digest = 0
    for (const value of [link.latencySeconds, link.bandwidthBitsPerSecond, link.pricePerByte])
      digest = digestOf(digest, value)
    add(source, target, digest)
    if (bidirectional) add(target, source, digest)
  }
  /** Sums of digests of the links to (n) and from (~n) each neighbour. */
  const joined = new Int32Array(width)
  ways.forEach((neighbours, from) => {
    for (const [to, digest] of neighbours) {
      joined[from]! += mixed(to, digest)
      joined[to]! += mixed(~from, digest)
    }
  })
  const areTwins = (a: number, b: number): boolean => {
    if (!isMoving) return true
    const digest = way(a, b)
    if (way(b, a) !== digest) return false
    const others = (at: number, twin: number): number =>
      ways[at]!.has(twin) ? (joined[at]! - mixed(twin, digest) - mixed(~twin, digest)) | 0 : joined[at]!
    return others(a, b) === others(b, a)
  }
  const kinds = new Int32Array(width)
  const alike = new Map<string, number[]>()
  for (const at of places) {
    let column = 0
    for (let activity = 0; activity < activities.length; activity++)
      column = (column + digestOf(activity, durations[activity * width + at]!)) | 0
    const key = JSON.stringify([{ ...resources[at], id: '' }, column, pinned.has(at) ? at : ''])
    const firsts = alike.get(key) ?? []
    alike.set(key, firsts)
    const twin = firsts.find((first) => areTwins(first, at))
    if (twin === undefined) firsts.push(at)
    kinds[at] = twin ?? at
  }
  return kinds
}

const float = new Float64Array(1)
const words = new Int32Array(float.buffer)

/** 32 bits of an integer and any number, such as an activity and a time. */
function digestOf(integer: number, value: number): number {
  float[0] = value
  return mixed(mixed(integer + 1, words[0]!), words[1]!)
}

/** 32 bits of two numbers, mixed as by MurmurHash3. */
function mixed(a: number, b: number): number {
  let hash = Math.imul(a + 1, 0x9e3779b1) ^ b
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return hash ^ (hash >>> 16)
}

/** At most `count` of the items, the first and the last among them, at equal distances. */
function thinned<T>(items: readonly T[], count: number): T[] {
  if (items.length <= count) return [...items]
  if (count === 1) return items.slice(0, 1)
  return Array.from({ length: count }, (_, k) => items[Math.round((k * (items.length - 1)) / (count - 1))]!)
}

/**
 * Of items sorted by one figure, those above a limit last: the front of this figure and the other,
 * thinned to `most`, and then the first others, up to `count`. Items above a limit are on the front
 * only where all are.
 */
export function chosen<T>(
  sorted: readonly T[],
  {
    isLate,
    other,
    most,
    count,
  }: { isLate: (one: T) => boolean; other: (one: T) => number; most: number; count: number },
): T[] {
  const front: T[] = []
  let least = Infinity
  for (const one of sorted) {
    if (isLate(one) !== isLate(sorted[0]!)) break
    if (other(one) >= least) continue
    least = other(one)
    front.push(one)
  }
  const kept = new Set(thinned(front, most))
  for (const one of sorted) if (kept.size < count) kept.add(one)
  return [...kept]
}
