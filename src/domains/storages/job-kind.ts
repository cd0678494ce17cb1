import { z } from 'zod'
import { sql } from '../../db/sql.ts'
import type { OperationKind } from '../../operations/kind.ts'

const SummaryRow = z.object({ storageId: z.string(), strategy: z.string() })

/**
 * Copies and archives as operations. They are one kind because they share their records and the
 * routes of these.
 */
export const downloadKind: OperationKind<'storageDownload'> = {
  name: 'storage-download',
  workflow: 'storageDownload',
  idInLog: 'downloadId',
  noun: 'storage download',
  table: 'storage_downloads',
  columns: { failure_reason: 'error' },
  states: { accepted: 'queued', running: 'streaming' },
  events: 'storage.download',
  cancelEnds: 'accepted',
  pageSummary: async (db, id) => {
    const row = await db.maybe(
      SummaryRow,
      sql`select storage_id, strategy from storage_downloads where id = ${id}`,
    )
    return (
      row && {
        line: `${row.strategy} of storage ${row.storageId}`,
        path: `/storage-downloads/${encodeURIComponent(id)}/`,
      }
    )
  },
  audit: (id, change) => ({ eventType: `storage.download.${change}`, externalId: id }),
}
