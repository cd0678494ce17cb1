import { posix } from 'node:path'
import { readsArchive, type Db } from '../../db/sql.ts'
import { DriverError } from '../../drivers/runtime/contract/driver.ts'
import { LinkError } from '../../shell/site-shell.ts'
import { missing, Refusal } from '../../refusal.ts'
import { within } from '../../pacing/within.ts'
import { openOutput, openOutputAt, type OpenedFile } from './files.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { readSiteSnapshot } from '../../executor/snapshot.ts'
import { isOwnMachine, placeOf, runsOnMachines, type Place } from '../../executor/sites.ts'
import { findAttempt, newestStarted } from './store.ts'

/** A site that does not answer a reader within this time is reported as unreachable. */
const siteDeadlineMs = 10_000

/**
 * Runs a read at a site. A site that cannot be reached is 503 with the site's name and the link's
 * message. What the read opens after its deadline goes to `drop`.
 */
const asking = async <T>(place: Place, read: () => Promise<T>, drop?: (opened: T) => void): Promise<T> => {
  const late = () =>
    new Refusal('unavailable', `site ${place.site} does not answer now; try again`, { retryAfterSeconds: 5 })
  try {
    return await within(read(), siteDeadlineMs, late, drop)
  } catch (error) {
    if (error instanceof LinkError || (error instanceof DriverError && error.trouble === 'unknown'))
      throw new Refusal('unavailable', `site ${place.site} cannot be reached now: ${error.message}`, {
        retryAfterSeconds: 5,
        cause: error,
      })
    throw error
  }
}

export interface RunFileParts {
  db: Db
  sites: SiteDrivers
  hostId: string
}

/** Reads the files of attempts, at any site. */
export const openRunFiles = ({ db, sites, hostId }: RunFileParts) => {
  /**
   * @throws Refusal `missing` while an archive is read: hosts and directories of its rows are those of
   *   another installation, or whatever the author of the archive wrote
   */
  const requireHere = (): void => {
    if (readsArchive(db)) throw new Refusal('missing', 'files of runs are not in this archive')
  }

  const attemptOf = async (runId: string, activityId: string, attempt: number | undefined) => {
    const found = await findAttempt(db, runId, activityId, attempt)
    if (found !== undefined) return found
    throw missing(
      attempt === undefined ? 'activity of this run' : `attempt ${String(attempt)} of activity`,
      activityId,
    )
  }

  /**
   * The requested attempt, else the newest started one: a waiting retry does not hide the files of
   * its predecessor.
   */
  const attemptWithFiles = async (runId: string, activityId: string, attempt: number | undefined) => {
    const found = await attemptOf(runId, activityId, attempt)
    if (attempt !== undefined || (found.name !== undefined && found.directory !== undefined)) return found
    const started = await newestStarted(db, runId, found.activityPosition)
    return started === undefined ? found : attemptOf(runId, activityId, started)
  }

  /**
   * A started attempt and its place. Where the files are on another machine without a connection,
   * the service on that machine reads them.
   */
  const started = async (runId: string, activityId: string, attempt: number | undefined) => {
    requireHere()
    const found = await attemptWithFiles(runId, activityId, attempt)
    if (found.name === undefined || found.directory === undefined)
      throw new Refusal(
        'missing',
        `activity ${JSON.stringify(activityId)} has not been started and has no files`,
      )
    const facts = await readSiteSnapshot(db, runId)
    const place = placeOf(facts, found.runtimeId ?? '', found.resourceId)
    // Its own machine may be gone.
    const kept = runsOnMachines(place) && found.keptOn !== undefined ? found.keptDirectory : undefined
    const ownHost = place.connectionId === undefined && !runsOnMachines(place) ? found.hostId : undefined
    const host = kept === undefined ? ownHost : found.keptOn
    if (host !== undefined && host !== hostId)
      throw new Refusal(
        'unavailable',
        `the files of this activity are on host ${host}, which this service does not reach; ask the service there`,
      )
    return { ...found, name: found.name, directory: found.directory, kept, place, facts }
  }

  /**
   * Opens files of one attempt's work directory by their paths.
   * @throws Refusal `missing` for an attempt without files; for a file `missing`, `unacceptable` for
   *   a path outside of it, `unavailable` for a site that cannot be reached
   */
  const filesOf = async (
    runId: string,
    activityId: string,
    attempt: number | undefined,
  ): Promise<(path: string) => Promise<OpenedFile>> => {
    const { directory, kept, place, facts } = await started(runId, activityId, attempt)
    return (path) => {
      if (kept !== undefined) return openOutput(kept, path)
      const { shell, root } = sites.at(place, facts)
      return isOwnMachine(place)
        ? openOutput(directory, path)
        : asking(
            place,
            async () => openOutputAt(shell, posix.resolve(await root(), directory), path),
            // It would hold one of the few streams of the connection until that ends.
            ({ stream }) => void stream.destroy(),
          )
    }
  }

  return { asking, attemptOf, started, filesOf, requireHere }
}

export type RunFiles = ReturnType<typeof openRunFiles>
