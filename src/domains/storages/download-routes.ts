import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { listRoute } from '../../http/list-route.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { Refusal, unacceptableAt } from '../../refusal.ts'
import { readStorage } from '../environments/storages.ts'
import { isReachedBy } from './connection.ts'
import { contentReply } from './content.ts'
import { refusing } from './errors.ts'
import type { Storages } from './open.ts'
import { DownloadRun, NewDownload } from './schemas.ts'
import { addDownload, listDownloads, readDownload, type Download } from './store.ts'
import { downloadView, pathOf, shown } from './view.ts'

/** The life of a URL that reads a file without a login. */
const urlSeconds = 900

const Kept = z.object({ id: z.string() })

/** Files prepared for download, and their bytes. */
export const downloadRoutes = ({ db, storages }: { db: Db; storages: Storages }): Route[] => {
  /**
   * Adds a URL where the storage can make one: only a bucket does, so no other is waited for. A
   * bucket that is unreachable now makes none.
   */
  const answer = async (download: Download): Promise<z.output<typeof DownloadRun>> => {
    if (download.status !== 'ready') return downloadView(download)
    try {
      if (!isReachedBy(await readStorage(db, download.storageId), 'bucket')) return downloadView(download)
      const { driver } = await storages.open(download.storageId)
      return downloadView(download, await driver.presign?.(download.path, urlSeconds))
    } catch {
      return downloadView(download)
    }
  }

  const idOf = (newId: string): string => `download-${newId}`
  const reply = async (download: Download): Promise<Reply> =>
    new Reply({
      body: await answer(download),
      location: `/storage-downloads/${encodeURIComponent(download.id)}/`,
    })

  return [
    route('startStorageDownload', 'POST /storages/{storageId}/downloads/', {
      summary: 'Prepare a file for download; its bytes are read when they are fetched',
      body: NewDownload,
      response: DownloadRun,
      status: 201,
      refuses: [503],
      audit: {
        eventType: 'storage.download.created',
        summary: 'download of storage {storageId} prepared',
      },
      // The URL opens the file without a login, and ends before the answer may be repeated last.
      renewed: {
        kept: ({ url: _, ...record }) => record,
        again: async (kept) => answer(await readDownload(db, Kept.parse(kept).id)),
      },
      made: async ({ newId }) => {
        const download = await readDownload(db, idOf(newId))
        return { createdAt: download.createdAt, answer: await reply(download) }
      },
      handle: async ({ params, body, signal, newId }) => {
        const { facts, driver } = await storages.open(params.storageId)
        const path = await pathOf(body, facts, 'body', true)
        const entry = await refusing('body', () => driver.stat(path, { signal }))
        if (entry.type !== 'file')
          throw unacceptableAt(
            'path',
            `${JSON.stringify(shown(path))} is ` +
              `${entry.type === 'special' ? 'a device, a FIFO or a socket' : `a ${entry.type}`}, not a file`,
          )
        const id = body.id ?? idOf(newId)
        const sizeBytes = entry.sizeBytes ?? 0
        return reply(await addDownload(db, { id, storageId: facts.id, path, sizeBytes }))
      },
    }),
    listRoute('listStorageDownloads', 'GET /storages/{storageId}/downloads/', {
      summary: 'Downloads, copies and archives of a storage, newest first',
      item: DownloadRun,
      read: async (page, { params }) => {
        await readStorage(db, params.storageId)
        const { rows, total } = await listDownloads(db, params.storageId, page)
        return { rows: rows.map((row) => downloadView(row)), total }
      },
    }),
    route('getStorageDownload', 'GET /storage-downloads/{downloadId}/', {
      summary: 'One download, copy or archive',
      response: DownloadRun,
      handle: async ({ params }) => answer(await readDownload(db, params.downloadId)),
    }),
    route('readStorageDownload', 'GET /storage-downloads/{downloadId}/content/', {
      summary: 'The bytes of a file as they are now; all, or one range',
      raw: ['application/octet-stream'],
      streams: true,
      alsoStatus: [206],
      refuses: [409, 416, 422, 503],
      handle: async ({ params, headers, signal }) => {
        const download = await readDownload(db, params.downloadId)
        if (download.status !== 'ready')
          throw new Refusal(
            'conflict',
            `the download is ${download.status}; its content can be read once it is ready`,
            {
              extra: { state: download.status },
            },
          )
        const { driver } = await storages.open(download.storageId)
        return contentReply(driver, download.path, { headers, signal })
      },
    }),
  ]
}
