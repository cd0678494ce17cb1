import { z } from 'zod'
import { eachInPages, type Turns } from '../../db/each-record.ts'
import { sql, type Db } from '../../db/sql.ts'
import type { Engine } from '../../engine.ts'
import { requestCancel } from '../../operations/records.ts'
import { unacceptable } from '../../refusal.ts'
import { roundingSlack } from '../schedule-plans/prediction.ts'
import { appendRunEvent, runKind } from './operation.ts'
import { cloudCostOf } from './receipt.ts'
import { runStates } from './schemas.ts'

/**
 * @throws Refusal 422 where a run with `onBudget: refuse` is predicted to cost more than its budget
 */
export const refuseAboveBudget = (
  run: { budget?: number | undefined; onBudget?: string | undefined },
  predicted: number,
): void => {
  const { budget, onBudget = 'refuse' } = run
  if (budget === undefined || onBudget !== 'refuse' || predicted <= budget * (1 + roundingSlack)) return
  throw unacceptable([
    {
      path: 'run.budget',
      message:
        `is ${String(budget)}, and the plan is predicted to cost ${String(predicted)}; raise it, choose ` +
        'another plan, or give onBudget: ask or stop',
    },
  ])
}

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

const AskRow = z.object({ asks: z.boolean() })

/** Whether a run may begin only after a person has approved its predicted cost. */
export const needsApproval = async (db: Db, runId: string): Promise<boolean> =>
  (
    await db.maybe(
      AskRow,
      sql`select r.on_budget = 'ask' and r.approved_at is null and r.status = 'created'
          and r.cancel_requested_at is null and p.predicted_cost > r.budget * ${1 + roundingSlack}::float8 as asks
        from execution_runs r join schedule_plans p on p.id = r.schedule_plan_id
        where r.id = ${runId} and r.mode = 'real' and r.on_budget is not null and r.budget is not null`,
    )
  )?.asks ?? false

const SpentRow = z.object({
  id: z.string(),
  generation: z.number(),
  status: z.string(),
  budget: z.number(),
  spent: z.number(),
  committed: z.number(),
})

/** An end of a machine takes this long, and costs money. */
const stopSeconds = 20

/**
 * Open runs with `onBudget: stop`: the money of ended and running tasks, and what the machines in
 * use cost until they can be gone.
 */
const watched = (db: Db, after: string, limit: number) =>
  db.many(
    SpentRow,
    sql`select r.id, r.generation, r.status, r.budget,
        coalesce((select sum(case when t.finished_at is not null then t.cost
            else greatest(0, extract(epoch from clock_timestamp()) - t.started_at) * x."pricePerSecond" end)
          from task_executions t left join lateral (
            select e."executionTarget", coalesce(e."pricePerSecond", 0) as "pricePerSecond" from run_snapshots s
            cross join jsonb_to_recordset(s.resources)
              as e(id text, "executionTarget" text, "pricePerSecond" double precision)
            where s.execution_run_id = r.id and e.id = t.planned_resource_id limit 1) x on true
          where t.execution_run_id = r.id and t.started_at is not null
            and coalesce(x."executionTarget", '') <> 'provisioned'), 0) as spent,
        coalesce((select sum(i.compute_price_per_second + i.disk_price_per_second) * ${stopSeconds}
          from run_machines m join cloud_instances i on i.id = m.instance_id
          where m.execution_run_id = r.id and m.released_at is null and not i.machine_gone), 0) as committed
      from execution_runs r where r.on_budget = 'stop' and r.status = 'running' and r.mode = 'real'
        and r.budget is not null and r.cancel_requested_at is null
        and r.id > ${after} order by r.id limit ${limit}`,
  )

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
  const watch = async (run: z.output<typeof SpentRow>): Promise<void> => {
    // The windows of running machines are not charged to tasks yet: the machines' whole money
    // counts.
    const machines = await cloudCostOf(db, run.id, { whole: true })
    if (run.spent + machines + run.committed <= run.budget) return
    const reason =
      `its budget ${String(run.budget)} is used up: ${(run.spent + machines).toFixed(6)} spent, ` +
      `${run.committed.toFixed(6)} committed`
    await requestCancel(db, runKind, run.id, { actorId: 'service', reason })
    await engine.signal(runKind, run.id, run.generation, 'wake').catch(() => false)
    cancelled += 1
  }
  await eachInPages(turns, (after, limit) => watched(db, after, limit), watch, signal)
  return cancelled
}
