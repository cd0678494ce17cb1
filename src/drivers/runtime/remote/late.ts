import { firstTexts } from '../../../lists.ts'
import { namedPath } from '../../../outside-path.ts'

/** Facts of an ended task that show whether files of it may not have arrived at the site yet. */
export interface Arrival {
  /** It ran, and ended by itself with exit code 0. */
  succeeded: boolean
  /** Declared outputs that the listing of its work directory does not have. */
  missing: readonly string[]
  /** Nothing is in its work directory, and no output is declared. */
  bare: boolean
  cancelAsked: boolean
}

/**
 * `done`: what the listing shows counts. `cut`: outputs are missing, and a cancel ended the wait
 * for them. Otherwise the folders are opened and listed again after `afterMs`; with a `reason`, that
 * is a wait that people see.
 */
export type Arrived = 'done' | 'cut' | { afterMs: number; reason?: string }

const firstPauseMs = 250
const longestPauseMs = 5_000

/** The most names in one reason. */
const mostNamed = 3

/**
 * Whether to list the files of an ended task again. A shared file system may show the files of
 * another host late (NFS keeps the attributes of a folder for up to a minute), so declared outputs
 * are missing only after `patienceSeconds`, and an empty work directory is listed twice. With no
 * patience the first listing counts.
 *
 * @param looks listings so far, at least 1; `sinceMs`: time since the first of them
 */
export const arrivedFiles = (
  { succeeded, missing, bare, cancelAsked }: Arrival,
  { looks, sinceMs, patienceSeconds }: { looks: number; sinceMs: number; patienceSeconds: number },
): Arrived => {
  if (patienceSeconds <= 0) return 'done'
  if (bare && looks === 1) return { afterMs: 0 }
  if (!succeeded || missing.length === 0) return 'done'
  if (cancelAsked) return 'cut'
  const leftMs = patienceSeconds * 1000 - sinceMs
  if (leftMs <= 0) return 'done'
  const named = firstTexts(missing, mostNamed, namedPath).join(', ')
  const pause = Math.min(firstPauseMs * 2 ** Math.min(looks - 1, 10), longestPauseMs)
  return {
    afterMs: Math.min(pause, leftMs),
    reason:
      `its program has ended, and ${named} is not at the site yet; it is looked ` +
      `for again for up to ${String(patienceSeconds)} s`,
  }
}
