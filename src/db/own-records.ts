import { databaseAway } from '../db/errors.ts'
import { messageOf } from '../drivers/runtime/contract/errno.ts'
import { Refusal } from '../refusal.ts'
import { LinkError } from '../shell/site-shell.ts'

/** Whether the service cannot read its records now, and may later. */
const passes = (error: unknown): boolean =>
  databaseAway(error) || (error instanceof Refusal && error.code === 'unavailable')

/**
 * A read of the service's own records on the way to a site. While PostgreSQL is away, or the vault
 * lacks a key, it rejects with a `LinkError` that is not permanent: no login is refused for good, and
 * no attempt of a task fails by it.
 */
export const ownRecords = <T>(read: Promise<T>): Promise<T> =>
  read.catch((error: unknown) => {
    if (!passes(error)) throw error
    const text = `the service cannot read its own records now: ${messageOf(error)}`
    throw new LinkError('name', text, { cause: error })
  })
