import { openRetries } from '../pacing/retries.ts'
import { databaseAway } from './errors.ts'

/**
 * Does the work of a round for each of its records, one after the other, until `signal` is aborted.
 * A failure goes to `failed` with its record, and the rest goes on. `work` ends the round by
 * `false`: what it needs is unavailable for every record.
 * @returns false where the round ended before its last record
 * @throws the error of a database that cannot be reached
 */
export const eachRecord = async <T>(
  records: Iterable<T>,
  work: (record: T) => Promise<unknown>,
  failed: (error: unknown, record: T) => void,
  signal?: AbortSignal,
): Promise<boolean> => {
  for (const record of records) {
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

/** Between two tries of a record whose work fails. */
const pauses = { firstMs: 1_000, longestMs: 300_000 }
/** A page holds at most this many records. */
const pageSize = 100

/**
 * `eachRecord` over the rounds of a loop: a record whose work fails has pauses, from one second
 * doubled to five minutes, so that it takes no turn of others.
 */
export interface Turns<T> {
  /** How many records may wait for their next try: a list has to be this much longer than a batch. */
  readonly waiting: number
  /** As `eachRecord`, without those that wait. */
  each<R extends T>(
    records: Iterable<R>,
    work: (record: R) => Promise<unknown>,
    signal?: AbortSignal,
  ): Promise<boolean>
}

/**
 * Turns for the records of a kind; `keyOf` tells them apart. `failed` gets each failure with its
 * record.
 */
export const openTurns = <T>(
  keyOf: (record: T) => string,
  failed: (error: unknown, record: T) => void,
): Turns<T> => {
  const retries = openRetries(pauses)
  return {
    get waiting() {
      return retries.waiting
    },
    each: (records, work, signal) =>
      eachRecord(
        retries.due(records, keyOf),
        async (record) => {
          const done = await work(record)
          if (done !== false) retries.succeeded(keyOf(record))
          return done
        },
        (error, record) => {
          retries.failed(keyOf(record))
          failed(error, record)
        },
        signal,
      ),
  }
}

/**
 * Does the work for a whole list, which `page` reads in order of the ids, from behind `after`, at
 * most `limit` at once: records that stay in the list keep none behind them waiting.
 * @returns false where the round ended before its last record
 * @throws the error of a database that cannot be reached
 */
export const eachInPages = async <T extends { id: string }>(
  turns: Turns<{ id: string }>,
  page: (after: string, limit: number) => Promise<T[]>,
  work: (record: T) => Promise<unknown>,
  signal?: AbortSignal,
): Promise<boolean> => {
  for (let after = ''; ;) {
    const records = await page(after, pageSize)
    if (!(await turns.each(records, work, signal))) return false
    const last = records.at(-1)
    if (last === undefined || records.length < pageSize) return true
    after = last.id
  }
}
