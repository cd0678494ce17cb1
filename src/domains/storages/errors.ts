import { StorageError } from '../../drivers/storage/contract.ts'
import { Refusal, unacceptableAt } from '../../refusal.ts'

/** Seconds after which a busy storage is asked again. */
const againSeconds = 10

/**
 * Position of the path in the request: a missing entry in the query is 404, in a body 422. One that
 * may be a directory that the login does not see is 422, too.
 */
export type PathPosition = 'query' | 'body'

/** The refusal for a fault of a storage. Other errors are returned unchanged. */
export const storageRefusal = (error: unknown, position: PathPosition, field = 'path'): unknown => {
  if (!(error instanceof StorageError)) return error
  const { fault, message, receivedBytes, retryAfterSeconds, unlisted } = error
  if (fault === 'missing' && position === 'query' && !unlisted)
    return new Refusal('missing', message, { cause: error })
  if (fault === 'offset') return new Refusal('conflict', message, { extra: { receivedBytes }, cause: error })
  if (error.passes)
    return new Refusal('unavailable', message, {
      retryAfterSeconds: retryAfterSeconds ?? againSeconds,
      cause: error,
    })
  return unacceptableAt(field, message)
}

/** Runs work on a storage, and turns its faults into refusals. */
export const refusing = async <T>(
  position: PathPosition,
  work: () => Promise<T>,
  field?: string,
): Promise<T> => {
  try {
    return await work()
  } catch (error) {
    throw storageRefusal(error, position, field)
  }
}
