import { Heap } from './heap.ts'
import { Lane } from './lane.ts'

/** So many lanes are looked at one after the other: that is faster than the tree. */
const few = 32

/**
 * The lanes of one resource. Lanes come into use in their order, so those in use are the first
 * ones. A tree over them holds for each part of the lanes what bounds their earliest starts, so that
 * a search leaves out the parts that cannot be better: where no lane has a gap that is long enough,
 * it looks at one lane of many.
 */
export class LanePool {
  start = 0
  finish = 0
  readonly #lanes: Lane[] = []
  readonly #total: number
  readonly #chosen: number[] = []
  /** Leaves of the tree: a power of two. Node k has the parts 2k and 2k + 1, the root is 1. */
  #leaves = 1
  /** By node: the least end, the greatest first start, the longest gap, the last end of a gap. */
  #tails = new Float64Array(2).fill(Infinity)
  #firsts = new Float64Array(2).fill(-Infinity)
  #gaps = new Float64Array(2).fill(-Infinity)
  #gapEnds = new Float64Array(2).fill(-Infinity)

  constructor(total: number) {
    this.#total = total
  }

  /**
   * Finds `count` lanes that are free together for `seconds` from `ready` on, plus `boot` where one
   * of them would be used for the first time. It writes the earliest finish into `start` and
   * `finish` (Infinity: never) and keeps the lanes until `take` or the next call. Of lanes that start
   * equally early it takes the first ones.
   */
  find(count: number, ready: number, seconds: number, boot: number): void {
    if (boot === 0) {
      this.#search(count, ready, seconds, true)
      return
    }
    this.#search(count, ready, seconds, false)
    const { start, finish } = this
    if (finish <= ready + seconds + boot) return
    const warm = [...this.#chosen]
    this.#search(count, ready, seconds + boot, true)
    if (this.finish < finish) return
    this.start = start
    this.finish = finish
    this.#chosen.length = 0
    for (const lane of warm) this.#chosen.push(lane)
  }

  /** Occupies the lanes of the last `find`; returns their numbers, ascending. */
  take(): number[] {
    const taken = [...this.#chosen]
    for (const index of taken) {
      const lane = this.#lanes[index]
      if (lane === undefined) this.#lanes[index] = new Lane(this.start, this.finish)
      else lane.occupy(this.start, this.finish)
      this.#note(index)
    }
    return taken
  }

  #search(count: number, ready: number, seconds: number, firstUse: boolean): void {
    const fresh = firstUse ? this.#total - this.#lanes.length : 0
    this.#chosen.length = 0
    if (count > this.#lanes.length + fresh) {
      this.start = this.finish = Infinity
      return
    }
    let time = ready
    if (count === 1 && this.#lanes.length <= few) time = this.#one(ready, seconds, firstUse, fresh)
    // No start before the count-th smallest of the single lanes' earliest starts is possible: go
    // there and repeat until it holds.
    else
      while (!this.#free(count, time, seconds, { firstUse, fresh }))
        time = this.#earliest(count - fresh, time, seconds, firstUse)
    this.start = time
    this.finish = time + seconds
  }

  /** The earliest start of one lane, by a look at all of them; the lane is in `#chosen` then. */
  #one(ready: number, seconds: number, firstUse: boolean, fresh: number): number {
    const lanes = this.#lanes
    let best = fresh > 0 ? ready : Infinity
    let at = fresh > 0 ? lanes.length : -1
    for (let index = 0; index < lanes.length; index++) {
      const from = lanes[index]!.earliest(ready, seconds, firstUse)
      if (from < best || (from === best && index < at)) {
        best = from
        at = index
      }
      if (best === ready && at <= index) break
    }
    this.#chosen.push(at)
    return best
  }

  /**
   * Whether `count` lanes are free for `seconds` at `time`; the first ones of them are in `#chosen`
   * then. `fresh`: lanes that are not in use yet.
   */
  #free(
    count: number,
    time: number,
    seconds: number,
    { firstUse, fresh }: { firstUse: boolean; fresh: number },
  ): boolean {
    const chosen = this.#chosen
    chosen.length = 0
    const nodes = [1]
    for (let node = nodes.pop(); node !== undefined && chosen.length < count; node = nodes.pop()) {
      if (this.#bound(node, time, seconds, firstUse) > time) continue
      const index = node - this.#leaves
      if (index < 0) nodes.push(2 * node + 1, 2 * node)
      else if (this.#lanes[index]!.earliest(time, seconds, firstUse) === time) chosen.push(index)
    }
    if (chosen.length + fresh < count) return false
    for (let index = this.#lanes.length; chosen.length < count; index++) chosen.push(index)
    return true
  }

  /** The count-th smallest of the earliest starts from `time` on, of lanes in use. */
  #earliest(count: number, time: number, seconds: number, firstUse: boolean): number {
    let left = count
    const queue = new Heap<Part>(isEarlier)
    queue.push({ bound: this.#bound(1, time, seconds, firstUse), node: 1 })
    for (let part = queue.pop(); part !== undefined; part = queue.pop()) {
      const { bound, node } = part
      if (node === 0 && --left === 0) return bound
      if (node >= this.#leaves)
        queue.push({ bound: this.#lanes[node - this.#leaves]!.earliest(time, seconds, firstUse), node: 0 })
      else if (node > 0)
        for (const below of [2 * node, 2 * node + 1]) {
          const least = this.#bound(below, time, seconds, firstUse)
          if (least < Infinity) queue.push({ bound: least, node: below })
        }
    }
    throw new Error(`the resource has fewer than ${String(count)} lanes`)
  }

  /** A start before which no lane of a node is free for `seconds`; Infinity for a node without lanes. */
  #bound(node: number, ready: number, seconds: number, firstUse: boolean): number {
    const end = ready + seconds
    if (firstUse && end <= this.#firsts[node]!) return ready
    if (this.#gaps[node]! >= seconds && this.#gapEnds[node]! >= end) return ready
    return Math.max(ready, this.#tails[node]!)
  }

  /** Brings the tree up to date with a lane. */
  #note(index: number): void {
    if (index === this.#leaves) {
      this.#leaves *= 2
      this.#tails = new Float64Array(2 * this.#leaves).fill(Infinity)
      this.#firsts = new Float64Array(2 * this.#leaves).fill(-Infinity)
      this.#gaps = this.#firsts.slice()
      this.#gapEnds = this.#firsts.slice()
      for (let lane = 0; lane < index; lane++) this.#note(lane)
    }
    const lane = this.#lanes[index]!
    let node = this.#leaves + index
    this.#tails[node] = lane.tail
    this.#firsts[node] = lane.first
    this.#gaps[node] = lane.longest
    this.#gapEnds[node] = lane.lastGapEnd
    for (node >>= 1; node > 0; node >>= 1) {
      const left = 2 * node
      const right = left + 1
      this.#tails[node] = Math.min(this.#tails[left]!, this.#tails[right]!)
      this.#firsts[node] = Math.max(this.#firsts[left]!, this.#firsts[right]!)
      this.#gaps[node] = Math.max(this.#gaps[left]!, this.#gaps[right]!)
      this.#gapEnds[node] = Math.max(this.#gapEnds[left]!, this.#gapEnds[right]!)
    }
  }
}

/** `node` 0 stands for a start that is exact. */
interface Part {
  bound: number
  node: number
}
const isEarlier = (a: Part, b: Part): boolean => a.bound < b.bound
