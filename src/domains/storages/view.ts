import { z } from 'zod'
import type { Entry } from '../../drivers/storage/contract.ts'
import {
  bytesOf,
  nameOf,
  nameOfBytes,
  parsePath,
  pathInAnswer,
  textOf,
  type ByteName,
  type StoragePath,
} from '../../drivers/storage/paths.ts'
import { present } from '../../json-object.ts'
import { invalid, unacceptableAt } from '../../refusal.ts'
import type { StorageFacts } from '../environments/storages.ts'
import { startsOf } from './connection.ts'
import { refusing, type PathPosition } from './errors.ts'
import type { DownloadRun, FileEntry } from './schemas.ts'
import type { Download } from './store.ts'

/**
 * The path in a client's request, as text or as bytes; `field` is its name in the body.
 * @throws Refusal 422 for one that leads upwards, 400 for bytes that are not base64
 */
export const pathOf = async (
  given: { path?: string | undefined; pathBytes?: string | undefined },
  facts: StorageFacts,
  place: PathPosition,
  isNeeded: boolean,
  field = 'path',
): Promise<StoragePath> => {
  const { path, pathBytes } = given
  if (path === undefined && pathBytes === undefined && isNeeded) {
    if (place === 'query')
      throw invalid('path is required; name an entry', [{ path: 'path', message: 'is required' }])
    throw unacceptableAt('path', 'is required')
  }
  if (path !== undefined && path !== '' && pathBytes !== undefined)
    throw unacceptableAt(`${field}Bytes`, `stands beside ${field}; give one of them`)
  if (pathBytes !== undefined && !/^[A-Za-z0-9+/]*={0,2}$/.test(pathBytes))
    throw invalid(`${field}Bytes is no base64; encode the bytes of the path`, [
      { path: `${field}Bytes`, message: 'must be base64' },
    ])
  const name = pathBytes === undefined ? nameOf(path ?? '') : nameOfBytes(Buffer.from(pathBytes, 'base64'))
  return refusing('body', async () => parsePath(name, ...startsOf(facts)), field)
}

const mediaTypes: Readonly<Record<string, string>> = {
  csv: 'text/csv',
  fits: 'application/fits',
  gz: 'application/gzip',
  h5: 'application/x-hdf5',
  hdf5: 'application/x-hdf5',
  html: 'text/html',
  jpg: 'image/jpeg',
  jpeg: 'image/jpeg',
  json: 'application/json',
  log: 'text/plain',
  md: 'text/markdown',
  nc: 'application/x-netcdf',
  parquet: 'application/vnd.apache.parquet',
  pdf: 'application/pdf',
  png: 'image/png',
  py: 'text/x-python',
  sh: 'application/x-sh',
  sif: 'application/vnd.sylabs.sif',
  svg: 'image/svg+xml',
  tar: 'application/x-tar',
  tif: 'image/tiff',
  tiff: 'image/tiff',
  tsv: 'text/tab-separated-values',
  txt: 'text/plain',
  xml: 'application/xml',
  yaml: 'application/yaml',
  yml: 'application/yaml',
  zip: 'application/zip',
  zst: 'application/zstd',
}

/** By the ending of the name. */
export const mediaTypeOf = (name: string): string | undefined =>
  mediaTypes[/\.([a-z0-9]+)$/i.exec(name)?.[1]?.toLowerCase() ?? '']

/** The years 0 to 9999: RFC 3339 and HTTP write a year with four digits. */
const firstTime = Date.parse('0000-01-01T00:00:00.000Z')
const lastTime = Date.parse('9999-12-31T23:59:59.999Z')

/** A time from milliseconds since the epoch; undefined for one that no answer can name. */
export const dateOf = (milliseconds: number | undefined): Date | undefined =>
  milliseconds !== undefined && milliseconds >= firstTime && milliseconds <= lastTime
    ? new Date(milliseconds)
    : undefined

/** A time in the form of answers, from milliseconds since the epoch; undefined as of `dateOf`. */
export const timeInAnswer = (milliseconds: number | undefined): string | undefined =>
  dateOf(milliseconds)?.toISOString()

/**
 * An entry in the form of answers. An entry that is neither file, directory nor link appears as an
 * unreadable file.
 */
export const entryView = (storageId: string, path: StoragePath, entry: Entry): z.output<typeof FileEntry> => {
  const name = textOf(entry.name)
  const { type, sizeBytes, etag, readable, writable, linkTarget } = entry
  return present({
    ...{ storageId, ...pathInAnswer(path), name, type: type === 'special' ? 'file' : type, sizeBytes, etag },
    ...{ modifiedAt: timeInAnswer(entry.modifiedAt), readable, writable },
    mediaType: type === 'file' ? mediaTypeOf(name) : undefined,
    linkTarget: linkTarget === undefined ? undefined : textOf(linkTarget),
  })
}

/** The URI of an entry, for records: `storage://<storage>/<path>`, percent-encoded bytes. */
export const uriOf = (storageId: string, path: StoragePath): string =>
  `storage://${encodeURIComponent(storageId)}/${path
    .map((name) =>
      [...bytesOf(name)]
        .map((byte) =>
          /[\w.~!$'()*,;:@+=-]/.test(String.fromCharCode(byte))
            ? String.fromCharCode(byte)
            : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`,
        )
        .join(''),
    )
    .join('/')}`

/** The path in a URI that `uriOf` has made. */
export const pathOfUri = (uri: string): StoragePath =>
  uri
    .replace(/^storage:\/\/[^/]*\//, '')
    .split('/')
    .filter((name) => name !== '')
    .map(
      (name) =>
        name.replace(/%([\dA-F]{2})/g, (_, hex: string) =>
          String.fromCharCode(parseInt(hex, 16)),
        ) as ByteName,
    )

const Cursor = z.tuple([z.string(), z.string(), z.string()])

/** The position at which a list continues. It names the list that it belongs to. */
export const cursorOf = (storageId: string, path: StoragePath, next: string): string =>
  Buffer.from(JSON.stringify([storageId, path.join('/'), next])).toString('base64url')

/** @throws Refusal 400 for a cursor of another list */
export const readCursor = (text: string, storageId: string, path: StoragePath): string => {
  const foreign = invalid('the cursor is not one of this list; begin without it', [
    { path: 'cursor', message: 'is not one of this list' },
  ])
  try {
    const [storage, folder, next] = Cursor.parse(JSON.parse(Buffer.from(text, 'base64url').toString()))
    if (storage === storageId && folder === path.join('/')) return next
  } catch {
    throw foreign
  }
  throw foreign
}

/** For messages and audit records. */
export const shown = (path: StoragePath): string => textOf(path.join('/') as ByteName)

/** A record in the form of answers. */
export const downloadView = (download: Download, url?: string): z.output<typeof DownloadRun> => {
  const { path, destinationStorageId, destinationPath, live, ...record } = download
  const to = destinationPath && pathInAnswer(destinationPath)
  const destination = { destinationStorageId, destinationPath: to?.path, destinationPathBytes: to?.pathBytes }
  const isOpen = record.status === 'queued' || record.status === 'streaming'
  return present({
    ...{ ...record, ...pathInAnswer(path), url, live: isOpen ? live : undefined },
    ...(record.strategy === 'archive' ? {} : destination),
  })
}
