import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { taskExecutionId } from '../../executor/names.ts'
import { runStates } from './schemas.ts'
import { reopenOperation } from '../../operations/records.ts'
import { appendRunEvent, runKind } from './operation.ts'

const Steered = z.object({
  status: z.enum(runStates),
  mode: z.string(),
  generation: z.number(),
  paused: z.boolean(),
})
export type Steered = z.output<typeof Steered>

const locked = (tx: Db, runId: string): Promise<Steered | undefined> =>
  tx.maybe(
    Steered,
    sql`select status, mode, generation, paused from execution_runs where id = ${runId} for update`,
  )

/**
 * Pauses an open run (no new task starts, running tasks go on) or resumes it. A repeated request
 * changes nothing. The executor reads the flag with every commit.
 * @returns the run before the change; undefined for an unknown one
 */
export const pauseRun = (db: Db, runId: string, paused: boolean): Promise<Steered | undefined> =>
  db.transaction(async (tx) => {
    const run = await locked(tx, runId)
    if (run === undefined || (run.status !== 'created' && run.status !== 'running') || run.paused === paused)
      return run
    await tx.run(sql`update execution_runs set paused = ${paused} where id = ${runId}`)
    await appendRunEvent(tx, runId, paused ? 'execution.run.paused' : 'execution.run.resumed', {})
    return run
  })

const Left = z.object({ id: z.string(), activityId: z.string(), attempt: z.number(), named: z.boolean() })

/**
 * Reopens a failed run as a new generation with fresh patience: completed activities stay, failed
 * and ended ones get a new attempt, and unstarted ones wait as before. This is the only transition
 * out of `failed`.
 * @returns the run before the change; undefined for an unknown one
 */
export const retryRun = (db: Db, runId: string): Promise<Steered | undefined> =>
  db.transaction(async (tx) => {
    const run = await locked(tx, runId)
    if (run?.status !== 'failed') return run
    const left = await tx.many(
      Left,
      // Its site may have ended what was intended ahead: that name starts nothing any more.
      sql`select id, activity_id, attempt, handle_name is not null or ahead as named from task_executions
        where execution_run_id = ${runId} and latest and status <> 'completed'`,
    )
    const generation = run.generation + 1
    const untouched = left.filter(({ named }) => !named).map(({ id }) => id)
    await tx.run(sql`update task_executions set status = 'blocked', failure_reason = null, failure_class =
      null, finished_at = null, ready_at = null, queued_at = null, not_before = null, user_attempts = 1,
      generation = ${generation}, metadata =
        nullif(metadata - 'queueReason' - 'waitsFor' - 'silentSince' - 'silentFor', '{}')
      where id = any(${untouched}::text[])`)
    const again = left.filter(({ named }) => named)
    await tx.run(sql`insert into task_executions (id, execution_run_id, activity_position, plan_assignment_id,
      activity_id, external_id, planned_resource_id, runtime_id, site, connection_id, attempt,
        generation, core_ids, slot_id, order_on_resource, walltime_extensions)
      select g.id, t.execution_run_id, t.activity_position, t.plan_assignment_id, t.activity_id,
        t.external_id, t.planned_resource_id, t.runtime_id, t.site, t.connection_id, t.attempt + 1,
        ${generation}, t.core_ids, t.slot_id, t.order_on_resource, t.walltime_extensions
      from unnest(${again.map(({ activityId, attempt }) => taskExecutionId(runId, activityId, attempt + 1))}::text[],
        ${again.map(({ id }) => id)}::text[]) as g (id, before)
      join task_executions t on t.id = g.before`)
    await tx.run(sql`update task_executions set latest = false, ahead = false
      where id = any(${again.map(({ id }) => id)}::text[])`)
    await tx.run(sql`update execution_runs set failed_activity_count = 0, paused = false where id = ${runId}`)
    await reopenOperation(tx, runKind, { id: runId, generation: run.generation }, { activities: left.length })
    return run
  })
