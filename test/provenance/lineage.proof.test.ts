import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { recordRun } from '../../bench/provenance/rows.ts'
import { sql, type Db } from '../../src/db/sql.ts'
import { knownEntity, lineageOf } from '../../src/domains/provenance/lineage.ts'
import { nodeKeyOf, relations, type Edge, type Node } from '../../src/domains/provenance/relations.ts'
import { openRunGraphs } from '../../src/domains/provenance/run-graphs.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'

let clone: TestDatabase
beforeAll(async () => {
  clone = await cloneDatabase()
})
afterAll(() => clone.drop())

const shown = ({ entity, id }: Node): string => `${entity}:${id}`

interface Link extends Edge {
  /** Only a record of this entity leads along the edge. */
  onlyFrom: string | undefined
}

/** Every edge of the database, from the views alone. */
const allLinks = async (db: Db): Promise<Link[]> => {
  const links: Link[] = []
  for (const { antecedent, consequent, from, condition, label, onlyFrom } of relations) {
    const columns = [...antecedent.columns, ...consequent.columns]
    const rows = await db.prepared<Record<string, string | null>>(
      `links_${String(links.length)}_${label}`,
      `select ${columns.map((column, n) => `${column} as c${String(n)}`).join(', ')} from ${from} ` +
        `where ${condition ?? 'true'}`,
      [],
    )
    for (const row of rows) {
      const values = columns.map((_, n) => row[`c${String(n)}`] ?? undefined)
      const node = (entity: string, given: (string | undefined)[]): Node => {
        const [id = '', versionId] = given.toReversed()
        return { entity, id, ...(versionId === undefined ? {} : { versionId }) }
      }
      if (values.includes(undefined)) continue
      links.push({
        antecedent: node(antecedent.entity, values.slice(0, antecedent.columns.length)),
        consequent: node(consequent.entity, values.slice(antecedent.columns.length)),
        ...{ label, onlyFrom },
      })
    }
  }
  return links
}

/** The neighbourhood of a record by the edges that lead from it, step by step. */
const stepwise = (links: readonly Link[], root: Node, direction: string, depth: number) => {
  const nodes = new Map([[nodeKeyOf(root), root]])
  const edges = new Set<string>()
  let frontier = new Set(nodes.keys())
  for (let step = 0; step < depth; step++) {
    const next = new Set<string>()
    for (const { antecedent, consequent, label, onlyFrom } of links)
      for (const [from, to, against] of [
        [consequent, antecedent, 'downstream'],
        [antecedent, consequent, 'prior'],
      ] as const) {
        if (direction === against || !frontier.has(nodeKeyOf(from))) continue
        if ((onlyFrom ?? from.entity) !== from.entity) continue
        edges.add(`${shown(antecedent)} ${label} ${shown(consequent)}`)
        if (nodes.has(nodeKeyOf(to))) continue
        nodes.set(nodeKeyOf(to), to)
        next.add(nodeKeyOf(to))
      }
    frontier = next
  }
  return { nodes: [...nodes.values()].map(shown).toSorted(), edges: [...edges].toSorted() }
}

test('a neighbourhood is that of the relations, asked one by one', async () => {
  const { db } = clone
  const edges = Array.from({ length: 30 }, (_, to) =>
    to === 0 ? [] : [...new Set([to >> 1, Math.max(0, to - 3)])].map((from) => [from, to] as const),
  ).flat()
  const declared = new Map([
    [9, [{ producer: 4, name: 'out/a4-0.dat' }]],
    [16, [{ producer: 8, name: 'out/a8-1.dat' }]],
  ])
  await recordRun(db, { name: 'w', activities: 30, edges, files: (position) => position % 3, declared })
  await recordRun(db, { name: 'other', activities: 3, edges: [[0, 1] as const, [1, 2] as const] })
  await db.run(sql`insert into data_transfer_observations (id, execution_run_id, producer_activity_id,
      consumer_activity_id, source_resource_id, target_resource_id, bytes, status, started_at, finished_at,
      duration_seconds)
    select 'moved-' || n, 'w-run', 'w-a' || n / 2, 'w-a' || n, 'w-host', 'w-host', 5, 'completed', 1, 2, 1
      from generate_series(4, 9) n`)
  await db.run(sql`insert into planning_sessions (id, workflow_version_id, execution_scope_id,
      algorithms, selected_plan_id) values ('session', 'w-v1', 'w-scope', '[]', 'w-plan')`)
  await db.run(sql`insert into resources (id, environment_version_id, name, provider_id, type,
      parent_resource_id) values ('child', 'w-env', 'child', 'child', 'host', 'w-host')`)
  await db.run(sql`update resources set parent_resource_id = 'child' where id = 'other-host'`)

  const roots: [entity: string, id: string][] = [
    ['data_instances', 'file-w-29-1'],
    ['data_instances', 'file-w-4-0'],
    ['task_executions', 'w-run:w-a16'],
    ['task_executions', 'other-run:other-a2'],
    ['transfers', 'moved-8'],
    ['data_uses', 'file-w-4-0:w-run:w-a9'],
    ['runs', 'w-run'],
    ['planning_sessions', 'session'],
    ['resources', 'other-host'],
    ['activities', 'w-a9'],
    ['data_objects', 'data-w-8-1'],
  ]
  const graphs = openRunGraphs()
  await db.run(sql`analyze`)
  const links = await allLinks(db)
  let compared = 0
  for (const [entity, id] of roots)
    for (const direction of ['prior', 'downstream', 'both'] as const)
      for (const depth of [1, 3, 5]) {
        const asked = { direction, depth, maxNodes: 500 }
        const found = await lineageOf(db, graphs, knownEntity(entity), id, asked)
        const root = { entity, id, ...(entity === 'activities' ? { versionId: 'w-v1' } : {}) }
        const own = {
          nodes: found.nodes.map(({ key }) => key).toSorted(),
          edges: found.edges.map(({ source, target, label }) => `${source} ${label} ${target}`).toSorted(),
        }
        expect([asked, found.truncated, own]).toEqual([
          ...[asked, false],
          stepwise(links, root, direction, depth),
        ])
        compared += found.nodes.length
      }
  // So that empty answers on both sides are no success.
  expect(compared).toBeGreaterThan(3_000)
}, 600_000)
