import { answerTo } from './answers.ts'
import { openWakeUp } from './wake-ups.ts'
import { decide, type SiteEvent } from './scheduling.ts'
import { openScheduling, type Step } from './scheduling-state.ts'
import { openCommitting } from './committing.ts'
import { openEffectRunner } from './effect-runner.ts'
import { schedulingFactsOf, openIntents, type SitePlan } from './intents.ts'
import { claimSite, leaveSite, LeasePassedOn, loadRun, outlastingOutage } from './journal.ts'
import type { SiteProgress } from './site-progress.ts'
import type { SiteParts } from './site-parts.ts'

export interface SiteOutcome {
  /**
   * Nothing is in flight here and nothing will be: all tasks of the site are over, or the run is
   * being stopped.
   */
  settled: boolean
  /** Tasks of the site so far, over all its holders. */
  completed: number
  failed: number
}

/**
 * Runs every task of one site of a run: the only writer of their rows while it holds the site's
 * lease.
 *
 * The scheduling decides; this loop gathers events, answers the scheduling's questions, commits its steps and
 * carries out their effects. Only committed intents take effect. After a crash the next holder
 * finds the intents and queries the driver by their deterministic names: the tasks are adopted,
 * started for the first time, or lost with their machine, never started twice.
 *
 * Resolves when the site is settled or has been idle for a while; rejects with `LeasePassedOn` when
 * another worker took over, and with the signal's reason when this worker is being drained (running
 * tasks go on and are adopted later).
 */
export const runSite = async (
  parts: SiteParts,
  runId: string,
  site: string,
  plan: SitePlan,
  holder: string,
  signal: AbortSignal,
  onProgress: (facts: SiteProgress) => void,
): Promise<SiteOutcome> => {
  const { db, clock, reports } = parts
  const { epoch, before } = await outlastingOutage(() => claimSite(db, runId, site, holder), signal)
  if (before !== undefined && before !== holder) reports?.leaseTaken(before)
  const run = await outlastingOutage(() => loadRun(db, runId, plan.contentVersionId), signal)
  const mine = run.tasks.map((task) => plan.siteOf(task) === site)
  const schedulesItself = run.tasks.map((task) => plan.schedulesItself(task))
  const state = openScheduling(
    schedulingFactsOf(parts, plan, runId, site),
    run,
    { mine, schedulesItself },
    clock(),
  )
  const intents = openIntents(plan, state)
  const cores = parts.cores?.share(parts.acceptedAt ?? 0)
  const wakeUp = openWakeUp()

  const handle = (event: SiteEvent): Step | undefined => {
    const moment = { at: clock(), ms: performance.now(), contended: cores?.contended === true }
    const { commit, effects } = decide(state, { ...moment, ...event })
    for (const effect of effects) runner.run(effect)
    return commit
  }
  const runner = openEffectRunner({ ...parts, cores }, plan, state, intents, wakeUp, handle)

  const committing = openCommitting(
    { ...parts, cores },
    { epoch, signal, state, intents, runner },
    { handle, onProgress },
  )

  const drain = (): void => {
    handle({ type: 'drain' })
    wakeUp.wake()
  }
  signal.addEventListener('abort', drain)
  if (signal.aborted) drain()
  const stopListening = state.foreign ? parts.wakeUps?.listen(runId, wakeUp.wake) : undefined
  try {
    handle({ type: 'begin' })
    for (;;) {
      for (let asked = runner.asked.shift(); asked !== undefined; asked = runner.asked.shift())
        handle(await answerTo(asked, { ...parts, cores }, plan, state, signal))
      if (runner.trouble !== undefined) throw runner.trouble as Error
      if (runner.left !== undefined) await leaveSite(db, runId, site, epoch).catch(() => undefined)
      if (runner.left === 'drained') throw signal.reason as Error
      if (runner.left !== undefined)
        return { settled: runner.left === 'settled', completed: state.completed, failed: state.failed }
      await runner.pause()
      wakeUp.reset()
      runner.attempts.runDue()
      reports?.silent(runner.attempts.silence)
      const step = handle({ type: 'tick', cores: cores?.inTurn() })
      if (step !== undefined) await committing.commit(step)
    }
  } catch (error) {
    if (error instanceof LeasePassedOn)
      onProgress({
        completed: state.completed,
        running: 0,
        paused: state.paused,
        changes: committing.changes.total,
      })
    throw error
  } finally {
    stopListening?.()
    reports?.left()
    signal.removeEventListener('abort', drain)
    runner.close()
  }
}
