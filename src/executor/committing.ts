import type { SiteEvent } from './scheduling.ts'
import type { SchedulingState, Step } from './scheduling-state.ts'
import type { EffectRunner } from './effect-runner.ts'
import type { CoreShare } from './host-cores.ts'
import type { Intents } from './intents.ts'
import { commitSite, outlastingOutage } from './journal.ts'
import { openChangeCount, reportStep, type SiteProgress } from './site-progress.ts'
import type { SiteParts } from './site-parts.ts'

/** Commits the steps of a site's scheduling, and gives the answers of the database back to it as events. */
export const openCommitting = (
  {
    db,
    clock,
    failpoint,
    reports,
    cores,
  }: Pick<SiteParts, 'db' | 'clock' | 'failpoint' | 'reports'> & { cores: CoreShare | undefined },
  site: {
    epoch: number
    signal: AbortSignal
    state: SchedulingState
    intents: Intents
    runner: EffectRunner
  },
  {
    handle,
    onProgress,
  }: { handle: (event: SiteEvent) => unknown; onProgress: (facts: SiteProgress) => void },
) => {
  const { epoch, signal, state, intents, runner } = site
  const { runId, site: name } = state.facts
  const changes = openChangeCount()
  return {
    changes,
    async commit(step: Step): Promise<void> {
      intents.complete(step)
      const heard = runner.transfers.waiting
      failpoint('before-commit')
      let tries = 0
      let sentAt = 0
      const { acquired, holders, cancelled, paused, failed, run_status } = await outlastingOutage(() => {
        // After an outage the lanes may have been acquired only now.
        if ((tries += 1) > 1) for (const intent of step.entry.intents) intent.startedAt = clock()
        sentAt = performance.now()
        return commitSite(db, runId, name, epoch, step.entry)
      }, signal)
      reports?.committed((performance.now() - sentAt) / 1_000)
      if (reports !== undefined) reportStep(reports, step)
      runner.transfers.confirm(heard)
      failpoint('committed')
      handle({ type: 'commitAnswered', acquired, holders })
      const freeCores = cores?.free ?? Infinity
      handle({ type: 'flagsSeen', sentAt, freeCores, cancelled, paused, failed, runStatus: run_status })
      changes.count(step, state)
      onProgress({
        completed: state.completed,
        running: runner.attempts.size,
        paused,
        changes: changes.total,
      })
    },
  }
}
