import { z } from 'zod'
import { sql, type Db } from '../db/sql.ts'
import type { PlannedLink } from '../domains/schedule-plans/problem.ts'
import { RunExecutables } from './executables.ts'
import { taskColumns, type LoadedTask } from './journal.ts'
import { SnapshotBinding, SnapshotResource, SnapshotRuntime } from './sites.ts'

export const SnapshotRow = z.object({
  generation: z.number(),
  status: z.string(),
  acceptedAt: z.number(),
  contentVersionId: z.string(),
  onFailure: z.enum(['stop', 'finish-independent']),
  hostId: z.string(),
  effectKey: z.string(),
  runtimes: z.array(SnapshotRuntime),
  resources: z.array(SnapshotResource),
  runtimeBindings: z.array(SnapshotBinding),
  machines: z.array(z.object({ targetId: z.string(), instanceId: z.string() })).optional(),
  storageMounts: z.array(z.object({ runtimeId: z.string(), storageId: z.string(), path: z.string() })),
  executables: RunExecutables.optional(),
  networkTopology: z.looseObject({ links: z.array(z.custom<PlannedLink>()) }).optional(),
})
/** The accepted snapshot of a run, as far as its execution needs it. */
export type SiteSnapshot = z.output<typeof SnapshotRow>

/** The snapshot of a run; undefined for a run that was deleted. */
export const findSiteSnapshot = (db: Db, runId: string): Promise<SiteSnapshot | undefined> =>
  db.maybe(
    SnapshotRow,
    sql`select r.generation, r.status, extract(epoch from r.created_at)::double precision as accepted_at,
      r.content_version_id, r.on_failure, r.host_id, r.effect_key, s.runtimes, s.resources,
        s.runtime_bindings, s.storage_mounts, s.network_topology, s.executables,
        (select jsonb_agg(jsonb_build_object('targetId', m.capacity_target_id, 'instanceId', m.instance_id))
          from run_machines m where m.execution_run_id = r.id and m.released_at is null) as machines
        from execution_runs r join run_snapshots s
          on s.execution_run_id = r.id where r.id = ${runId}`,
  )

/** The snapshot of a run that exists. */
export const readSiteSnapshot = async (db: Db, runId: string): Promise<SiteSnapshot> => {
  const snapshot = await findSiteSnapshot(db, runId)
  if (snapshot === undefined) throw new Error(`run ${runId} does not exist`)
  return snapshot
}

const BoundResourceRow = z.object({ runtimeId: z.string(), resourceId: z.string(), open: z.boolean() })

/** Every pair of runtime and resource that a run uses; `open`: a task there is not over. */
export const usedPairs = (db: Db, runId: string) =>
  db.many(
    BoundResourceRow,
    sql`select runtime_id, planned_resource_id as resource_id, bool_or(status not in ('completed', 'failed',
      'cancelled')) as open
      from task_executions where execution_run_id = ${runId} and latest group by 1, 2 order by 1, 2`,
  )

/** The latest attempts of an activity and of its predecessors. */
export const loadTaskWithPredecessors = async (
  db: Db,
  runId: string,
  contentVersionId: string,
  position: number,
): Promise<{ task: LoadedTask; predecessors: LoadedTask[] }> => {
  const tasks = await db.prepared<LoadedTask>(
    'task_with_predecessors',
    `select ${taskColumns}
     from task_executions t where t.execution_run_id = $1 and t.latest and (t.activity_position = $3
       or t.activity_position in (select depends_on_position from activity_dependencies
         where workflow_version_id = $2 and activity_position = $3))
     order by t.activity_position`,
    [runId, contentVersionId, position],
  )
  const task = tasks.find((candidate) => candidate.position === position)
  if (task === undefined) throw new Error(`run ${runId} has no task at ${String(position)}`)
  return { task, predecessors: tasks.filter((candidate) => candidate !== task) }
}
