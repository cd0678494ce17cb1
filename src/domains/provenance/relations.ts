import { z } from 'zod'
import { join, raw, sql, type Db, type Sql } from '../../db/sql.ts'

/**
 * How records come of each other: each relation is a join that gives pairs of antecedent and consequent. Links lead from a record to its
 * antecedents; a task is a consequent of the files it was given, and a file of the task that made it.
 */

/** A record. Activities have the ids of their workflow, which its versions share, so theirs need the version too. */
export interface Node {
  entity: string
  id: string
  versionId?: string
}

export const keyOf = ({ entity, id, versionId }: Node): string =>
  JSON.stringify(versionId === undefined ? [entity, id] : [entity, id, versionId])

interface End {
  entity: string
  /** SQL of the id; of an activity with that of its version before it. */
  columns: readonly string[]
}

export interface Relation {
  /** Field of the link, or the entity that stands for it. */
  label: string
  antecedent: End
  consequent: End
  from: string
  condition?: string
  /** The join is a view of several parts, which finds its rows only by a value given from outside. */
  perRecord?: true
  /** Only from the consequent and antecedent of a record that was asked for: its neighbours are linked without it. */
  onlyFrom?: 'data_uses'
}

const at = (entity: string, ...columns: string[]): End => ({ entity, columns })
const link = (label: string, antecedent: End, consequent: End, from: string, more: Partial<Relation> = {}): Relation => ({
  label,
  antecedent,
  consequent,
  from,
  ...more,
})

const taskActivity = `task_executions t join execution_runs r on r.id = t.execution_run_id
  join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position`
const maker = `data_object_instances i join task_executions t on t.execution_run_id = i.execution_run_id and t.activity_id = i.producer_activity_id and t.attempt = i.attempt`
const moved = (end: 'producer' | 'consumer'): string => `data_transfer_observations o join execution_runs r on r.id = o.execution_run_id
  join task_executions t on t.execution_run_id = o.execution_run_id and t.activity_id = o.${end}_activity_id and t.attempt = 1
  join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position`
const carried =
  'data_object_instances i join provenance.data_transfer_observations o on o.execution_run_id = i.execution_run_id and o.producer_activity_id = i.producer_activity_id'
const activity = at('activities', 'd.workflow_version_id', 'd.id')

export const relations: readonly Relation[] = [
  link('parent_resource_id', at('resources', 'r.parent_resource_id'), at('resources', 'r.id'), 'resources r'),
  link('workflow_id', at('workflows', 'v.workflow_id'), at('workflow_versions', 'v.id'), 'workflow_versions v'),
  link('workflow_version_id', at('workflow_versions', 'd.workflow_version_id'), activity, 'activity_definitions d'),
  link('selected_plan_id', at('plans', 's.selected_plan_id'), at('planning_sessions', 's.id'), 'planning_sessions s'),
  link('workflow_version_id', at('workflow_versions', 's.workflow_version_id'), at('planning_sessions', 's.id'), 'planning_sessions s'),
  link('execution_scope_id', at('execution_scopes', 's.execution_scope_id'), at('planning_sessions', 's.id'), 'planning_sessions s'),
  link('workflow_version_id', at('workflow_versions', 'p.workflow_version_id'), at('plans', 'p.id'), 'schedule_plans p'),
  // The workflow that came inside a plan is what was planned.
  link('workflow_version_id', at('workflow_versions', 'p.content_version_id'), at('plans', 'p.id'), 'schedule_plans p', {
    condition: 'p.content_version_id <> p.workflow_version_id',
  }),
  link('execution_scope_id', at('execution_scopes', 'p.execution_scope_id'), at('plans', 'p.id'), 'schedule_plans p'),
  link('schedule_plan_id', at('plans', 'r.schedule_plan_id'), at('runs', 'r.id'), 'execution_runs r'),
  link('execution_run_id', at('runs', 't.execution_run_id'), at('task_executions', 't.id'), 'task_executions t'),
  link('activity_id', activity, at('task_executions', 't.id'), taskActivity),
  link('planned_resource_id', at('resources', 't.planned_resource_id'), at('task_executions', 't.id'), 'task_executions t'),
  // Tasks run where they are planned, and that column has an index.
  link('allocated_resource_id', at('resources', 't.planned_resource_id'), at('task_executions', 't.id'), 'task_executions t', {
    condition: 't.allocated_resource_id = t.planned_resource_id',
  }),
  link(
    'data_uses',
    at('data_instances', 'u.data_object_instance_id'),
    at('task_executions', 'u.task_execution_id'),
    'provenance.data_uses u',
    {
      perRecord: true,
    },
  ),
  link('workflow_version_id', at('workflow_versions', 'o.workflow_version_id'), at('data_objects', 'o.id'), 'data_objects o'),
  link(
    'producer_activity_id',
    activity,
    at('data_objects', 'o.id'),
    'data_objects o join activity_definitions d on d.workflow_version_id = o.workflow_version_id and d.id = o.producer_activity_id',
  ),
  // A plan may name activities by their external ids.
  link(
    'producer_activity_id',
    activity,
    at('data_objects', 'o.id'),
    'data_objects o join activity_definitions d on d.workflow_version_id = o.workflow_version_id and d.external_id = o.producer_activity_id',
    {
      condition:
        'not exists (select from activity_definitions x where x.workflow_version_id = o.workflow_version_id and x.id = o.producer_activity_id)',
    },
  ),
  link('data_object_id', at('data_objects', 'i.data_object_id'), at('data_instances', 'i.id'), 'data_object_instances i'),
  link('execution_run_id', at('runs', 'i.execution_run_id'), at('data_instances', 'i.id'), 'data_object_instances i'),
  link(
    'producer_activity_id',
    activity,
    at('data_instances', 'i.id'),
    `${maker} join execution_runs r on r.id = t.execution_run_id
      join activity_definitions d on d.workflow_version_id = r.content_version_id and d.position = t.activity_position`,
  ),
  link('task_execution_id', at('task_executions', 't.id'), at('data_instances', 'i.id'), maker),
  link('execution_run_id', at('runs', 'o.execution_run_id'), at('transfers', 'o.id'), 'data_transfer_observations o'),
  link('data_object_id', at('data_objects', 'i.data_object_id'), at('transfers', 'o.id'), carried, {
    condition: 'o.data_object_id = i.data_object_id',
  }),
  link('data_object_instance_id', at('data_instances', 'i.id'), at('transfers', 'o.id'), carried, {
    condition: 'o.data_object_instance_id = i.id',
  }),
  link('producer_activity_id', activity, at('transfers', 'o.id'), moved('producer')),
  link('consumer_activity_id', activity, at('transfers', 'o.id'), moved('consumer')),
  link('source_resource_id', at('resources', 'o.source_resource_id'), at('transfers', 'o.id'), 'data_transfer_observations o'),
  link('target_resource_id', at('resources', 'o.target_resource_id'), at('transfers', 'o.id'), 'data_transfer_observations o'),
  link('data_object_instance_id', at('data_instances', 'u.data_object_instance_id'), at('data_uses', 'u.id'), 'provenance.data_uses u', {
    perRecord: true,
    onlyFrom: 'data_uses',
  }),
  link('task_execution_id', at('data_uses', 'u.id'), at('task_executions', 'u.task_execution_id'), 'provenance.data_uses u', {
    perRecord: true,
    onlyFrom: 'data_uses',
  }),
  link('execution_run_id', at('runs', 'u.execution_run_id'), at('data_uses', 'u.id'), 'provenance.data_uses u', {
    perRecord: true,
    onlyFrom: 'data_uses',
  }),
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

/** The id of a use begins with that of its file, by which it is found. */
const fileOf = "left(k.id, strpos(k.id, ':') - 1)"

/**
 * The edges of one relation at records of one of its ends, by the ids of the other.
 * @param limit at most so many; undefined: all
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
    ? sql`unnest(${nodes.map((node) => node.versionId ?? '')}::text[], ${nodes.map((node) => node.id)}::text[]) as k (version, id)`
    : sql`unnest(${nodes.map((node) => node.id)}::text[]) as k (id)`
  const matches = two ? `${end.columns[0] ?? ''} = k.version and ${end.columns[1] ?? ''} = k.id` : `${end.columns[0] ?? ''} = k.id`
  const byFile = end.entity === 'data_uses' ? ` and u.data_object_instance_id = ${fileOf}` : ''
  const condition = [matches + byFile, relation.condition].filter((one) => one !== undefined).join(' and ')
  const columns = `${named(relation.antecedent, 'antecedent')}, ${named(relation.consequent, 'consequent')}`
  const other = side === 'antecedent' ? 'consequent' : 'antecedent'
  const pairs = relation.perRecord
    ? sql`select p.* from ${given} cross join lateral (select ${raw(columns)} from ${raw(relation.from)} where ${raw(condition)} offset 0) p`
    : sql`select ${raw(columns)} from ${given} cross join ${raw(relation.from)} where ${raw(condition)}`
  const order = `e.${other} collate "C"${relation[other].columns.length === 2 ? `, e.${other}_version collate "C"` : ''}`
  const rows = await db.many(
    Pair,
    sql`select distinct on (${raw(`${order}, e.${side} collate "C"`)}) e.* from (${pairs}) e where e.antecedent is not null and e.consequent is not null
        order by ${raw(`${order}, e.${side} collate "C"`)}${limit === undefined ? join([]) : sql` limit ${limit}`}`,
  )
  return rows.map((row) => ({
    antecedent: nodeOf(relation.antecedent, row.antecedent, row.antecedentVersion),
    consequent: nodeOf(relation.consequent, row.consequent, row.consequentVersion),
    label: relation.label,
  }))
}
