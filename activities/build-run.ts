import { ApplicationFailure, Context } from '@temporalio/activity'
import type { Db } from '../src/db/sql.ts'
import type { BuildWorkParts } from '../src/domains/artifacts/build-parts.ts'
import { openBuildWork } from '../src/domains/artifacts/work.ts'
import { readWork, type BuildWork } from '../src/domains/artifacts/runs.ts'
import { BuildError, fullStore, isFull } from '../src/drivers/build/errors.ts'
import { EngineRefusal } from '../src/clients/docker.ts'
import type { Engine } from '../src/engine.ts'
import { queueOfHost } from '../src/task-queues.ts'
import { beating } from './beating.ts'

export interface BuildActivityParts extends Omit<BuildWorkParts, 'db'> {
  db: Db
  engine: Pick<Engine, 'taskQueue'>
  /** Aborted when this worker is being drained; another worker then goes on. */
  draining: AbortSignal
}

export const buildRunActivities = (parts: BuildActivityParts) => {
  const { db, engine, draining } = parts
  const work = openBuildWork(parts)
  const workOf = async (id: string): Promise<BuildWork> => {
    const found = await readWork(db, id)
    if (found === undefined) throw ApplicationFailure.nonRetryable(`build run ${id} does not exist`)
    return found
  }
  /** An error that waiting does not cure ends the run; the run's record keeps the error's text. */
  const step = <T>(id: string, act: (of: BuildWork, signal: AbortSignal) => Promise<T>): Promise<T> =>
    beating(async () => {
      try {
        const signal = AbortSignal.any([Context.current().cancellationSignal, draining])
        return await act(await workOf(id), signal)
      } catch (thrown) {
        // Where the log could not be written either, the step's own error is the cause.
        const error: unknown = thrown instanceof SuppressedError ? thrown.suppressed : thrown
        if ((error instanceof BuildError && !error.passes) || error instanceof EngineRefusal)
          throw ApplicationFailure.nonRetryable(error.message, 'BuildRefused')
        if (isFull(error)) throw ApplicationFailure.nonRetryable(fullStore, 'BuildRefused')
        throw error
      }
    })

  return {
    /** The queue of the host that has the context and the engine. */
    placeBuildRun: async (id: string): Promise<string> =>
      queueOfHost(engine.taskQueue, (await workOf(id)).hostId),
    /**
     * Fetches the inputs of the build. True: an earlier run built the same image, and that image is
     * published.
     */
    fetchBuildRun: (id: string): Promise<boolean> => step(id, work.fetch),
    /** Builds the image in the engine, or finds the image that an earlier attempt has built. */
    executeBuildRun: (id: string): Promise<void> => step(id, work.build),
    /** Makes the file of the target's format, compares it, and publishes it. */
    publishBuildRun: (id: string): Promise<void> => step(id, work.publish),
    /** Removes the run's name in the engine and its files aside. */
    tidyBuildRun: (id: string): Promise<void> => step(id, work.tidy),
  }
}

export type BuildRunActivities = ReturnType<typeof buildRunActivities>
