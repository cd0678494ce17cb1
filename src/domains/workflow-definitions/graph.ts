import type { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { unacceptableAt } from '../../refusal.ts'
import { activityIdOf, unlessBlank } from './names.ts'
import type { Policy, Simulation } from './schemas.ts'

/** One activity for planners and engine; `position` is its index. */
export interface GraphActivity {
  position: number
  id: string
  externalId: string
  name: string
  typeId: string
  kind: string
  capabilities: readonly string[]
  /** Cores. */
  cpu: number
  memoryBytes: number
  resourceSelector?: string | undefined
  /** Driver, runtime id or runtime name that the author requested. */
  runtimeHint?: string | undefined
  priority: number
  simulation?: z.output<typeof Simulation>
  baseRuntimeSeconds?: number
  policy: Policy
}

/** A control edge by position; `bytes` is the sum of the data dependencies from `from` to `to`. */
export interface GraphEdge {
  from: number
  to: number
  bytes: number
}

export interface WorkflowGraph {
  /** The content version. */
  versionId: string
  workflowId: string
  activities: GraphActivity[]
  edges: GraphEdge[]
  dataDependencies: { from: number; to: number; logicalName: string; sizeBytes: number }[]
}

type ActivityTuple = [
  id: string,
  externalId: string,
  name: string,
  typeId: string,
  kind: string,
  capabilities: string[],
  cpu: number,
  memoryBytes: number,
  selector: string | null,
  hint: string | null,
  priority: number,
  simulation: z.output<typeof Simulation> | null,
  base: number | null,
  policy: Policy,
]

// One value per list: JSON.parse parses a column of 100,000 rows in a tenth of the time that rows
// take.
const graphText = `
  select v.workflow_id,
    (select coalesce(json_agg(json_build_array(a.id, a.external_id, a.name, a.activity_type_id, a.kind,
      a.capabilities, a.resource_requirements->'cpu',
        a.resource_requirements->'memoryBytes', a.metadata->'resourceSelector', a.metadata->'runtime',
          a.priority, a.simulation_spec,
        case when jsonb_typeof(a.metadata->'baseRuntimeSeconds') = 'number' then
          a.metadata->'baseRuntimeSeconds' end, a.policy) order by a.position), '[]')
      from activity_definitions a where a.workflow_version_id = v.id) as activities,
    (select coalesce(json_agg(e.depends_on_position order by e.activity_position, e.depends_on_position),
      '[]') from activity_dependencies e where e.workflow_version_id = v.id) as origins,
    (select coalesce(json_agg(e.activity_position order by e.activity_position, e.depends_on_position), '[]')
      from activity_dependencies e where e.workflow_version_id = v.id) as targets,
    (select coalesce(json_agg(json_build_array(x.producer_position, x.consumer_position, x.logical_name, x.size_bytes)
        order by x.consumer_position, x.producer_position, x.logical_name), '[]')
      from workflow_data_dependencies x where x.workflow_version_id = v.id) as data
  from workflow_versions v where v.id = $1`

interface GraphRow {
  workflow_id: string
  activities: ActivityTuple[]
  origins: number[]
  targets: number[]
  data: [number, number, string, number][]
}

/** The graph of a content version, in one round trip; undefined where there is no such version. */
export async function loadGraph(db: Db, contentVersionId: string): Promise<WorkflowGraph | undefined> {
  const [row] = await db.prepared<GraphRow>('workflow_graph', graphText, [contentVersionId])
  if (row === undefined) return undefined
  const count = row.activities.length
  const bytes = new Map<number, number>()
  for (const [from, to, , size] of row.data)
    bytes.set(to * count + from, (bytes.get(to * count + from) ?? 0) + size)
  return {
    versionId: contentVersionId,
    workflowId: row.workflow_id,
    activities: row.activities.map(
      (
        [
          id,
          externalId,
          name,
          typeId,
          kind,
          capabilities,
          cpu,
          memoryBytes,
          selector,
          hint,
          priority,
          simulation,
          base,
          policy,
        ],
        position,
      ) => ({
        position,
        id,
        externalId,
        name,
        typeId,
        kind,
        capabilities,
        cpu,
        memoryBytes,
        priority,
        policy,
        resourceSelector: unlessBlank(selector),
        runtimeHint: unlessBlank(hint),
        ...(simulation === null ? {} : { simulation }),
        ...(base === null ? {} : { baseRuntimeSeconds: base }),
      }),
    ),
    edges: row.targets.map((to, i) => {
      const from = row.origins[i] ?? 0
      return { from, to, bytes: bytes.get(to * count + from) ?? 0 }
    }),
    dataDependencies: row.data.map(([from, to, logicalName, sizeBytes]) => ({
      from,
      to,
      logicalName,
      sizeBytes,
    })),
  }
}

/**
 * Finds activities by the names that callers write: the exact id, else the externalId, else the id
 * with or without the workflow's id as prefix (older and newer documents use different forms).
 * Undefined for an unknown one.
 * @throws Refusal 422 at `path` where several activities have that externalId
 */
export function activityResolver({
  workflowId,
  activities,
}: {
  workflowId: string
  activities: readonly { id: string; externalId: string; position: number }[]
}): (given: string, path: string) => number | undefined {
  const byId = new Map(activities.map(({ id, position }) => [id, position]))
  const byExternalId = new Map<string, number | 'several'>()
  for (const { externalId, position } of activities)
    byExternalId.set(externalId, byExternalId.has(externalId) ? 'several' : position)
  const prefix = activityIdOf(workflowId, '')
  return (given, path) => {
    const exact = byId.get(given)
    if (exact !== undefined) return exact
    const named = (externalId: string): number | undefined => {
      const external = byExternalId.get(externalId)
      if (external !== 'several') return external
      throw unacceptableAt(
        path,
        `${JSON.stringify(given)} names several activities by their externalId; give the activity's id`,
      )
    }
    const known = named(given) ?? byId.get(prefix + given)
    if (known !== undefined || !given.startsWith(prefix)) return known
    const short = given.slice(prefix.length)
    return byId.get(short) ?? named(short)
  }
}
