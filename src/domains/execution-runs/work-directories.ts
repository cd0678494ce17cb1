import { rm } from 'node:fs/promises'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { SiteDrivers } from '../../executor/drivers.ts'
import { readSiteSnapshot } from '../../executor/snapshot.ts'
import { placer } from '../../executor/sites.ts'
import { orAfter } from '../../pacing/within.ts'

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

/**
 * Removes the work directories of activities with `keepDisk: false` when every activity of the run
 * has completed, and marks the locations of their files as deleted, except copies in storages;
 * digests and sizes stay. All
 * directories of a run that did not complete are kept, for inspection and retries, and so are those
 * without `keepDisk`. A directory of another host than `hostId` stays as it is.
 * @returns the other host that has to remove some; all of a run are on one host
 */
export const removeUnkept = async (
  db: Db,
  sites: SiteDrivers,
  runId: string,
  hostId: string,
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
  const removed: z.output<typeof Unkept>[] = []
  const placed = placer(facts)
  let otherHost: string | undefined
  // A directory that a site refuses to remove stays. The other sites remove theirs all the same.
  const removal = Promise.allSettled(
    unkept.map(async (attempt) => {
      const place = placed(attempt.runtimeId, attempt.resourceId)
      const host = attempt.keptOn ?? place.host
      if (host !== undefined && host !== hostId) {
        otherHost = host
        return
      }
      await (attempt.kept === undefined
        ? sites.at(place, facts).driver.remove(attempt.name)
        : rm(attempt.kept, { recursive: true, force: true }))
      removed.push(attempt)
    }),
  )
  await orAfter(removal, deadlineMs, undefined)
  const gone = [...removed]
  await db.run(sql`update data_locations l set status = 'deleted'
    from data_object_instances o, unnest(${gone.map(({ activityId }) => activityId)}::text[],
      ${gone.map(({ attempt }) => attempt)}::integer[]) as gone (activity_id, attempt)
    where l.execution_run_id = ${runId} and o.id = l.data_object_instance_id and l.uri not like 'storage:%'
      and o.producer_activity_id = gone.activity_id and o.attempt = gone.attempt`)
  return otherHost
}
