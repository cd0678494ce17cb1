import { openBackoff } from '../../pacing/backoff.ts'
import { around, type StorageMethod } from './around.ts'
import { StorageError, type StorageDriver, type Watch } from './contract.ts'

/** Tries of one call, the first included. */
const tries = 4
/** A storage that asks for a longer pause gets no further try. */
const longestMs = 5_000

/** Calls that may be made again after any error. */
const repeatable: ReadonlySet<StorageMethod> = new Set([
  ...(['list', 'stat', 'read', 'digest', 'readMany', 'openUpload', 'setAttributes'] as const),
  ...(['received', 'discard', 'makeDirectory', 'space'] as const),
])

/**
 * The same storage, with retries of repeatable calls while the fault passes by itself. Streams are
 * not retried: their bytes are consumed. Nor are calls that got no answer within a deadline: their
 * caller has waited long enough.
 */
export const withRetries = (driver: StorageDriver, { firstMs = 100 } = {}): StorageDriver =>
  around(driver, async (method, args, work) => {
    if (!repeatable.has(method)) return work()
    const signal = (args.at(-1) as Watch | undefined)?.signal
    const backoff = openBackoff({ firstMs, longestMs, spread: 0.5 })
    for (let left = tries - 1; ; left--) {
      try {
        return await work()
      } catch (error) {
        if (!(error instanceof StorageError) || !error.passes || error.fault === 'late' || left <= 0)
          throw error
        if ((error.retryAfterSeconds ?? 0) * 1_000 > longestMs) throw error
        await backoff.pause(signal)
        signal?.throwIfAborted()
      }
    }
  })
