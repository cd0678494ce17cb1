import { ApplicationFailure } from '@temporalio/activity'
import type { Db } from '../src/db/sql.ts'
import type { Storages } from '../src/domains/storages/open.ts'
import { StorageError } from '../src/drivers/storage/contract.ts'
import type { Engine } from '../src/engine.ts'
import { openBackoff } from '../src/pacing/backoff.ts'
import { Refusal } from '../src/refusal.ts'
import { passes } from './tries.ts'

/** What the work of storages uses. */
export interface StorageWorkParts {
  db: Db
  storages: Pick<Storages, 'open'>
  engine: Pick<Engine, 'taskQueue'>
  /** Aborted when this worker is being drained; another worker then goes on. */
  draining: AbortSignal
}

/**
 * An error that waiting does not cure ends the job with the storage's message. A database that is away
 * is waited for until `signal`: Temporal counts no attempt, and fails no job for it.
 */
export const lasting = async <T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> => {
  const backoff = openBackoff({ firstMs: 200, longestMs: 10_000, spread: 0.5 })
  for (;;)
    try {
      return await work()
    } catch (error) {
      if (error instanceof StorageError && !error.passes)
        throw ApplicationFailure.nonRetryable(error.message, 'StorageRefused')
      const isOfStorage = error instanceof StorageError || error instanceof Refusal
      if (isOfStorage || !passes(error) || signal.aborted) throw error
      await backoff.pause(signal)
    }
}
