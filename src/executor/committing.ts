import type { EffectRunner } from './effect-runner.ts'
import { commitSite, outlastingOutage } from './journal.ts'
import type { SiteEvent } from './scheduling.ts'
import type { Step } from './scheduling-state.ts'
import { reportStep } from './site-progress.ts'
import type { HeldSite } from './site-parts.ts'

/** Commits a step of a site, and gives the answer of the database back to its scheduling as events. */
export const commitStep = async (
  { db, clock, failpoint, reports, cores, epoch, signal, state, intents }: HeldSite,
  runner: Pick<EffectRunner, 'transfers'>,
  handle: (event: SiteEvent) => unknown,
  step: Step,
): Promise<void> => {
  const { runId, site } = state.facts
  intents.complete(step)
  const heard = runner.transfers.waiting
  failpoint('before-commit')
  let tries = 0
  let sentAt = 0
  const { acquired, holders, cancelled, paused, failed, run_status } = await outlastingOutage(() => {
    // After an outage the lanes may have been acquired only now.
    if ((tries += 1) > 1) for (const intent of step.entry.intents) intent.startedAt = clock()
    sentAt = performance.now()
    return commitSite(db, runId, site, epoch, step.entry)
  }, signal)
  reports?.committed((performance.now() - sentAt) / 1_000)
  if (reports !== undefined) reportStep(reports, step)
  runner.transfers.confirm(heard)
  failpoint('committed')
  handle({ type: 'commitAnswered', acquired, holders })
  const freeCores = cores?.free ?? Infinity
  handle({ type: 'flagsSeen', sentAt, freeCores, cancelled, paused, failed, runStatus: run_status })
}
