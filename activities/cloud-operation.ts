import { ApplicationFailure, Context } from '@temporalio/activity'
import { validateMachine } from '../src/domains/cloud/checks.ts'
import { configureMachine, isConfigured } from '../src/domains/cloud/configure.ts'
import * as work from '../src/domains/cloud/work.ts'
import { CloudError } from '../src/drivers/cloud/contract.ts'
import { Refusal } from '../src/refusal.ts'
import { beating } from './beating.ts'

export type CloudOperationParts = work.CloudWorkParts

/** An answer of the provider or of the service itself; others are faults of a link or of this code. */
const isAnswer = (error: unknown): error is CloudError | Refusal =>
  error instanceof CloudError || error instanceof Refusal

const passes = (error: CloudError | Refusal): boolean =>
  error instanceof CloudError ? error.passes : error.code === 'unavailable'

export const cloudOperationActivities = (parts: CloudOperationParts) => {
  /** While an error is waited for, the events of the operation name it. */
  const named = async <T>(id: string, step: () => Promise<T>): Promise<T> => {
    try {
      return await step()
    } catch (error) {
      // The error itself counts, whether or not its record succeeds.
      if (isAnswer(error) && passes(error))
        await work.recordProviderWait(parts.db, id, error.message).catch(() => undefined)
      throw error
    }
  }
  /**
   * An error that waiting does not cure fails the operation; the record keeps the provider's
   * message.
   */
  const lasting = <T>(id: string, step: () => Promise<T>): Promise<T> =>
    beating(async () => {
      try {
        return await named(id, step)
      } catch (error) {
        if (!isAnswer(error) || passes(error)) throw error
        await work.recordFailure(parts.db, id, error.message)
        throw ApplicationFailure.nonRetryable(error.message, 'CloudRefused')
      }
    })
  const signal = (): AbortSignal => Context.current().cancellationSignal

  return {
    /** Reads what the operation has to do, and whether its machine exists already. */
    readCloudOperation: async (id: string): Promise<{ kind: string; configures: boolean }> => {
      const { kind, readyAt, targetId } = await work.readJob(parts.db, id)
      const isNew = kind === 'provision' && readyAt == null
      return { kind, configures: kind === 'configure' || (isNew && (await isConfigured(parts.db, targetId))) }
    },
    createCloudMachine: (id: string): Promise<void> => lasting(id, () => work.createMachine(parts, id)),
    startCloudMachine: (id: string): Promise<void> => lasting(id, () => work.startMachine(parts, id)),
    awaitCloudMachine: (id: string): Promise<void> =>
      lasting(id, () => work.awaitRunning(parts, id, signal())),
    awaitCloudSsh: (id: string): Promise<void> => lasting(id, () => work.awaitSsh(parts, id, signal())),
    configureCloudMachine: (id: string): Promise<void> =>
      lasting(id, () => configureMachine(parts, id, signal())),
    validateCloudMachine: (id: string): Promise<void> =>
      lasting(id, () => validateMachine(parts, id, signal())),
    readyCloudMachine: (id: string): Promise<void> => lasting(id, () => work.markReady(parts, id)),
    stopCloudMachine: (id: string): Promise<void> => lasting(id, () => work.stopMachine(parts, id, signal())),
    destroyCloudMachine: (id: string): Promise<void> =>
      lasting(id, () => work.destroyMachine(parts, id, signal())),
    /** Removes what a failed or cancelled operation has left. */
    leaveCloudMachine: (id: string, reason?: string): Promise<void> =>
      beating(() => named(id, () => work.leaveMachine(parts, id, signal(), reason))),
  }
}

export type CloudOperationActivities = ReturnType<typeof cloudOperationActivities>
