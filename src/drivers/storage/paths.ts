import { createHash, randomBytes } from 'node:crypto'
import type { ByteName, StoragePath } from './byte-name.ts'
import { StorageError } from './contract.ts'

export type { ByteName, StoragePath }

/** Linux allows no longer path; S3 allows 1,024 bytes. */
const longestPath = 4_096

/** The name of a text: its bytes in UTF-8. */
export const nameOf = (text: string): ByteName => Buffer.from(text).toString('latin1') as ByteName
export const nameOfBytes = (name: Uint8Array): ByteName => Buffer.from(name).toString('latin1') as ByteName
export const bytesOf = (name: ByteName): Buffer => Buffer.from(name, 'latin1')
/** For people: bytes that are not UTF-8 become U+FFFD. */
export const textOf = (name: ByteName): string => bytesOf(name).toString()
/** Whether `textOf` gives it exactly. */
export const isText = (name: ByteName): boolean => nameOf(textOf(name)) === name

const joined = (path: StoragePath): ByteName => path.join('/') as ByteName

/** The form of a path in answers; `pathBytes` (base64) is present where the text is not exact. */
export const pathInAnswer = (path: StoragePath): { path: string; pathBytes?: string } => {
  const name = joined(path)
  return { path: textOf(name), ...(isText(name) ? {} : { pathBytes: bytesOf(name).toString('base64') }) }
}

/** For messages. */
export const quotedPath = (path: StoragePath): string =>
  JSON.stringify(path.length === 0 ? '.' : textOf(joined(path)).slice(0, 300))

/**
 * The names of a path as bytes. Slashes at the ends and double ones, and `.`, mean nothing; `..` is
 * refused at any position, because behind a link it leads elsewhere than it seems.
 * @throws StorageError `outside` for `..`, `name` for NUL and for what is too long
 */
export const parseNames = (path: ByteName): StoragePath => {
  const shown = JSON.stringify(textOf(path).slice(0, 300))
  if (path.includes('\0'))
    throw new StorageError('name', `the path ${shown} holds NUL, which no name can hold`)
  if (path.length > longestPath)
    throw new StorageError('name', `the path has ${path.length} bytes; at most ${longestPath} are taken`)
  const names = path.split('/').filter((name) => name !== '' && name !== '.') as ByteName[]
  if (names.includes('..' as ByteName))
    throw new StorageError(
      'outside',
      `the path ${shown} holds ".."; name the entry from the endpoint of the storage on`,
    )
  return names
}

/** Whether a path is `folder` or below it. */
export const isBelow = (path: StoragePath, folder: StoragePath): boolean =>
  path.length >= folder.length && folder.every((name, at) => path[at] === name)

/**
 * A path as a client gives it. With a leading slash it is absolute where it lies below one of the
 * endpoints of the storage, of which the first counts; otherwise the slash has no meaning.
 * @throws StorageError as `parseNames`
 */
export const parsePath = (path: ByteName, ...endpoints: readonly string[]): StoragePath => {
  const names = parseNames(path)
  if (!path.startsWith('/')) return names
  const base = endpoints
    .filter((endpoint) => endpoint.startsWith('/'))
    .map((endpoint) => parseNames(nameOf(endpoint)))
    .find((folder) => isBelow(names, folder))
  return names.slice(base?.length ?? 0)
}

/**
 * The root of a storage below its endpoint, from its `path`: absolute below one of the endpoints, a
 * URL that starts with one, or relative.
 */
export const parseRoot = (path: string, ...endpoints: readonly string[]): StoragePath => {
  const url = endpoints
    .map((endpoint) => endpoint.replace(/\/+$/, ''))
    .find((start) => start.includes('://') && (path === start || path.startsWith(`${start}/`)))
  return url === undefined
    ? parsePath(nameOf(path), ...endpoints)
    : parseNames(nameOf(path.slice(url.length)))
}

/**
 * The name, beside its target, of the file of an upload that is under way; without the name of an
 * upload it is another one at each call.
 */
export const temporaryName = (path: StoragePath, upload: string | undefined): ByteName => {
  const key =
    upload === undefined
      ? randomBytes(16).toString('hex')
      : createHash('sha256')
          .update(`${upload}/${path.at(-1) ?? ''}`, 'latin1')
          .digest('hex')
          .slice(0, 32)
  return `.orrery-${key}.part` as ByteName
}
