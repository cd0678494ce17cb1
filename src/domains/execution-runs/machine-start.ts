import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'

const DueRow = z.object({ due: z.boolean().optional() })

/**
 * Whether the plan's lifecycle action `provision` (or `start`) of a target has come to its earliest
 * start, in seconds from the start of the run; undefined where the plan has none. Then a machine is
 * asked for when a task can start there. A run that began later than now began before the clock was
 * set back: its time has come.
 */
export const machineStartDue = async (
  db: Db,
  runId: string,
  targetId: string,
): Promise<boolean | undefined> =>
  (
    await db.one(
      DueRow,
      sql`select bool_or(r.started_at > clock_timestamp()
          or extract(epoch from clock_timestamp() - r.started_at) >= coalesce(a."earliestStart", 0)) as due
        from execution_runs r join schedule_plans p on p.id = r.schedule_plan_id
        cross join jsonb_to_recordset(coalesce(p.lifecycle_actions, '[]'))
          as a("capacityTargetId" text, action text, "earliestStart" double precision)
        where r.id = ${runId} and a."capacityTargetId" = ${targetId} and a.action in ('provision', 'start')`,
    )
  ).due
