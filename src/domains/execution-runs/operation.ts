import { z } from 'zod'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { findUsers, userText } from '../../db/uses.ts'
import { intentName } from '../../executor/names.ts'
import { recordRemovals } from '../../executor/removals.ts'
import type { Reports } from '../../observability/reports.ts'
import { endDigests } from '../../operations/end-digest.ts'
import { appendEvent } from '../../operations/events.ts'
import type { OperationKind, OperationRef, RecordRef } from '../../operations/kind.ts'
import { beginOperation, idOfRecord } from '../../operations/records.ts'
import { storableJson } from '../../outside-text.ts'
import { mostBytes } from '../../ranges.ts'
import { unacceptable } from '../../refusal.ts'
import { endDeliveries, forgetDeliveries } from '../artifacts/deliveries.ts'
import { recordAudit } from '../audit-events/store.ts'
import { sessionsOfWorkflow } from '../planning-sessions/uses.ts'
import { plansOfWorkflow } from '../schedule-plans/uses.ts'
import { dropUnusedCopy } from '../workflow-definitions/store.ts'
import { runStates } from './schemas.ts'
import { runPageSummary } from './page-summary.ts'
import { runsOfWorkflow, usesOfRun } from './uses.ts'
import { cloudCostOf } from './receipt.ts'
import { chargeWindows } from './windows.ts'

/**
 * Runs as operations. The executor stops the running tasks of a cancelled run before the run ends.
 */
export const runKind: OperationKind<'executionRun'> = {
  name: 'execution-run',
  workflow: 'executionRun',
  noun: 'run',
  idInLog: 'runId',
  table: 'execution_runs',
  key: 'effect_key',
  states: { accepted: 'created', running: 'running' },
  events: 'execution.run',
  cancelEnds: 'accepted',
  pageSummary: runPageSummary,
  audit: (id, change) => {
    // The end of a run is recorded with the digest of its events.
    if (change === 'completed' || change === 'failed') return undefined
    return { eventType: `execution.run.${change === 'cancelled' ? 'cancel' : change}`, executionId: id }
  },
  end: (tx, of) => closeRun(tx, of),
  remove: (tx, id) => removeRecords(tx, id),
}

/**
 * Deletes what refers to a run that is over, and records its files for removal at their sites. What it
 * gives removes the workflow embedded with the run where nothing else uses that.
 * @throws Refusal 422 that names what still refers to the run
 */
const removeRecords = async (tx: Db, runId: string): Promise<() => Promise<void>> => {
  const users = await findUsers(tx, usesOfRun, runId)
  if (users.length > 0)
    throw unacceptable(
      users.map((user) => ({
        path: 'runId',
        message: `${JSON.stringify(runId)} cannot be deleted: it is used by ${userText(user)}; delete that first`,
      })),
    )
  await recordRemovals(tx, runId)
  await forgetDeliveries(tx, runId)
  await tx.run(sql`delete from site_leftovers where execution_run_id = ${runId}`)
  await tx.run(sql`delete from lane_leases where execution_run_id = ${runId}`)
  const contentVersionId = await tx.only(
    z.string(),
    sql`select content_version_id from execution_runs where id = ${runId}`,
  )
  return () => dropUnusedCopy(tx, contentVersionId, [plansOfWorkflow, sessionsOfWorkflow, runsOfWorkflow])
}

const Opened = z.object({ mode: z.string(), activityCount: z.number() })

/**
 * Moves a run from created to running with its first event, once. A run with an earlier request to
 * cancel ends instead.
 */
export const openRun = (db: Db, of: OperationRef) =>
  db.transaction(async (tx) => {
    const run = await tx.maybe(
      Opened,
      sql`select mode, activity_count from execution_runs where id = ${of.id}`,
    )
    if (run === undefined) return undefined
    const begun = await beginOperation(tx, runKind, of, { mode: run.mode })
    return begun && { ...begun, ...run }
  })

/** Appends the next event of a run, numbered under the lock of its row. */
export const appendRunEvent = (
  tx: Db,
  id: string,
  type: string,
  payload: Record<string, unknown>,
): Promise<void> => appendEvent(tx, runKind, { id, generation: 1 }, type, payload)

/** SQL: the id of a run, or null where another run has it by now. */
export const idOfRun = (of: RecordRef): Sql => idOfRecord(runKind, of)

const AttemptRow = z.object({ activityPosition: z.number(), attempt: z.number() })

/**
 * Records the attempts of a run that may be alive at a site as left there, with the reason: they are
 * ended once the site answers. Returns their names.
 */
export const leaveAttempts = async (
  tx: Db,
  { runId, effectKey }: { runId: string; effectKey: string },
  site: string,
  reason: string,
): Promise<string[]> => {
  // Includes attempts that wait in a site's queue, and intents recorded ahead of their turn.
  const alive = await tx.many(
    AttemptRow,
    sql`select activity_position, attempt from task_executions
      where execution_run_id = ${runId} and site = ${site} and (handle_name is not null or ahead)
        and status not in ('completed', 'failed', 'cancelled')`,
  )
  const names = alive.map(({ activityPosition, attempt }) => intentName(effectKey, activityPosition, attempt))
  await tx.run(sql`insert into site_leftovers (site, name, execution_run_id, last_error)
    select ${site}, name, ${runId}, ${reason} from unnest(${names}::text[]) as name on conflict do nothing`)
  return names
}

/**
 * Stops an open run that the engine cannot continue at `site`: no further task starts, and the run
 * will be closed as failed for `reason`. Attempts that may be alive at the site are recorded as left
 * there, so that they are ended before others take their place.
 */
export const abandonRun = (db: Db, of: RecordRef, site: string, reason: string): Promise<void> =>
  db.transaction(async (tx) => {
    const runId = of.id
    await tx.run(
      sql`update execution_runs set failure_reason = coalesce(failure_reason, ${reason}), cancel_requested_at
        = coalesce(cancel_requested_at, now()) where id = ${idOfRun(of)} and status = 'running'`,
    )
    const effectKey = await tx.value(
      z.string(),
      sql`select effect_key from execution_runs where id = ${idOfRun(of)}`,
    )
    if (effectKey === undefined) return
    await leaveAttempts(tx, { runId, effectKey }, site, reason)
  })

const RunEndRow = z.object({
  status: z.enum(runStates),
  completed: z.number(),
  reason: z.string().optional(),
})
/** State of a run, how many of its activities completed, and why it failed. */
export type RunEnd = z.output<typeof RunEndRow>

export const readRunEnd = (db: Db, runId: string): Promise<RunEnd> =>
  db.one(
    RunEndRow,
    sql`select status, completed_activity_count as completed, failure_reason as reason from execution_runs
      where id = ${runId}`,
  )

const EndedRunRow = z.object({
  mode: z.string(),
  status: z.enum(runStates),
  reason: z.string().optional(),
  seconds: z.number().optional(),
  activities: z.number(),
  completed: z.number(),
  failed: z.number(),
  cost: z.number(),
  planError: z.number().optional(),
})

/**
 * Reports a run that has just ended to the operators of the service. `costBefore`: its cost at an
 * earlier end. The error of its plan is its measured makespan over the planned one.
 */
export const reportRunEnd = async (
  { db, reports }: { db: Db; reports: Pick<Reports, 'runEnded'> },
  runId: string,
  costBefore = 0,
): Promise<void> => {
  const run = await db.one(
    EndedRunRow,
    sql`select r.mode, r.status, r.failure_reason as reason, extract(epoch
      from r.finished_at - r.started_at)::double precision as seconds,
          r.activity_count as activities, r.completed_activity_count as completed, r.failed_activity_count as
            failed, r.cost,
          case when r.mode = 'real' and r.status = 'completed' and p.predicted_makespan_seconds > 0
            then r.makespan_seconds / p.predicted_makespan_seconds end as plan_error
        from execution_runs r join schedule_plans p on p.id = r.schedule_plan_id where r.id = ${runId}`,
  )
  reports.runEnded({ runId, ...run, costAdded: run.cost - costBefore })
}

const SettlementRow = z.object({
  status: z.enum(runStates),
  generation: z.number(),
  cancelled: z.boolean(),
  completed: z.number(),
  total: z.number(),
  mode: z.string(),
  cost: z.number(),
})

/**
 * Sums up and ends an open run, in the caller's transaction or one of its own: completed when all
 * activities are, cancelled when that was requested, else failed. Activities that never ran become
 * cancelled; leases are released. A run that is over already is only read. So is a run that was
 * reopened since `generation`: the call was meant for the earlier one. `costBefore`: this call
 * ended the run; its cost at an earlier end.
 */
export const closeRun = (db: Db, of: RecordRef & { generation?: number | undefined }) =>
  db.transaction(async (tx) => {
    const { id: runId, generation } = of
    const run = await tx.one(
      SettlementRow,
      sql`select status, generation, cancel_requested_at is not null
        and failure_reason is null as cancelled, completed_activity_count as completed, activity_count as
          total, mode, cost from execution_runs where id = ${idOfRun(of)} for update`,
    )
    const reopened = generation !== undefined && generation !== run.generation
    if (reopened || (run.status !== 'created' && run.status !== 'running'))
      return { status: run.status, completed: run.completed }
    const status: RunEnd['status'] =
      run.completed === run.total ? 'completed' : run.cancelled ? 'cancelled' : 'failed'
    // These include intents that never took effect: recorded, then withheld from their executor
    // because the run was being cancelled.
    await tx.run(sql`update task_executions set status = 'cancelled', finished_at = case
      when handle_name is null then finished_at else extract(epoch from clock_timestamp()) end,
      failure_reason = coalesce(failure_reason,
        ${status === 'cancelled' ? 'the run was cancelled' : 'not run: the run failed before'})
      where execution_run_id = ${runId} and status not in ('completed', 'failed', 'cancelled')`)
    if (run.mode === 'real') await chargeWindows(tx, runId)
    const cloudCost = run.mode === 'real' ? await cloudCostOf(tx, runId) : 0
    await tx.run(sql`update execution_runs r set status = ${status}, paused = false,
      finished_at = clock_timestamp(), makespan_seconds = s.makespan,
      cost = case when r.mode = 'simulation' then r.cost else s.cost + ${cloudCost} end,
      cloud_cost = case when r.mode = 'simulation' then r.cloud_cost else ${cloudCost} end,
        compute_seconds = s.compute, transfer_seconds = s.transfer, queue_seconds = s.queue,
          interference_seconds = s.interference, overhead_seconds = s.overhead,
        transferred_bytes = least(s.bytes, ${mostBytes}),
        failure_reason = coalesce(r.failure_reason, case when ${status} = 'failed' then s.reason
          when ${status} = 'cancelled' then coalesce(r.cancel_reason, 'cancelled on request') end)
      from (select coalesce(max(t.finished_at) - min(t.started_at), 0) as makespan, coalesce(sum(t.cost), 0)
        as cost, coalesce(sum(t.runtime_seconds), 0) as compute,
          coalesce(sum(t.transfer_seconds), 0) as transfer, coalesce(sum(t.queue_seconds), 0) as queue,
            coalesce(sum(t.interference_seconds), 0) as interference,
          coalesce(sum(t.overhead_seconds), 0) as overhead, coalesce(sum(t.transfer_bytes), 0) as bytes,
          (array_agg(t.failure_reason order by t.finished_at) filter (where t.status = 'failed'
            and t.latest))[1] as reason
        from task_executions t where t.execution_run_id = ${runId}) s
      where r.id = ${runId}`)
    await endDeliveries(tx, runId)
    await tx.run(sql`delete from lane_leases where execution_run_id = ${runId}`)
    // The epochs go on after a retry: what an earlier holder still commits must change nothing.
    await tx.run(sql`update site_leases set epoch = epoch + 1, holder = '' where execution_run_id = ${runId}`)
    await appendRunEvent(tx, runId, `execution.run.${status}`, { completed: run.completed, total: run.total })
    await recordAudit(tx, {
      ...{ actorId: 'service', actorType: 'service', eventType: `execution.run.${status}` },
      executionId: runId,
      outcome: status === 'failed' ? 'failed' : 'succeeded',
      summary: `run ${runId} ${status}`,
      metadata: await endDigests(tx, runKind, runId),
    })
    return { status, completed: run.completed, costBefore: run.cost }
  })

/** Adds a warning to a run's results. */
export const warnRun = async (db: Db, runId: string, message: string): Promise<void> => {
  const warning = storableJson([{ path: 'outputs', message: message.slice(0, 1_000) }])
  await db.run(sql`update execution_runs set warnings = coalesce(warnings, '[]') || ${warning}::jsonb
    where id = ${runId}`)
}
