import { openGate } from '../../pacing/gate.ts'

/** Logins under way to one host and port; OpenSSH's `MaxStartups` is 10:30:100. */
const loginsAtOnce = 5
/** Logins to one host that wait for people over an open connection. */
const longestQueueOfPeople = 3

/**
 * Bounds the logins to one host and port that are not authenticated yet; logins that wait for a
 * person are counted separately.
 */
export class LoginGate {
  readonly #logins = openGate(loginsAtOnce)
  /** Logins that are inside or wait for their turn. */
  #count = 0
  #parked: (() => void)[] = []

  get isEmpty(): boolean {
    return this.#count === 0 && this.#parked.length === 0
  }

  async enter(): Promise<() => void> {
    this.#count++
    const leave = await this.#logins.enter()
    let left = false
    return () => {
      if (left) return
      left = true
      this.#count--
      leave()
    }
  }

  /**
   * `leave` is called when too many wait. @returns the function to call when this login waits no
   * longer.
   */
  park(leave: () => void): () => void {
    this.#parked.push(leave)
    if (this.#parked.length > longestQueueOfPeople) this.#parked.shift()!()
    return () => {
      const at = this.#parked.indexOf(leave)
      if (at >= 0) this.#parked.splice(at, 1)
    }
  }
}
