import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { windowPrice } from '../../schedulers/estimate.ts'
import { paidByWindow } from '../schedule-plans/problem.ts'

const PricedRow = z.object({
  id: z.string(),
  pricePerSecond: z.number(),
  executionTarget: z.string().optional(),
  costModel: z.string().optional(),
})

/** The resources of a run's snapshot with their prices per second, and whether windows are what is paid. */
export const resourcePrices = async (db: Db, runId: string) => {
  const resources = await db.many(
    PricedRow,
    sql`select x.id, coalesce(x."pricePerSecond", 0) as price_per_second, x."executionTarget" as execution_target,
        v.cost_model
      from run_snapshots s
      cross join jsonb_to_recordset(s.resources)
        as x(id text, "pricePerSecond" double precision, "executionTarget" text, "environmentVersionId" text)
      left join environment_versions v on v.id = x."environmentVersionId"
      where s.execution_run_id = ${runId}`,
  )
  return resources.map(({ id, pricePerSecond, executionTarget = '', costModel }) => ({
    ...{ id, pricePerSecond, byWindow: paidByWindow(executionTarget, costModel) },
  }))
}

const UseRow = z.object({
  id: z.string(),
  first: z.number(),
  last: z.number(),
  runtimeSeconds: z.number(),
  count: z.number(),
  onMachines: z.boolean(),
})

/**
 * The active windows of a run's resources that are paid by windows, in seconds since the epoch, with
 * their prices per second. `onMachines`: its tasks ran on machines of a capacity target. With
 * `open`, a task under way counts up to now; otherwise it does not count yet.
 */
export const windowsOf = async (
  db: Db,
  runId: string,
  { open = false, prices }: { open?: boolean; prices?: Awaited<ReturnType<typeof resourcePrices>> } = {},
) => {
  const paid = new Map(
    (prices ?? (await resourcePrices(db, runId))).flatMap(({ id, pricePerSecond, byWindow }) =>
      byWindow ? [[id, pricePerSecond] as const] : [],
    ),
  )
  if (paid.size === 0) return []
  const uses = await db.many(
    UseRow,
    sql`select planned_resource_id as id, min(started_at) as first,
        max(coalesce(finished_at, greatest(started_at, extract(epoch from clock_timestamp())))) as last,
        coalesce(sum(runtime_seconds), 0) as runtime_seconds, count(*) as count,
        coalesce(bool_or(site like 'cloud/%'), false) as on_machines
      from task_executions
      where execution_run_id = ${runId} and planned_resource_id = any(${[...paid.keys()]}::text[])
        and started_at is not null and (finished_at is not null or ${open})
      group by 1`,
  )
  return uses.map((use) => ({ ...use, pricePerSecond: paid.get(use.id) ?? 0 }))
}

/** The money of windows. */
export const windowMoney = (
  windows: readonly { first: number; last: number; pricePerSecond: number }[],
): number =>
  windows.reduce((sum, { first, last, pricePerSecond }) => sum + (last - first) * pricePerSecond, 0)

/**
 * Charges a run's attempts for the active windows of resources that are billed by windows, by the
 * rule of planner and simulator. SQL sums the use of each resource, `windowPrice` computes the
 * price.
 */
export const chargeWindows = async (tx: Db, runId: string): Promise<void> => {
  const uses = await windowsOf(tx, runId)
  if (uses.length === 0) return
  const prices = uses.map((use) => windowPrice(use, use.pricePerSecond))
  // With old statistics the join of attempts and sums would be a loop over all pairs of them.
  await tx.run(sql`set local enable_nestloop = off`)
  await tx.run(sql`update task_executions t set cost = coalesce(t.runtime_seconds, 0) * w.per_second + w.each
      -- What was moved for an activity is with its last attempt: of the others only the ids of the
      -- transfers tell.
      + case when t.attempt = latest.attempt then moved.cost else 0 end
    from (select activity_id, sum(cost) as cost from (
        select consumer_activity_id as activity_id, cost from data_transfer_observations
          where execution_run_id = ${runId}
        union all select activity_id, 0 from task_executions where execution_run_id = ${runId}) costs
      group by activity_id) moved,
      (select activity_position, max(attempt) as attempt from task_executions
        where execution_run_id = ${runId} and started_at is not null and finished_at is not null
        group by activity_position) latest,
      unnest(${uses.map(({ id }) => id)}::text[],
      ${prices.map(({ perRuntimeSecond }) => perRuntimeSecond)}::float8[],
      ${prices.map(({ each }) => each)}::float8[]) as w (id, per_second, each)
    where t.execution_run_id = ${runId} and t.planned_resource_id = w.id and t.started_at is not null
      and t.finished_at is not null and moved.activity_id = t.activity_id
      and latest.activity_position = t.activity_position`)
  await tx.run(sql`set local enable_nestloop to default`)
}
