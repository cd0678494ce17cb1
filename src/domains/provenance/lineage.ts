import { z } from 'zod'
import { raw, sql, type Db } from '../../db/sql.ts'
import { invalid, missing, unacceptable } from '../../refusal.ts'
import { catalogue, entityNamed, type Entity } from './catalogue.ts'
import { edgesOf, keyOf, relations, type Node } from './relations.ts'
import { Item, type directions } from './schemas.ts'
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
    throw invalid(`entity: ${JSON.stringify(name)} is not an entity; there are ${catalogue.map((one) => one.name).join(', ')}`, [
      { path: 'entity', message: 'is not an entity' },
    ])
  return entity
}

const Version = z.object({ id: z.string() })
const Present = z.object({ id: z.string() })

/**
 * The record that a path names.
 * @throws Refusal `missing` for no record, `unacceptable` for an activity id that several versions share
 */
export const rootOf = async (db: Db, entity: Entity, id: string, versionId: string | undefined): Promise<Node> => {
  if (entity.name === 'activities') {
    const versions = await db.many(
      Version,
      sql`select workflow_version_id as id from activity_definitions where id = ${id} ${versionId === undefined ? sql`` : sql`and workflow_version_id = ${versionId}`}
          order by 1 limit 6`,
    )
    const [version, other] = versions
    if (version === undefined) throw missing('activity', id)
    if (other !== undefined)
      throw unacceptable([
        {
          path: 'workflowVersionId',
          message: `the activity is part of several versions (${versions.map((one) => one.id).join(', ')}); name one with ?workflowVersionId=`,
        },
      ])
    return { entity: entity.name, id, versionId: version.id }
  }
  if (versionId !== undefined)
    throw invalid(`workflowVersionId: is for activities, whose ids versions share; leave it out for ${entity.name}`, [
      { path: 'workflowVersionId', message: 'is for activities only' },
    ])
  const node = { entity: entity.name, id }
  const byFile = entity.name === 'data_uses' ? sql`and r.data_object_instance_id = ${id.slice(0, Math.max(0, id.indexOf(':')))}` : sql``
  const present = await db.maybe(Present, sql`select r.id from ${raw(`provenance.${entity.table} r`)} where r.id = ${id} ${byFile}`)
  if (present === undefined) throw missing(entity.name.replaceAll('_', ' ').replace(/s$/, ''), id)
  return node
}

const Record = z.object({ id: z.string(), version: z.string().optional(), record: Item })

/** The records of nodes of one entity, by key. */
const recordsOf = async (db: Db, entity: Entity, nodes: readonly Node[]): Promise<Map<string, z.output<typeof Item>>> => {
  const versioned = entity.name === 'activities'
  const given = sql`unnest(${nodes.map((node) => node.versionId ?? '')}::text[], ${nodes.map((node) => node.id)}::text[]) as k (version, id)`
  const version = raw(versioned ? 'and r.workflow_version_id = k.version' : '')
  const byFile = raw(entity.name === 'data_uses' ? "and r.data_object_instance_id = left(k.id, strpos(k.id, ':') - 1)" : '')
  const rows = await db.many(
    Record,
    sql`select p.* from ${given} cross join lateral (
          select r.id${raw(versioned ? ', r.workflow_version_id as version' : '')}, ${raw(recordJson(entity))} as record
          from ${raw(`provenance.${entity.table} r`)} where r.id = k.id ${version} ${byFile} offset 0) p`,
  )
  return new Map(
    rows.map(({ id, version: of, record }) => [keyOf({ entity: entity.name, id, ...(of === undefined ? {} : { versionId: of }) }), record]),
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

/** What the bounds of a walk leave of it: nodes in the order in which they were met, and the edges between them. */
const walk = async (db: Db, root: Node, given: { direction: Direction; depth: number; maxNodes: number }) => {
  const nodes = new Map([[keyOf(root), root]])
  const edges = new Map<string, { source: string; target: string; label: string }>()
  let truncated = false
  let frontier: Node[] = [root]
  for (let depth = 0; depth < given.depth && frontier.length > 0; depth++) {
    const next: Node[] = []
    for (const relation of relations) {
      for (const side of ['consequent', 'antecedent'] as const) {
        if (given.direction === (side === 'consequent' ? 'downstream' : 'prior')) continue
        const from = frontier.filter(({ entity }) => entity === relation[side].entity && (relation.onlyFrom ?? entity) === entity)
        if (from.length === 0) continue
        // One more than may be shown for each that is asked about tells whether something is left out.
        const found = await edgesOf(db, relation, side, from, given.maxNodes + edges.size + from.length)
        for (const { antecedent, consequent, label } of found) {
          const other = side === 'consequent' ? antecedent : consequent
          const key = keyOf(other)
          if (!nodes.has(key)) {
            if (nodes.size >= given.maxNodes) {
              truncated = true
              continue
            }
            nodes.set(key, other)
            next.push(other)
          }
          const edge = { source: keyOf(antecedent), target: keyOf(consequent), label }
          edges.set(JSON.stringify(edge), edge)
        }
      }
    }
    frontier = next
  }
  return { nodes, edges: [...edges.values()], truncated }
}

/** `entity:id`; of two activities of one id the second that was met has its version behind it. */
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

/** The neighbourhood of a record, breadth first; an edge leads from the antecedent. @throws Refusal as `rootOf` */
export const lineageOf = async (
  db: Db,
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
  const walked = await walk(db, root, {
    direction: query.direction ?? 'both',
    depth: bounded(query.depth, usualDepth, greatestDepth),
    maxNodes: bounded(query.maxNodes, usualNodes, mostNodes),
  })
  const keys = shownKeys(walked.nodes)
  const records = new Map<string, z.output<typeof Item>>()
  for (const one of catalogue) {
    const of = [...walked.nodes.values()].filter((node) => node.entity === one.name)
    if (of.length > 0) for (const [key, record] of await recordsOf(db, one, of)) records.set(key, record)
  }
  const nodes = [...walked.nodes].flatMap(([key, node]): Shown[] => {
    const record = records.get(key)
    // A link may name what was removed, or never stored.
    if (record === undefined) return []
    return [{ key: keys.get(key) ?? '', entity: node.entity, id: node.id, label: labelOf(record, node.id), record }]
  })
  const edges = walked.edges.flatMap(({ source, target, label }) =>
    records.has(source) && records.has(target) ? [{ source: keys.get(source) ?? '', target: keys.get(target) ?? '', label }] : [],
  )
  return { root: keys.get(keyOf(root)) ?? '', nodes, edges, truncated: walked.truncated }
}
