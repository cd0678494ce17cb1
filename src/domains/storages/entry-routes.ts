import { z } from 'zod'
import { Reply, route, type Route } from '../../http/route.ts'
import { versionsAt, type LostPlace } from '../artifacts/store.ts'
import { refusing, storageRefusal, type PathPosition } from './errors.ts'
import type { Storages } from './open.ts'
import { recordLoss, type StorageRouteParts } from './promoted.ts'
import {
  Checksum,
  EntriesQuery,
  FileEntry,
  Listing,
  PathOnly,
  PathQuery,
  Uploaded,
  UploadQuery,
} from './schemas.ts'
import { entryAt, shownAt } from './send.ts'
import { largestUpload, openUploads } from './upload.ts'
import { cursorOf, entryView, pathOf, readCursor, uriOf } from './view.ts'
import { StorageError, type StorageDriver } from '../../drivers/storage/contract.ts'
import { pathInAnswer, type StoragePath } from '../../drivers/storage/paths.ts'

interface ChangeOfEntry {
  params: { storageId: string }
  query: { path?: string | undefined; pathBytes?: string | undefined }
  headers: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
}

const isOnlyNew = ({ headers }: Pick<ChangeOfEntry, 'headers'>): boolean =>
  headers['if-none-match']?.trim() === '*'

/**
 * The tag of the entry that a change names; undefined where there is none. An entry whose storage
 * has no tags matches `*` alone.
 */
const tagOf =
  (storages: Storages, place: PathPosition) =>
  async (change: ChangeOfEntry): Promise<string | undefined> => {
    const { params, query, headers, signal } = change
    const { facts, driver } = await storages.open(params.storageId)
    const path = await pathOf(query, facts, place, true)
    const isUpload = place === 'body' && isOnlyNew(change) && headers['if-match'] === undefined
    // The storage itself refuses an upload under a name that is taken and not shown to this login.
    const entry = await refusing(place, () => (isUpload ? shownAt : entryAt)(driver, path, signal))
    return entry === undefined ? undefined : (entry.etag ?? '""')
  }

/** The entry that a change names, in one spelling. */
const entryOf = ({ query: { path = '', pathBytes } }: ChangeOfEntry): string =>
  pathBytes ?? Buffer.from(path).toString('base64')

const isMissing = (answer: Promise<unknown>): Promise<boolean> =>
  answer.then(
    () => false,
    (error: unknown) => error instanceof StorageError && ['missing', 'notDirectory'].includes(error.fault),
  )

/**
 * Whether the storage says that nothing has the name or is below it: a bucket shows a directory only
 * to a login that may list.
 */
const isAbsent = async (driver: StorageDriver, path: StoragePath, signal: AbortSignal): Promise<boolean> =>
  (await isMissing(driver.stat(path, { signal }))) &&
  (await isMissing(driver.list(path, { limit: 1, signal })))

/**
 * Deletes a file or a link. `onGone` learns of every path that nothing has any more, with what was
 * below it: also of one that was removed at its site, where nothing is left to delete. Of one that
 * may still be a directory it learns that no file has it.
 */
const deleteEntry = async (
  driver: StorageDriver,
  path: StoragePath,
  signal: AbortSignal,
  onGone: (what: Pick<LostPlace, 'below' | 'fileOnly'>) => Promise<void>,
): Promise<void> => {
  try {
    await driver.delete(path, { signal })
  } catch (error) {
    if (error instanceof StorageError && error.unlisted) await onGone({ fileOnly: true })
    else if (error instanceof StorageError && !error.passes && (await isAbsent(driver, path, signal)))
      await onGone({ below: true })
    throw storageRefusal(error, 'query')
  }
  await onGone({})
}

const usualPage = 100
const largestPage = 500

/** Directories and entries of storages. */
export const entryRoutes = ({ db, storages, promoted }: StorageRouteParts): Route[] => {
  const lose = (place: LostPlace): Promise<void> => recordLoss({ db, promoted }, place)
  const takeUpload = openUploads()
  const stat = async (
    storageId: string,
    query: { path?: string | undefined; pathBytes?: string | undefined },
    signal: AbortSignal,
  ) => {
    const { facts, driver } = await storages.open(storageId)
    const path = await pathOf(query, facts, 'query', false)
    const entry = entryView(facts.id, path, await refusing('query', () => driver.stat(path, { signal })))
    const uri = uriOf(facts.id, path)
    const [artifacts, data] =
      entry.type === 'symlink' ? [[], []] : [await versionsAt(db, uri), await promoted.at(db, uri)]
    const promotedAs = [
      ...data.map((id) => ({ kind: 'data' as const, id })),
      ...artifacts.map((id) => ({ kind: 'artifact' as const, id })),
    ]
    return promotedAs.length === 0 ? entry : { ...entry, promotedAs }
  }
  const statRoute = (id: string, name: 'stat' | 'entry', summary: string): Route =>
    route(id, `GET /storages/{storageId}/${name}/`, {
      summary,
      query: z.strictObject(PathQuery),
      response: FileEntry,
      refuses: [422, 503],
      handle: ({ params, query, signal }) => stat(params.storageId, query, signal),
    })

  return [
    route('listStorageEntries', 'GET /storages/{storageId}/entries/', {
      summary: 'One level of a directory, page by page; above the roots, the way to them',
      query: EntriesQuery,
      response: Listing,
      refuses: [422, 503],
      handle: async ({ params, query, signal }) => {
        const { facts, driver } = await storages.open(params.storageId)
        const path = await pathOf(query, facts, 'query', false)
        const asked = query.limit ?? usualPage
        const limit = asked < 1 || asked > largestPage ? usualPage : asked
        const after = query.cursor === undefined ? undefined : readCursor(query.cursor, facts.id, path)
        const { entries, next } = await refusing('query', () => driver.list(path, { limit, after, signal }))
        return {
          storageId: facts.id,
          ...pathInAnswer(path),
          entries: entries.map((entry) => entryView(facts.id, [...path, entry.name], entry)),
          ...(next === undefined ? {} : { nextCursor: cursorOf(facts.id, path, next) }),
        }
      },
    }),
    statRoute(
      'statStorageEntry',
      'stat',
      'One entry, without a path the endpoint itself; a symbolic link is not followed',
    ),
    statRoute('getStorageEntry', 'entry', 'The same as stat, for older clients'),
    route('writeStorageEntry', 'PUT /storages/{storageId}/entries/', {
      summary:
        'Upload a file as it is; with Content-Range in parts, which go on where an earlier one was cut',
      query: UploadQuery,
      upload: { types: ['*/*'], limitBytes: largestUpload },
      current: tagOf(storages, 'body'),
      subject: entryOf,
      response: Uploaded,
      status: 201,
      alsoStatus: [200, 202],
      refuses: [404, 409, 422, 503],
      audit: {
        eventType: 'storage.entry.uploaded',
        summary: 'file uploaded to storage {storageId}',
      },
      handle: async ({ params, query, upload, headers, signal }) => {
        const opened = await storages.open(params.storageId)
        const { facts } = opened
        const path = await pathOf(query, facts, 'body', true)
        const contentRange = headers['content-range']
        const { receivedBytes, entry, sha256 } = await takeUpload(opened, path, {
          upload,
          overwrite: query.overwrite === 'true' && !isOnlyNew({ headers }),
          contentRange,
          signal,
        })
        const complete = entry !== undefined
        if (complete) await lose({ uri: uriOf(facts.id, path), digest: sha256 && `sha256:${sha256}` })
        return new Reply({
          status: complete ? 201 : 202,
          body: {
            ...{ storageId: facts.id, ...pathInAnswer(path), receivedBytes, complete },
            ...(sha256 === undefined ? {} : { checksum: `sha256:${sha256}` }),
            ...(entry === undefined ? {} : { entry: entryView(facts.id, path, entry) }),
          },
        })
      },
    }),
    route('deleteStorageEntry', 'DELETE /storages/{storageId}/entries/', {
      summary: 'Delete a file or a link; directories are not deleted',
      query: z.strictObject(PathQuery),
      refuses: [422, 503],
      current: tagOf(storages, 'query'),
      subject: entryOf,
      audit: {
        eventType: 'storage.entry.deleted',
        summary: 'entry of storage {storageId} deleted',
      },
      handle: async ({ params, query, signal }) => {
        const { facts, driver } = await storages.open(params.storageId)
        const path = await pathOf(query, facts, 'query', true)
        await deleteEntry(driver, path, signal, (what) => lose({ uri: uriOf(facts.id, path), ...what }))
      },
    }),
    route('checksumStorageEntry', 'POST /storages/{storageId}/checksum/', {
      summary: 'SHA-256 of a file',
      body: PathOnly,
      response: Checksum,
      status: 200,
      refuses: [503],
      audit: false,
      handle: async ({ params, body, signal }) => {
        const { facts, driver } = await storages.open(params.storageId)
        const path = await pathOf(body, facts, 'body', true)
        return { checksum: `sha256:${await refusing('body', () => driver.digest(path, { signal }))}` }
      },
    }),
  ]
}
