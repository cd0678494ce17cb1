import { z } from 'zod'
import { countUpTo } from '../../db/rows.ts'
import { raw, sql, type Db, type Sql } from '../../db/sql.ts'
import { countBound } from '../../lists.ts'
import { Refusal } from '../../refusal.ts'
import { activityPairs, totalOf } from '../schedule-plans/compare.ts'
import { ComparedSide } from './schemas.ts'

const Compared = z.object({
  workflowVersionId: z.string(),
  contentVersionId: z.string(),
  makespanSeconds: z.number(),
  cost: z.number(),
  plannedMakespan: z.number(),
  plannedCost: z.number(),
  origin: z.number().optional(),
})

const header = (db: Db, runId: string) =>
  db.maybe(
    Compared,
    sql`select p.workflow_version_id, r.content_version_id, r.makespan_seconds, r.cost,
        p.predicted_makespan_seconds as planned_makespan, p.predicted_cost as planned_cost,
        (select min(t.started_at) from task_executions t where t.execution_run_id = r.id) as origin
      from execution_runs r join schedule_plans p on p.id = r.schedule_plan_id where r.id = ${runId}`,
  )

const Pair = z.object({
  activityId: z.string(),
  externalId: z.string(),
  a: ComparedSide,
  b: ComparedSide,
  aPlanned: z.number(),
  bPlanned: z.number(),
})

/** A task as `ComparedSide`; `origin`: the first start of its run. */
const sideOf = (task: 'x' | 'y', origin = 0): Sql =>
  sql`json_strip_nulls(json_build_object('resourceId', ${raw(task)}.planned_resource_id,
    'startAt', ${raw(task)}.started_at - ${origin}::float8, 'finishAt', ${raw(task)}.finished_at - ${origin}::float8,
    'runtimeSeconds', ${raw(task)}.runtime_seconds, 'cost', ${raw(task)}.cost, 'status', ${raw(task)}.status))`

const minus = (b: number | undefined, a: number | undefined): number | undefined =>
  a === undefined || b === undefined ? undefined : b - a

/**
 * Two runs of one workflow version side by side: totals, and a page of activities with the
 * predictions of their plans. Times count from each run's first start, so that a simulation and an
 * execution can be compared. Another workflow version is 422.
 */
export const compareRuns = async (db: Db, a: string, b: string, page: { limit: number; offset: number }) => {
  const [first, second] = await Promise.all([header(db, a), header(db, b)])
  if (first === undefined || second === undefined) return undefined
  if (first.workflowVersionId !== second.workflowVersionId) {
    throw new Refusal(
      'unacceptable',
      `the runs execute different workflow versions (${first.workflowVersionId} and ` +
        `${second.workflowVersionId}); compare runs of one version`,
    )
  }
  const pairs = sql`task_executions x
    join ${activityPairs(first.contentVersionId, second.contentVersionId)} pairs on pairs.a = x.activity_position
    join task_executions y on y.execution_run_id = ${b} and y.activity_position = pairs.b and y.latest`
  const ofFirst = sql`x.execution_run_id = ${a} and x.latest`
  const rows = await db.many(
    Pair,
    sql`select x.activity_id, x.external_id,
        ${sideOf('x', first.origin)} as a, pa.predicted_runtime_seconds as a_planned,
        ${sideOf('y', second.origin)} as b, pb.predicted_runtime_seconds as b_planned
      from ${pairs}
      join execution_runs rx on rx.id = x.execution_run_id
      join schedule_plan_assignments pa on pa.schedule_plan_id = rx.schedule_plan_id
        and pa.activity_position = x.activity_position
      join execution_runs ry on ry.id = y.execution_run_id
      join schedule_plan_assignments pb on pb.schedule_plan_id = ry.schedule_plan_id
        and pb.activity_position = y.activity_position
      where ${ofFirst} order by x.activity_position
        limit ${page.limit} offset ${page.offset}`,
  )
  const total = await countUpTo(db, sql`${pairs} where ${ofFirst}`, countBound)
  return {
    totals: {
      makespanSeconds: totalOf(first.makespanSeconds, second.makespanSeconds),
      cost: totalOf(first.cost, second.cost),
    },
    planned: {
      a: { makespanSeconds: first.plannedMakespan, cost: first.plannedCost },
      b: { makespanSeconds: second.plannedMakespan, cost: second.plannedCost },
    },
    total,
    rows: rows.map(({ aPlanned, bPlanned, ...pair }) => ({
      ...pair,
      planned: { a: aPlanned, b: bPlanned },
      delta: {
        startAt: minus(pair.b.startAt, pair.a.startAt),
        finishAt: minus(pair.b.finishAt, pair.a.finishAt),
        runtimeSeconds: pair.b.runtimeSeconds - pair.a.runtimeSeconds,
        cost: pair.b.cost - pair.a.cost,
      },
      moved: pair.a.resourceId !== pair.b.resourceId,
    })),
  }
}
