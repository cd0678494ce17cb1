import { answerTo } from './answers.ts'
import { openBell } from './bell.ts'
import { decide, openBook, type Happening } from './book.ts'
import type { Step } from './book-state.ts'
import { openHands } from './hands.ts'
import { bookFactsOf, openIntents, type SitePlan } from './intents.ts'
import { claimSite, commitSite, LeasePassedOn, loadRun, outlastingOutage } from './journal.ts'
import type { SiteParts } from './site-parts.ts'

export interface SiteOutcome {
  /** Nothing is in flight here and nothing will be: all tasks of the site are over, or the run is being stopped. */
  settled: boolean
  /** Tasks of the site so far, over all its holders. */
  completed: number
  failed: number
}

/** What is told of a site after each of its steps. */
export interface SiteFacts {
  completed: number
  running: number
  paused: boolean
  /** Counts reasons to wait, and failures. */
  news: number
}

const newsIn = ({ entry }: Step): number =>
  entry.states.filter(({ reason }) => reason !== undefined).length + entry.ends.filter(({ status }) => status === 'failed').length

/**
 * Runs every task of one site of a run: the only writer of their rows while it holds the site's lease.
 *
 * The book decides; this loop gathers what happens, answers the book's questions, commits its steps and does what
 * follows. Only committed intents take effect. After a crash the next holder finds the intents and asks the driver, by
 * their deterministic names, what became of them: adopted, started for the first time, or lost with their machine,
 * never started twice.
 *
 * Resolves when the site is settled or has been idle for a while; rejects with `LeasePassedOn` when another worker took
 * over, and with the signal's reason when this worker is being drained (what runs goes on and is adopted later).
 */
export const runSite = async (
  parts: SiteParts,
  runId: string,
  site: string,
  plan: SitePlan,
  holder: string,
  signal: AbortSignal,
  beat: (facts: SiteFacts) => void,
): Promise<SiteOutcome> => {
  const { db, clock, cores, failpoint } = parts
  const epoch = await outlastingOutage(() => claimSite(db, runId, site, holder), signal)
  const run = await outlastingOutage(() => loadRun(db, runId, plan.contentVersionId), signal)
  const mine = run.tasks.map((task) => plan.siteOf(task) === site)
  const schedulesItself = run.tasks.map((task) => plan.schedulesItself(task))
  const book = openBook(bookFactsOf(parts, plan, runId, site), run, { mine, schedulesItself }, clock())
  const intents = openIntents(plan, book)
  const bell = openBell()

  const happen = (what: Happening): Step | undefined => {
    const moment = { at: clock(), ms: performance.now(), contended: cores?.contended === true }
    const { commit, effects } = decide(book, { ...moment, ...what })
    for (const effect of effects) hands.act(effect)
    return commit
  }
  const hands = openHands(parts, plan, book, intents, bell, happen)

  let news = 0
  const commit = async (step: Step): Promise<void> => {
    intents.complete(step)
    const heard = hands.transfers.waiting
    failpoint('before-commit')
    let tries = 0
    let sentAt = 0
    const { acquired, holders, cancelled, paused, failed, run_status } = await outlastingOutage(() => {
      // After an outage the lanes may have been had only now.
      if ((tries += 1) > 1) for (const intent of step.entry.intents) intent.startedAt = clock()
      sentAt = performance.now()
      return commitSite(db, runId, site, epoch, step.entry)
    }, signal)
    hands.transfers.confirm(heard)
    failpoint('committed')
    happen({ type: 'commitAnswered', acquired, holders })
    const freeCores = cores?.free ?? Infinity
    happen({ type: 'flagsSeen', sentAt, freeCores, cancelled, paused, failed, runStatus: run_status })
    news += newsIn(step)
    beat({ completed: book.completed, running: hands.flight.size, paused, news })
  }

  const drain = (): void => {
    happen({ type: 'drain' })
    bell.ring()
  }
  signal.addEventListener('abort', drain)
  if (signal.aborted) drain()
  const deaf = book.foreign ? parts.wakes?.listen(runId, bell.ring) : undefined
  try {
    happen({ type: 'begin' })
    for (;;) {
      for (let asked = hands.asked.shift(); asked !== undefined; asked = hands.asked.shift())
        happen(await answerTo(asked, parts, plan, book, signal))
      if (hands.trouble !== undefined) throw hands.trouble as Error
      if (hands.left === 'drained') throw signal.reason as Error
      if (hands.left !== undefined) return { settled: hands.left === 'settled', completed: book.completed, failed: book.failed }
      await hands.pause()
      bell.hush()
      hands.flight.turn()
      const step = happen({ type: 'tick', cores: cores?.inTurn() })
      if (step !== undefined) await commit(step)
    }
  } catch (error) {
    if (error instanceof LeasePassedOn) beat({ completed: book.completed, running: 0, paused: book.paused, news })
    throw error
  } finally {
    deaf?.()
    signal.removeEventListener('abort', drain)
    hands.letGo()
  }
}
