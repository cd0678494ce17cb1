import { fileId, recordRun } from '../../bench/provenance/rows.ts'
import type { Db } from '../../src/db/sql.ts'
import { closureOf } from '../../src/domains/provenance/closure.ts'
import { openRunGraphs } from '../../src/domains/provenance/run-graphs.ts'

/**
 * Records a run whose activities follow one another, each with one file, and walks the lineage of
 * the last file. @returns the files and tasks that it found
 */
export const stepsOfChain = async (db: Db, activities: number): Promise<number> => {
  const edges = Array.from({ length: activities - 1 }, (_, n) => [n, n + 1] as const)
  await recordRun(db, { name: 'deep', activities, edges })
  let found = 0
  await db.transaction(async (tx) => {
    const root = { entity: 'data_instances', id: fileId('deep', activities - 1, 0) }
    for await (const nodes of closureOf(tx, openRunGraphs(), root, 'prior'))
      found += nodes.filter(({ entity }) => ['data_instances', 'task_executions'].includes(entity)).length
  })
  return found
}
