import { z } from 'zod'
import { insertRows } from '../../db/rows.ts'
import { join, raw, sql, type Db, type Sql } from '../../db/sql.ts'
import { findUsers, type Use } from '../../db/uses.ts'
import { unacceptable, unacceptableAt } from '../../refusal.ts'
import type { NewWorkflow } from './authoring.ts'
import { contentHash, versionContent, workflowIdOf, type Content } from './content.ts'
import { firstVersionIdOf, unlessBlank } from './names.ts'
import { contentArrays, detailBound } from './definitions.ts'
import type { Policy, WorkflowDefinition, WorkflowVersionDocument } from './schemas.ts'
import { startable } from './script.ts'
import { versionProblems } from './version-rules.ts'

// A big list is one parameter, as JSON text or as an array literal: a parameter per value costs ten
// times as much.
const intArray = (values: readonly number[]): string => `{${values.join(',')}}`

/**
 * Activities per statement: PostgreSQL spills the rows of a bigger one to disk, and that costs a
 * quarter more.
 */
const batch = 1_000

async function insertContent(tx: Db, versionId: string, { activities, edges, data }: Content): Promise<void> {
  for (let start = 0; start < activities.length; start += batch) {
    await insertRows(
      tx,
      sql`insert into activity_definitions`,
      `workflowVersionId position id activityTypeId externalId name kind capabilities commandSpec
        resourceRequirements serviceSpec simulationSpec policy priority metadata`,
      activities.slice(start, start + batch).map((activity, i) => ({
        ...activity,
        workflowVersionId: versionId,
        position: start + i,
        commandSpec: activity.command,
        resourceRequirements: activity.resources,
        serviceSpec: activity.service,
        simulationSpec: activity.simulation,
      })),
    )
  }
  if (edges.length > 0) {
    await tx.run(sql`
      insert into activity_dependencies (workflow_version_id, activity_position, depends_on_position)
      select ${versionId}, ends.* from unnest(${intArray(edges.map(({ to }) => to))}::integer[],
        ${intArray(edges.map(({ from }) => from))}::integer[]) as ends`)
  }
  if (data.length > 0) {
    await tx.run(sql`
      insert into workflow_data_dependencies (workflow_version_id, producer_position, consumer_position,
        logical_name, size_bytes)
      select ${versionId}, ends.producer, ends.consumer, names.name, ends.size
      from unnest(${intArray(data.map(({ from }) => from))}::integer[],
        ${intArray(data.map(({ to }) => to))}::integer[], ${intArray(data.map(({ sizeBytes }) => sizeBytes))}::bigint[])
        with ordinality as ends (producer, consumer, size, n)
      join json_array_elements_text(${JSON.stringify(data.map(({ logicalName }) => logicalName))}::json) with
        ordinality as names (name, n) using (n)`)
  }
}

/**
 * Stores a workflow and returns it as a later read does. A taken id violates
 * `workflow_definitions_pkey`, also under concurrent requests. The caller opens the transaction.
 */
export async function createWorkflow(tx: Db, workflow: NewWorkflow): Promise<WorkflowDefinition> {
  const { id, name, namespace, content, definitionHash, activityTypes, raw, metadata } = workflow
  const versionId = firstVersionIdOf(id)
  const createdAt = await tx.only(
    z.string(),
    sql`insert into workflow_definitions (id, external_id, name, namespace)
      values (${id}, ${id}, ${name}, ${namespace}) returning created_at`,
  )
  await insertRows(
    tx,
    sql`insert into activity_types`,
    'id workflowId position name',
    activityTypes.map((type, position) => ({ ...type, workflowId: id, position })),
  )
  await tx.run(sql`
    insert into workflow_versions (id, workflow_id, version, definition_hash, activity_count,
      dependency_count, raw_definition, metadata)
    values (${versionId}, ${id}, 1, ${definitionHash}, ${content.activities.length}, ${content.edges.length},
      ${JSON.stringify(raw)}::jsonb,
      ${metadata === undefined ? null : JSON.stringify(metadata)}::jsonb)`)
  await insertContent(tx, versionId, content)
  const version = {
    id: versionId,
    workflowId: id,
    version: 1,
    definitionHash,
    status: 'published',
    createdAt,
    activityCount: content.activities.length,
    dependencyCount: content.edges.length,
    dataDependencyCount: content.data.length,
    ...(metadata === undefined ? {} : { metadata }),
  }
  const arrays = content.activities.length > detailBound ? {} : contentArrays(versionId, content)
  return { id, externalId: id, name, namespace, createdAt, version: { ...version, ...arrays }, activityTypes }
}

/**
 * The content version of a workflow embedded in a plan or a run: the stored version of that id
 * where the content is the same, else a version of its own under `<version id>#<16 digits of its
 * hash>`, stored once. The store's own version is never changed.
 * @throws Refusal 422 with all problems of the document, at paths below `path`
 */
export async function embedWorkflow(
  tx: Db,
  document: WorkflowVersionDocument,
  path = 'workflow',
): Promise<string> {
  const problems = versionProblems(document, path)
  if (problems.length > 0) throw unacceptable(problems)
  const content = versionContent(document)
  const hash = contentHash(content)
  const stored = await tx.value(
    z.string(),
    sql`select definition_hash from workflow_versions where id = ${document.id}`,
  )
  if (stored === hash) return document.id
  const id = `${document.id}#${hash.slice('sha256:'.length, 'sha256:'.length + 16)}`
  for (;;) {
    const fresh = await tx.run(sql`
      insert into workflow_versions (id, workflow_id, version, definition_hash, embedded, activity_count,
        dependency_count)
      values (${id}, ${workflowIdOf(document)}, ${document.version ?? 1}, ${hash}, true,
        ${content.activities.length}, ${content.edges.length})
      on conflict (id) do nothing`)
    if (fresh > 0) await insertContent(tx, id, content)
    // A version that is found may go with its last user before it is locked.
    if (fresh > 0 || (await tx.run(sql`select 1 from workflow_versions where id = ${id} for key share`)) > 0)
      return id
  }
}

export const workflowExists = (db: Db, id: string): Promise<boolean> =>
  db.only(
    z.boolean(),
    sql`select exists (select 1 from workflow_definitions where id = ${id} or external_id = ${id}) as taken`,
  )

/**
 * The given runtime hints that match neither a runtime (by id, name or driver) nor a kind of
 * driver.
 */
export const unknownRuntimes = (db: Db, hints: readonly string[]): Promise<string[]> =>
  db.values(
    z.string(),
    sql`select hint from unnest(${[...hints]}::text[]) as hint
        where hint not in ('slurm', 'kubernetes', 'ssh', 'local', 'serverless', 'simgrid', 'cloud')
          and not exists (select 1 from runtimes where id = hint or name = hint) order by hint`,
  )

/** A use of a workflow; the target is the id of its version, or the column of a query that holds it. */
export type WorkflowUse = Use<string | Sql>

/**
 * Removes a workflow, its version and the unused embedded copies of it.
 * @returns false where there is no such workflow
 * @throws Refusal 422 while a record uses it; profiles of its activity types refuse by their
 *   constraint
 */
export async function deleteWorkflow(tx: Db, id: string, uses: readonly WorkflowUse[]): Promise<boolean> {
  const versionId = firstVersionIdOf(id)
  // A plan that is stored meanwhile keeps the version (`for key share`), and is a user after that.
  await tx.run(sql`select 1 from workflow_versions where id = ${versionId} for update`)
  const users = (await findUsers(tx, uses, versionId)).map(({ kind }) => `a ${kind}`)
  if (users.length > 0)
    throw unacceptableAt(
      'workflowId',
      `the workflow is used by ${users.join(' and ')}; delete what uses it first`,
    )
  const used = uses.map(({ ids }) => sql`exists (${ids(raw('v.id'))})`)
  await tx.run(sql`delete from workflow_versions v where v.workflow_id = ${id}
    and not (v.embedded and (${join([sql`false`, ...used], ' or ')}))`)
  return (await tx.run(sql`delete from workflow_definitions where id = ${id}`)) > 0
}

/** Removes an embedded version that nothing uses; the caller has deleted one of its users. */
export async function dropUnusedCopy(tx: Db, versionId: string, uses: readonly WorkflowUse[]): Promise<void> {
  // What is stored meanwhile keeps the version (`for key share`), and is a user after that.
  const copies = await tx.run(
    sql`select 1 from workflow_versions where id = ${versionId} and embedded for update`,
  )
  if (copies === 0 || (await findUsers(tx, uses, versionId)).length > 0) return
  await tx.run(sql`delete from workflow_versions where id = ${versionId}`)
}

// ---------------------------------------------------------------------------------------------------
// what the engine reads

/** The command of an activity, as the engine starts it. */
export interface ActivityCommand {
  position: number
  id: string
  externalId: string
  /** `entrypoint` is absent where the activity has no program to start. */
  command: {
    entrypoint?: string
    arguments?: string[]
    environment?: Record<string, string>
    workingDirectory?: string
    image?: string
    executable?: Record<string, unknown>
  }
  cpu: number
  memoryBytes: number
  /** Graphics processors. */
  gpu: number
  policy: Policy
  expectedOutputs: string[]
  stage: 'all' | 'declared'
  workspaceSeedPath: string | undefined
  /** Data dependencies whose consumer this activity is. */
  inputs: { producerPosition: number; logicalName: string; sizeBytes: number }[]
  metadata: Record<string, unknown>
}

interface CommandRow {
  position: number
  id: string
  external_id: string
  command_spec: ActivityCommand['command']
  resource_requirements: { cpu: number; memoryBytes: number; gpu?: number }
  policy: Policy
  metadata: Record<string, unknown> | null
  inputs: [number, string, number][]
}

const commandsText = `
  select a.position, a.id, a.external_id, a.command_spec, a.resource_requirements, a.policy, a.metadata,
    (select coalesce(json_agg(json_build_array(x.producer_position, x.logical_name, x.size_bytes)
      order by x.producer_position, x.logical_name), '[]')
      from workflow_data_dependencies x where x.workflow_version_id = a.workflow_version_id
        and x.consumer_position = a.position) as inputs
  from activity_definitions a where a.workflow_version_id = $1 and a.position = any($2::integer[]) order by a.position`

const promisesText = `
  select a.position, a.metadata -> 'expectedOutputs' as paths from activity_definitions a
  where a.workflow_version_id = $1 and a.metadata -> 'expectedOutputs' is not null and a.position in (
    select d.depends_on_position from activity_dependencies d
    where d.workflow_version_id = $1 and d.activity_position = any($2::integer[]))`

/**
 * The expected outputs of all that the activities at `positions` of a content version depend on, by
 * position; none for one without.
 */
export async function loadPromises(
  db: Db,
  contentVersionId: string,
  positions: readonly number[],
): Promise<Map<number, string[]>> {
  const rows = await db.prepared<{ position: number; paths: string[] }>('workflow_promises', promisesText, [
    contentVersionId,
    intArray(positions),
  ])
  return new Map(rows.map(({ position, paths }) => [position, paths]))
}

/** The commands of the activities at `positions` of a content version, by position. */
export async function loadCommands(
  db: Db,
  contentVersionId: string,
  positions: readonly number[],
): Promise<ActivityCommand[]> {
  const rows = await db.prepared<CommandRow>('workflow_commands', commandsText, [
    contentVersionId,
    intArray(positions),
  ])
  return rows.map(
    ({
      position,
      id,
      external_id: externalId,
      command_spec: { entrypoint, ...command },
      resource_requirements: { cpu, memoryBytes, gpu },
      policy,
      metadata,
      inputs,
    }) => {
      const { expectedOutputs, stage, workspaceSeedPath } = (metadata ?? {}) as {
        expectedOutputs?: string[]
        stage?: 'declared'
        workspaceSeedPath?: unknown
      }
      return {
        position,
        id,
        externalId,
        cpu,
        memoryBytes,
        gpu: gpu ?? 0,
        policy,
        command: startable({
          ...command,
          ...(entrypoint === undefined || entrypoint === '' ? {} : { entrypoint }),
        }),
        expectedOutputs: expectedOutputs ?? [],
        stage: stage ?? 'all',
        workspaceSeedPath: unlessBlank(workspaceSeedPath),
        inputs: inputs.map(([producerPosition, logicalName, sizeBytes]) => ({
          producerPosition,
          logicalName,
          sizeBytes,
        })),
        metadata: metadata ?? {},
      }
    },
  )
}
