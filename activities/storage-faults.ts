import { ApplicationFailure } from '@temporalio/activity'
import type { Db } from '../src/db/sql.ts'
import type { Storages } from '../src/domains/storages/open.ts'
import { StorageError } from '../src/drivers/storage/contract.ts'
import type { Engine } from '../src/engine.ts'

/** What the work of storages uses. */
export interface StorageWorkParts {
  db: Db
  storages: Pick<Storages, 'open'>
  engine: Pick<Engine, 'taskQueue'>
  /** Aborted when this worker is being drained; another worker then goes on. */
  draining: AbortSignal
}

/** An error that waiting does not cure ends the job with the storage's message. */
export const lasting = async <T>(work: () => Promise<T>): Promise<T> => {
  try {
    return await work()
  } catch (error) {
    if (error instanceof StorageError && !error.passes)
      throw ApplicationFailure.nonRetryable(error.message, 'StorageRefused')
    throw error
  }
}
