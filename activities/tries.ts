import { ApplicationFailure, Context } from '@temporalio/activity'
import { createTranslation, isCancelled } from '../src/db/errors.ts'
import { RecentMap } from '../src/pacing/recent.ts'

/**
 * Errors of the database that pass by themselves: it is away, busy, takes no changes, or has no disk
 * space. A statement that takes too long may do so each time.
 */
export const passes = (error: unknown): boolean =>
  createTranslation({})(error)?.code === 'unavailable' && !isCancelled(error)

/**
 * A call that worked this long before its error has no error before it. Far above `deliverySeconds`,
 * which the end of a run may take each time.
 */
const workedMs = 600_000
/** The most calls whose errors a process counts. A call that was dropped is counted from 0. */
const mostRemembered = 10_000

/**
 * Limits a call of an activity to `most` errors in a row. This process counts them by the call's
 * key, because Temporal's own count includes temporary errors. Temporary errors are errors of the
 * database, errors of a cancelled activity, and instances of `ApplicationFailure`. Errors below the
 * limit are rethrown, so that Temporal repeats the activity; `giveUp` gets the error at the limit.
 */
export const openTries = (most: number) => {
  const errors = new RecentMap<string, number>(mostRemembered)
  return async <T>(
    of: readonly unknown[],
    work: () => Promise<T>,
    giveUp: (error: unknown) => Promise<T>,
  ): Promise<T> => {
    const { cancellationSignal } = Context.current()
    const key = JSON.stringify(of)
    const began = performance.now()
    try {
      const done = await work()
      errors.delete(key)
      return done
    } catch (error) {
      if (cancellationSignal.aborted || passes(error) || error instanceof ApplicationFailure) throw error
      const count = performance.now() - began > workedMs ? 1 : (errors.get(key) ?? 0) + 1
      if (count < most) {
        errors.set(key, count)
        throw error
      }
      errors.delete(key)
      return giveUp(error)
    }
  }
}
