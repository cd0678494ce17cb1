import { Refusal } from '../refusal.ts'
import { LinkError } from '../shell/site-shell.ts'
import { databaseTrouble } from './errors.ts'

/** Why the service cannot read its records now, and may later. */
const passing = (error: unknown): Refusal | undefined => {
  const refusal = error instanceof Refusal ? error : databaseTrouble(error)
  return refusal?.code === 'unavailable' ? refusal : undefined
}

/**
 * A use of the service's own records on the way to a site. While PostgreSQL is away, or the vault
 * lacks a key, it rejects with a `LinkError` that is not permanent: no login is refused for good, and
 * no attempt of a task fails by it.
 */
export const ownRecords = <T>(use: Promise<T>): Promise<T> =>
  use.catch((error: unknown) => {
    const why = passing(error)
    throw why === undefined ? error : new LinkError('name', why.message, { cause: error })
  })
