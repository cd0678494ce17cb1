import type { Db } from './db/sql.ts'
import { sitesWithLeftovers, stopLeftovers } from './executor/leftovers.ts'
import type { SiteDrivers } from './executor/drivers.ts'
import { readSiteSnapshot, usedPairs } from './executor/snapshot.ts'
import { placesOf } from './executor/sites.ts'
import type { Log } from './observability/log.ts'

const everyMs = 2_000

/**
 * Ends what cancelled runs have left at sites that did not answer then: asked again until they confirm. Any number of processes may do
 * it at once; what is on this machine is ended by this machine's.
 */
export const openSweeper = ({ db, sites, hostId }: { db: Db; sites: SiteDrivers; hostId: string }, log: Log): { stop(): Promise<void> } => {
  let stopped = false
  let wake: () => void = () => undefined

  const round = async (): Promise<void> => {
    for (const { site, runId } of await sitesWithLeftovers(db)) {
      if (stopped) return
      const facts = await readSiteSnapshot(db, runId)
      const place = placesOf(facts, await usedPairs(db, runId)).get(site)
      if (place === undefined || (place.host !== undefined && place.host !== hostId)) continue
      const left = await stopLeftovers(db, site, sites.at(place, facts).driver)
      if (left > 0) log.warn({ site, left }, 'a site has not confirmed the end of what it was asked to end; it is asked again')
    }
  }

  const running = (async () => {
    while (!stopped) {
      await round().catch((error: unknown) => {
        log.warn({ err: error }, 'what cancelled runs left at their sites could not be looked for; it is looked for again')
      })
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, everyMs)
        wake = () => {
          clearTimeout(timer)
          resolve()
        }
        if (stopped) wake()
      })
    }
  })()
  return {
    async stop() {
      stopped = true
      wake()
      await running
    },
  }
}
