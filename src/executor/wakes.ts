/**
 * Sites of one run in one process notify each other of ends at once, instead of finding them in the
 * record at their next look (0.4 s later). Commits of another process are found there all the same.
 */
export const openWakes = () => {
  const listening = new Map<string, Set<() => void>>()
  return {
    /** Calls `wake` after each step of another site of the run; the returned function stops it. */
    listen(runId: string, wake: () => void): () => void {
      const all = listening.get(runId) ?? new Set()
      listening.set(runId, all.add(wake))
      return () => {
        all.delete(wake)
        if (all.size === 0) listening.delete(runId)
      }
    },
    notify(runId: string, by: () => void): void {
      for (const wake of listening.get(runId) ?? []) if (wake !== by) wake()
    },
  }
}

export type Wakes = ReturnType<typeof openWakes>
