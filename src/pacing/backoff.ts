import { setTimeout as sleep } from 'node:timers/promises'

/** Pauses between tries of one thing, growing from the first to the longest. Milliseconds. */
export interface Backoff {
  /** The length of the next pause; the one after it is longer. */
  next(): number
  /** Waits for the next pause; at once when `signal` is aborted, before or meanwhile. */
  pause(signal?: AbortSignal): Promise<void>
  /** A try succeeded: the next pause is the first again. */
  reset(): void
}

/**
 * `growth`: the ratio of each pause to the one before. `spread`: each is cut by up to this share at
 * random, so that many callers that were cut off together do not return together.
 */
export function openBackoff({
  firstMs,
  longestMs,
  growth = 2,
  spread = 0,
}: {
  firstMs: number
  longestMs: number
  growth?: number
  spread?: number
}): Backoff {
  let wait = firstMs
  const next = (): number => {
    const now = wait * (1 - spread * Math.random())
    wait = Math.min(wait * growth, longestMs)
    return now
  }
  return {
    next,
    async pause(signal) {
      await sleep(next(), undefined, signal === undefined ? {} : { signal }).catch(() => undefined)
    },
    reset() {
      wait = firstMs
    },
  }
}
