import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'

const DurationsRow = z.object({
  targetId: z.string(),
  provision: z.number().optional(),
  waitForSsh: z.number().optional(),
  configure: z.number().optional(),
  pickUp: z.number().optional(),
  stop: z.number().optional(),
  perTask: z.number().optional(),
})

/** Seconds of a target's machines; absent where none was measured. */
export type MeasuredDurations = Omit<z.output<typeof DurationsRow>, 'targetId'>

/**
 * What is late in a run by more than this waited for another run or for a person, and is no time of
 * a machine.
 */
const mostLateSeconds = 10

/**
 * The medians of the last five operations and runs of each target:
 * - `provision`: from the moment at which a plan has the machine asked for (for a person: at which
 *   it was asked for) until it runs
 * - `waitForSsh`, `configure`: from there until it takes a login, and until it is ready
 * - `pickUp`: from there until the run works on it
 * - `stop`: the time of an end
 * - `perTask`: for which a task holds its lane beside its runtime and the transfers to it: files
 *   are brought off the machine before a task is over, and the next one is started
 */
export const measuredDurations = async (
  db: Db,
  targetIds: readonly string[],
): Promise<Map<string, MeasuredDurations>> => {
  if (targetIds.length === 0) return new Map()
  const targets = [...targetIds]
  const rows = await db.many(
    DurationsRow,
    sql`with last as (
        select o.capacity_target_id as target_id, o.id, o.kind, o.started_at, o.finished_at, o.created_at,
          o.instance_id, o.execution_run_id,
          row_number() over (partition by o.capacity_target_id, o.kind order by o.finished_at desc, o.id) as place
        from cloud_operations o where o.capacity_target_id = any(${targets}::text[])
          and o.status = 'completed' and o.kind in ('provision', 'destroy') and o.finished_at > o.started_at
      ), uses as (
        select * from machine_uses(
          (select array_agg(l.instance_id::text) from last l where l.place <= 5 and l.kind = 'provision'))
      ), timed as (
        select l.target_id, l.kind, l.finished_at, l.started_at,
          case when u.due_at is not null then least(l.created_at,
            greatest(u.due_at, l.created_at - make_interval(secs => ${mostLateSeconds}))) end as due_at,
          (select e.occurred_at from operation_events e where e.kind = 'cloud-operation'
            and e.operation_id = l.id and e.event_type = 'cloud.ssh.waiting' order by e.sequence limit 1) as running_at,
          (select e.occurred_at from operation_events e where e.kind = 'cloud-operation'
            and e.operation_id = l.id and e.event_type = 'cloud.ssh.ready' order by e.sequence limit 1) as login_at,
          case when u.used_at >= l.finished_at then u.used_at end as used_at
        from last l left join uses u on u.instance_id = l.instance_id and u.run_id = l.execution_run_id
        where l.place <= 5
      )
      select target_id,
        percentile_cont(0.5) within group (order by extract(epoch from running_at - coalesce(due_at, started_at)))
          filter (where kind = 'provision') as provision,
        percentile_cont(0.5) within group (order by extract(epoch from login_at - running_at))
          filter (where kind = 'provision') as wait_for_ssh,
        percentile_cont(0.5) within group (order by extract(epoch from finished_at - login_at))
          filter (where kind = 'provision') as configure,
        percentile_cont(0.5) within group (order by extract(epoch from used_at - finished_at))
          filter (where kind = 'provision' and used_at is not null) as pick_up,
        percentile_cont(0.5) within group (order by extract(epoch from finished_at - started_at))
          filter (where kind = 'destroy') as stop,
        (select o.seconds from machine_task_overheads(${targets}::text[]) o
          where o.target_id = timed.target_id::text) as per_task
      from timed group by 1`,
  )
  return new Map(rows.map(({ targetId, ...durations }) => [targetId, durations]))
}
