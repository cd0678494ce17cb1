import type { Db } from '../src/db/sql.ts'
import type { OperationEnd, OperationKind } from '../src/operations/kind.ts'
import {
  beginOperation,
  endOf,
  endOperation,
  isOpenState,
  readOperation,
  requestCancel,
  temporalActor,
} from '../src/operations/records.ts'

export interface OperationParts {
  db: Db
  kinds: readonly OperationKind[]
}

/**
 * The records that workflows of every kind of operation write; each function takes the kind's name,
 * the record's id, its generation and its key.
 */
export const operationActivities = ({ db, kinds }: OperationParts) => {
  const kindOf = (name: string): OperationKind => {
    const kind = kinds.find((one) => one.name === name)
    if (kind === undefined)
      throw new Error(
        `this worker knows no kind of operation ${JSON.stringify(name)}; it is of an older version`,
      )
    return kind
  }
  return {
    /**
     * accepted → running, once. Returns how the operation ended when it is over; an unknown
     * operation has no state.
     */
    beginOperation: async (
      name: string,
      id: string,
      generation: number,
      key?: string,
    ): Promise<{ over: false } | { over: true; end: Partial<OperationEnd> }> => {
      const kind = kindOf(name)
      const found = await beginOperation(db, kind, { id, generation, key })
      return found?.status === kind.states.running ? { over: false } : { over: true, end: endOf(found) ?? {} }
    },

    /** Ends an open operation, once. Returns how it has ended. */
    finishOperation: (
      name: string,
      id: string,
      generation: number,
      end: OperationEnd,
      key?: string,
    ): Promise<Partial<OperationEnd>> =>
      db.transaction(async (tx) => {
        const kind = kindOf(name)
        const of = { id, generation, key }
        await endOperation(tx, kind, of, end)
        return endOf(await readOperation(tx, kind, of)) ?? {}
      }),

    /** Applies a cancel of the workflow to the record. True: the work has to stop. */
    cancelOperation: async (name: string, id: string, generation: number, key?: string): Promise<boolean> => {
      const kind = kindOf(name)
      const found = await requestCancel(db, kind, { id, generation, key }, { actorId: temporalActor })
      return (
        found !== undefined &&
        (found.status === 'cancelled' ||
          (isOpenState(kind, found.status) && found.cancelRequestedAt !== undefined))
      )
    },
  }
}

export type OperationActivities = ReturnType<typeof operationActivities>
