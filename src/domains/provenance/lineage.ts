import { z } from 'zod'
import { append } from '../../lists.ts'
import { sql, type Db } from '../../db/sql.ts'
import { invalid, missing, unacceptableAt } from '../../refusal.ts'
import { catalogue, entityNamed, type Entity } from './catalogue.ts'
import { isOfGraphs, nodeKeyOf, relations, stepOf, type Edge, type Node } from './relations.ts'
import { byBytes } from './run-graph.ts'
import type { GraphsSeen, RunGraphs } from './run-graphs.ts'
import type { directions, Item } from './schemas.ts'
import { recordJson } from './store.ts'

type Direction = (typeof directions)[number]

const usualDepth = 2
const greatestDepth = 5
const usualNodes = 200
const mostNodes = 500

/** The entity of a path. @throws Refusal `invalid` for an unknown name */
export const knownEntity = (name: string): Entity => {
  const entity = entityNamed(name)
  if (entity === undefined)
    throw invalid(
      `entity: ${JSON.stringify(name)} is not an entity; there are ${catalogue.map((one) => one.name).join(', ')}`,
      [{ path: 'entity', message: 'is not an entity; name one of the catalogue' }],
    )
  return entity
}

/**
 * The record that a path names.
 * @throws Refusal `missing` for no record, `unacceptable` for an activity id that several versions
 *   share
 */
export const rootOf = async (
  db: Db,
  entity: Entity,
  id: string,
  versionId: string | undefined,
): Promise<Node> => {
  if (entity.name === 'activities') {
    const versions = await db.values(
      z.string(),
      sql`select workflow_version_id as id from activity_definitions
        where id = ${id} ${versionId === undefined ? sql`` : sql`and workflow_version_id = ${versionId}`}
          order by 1 limit 6`,
    )
    const [version, other] = versions
    if (version === undefined) throw missing('activity', id)
    if (other !== undefined)
      throw unacceptableAt(
        'workflowVersionId',
        `is missing: the activity is part of several versions (${versions.join(', ')}); ` +
          'name one with ?workflowVersionId=',
      )
    return { entity: entity.name, id, versionId: version }
  }
  if (versionId !== undefined)
    throw invalid(
      `workflowVersionId: is for activities, whose ids versions share; leave it out for ${entity.name}`,
      [{ path: 'workflowVersionId', message: 'is for activities only; leave it out' }],
    )
  const node = { entity: entity.name, id }
  const byFile = entity.name === 'data_uses'
  const [present] = await db.prepared<{ id: string }>(
    `lineage_root_${entity.name}`,
    `select r.id from provenance.${entity.table} r where r.id = $1` +
      (byFile ? ' and r.data_object_instance_id = $2' : ''),
    byFile ? [id, id.slice(0, Math.max(0, id.indexOf(':')))] : [id],
  )
  if (present === undefined) throw missing(entity.name.replaceAll('_', ' ').replace(/s$/, ''), id)
  return node
}

interface RecordRow {
  entity: string
  id: string
  version: string | null
  record: z.output<typeof Item>
}

/** Finds records of an entity by their versions and ids, two parameters from `$first` on. */
const recordsText = (entity: Entity, first: number): string => {
  const versioned = entity.name === 'activities'
  const conditions = [
    'r.id = k.id',
    ...(versioned ? ['r.workflow_version_id = k.version'] : []),
    ...(entity.name === 'data_uses' ? ["r.data_object_instance_id = left(k.id, strpos(k.id, ':') - 1)"] : []),
  ]
  const given = `unnest($${String(first)}::text[], $${String(first + 1)}::text[]) as k (version, id)`
  return `select '${entity.name}' as entity, p.* from ${given} cross join lateral (
      select r.id, ${versioned ? 'r.workflow_version_id' : 'null::text'} as version, ${recordJson(entity)} as record
      from provenance.${entity.table} r where ${conditions.join(' and ')} offset 0) p`
}

/** The records of nodes, by key, in one statement for the entities that they are of. */
const recordsOf = async (tx: Db, nodes: Iterable<Node>): Promise<Map<string, z.output<typeof Item>>> => {
  const byEntity = Map.groupBy(nodes, ({ entity }) => entity)
  const name = `lineage_of_${catalogue.map((one) => (byEntity.has(one.name) ? 1 : 0)).join('')}`
  const entities = catalogue.filter((one) => byEntity.has(one.name))
  const rows = await tx.prepared<RecordRow>(
    name,
    entities.map((one, at) => recordsText(one, 2 * at + 1)).join(' union all '),
    entities.flatMap((one) => {
      const of = byEntity.get(one.name) ?? []
      return [of.map((node) => node.versionId ?? ''), of.map((node) => node.id)]
    }),
  )
  return new Map(
    rows.map(({ entity, id, version, record }) => [
      nodeKeyOf({ entity, id, ...(version === null ? {} : { versionId: version }) }),
      record,
    ]),
  )
}

const labelOf = (record: Record<string, unknown>, id: string): string =>
  [record['name'], record['logical_name'], record['external_id'], record['status']].find(
    (value): value is string => typeof value === 'string' && value !== '',
  ) ?? id

interface Shown {
  key: string
  entity: string
  id: string
  label: string
  record: z.output<typeof Item>
}

const bounded = (value: number | undefined, usual: number, greatest: number): number =>
  value === undefined || value < 1 ? usual : Math.min(value, greatest)

const usesPlace = relations.findIndex(isOfGraphs)

interface Step {
  edge: Edge
  /** The end that the step leads to. */
  other: Node
}

/**
 * The files that tasks were given, or the tasks that files were given to, in the order of the other
 * ends: those that are nodes, and of each run the first `most` of the others. PostgreSQL takes
 * minutes for the view of them in a run of 10,000 activities: it follows what tasks hand on from
 * every file.
 */
const usesOf = async (
  graphs: GraphsSeen,
  side: 'antecedent' | 'consequent',
  frontier: readonly Node[],
  nodes: ReadonlyMap<string, Node>,
  most: number,
): Promise<Step[]> => {
  const ofTasks = side === 'consequent'
  const [entity, ends] = ofTasks
    ? (['task_executions', 'data_instances'] as const)
    : (['data_instances', 'task_executions'] as const)
  const given = frontier.filter((node) => node.entity === entity)
  if (given.length === 0) return []
  const runs = await graphs.byRun(
    entity,
    given.map(({ id }) => id),
  )
  const isNode = (id: string): boolean => nodes.has(nodeKeyOf({ entity: ends, id }))
  const found: { end: string; from: string[] }[] = []
  for (const [runId, ids] of runs)
    append(found, (await graphs.of(runId))?.usesOf(entity, ids, isNode, most) ?? [])
  return byBytes(found, ({ end }) => end).flatMap(({ end, from }) => {
    const other = { entity: ends, id: end }
    return from.map((id) => {
      const one = { entity, id }
      const [antecedent, consequent] = ofTasks ? [other, one] : [one, other]
      return { edge: { antecedent, consequent, label: 'data_uses' }, other }
    })
  })
}

/**
 * The part of a walk within its bounds: nodes in the order of their discovery, and the edges
 * between them.
 */
const walk = async (
  db: Db,
  graphs: GraphsSeen,
  root: Node,
  given: { direction: Direction; depth: number; maxNodes: number },
) => {
  const nodes = new Map([[nodeKeyOf(root), root]])
  const edges = new Map<string, { source: string; target: string; label: string }>()
  let truncated = false
  let next: Node[] = []
  const take = ({ edge: one, other }: Step): void => {
    const key = nodeKeyOf(other)
    if (!nodes.has(key)) {
      if (nodes.size >= given.maxNodes) {
        truncated = true
        return
      }
      nodes.set(key, other)
      next.push(other)
    }
    const edge = { source: nodeKeyOf(one.antecedent), target: nodeKeyOf(one.consequent), label: one.label }
    edges.set(JSON.stringify(edge), edge)
  }
  const sides = (['consequent', 'antecedent'] as const).filter(
    (side) => given.direction !== (side === 'consequent' ? 'downstream' : 'prior'),
  )
  let frontier: Node[] = [root]
  for (let depth = 0; depth < given.depth && frontier.length > 0; depth++) {
    next = []
    // One more than may be shown, beyond the edges that are known or found at the other ends in this
    // step. A surplus shows that some are left out. Edges stand for nodes here: a record has one link
    // of each of these relations.
    const most = 2 * (given.maxNodes + edges.size + frontier.length)
    const found: (Step & { place: number })[] = []
    for (const side of sides)
      for (const { place, edge } of await stepOf(db, side, frontier, most))
        found.push({ place, edge, other: side === 'consequent' ? edge.antecedent : edge.consequent })
    const inOrder = found.toSorted((a, b) => a.place - b.place)
    for (const one of inOrder) if (one.place < usesPlace) take(one)
    // A task has many files and a file many tasks, so the bound of uses counts nodes. One more than
    // there is room for shows that some are left out.
    for (const side of sides)
      for (const one of await usesOf(graphs, side, frontier, nodes, given.maxNodes - nodes.size + 1))
        take(one)
    for (const one of inOrder) if (one.place > usesPlace) take(one)
    frontier = next
  }
  return { nodes, edges: [...edges.values()], truncated }
}

/**
 * `entity:id`. Where two activities share an id, the second one found gets its version as suffix.
 */
const shownKeys = (nodes: ReadonlyMap<string, Node>): Map<string, string> => {
  const taken = new Set<string>()
  return new Map(
    [...nodes].map(([key, { entity, id, versionId }]) => {
      const plain = `${entity}:${id}`
      const shown = taken.has(plain) && versionId !== undefined ? `${plain}@${versionId}` : plain
      taken.add(shown)
      return [key, shown]
    }),
  )
}

/**
 * The neighbourhood of a record, breadth first; an edge leads from the antecedent. @throws Refusal
 * as `rootOf`
 */
export const lineageOf = async (
  db: Db,
  graphs: RunGraphs,
  entity: Entity,
  id: string,
  query: {
    direction?: Direction | undefined
    depth?: number | undefined
    maxNodes?: number | undefined
    workflowVersionId?: string | undefined
  },
) => {
  const root = await rootOf(db, entity, id, query.workflowVersionId)
  const bounds = {
    direction: query.direction ?? 'both',
    depth: bounded(query.depth, usualDepth, greatestDepth),
    maxNodes: bounded(query.maxNodes, usualNodes, mostNodes),
  } as const
  const { walked, records } = await db.snapshot(
    async (tx) => {
      const part = await walk(tx, graphs.seenBy(tx), root, bounds)
      return { walked: part, records: await recordsOf(tx, part.nodes.values()) }
    },
    // The ids of a step are always looked up by index.
    { genericPlans: true },
  )
  const keys = shownKeys(walked.nodes)
  const nodes = [...walked.nodes].flatMap(([key, node]): Shown[] => {
    const record = records.get(key)
    // A link may name a record that was removed or never stored.
    if (record === undefined) return []
    return [
      { key: keys.get(key) ?? '', entity: node.entity, id: node.id, label: labelOf(record, node.id), record },
    ]
  })
  const edges = walked.edges.flatMap(({ source, target, label }) =>
    records.has(source) && records.has(target)
      ? [{ source: keys.get(source) ?? '', target: keys.get(target) ?? '', label }]
      : [],
  )
  return { root: keys.get(nodeKeyOf(root)) ?? '', nodes, edges, truncated: walked.truncated }
}
