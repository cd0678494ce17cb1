import { openBackoff, type Backoff } from './backoff.ts'
import { RecentMap } from './recent.ts'

/** When each of many things whose work failed is tried again. */
export interface Retries {
  /** How many wait for their next try, or are due and did not come yet. */
  readonly waiting: number
  /** Those of a list that do not wait. Forgets what has been due for the longest pause: it left. */
  due<T>(list: Iterable<T>, keyOf: (one: T) => string): T[]
  failed(key: string): void
  succeeded(key: string): void
}

/** The most keys whose failures are kept. A key that was dropped is tried at once. */
const mostRemembered = 10_000

/** `firstMs`, `longestMs`: pauses of one thing, doubled from the first to the longest. */
export const openRetries = (pauses: { firstMs: number; longestMs: number }): Retries => {
  const later = new RecentMap<string, { at: number; backoff: Backoff }>(mostRemembered)
  return {
    get waiting() {
      return later.size
    },
    due(list, keyOf) {
      const now = performance.now()
      for (const [key, { at }] of later) if (now - at > pauses.longestMs) later.delete(key)
      return [...list].filter((one) => now >= (later.get(keyOf(one))?.at ?? 0))
    },
    failed(key) {
      const backoff = later.get(key)?.backoff ?? openBackoff(pauses)
      later.set(key, { at: performance.now() + backoff.next(), backoff })
    },
    succeeded(key) {
      later.delete(key)
    },
  }
}
