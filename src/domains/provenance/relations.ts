import { z } from 'zod'
import { join, raw, sql, type Db, type Sql } from '../../db/sql.ts'

/**
 * The derivation of records. Each relation is a join that yields pairs of antecedent and
 * consequent. Links lead from a record to its antecedents: a task is a consequent of its input
 * files, and a file of the task that made it.
 */

/**
 * A record. Versions of a workflow share the ids of its activities, so a node of an activity needs
 * the version too.
 */
export interface Node {
  entity: string
  id: string
  versionId?: string
}

export const nodeKeyOf = ({ entity, id, versionId }: Node): string =>
  JSON.stringify(versionId === undefined ? [entity, id] : [entity, id, versionId])

interface End {
  entity: string
  /** SQL of the id. For an activity the id of its version precedes it. */
  columns: readonly string[]
}

export interface Relation {
  /** Field of the link, or the entity in place of it. */
  label: string
  antecedent: End
  consequent: End
  from: string
  condition?: string
  /** The join is a view of several parts. It finds its rows only by a value given from outside. */
  perRecord?: true
  /**
   * Only from the consequent and antecedent of the requested record: its neighbours are linked
   * without it.
   */
  onlyFrom?: 'data_uses'
}

const at = (entity: string, ...columns: string[]): End => ({ entity, columns })
const link = (
  label: string,
  antecedent: End,
  consequent: End,
  from: string,
  more: Partial<Relation> = {},
): Relation => ({
  label,
  antecedent,
  consequent,
  from,
  ...more,
})

const taskActivity = `task_executions t join execution_runs r on r.id = t.execution_run_id
  join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position`
const maker =
  'data_object_instances i join task_executions t on t.execution_run_id = i.execution_run_id and ' +
  't.activity_id = i.producer_activity_id and t.attempt = i.attempt'
const moved = (
  end: 'producer' | 'consumer',
): string => `data_transfer_observations o join execution_runs r on r.id = o.execution_run_id
  join task_executions t on t.execution_run_id = o.execution_run_id and t.activity_id = o.${end}_activity_id
    and t.attempt = 1
  join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position`
const carried =
  'data_object_instances i join provenance.data_transfer_observations o on o.execution_run_id = ' +
  'i.execution_run_id and o.producer_activity_id = i.producer_activity_id'
const activity = at('activities', 'd.workflow_version_id', 'd.id')

export const relations: readonly Relation[] = [
  link('parent_resource_id', at('resources', 'r.parent_resource_id'), at('resources', 'r.id'), 'resources r'),
  link(
    'workflow_id',
    at('workflows', 'v.workflow_id'),
    at('workflow_versions', 'v.id'),
    'workflow_versions v',
  ),
  link(
    'workflow_version_id',
    at('workflow_versions', 'd.workflow_version_id'),
    activity,
    'activity_definitions d',
  ),
  link(
    'selected_plan_id',
    at('plans', 's.selected_plan_id'),
    at('planning_sessions', 's.id'),
    'planning_sessions s',
  ),
  link(
    'workflow_version_id',
    at('workflow_versions', 's.workflow_version_id'),
    at('planning_sessions', 's.id'),
    'planning_sessions s',
  ),
  link(
    'execution_scope_id',
    at('execution_scopes', 's.execution_scope_id'),
    at('planning_sessions', 's.id'),
    'planning_sessions s',
  ),
  link(
    'workflow_version_id',
    at('workflow_versions', 'p.workflow_version_id'),
    at('plans', 'p.id'),
    'schedule_plans p',
  ),
  // The workflow embedded in a plan is the planned one.
  link(
    'workflow_version_id',
    at('workflow_versions', 'p.content_version_id'),
    at('plans', 'p.id'),
    'schedule_plans p',
    {
      condition: 'p.content_version_id <> p.workflow_version_id',
    },
  ),
  link(
    'execution_scope_id',
    at('execution_scopes', 'p.execution_scope_id'),
    at('plans', 'p.id'),
    'schedule_plans p',
  ),
  link('schedule_plan_id', at('plans', 'r.schedule_plan_id'), at('runs', 'r.id'), 'execution_runs r'),
  link(
    'execution_run_id',
    at('runs', 't.execution_run_id'),
    at('task_executions', 't.id'),
    'task_executions t',
  ),
  link('activity_id', activity, at('task_executions', 't.id'), taskActivity),
  link(
    'planned_resource_id',
    at('resources', 't.planned_resource_id'),
    at('task_executions', 't.id'),
    'task_executions t',
  ),
  // Tasks run on their planned resource, and that column has an index.
  link(
    'allocated_resource_id',
    at('resources', 't.planned_resource_id'),
    at('task_executions', 't.id'),
    'task_executions t',
    {
      condition: 't.allocated_resource_id = t.planned_resource_id',
    },
  ),
  link(
    'data_uses',
    at('data_instances', 'u.data_object_instance_id'),
    at('task_executions', 'u.task_execution_id'),
    'provenance.data_uses u',
    {
      perRecord: true,
    },
  ),
  link(
    'workflow_version_id',
    at('workflow_versions', 'o.workflow_version_id'),
    at('data_objects', 'o.id'),
    'data_objects o',
  ),
  link(
    'producer_activity_id',
    activity,
    at('data_objects', 'o.id'),
    'data_objects o join activity_definitions d on d.workflow_version_id = o.workflow_version_id ' +
      'and d.id = o.producer_activity_id',
  ),
  // A plan may name activities by their external ids.
  link(
    'producer_activity_id',
    activity,
    at('data_objects', 'o.id'),
    'data_objects o join activity_definitions d on d.workflow_version_id = o.workflow_version_id ' +
      'and d.external_id = o.producer_activity_id',
    {
      condition:
        'not exists (select from activity_definitions x where x.workflow_version_id = ' +
        'o.workflow_version_id and x.id = o.producer_activity_id)',
    },
  ),
  link(
    'data_object_id',
    at('data_objects', 'i.data_object_id'),
    at('data_instances', 'i.id'),
    'data_object_instances i',
  ),
  link(
    'execution_run_id',
    at('runs', 'i.execution_run_id'),
    at('data_instances', 'i.id'),
    'data_object_instances i',
  ),
  link(
    'producer_activity_id',
    activity,
    at('data_instances', 'i.id'),
    `${maker} join execution_runs r on r.id = t.execution_run_id
      join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position`,
  ),
  link('task_execution_id', at('task_executions', 't.id'), at('data_instances', 'i.id'), maker),
  link(
    'execution_run_id',
    at('runs', 'o.execution_run_id'),
    at('transfers', 'o.id'),
    'data_transfer_observations o',
  ),
  link('data_object_id', at('data_objects', 'i.data_object_id'), at('transfers', 'o.id'), carried, {
    condition: 'o.data_object_id = i.data_object_id',
  }),
  link('data_object_instance_id', at('data_instances', 'i.id'), at('transfers', 'o.id'), carried, {
    condition: 'o.data_object_instance_id = i.id',
  }),
  link('producer_activity_id', activity, at('transfers', 'o.id'), moved('producer')),
  link('consumer_activity_id', activity, at('transfers', 'o.id'), moved('consumer')),
  link(
    'source_resource_id',
    at('resources', 'o.source_resource_id'),
    at('transfers', 'o.id'),
    'data_transfer_observations o',
  ),
  link(
    'target_resource_id',
    at('resources', 'o.target_resource_id'),
    at('transfers', 'o.id'),
    'data_transfer_observations o',
  ),
  link(
    'data_object_instance_id',
    at('data_instances', 'u.data_object_instance_id'),
    at('data_uses', 'u.id'),
    'provenance.data_uses u',
    {
      perRecord: true,
      onlyFrom: 'data_uses',
    },
  ),
  link(
    'task_execution_id',
    at('data_uses', 'u.id'),
    at('task_executions', 'u.task_execution_id'),
    'provenance.data_uses u',
    {
      perRecord: true,
      onlyFrom: 'data_uses',
    },
  ),
  link(
    'execution_run_id',
    at('runs', 'u.execution_run_id'),
    at('data_uses', 'u.id'),
    'provenance.data_uses u',
    {
      perRecord: true,
      onlyFrom: 'data_uses',
    },
  ),
]

const Pair = z.object({
  antecedent: z.string(),
  antecedentVersion: z.string().optional(),
  consequent: z.string(),
  consequentVersion: z.string().optional(),
})

export interface Edge {
  antecedent: Node
  consequent: Node
  label: string
}

const named = ({ columns }: End, name: string): string => {
  const [version, id] = columns.length === 2 ? columns : [undefined, columns[0]]
  return `${id ?? ''} as ${name}${version === undefined ? '' : `, ${version} as ${name}_version`}`
}

const nodeOf = ({ entity }: End, id: string, versionId: string | undefined): Node => ({
  entity,
  id,
  ...(versionId === undefined ? {} : { versionId }),
})

/** The id of a use begins with the id of its file. The index is on the file's id. */
const fileOf = "left(k.id, strpos(k.id, ':') - 1)"

/**
 * The edges of one relation at records of one of its ends, by the ids of the other.
 * @param limit the most edges; undefined: all
 */
export const edgesOf = async (
  db: Db,
  relation: Relation,
  side: 'antecedent' | 'consequent',
  nodes: readonly Node[],
  limit: number | undefined,
): Promise<Edge[]> => {
  const end = relation[side]
  const two = end.columns.length === 2
  const given: Sql = two
    ? sql`unnest(${nodes.map((node) => node.versionId ?? '')}::text[],
      ${nodes.map((node) => node.id)}::text[]) as k (version, id)`
    : sql`unnest(${nodes.map((node) => node.id)}::text[]) as k (id)`
  const matches = two
    ? `${end.columns[0] ?? ''} = k.version and ${end.columns[1] ?? ''} = k.id`
    : `${end.columns[0] ?? ''} = k.id`
  const byFile = end.entity === 'data_uses' ? ` and u.data_object_instance_id = ${fileOf}` : ''
  const condition = [matches + byFile, relation.condition].filter((one) => one !== undefined).join(' and ')
  const columns = `${named(relation.antecedent, 'antecedent')}, ${named(relation.consequent, 'consequent')}`
  const other = side === 'antecedent' ? 'consequent' : 'antecedent'
  const pairs = relation.perRecord
    ? sql`select p.* from ${given} cross join lateral (select ${raw(columns)} from ${raw(relation.from)}
      where ${raw(condition)} offset 0) p`
    : sql`select ${raw(columns)} from ${given} cross join ${raw(relation.from)} where ${raw(condition)}`
  const version = relation[other].columns.length === 2 ? `, e.${other}_version collate "C"` : ''
  const order = `e.${other} collate "C"${version}`
  const rows = await db.many(
    Pair,
    sql`select distinct on (${raw(`${order}, e.${side} collate "C"`)}) e.* from (${pairs}) e
      where e.antecedent is not null and e.consequent is not null
        order by ${raw(`${order}, e.${side} collate "C"`)}${limit === undefined ? join([]) : sql` limit ${limit}`}`,
  )
  return rows.map((row) => ({
    antecedent: nodeOf(relation.antecedent, row.antecedent, row.antecedentVersion),
    consequent: nodeOf(relation.consequent, row.consequent, row.consequentVersion),
    label: relation.label,
  }))
}

type Side = 'antecedent' | 'consequent'

/** The relations that lead from records of the asked entity, at one of their ends. */
const leadingFrom = (side: Side): { relation: Relation; place: number }[] =>
  relations
    .map((relation, place) => ({ relation, place }))
    .filter(({ relation }) => (relation.onlyFrom ?? relation[side].entity) === relation[side].entity)
    .filter(({ relation }) => !isOfGraphs(relation))

/** Uses of files, which the graphs of runs give. */
export const isOfGraphs = ({ label, onlyFrom }: Relation): boolean =>
  label === 'data_uses' && onlyFrom === undefined

/**
 * One statement for the edges of all relations that lead from records of some entities, at one of
 * their ends. Each entity has a parameter from `$2` on, its ids; activities have one more before
 * it, their versions.
 */
const stepText = (
  side: Side,
  leading: readonly { relation: Relation; place: number }[],
  entities: readonly string[],
): string => {
  const other: Side = side === 'antecedent' ? 'consequent' : 'antecedent'
  const parameters = entities.flatMap((entity) =>
    entity === 'activities' ? [`${entity} version`, entity] : [entity],
  )
  const parameter = (name: string): string => `$${String(parameters.indexOf(name) + 2)}::text[]`
  const both = ({ columns }: End, name: Side): string =>
    `${columns.at(-1) ?? ''}::text as ${name}, ` +
    `${columns.length === 2 ? `${columns[0] ?? ''}::text` : 'null::text'} as ${name}_version`
  const parts = leading.map(({ relation, place }) => {
    const { entity, columns } = relation[side]
    const two = columns.length === 2
    const given = two
      ? `unnest(${parameter(`${entity} version`)}, ${parameter(entity)}) as k (version, id)`
      : `unnest(${parameter(entity)}) as k (id)`
    const matches = two
      ? `${columns[0] ?? ''} = k.version and ${columns[1] ?? ''} = k.id`
      : `${columns[0] ?? ''} = k.id`
    const byFile = entity === 'data_uses' ? ` and u.data_object_instance_id = ${fileOf}` : ''
    const condition = [matches + byFile, relation.condition].filter((one) => one !== undefined).join(' and ')
    const pairs = `select ${both(relation.antecedent, 'antecedent')}, ${both(relation.consequent, 'consequent')}`
    const from = relation.perRecord
      ? `select p.* from ${given} cross join lateral (${pairs} from ${relation.from} where ${condition} offset 0) p`
      : `${pairs} from ${given} cross join ${relation.from} where ${condition}`
    const order = [`e.${other}`, `e.${other}_version`, `e.${side}`]
      .map((name) => `${name} collate "C"`)
      .join(', ')
    return `(select distinct on (${order}) ${String(place)} as place, e.* from (${from}) e
      where e.antecedent is not null and e.consequent is not null order by ${order} limit $1)`
  })
  return parts.join(' union all ')
}

interface Step {
  /** The statement is prepared under this name. */
  name: string
  entities: readonly string[]
  text: string
}

/**
 * The statements of one side by the entities that they lead from. PostgreSQL plans each once a
 * session, but begins every part of it at every call: one of all thirty relations takes ten times
 * as long as one of those that can find something.
 */
const openSteps = (side: Side) => {
  const leading = leadingFrom(side)
  const known = [...new Set(leading.map(({ relation }) => relation[side].entity))]
  const steps = new Map<string, Step>()
  return (present: ReadonlySet<string>): Step | undefined => {
    const entities = known.filter((entity) => present.has(entity))
    if (entities.length === 0) return undefined
    const name = `lineage_${side}_${known.map((entity) => (present.has(entity) ? 1 : 0)).join('')}`
    const found = steps.get(name)
    if (found !== undefined) return found
    const of = leading.filter(({ relation }) => present.has(relation[side].entity))
    const step = { name, entities, text: stepText(side, of, entities) }
    steps.set(name, step)
    return step
  }
}
const stepFrom = { antecedent: openSteps('antecedent'), consequent: openSteps('consequent') }

interface StepRow {
  place: number
  antecedent: string
  antecedent_version: string | null
  consequent: string
  consequent_version: string | null
}

/**
 * The edges of all relations but those of graphs at records of one of their ends, with the place of
 * each one's relation in the list, at most `limit` of each relation.
 */
export const stepOf = async (
  db: Db,
  side: Side,
  nodes: readonly Node[],
  limit: number,
): Promise<{ place: number; edge: Edge }[]> => {
  const byEntity = Map.groupBy(nodes, ({ entity }) => entity)
  const step = stepFrom[side](new Set(byEntity.keys()))
  if (step === undefined) return []
  const values = step.entities.flatMap((entity) => {
    const of = byEntity.get(entity) ?? []
    const ids = of.map(({ id }) => id)
    return entity === 'activities' ? [of.map(({ versionId }) => versionId ?? ''), ids] : [ids]
  })
  const rows = await db.prepared<StepRow>(step.name, step.text, [limit, ...values])
  return rows.map((row) => {
    const relation = relations[row.place] as Relation
    return {
      place: row.place,
      edge: {
        antecedent: nodeOf(relation.antecedent, row.antecedent, row.antecedent_version ?? undefined),
        consequent: nodeOf(relation.consequent, row.consequent, row.consequent_version ?? undefined),
        label: relation.label,
      },
    }
  })
}
