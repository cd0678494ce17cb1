/** Gaps per block; a block is skipped by its longest gap. */
const blockSize = 32

/**
 * The busy time of one lane, stored as the free gaps between its tasks, so that insertion finds a
 * gap by binary search and skips blocks of gaps that are too short. The time before the first task
 * is apart from the gaps: a task placed there becomes the first of the lane and pays the boot.
 */
export class Lane {
  readonly #starts: number[] = []
  readonly #ends: number[] = []
  readonly #longestOfBlock: number[] = []
  #longest = 0
  #first: number
  #tail: number

  /** A lane comes into use with its first task. */
  constructor(start: number, end: number) {
    this.#first = start
    this.#tail = end
  }

  /** The start of its first task. */
  get first(): number {
    return this.#first
  }

  /** The end of its last task. */
  get tail(): number {
    return this.#tail
  }

  /** The length of its longest gap; 0 without gaps. */
  get longest(): number {
    return this.#longest
  }

  /** The end of its last gap; -Infinity without gaps. */
  get lastGapEnd(): number {
    return this.#ends.at(-1) ?? -Infinity
  }

  /**
   * The earliest start ≥ `ready` at which `seconds` are free; before the first task only when
   * `beforeFirst`.
   */
  earliest(ready: number, seconds: number, beforeFirst: boolean): number {
    if (beforeFirst && ready + seconds <= this.#first) return ready
    if (ready >= this.#tail) return ready
    if (this.#longest >= seconds) {
      const { length } = this.#starts
      for (let i = this.#gapEndingFrom(ready + seconds); i < length;) {
        if (i % blockSize === 0 && this.#longestOfBlock[i / blockSize]! < seconds) {
          i += blockSize
          continue
        }
        const start = Math.max(this.#starts[i]!, ready)
        if (start + seconds <= this.#ends[i]!) return start
        i++
      }
    }
    return this.#tail
  }

  /**
   * Takes the free time [start, end]. An empty interval also divides a gap: no later task may run
   * across it.
   */
  occupy(start: number, end: number): void {
    if (start >= this.#tail) {
      this.#insert(this.#starts.length, this.#tail, start)
      this.#tail = end
    } else if (end <= this.#first) {
      this.#insert(0, end, this.#first)
      this.#first = start
    } else {
      const i = this.#gapEndingFrom(end)
      const gapEnd = this.#ends[i]!
      if (end < gapEnd) {
        const gapStart = this.#starts[i]!
        this.#starts[i] = end
        this.#shortened(i)
        this.#insert(i, gapStart, start)
      } else if (this.#starts[i]! < start) {
        this.#ends[i] = start
        this.#shortened(i)
      } else {
        this.#starts.splice(i, 1)
        this.#ends.splice(i, 1)
        this.#measureFrom(i)
      }
    }
  }

  #gapEndingFrom(time: number): number {
    let low = 0
    let high = this.#ends.length
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#ends[middle]! < time) low = middle + 1
      else high = middle
    }
    return low
  }

  #insert(at: number, start: number, end: number): void {
    if (end <= start) return
    if (at === this.#starts.length) {
      this.#starts.push(start)
      this.#ends.push(end)
    } else {
      this.#starts.splice(at, 0, start)
      this.#ends.splice(at, 0, end)
    }
    this.#measureFrom(at)
  }

  #measureFrom(at: number): void {
    const blocks = Math.ceil(this.#starts.length / blockSize)
    this.#longestOfBlock.length = Math.min(this.#longestOfBlock.length, blocks)
    for (let block = Math.floor(at / blockSize); block < blocks; block++) this.#measureBlock(block)
    this.#longest = this.#longestOfBlock.reduce((a, b) => Math.max(a, b), 0)
  }

  #shortened(at: number): void {
    this.#measureBlock(Math.floor(at / blockSize))
    this.#longest = this.#longestOfBlock.reduce((a, b) => Math.max(a, b), 0)
  }

  #measureBlock(block: number): void {
    let longest = 0
    const end = Math.min(this.#starts.length, (block + 1) * blockSize)
    for (let i = block * blockSize; i < end; i++)
      longest = Math.max(longest, this.#ends[i]! - this.#starts[i]!)
    this.#longestOfBlock[block] = longest
  }
}
