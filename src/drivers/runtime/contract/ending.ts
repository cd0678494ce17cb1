import type { Backoff } from '../../../pacing/backoff.ts'
import { DriverError } from './driver.ts'

/**
 * Time for processes to end after they were killed. Those that hang in the kernel, as on a file
 * system that does not answer, end only when that lets them go.
 */
const patienceSeconds = 120

/** When a caller waits no longer for an end that it has asked for, on the clock of `performance`. */
export const endingUntil = (graceSeconds: number): number =>
  performance.now() + (graceSeconds + patienceSeconds) * 1000

/** The pause before the next look at what should end. @throws DriverError `unknown` after `until` */
export const pauseUntil = async (backoff: Backoff, until: number): Promise<void> => {
  if (performance.now() > until)
    throw new DriverError(
      'unknown',
      `processes have not ended within ${patienceSeconds} s after they were killed; they may hang on a ` +
        'file system that does not answer',
    )
  await backoff.pause()
}

/**
 * Ends tasks beside the caller's work, each once at a time: `end` may take as long as a process
 * hangs in the kernel, and nothing else should wait for that. A failure is left to the next call.
 */
export const openEnding = (end: (names: string[]) => Promise<void>): ((names: readonly string[]) => void) => {
  const ending = new Set<string>()
  return (names) => {
    const fresh = names.filter((name) => !ending.has(name))
    if (fresh.length === 0) return
    for (const name of fresh) ending.add(name)
    void end(fresh)
      .catch(() => undefined)
      .finally(() => {
        for (const name of fresh) ending.delete(name)
      })
  }
}
