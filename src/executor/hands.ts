import type { Bell } from './bell.ts'
import type { Happening, Silence } from './book.ts'
import { freeCores, nameAt, taskAt, type Book, type Effect } from './book-state.ts'
import { openFlight, type Outcome } from './flight.ts'
import type { Intents, SitePlan } from './intents.ts'
import type { SiteParts } from './site-parts.ts'
import { openTransfers } from './transfers.ts'

/** Effects that an event answers. */
export type Question = Extract<Effect, { type: 'findAhead' | 'readHolds' | 'readCommands' | 'readForeignEnds' }>

/**
 * Does what the book of a site wants done, and tells it what comes of that. Questions are kept for the loop; so are
 * the rest and the end of the loop itself.
 */
export const openHands = (
  parts: SiteParts,
  plan: SitePlan,
  book: Book,
  intents: Intents,
  bell: Bell,
  happen: (what: Happening) => unknown,
) => {
  const { cores, clock } = parts
  const { site, runId } = book.facts
  const asked: Question[] = []
  let next: Extract<Effect, { type: 'rest' | 'gather' }> | undefined
  let left: 'settled' | 'idle' | 'drained' | undefined
  let trouble: unknown

  const tell = (what: Happening): void => {
    happen(what)
    bell.ring()
  }
  const ended = (position: number, outcome: Outcome): void => {
    if (isSilence(outcome)) tell({ type: 'driverSilent', position, outcome })
    else tell({ type: 'attemptEnded', position, outcome, copied: copiedFor(position, outcome) })
  }
  const copiedFor = (position: number, outcome: Outcome) => {
    const staged = outcome.kind === 'collected' ? outcome.collected.staged : undefined
    return staged === undefined || staged.length === 0 ? [] : intents.copied(position, staged)
  }
  const flight = openFlight({
    driver: parts.driver,
    site,
    clock,
    failpoint: parts.failpoint,
    silentSeconds: book.facts.patience.silentSeconds,
    intentOf: intents.of,
    ended,
    seen: (position, sight) => {
      tell({ type: 'attemptSeen', position, sight })
    },
    fault: (error) => {
      trouble ??= error
      bell.ring()
    },
  })
  const transfers = openTransfers(plan, book, flight, tell)
  parts.onTransfer?.(transfers.hear)

  return {
    flight,
    transfers,
    /** Questions of the book that are not answered, the oldest first. */
    asked,
    /** A fault of the engine, not of the site. */
    get trouble(): unknown {
      return trouble
    },
    /** Why the site is to be left; undefined: it is not. */
    get left(): typeof left {
      return left
    },
    act(effect: Effect): void {
      switch (effect.type) {
        case 'start':
          flight.start(effect.positions.map((position) => intents.take(position)))
          return
        case 'adopt':
          flight.adopt(
            effect.positions.map((position) => ({
              position,
              name: nameAt(book, position),
              silentSince: taskAt(book, position).silent_since ?? undefined,
            })),
          )
          return
        case 'stopAll':
          flight.cancel()
          return
        case 'takeCores':
          cores?.take(effect.cores)
          return
        case 'giveCores':
          cores?.give(effect.cores)
          return
        case 'wakeOthers':
          parts.wakes?.tell(runId, bell.ring)
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
    /** Rests as the book wants it: what happens meanwhile ends the rest, what the flight has to do by itself too. */
    async pause(): Promise<void> {
      const rest = next
      next = undefined
      if (rest?.type === 'gather') await bell.rest(rest.ms)
      if (rest?.type !== 'rest' || bell.rung) return
      if (rest.forCores) cores?.whenFree(bell.ring)
      await bell.rest(Math.min(rest.ms, Math.max(0, (flight.dueAt - clock()) * 1_000)))
    },
    /** Lets go of everything; what runs goes on. */
    letGo(): void {
      transfers.close()
      flight.close()
      for (const i of [...book.heldCores.keys()]) freeCores(book, i)
      // Where the book threw, cores that it took stand before those that it gives back.
      for (const effect of book.effects) {
        if (effect.type === 'takeCores') cores?.take(effect.cores)
        if (effect.type === 'giveCores') cores?.give(effect.cores)
      }
    },
  }
}

const isSilence = (outcome: Outcome): outcome is Silence => outcome.kind === 'silent' || outcome.kind === 'unstopped'
