import type { WakeUp } from './wake-ups.ts'
import type { SiteEvent } from './scheduling.ts'
import { earlierNames, freeCores, nameAt, taskAt, type Effect } from './scheduling-state.ts'
import { openAttempts, type Outcome } from './attempts-in-flight.ts'
import type { HeldSite } from './site-parts.ts'
import { outlastingOutage } from './journal.ts'
import { endLeftovers } from './leftovers.ts'
import { openTransfers } from './transfers.ts'

/** Effects that an event answers. */
export type Question = Extract<
  Effect,
  { type: 'findAhead' | 'readHolds' | 'readCommands' | 'readForeignEnds' }
>

/**
 * Carries out the effects of a site's scheduling, and returns their results to it as events. Questions
 * are kept for the loop; so are the rest and the end of the loop itself.
 */
export const openEffectRunner = (held: HeldSite, wakeUp: WakeUp, handle: (event: SiteEvent) => unknown) => {
  const { db, driver, cores, clock, failpoint, state, intents, plan } = held
  const { monotonic = () => performance.now() / 1_000 } = held
  const { site, runId } = state.facts
  const asked: Question[] = []
  let next: Extract<Effect, { type: 'rest' | 'gather' }> | undefined
  let left: 'settled' | 'idle' | 'drained' | undefined
  let trouble: unknown
  let wakes = 0

  const handleAndWake = (event: SiteEvent): void => {
    handle(event)
    wakeUp.wake()
  }
  const copiedFor = (position: number, outcome: Outcome) => {
    const staged = outcome.kind === 'collected' ? outcome.collected.staged : undefined
    return staged === undefined || staged.length === 0 ? [] : intents.copied(position, staged)
  }
  const attempts = openAttempts({
    ...{ driver, site, clock, monotonic, failpoint },
    silentSeconds: state.facts.patience.silentSeconds,
    intentOf: intents.of,
    held: () => (state.stopping === 'failed' ? 'failed' : state.paused ? 'paused' : undefined),
    endEarlier: async (positions) => {
      const earlier = positions.flatMap((position) => earlierNames(state, position))
      if (earlier.length === 0) return
      await outlastingOutage(() => endLeftovers(db, site, earlier, driver), held.signal)
    },
    ended: (position, outcome) => {
      handleAndWake({ type: 'attemptEnded', position, outcome, copied: copiedFor(position, outcome) })
    },
    observed: (position, observation) => {
      handleAndWake({ type: 'attemptObserved', position, observation })
    },
    programEnded: (position) => {
      handleAndWake({ type: 'programEnded', position })
    },
    fault: (error) => {
      trouble ??= error
      wakeUp.wake()
    },
  })
  const sitesOf = (positions: readonly number[]): ReadonlySet<string> =>
    new Set(positions.map((position) => plan.siteOf(taskAt(state, position))))
  const transfers = openTransfers(held, attempts, handleAndWake)
  held.onTransfer?.(transfers.hear)

  return {
    attempts,
    transfers,
    /** Unanswered questions of the scheduling, the oldest first. */
    asked,
    /** A fault of the engine, not of the site. */
    get trouble(): unknown {
      return trouble
    },
    /** Counts steps with ends that open tasks of a site which does not listen in this process. */
    get wakes(): number {
      return wakes
    },
    /** Why the site should be left; undefined: it should not. */
    get left(): typeof left {
      return left
    },
    run(effect: Effect): void {
      switch (effect.type) {
        case 'start':
          attempts.start(effect.positions.map((position) => intents.take(position)))
          return
        case 'adopt':
          attempts.adopt(
            effect.positions.map((position) => ({
              position,
              name: nameAt(state, position),
              silentSince: taskAt(state, position).silent_since ?? undefined,
              silentFor: taskAt(state, position).silent_for ?? 0,
            })),
          )
          return
        case 'stopAll':
          attempts.cancel()
          return
        case 'takeCores':
          cores?.take(effect.cores)
          return
        case 'giveCores':
          cores?.give(effect.cores)
          return
        case 'requestCores':
          cores?.request(effect.request, wakeUp.wake)
          return
        case 'wakeOthers':
          if (held.wakeUps?.notify(runId, site, sitesOf(effect.opened)) === false) wakes += 1
          return
        case 'rest':
        case 'gather':
          next = effect
          return
        case 'leave':
          left = effect.why
          return
        case 'findAhead':
        case 'readHolds':
        case 'readCommands':
        case 'readForeignEnds':
          asked.push(effect)
      }
    },
    /** Rests as the scheduling requires; an event ends the rest, and so do due queries. */
    async pause(): Promise<void> {
      const rest = next
      next = undefined
      if (rest?.type === 'gather') await wakeUp.sleep(rest.ms)
      if (rest?.type !== 'rest') return
      cores?.request(rest.request, wakeUp.wake)
      if (wakeUp.woken) return
      await wakeUp.sleep(Math.min(rest.ms, Math.max(0, (attempts.dueAt - monotonic()) * 1_000)))
    },
    /** Releases everything; running tasks go on. */
    close(): void {
      transfers.close()
      attempts.close()
      held.leave?.()
      for (const i of [...state.heldCores.keys()]) freeCores(state, i)
      // Where the scheduling threw, the cores that it took are listed before those that it returns.
      for (const effect of state.effects) {
        if (effect.type === 'takeCores') cores?.take(effect.cores)
        if (effect.type === 'giveCores') cores?.give(effect.cores)
      }
      cores?.close()
    },
  }
}

export type EffectRunner = ReturnType<typeof openEffectRunner>
