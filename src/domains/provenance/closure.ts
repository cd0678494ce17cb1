import { Readable } from 'node:stream'
import { sql, type Db } from '../../db/sql.ts'
import type { Entity } from './catalogue.ts'
import { rootOf } from './lineage.ts'
import { edgesOf, keyOf, relations, type Node, type Relation } from './relations.ts'
import type { RunGraphs } from './run-graphs.ts'

/** Records that one query is asked about. */
const batch = 5_000

const inRuns = new Set(['task_executions', 'data_instances'])

/** Between files and tasks of one run; the graphs in memory have them. */
const ofGraphs = ({ label, antecedent, consequent }: Relation): boolean =>
  inRuns.has(antecedent.entity) && inRuns.has(consequent.entity) && (label === 'data_uses' || label === 'task_execution_id')

interface RunOf {
  id: string
  run: string
}

/** Ids of `nodes` by the run that they are part of. */
const byRun = async (db: Db, entity: string, ids: readonly string[]): Promise<Map<string, string[]>> => {
  const table = entity === 'task_executions' ? 'task_executions' : 'data_object_instances'
  const rows = await db.prepared<RunOf>(`run_of_${table}`, `select id, execution_run_id as run from ${table} where id = any($1::text[])`, [
    ids,
  ])
  const runs = new Map<string, string[]>()
  for (const { id, run } of rows) {
    const list = runs.get(run) ?? []
    list.push(id)
    runs.set(run, list)
  }
  return runs
}

const slices = <Item>(items: readonly Item[]): Item[][] =>
  Array.from({ length: Math.ceil(items.length / batch) }, (_, i) => items.slice(i * batch, (i + 1) * batch))

/**
 * Every ancestor (`prior`) or descendant of a record, without itself, each once. Links between records are asked of the database, many at a time;
 * the files and tasks of a run come from its graph in memory. To be called in a transaction that sees one state of the database.
 */
export async function* closureOf(tx: Db, graphs: RunGraphs, root: Node, direction: 'prior' | 'downstream'): AsyncGenerator<Node[]> {
  const side = direction === 'prior' ? 'consequent' : 'antecedent'
  const linked = relations.filter((relation) => !ofGraphs(relation))
  const seen = new Set([keyOf(root)])
  const fresh = (nodes: readonly Node[]): Node[] =>
    nodes.filter((node) => {
      const key = keyOf(node)
      if (seen.has(key)) return false
      seen.add(key)
      return true
    })
  let pending: Node[] = [root]
  while (pending.length > 0) {
    const asked = pending
    pending = []
    const inside = await reached(tx, graphs, asked, direction)
    const found = fresh(inside)
    if (found.length > 0) yield found
    // What a graph reached is whole within its run: only its links are left to ask.
    const from = [...asked, ...found]
    for (const relation of linked) {
      const nodes = from.filter(({ entity }) => entity === relation[side].entity && (relation.onlyFrom ?? entity) === entity)
      for (const slice of slices(nodes)) {
        const edges = await edgesOf(tx, relation, side, slice, undefined)
        const next = fresh(edges.map((edge) => (side === 'consequent' ? edge.antecedent : edge.consequent)))
        if (next.length === 0) continue
        yield next
        pending.push(...next)
      }
    }
  }
}

/** Files and tasks of the same runs that the given ones lead to or come of. */
const reached = async (tx: Db, graphs: RunGraphs, nodes: readonly Node[], direction: 'prior' | 'downstream'): Promise<Node[]> => {
  const ids = (entity: string): string[] => nodes.filter((node) => node.entity === entity).map(({ id }) => id)
  const tasks = await byRun(tx, 'task_executions', ids('task_executions'))
  const files = await byRun(tx, 'data_instances', ids('data_instances'))
  const found: Node[] = []
  for (const runId of new Set([...tasks.keys(), ...files.keys()])) {
    const graph = await graphs.of(tx, runId)
    const reach = graph?.reach({ tasks: tasks.get(runId) ?? [], files: files.get(runId) ?? [] }, direction)
    for (const id of reach?.tasks ?? []) found.push({ entity: 'task_executions', id })
    for (const id of reach?.files ?? []) found.push({ entity: 'data_instances', id })
  }
  return found
}

const line = ({ entity, id, versionId }: Node): string =>
  JSON.stringify({ entity, id, ...(versionId === undefined ? {} : { workflowVersionId: versionId }) })

/** The closure as NDJSON. A missing record is refused before the stream begins. */
export const closureStream = async (
  db: Db,
  graphs: RunGraphs,
  entity: Entity,
  id: string,
  query: { direction?: 'prior' | 'downstream' | undefined; workflowVersionId?: string | undefined },
): Promise<Readable> => {
  const root = await rootOf(db, entity, id, query.workflowVersionId)
  // Collected in one transaction, which nobody's slow reading holds open.
  const text: string[] = []
  await db.transaction(async (tx) => {
    await tx.run(sql`set transaction isolation level repeatable read, read only`)
    for await (const nodes of closureOf(tx, graphs, root, query.direction ?? 'prior')) text.push(`${nodes.map(line).join('\n')}\n`)
  })
  return Readable.from(text, { objectMode: false })
}
