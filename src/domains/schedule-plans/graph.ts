import type { Db } from '../../db/sql.ts'
import { loadGraph, type WorkflowGraph } from '../workflow-definitions/graph.ts'

/**
 * The graph of a content version that a plan, run or session names.
 * @throws Error where it is gone: a named version cannot be deleted
 */
export const plannedGraph = async (db: Db, contentVersionId: string): Promise<WorkflowGraph> => {
  const graph = await loadGraph(db, contentVersionId)
  if (graph === undefined) throw new Error(`workflow version ${JSON.stringify(contentVersionId)} is gone`)
  return graph
}
