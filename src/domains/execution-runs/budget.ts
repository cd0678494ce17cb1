import { z } from 'zod'
import { eachInPages, type Turns } from '../../db/each-record.ts'
import { sql, type Db } from '../../db/sql.ts'
import type { Engine } from '../../engine.ts'
import type { RecordRef } from '../../operations/kind.ts'
import { requestCancel } from '../../operations/records.ts'
import { type Problem, unacceptableAt } from '../../refusal.ts'
import { roundingSlack } from '../../schedulers/limits.ts'
import { appendRunEvent, idOfRun, runKind } from './operation.ts'
import { cloudCostOf } from './receipt.ts'
import { runStates } from './schemas.ts'
import { resourcePrices, windowMoney, windowsOf } from './windows.ts'

/**
 * @throws Refusal 422 where a run with `onBudget: refuse` is predicted to cost more than its budget, or
 *   where its plan could not be predicted: that cost is unknown, and so it is above every budget
 */
export const refuseAboveBudget = (
  run: { budget?: number | undefined; onBudget?: string | undefined },
  plan: { predictedCost: number; predictionFailure?: string | undefined },
): void => {
  const { budget, onBudget = 'refuse' } = run
  if (budget === undefined || onBudget !== 'refuse') return
  const { predictedCost, predictionFailure } = plan
  if (predictionFailure === undefined && predictedCost <= budget * (1 + roundingSlack)) return
  const why =
    predictionFailure === undefined
      ? `the plan is predicted to cost ${String(predictedCost)}; raise it, choose another plan, or give `
      : `the cost of the plan cannot be predicted (${predictionFailure}); choose another plan, or give `
  throw unacceptableAt('run.budget', `is ${String(budget)}, and ${why}onBudget: ask or stop`)
}

/**
 * Warnings about a budget that only a prediction guards, where the prediction counts activities of
 * unknown runtime.
 */
export const budgetWarnings = (
  { budget, onBudget = 'refuse' }: { budget?: number | undefined; onBudget?: string | undefined },
  { defaultedDurations, predictedCost }: { defaultedDurations: number; predictedCost: number },
): Problem[] =>
  budget === undefined || onBudget === 'stop' || defaultedDurations === 0
    ? []
    : [
        {
          path: 'run.budget',
          message:
            `is ${String(budget)}, and the predicted cost ${String(predictedCost)} counts ` +
            `${String(defaultedDurations)} activities of unknown runtime with 1 s / speedup of their resource: ` +
            `the run may cost more, and onBudget: ${onBudget} does not end it then; give onBudget: stop, or ` +
            'durations of the activities',
        },
      ]

const ApprovedRow = z.object({
  status: z.enum(runStates),
  generation: z.number(),
  waits: z.boolean(),
})

/**
 * Approves a run that waits for a person. A repeat changes nothing.
 * @returns the run before the change; undefined for an unknown one
 */
export const approveRun = (db: Db, runId: string) =>
  db.transaction(async (tx) => {
    const run = await tx.maybe(
      ApprovedRow,
      sql`select status, generation, on_budget is not distinct from 'ask' and approved_at is null as waits
        from execution_runs where id = ${runId} for update`,
    )
    if (run?.status !== 'created' || !run.waits) return run
    await tx.run(sql`update execution_runs set approved_at = clock_timestamp() where id = ${runId}`)
    await appendRunEvent(tx, runId, 'execution.run.approved', {})
    return run
  })

/** Whether a run may begin only after a person has approved its predicted cost. */
export const needsApproval = async (db: Db, of: RecordRef): Promise<boolean> =>
  (await db.value(
    z.boolean(),
    sql`select r.on_budget = 'ask' and r.approved_at is null and r.status = 'created'
          and r.cancel_requested_at is null and (p.prediction_failure is not null
            or p.predicted_cost > r.budget * ${1 + roundingSlack}::float8) as asks
        from execution_runs r join schedule_plans p on p.id = r.schedule_plan_id
        where r.id = ${idOfRun(of)} and r.mode = 'real' and r.on_budget is not null and r.budget is not null`,
  )) ?? false

const WatchedRow = z.object({
  id: z.string(),
  key: z.string(),
  generation: z.number(),
  budget: z.number(),
  committed: z.number(),
})

/** An end of a machine takes this long, and costs money. */
const stopSeconds = 20

/** Open runs with `onBudget: stop`, and what the machines in use cost until they can be gone. */
const watched = (db: Db, after: string, limit: number) =>
  db.many(
    WatchedRow,
    sql`select r.id, r.effect_key as key, r.generation, r.budget,
        coalesce((select sum(i.compute_price_per_second + i.disk_price_per_second) * ${stopSeconds}
          from run_machines m join cloud_instances i on i.id = m.instance_id
          where m.execution_run_id = r.id and m.released_at is null and not i.machine_gone), 0) as committed
      from execution_runs r where r.on_budget = 'stop' and r.status = 'running' and r.mode = 'real'
        and r.budget is not null and r.cancel_requested_at is null
        and r.id > ${after} order by r.id limit ${limit}`,
  )

/**
 * What an open run has spent so far, by the rule that prices it at its end: ended and running tasks,
 * the windows of resources that are paid by windows, machines, and the transfers to all of them.
 */
const spentOf = async (db: Db, runId: string): Promise<number> => {
  const prices = await resourcePrices(db, runId)
  const windows = await windowsOf(db, runId, { open: true, prices })
  const byWindow = prices.flatMap((one) => (one.byWindow ? [one.id] : []))
  // An ended attempt has its transfers in its cost, where it is paid by its own time. An attempt under
  // way has those since the end of the one before it.
  const spent = await db.only(
    z.number(),
    sql`with tasks as materialized (
        select t.activity_id, t.status, t.started_at, t.finished_at, t.cost,
          t.planned_resource_id as resource_id, t.planned_resource_id = any(${byWindow}::text[]) as by_window
        from task_executions t where t.execution_run_id = ${runId}
      ), moved as (
        select coalesce(sum(d.cost), 0) as money from data_transfer_observations d
        left join (select activity_id, max(finished_at) as last from tasks group by 1) e
          on e.activity_id = d.consumer_activity_id
        where d.execution_run_id = ${runId} and (d.target_resource_id = any(${byWindow}::text[])
          or e.last is null or d.started_at > e.last)
      )
      select coalesce(sum(case when t.finished_at is not null then t.cost
          -- The site has not begun it.
          when t.status = 'queued' then 0
          else greatest(0, extract(epoch from clock_timestamp()) - t.started_at) * coalesce(x.price, 0) end), 0)
        + (select money from moved) as spent
      from tasks t left join unnest(${prices.map(({ id }) => id)}::text[],
        ${prices.map(({ pricePerSecond }) => pricePerSecond)}::float8[]) as x (id, price) on x.id = t.resource_id
      where t.started_at is not null and not t.by_window`,
  )
  // The machines' whole money counts, and so their windows do not.
  const machines = await cloudCostOf(db, runId, { whole: true })
  return spent + machines + windowMoney(windows.filter(({ onMachines }) => !onMachines))
}

const WaitingRow = z.object({ id: z.string(), generation: z.number() })

/** Approved runs that have not begun. */
const approvedWaiting = (db: Db, after: string, limit: number) =>
  db.many(
    WaitingRow,
    sql`select id, generation from execution_runs where on_budget = 'ask' and status = 'created'
      and approved_at < clock_timestamp() - interval '3 seconds'
      and id > ${after} order by id limit ${limit}`,
  )

/**
 * Cancels runs that have spent and committed more than their budget, and wakes approved runs whose
 * signal was lost. A run that cannot be looked at waits for its next turn.
 * @returns how many were cancelled
 */
export const watchBudgets = async (
  { db, engine }: { db: Db; engine: Pick<Engine, 'signal' | 'cancel'> },
  turns: Turns<{ id: string }>,
  signal?: AbortSignal,
): Promise<number> => {
  // A run without a workflow is no reason to end the round.
  const wake = async ({ id, generation }: z.output<typeof WaitingRow>): Promise<void> => {
    await engine.signal(runKind, id, generation, 'wake').catch(() => undefined)
  }
  await eachInPages(turns, (after, limit) => approvedWaiting(db, after, limit), wake, signal)
  let cancelled = 0
  const watch = async (run: z.output<typeof WatchedRow>): Promise<void> => {
    const spent = await spentOf(db, run.id)
    if (spent + run.committed <= run.budget) return
    const reason =
      `its budget ${String(run.budget)} is used up: ${spent.toFixed(6)} spent, ` +
      `${run.committed.toFixed(6)} committed`
    await requestCancel(db, runKind, run, { actorId: 'service', reason })
    await engine.signal(runKind, run.id, run.generation, 'wake').catch(() => false)
    cancelled += 1
  }
  await eachInPages(turns, (after, limit) => watched(db, after, limit), watch, signal)
  return cancelled
}
