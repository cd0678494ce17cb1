import { setTimeout as sleep } from 'node:timers/promises'
import type { Api } from './api.ts'
import { remainingSeconds, type RunCounts } from './estimate.ts'
import { bar, duration, type Screen } from './screen.ts'

const everyMs = 400

const isOver = (status: string): boolean => ['completed', 'failed', 'cancelled'].includes(status)

/**
 * Shows a run until it is over.
 * @param finishes planned end of each task, seconds, ascending
 * @returns the run's record
 */
export const watchRun = async (
  api: Api,
  screen: Screen,
  runId: string,
  finishes: readonly number[],
  stop: AbortSignal,
): Promise<any> => {
  const startedAt = performance.now()
  for (;;) {
    const { run, activities } = await api.get(`/execution-runs/${encodeURIComponent(runId)}/`)
    if (isOver(run.status)) return run
    const counts: RunCounts = {
      done: run.completedActivityCount,
      running: activities.filter(
        ({ status }: { status: string }) => status === 'running' || status === 'preparing',
      ).length,
      failed: run.failedActivityCount,
      elapsedSeconds: (performance.now() - startedAt) / 1000,
    }
    screen.live(progressText(run.activityCount, counts, remainingSeconds(finishes, counts), screen.renews))
    await sleep(everyMs, undefined, { signal: stop })
  }
}

/**
 * Waits for the candidates of a planning session. @throws Error with its reasons when it does not
 * complete
 */
export const awaitPlanned = async (api: Api, session: string, stop: AbortSignal): Promise<void> => {
  for (;;) {
    const { session: found, algorithmRuns } = await api.get(`/planning-sessions/${session}/`)
    if (found.status === 'completed') return
    if (isOver(found.status)) {
      const reasons = [found, ...algorithmRuns]
        .map(({ failureReason }) => failureReason)
        .filter((reason) => reason !== undefined)
      throw new Error(`the planning session is ${found.status}: ${reasons.join('; ')}`)
    }
    await sleep(100, undefined, { signal: stop })
  }
}

/** Waits for a run's end without output. */
export const awaitEnd = async (api: Api, runId: string): Promise<string> => {
  for (;;) {
    const { run } = await api.get(`/execution-runs/${encodeURIComponent(runId)}/`)
    if (isOver(run.status)) return run.status
    await sleep(100)
  }
}

const progressText = (
  total: number,
  { done, running, failed, elapsedSeconds }: RunCounts,
  remaining: number,
  drawn: boolean,
): string =>
  [
    `${drawn ? `${bar(done / total, 24)} ` : ''}${done} of ${total}`,
    `${running} running`,
    `${failed} failed`,
    duration(elapsedSeconds),
    ...(remaining >= 0.5 ? [`about ${Math.round(remaining)} s left`] : []),
  ].join(' · ')
