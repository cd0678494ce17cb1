import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import { sql, where, type Db } from '../../db/sql.ts'
import { unacceptable, type Problem, unacceptableAt } from '../../refusal.ts'
import { isLost, type LostPlace } from '../artifacts/store.ts'
import type { PromotedData } from '../storages/promoted.ts'

/** The promoted data; `digest` of a directory is that of its sorted lines `digest path`. */
type NewData = Parameters<PromotedData['record']>[1]

/** References to missing records. */
const referenceProblems = async (
  tx: Db,
  { workflowVersionId, runId, activityId }: NewData,
): Promise<Problem[]> => {
  const problems: Problem[] = []
  const none = (path: string, id: string, what: string): void =>
    void problems.push({ path, message: `${JSON.stringify(id)} is no ${what}` })
  if (
    workflowVersionId !== undefined &&
    (await tx.run(sql`select 1 from workflow_versions where id = ${workflowVersionId}`)) === 0
  )
    none('workflowVersionId', workflowVersionId, 'workflow version; import its workflow first')
  if (
    runId !== undefined &&
    (await tx.run(sql`select 1 from execution_runs where id = ${runId} for key share`)) === 0
  )
    none('runId', runId, 'run')
  if (activityId !== undefined && runId === undefined)
    problems.push({
      path: 'activityId',
      message: 'stands without runId; name the run whose activity made the data',
    })
  else if (
    activityId !== undefined &&
    (await tx.run(
      sql`select 1 from task_executions where execution_run_id = ${runId} and activity_id = ${activityId} limit 1`,
    )) === 0
  )
    none('activityId', activityId, 'activity of the run')
  return problems
}

/**
 * Records data at a place as object, instance and location, in one transaction. A record of the same
 * bytes at the same place that has all that is asked for is the answer: its id, and `isNew` false.
 * @throws Refusal 422 for references to missing records and a taken id
 */
const record = (db: Db, given: NewData): Promise<{ id: string; isNew: boolean }> =>
  db.transaction(async (tx) => {
    // The lock orders two promotions of one entry: the second one sees the record of the first.
    await tx.run(sql`select pg_advisory_xact_lock(hashtextextended(${`data ${given.uri}`}, 0))`)
    const problems = await referenceProblems(tx, given)
    if (problems.length > 0) throw unacceptable(problems)
    const { workflowVersionId, runId, activityId, name, digest, sizeBytes, storageId, uri } = given
    const known = await tx.value(
      z.string(),
      sql`select o.id from data_locations l join data_object_instances i on i.id = l.data_object_instance_id
          join data_objects o on o.id = i.data_object_id
        ${where(
          sql`l.uri = ${uri} and l.storage_resource_id is not null and l.status = 'available'`,
          sql`i.checksum = ${digest}`,
          given.id !== undefined && sql`o.id = ${given.id}`,
          workflowVersionId !== undefined && sql`o.workflow_version_id = ${workflowVersionId}`,
          runId !== undefined && sql`i.execution_run_id = ${runId}`,
          activityId !== undefined && sql`i.producer_activity_id = ${activityId}`,
        )}
        order by i.created_at, i.id limit 1`,
    )
    if (known !== undefined) return { id: known, isNew: false }
    const id = given.id ?? `data-${randomUUID()}`
    const added = await tx.run(
      sql`insert into data_objects (id, workflow_version_id, producer_activity_id, logical_name,
        relative_path, declared)
          values (${id}, ${workflowVersionId}, ${activityId}, ${name}, ${name}, false) on conflict
            on constraint data_objects_pkey do nothing`,
    )
    if (added === 0) throw unacceptableAt('id', `${JSON.stringify(id)} is taken; choose another id`)
    await tx.run(
      sql`insert into data_object_instances (id, data_object_id, execution_run_id, producer_activity_id,
        relative_path, size_bytes, checksum, media_type, discovered)
          values (${`${id}-instance`}, ${id}, ${runId}, ${activityId}, ${name}, ${sizeBytes}, ${digest},
            ${given.mediaType}, false)`,
    )
    await tx.run(
      sql`insert into data_locations (id, data_object_instance_id, storage_resource_id, execution_run_id, uri,
        status, available_at, verified_at)
          values (${`${id}-location`}, ${`${id}-instance`}, ${storageId}, ${runId}, ${uri}, 'available',
            clock_timestamp(), clock_timestamp())`,
    )
    return { id, isNew: true }
  })

/** Ids of the objects whose bytes are stored at a place of a storage. */
const at = (db: Db, uri: string): Promise<string[]> =>
  db.values(
    z.string(),
    sql`select distinct i.data_object_id as id from data_locations l join data_object_instances i
      on i.id = l.data_object_instance_id
        where l.uri = ${uri} and l.storage_resource_id is not null and l.status = 'available' order by 1 limit 100`,
  )

const places = (db: Db, place: LostPlace): Promise<string[]> =>
  db.values(
    z.string(),
    sql`select distinct uri from data_locations where ${isLost(place)} and storage_resource_id is not null
        and status = 'available'`,
  )

/** Records that the bytes at a place of a storage are gone. Directories have no media type. */
const gone = async (db: Db, place: LostPlace): Promise<void> => {
  await db.run(
    sql`update data_locations set status = 'deleted' where ${isLost(place)} and storage_resource_id is not null
      and status = 'available' and not exists (select from data_object_instances i
        where i.id = data_object_instance_id and (i.checksum = ${place.digest ?? null}
          or ${place.fileOnly ?? false} and i.media_type is null))`,
  )
}

export const promotedData: PromotedData = { record, at, places, gone }
