/** Counts of a run at a moment. */
export interface RunCounts {
  done: number
  running: number
  failed: number
  elapsedSeconds: number
}

/**
 * Seconds until the end, 0 where the plan is overrun, by the plan and the pace so far. The pace is
 * the elapsed time over the planned time of as many finished tasks. It counts from the third task
 * on, within a factor of four; before that the estimate is the plan's.
 * @param finishes planned end of each task, seconds, ascending
 */
export const remainingSeconds = (
  finishes: readonly number[],
  { done, elapsedSeconds }: RunCounts,
): number => {
  const end = finishes.at(-1) ?? 0
  const reached = finishes[done - 1] ?? 0
  if (done < 3 || reached === 0) return Math.max(0, end - elapsedSeconds)
  const pace = Math.min(4, Math.max(0.25, elapsedSeconds / reached))
  return (end - reached) * pace
}
