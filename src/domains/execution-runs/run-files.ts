import { posix } from 'node:path'
import type { Readable } from 'node:stream'
import type { Db } from '../../db/sql.ts'
import { DriverError } from '../../drivers/runtime/contract/driver.ts'
import { LinkError } from '../../drivers/shell.ts'
import { missing, Refusal } from '../../refusal.ts'
import { openOutput, openOutputAt } from './files.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { readSiteSnapshot } from '../../executor/snapshot.ts'
import { isOwnMachine, placeOf, type Place } from '../../executor/sites.ts'
import { findAttempt } from './store.ts'

/** A site that does not answer a reader within this is said to be away. */
const siteDeadlineMs = 10_000

/** A read at a site; one that cannot be reached is 503 with the site's name and the words of the link. */
const asking = async <T>(place: Place, read: () => Promise<T>): Promise<T> => {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      reject(new Refusal('unavailable', `site ${place.site} does not answer now; try again`, { retryAfterSeconds: 5 }))
    }, siteDeadlineMs)
  })
  try {
    return await Promise.race([read(), late])
  } catch (error) {
    if (error instanceof LinkError || (error instanceof DriverError && error.trouble === 'unknown'))
      throw new Refusal('unavailable', `site ${place.site} cannot be reached now: ${error.message}`, { retryAfterSeconds: 5, cause: error })
    throw error
  } finally {
    clearTimeout(timer)
  }
}

export interface RunFileParts {
  db: Db
  sites: SiteDrivers
  hostId: string
}

/** Reads what attempts left, wherever that is. */
export const openRunFiles = ({ db, sites, hostId }: RunFileParts) => {
  const attemptOf = async (runId: string, activityId: string, attempt: number | undefined) => {
    const found = await findAttempt(db, runId, activityId, attempt)
    if (found !== undefined) return found
    throw missing(attempt === undefined ? 'activity of this run' : `attempt ${String(attempt)} of activity`, activityId)
  }

  /** An attempt that was started, and where. Files of another machine without a connection are read by the service there. */
  const started = async (runId: string, activityId: string, attempt: number | undefined) => {
    const found = await attemptOf(runId, activityId, attempt)
    if (found.name === undefined || found.directory === undefined)
      throw new Refusal('missing', `activity ${JSON.stringify(activityId)} has not been started and has no files`)
    const facts = await readSiteSnapshot(db, runId)
    const place = placeOf(facts, found.runtimeId ?? '', found.resourceId)
    const host = place.connectionId === undefined ? found.hostId : undefined
    if (host !== undefined && host !== hostId)
      throw new Refusal(
        'unavailable',
        `the files of this activity are on host ${host}, which this service does not reach; ask the service there`,
      )
    return { ...found, name: found.name, directory: found.directory, place, facts }
  }

  /** One file of an attempt's work directory. @throws Refusal `missing`, `unacceptable` for a path outside of it, `unavailable` for a site that is away */
  const openFile = async (
    runId: string,
    activityId: string,
    attempt: number | undefined,
    path: string,
  ): Promise<{ stream: Readable; sizeBytes: number }> => {
    const { directory, place, facts } = await started(runId, activityId, attempt)
    const { shell, root } = sites.at(place, facts)
    return isOwnMachine(place)
      ? openOutput(directory, path)
      : asking(place, async () => openOutputAt(shell, posix.resolve(await root(), directory), path))
  }

  return { asking, attemptOf, started, openFile }
}
