import { transferIds } from './scheduling-adoption.ts'
import type { SiteEvent } from './scheduling.ts'
import { nameAt, taskAt } from './scheduling-state.ts'
import type { Question } from './effect-runner.ts'
import { loadCores, loadEnds, loadFlags, loadTransfers, outlastingOutage } from './journal.ts'
import type { HeldSite } from './site-parts.ts'

/** Reads the answer to the scheduling's question, from the record or from the site. */
export const answerTo = async (question: Question, site: HeldSite): Promise<SiteEvent> => {
  const { db, plan, state, signal } = site
  const asking = <T>(work: () => Promise<T>): Promise<T> => outlastingOutage(work, signal)
  switch (question.type) {
    case 'findAhead':
      return { type: 'aheadFound', started: await startsOf(question, site, asking) }
    case 'readHolds': {
      const { positions } = question
      const ids = state.facts.brings ? transferIds(state, positions).map(({ id }) => id) : []
      const transfers = await asking(() => loadTransfers(db, ids))
      const cores = await asking(() => coresHeld(positions, site))
      // Last: what is adopted starts next.
      const flags = await asking(() => loadFlags(db, state.facts.runId))
      return { type: 'holdsRead', cores, transfers, ...flags }
    }
    case 'readCommands': {
      const commands = await asking(() => plan.commandsOf([...question.positions]))
      for (const i of question.positions)
        if (!commands.has(i)) throw new Error(`the command of ${taskAt(state, i).id} is not on record`)
      return { type: 'commandsRead', commands }
    }
    case 'readForeignEnds':
      return {
        type: 'foreignEnds',
        ends: await asking(() => loadEnds(db, state.facts.runId, question.after)),
      }
  }
}

type Asking = <T>(work: () => Promise<T>) => Promise<T>

/** The starts of tasks that an earlier holder had intended ahead, in seconds since the epoch. */
const startsOf = async (
  { positions, afterMs }: Extract<Question, { type: 'findAhead' }>,
  { driver, clock, state }: HeldSite,
  asking: Asking,
): Promise<Map<number, number | undefined>> => {
  await new Promise((resolve) => setTimeout(resolve, afterMs))
  const found = await asking(() => driver.find(positions.map((i) => nameAt(state, i))))
  return new Map(
    positions.map((i) => {
      const seen = found.get(nameAt(state, i)) ?? { state: 'unknown' }
      if (seen.state === 'unknown') return [i, undefined]
      return [i, 'startedAt' in seen ? seen.startedAt : clock()]
    }),
  )
}

/** Cores that adopted tasks hold; this process holds them from now on. */
const coresHeld = async (
  positions: readonly number[],
  { db, cores, hostId, state }: HeldSite,
): Promise<Map<number, readonly number[]>> => {
  if (cores === undefined) return new Map()
  const held = await loadCores(
    db,
    hostId,
    positions.map((i) => taskAt(state, i).id),
  )
  return new Map(positions.map((i) => [i, cores.hold(held.get(taskAt(state, i).id) ?? [])]))
}
