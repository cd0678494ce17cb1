import { z } from 'zod'
import { countUpTo } from '../../db/rows.ts'
import { sql, type Db } from '../../db/sql.ts'
import { countBound } from '../../lists.ts'
import { Refusal } from '../../refusal.ts'

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
  aResource: z.string(),
  aStart: z.number().optional(),
  aFinish: z.number().optional(),
  aRuntime: z.number(),
  aCost: z.number(),
  aStatus: z.string(),
  aPlanned: z.number(),
  bResource: z.string(),
  bStart: z.number().optional(),
  bFinish: z.number().optional(),
  bRuntime: z.number(),
  bCost: z.number(),
  bStatus: z.string(),
  bPlanned: z.number(),
})

const delta = (a: number, b: number) => ({
  a,
  b,
  delta: b - a,
  ...(a === 0 ? {} : { relative: (b - a) / a }),
})
const present = <T extends object>(value: T) =>
  Object.fromEntries(Object.entries(value).filter(([, item]) => item !== undefined)) as {
    [K in keyof T]: Exclude<T[K], undefined>
  }
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
  // Copies of the version that came with plans or runs can have other positions.
  const same =
    first.contentVersionId === second.contentVersionId
      ? sql`y.activity_position = x.activity_position`
      : sql`y.external_id = x.external_id`
  const rows = await db.many(
    Pair,
    sql`select x.activity_id, x.external_id,
        x.planned_resource_id as a_resource, x.started_at - ${first.origin ?? 0}::float8 as a_start,
          x.finished_at - ${first.origin ?? 0}::float8 as a_finish, x.runtime_seconds as a_runtime,
        x.cost as a_cost, x.status as a_status, pa.predicted_runtime_seconds as a_planned,
        y.planned_resource_id as b_resource, y.started_at - ${second.origin ?? 0}::float8 as b_start,
          y.finished_at - ${second.origin ?? 0}::float8 as b_finish, y.runtime_seconds as b_runtime,
        y.cost as b_cost, y.status as b_status, pb.predicted_runtime_seconds as b_planned
      from task_executions x
      join execution_runs rx on rx.id = x.execution_run_id
      join schedule_plan_assignments pa on pa.schedule_plan_id = rx.schedule_plan_id
        and pa.activity_position = x.activity_position
      join task_executions y on y.execution_run_id = ${b} and ${same} and y.latest
      join execution_runs ry on ry.id = y.execution_run_id
      join schedule_plan_assignments pb on pb.schedule_plan_id = ry.schedule_plan_id
        and pb.activity_position = y.activity_position
      where x.execution_run_id = ${a} and x.latest order by x.activity_position
        limit ${page.limit} offset ${page.offset}`,
  )
  const total = await countUpTo(
    db,
    sql`task_executions x join task_executions y on y.execution_run_id = ${b} and ${same} and y.latest
      where x.execution_run_id = ${a} and x.latest`,
    countBound,
  )
  return {
    totals: {
      makespanSeconds: delta(first.makespanSeconds, second.makespanSeconds),
      cost: delta(first.cost, second.cost),
    },
    planned: {
      a: { makespanSeconds: first.plannedMakespan, cost: first.plannedCost },
      b: { makespanSeconds: second.plannedMakespan, cost: second.plannedCost },
    },
    total,
    rows: rows.map((row) => ({
      activityId: row.activityId,
      externalId: row.externalId,
      a: present({
        resourceId: row.aResource,
        startAt: row.aStart,
        finishAt: row.aFinish,
        runtimeSeconds: row.aRuntime,
        cost: row.aCost,
        status: row.aStatus,
      }),
      b: present({
        resourceId: row.bResource,
        startAt: row.bStart,
        finishAt: row.bFinish,
        runtimeSeconds: row.bRuntime,
        cost: row.bCost,
        status: row.bStatus,
      }),
      planned: { a: row.aPlanned, b: row.bPlanned },
      delta: present({
        startAt: minus(row.bStart, row.aStart),
        finishAt: minus(row.bFinish, row.aFinish),
        runtimeSeconds: row.bRuntime - row.aRuntime,
        cost: row.bCost - row.aCost,
      }),
      moved: row.aResource !== row.bResource,
    })),
  }
}
