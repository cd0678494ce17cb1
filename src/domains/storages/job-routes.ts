import type { Db } from '../../db/sql.ts'
import { isBelow, quotedPath, type StoragePath } from '../../drivers/storage/paths.ts'
import type { Engine } from '../../engine.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import type { Feed } from '../../operations/feed.ts'
import { dispatchOperation, operationRoutes, type OperationApi } from '../../operations/routes.ts'
import { Refusal, unacceptableAt } from '../../refusal.ts'
import { archivePath } from './archive.ts'
import { refusing } from './errors.ts'
import { downloadKind } from './job-kind.ts'
import { acceptJob } from './job-store.ts'
import { here, type RootedStorage, type Storages } from './open.ts'
import { DownloadRun, NewArchive, NewCopy } from './schemas.ts'
import { readDownload } from './store.ts'
import { downloadView, pathOf } from './view.ts'

export interface StorageJobParts {
  db: Db
  storages: Storages
  engine: Pick<Engine, 'start' | 'cancel' | 'live'>
  feed: Feed
  hostId: string
}

/** @throws Refusal 422 where a path must not be written */
const refuseUnwritable = ({ facts, roots }: RootedStorage, path: StoragePath, field: string): void => {
  if (facts.readOnly)
    throw unacceptableAt(field, `storage ${JSON.stringify(facts.id)} is read-only; choose another one`)
  const covering = roots.filter((root) => isBelow(path, root.path))
  if (covering.length === 0)
    throw unacceptableAt(
      field,
      `${quotedPath(path)} lies outside every root of storage ${JSON.stringify(facts.id)}; choose a path below one`,
    )
  const fixed = covering.find(({ readOnly }) => readOnly)
  if (fixed !== undefined)
    throw unacceptableAt(
      field,
      `the root ${quotedPath(fixed.path)} of storage ${JSON.stringify(facts.id)} is read-only; choose another path`,
    )
}

/** @throws Refusal 422 for a copy onto, or of a directory into, itself */
const refuseItself = (
  source: RootedStorage,
  from: StoragePath,
  target: RootedStorage,
  to: StoragePath,
): void => {
  if (source.place.at !== target.place.at) return
  const [start, end] = [
    [...source.place.base, ...from],
    [...target.place.base, ...to],
  ]
  if (!isBelow(end, start)) return
  throw unacceptableAt(
    'destinationPath',
    end.length === start.length
      ? 'is the entry itself; choose another path or another storage'
      : 'lies in the directory that is copied; choose a path outside of it',
  )
}

/** The storage that a body names. @throws Refusal 422 where there is none */
const openDestination = async (storages: Storages, id: string): Promise<RootedStorage> => {
  try {
    return await storages.open(id)
  } catch (error) {
    if (error instanceof Refusal && error.code === 'missing')
      throw unacceptableAt(
        'destinationStorageId',
        `${JSON.stringify(id)} is unknown; register the storage first`,
      )
    throw error
  }
}

/** Copies between storages and archives of directories, with their records. */
export const storageJobRoutes = (parts: StorageJobParts): Route[] => {
  const { db, storages, hostId } = parts
  const api: OperationApi = {
    ...parts,
    kind: downloadKind,
    path: '/storage-downloads/',
    parameter: 'downloadId',
  }
  const of = operationRoutes(api)
  const document = {
    schema: DownloadRun,
    read: async (id: string) => downloadView(await readDownload(db, id)),
  }
  const made = async (id: string) => {
    const body = await document.read(id)
    const headers = { location: `/storage-downloads/${encodeURIComponent(id)}/` }
    return { createdAt: body.createdAt, answer: new Reply({ body, headers }) }
  }
  const accepted = async (id: string): Promise<Reply> => {
    await dispatchOperation(api, { id, generation: 1 })
    return (await made(id)).answer
  }
  const hostOf = (...ends: RootedStorage[]): { hostId?: string } =>
    ends.some(({ place }) => place.at === here) ? { hostId } : {}

  return [
    route('startStorageCopy', 'POST /storages/{storageId}/copies/', {
      summary: 'Copy a file or a directory to a storage, merged into what is there',
      body: NewCopy,
      response: DownloadRun,
      status: 202,
      refuses: [503],
      audit: {
        eventType: 'storage.copy.created',
        summary: 'a copy from storage {storageId} accepted',
      },
      made: ({ newId }) => made(`copy-${newId}`),
      handle: async ({ params, body, signal, newId }) => {
        const source = await storages.open(params.storageId)
        const path = await pathOf(body, source.facts, 'body', true)
        const target = await openDestination(storages, body.destinationStorageId)
        const to = { path: body.destinationPath, pathBytes: body.destinationPathBytes }
        const isNamed = to.path !== undefined || to.pathBytes !== undefined
        const destinationPath = isNamed
          ? await pathOf(to, target.facts, 'body', true, 'destinationPath')
          : path
        const entry = await refusing('body', () => source.driver.stat(path, { signal }))
        if (entry.type !== 'file' && entry.type !== 'directory')
          throw unacceptableAt('path', `${quotedPath(path)} is neither a file nor a directory; name one`)
        if (entry.type === 'file' && destinationPath.length === 0)
          throw unacceptableAt('destinationPath', 'is the storage itself; name the new file')
        refuseUnwritable(target, destinationPath, isNamed ? 'destinationPath' : 'destinationStorageId')
        refuseItself(source, path, target, destinationPath)
        const id = body.id ?? `copy-${newId}`
        await acceptJob(db, {
          ...{ id, storageId: source.facts.id, path, destinationStorageId: target.facts.id, destinationPath },
          ...{
            strategy: `copy:${target.facts.id}`,
            onConflict: body.onConflict ?? 'fail',
            bytesPerSecond: body.bytesPerSecond,
          },
          ...hostOf(source, target),
        })
        return accepted(id)
      },
    }),
    route('startStorageArchive', 'POST /storages/{storageId}/archives/', {
      summary: 'Pack a directory into a .tar.gz beside it, which is ready for download then',
      body: NewArchive,
      response: DownloadRun,
      status: 202,
      refuses: [503],
      audit: {
        eventType: 'storage.archive.created',
        summary: 'an archive in storage {storageId} accepted',
      },
      made: ({ newId }) => made(`archive-${newId}`),
      handle: async ({ params, body, signal, newId }) => {
        const storage = await storages.open(params.storageId)
        const path = await pathOf(body, storage.facts, 'body', true)
        const entry = await refusing('body', () => storage.driver.stat(path, { signal }))
        if (entry.type !== 'directory')
          throw unacceptableAt(
            'path',
            `${quotedPath(path)} is no directory; name one, or download the file as it is`,
          )
        const destinationPath = archivePath(path)
        if (destinationPath === undefined)
          throw unacceptableAt(
            'path',
            'is the storage itself, beside which nothing can lie; name a directory in it',
          )
        refuseUnwritable(storage, destinationPath, 'path')
        const id = body.id ?? `archive-${newId}`
        await acceptJob(db, {
          ...{
            id,
            storageId: storage.facts.id,
            path,
            destinationStorageId: storage.facts.id,
            destinationPath,
          },
          ...{ strategy: 'archive', onConflict: body.onConflict ?? 'fail', ...hostOf(storage) },
        })
        return accepted(id)
      },
    }),
    of.cancel({
      summary: 'Ask for the end of a copy or an archive; what is unfinished at the destination goes',
      document,
    }),
    of.retry({ summary: 'Go on with a copy or an archive that has failed', document }),
    of.events(),
  ]
}
