import { z } from 'zod'
import { sql } from '../../db/sql.ts'
import type { OperationKind } from '../../operations/kind.ts'

/** Index runs as operations. */
export const indexKind: OperationKind<'storageIndex'> = {
  name: 'storage-index',
  workflow: 'storageIndex',
  idInLog: 'indexRunId',
  noun: 'storage index run',
  table: 'storage_index_runs',
  columns: { failure_reason: 'error' },
  states: { accepted: 'queued', running: 'running' },
  events: 'storage.index',
  cancelEnds: 'accepted',
  pageSummary: async (db, id) => {
    const storageId = await db.value(
      z.string(),
      sql`select storage_id from storage_index_runs where id = ${id}`,
    )
    return storageId === undefined
      ? undefined
      : {
          line: `index of storage ${storageId}`,
          path: `/storages/${encodeURIComponent(storageId)}/index-runs/`,
        }
  },
  audit: (id, change) => ({ eventType: `storage.index.${change}`, externalId: id }),
}
