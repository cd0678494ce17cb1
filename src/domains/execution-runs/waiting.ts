import { z } from 'zod'
import { raw, sql, type Db } from '../../db/sql.ts'
import type { SiteNews, Wait } from '../../telling.ts'

/** States of tasks that may wait, and of those that are at their site. */
const waitingStates = `('blocked', 'ready', 'queued', 'preparing')`
const flyingStates = `('preparing', 'running')`
/** Reasons of one answer, those of most tasks first. */
const mostReasons = 20

/** SQL: tasks of a run `r` by the reason that they wait for, as rows of `site`, `reason`, `tasks`, `since`. */
const waitingRows = `select t.site, t.metadata ->> 'queueReason' as reason, count(*) as tasks, min(coalesce((t.metadata ->> 'silentSince')::double precision, t.queued_at)) as since
  from task_executions t where t.execution_run_id = r.id and t.latest and t.status in ${waitingStates} and t.metadata ? 'queueReason' group by 1, 2`

/**
 * SQL: what `live` counts of an open run `r`, as JSON read in the statement of the record itself, so that neither is behind the other:
 * `completed`, `sites` with `completed` and `running`, and `waitsFor`.
 */
export const liveCounts = `json_build_object('completed', r.completed_activity_count,
  'sites', (select coalesce(json_agg(json_build_object('site', s.site, 'completed', s.completed, 'running', s.running) order by s.site), '[]')
    from (select t.site, count(*) filter (where t.status = 'completed') as completed,
        count(*) filter (where t.status in ${flyingStates} and not coalesce(t.metadata ? 'queueReason', false)) as running
      from task_executions t where t.execution_run_id = r.id and t.latest and t.site is not null group by t.site) s),
  'waitsFor', (select coalesce(json_agg(json_strip_nulls(json_build_object('site', w.site, 'reason', w.reason, 'activities', w.tasks, 'since', w.since)) order by w.tasks desc, w.reason), '[]')
    from (${waitingRows} order by tasks desc, reason limit ${String(mostReasons)}) w))`

const kinds: readonly (readonly [pattern: RegExp, kind: string])[] = [
  [/^waiting for login to /, 'login'],
  [/^waiting for a free core of /, 'cores'],
  [/^its lane is held by /, 'lane'],
  [/^at the site: /, 'queue'],
  [/^waiting for /, 'site'],
]

/** The kind of a reason, to search for. */
const kindOf = (reason: string): string => kinds.find(([pattern]) => pattern.test(reason))?.[1] ?? 'other'

const WaitRow = z.object({ site: z.string(), reason: z.string(), tasks: z.number() })
const FailureRow = z.object({ activity: z.string(), reason: z.string() })

/** What tasks of a site wait for, and the newest attempt that failed there. */
export const readSiteNews = async (db: Db, runId: string, site: string): Promise<Omit<SiteNews, 'paused'>> => {
  const waiting = db.many(
    WaitRow,
    sql`select w.site, w.reason, w.tasks from execution_runs r cross join lateral (${raw(waitingRows)}) w
        where r.id = ${runId} and w.site = ${site} order by w.tasks desc, w.reason limit 3`,
  )
  const failed = db.maybe(
    FailureRow,
    sql`select external_id as activity, failure_reason as reason from task_executions
        where execution_run_id = ${runId} and site = ${site} and status = 'failed' and failure_reason is not null order by finished_at desc nulls last limit 1`,
  )
  const [rows, failure] = await Promise.all([waiting, failed])
  const waits: Wait[] = rows.map((row) => ({ ...row, kind: kindOf(row.reason), reason: row.reason.slice(0, 500) }))
  return { waits, ...(failure === undefined ? {} : { failure: { ...failure, reason: failure.reason.slice(0, 500) } }) }
}
