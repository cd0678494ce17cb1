import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { eachRecord } from '../../db/each-record.ts'
import type { Engine } from '../../engine.ts'
import { claimSite } from '../../executor/journal.ts'
import { findSiteSnapshot, usedPairs } from '../../executor/snapshot.ts'
import { placesOf } from '../../executor/sites.ts'
import { lockOperation } from '../../operations/records.ts'
import { leaveAttempts, runKind } from './operation.ts'

/**
 * A site of a cancelled run is abandoned where no worker has renewed its lease for so long. A worker
 * renews it twice a second; one that is replaced is back within half a minute.
 */
const unheldSeconds = 60
const since = sql`now() - ${unheldSeconds} * interval '1 second'`

const CancelledRun = z.object({
  id: z.string(),
  generation: z.number(),
  key: z.string(),
  /** Sites that a worker held, or that were abandoned, within this time. */
  held: z.array(z.string()),
})
type CancelledRun = z.output<typeof CancelledRun>

/** Runs of one look; an abandoned site leaves the list, so that the others follow. */
const mostRuns = 100

/** Cancelled runs with an open task whose site no worker holds, the oldest cancel first. */
const cancelledRuns = (db: Db): Promise<CancelledRun[]> =>
  db.many(
    CancelledRun,
    sql`select r.id, r.generation, r.effect_key as key, l.held
      from execution_runs r cross join lateral (select array(select site from site_leases
        where execution_run_id = r.id and renewed_at > ${since}) as held) l
      where r.status = 'running' and r.mode = 'real' and r.cancel_requested_at < ${since}
        and exists (select from task_executions t where t.execution_run_id = r.id and t.latest
          and t.status not in ('completed', 'failed', 'cancelled')
          and (t.site is null or t.site <> all(l.held)))
      order by r.cancel_requested_at limit ${mostRuns}`,
  )

/** Takes the site from a worker that may only be frozen, and records what it had started there. */
const abandon = (db: Db, { id, generation, key }: CancelledRun, site: string): Promise<boolean> =>
  db.transaction(async (tx) => {
    // The runs before it in the list may have taken minutes, in which a worker has come.
    const held = await tx.value(
      z.boolean(),
      sql`select renewed_at > ${since} from site_leases where execution_run_id = ${id} and site = ${site} for update`,
    )
    if (held === true) return false
    await claimSite(tx, id, site, '')
    const run = await lockOperation(tx, runKind, { id, generation, key })
    if (run?.status !== 'running' || run.cancelRequestedAt === undefined) return false
    const reason = `no worker serves the site ${site}: what runs there is ended when one does`
    const names = await leaveAttempts(tx, { runId: id, effectKey: key }, site, reason)
    await tx.run(sql`update task_executions set failure_reason = ${reason}
      where execution_run_id = ${id} and handle_name = any(${names}::text[])`)
    return true
  })

/**
 * Ends the part of cancelled runs at sites that no worker executes: their host is gone, has another
 * name by now, or is full of other work. What they had started there is on record as left, and the
 * run's workflow goes on without them. Where its signal is lost, the next one follows after as long
 * a time. Any number of processes may do so at once.
 */
export const abandonUnheldSites = async (
  { db, engine }: { db: Db; engine: Pick<Engine, 'signal'> },
  failed: (error: unknown, run: { id: string }) => void,
  signal: AbortSignal,
): Promise<void> => {
  const end = async (run: CancelledRun): Promise<void> => {
    const [facts, pairs] = await Promise.all([findSiteSnapshot(db, run.id), usedPairs(db, run.id)])
    if (facts === undefined) return
    const open = pairs.filter((pair) => pair.open)
    for (const site of placesOf(facts, open).keys())
      if (!run.held.includes(site) && (await abandon(db, run, site)))
        await engine.signal(runKind, run.id, run.generation, 'abandoned', site)
  }
  await eachRecord(await cancelledRuns(db), end, failed, signal)
}
