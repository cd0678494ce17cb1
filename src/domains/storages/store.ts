import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { sql, type Db } from '../../db/sql.ts'
import type { StoragePath } from '../../drivers/storage/paths.ts'
import type { Page } from '../../http/paging.ts'
import { existing, unacceptableAt } from '../../refusal.ts'
import { pathOfStored, storedPath } from './job-store.ts'
import { DownloadRun } from './schemas.ts'

const DownloadRow = DownloadRun.omit({ url: true, pathBytes: true, destinationPathBytes: true }).extend({
  path: z.instanceof(Uint8Array),
  destinationPath: z.instanceof(Uint8Array).optional(),
})
export type Download = Omit<z.output<typeof DownloadRow>, 'path' | 'destinationPath'> & {
  path: StoragePath
  destinationPath?: StoragePath | undefined
}

const columns = sql`id, storage_id, path, strategy, status, size_bytes, transferred_bytes, sent_bytes,
  verification, route, error,
  destination_storage_id, destination_path,
  entries, skipped_entries, live, created_at, greatest(updated_at, started_at, finished_at) as updated_at`
const downloadOf = ({ path, destinationPath, ...row }: z.output<typeof DownloadRow>): Download => {
  const download = { ...row, path: pathOfStored(path) }
  if (destinationPath === undefined) return download
  // A complete archive is a readable file.
  if (row.strategy === 'archive' && row.status === 'completed')
    return { ...download, status: 'ready', path: pathOfStored(destinationPath) }
  return { ...download, destinationPath: pathOfStored(destinationPath) }
}

/** Records a file that is readable at once. @throws Refusal 422 for an id that is taken */
export const addDownload = async (
  db: Db,
  given: { id: string; storageId: string; path: StoragePath; sizeBytes: number },
): Promise<Download> => {
  const row = await db.maybe(
    DownloadRow,
    sql`insert into storage_downloads (id, storage_id, path, strategy, status, size_bytes)
        values (${given.id}, ${given.storageId}, ${storedPath(given.path)}, 'stream', 'ready', ${given.sizeBytes})
        on conflict on constraint storage_downloads_pkey do nothing returning ${columns}`,
  )
  if (row === undefined) throw unacceptableAt('id', `${JSON.stringify(given.id)} is taken; choose another id`)
  return downloadOf(row)
}

/** @throws Refusal 404 */
export const readDownload = async (db: Db, id: string): Promise<Download> => {
  const row = await db.maybe(DownloadRow, sql`select ${columns} from storage_downloads where id = ${id}`)
  return downloadOf(existing(row, 'storage download', id))
}

/** Of one storage, newest first. */
export const listDownloads = async (
  db: Db,
  storageId: string,
  page: Page,
): Promise<{ rows: Download[]; total: number }> => {
  const { rows, total } = await readPage(db, DownloadRow, {
    select: columns,
    from: sql`storage_downloads where storage_id = ${storageId}`,
    order: sql`created_at desc, id desc`,
    page,
  })
  return { rows: rows.map(downloadOf), total }
}
