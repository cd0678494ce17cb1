/** Sleeps that an event ends. */
export const openWakeUp = () => {
  let woken = false
  let end: () => void = () => undefined
  return {
    /** An event has come since `reset`. */
    get woken(): boolean {
      return woken
    },
    reset(): void {
      woken = false
    },
    wake: (): void => {
      woken = true
      end()
    },
    /** Resolves after so many milliseconds, or at the next `wake`. */
    sleep: (ms: number): Promise<void> =>
      new Promise((resolve) => {
        const timer = setTimeout(resolve, ms)
        end = () => {
          clearTimeout(timer)
          resolve()
        }
      }),
  }
}

export type WakeUp = ReturnType<typeof openWakeUp>

/**
 * Sites of one run in one process notify each other of ends at once, instead of finding them in the
 * record at their next look (0.4 s later). Commits of another process are found there all the same.
 */
export const openRunWakeUps = () => {
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

export type RunWakeUps = ReturnType<typeof openRunWakeUps>
