import { z } from 'zod'
import { hash } from 'node:crypto'
import { fields, jsonObject, time } from '../../db/projection.ts'
import type { Db } from '../../db/sql.ts'
import { sharedReads } from '../../http/shared-reads.ts'
import { EpochTime, Id, Paid, Timestamp } from '../../http/schema.ts'
import { RecentMap } from '../../pacing/recent.ts'
import { runIdentity } from './identity.ts'
import { runModes, runStates, taskStates } from './schemas.ts'
import { waitCounts } from './waiting.ts'

/** The limit of a summary's size, for a run of any size. */
export const summaryBytes = 4_096
const mostTypes = 20
const mostFailures = 20
/** The most characters of a reason, shorter step by step while the summary is too long. */
const reasonLengths = [300, 120, 60, 30]

const Counts = z.partialRecord(z.enum(taskStates), z.number())
type Counts = z.output<typeof Counts>

export const RunSummary = z
  .strictObject({
    run: z.strictObject({
      id: Id,
      schedulePlanId: Id,
      mode: z.enum(runModes),
      status: z.enum(runStates),
      title: z.string().optional(),
      generation: z.number().describe('from 1; each retry begins the next one'),
      paused: z.boolean(),
      activityCount: z.number(),
      completedActivityCount: z.number(),
      failedActivityCount: z.number(),
      makespanSeconds: z.number().describe('0 until the run is over'),
      cost: Paid,
      failureReason: z.string().optional(),
      cancelRequestedAt: Timestamp.optional(),
      createdAt: Timestamp,
      startedAt: Timestamp.optional(),
      finishedAt: Timestamp.optional(),
    }),
    states: Counts.describe(
      'activities by the state of their newest attempt; states without any are left out',
    ),
    types: z
      .array(z.strictObject({ type: z.string(), states: Counts }))
      .describe('the same by type of activity, the types of most activities first'),
    otherTypes: z
      .strictObject({ types: z.number().describe('how many types'), states: Counts })
      .optional()
      .describe('the sum of all further types'),
    waitsFor: z
      .array(
        z.strictObject({
          site: z.string(),
          kind: z.string().optional().describe('cores, lane, site, login, data, retry or queue'),
          reason: z.string(),
          activities: z.number().describe('how many wait for it'),
          since: EpochTime.optional(),
        }),
      )
      .describe('what activities of an open run wait for, the reason of most first'),
    failures: z
      .array(
        z.strictObject({
          activityId: z.string(),
          attempt: z.number().describe('from 1'),
          failureClass: z.string().optional(),
          exitCode: z.number().optional(),
          reason: z.string().optional(),
        }),
      )
      .describe(`the first ${String(mostFailures)} activities that failed for good`),
    plannedMakespanSeconds: z.number().optional(),
    expectedEnd: Timestamp.optional().describe(
      'of an open run that has started: the end that the plan promises, moved by how late the newest end was',
    ),
  })
  .meta({ id: 'RunSummary' })
export type RunSummary = z.output<typeof RunSummary>

const runJson = jsonObject({
  ...fields(
    'r',
    `id schedulePlanId mode status title generation paused activityCount completedActivityCount
      failedActivityCount makespanSeconds cost
     failureReason`,
  ),
  cancelRequestedAt: time('r.cancel_requested_at'),
  createdAt: time('r.created_at'),
  startedAt: time('r.started_at'),
  finishedAt: time('r.finished_at'),
})

/**
 * Seconds from the start of a plan to its end. A makespan counts from the first task; tasks begin
 * later than the plan only where a machine is made first. Other plans are not read for it.
 */
const predictedEnd = `case when p.lifecycle_actions is null then p.predicted_makespan_seconds
  else (select max(predicted_finish_at) from schedule_plan_assignments where schedule_plan_id = p.id) end`

const summaryText = `select ${runJson} as run,
  (select coalesce(json_agg(json_build_object('type', c.type, 'status', c.status, 'activities', c.activities)), '[]')
    from (select d.activity_type_id as type, t.status, count(*) as activities from task_executions t
        join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position
        where t.execution_run_id = r.id and t.latest group by 1, 2) c) as counts,
  case when r.status in ('created', 'running') then ${waitCounts} else '[]' end as waits,
  (select coalesce(json_agg(json_strip_nulls(json_build_object('activityId', f.activity_id, 'attempt',
    f.attempt, 'failureClass', f.failure_class,
        'exitCode', f.exit_code, 'reason', left(f.failure_reason, ${String(reasonLengths[0])})))
          order by f.finished_at, f.activity_position), '[]')
    from (select t.* from task_executions t where t.execution_run_id = r.id and t.latest and t.status = 'failed'
        order by t.finished_at, t.activity_position limit ${String(mostFailures)}) f) as failures,
  nullif(p.predicted_makespan_seconds, 0) as planned,
  case when r.mode = 'real' then (select greatest(extract(epoch from r.started_at) + e.last,
      n.finished_at + e.last - n.predicted_finish_at)
    from (select nullif(${predictedEnd}, 0) as last offset 0) e
      left join (select t.finished_at, a.predicted_finish_at from task_executions t
        join schedule_plan_assignments a on a.schedule_plan_id = r.schedule_plan_id
          and a.activity_position = t.activity_position
        where t.execution_run_id = r.id and t.latest and t.status = 'completed' order by t.finished_at desc
          limit 1) n on true) end as expected
  from execution_runs r left join schedule_plans p on p.id = r.schedule_plan_id where r.id = $1`

interface SummaryRow {
  run: RunSummary['run']
  counts: { type: string; status: keyof Counts; activities: number }[]
  waits: RunSummary['waitsFor']
  failures: RunSummary['failures']
  planned: number | null
  expected: number | null
}

const add = (counts: Counts, status: keyof Counts, activities: number): Counts => ({
  ...counts,
  [status]: (counts[status] ?? 0) + activities,
})
const sum = (counts: Counts): number => Object.values(counts).reduce((all, one) => all + one, 0)
const cut = (text: string, length: number): string =>
  text.length > length ? `${text.slice(0, length).toWellFormed()}…` : text

/** The types with the most activities first, those beyond `most` in one sum. */
const byType = (rows: SummaryRow['counts'], most: number): Pick<RunSummary, 'types' | 'otherTypes'> => {
  const types = new Map<string, Counts>()
  for (const { type, status, activities } of rows)
    types.set(type, add(types.get(type) ?? {}, status, activities))
  const ordered = [...types].sort(([a, x], [b, y]) => sum(y) - sum(x) || (a < b ? -1 : 1))
  const others = ordered.slice(most)
  const states = others.flatMap(([, counts]) => Object.entries(counts) as [keyof Counts, number][])
  return {
    types: ordered.slice(0, most).map(([type, counts]) => ({ type, states: counts })),
    ...(others.length === 0
      ? {}
      : {
          otherTypes: {
            types: others.length,
            states: states.reduce<Counts>((all, [status, n]) => add(all, status, n), {}),
          },
        }),
  }
}

/**
 * The summary within 4,096 bytes: texts are cut first, then the lists of types, reasons and
 * failures. Ids of runs and plans are never cut.
 */
export const fitSummary = (row: SummaryRow): RunSummary => {
  const made = (length: number, most: number): RunSummary => {
    const { title, failureReason, ...run } = row.run
    return {
      run: {
        ...run,
        ...(title === undefined ? {} : { title: cut(title, length) }),
        ...(failureReason === undefined ? {} : { failureReason: cut(failureReason, length) }),
      },
      states: row.counts.reduce<Counts>(
        (counts, { status, activities }) => add(counts, status, activities),
        {},
      ),
      ...byType(row.counts, Math.min(most, mostTypes)),
      waitsFor: row.waits.slice(0, most).map((wait) => ({ ...wait, reason: cut(wait.reason, length) })),
      failures: row.failures.slice(0, most).map((failure) => ({
        ...failure,
        ...(failure.reason === undefined ? {} : { reason: cut(failure.reason, length) }),
      })),
      ...(row.planned === null ? {} : { plannedMakespanSeconds: row.planned }),
      ...(row.expected === null || run.finishedAt !== undefined
        ? {}
        : { expectedEnd: new Date(row.expected * 1_000).toISOString() }),
    }
  }
  const fits = (summary: RunSummary): boolean => Buffer.byteLength(JSON.stringify(summary)) <= summaryBytes
  for (const length of reasonLengths) {
    const summary = made(length, mostFailures)
    if (fits(summary)) return summary
  }
  const shortest = reasonLengths.at(-1) ?? 0
  for (let most = mostFailures; most > 0; most = Math.floor(most / 2)) {
    const summary = made(shortest, most)
    if (fits(summary)) return summary
  }
  return made(shortest, 0)
}

/** A serialised summary with its entity tag. */
export interface SummaryText {
  body: string
  tag: string
  /** Whether the run is over. */
  isOver: boolean
}

interface Version {
  identity: string
  status: string
  generation: number
  sequence: number
  flags: string
}

const versionText = `select ${runIdentity} as identity, status, generation,
  last_event_sequence::int as sequence, concat_ws('|', paused, cancel_requested_at, failure_reason, cost) as flags
  from execution_runs where id = $1`

/**
 * Reasons of waiting change without an event, so an open run's summary is read again after this
 * time.
 */
export const reasonsMs = 1_000
const mostKept = 200

/**
 * Reads summaries. For a summary that many clients request, each request costs a one-row statement.
 * Its activities are counted once per event, or once a second while the run is open.
 */
export const openSummaries = (db: Db) => {
  /** By the identities of runs. */
  const kept = new RecentMap<string, { version: string; at: number; text: SummaryText }>(mostKept)
  const versionOf = sharedReads(
    db,
    async (runId) => (await db.prepared<Version>('run_version', versionText, [runId]))[0],
  )
  const count = sharedReads(db, async (runId): Promise<Omit<SummaryText, 'isOver'> | undefined> => {
    const [row] = await db.prepared<SummaryRow>('run_summary', summaryText, [runId])
    if (row === undefined) return undefined
    const body = JSON.stringify(fitSummary(row))
    return { body, tag: `"${hash('sha1', body, 'base64url')}"` }
  })
  const read = async (runId: string): Promise<SummaryText | undefined> => {
    const found = await versionOf(runId)
    if (found === undefined) return undefined
    const version = JSON.stringify(found)
    const known = kept.get(found.identity)
    if (known?.version === version && (known.text.isOver || Date.now() - known.at < reasonsMs))
      return known.text
    const at = Date.now()
    const counted = await count(runId)
    if (counted === undefined) return undefined
    const text = { ...counted, isOver: found.status !== 'created' && found.status !== 'running' }
    kept.set(found.identity, { version, at, text })
    return text
  }
  return { read }
}

/**
 * Seconds of `Prefer: wait=N` (RFC 7240 4.3), 60 at most; undefined where the preference is absent
 * or cannot be read.
 */
export const preferredWait = (prefer: string | undefined): number | undefined => {
  const seconds = /(?:^|[,;\s])wait\s*=\s*"?(\d{1,9})"?\s*(?:[,;]|$)/i.exec(prefer ?? '')?.[1]
  return seconds === undefined ? undefined : Math.min(Number(seconds), 60)
}
