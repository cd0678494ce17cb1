import { Readable } from 'node:stream'
import { append } from '../../lists.ts'
import type { Db } from '../../db/sql.ts'
import type { Entity } from './catalogue.ts'
import { rootOf } from './lineage.ts'
import { nodeKeyOf, stepOf, type Node } from './relations.ts'
import type { GraphsSeen, RunGraphs } from './run-graphs.ts'

/** The number of records in one query. */
const batch = 5_000

const slices = <Item>(items: readonly Item[]): Item[][] =>
  Array.from({ length: Math.ceil(items.length / batch) }, (_, i) => items.slice(i * batch, (i + 1) * batch))

/**
 * Every ancestor (`prior`) or descendant of a record, without the record itself, each once. Links
 * between records come from the database, many per query. The files and tasks of a run come from
 * its graph in memory. The caller's transaction has to see one state of the database.
 */
export async function* closureOf(
  tx: Db,
  graphs: RunGraphs,
  root: Node,
  direction: 'prior' | 'downstream',
): AsyncGenerator<Node[]> {
  const side = direction === 'prior' ? 'consequent' : 'antecedent'
  const seenGraphs = graphs.seenBy(tx)
  const seen = new Set([nodeKeyOf(root)])
  const fresh = (nodes: readonly Node[]): Node[] =>
    nodes.filter((node) => {
      const key = nodeKeyOf(node)
      if (seen.has(key)) return false
      seen.add(key)
      return true
    })
  let pending: Node[] = [root]
  while (pending.length > 0) {
    const asked = pending
    pending = []
    const inside = await reached(seenGraphs, asked, direction)
    const found = fresh(inside)
    if (found.length > 0) yield found
    // The nodes that a graph reached are complete within their run: only their links remain to be
    // queried.
    for (const slice of slices([...asked, ...found])) {
      const step = await stepOf(tx, side, slice, undefined)
      const next = fresh(step.map(({ edge }) => (side === 'consequent' ? edge.antecedent : edge.consequent)))
      if (next.length === 0) continue
      yield next
      append(pending, next)
    }
  }
}

/** Files and tasks of the same runs that descend from the given ones, or are their ancestors. */
const reached = async (
  graphs: GraphsSeen,
  nodes: readonly Node[],
  direction: 'prior' | 'downstream',
): Promise<Node[]> => {
  const ids = (entity: string): string[] => nodes.filter((node) => node.entity === entity).map(({ id }) => id)
  const tasks = await graphs.byRun('task_executions', ids('task_executions'))
  const files = await graphs.byRun('data_instances', ids('data_instances'))
  const found: Node[] = []
  for (const runId of new Set([...tasks.keys(), ...files.keys()])) {
    const graph = await graphs.of(runId)
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
  // Collected in one transaction, so that a slow reader does not hold the transaction open.
  const text: string[] = []
  await db.snapshot(async (tx) => {
    for await (const nodes of closureOf(tx, graphs, root, query.direction ?? 'prior'))
      text.push(`${nodes.map(line).join('\n')}\n`)
  })
  return Readable.from(text, { objectMode: false })
}
