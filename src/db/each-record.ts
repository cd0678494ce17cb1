import { databaseAway } from './errors.ts'

/**
 * Does the work of a round for each of its records, one after the other, until `signal` is aborted.
 * A failure goes to `failed` with its record, and the rest goes on. `work` ends the round by
 * `false`: what it needs is unavailable for every record.
 * @returns false where the round ended before its last record
 * @throws the error of a database that cannot be reached
 */
export const eachRecord = async <T>(
  records: Iterable<T> | AsyncIterable<T>,
  work: (record: T) => Promise<unknown>,
  failed: (error: unknown, record: T) => void,
  signal?: AbortSignal,
): Promise<boolean> => {
  for await (const record of records) {
    if (signal?.aborted === true) return false
    try {
      if ((await work(record)) === false) return false
    } catch (error) {
      if (databaseAway(error)) throw error
      failed(error, record)
    }
  }
  return true
}
