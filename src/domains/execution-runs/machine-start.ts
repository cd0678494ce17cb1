import { z } from 'zod'
import { sql, type Db, type Sql } from '../../db/sql.ts'

/**
 * The lifecycle actions `a` of a run's plan for a target, with the run `r`. Their `earliestStart` is
 * in seconds from the start of the run.
 */
const actionsOf = (runId: string, targetId: string): Sql => sql`execution_runs r
  join schedule_plans p on p.id = r.schedule_plan_id
  cross join jsonb_to_recordset(coalesce(p.lifecycle_actions, '[]'))
    as a("capacityTargetId" text, "cloudInstanceId" text, action text, "earliestStart" double precision)
  where r.id = ${runId} and a."capacityTargetId" = ${targetId}`

const at = sql`coalesce(a."earliestStart", 0)`
/**
 * Whether the time of an action has come. A run that began later than now began before the clock
 * was set back: its time has come.
 */
const isDue = sql`(r.started_at > clock_timestamp()
  or extract(epoch from clock_timestamp() - r.started_at) >= ${at})`

/**
 * Whether the plan's lifecycle action `provision` (or `start`) of a target has come to its earliest
 * start; undefined where the plan has none. Then a machine is asked for when a task can start there.
 */
export const machineStartDue = (db: Db, runId: string, targetId: string): Promise<boolean | undefined> =>
  db.only(
    z.boolean().optional(),
    sql`select bool_or(${isDue}) as due from ${actionsOf(runId, targetId)}
        and a.action in ('provision', 'start')`,
  )

const RestsRow = z.object({ stops: z.number(), dueStops: z.number(), done: z.number(), wakes: z.boolean() })

/** The planned stops and starts of a run's machine of a target. */
export interface MachineRests {
  /** A `stop` of the plan has come to its earliest start and was not asked for. */
  isDue: boolean
  /** The plan has a `stop` that was not asked for, now or later. */
  isPlanned: boolean
  /** A `start` behind the last `stop` that was asked for has come to its earliest start. */
  wakes: boolean
}

/** Reads the stops and starts that the plan of a run has for its machine of a target. */
export const machineRests = async (db: Db, runId: string, targetId: string): Promise<MachineRests> => {
  const { stops, dueStops, done, wakes } = await db.one(
    RestsRow,
    sql`with actions as materialized (
        select a.action, ${at} as at, ${isDue} as due from ${actionsOf(runId, targetId)}
          and a.action in ('stop', 'start')
      ), asked as (
        select count(*) as done from cloud_operations where execution_run_id = ${runId}
          and capacity_target_id = ${targetId} and kind = 'stop'
      )
      select asked.done,
        (select count(*) from actions where action = 'stop') as stops,
        (select count(*) from actions where action = 'stop' and due) as due_stops,
        exists (select from actions where action = 'start' and due and at > (
          select at from actions where action = 'stop' order by at offset greatest(asked.done - 1, 0) limit 1)) as wakes
      from asked`,
  )
  return { isDue: done < dueStops, isPlanned: done < stops, wakes }
}

/**
 * A stopped machine that no run uses, where the plan has a `start` for the target: the instance that
 * it names, else any that was made for a run. It is locked.
 */
export const machineToStart = (tx: Db, runId: string, targetId: string) =>
  tx.value(
    z.string(),
    sql`select i.id from cloud_instances i where i.capacity_target_id = ${targetId} and i.status = 'stopped'
      and not i.machine_gone and exists (select from ${actionsOf(runId, targetId)} and a.action = 'start'
        and (a."cloudInstanceId" = i.id
          or coalesce(a."cloudInstanceId", '') = '' and i.execution_run_id is not null))
      and not exists (select from run_machines m where m.instance_id = i.id and m.released_at is null)
      and not exists (select from cloud_operations o where o.instance_id = i.id and o.status in ('queued', 'running'))
      order by i.created_at, i.id limit 1 for update of i`,
  )
