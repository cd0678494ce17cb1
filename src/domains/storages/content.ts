import { StorageError, type Entry, type StorageDriver } from '../../drivers/storage/contract.ts'
import { quotedPath, textOf, type StoragePath } from '../../drivers/storage/paths.ts'
import { rangeOf, rangeReply } from '../../http/byte-range.ts'
import { Reply } from '../../http/route.ts'
import { refusing } from './errors.ts'
import { isSameContent } from './send.ts'
import { dateOf } from './view.ts'

/**
 * Whether a client's partial copy is of this version. Only a strong tag, or exactly the same date,
 * proves it.
 */
const isSame = (ifRange: string | undefined, { etag, modifiedAt }: Entry): boolean => {
  if (ifRange === undefined) return true
  const value = ifRange.trim()
  if (value.startsWith('"')) return value === etag
  return value === dateOf(modifiedAt)?.toUTCString()
}

/**
 * `attachment` with a name that cannot inject headers: ASCII for old clients, and the whole name
 * percent-encoded.
 */
export const dispositionOf = (name: string): string => {
  const plain = name.replace(/[^\w. -]/g, '_').slice(0, 200)
  const encoded = encodeURIComponent(name.toWellFormed()).replace(
    /['()*]/g,
    (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `attachment; filename="${plain}"; filename*=UTF-8''${encoded}`
}

/** A file that changes between the look at it and its opening is looked at this many times in total. */
const tries = 2

/**
 * Opens a file, or the one requested range of it. The size and the range are those of the opened file.
 * A file that has only grown since the look has the range, too: a log of a running job.
 */
const opened = async (
  driver: StorageDriver,
  path: StoragePath,
  { headers, signal }: { headers: Readonly<Record<string, string | undefined>>; signal: AbortSignal },
) => {
  for (let left = tries - 1; ; left--) {
    const facts = await driver.stat(path, { signal })
    const range = isSame(headers['if-range'], facts)
      ? rangeOf(headers['range'], facts.sizeBytes ?? 0, 'the file')
      : undefined
    const { entry, stream } = await driver.read(path, { ...range, signal })
    const sizeBytes = entry.sizeBytes ?? 0
    if (
      range === undefined ||
      isSameContent(entry, facts) ||
      (headers['if-range'] === undefined && sizeBytes >= range.offset + range.length)
    )
      return { entry, stream, range, sizeBytes }
    stream.destroy()
    if (left > 0) continue
    throw new StorageError(
      'busy',
      `${quotedPath(path)} was replaced each of the ${tries} times that it was opened; try again`,
    )
  }
}

/** Bytes of a file as an answer: all, or the one requested range. */
export const contentReply = async (
  driver: StorageDriver,
  path: StoragePath,
  asked: { headers: Readonly<Record<string, string | undefined>>; signal: AbortSignal },
): Promise<Reply> =>
  refusing('query', async () => {
    const { entry, stream, range, sizeBytes } = await opened(driver, path, asked)
    const modified = dateOf(entry.modifiedAt)?.toUTCString()
    return new Reply({
      stream,
      ...rangeReply(range, sizeBytes, {
        'content-disposition': dispositionOf(textOf(entry.name)),
        ...(entry.etag === undefined ? {} : { etag: entry.etag }),
        ...(modified === undefined ? {} : { 'last-modified': modified }),
      }),
    })
  })
