import { z } from 'zod'
import { fields, jsonObject } from '../../db/projection.ts'
import type { Db } from '../../db/sql.ts'
import { Id, JsonObject, Paid, PlanTime } from '../../http/schema.ts'
import { DataObjectInstance, TaskExecution } from './schemas.ts'
import { outputJson, taskJson } from './store.ts'

/** The limit of files and inputs in one answer. The route of the outputs has pages. */
const mostFiles = 200

export const ActivityDetail = z
  .strictObject({
    executionRunId: Id,
    activityId: z.string(),
    externalId: z.string(),
    name: z.string(),
    type: z.string(),
    status: z.string().describe('of the newest attempt'),
    attempts: z.array(TaskExecution).describe('in order, the newest last'),
    planned: z
      .strictObject({
        resourceId: z.string(),
        coreId: z.string(),
        slotId: z.string(),
        orderOnResource: z.number().describe('place in the order of its lane'),
        readyAt: PlanTime,
        startAt: PlanTime,
        finishAt: PlanTime,
        runtimeSeconds: z.number(),
        transferSeconds: z.number(),
        cost: Paid,
        durationSource: z.string().optional(),
      })
      .describe('what the plan promises'),
    requested: JsonObject.describe("the activity's resource requirements"),
    command: JsonObject.describe("the activity's command, as its workflow version has it"),
    policy: JsonObject,
    dependsOn: z.array(z.string()).describe('ids of the activities that have to complete before'),
    inputs: z
      .array(z.strictObject({ activityId: z.string(), logicalName: z.string(), sizeBytes: z.number() }))
      .describe('data of other activities, by producer'),
    outputs: z
      .array(DataObjectInstance)
      .describe(
        `files of the newest attempt that completed, ${String(mostFiles)} at most; …/outputs/ has all`,
      ),
    outputCount: z.number(),
  })
  .meta({ id: 'ActivityDetail' })

const plannedJson = jsonObject({
  ...fields('a', 'resourceId coreId slotId orderOnResource'),
  readyAt: 'a.predicted_ready_at',
  startAt: 'a.predicted_start_at',
  finishAt: 'a.predicted_finish_at',
  runtimeSeconds: 'a.predicted_runtime_seconds',
  transferSeconds: 'a.predicted_transfer_seconds',
  cost: 'a.predicted_cost',
  durationSource: 'a.duration_source',
})
const nameOf = (position: string): string =>
  '(select x.activity_id from task_executions x where x.execution_run_id = r.id and ' +
  `x.activity_position = ${position} and x.latest)`
const outputsOf = `data_object_instances o where o.execution_run_id = r.id and o.producer_activity_id = l.activity_id`

const detailText = `select ${jsonObject({
  executionRunId: 'r.id',
  ...fields('l', 'activityId externalId status'),
  name: 'd.name',
  type: 'd.activity_type_id',
  attempts:
    `(select json_agg(${taskJson} order by t.attempt) from task_executions t where ` +
    't.execution_run_id = r.id and t.activity_position = $2)',
  planned: plannedJson,
  requested: 'd.resource_requirements',
  command: 'd.command_spec',
  policy: 'd.policy',
  dependsOn: `(select coalesce(json_agg(${nameOf('p.depends_on_position')}
    order by p.depends_on_position), '[]') from activity_dependencies p
    where p.workflow_version_id = r.content_version_id and p.activity_position = $2)`,
  inputs: `(select coalesce(json_agg(json_build_object('activityId', ${nameOf('w.producer_position')},
    'logicalName', w.logical_name, 'sizeBytes', w.size_bytes)
      order by w.producer_position, w.logical_name), '[]')
    from (select * from workflow_data_dependencies where workflow_version_id = r.content_version_id
      and consumer_position = $2
        order by producer_position, logical_name limit ${String(mostFiles)}) w)`,
  outputs: `(select coalesce(json_agg(${outputJson} order by o.relative_path, o.id), '[]')
    from (select o.* from ${outputsOf} order by o.relative_path, o.id limit ${String(mostFiles)}) o)`,
  outputCount: `(select count(*) from ${outputsOf})`,
})} as body from execution_runs r
  join task_executions l on l.execution_run_id = r.id and l.activity_position = $2 and l.latest
  join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = $2
  join schedule_plan_assignments a on a.schedule_plan_id = r.schedule_plan_id and a.activity_position = $2
  where r.id = $1`

/** One activity of a run with all its attempts; undefined where the run has no such position. */
export const readActivityDetail = async (
  db: Db,
  runId: string,
  position: number,
): Promise<z.output<typeof ActivityDetail> | undefined> => {
  const [row] = await db.prepared<{ body: z.output<typeof ActivityDetail> }>('activity_detail', detailText, [
    runId,
    position,
  ])
  return row?.body
}
