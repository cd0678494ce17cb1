import { abandonUnheldSites } from './domains/execution-runs/unheld-sites.ts'
import { removeUnnamed } from './domains/execution-runs/unnamed-bytes.ts'
import type { ArtifactStore } from './drivers/build/store.ts'
import { eachRecord } from './db/each-record.ts'
import type { Db } from './db/sql.ts'
import type { Engine } from './engine.ts'
import { sitesWithLeftovers, stopLeftovers } from './executor/leftovers.ts'
import { claimRemoval, removeRunFiles } from './executor/removals.ts'
import type { SiteDrivers } from './executor/drivers.ts'
import { findSiteSnapshot, usedPairs } from './executor/snapshot.ts'
import { placesOf, runsOnMachines, type Place } from './executor/sites.ts'
import type { Log } from './observability/log.ts'
import { everyRound } from './pacing/every-round.ts'

const everyMs = 2_000
const unheldEveryMs = 5_000
const bytesEveryMs = 3_600_000

interface SweeperParts {
  db: Db
  ownDb: Db
  engine: Pick<Engine, 'signal'>
  sites: SiteDrivers
  hostId: string
  ownArtifactStore: ArtifactStore
}
/** Attempts on a machine that the run has given back end with the machine. */
const endedWithMachine = (place: Place): boolean => runsOnMachines(place) && place.machine === undefined
const gone = { cancel: () => Promise.resolve() }

/**
 * Ends leftovers of cancelled runs at sites that did not answer at the time of the cancel. It
 * repeats the request until the site confirms.
 */
const stopLeft = async (
  { db, sites, hostId }: SweeperParts,
  log: Log,
  signal: AbortSignal,
): Promise<void> => {
  /** Sites that have not confirmed an end in this round: their other runs come in later ones. */
  const silent = new Set<string>()
  const stop = async ({ site, runId }: { site: string; runId: string }): Promise<void> => {
    if (silent.has(site)) return
    const facts = await findSiteSnapshot(db, runId)
    if (facts === undefined) return
    const place = placesOf(facts, await usedPairs(db, runId)).get(site)
    if (place === undefined || (place.host !== undefined && place.host !== hostId)) return
    const { driver } = sites.at(place, facts)
    const left = await stopLeftovers(db, { site, runId }, endedWithMachine(place) ? gone : driver)
    if (left === 0) return
    silent.add(site)
    log.warn(
      { site, left },
      'a site has not confirmed the end of what it was asked to end; it is asked again',
    )
  }
  await eachRecord(
    await sitesWithLeftovers(db),
    stop,
    (error, { site, runId }) =>
      log.warn({ err: error, site, runId }, 'what a cancelled run left at a site could not be stopped'),
    signal,
  )
}

/** Removes the work directories of deleted runs, each as soon as its site answers. */
const removeLeft = async (
  { db, sites, hostId }: SweeperParts,
  log: Log,
  signal: AbortSignal,
): Promise<void> => {
  for (;;) {
    if (signal.aborted) return
    const removal = await claimRemoval(db, hostId)
    if (removal === undefined) return
    const failure = await removeRunFiles(db, sites, removal)
    const facts = { runId: removal.runId, site: removal.site, folder: removal.scope }
    if (failure === undefined) log.info(facts, 'the files of a deleted run were removed')
    else
      log.warn(
        { ...facts, reason: failure.reason },
        failure.again
          ? 'the files of a deleted run could not be removed; it is tried again'
          : 'the files of a deleted run stay at their site, which has not answered for 30 days',
      )
  }
}

/**
 * Ends cancelled runs at sites without a worker. Ends and removes what runs left at their sites and in
 * the store. Any number of processes may sweep at once; each one works alone on its own machine.
 */
export const openSweeper = (parts: SweeperParts, log: Log): { stop(): Promise<void> } => {
  const leftovers = everyRound(
    everyMs,
    (signal) => stopLeft(parts, log, signal),
    (error) => {
      log.warn(
        { err: error },
        'what cancelled runs left at their sites could not be looked for; it is looked for again',
      )
    },
  )
  const unheld = everyRound(
    unheldEveryMs,
    (signal) =>
      abandonUnheldSites(
        parts,
        (error, { id: runId }) => {
          log.warn({ err: error, runId }, 'a cancelled run was not ended at its sites without a worker')
        },
        signal,
      ),
    (error) => {
      log.warn({ err: error }, 'cancelled runs could not be looked for; they are looked for again')
    },
  )
  // A round of its own: a site that does not answer keeps no other from its end.
  const removals = everyRound(
    everyMs,
    (signal) => removeLeft(parts, log, signal),
    (error) => {
      log.warn({ err: error }, 'the files of deleted runs could not be looked for; they are looked for again')
    },
  )
  const bytes = everyRound(
    bytesEveryMs,
    (signal) => removeUnnamed(parts.ownDb, parts.ownArtifactStore, signal),
    (error) => {
      log.warn({ err: error }, 'bytes of the store without a record could not be removed; it is tried again')
    },
  )
  return {
    async stop() {
      await Promise.all([leftovers.stop(), unheld.stop(), removals.stop(), bytes.stop()])
    },
  }
}
