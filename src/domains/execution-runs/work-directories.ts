import { rm } from 'node:fs/promises'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { removedAtOnce } from '../../executor/removals.ts'
import { readSiteSnapshot } from '../../executor/snapshot.ts'
import { placer } from '../../executor/sites.ts'
import { eachOf } from '../../pacing/each-of.ts'
import { warnRun } from './operation.ts'

const Unkept = z.object({
  id: z.string(),
  name: z.string(),
  activityId: z.string(),
  attempt: z.number(),
  runtimeId: z.string(),
  resourceId: z.string(),
  /** The copy of what a machine had that may be gone, and its host. */
  kept: z.string().optional(),
  keptOn: z.string().optional(),
})

/** The end of a run waits at most this long for a site. A silent site keeps its files. */
const deadlineMs = 15_000

/** Marks the locations of files whose work directories are gone, except copies in storages. */
const markDeleted = (db: Db, runId: string, gone: readonly z.output<typeof Unkept>[]): Promise<number> =>
  db.run(sql`update data_locations l set status = 'deleted'
    from data_object_instances o, unnest(${gone.map(({ activityId }) => activityId)}::text[],
      ${gone.map(({ attempt }) => attempt)}::integer[]) as gone (activity_id, attempt)
    where l.execution_run_id = ${runId} and o.id = l.data_object_instance_id and l.uri not like 'storage:%'
      and o.producer_activity_id = gone.activity_id and o.attempt = gone.attempt`)

/**
 * Removes the work directories of activities with `keepDisk: false` when every activity of the run
 * has completed, and marks the locations of their files as deleted, except copies in storages;
 * digests and sizes stay. All
 * directories of a run that did not complete are kept, for inspection and retries, and so are those
 * without `keepDisk`. A directory of another host than `hostId` stays as it is. A removal that is
 * under way at the deadline or at the abort is recorded when it ends.
 * @returns the other host that has to remove some; all of a run are on one host
 * @throws the signal's reason where it is aborted
 */
export const removeUnkept = async (
  { db, sites, hostId }: { db: Db; sites: SiteDrivers; hostId: string },
  runId: string,
  signal: AbortSignal,
): Promise<string | undefined> => {
  const unkept = await db.many(
    Unkept,
    sql`select t.id, t.handle_name as name, t.activity_id, t.attempt, t.runtime_id,
        t.planned_resource_id as resource_id,
        t.metadata ->> 'keptAt' as kept, t.metadata ->> 'keptOn' as kept_on
      from task_executions t join execution_runs r on r.id = t.execution_run_id
      join activity_definitions a on a.workflow_version_id = r.content_version_id and a.position = t.activity_position
      where r.id = ${runId} and r.status = 'running' and r.completed_activity_count = r.activity_count
        and t.handle_name is not null and a.metadata -> 'keepDisk' = 'false'::jsonb`,
  )
  if (unkept.length === 0) return undefined
  const facts = await readSiteSnapshot(db, runId)
  const placed = placer(facts)
  const located = unkept.map((attempt) => {
    const place = placed(attempt.runtimeId, attempt.resourceId)
    return { attempt, place, host: attempt.keptOn ?? place.host }
  })
  const isAfar = ({ host }: { host?: string | undefined }): boolean => host !== undefined && host !== hostId
  const over = AbortSignal.any([signal, AbortSignal.timeout(deadlineMs)])
  const removed: z.output<typeof Unkept>[] = []
  const remove = async ({ attempt, place }: (typeof located)[number]): Promise<void> => {
    if (over.aborted) return
    await (attempt.kept === undefined
      ? sites.at(place, facts).driver.remove(attempt.name)
      : rm(attempt.kept, { recursive: true, force: true }))
    if (over.aborted) await markDeleted(db, runId, [attempt])
    else removed.push(attempt)
  }
  const here = located.filter((one) => !isAfar(one))
  // A directory that a site refuses to remove stays. A silent site keeps no other one waiting.
  const removal = Promise.all(
    [...Map.groupBy(here, ({ place }) => place.site).values()].map((atSite) =>
      eachOf(atSite, removedAtOnce, (one) => remove(one).catch(() => undefined)),
    ),
  )
  await Promise.race([removal, aborted(over)])
  await markDeleted(db, runId, removed)
  signal.throwIfAborted()
  const left = here.length - removed.length
  if (over.aborted && left > 0)
    await warnRun(
      db,
      runId,
      `${String(left)} work directories with keepDisk: false were not removed within ` +
        `${String(deadlineMs / 1_000)} s, and may stay until the run is deleted`,
    )
  return located.find(isAfar)?.host
}

const aborted = (signal: AbortSignal): Promise<unknown> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve(undefined)
    else signal.addEventListener('abort', resolve, { once: true })
  })
