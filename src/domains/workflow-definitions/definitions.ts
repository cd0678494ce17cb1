import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { fields, jsonObject } from '../../db/projection.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import type { Content } from './content.ts'
import type { ExportedWorkflow } from './export.ts'
import {
  RawSpec,
  type Activity,
  type ActivityType,
  type WorkflowDefinition,
  type WorkflowVersion,
} from './schemas.ts'

/** Above this many activities the detail holds counts instead of arrays. */
export const detailBound = 10_000
/** The same for the items of lists. */
const itemBound = 1_000
/** The limit of activities over all items of one list. Items beyond it hold counts only. */
const listBound = 20_000
/** The same for their characters. */
const listCharacters = 33_554_432

const Row = z.object({
  id: z.string(),
  externalId: z.string(),
  name: z.string(),
  namespace: z.string(),
  createdAt: z.string(),
  versionId: z.string(),
  version: z.number(),
  definitionHash: z.string(),
  status: z.string(),
  versionCreatedAt: z.string(),
  activityCount: z.number(),
  dependencyCount: z.number(),
  dataDependencyCount: z.number(),
  metadata: z.record(z.string(), z.unknown()).optional(),
  // As they were taken: the bounds of their numbers may have been others then.
  activityTypes: z.custom<ActivityType[]>(),
})

const typeJson = raw(
  jsonObject({
    ...fields('t', 'id name'),
    application: "nullif(t.application, '')",
    defaultImage: "nullif(t.default_image, '')",
    ...fields('t', 'cpuIntensity memoryIntensity ioIntensity networkIntensity metadata'),
  }),
)

const columns = sql`
  d.id, d.external_id, d.name, d.namespace, d.created_at, v.id as version_id, v.version, v.definition_hash,
    v.status, v.created_at as version_created_at,
  v.activity_count, v.dependency_count, v.metadata,
  (select count(*) from workflow_data_dependencies where workflow_version_id = v.id) as data_dependency_count,
  (select coalesce(json_agg(${typeJson} order by t.position), '[]') from activity_types t
    where t.workflow_id = d.id) as activity_types`

const definitions = sql`workflow_definitions d join workflow_versions v on v.workflow_id = d.id and not v.embedded`

const definitionOf = (row: z.output<typeof Row>, content: Content | undefined): WorkflowDefinition => ({
  id: row.id,
  externalId: row.externalId,
  name: row.name,
  namespace: row.namespace,
  createdAt: row.createdAt,
  version: {
    id: row.versionId,
    workflowId: row.id,
    version: row.version,
    definitionHash: row.definitionHash,
    status: row.status,
    createdAt: row.versionCreatedAt,
    activityCount: row.activityCount,
    dependencyCount: row.dependencyCount,
    dataDependencyCount: row.dataDependencyCount,
    ...(row.metadata === undefined ? {} : { metadata: row.metadata }),
    ...(content === undefined ? {} : contentArrays(row.versionId, content)),
  },
  activityTypes: row.activityTypes,
})

/** The arrays of an answer from content by position. */
export const contentArrays = (
  versionId: string,
  { activities, edges, data }: Content,
): Pick<WorkflowVersion, 'activities' | 'dependencies' | 'dataDependencies'> => {
  const idAt = (position: number): string => activities[position]?.id ?? ''
  return {
    activities: activities.map(({ id, ...rest }) => ({ id, workflowVersionId: versionId, ...rest })),
    dependencies: edges.map(({ from, to }) => ({
      activityId: idAt(to),
      dependsOnActivityId: idAt(from),
      type: 'control' as const,
    })),
    dataDependencies: data.map(({ from, to, logicalName, sizeBytes }) => ({
      producerActivityId: idAt(from),
      consumerActivityId: idAt(to),
      logicalName,
      sizeBytes,
    })),
  }
}

// As it was taken: the bounds of its numbers may have been others then.
type ContentActivity = Omit<Activity, 'workflowVersionId'>
const ContentRow = z.object({
  versionId: z.string(),
  activities: z.custom<ContentActivity[]>(),
  edges: z.array(z.tuple([z.number(), z.number()])),
  data: z.array(z.tuple([z.number(), z.number(), z.string(), z.number()])),
})

// Members that are absent in the row are absent in the answer. Values are not changed, not even
// nulls inside them.
const activityJson = sql`
  jsonb_build_object('id', a.id, 'activityTypeId', a.activity_type_id, 'externalId', a.external_id, 'name',
    a.name, 'kind', a.kind, 'capabilities', a.capabilities,
    'command', a.command_spec, 'resources', a.resource_requirements, 'policy', a.policy, 'priority', a.priority)
  || case when a.service_spec is null then '{}' else jsonb_build_object('service', a.service_spec) end
  || case when a.simulation_spec is null then '{}' else jsonb_build_object('simulation', a.simulation_spec) end
  || case when a.metadata is null then '{}' else jsonb_build_object('metadata', a.metadata) end`

/** The contents of the given versions in full. */
async function readContents(db: Db, versionIds: readonly string[]): Promise<Map<string, Content>> {
  if (versionIds.length === 0) return new Map()
  const rows = await db.many(
    ContentRow,
    sql`select v.id as version_id,
      (select coalesce(jsonb_agg(${activityJson} order by a.position), '[]') from activity_definitions a
        where a.workflow_version_id = v.id) as activities,
      (select coalesce(json_agg(json_build_array(e.depends_on_position, e.activity_position)
        order by e.activity_position, e.depends_on_position), '[]')
        from activity_dependencies e where e.workflow_version_id = v.id) as edges,
      (select coalesce(json_agg(json_build_array(x.producer_position, x.consumer_position, x.logical_name, x.size_bytes)
          order by x.consumer_position, x.producer_position, x.logical_name), '[]')
        from workflow_data_dependencies x where x.workflow_version_id = v.id) as data
      from workflow_versions v where v.id = any(${[...versionIds]}::text[])`,
  )
  return new Map(
    rows.map(({ versionId, activities, edges, data }) => [
      versionId,
      {
        activities,
        edges: edges.map(([from, to]) => ({ from, to })),
        data: data.map(([from, to, logicalName, sizeBytes]) => ({ from, to, logicalName, sizeBytes })),
      },
    ]),
  )
}

/** About the characters of a version's arrays in an answer. */
const sizeOfArrays = sql`
  128::bigint * v.dependency_count
  + (select coalesce(sum(512 + octet_length(concat(a.name, a.command_spec, a.simulation_spec, a.service_spec,
      a.metadata))), 0) from activity_definitions a where a.workflow_version_id = v.id)
  + (select coalesce(sum(256 + octet_length(x.logical_name)), 0) from workflow_data_dependencies x
      where x.workflow_version_id = v.id)`

const SizeRow = z.object({ id: z.string(), size: z.number() })

/** The versions, in the order given, whose arrays together have at most `listCharacters` characters. */
async function withinCharacters(db: Db, versionIds: readonly string[]): Promise<string[]> {
  const rows = await db.many(
    SizeRow,
    sql`select v.id, ${sizeOfArrays} as size from unnest(${[...versionIds]}::text[]) with ordinality asked (id, place)
      join workflow_versions v using (id) order by asked.place`,
  )
  let room = listCharacters
  const kept: string[] = []
  for (const { id, size } of rows)
    if (size <= room) {
      room -= size
      kept.push(id)
    }
  return kept
}

/**
 * Definitions by namespace, name and id; `limit` rows from `offset` on. Big ones, and those beyond
 * 20,000 activities or 32 Mi characters in all, carry no arrays.
 */
export async function listWorkflows(db: Db, page: { limit: number; offset: number }) {
  const { rows, total } = await readPage(db, Row, {
    select: columns,
    from: definitions,
    order: sql`d.namespace collate "C", d.name collate "C", d.id`,
    page,
    counted: sql`workflow_definitions`,
  })
  let listed = 0
  const small = rows
    .filter(({ activityCount }) => activityCount <= itemBound && (listed += activityCount) <= listBound)
    .map(({ versionId }) => versionId)
  const contents = await readContents(db, await withinCharacters(db, small))
  return { rows: rows.map((row) => definitionOf(row, contents.get(row.versionId))), total }
}

const rowOf = (db: Db, id: string): Promise<z.output<typeof Row> | undefined> =>
  db.maybe(Row, sql`select ${columns} from ${definitions} where d.id = ${id}`)

/** One definition, above 10,000 activities without its arrays. */
export async function findWorkflow(db: Db, id: string): Promise<WorkflowDefinition | undefined> {
  const row = await rowOf(db, id)
  if (row === undefined) return undefined
  const contents = await readContents(db, row.activityCount > detailBound ? [] : [row.versionId])
  return definitionOf(row, contents.get(row.versionId))
}

/** A definition with everything that its author wrote, of any size. */
export async function findExport(db: Db, id: string): Promise<ExportedWorkflow | undefined> {
  const row = await rowOf(db, id)
  if (row === undefined) return undefined
  const [contents, raw] = await Promise.all([
    readContents(db, [row.versionId]),
    db.only(
      RawSpec.default({}),
      sql`select raw_definition as raw from workflow_versions where id = ${row.versionId}`,
    ),
  ])
  const content = contents.get(row.versionId)
  return content === undefined
    ? undefined
    : { id: row.id, name: row.name, namespace: row.namespace, raw, content, activityTypes: row.activityTypes }
}

const VersionRow = z.object({ id: z.string(), activityCount: z.number() })

/**
 * A page of a workflow's activities by position; undefined when there is no such workflow. `total`
 * is exact.
 */
export async function listActivities(
  db: Db,
  workflowId: string,
  { limit, offset }: { limit: number; offset: number },
): Promise<{ rows: Activity[]; total: number } | undefined> {
  const version = await db.maybe(
    VersionRow,
    sql`select v.id, v.activity_count from workflow_definitions d join workflow_versions v
      on v.workflow_id = d.id and not v.embedded where d.id = ${workflowId}`,
  )
  if (version === undefined) return undefined
  const activities = await db.values(
    z.custom<ContentActivity>(),
    sql`select ${activityJson} as activity from activity_definitions a
      where a.workflow_version_id = ${version.id} and a.position >= ${offset}::bigint order by a.position
        limit ${limit}`,
  )
  return {
    total: version.activityCount,
    rows: activities.map(({ id, ...rest }) => ({ id, workflowVersionId: version.id, ...rest })),
  }
}
