import { ApplicationFailure } from '@temporalio/activity'
import { StorageError } from '../src/drivers/storage/contract.ts'

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
