/**
 * Ids 0…size−1 by their time, smallest first, equal times by id; the time of an id can be changed.
 */
export class TimeHeap {
  readonly #time: Float64Array
  readonly #place: Int32Array
  readonly #heap: number[] = []

  constructor(size: number) {
    this.#time = new Float64Array(size)
    this.#place = new Int32Array(size).fill(-1)
  }

  /** The smallest time; Infinity when empty. */
  get time(): number {
    const [top] = this.#heap
    return top === undefined ? Infinity : this.#time[top]!
  }

  /** Sets `id` to `time`, also where it had another time. */
  set(id: number, time: number): void {
    this.#time[id] = time
    if (this.#place[id] === -1) {
      this.#heap.push(id)
      this.#place[id] = this.#heap.length - 1
    }
    this.#sink(this.#rise(this.#place[id]!))
  }

  /** Removes the id with the smallest time; undefined when empty. */
  pop(): number | undefined {
    const [top] = this.#heap
    if (top !== undefined) this.remove(top)
    return top
  }

  /** Removes `id`; no effect when it is absent. */
  remove(id: number): void {
    const at = this.#place[id]!
    if (at === -1) return
    this.#place[id] = -1
    const last = this.#heap.pop()!
    if (last === id) return
    this.#heap[at] = last
    this.#place[last] = at
    this.#sink(this.#rise(at))
  }

  #before(a: number, b: number): boolean {
    const difference = this.#time[a]! - this.#time[b]!
    return difference < 0 || (difference === 0 && a < b)
  }

  #rise(from: number): number {
    const heap = this.#heap
    const id = heap[from]!
    let at = from
    while (at > 0) {
      const parent = (at - 1) >> 1
      if (!this.#before(id, heap[parent]!)) break
      this.#put(heap[parent]!, at)
      at = parent
    }
    this.#put(id, at)
    return at
  }

  #sink(from: number): void {
    const heap = this.#heap
    const id = heap[from]!
    let at = from
    for (;;) {
      let child = 2 * at + 1
      if (child >= heap.length) break
      if (child + 1 < heap.length && this.#before(heap[child + 1]!, heap[child]!)) child++
      if (!this.#before(heap[child]!, id)) break
      this.#put(heap[child]!, at)
      at = child
    }
    this.#put(id, at)
  }

  #put(id: number, at: number): void {
    this.#heap[at] = id
    this.#place[id] = at
  }
}
