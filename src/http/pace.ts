import { HttpRefusal } from './errors.ts'

/** The time for which the kernel waits for a request's body. */
export interface BodyPace {
  /** For a whole body, and for the rest of one that its route does not read. */
  wholeMs: number
  /** A streamed body ends where it is slower than `leastBytesPerSecond` over this time. */
  slowMs: number
  leastBytesPerSecond: number
}

export const usualBodyPace: BodyPace = { wholeMs: 120_000, slowMs: 60_000, leastBytesPerSecond: 65_536 }

/**
 * The refusal of a late body. The kernel does not wait for the rest: the connection ends with the
 * answer.
 */
export const lateBody = (message: string): HttpRefusal =>
  new HttpRefusal('invalid', message, { Connection: 'close' }, 408)

/**
 * Measures a client's sending rate over the time in which this side waits for it, because a slow
 * consumer is no fault of the client. `onSlow` is called once, when the bytes of `slowMs` of
 * waiting are below the least rate.
 */
export class PaceWatch {
  readonly #pace: BodyPace
  readonly #timer: NodeJS.Timeout
  /** Milliseconds of the process's clock; undefined while this side does not wait. */
  #waitingSince: number | undefined
  #waitedMs = 0
  #bytes = 0

  constructor(pace: BodyPace, onSlow: () => void) {
    this.#pace = pace
    this.#timer = setInterval(() => this.#look(onSlow), Math.min(5_000, pace.slowMs / 12)).unref()
  }

  waits(): void {
    this.#waitingSince ??= performance.now()
  }

  pauses(): void {
    if (this.#waitingSince !== undefined) this.#waitedMs += performance.now() - this.#waitingSince
    this.#waitingSince = undefined
  }

  came(bytes: number): void {
    this.#bytes += bytes
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  #look(onSlow: () => void): void {
    const now = performance.now()
    const waited = this.#waitedMs + (this.#waitingSince === undefined ? 0 : now - this.#waitingSince)
    if (waited < this.#pace.slowMs) return
    const least = (this.#pace.leastBytesPerSecond * waited) / 1_000
    if (this.#bytes < least) {
      this.stop()
      return onSlow()
    }
    this.#waitedMs = 0
    this.#bytes = 0
    if (this.#waitingSince !== undefined) this.#waitingSince = now
  }
}
