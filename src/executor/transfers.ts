import { DriverError } from '../drivers/runtime/contract/driver.ts'
import { broughtTransfer, type TransferFacts } from './attempt.ts'
import type { SiteEvent } from './scheduling.ts'
import { taskAt } from './scheduling-state.ts'
import type { AttemptsInFlight } from './attempts-in-flight.ts'
import type { HeldSite } from './site-parts.ts'

/** Records transfers from other sites, before the driver gets the task that needs them. */
export const openTransfers = (
  { plan, state }: Pick<HeldSite, 'plan' | 'state'>,
  attempts: Pick<AttemptsInFlight, 'positionOf'>,
  handleAndWake: (event: SiteEvent) => void,
) => {
  const letGo = (): DriverError =>
    new DriverError('unknown', `the executor of ${state.facts.site} has let go of the run or the task`)
  const waiting: { resolve: () => void; reject: (error: Error) => void }[] = []
  return {
    /** How many transfers the next commit has to record. */
    get waiting(): number {
      return waiting.length
    },
    /**
     * Resolves once the transfer is on record. A transfer without a predecessor's files (a seed)
     * has no record. Rejects for a task that this executor has let go: whoever passes it on later
     * records its transfers.
     */
    hear: (name: string, facts: TransferFacts): Promise<void> => {
      const i = attempts.positionOf(name)
      if (i === undefined) return Promise.reject(letGo())
      if (facts.producer === undefined) return Promise.resolve()
      const producer = taskAt(state, facts.producer)
      const task = taskAt(state, i)
      const route = plan.routeOf(producer.resource_id, task.resource_id, facts.bytes)
      const transfer = broughtTransfer(state.facts.runId, task, producer, facts, route)
      // Repeated after trouble on the way to the driver: the moved bytes are on record.
      if (state.brought.get(i)?.has(transfer.id) === true) return Promise.resolve()
      return new Promise((resolve, reject) => {
        waiting.push({ resolve, reject })
        handleAndWake({ type: 'transferHeard', position: i, transfer })
      })
    },
    /** The oldest `count` are on record. */
    confirm(count: number): void {
      for (const { resolve } of waiting.splice(0, count)) resolve()
    },
    /**
     * Their tasks are not passed on: the next holder brings the files again, and finds them there.
     */
    close(): void {
      for (const { reject } of waiting) reject(letGo())
    },
  }
}
