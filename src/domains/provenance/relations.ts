import type { Db } from '../../db/sql.ts'

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

/** `activities d.workflow_version_id d.id`: the entity and its columns. */
const endOf = (text: string): End => {
  const [entity = '', ...columns] = text.split(' ')
  return { entity, columns }
}
const link = (
  label: string,
  antecedent: string,
  consequent: string,
  from: string,
  more: Partial<Relation> = {},
): Relation => ({ label, antecedent: endOf(antecedent), consequent: endOf(consequent), from, ...more })

/** Links of a table's records to those that its columns name; the columns are the labels. */
const named = (entity: string, from: string, columns: Record<string, string>): Relation[] => {
  const alias = from.split(' ').at(-1) ?? ''
  return Object.entries(columns).map(([column, of]) =>
    link(column, `${of} ${alias}.${column}`, `${entity} ${alias}.id`, from),
  )
}

const activity = 'activities d.workflow_version_id d.id'
const ofRun = `join execution_runs r on r.id = t.execution_run_id
  join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position`
const maker =
  'data_object_instances i join task_executions t on t.execution_run_id = i.execution_run_id and ' +
  't.activity_id = i.producer_activity_id and t.attempt = i.attempt'
const moved = (end: 'producer' | 'consumer'): string =>
  'data_transfer_observations o join task_executions t on t.execution_run_id = o.execution_run_id ' +
  `and t.activity_id = o.${end}_activity_id and t.attempt = 1 ${ofRun}`
const carried =
  'data_object_instances i join provenance.data_transfer_observations o on o.execution_run_id = ' +
  'i.execution_run_id and o.producer_activity_id = i.producer_activity_id'
const planned = (member: 'id' | 'external_id'): string =>
  'data_objects o join activity_definitions d on d.workflow_version_id = o.workflow_version_id ' +
  `and d.${member} = o.producer_activity_id`
const use = (label: string, antecedent: string, consequent: string, onlyFrom?: 'data_uses'): Relation =>
  link(label, antecedent, consequent, 'provenance.data_uses u', {
    perRecord: true,
    ...(onlyFrom === undefined ? {} : { onlyFrom }),
  })

export const relations: readonly Relation[] = [
  ...named('resources', 'resources r', { parent_resource_id: 'resources' }),
  ...named('workflow_versions', 'workflow_versions v', { workflow_id: 'workflows' }),
  link('workflow_version_id', 'workflow_versions d.workflow_version_id', activity, 'activity_definitions d'),
  ...named('planning_sessions', 'planning_sessions s', {
    selected_plan_id: 'plans',
    workflow_version_id: 'workflow_versions',
    execution_scope_id: 'execution_scopes',
  }),
  ...named('plans', 'schedule_plans p', { workflow_version_id: 'workflow_versions' }),
  // The workflow embedded in a plan is the planned one.
  link('workflow_version_id', 'workflow_versions p.content_version_id', 'plans p.id', 'schedule_plans p', {
    condition: 'p.content_version_id <> p.workflow_version_id',
  }),
  ...named('plans', 'schedule_plans p', { execution_scope_id: 'execution_scopes' }),
  ...named('runs', 'execution_runs r', { schedule_plan_id: 'plans' }),
  ...named('task_executions', 'task_executions t', { execution_run_id: 'runs' }),
  link('activity_id', activity, 'task_executions t.id', `task_executions t ${ofRun}`),
  ...named('task_executions', 'task_executions t', { planned_resource_id: 'resources' }),
  // Tasks run on their planned resource, and that column has an index.
  link(
    'allocated_resource_id',
    'resources t.planned_resource_id',
    'task_executions t.id',
    'task_executions t',
    {
      condition: 't.allocated_resource_id = t.planned_resource_id',
    },
  ),
  use('data_uses', 'data_instances u.data_object_instance_id', 'task_executions u.task_execution_id'),
  ...named('data_objects', 'data_objects o', { workflow_version_id: 'workflow_versions' }),
  link('producer_activity_id', activity, 'data_objects o.id', planned('id')),
  // A plan may name activities by their external ids.
  link('producer_activity_id', activity, 'data_objects o.id', planned('external_id'), {
    condition:
      'not exists (select from activity_definitions x where x.workflow_version_id = ' +
      'o.workflow_version_id and x.id = o.producer_activity_id)',
  }),
  ...named('data_instances', 'data_object_instances i', {
    data_object_id: 'data_objects',
    execution_run_id: 'runs',
  }),
  link('producer_activity_id', activity, 'data_instances i.id', `${maker} ${ofRun}`),
  link('task_execution_id', 'task_executions t.id', 'data_instances i.id', maker),
  ...named('transfers', 'data_transfer_observations o', { execution_run_id: 'runs' }),
  link('data_object_id', 'data_objects i.data_object_id', 'transfers o.id', carried, {
    condition: 'o.data_object_id = i.data_object_id',
  }),
  link('data_object_instance_id', 'data_instances i.id', 'transfers o.id', carried, {
    condition: 'o.data_object_instance_id = i.id',
  }),
  link('producer_activity_id', activity, 'transfers o.id', moved('producer')),
  link('consumer_activity_id', activity, 'transfers o.id', moved('consumer')),
  ...named('transfers', 'data_transfer_observations o', {
    source_resource_id: 'resources',
    target_resource_id: 'resources',
  }),
  use('data_object_instance_id', 'data_instances u.data_object_instance_id', 'data_uses u.id', 'data_uses'),
  use('task_execution_id', 'data_uses u.id', 'task_executions u.task_execution_id', 'data_uses'),
  use('execution_run_id', 'runs u.execution_run_id', 'data_uses u.id', 'data_uses'),
]

export interface Edge {
  antecedent: Node
  consequent: Node
  label: string
}

const nodeOf = ({ entity }: End, id: string, versionId: string | undefined): Node => ({
  entity,
  id,
  ...(versionId === undefined ? {} : { versionId }),
})

/** The id of a use begins with the id of its file. The index is on the file's id. */
const fileOf = "left(k.id, strpos(k.id, ':') - 1)"

type Side = 'antecedent' | 'consequent'

/** Uses of files, which the graphs of runs give. */
export const isOfGraphs = ({ label, onlyFrom }: Relation): boolean =>
  label === 'data_uses' && onlyFrom === undefined

/** The link of a file to the task that made it. Graphs of runs give it too. */
const isMaker = ({ label, consequent }: Relation): boolean =>
  label === 'task_execution_id' && consequent.entity === 'data_instances'

type Walk = 'lineage' | 'closure'

/** The relations that lead from records of the asked entity, at one of their ends. */
const leadingFrom = (side: Side, walk: Walk): { relation: Relation; place: number }[] =>
  relations
    .map((relation, place) => ({ relation, place }))
    .filter(({ relation }) => (relation.onlyFrom ?? relation[side].entity) === relation[side].entity)
    .filter(({ relation }) => !isOfGraphs(relation) && !(walk === 'closure' && isMaker(relation)))

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
      where e.antecedent is not null and e.consequent is not null order by ${order} limit $1::bigint)`
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
const openSteps = (side: Side, walk: Walk) => {
  const leading = leadingFrom(side, walk)
  const known = [...new Set(leading.map(({ relation }) => relation[side].entity))]
  const steps = new Map<string, Step>()
  return (present: ReadonlySet<string>): Step | undefined => {
    const entities = known.filter((entity) => present.has(entity))
    if (entities.length === 0) return undefined
    const name = `${walk}_${side}_${known.map((entity) => (present.has(entity) ? 1 : 0)).join('')}`
    const found = steps.get(name)
    if (found !== undefined) return found
    const of = leading.filter(({ relation }) => present.has(relation[side].entity))
    const step = { name, entities, text: stepText(side, of, entities) }
    steps.set(name, step)
    return step
  }
}
const stepsOf = (walk: Walk) => ({
  antecedent: openSteps('antecedent', walk),
  consequent: openSteps('consequent', walk),
})
const steps = { lineage: stepsOf('lineage'), closure: stepsOf('closure') }

interface StepRow {
  place: number
  antecedent: string
  antecedent_version: string | null
  consequent: string
  consequent_version: string | null
}

/**
 * The edges of all relations but those of graphs at records of one of their ends, with the place of
 * each one's relation in the list.
 * @param limit the most edges of each relation; undefined: all, for a closure
 */
export const stepOf = async (
  db: Db,
  side: Side,
  nodes: readonly Node[],
  limit: number | undefined,
): Promise<{ place: number; edge: Edge }[]> => {
  const byEntity = Map.groupBy(nodes, ({ entity }) => entity)
  const step = steps[limit === undefined ? 'closure' : 'lineage'][side](new Set(byEntity.keys()))
  if (step === undefined) return []
  const values = step.entities.flatMap((entity) => {
    const of = byEntity.get(entity) ?? []
    const ids = of.map(({ id }) => id)
    return entity === 'activities' ? [of.map(({ versionId }) => versionId ?? ''), ids] : [ids]
  })
  const rows = await db.prepared<StepRow>(step.name, step.text, [limit ?? null, ...values])
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
