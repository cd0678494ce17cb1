import { answerTo } from './answers.ts'
import { usualPatience } from './attempt.ts'
import { commitStep } from './committing.ts'
import { openEffectRunner } from './effect-runner.ts'
import { openIntents, type SitePlan } from './intents.ts'
import { claimSite, leaveSite, LeasePassedOn, loadRun, outlastingOutage } from './journal.ts'
import { decide, type SiteEvent } from './scheduling.ts'
import { openScheduling, type Step } from './scheduling-state.ts'
import { openChangeCount, type SiteProgress } from './site-progress.ts'
import type { HeldSite, SiteParts } from './site-parts.ts'
import { openWakeUp } from './wake-ups.ts'

export interface SiteOutcome {
  /**
   * Nothing is in flight here and nothing will be: all tasks of the site are over, or the run is
   * being stopped.
   */
  settled: boolean
  /** Tasks of the site so far, over all its holders. */
  completed: number
  failed: number
  /** A task may start here after all: it was opened while the site was being left. */
  woken?: boolean
  /** The run is paused, and nothing of it is in flight here. */
  paused?: boolean
}

/** A run at one of its sites, and who executes it there. */
export interface RunAtSite {
  runId: string
  site: string
  plan: SitePlan
  /** The process that holds the lease. */
  holder: string
  /** Aborted when this worker is drained, or the activity is cancelled. */
  signal: AbortSignal
}

/** Takes the lease of a site, and loads its run. */
const takeSite = async (
  parts: SiteParts,
  { runId, site, plan, holder, signal }: RunAtSite,
): Promise<HeldSite> => {
  const { db, clock, reports } = parts
  const { epoch, before, seen } = await outlastingOutage(() => claimSite(db, runId, site, holder), signal)
  if (before !== undefined && before !== holder) reports?.leaseTaken(before)
  const run = await outlastingOutage(() => loadRun(db, runId, plan.contentVersionId), signal)
  const { contentVersionId, effectKey, onFailure, pricePerSecond: prices } = plan
  const state = openScheduling(
    {
      ...{ runId, contentVersionId, effectKey, site, onFailure, prices },
      hostId: parts.hostId,
      patience: { ...usualPatience, ...parts.patience },
      aheadPerLane: parts.aheadPerLane ?? 0,
      hostCores: parts.cores?.count,
      brings: parts.onTransfer !== undefined,
      ...{ machine: parts.machine, onlyEnds: parts.onlyEnds, seen },
    },
    run,
    {
      mine: run.tasks.map((task) => plan.siteOf(task) === site),
      schedulesItself: run.tasks.map((task) => plan.schedulesItself(task)),
    },
    clock(),
  )
  const cores = parts.cores?.share(parts.acceptedAt ?? 0)
  return { ...parts, cores, plan, state, intents: openIntents(plan, state), epoch, signal }
}

/**
 * Runs every task of one site of a run: the only writer of their rows while it holds the site's
 * lease.
 *
 * The scheduling decides; this loop gathers events, answers the scheduling's questions, commits its
 * steps and carries out their effects. Only committed intents take effect. After a crash the next
 * holder finds the intents and queries the driver by their deterministic names: the tasks are
 * adopted, started for the first time, or lost with their machine, never started twice.
 *
 * Resolves when the site is settled or has been idle for a while; rejects with `LeasePassedOn` when
 * another worker took over, and with the signal's reason when this worker is being drained (running
 * tasks go on and are adopted later).
 */
export const runSite = async (
  parts: SiteParts,
  request: RunAtSite,
  onProgress: (facts: SiteProgress) => void,
): Promise<SiteOutcome> => {
  const held = await takeSite(parts, request)
  const { db, clock, reports, cores, state, epoch, signal } = held
  const { runId, site } = request
  const wakeUp = openWakeUp()
  const changes = openChangeCount()
  const handle = (event: SiteEvent): Step | undefined => {
    const moment = { at: clock(), ms: performance.now(), contended: cores?.contended === true }
    const { commit, effects } = decide(state, { ...moment, ...event })
    for (const effect of effects) runner.run(effect)
    return commit
  }
  const runner = openEffectRunner(held, wakeUp, handle)
  const report = (running: number): void => {
    const { completed, paused } = state
    onProgress({ completed, running, paused, wakes: runner.wakes, changes: changes.total })
  }
  const drain = (): void => {
    handle({ type: 'drain' })
    wakeUp.wake()
  }
  signal.addEventListener('abort', drain)
  if (signal.aborted) drain()
  /** Whether a task was opened here after the ends elsewhere were last read. */
  const heard = { opens: false }
  const wake = (opens: boolean): void => {
    heard.opens ||= opens
    wakeUp.wake()
  }
  const stopListening = state.foreign ? parts.wakeUps?.listen(runId, site, wake) : undefined
  try {
    handle({ type: 'begin' })
    for (;;) {
      for (let asked = runner.asked.shift(); asked !== undefined; asked = runner.asked.shift()) {
        if (asked.type === 'readForeignEnds') heard.opens = false
        handle(await answerTo(asked, held))
      }
      if (runner.trouble !== undefined) throw runner.trouble as Error
      if (runner.left !== undefined) {
        stopListening?.()
        await leaveSite(db, runId, site, epoch).catch(() => undefined)
      }
      if (runner.left === 'drained') throw signal.reason as Error
      if (runner.left !== undefined) {
        const { completed, failed } = state
        const settled = runner.left === 'settled'
        const paused = !settled && state.paused
        return {
          settled,
          completed,
          failed,
          ...(heard.opens ? { woken: true } : {}),
          ...(paused ? { paused } : {}),
        }
      }
      await runner.pause()
      wakeUp.reset()
      runner.attempts.runDue()
      reports?.silent(runner.attempts.silence)
      const step = handle({ type: 'tick', cores: cores?.inTurn() })
      if (step === undefined) continue
      await commitStep(held, runner, handle, step)
      changes.count(step, state)
      report(runner.attempts.size)
    }
  } catch (error) {
    if (error instanceof LeasePassedOn) report(0)
    throw error
  } finally {
    stopListening?.()
    reports?.left()
    signal.removeEventListener('abort', drain)
    runner.close()
  }
}
