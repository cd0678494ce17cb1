import { z } from 'zod'
import { fields, jsonObject } from '../../db/projection.ts'
import { readPage } from '../../db/rows.ts'
import { raw, sql, type Db, type Sql } from '../../db/sql.ts'
import { envelope, type Page } from '../../http/paging.ts'
import { Paid, PlanTime } from '../../http/schema.ts'
import { existing, unacceptableAt } from '../../refusal.ts'
import { readPlan, type PlanHeader } from './store.ts'

const Side = z.strictObject({
  resourceId: z.string(),
  coreId: z.string().optional(),
  slotId: z.string().optional(),
  startAt: PlanTime,
  finishAt: PlanTime,
  runtimeSeconds: z.number(),
  transferSeconds: z.number(),
  cost: Paid,
})
const Delta = z.strictObject({
  startAt: z.number().describe('seconds later in plan b'),
  finishAt: z.number().describe('seconds later in plan b'),
  runtimeSeconds: z.number(),
  transferSeconds: z.number(),
  cost: Paid,
})

/** b − a; `relative` is the delta over a, absent where a is 0. */
const Total = z.strictObject({
  a: z.number().describe('of plan a'),
  b: z.number().describe('of plan b'),
  delta: z.number().describe('b − a'),
  relative: z.number().optional().describe('delta / a; absent where a is 0'),
})

const ActivityComparison = z.strictObject({
  /** The id as plan a writes it. */
  activityId: z.string(),
  externalId: z.string(),
  a: Side,
  b: Side,
  delta: Delta,
  /** True where the resource differs. */
  moved: z.boolean(),
})

export const PlanComparison = z.strictObject({
  a: z.string(),
  b: z.string(),
  totals: z.strictObject({ makespanSeconds: Total, cost: Total }),
  activities: z.strictObject({
    items: z.array(ActivityComparison),
    page: z.number(),
    pageSize: z.number().describe('most items of a page'),
    total: z.number(),
    hasNext: z.boolean(),
    totalIsLowerBound: z.literal(true).optional(),
  }),
})
export type PlanComparison = z.output<typeof PlanComparison>

/** Two totals side by side. */
export const totalOf = (a: number, b: number): z.output<typeof Total> => ({
  a,
  b,
  delta: b - a,
  ...(a === 0 ? {} : { relative: (b - a) / a }),
})

const Row = z.object({ activityId: z.string(), externalId: z.string(), a: Side, b: Side })

const side = (alias: string): Sql =>
  raw(
    jsonObject({
      ...fields(alias, 'resourceId'),
      coreId: `nullif(${alias}.core_id, '')`,
      slotId: `nullif(${alias}.slot_id, '')`,
      startAt: `${alias}.predicted_start_at`,
      finishAt: `${alias}.predicted_finish_at`,
      runtimeSeconds: `${alias}.predicted_runtime_seconds`,
      transferSeconds: `${alias}.predicted_transfer_seconds`,
      cost: `${alias}.predicted_cost`,
    }),
  )

const namesakes = (contentVersionId: string): Sql =>
  sql`select position, external_id, row_number() over (partition by external_id order by id) as number
    from activity_definitions where workflow_version_id = ${contentVersionId}`

/**
 * The positions `a` and `b` of each activity in two contents of one workflow version. Copies that
 * came with plans or runs can have other positions and other ids: there an activity has its external
 * id, and its number among those of that external id by the order of their ids.
 */
export const activityPairs = (a: string, b: string): Sql =>
  a === b
    ? sql`(select position as a, position as b from activity_definitions where workflow_version_id = ${a})`
    : sql`(select x.position as a, y.position as b from (${namesakes(a)}) x
        join (${namesakes(b)}) y using (external_id, number))`

/**
 * Two plans of one workflow version, activity by activity in the order of plan a.
 * @throws Refusal 404 for an unknown plan, 422 for plans of different workflow versions
 */
export const comparePlans = async (db: Db, a: string, b: string, page: Page): Promise<PlanComparison> => {
  const [planA, planB] = await Promise.all([known(db, a), known(db, b)])
  if (planA.workflowVersionId !== planB.workflowVersionId)
    throw unacceptableAt(
      'otherPlanId',
      `plan ${JSON.stringify(b)} is of workflow version ` +
        `${JSON.stringify(planB.workflowVersionId)}, plan ${JSON.stringify(a)} of ` +
        `${JSON.stringify(planA.workflowVersionId)}; only plans of one version can be compared`,
    )
  const pairs = sql`schedule_plan_assignments x
    join ${activityPairs(planA.contentVersionId, planB.contentVersionId)} pairs on pairs.a = x.activity_position
    join activity_definitions d on d.workflow_version_id = ${planA.contentVersionId} and d.position = pairs.a
    join schedule_plan_assignments y on y.schedule_plan_id = ${b} and y.activity_position = pairs.b
    where x.schedule_plan_id = ${a}`
  const { rows, total } = await readPage(db, Row, {
    select: sql`x.activity_id, d.external_id, ${side('x')} as a, ${side('y')} as b`,
    from: pairs,
    order: sql`x.activity_position`,
    page,
  })
  const items = rows.map((row) => ({
    ...row,
    delta: {
      startAt: row.b.startAt - row.a.startAt,
      finishAt: row.b.finishAt - row.a.finishAt,
      runtimeSeconds: row.b.runtimeSeconds - row.a.runtimeSeconds,
      transferSeconds: row.b.transferSeconds - row.a.transferSeconds,
      cost: row.b.cost - row.a.cost,
    },
    moved: row.a.resourceId !== row.b.resourceId,
  }))
  return {
    a,
    b,
    totals: {
      makespanSeconds: totalOf(planA.predictedMakespanSeconds, planB.predictedMakespanSeconds),
      cost: totalOf(planA.predictedCost, planB.predictedCost),
    },
    activities: envelope(items, { page, total }),
  }
}

const known = async (db: Db, id: string): Promise<PlanHeader> =>
  existing(await readPlan(db, id), 'schedule plan', id)
