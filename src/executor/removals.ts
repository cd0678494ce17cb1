import { posix } from 'node:path'
import { z } from 'zod'
import { raw, sql, type Db } from '../db/sql.ts'
import { DriverError } from '../drivers/runtime/contract/driver.ts'
import { reasonText } from '../outside-text.ts'
import { kindNamed } from '../drivers/runtime/registry.ts'
import { quote } from '../shell/quote.ts'
import type { SiteDrivers } from './drivers.ts'
import { intentName, runScope } from './names.ts'
import { isOwnMachine, ownPlace, placer, placesOf, rehearsalSite, runsOnMachines } from './sites.ts'
import { readSiteSnapshot, SnapshotRow } from './snapshot.ts'

/** Names that a site removes at once. */
export const removedAtOnce = 50
const graceSeconds = 5
/** A site that did not answer for so long after the deletion of a run keeps its files. */
const patienceDays = 30
/** The time of a try, after which another process may take the removal over. */
const claimMinutes = 30
const removalMs = 600_000

const Pair = z.object({ runtimeId: z.string(), resourceId: z.string() })
/** The part of a run's snapshot that leads to its sites. */
const Facts = SnapshotRow.pick({
  ...{ hostId: true, runtimes: true, resources: true, runtimeBindings: true, storageMounts: true },
}).extend({ pairs: z.array(Pair) })

const BegunRow = Pair.extend({ name: z.string().optional(), position: z.number(), attempt: z.number() })

/**
 * Records the work directories of a run for removal, in the transaction that deletes the run: a row
 * for each site where an attempt was started, or may have been: an intent ahead of its turn has no
 * start on record. Attempts that a silent site has not ended yet are among them; the removal ends them
 * first.
 */
export const recordRemovals = async (tx: Db, runId: string): Promise<void> => {
  const begun = await tx.many(
    BegunRow,
    sql`select runtime_id, planned_resource_id as resource_id, handle_name as name,
        activity_position as position, attempt from task_executions
      where execution_run_id = ${runId} and (handle_name is not null or ahead) and runtime_id is not null
        order by activity_position, attempt`,
  )
  if (begun.length === 0) return
  const { hostId, effectKey, runtimes, resources, runtimeBindings, storageMounts } = await readSiteSnapshot(
    tx,
    runId,
  )
  const runtimeIds = new Set(begun.map(({ runtimeId }) => runtimeId))
  const resourceIds = new Set(begun.map(({ resourceId }) => resourceId))
  const used = {
    hostId,
    runtimes: runtimes.filter(({ id }) => runtimeIds.has(id)),
    resources: resources.filter(({ id }) => resourceIds.has(id)),
    runtimeBindings: runtimeBindings.filter(
      (one) => runtimeIds.has(one.runtimeId) && resourceIds.has(one.resourceId),
    ),
    storageMounts: storageMounts.filter(({ runtimeId }) => runtimeIds.has(runtimeId)),
  }
  const placed = placer(used)
  const bySite = Map.groupBy(begun, (one) => placed(one.runtimeId, one.resourceId).site)
  // Those of other sites too: what came from them is at this one.
  const pairs = [
    ...new Map(
      begun.map(({ runtimeId, resourceId }) => [
        JSON.stringify([runtimeId, resourceId]),
        { runtimeId, resourceId },
      ]),
    ).values(),
  ]
  const insert = (site: string, host: string | undefined, names: string[]): Promise<unknown> =>
    tx.run(sql`insert into site_removals (site, host_id, execution_run_id, scope, names, facts)
      values (${site}, ${host ?? null}, ${runId}, ${runScope(effectKey)}, ${names}::text[],
        ${JSON.stringify({ ...used, pairs })})`)
  let copiesHere = false
  for (const [site, attempts] of bySite) {
    const [first] = attempts
    if (first === undefined) continue
    const place = placed(first.runtimeId, first.resourceId)
    if (site === rehearsalSite) continue
    if (runsOnMachines(place)) {
      // Files on a machine that was made for the run ended with it; their copies are here.
      copiesHere = true
      continue
    }
    await insert(
      site,
      place.host,
      attempts.map(({ name, position, attempt }) => name ?? intentName(effectKey, position, attempt)),
    )
  }
  const here = ownPlace(hostId)
  if (copiesHere && !bySite.has(here.site)) await insert(here.site, hostId, [])
}

const UsedSite = z.object({ site: z.string(), hostId: z.string() })

/** Sites and other hosts of the service, by their names as sites, where runs have files; `most` of them. */
export const sitesWithRunFiles = async (db: Db, hostId: string, most: number): Promise<string[]> => {
  const used = await db.many(
    UsedSite,
    sql`select distinct t.site, r.host_id from task_executions t join execution_runs r on r.id = t.execution_run_id
      where t.handle_name is not null and t.site is not null and t.site <> ${rehearsalSite}
        and t.site <> ${ownPlace(hostId).site} order by t.site, r.host_id limit ${most}`,
  )
  // What is kept of a machine that was made for a run is at the host of the run.
  const sites = new Set(
    used.map((one) =>
      kindNamed(one.site.split('/')[0] ?? '')?.onMachines === true ? ownPlace(one.hostId).site : one.site,
    ),
  )
  sites.delete(ownPlace(hostId).site)
  return [...sites]
}

const RemovalRow = z.object({
  id: z.number(),
  site: z.string(),
  runId: z.string(),
  scope: z.string(),
  names: z.array(z.string()),
  facts: Facts,
  isOld: z.boolean(),
})
export type Removal = z.output<typeof RemovalRow>

/**
 * Takes the next due removal for this process; undefined where there is none. `hostId`: the machine
 * of this process, the only one on which it removes files without a connection.
 */
export const claimRemoval = (db: Db, hostId: string): Promise<Removal | undefined> =>
  db.maybe(
    RemovalRow,
    sql`update site_removals set tries = tries + 1, next_try_at = now() + ${claimMinutes} * interval '1 minute'
      where id = (select id from site_removals where next_try_at <= now()
        and (host_id is null or host_id = ${hostId}) order by next_try_at, id limit 1 for update skip locked)
      returning id, site, execution_run_id as run_id, scope, names, facts,
        since < now() - ${patienceDays} * interval '1 day' as is_old`,
  )

/**
 * Removes the work directories and records of attempts, and then the run's own folder, which also
 * holds those whose records the site has lost.
 */
const removeAt = async (sites: SiteDrivers, { site, scope, names, facts }: Removal): Promise<void> => {
  const places = placesOf(facts, facts.pairs)
  const here = ownPlace(facts.hostId)
  const place = places.get(site) ?? (site === here.site ? here : undefined)
  if (place === undefined) throw new Error(`the facts of the removal name no site ${site}`)
  const { driver } = sites.of(place, places, facts, facts.storageMounts)
  const remove = async (name: string): Promise<void> => {
    try {
      await driver.remove(name)
    } catch (error) {
      // It is still alive: the site did not answer when the run was cancelled.
      if (!(error instanceof DriverError) || error.trouble !== 'refused') throw error
      await driver.cancel([name], graceSeconds)
      await driver.remove(name)
    }
  }
  for (let from = 0; from < names.length; from += removedAtOnce)
    await Promise.all(names.slice(from, from + removedAtOnce).map(remove))
  const { shell, root } = sites.at(place, facts)
  const folder = quote(posix.join(await root(), ...(isOwnMachine(place) ? [] : ['work']), scope))
  const { code, stderr } = await shell.run(
    `rm -rf -- ${folder} 2> /dev/null || { chmod -R u+rwx -- ${folder}; rm -rf -- ${folder}; }`,
    { deadlineMs: removalMs },
  )
  if (code !== 0)
    throw new Error(`the folder ${folder} could not be removed: ${reasonText(stderr, { characters: 500 })}`)
}

/**
 * Removes what a deleted run left at a site. A failure is tried again: 5 s later, doubled to 5
 * minutes, for 30 days.
 * @returns undefined where it is gone, else the reason and whether it is tried again
 */
export const removeRunFiles = async (
  db: Db,
  sites: SiteDrivers,
  removal: Removal,
): Promise<{ reason: string; again: boolean } | undefined> => {
  const { id, isOld } = removal
  const forget = raw('delete from site_removals where id = ')
  try {
    await removeAt(sites, removal)
    await db.run(sql`${forget}${id}`)
    return undefined
  } catch (error) {
    const reason = reasonText((error as Error).message)
    if (isOld) await db.run(sql`${forget}${id}`)
    else
      await db.run(sql`update site_removals set last_error = ${reason},
        next_try_at = now() + least(300, 5 * 2 ^ least(tries, 10)) * interval '1 second' where id = ${id}`)
    return { reason, again: !isOld }
  }
}
