/**
 * The lanes in use of one resource by the end of their last task, ascending. Tasks are appended,
 * never put into gaps; so this is all that a later task depends on. Never changed: `occupied` makes
 * another.
 */
export interface LaneTails {
  readonly ends: Float64Array
  /** The number of the lane, beside each end. */
  readonly lanes: Int32Array
}

export const unused: LaneTails = { ends: new Float64Array(0), lanes: new Int32Array(0) }

/** The earliest time of a task on a resource. `fresh`: it uses a lane for the first time. */
export interface Slot {
  start: number
  finish: number
  fresh: boolean
}

/**
 * Writes into `slot` when a task of `count` lanes ends first that may start at `ready`, takes
 * `seconds`, and `boot` more where it uses a lane for the first time. Of equal ends it takes the one
 * on lanes in use.
 */
export function findSlot(
  { ends }: LaneTails,
  total: number,
  count: number,
  ready: number,
  seconds: number,
  boot: number,
  slot: Slot,
): void {
  slot.finish = Infinity
  if (ends.length >= count) {
    slot.start = Math.max(ready, ends[count - 1]!)
    slot.finish = slot.start + seconds
    slot.fresh = false
  }
  const free = total - ends.length
  if (free === 0) return
  const others = count - free
  const start = others > 0 ? Math.max(ready, ends[others - 1]!) : ready
  const finish = start + boot + seconds
  if (finish >= slot.finish) return
  slot.start = start
  slot.finish = finish
  slot.fresh = true
}

/**
 * The lanes after a task of `count` lanes took the slot, and the numbers of its lanes, ascending. Of
 * the lanes that are free at its start it takes those whose last tasks ended last.
 */
export function occupied(
  { ends, lanes }: LaneTails,
  count: number,
  { start, finish, fresh }: Slot,
): { tails: LaneTails; taken: number[] } {
  const until = countUpTo(ends, start)
  const old = Math.min(fresh ? count - 1 : count, until)
  const from = until - old
  const taken = Array.from(lanes.subarray(from, until))
  for (let lane = ends.length; taken.length < count; lane++) taken.push(lane)
  // What is left, without [from, until), and the task's lanes behind all that end before them.
  const at = countUpTo(ends, finish) - old
  const put = <T extends Float64Array | Int32Array>(of: T, values: ArrayLike<number>, into: T): T => {
    into.set(of.subarray(0, from))
    into.set(of.subarray(until, at + old), from)
    into.set(values, at)
    into.set(of.subarray(at + old), at + count)
    return into
  }
  const size = ends.length - old + count
  const tails = {
    ends: put(ends, new Float64Array(count).fill(finish), new Float64Array(size)),
    lanes: put(lanes, taken, new Int32Array(size)),
  }
  return { tails, taken: taken.toSorted((x, y) => x - y) }
}

/** How many of the ascending numbers are at most `limit`. */
function countUpTo(ascending: ArrayLike<number>, limit: number): number {
  let low = 0
  let high = ascending.length
  while (low < high) {
    const middle = (low + high) >>> 1
    if (ascending[middle]! <= limit) low = middle + 1
    else high = middle
  }
  return low
}
