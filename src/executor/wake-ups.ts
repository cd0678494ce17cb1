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
  type Wake = (opens: boolean) => void
  const listening = new Map<string, Map<string, Wake>>()
  return {
    /**
     * Calls `wake` after each step with ends of another site of the run, with whether one opens a task
     * of this site; the returned function stops it.
     */
    listen(runId: string, site: string, wake: Wake): () => void {
      const all = listening.get(runId) ?? new Map<string, Wake>()
      listening.set(runId, all.set(site, wake))
      return () => {
        if (all.get(site) === wake) all.delete(site)
        if (all.size === 0 && listening.get(runId) === all) listening.delete(runId)
      }
    },
    /** `opened`: sites with tasks that ends at the site `by` open. @returns whether all of them listen */
    notify(runId: string, by: string, opened: ReadonlySet<string>): boolean {
      const all = listening.get(runId)
      for (const [site, wake] of all ?? []) if (site !== by) wake(opened.has(site))
      return [...opened].every((site) => all?.has(site) === true)
    },
  }
}

export type RunWakeUps = ReturnType<typeof openRunWakeUps>
