import { DriverError } from '../drivers/runtime/driver.ts'
import { broughtTransfer, type TransferFacts } from './attempt.ts'
import type { Happening } from './book.ts'
import { taskAt, type Book } from './book-state.ts'
import type { Flight } from './flight.ts'
import type { SitePlan } from './intents.ts'

/** Puts on record what was brought from other sites, before the driver gets the task it was brought for. */
export const openTransfers = (
  plan: Pick<SitePlan, 'routeOf'>,
  book: Book,
  flight: Pick<Flight, 'positionOf'>,
  tell: (what: Happening) => void,
) => {
  const waiting: { resolve: () => void; reject: (error: Error) => void }[] = []
  return {
    /** How many transfers are to be on record with the next commit. */
    get waiting(): number {
      return waiting.length
    },
    /** Resolves once the transfer is on record. What brings no predecessor's files (a seed) has no record. */
    hear: (name: string, facts: TransferFacts): Promise<void> => {
      const i = flight.positionOf(name)
      const producers = i === undefined ? [] : Array.from(book.frontier.predecessorsOf(i), (p) => taskAt(book, p))
      const producer = producers.find(({ external_id }) => external_id === facts.label)
      if (i === undefined || producer === undefined) return Promise.resolve()
      const task = taskAt(book, i)
      const route = plan.routeOf(producer.resource_id, task.resource_id, facts.bytes)
      const transfer = broughtTransfer(book.facts.runId, task, producer, facts, route)
      // Told again after trouble on the way to the driver: what moved is on record.
      if (book.brought.get(i)?.has(transfer.id) === true) return Promise.resolve()
      return new Promise((resolve, reject) => {
        waiting.push({ resolve, reject })
        tell({ type: 'transferHeard', position: i, transfer })
      })
    },
    /** The oldest `count` are on record. */
    confirm(count: number): void {
      for (const { resolve } of waiting.splice(0, count)) resolve()
    },
    /** Their tasks are not handed on: the next holder brings the files again, and finds them there. */
    close(): void {
      for (const { reject } of waiting) reject(new DriverError('unknown', `the executor of ${book.facts.site} has let go of the run`))
    },
  }
}
