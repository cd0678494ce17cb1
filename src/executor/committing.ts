import type { SiteEvent } from './scheduling.ts'
import type { SchedulingState, Step } from './scheduling-state.ts'
import type { Hands } from './hands.ts'
import type { CoreShare } from './host-cores.ts'
import type { Intents } from './intents.ts'
import { commitSite, outlastingOutage } from './journal.ts'
import { openNews, reportStep, type SiteProgress } from './news.ts'
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
  site: { epoch: number; signal: AbortSignal; state: SchedulingState; intents: Intents; hands: Hands },
  { happen, beat }: { happen: (what: SiteEvent) => unknown; beat: (facts: SiteProgress) => void },
) => {
  const { epoch, signal, state, intents, hands } = site
  const { runId, site: name } = state.facts
  const news = openNews()
  return {
    news,
    async commit(step: Step): Promise<void> {
      intents.complete(step)
      const heard = hands.transfers.waiting
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
      hands.transfers.confirm(heard)
      failpoint('committed')
      happen({ type: 'commitAnswered', acquired, holders })
      const freeCores = cores?.free ?? Infinity
      happen({ type: 'flagsSeen', sentAt, freeCores, cancelled, paused, failed, runStatus: run_status })
      news.count(step, state)
      beat({ completed: state.completed, running: hands.attempts.size, paused, news: news.total })
    },
  }
}
