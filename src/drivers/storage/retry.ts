import { openBackoff } from '../../pacing/backoff.ts'
import { StorageError, type StorageDriver, type Watch } from './contract.ts'

export interface RetryOptions {
  /** Tries of one call, the first included; default 4. */
  tries?: number
  firstPauseMs?: number
  /** A storage that asks for a longer pause gets no further try. */
  longestPauseMs?: number
}

/**
 * The same storage, with retries of repeatable calls while the fault passes by itself. Streams are
 * not retried: their bytes are consumed. Nor are calls that got no answer within a deadline: their
 * caller has waited long enough.
 */
export const withRetries = (driver: StorageDriver, options: RetryOptions = {}): StorageDriver => {
  const { tries = 4, firstPauseMs = 100, longestPauseMs = 5_000 } = options

  const again = async <T>(watch: Watch | undefined, work: () => Promise<T>): Promise<T> => {
    const backoff = openBackoff({ firstMs: firstPauseMs, longestMs: longestPauseMs, spread: 0.5 })
    for (let left = tries - 1; ; left--) {
      try {
        return await work()
      } catch (error) {
        if (!(error instanceof StorageError) || !error.passes || error.fault === 'late' || left <= 0)
          throw error
        if ((error.retryAfterSeconds ?? 0) * 1_000 > longestPauseMs) throw error
        await backoff.pause(watch?.signal)
        watch?.signal?.throwIfAborted()
      }
    }
  }

  return {
    ...driver,
    list: (path, watch) => again(watch, () => driver.list(path, watch)),
    stat: (path, watch) => again(watch, () => driver.stat(path, watch)),
    read: (path, watch) => again(watch, () => driver.read(path, watch)),
    digest: (path, watch) => again(watch, () => driver.digest(path, watch)),
    readMany: (folder, names, watch) => again(watch, () => driver.readMany(folder, names, watch)),
    openUpload: (path, watch) => again(watch, () => driver.openUpload(path, watch)),
    setAttributes: (path, attributes, watch) =>
      again(watch, () => driver.setAttributes(path, attributes, watch)),
    received: (path, upload, watch) => again(watch, () => driver.received(path, upload, watch)),
    discard: (path, upload, watch) => again(watch, () => driver.discard(path, upload, watch)),
    makeDirectory: (path, watch) => again(watch, () => driver.makeDirectory(path, watch)),
    space: (watch) => again(watch, () => driver.space(watch)),
  }
}
