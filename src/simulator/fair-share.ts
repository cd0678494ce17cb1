import type { Channel } from './channel.ts'

/** A channel with flows now. */
export interface Load {
  channel: Channel
  flows: number
  /** Bytes per second of each of its flows; written by `share`. */
  rate: number
}

/**
 * Weighted max-min fairness by progressive filling: the rates of all flows rise together, each in
 * proportion to its channel's weight. When a capacity is full, its flows stop there; when a flow
 * meets its own bound, it stops alone. The others go on.
 */
export class FairShare {
  readonly #capacities: Float64Array
  readonly #remaining: Float64Array
  /**
   * The use of a capacity by all rising flows when they rise by one, and the number of their
   * channels.
   */
  readonly #demand: Float64Array
  readonly #users: Int32Array

  /** `capacities`: bytes per second by number, as in `Channel.uses`. */
  constructor(capacities: Float64Array) {
    this.#capacities = capacities
    this.#remaining = new Float64Array(capacities.length)
    this.#demand = new Float64Array(capacities.length)
    this.#users = new Int32Array(capacities.length)
  }

  /**
   * Writes the rate of every load; `loads` must contain all loads that share a capacity with one of
   * them.
   */
  share(loads: readonly Load[]): void {
    const contested = this.#open(loads)
    let rising = [...loads]
    let reached = 0
    while (rising.length > 0) {
      let level = Infinity
      for (const capacity of contested)
        if (this.#users[capacity]! > 0) level = Math.min(level, this.#levelOf(capacity))
      // Levels only rise; a capacity that rounding leaves a hair below the last one is full at that
      // one.
      level = Math.max(level, reached)
      let bounded = false
      for (const { channel } of rising) {
        if (channel.boundLevel > level) continue
        level = channel.boundLevel
        bounded = true
      }
      reached = level
      // All channels that stop are found before any is removed: a removal changes the levels.
      const full = new Set<number>()
      for (const capacity of contested)
        if (this.#users[capacity]! > 0 && this.#levelOf(capacity) <= level) full.add(capacity)
      const left: Load[] = []
      for (const load of rising) {
        const { channel } = load
        const stops = bounded
          ? channel.boundLevel === level
          : channel.uses.some(({ capacity }) => full.has(capacity))
        if (stops) this.#stop(load, bounded ? channel.bound : level * channel.weight)
        else left.push(load)
      }
      rising = left
    }
  }

  #levelOf(capacity: number): number {
    return this.#remaining[capacity]! / this.#demand[capacity]!
  }

  #open(loads: readonly Load[]): number[] {
    const contested: number[] = []
    for (const { channel, flows } of loads) {
      for (const { capacity, amount } of channel.uses) {
        if (this.#users[capacity]!++ === 0) {
          this.#remaining[capacity] = this.#capacities[capacity]!
          this.#demand[capacity] = 0
          contested.push(capacity)
        }
        this.#demand[capacity]! += flows * amount * channel.weight
      }
    }
    return contested
  }

  #stop(load: Load, rate: number): void {
    load.rate = rate
    for (const { capacity, amount } of load.channel.uses) {
      this.#users[capacity]!--
      this.#demand[capacity]! -= load.flows * amount * load.channel.weight
      this.#remaining[capacity]! -= load.flows * amount * rate
    }
  }
}
