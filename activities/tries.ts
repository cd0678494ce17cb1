import { ApplicationFailure, Context } from '@temporalio/activity'
import { createTranslation } from '../src/db/errors.ts'
import { RecentMap } from '../src/pacing/recent.ts'

/** Errors of the database that pass by themselves: it is away, busy, or has no disk space. */
export const passes = (error: unknown): boolean => createTranslation({})(error)?.code === 'unavailable'

/**
 * A call that worked this long before its error has no error before it. Far above `deliverySeconds`,
 * which the end of a run may take each time.
 */
const workedMs = 600_000
/** The most calls whose errors a process remembers; a forgotten one has its tries anew. */
const mostRemembered = 10_000

/**
 * Gives calls of activities up after `most` errors in a row, as this process counts them by the
 * call's key: Temporal's own count has those that pass by themselves, too. These are errors of the
 * database, those of a cancelled activity, and instances of `ApplicationFailure`. All errors before
 * the last are rethrown, so that Temporal repeats the activity; `giveUp` gets the last.
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
