import { z } from 'zod'
import { raw, sql, type Db } from '../../db/sql.ts'
import type { SiteStatus, SiteWait } from '../../page-details.ts'

/**
 * States of tasks that may wait (a running task waits where its site is silent), and of tasks that
 * are at their site.
 */
const waitingStates = `('blocked', 'ready', 'queued', 'preparing', 'running')`
const statesAtSite = `('preparing', 'running')`
/** The most reasons in one answer, those with the most tasks first. */
const mostReasons = 20

/**
 * SQL: tasks of a run `r` by their reason of waiting, as rows of `site`, `kind`, `reason`, `tasks`,
 * `since`.
 */
const waitingRows = `select t.site, t.metadata ->> 'waitsFor' as kind, t.metadata ->> 'queueReason' as reason,
  count(*) as tasks, min(coalesce((t.metadata ->> 'silentSince')::double precision, t.queued_at)) as since
  from task_executions t where t.execution_run_id = r.id and t.latest and t.status in ${waitingStates}
    and t.metadata ? 'queueReason' group by 1, 2, 3`

/** SQL: the reasons of waiting in an open run `r`, those with the most tasks first, as JSON. */
export const waitCounts = `(select coalesce(json_agg(json_strip_nulls(json_build_object('site', w.site,
  'kind', w.kind, 'reason', w.reason, 'activities', w.tasks, 'since', w.since)) order by w.tasks desc, w.reason), '[]')
  from (${waitingRows} order by tasks desc, reason limit ${String(mostReasons)}) w)`

/**
 * SQL: the counts of an open run `r` for `live`, as JSON: `completed`, `sites` with `completed` and
 * `running`, and `waitsFor`. The statement that reads the record reads them too, so both have the
 * same state.
 */
export const liveCounts = `json_build_object('completed', r.completed_activity_count,
  'sites', (select coalesce(json_agg(json_build_object('site', s.site, 'completed', s.completed, 'running',
    s.running) order by s.site), '[]')
    from (select t.site, count(*) filter (where t.status = 'completed') as completed,
        count(*) filter (where t.status in ${statesAtSite} and not coalesce(t.metadata ? 'queueReason',
          false)) as running
      from task_executions t where t.execution_run_id = r.id and t.latest and t.site is not null group by t.site) s),
  'waitsFor', ${waitCounts})`

const WaitRow = z.object({
  site: z.string(),
  kind: z.string().default('other'),
  reason: z.string(),
  tasks: z.number(),
})
const FailureRow = z.object({ activity: z.string(), reason: z.string() })

/** The reasons for which tasks of a site wait, and the newest failed attempt there. */
export const readSiteStatus = async (
  db: Db,
  runId: string,
  site: string,
): Promise<Omit<SiteStatus, 'paused'>> => {
  const waiting = db.many(
    WaitRow,
    sql`select w.site, w.kind, w.reason, w.tasks from execution_runs r cross join lateral (${raw(waitingRows)}) w
        where r.id = ${runId} and w.site = ${site} order by w.tasks desc, w.reason limit 3`,
  )
  const failed = db.maybe(
    FailureRow,
    sql`select external_id as activity, failure_reason as reason from task_executions
        where execution_run_id = ${runId} and site = ${site} and status = 'failed'
          and failure_reason is not null order by finished_at desc nulls last limit 1`,
  )
  const [rows, failure] = await Promise.all([waiting, failed])
  const waits: SiteWait[] = rows.map((row) => ({ ...row, reason: row.reason.slice(0, 500).toWellFormed() }))
  return {
    waits,
    ...(failure === undefined
      ? {}
      : { failure: { ...failure, reason: failure.reason.slice(0, 500).toWellFormed() } }),
  }
}
