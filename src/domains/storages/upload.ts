import type { Readable } from 'node:stream'
import { behind } from '../../drivers/storage/continued.ts'
import { StorageError, type Entry, type WriteOptions, type Written } from '../../drivers/storage/contract.ts'
import { taken } from '../../drivers/storage/faults.ts'
import type { StoragePath } from '../../drivers/storage/paths.ts'
import { streamDigest } from '../../drivers/storage/streams.ts'
import { ClientGone, HttpRefusal } from '../../http/errors.ts'
import type { Upload } from '../../http/route.ts'
import { invalid, unacceptableAt } from '../../refusal.ts'
import { refusing } from './errors.ts'
import type { OpenedStorage } from './open.ts'
import { ensureDirectory, shownAt } from './send.ts'

/** The limit of one body: the largest object that S3 accepts. */
export const largestUpload = 5 * 2 ** 40
/**
 * The name under which the stored parts of an upload are found again: one unfinished upload per
 * entry.
 */
const uploadName = 'content-range'

export type Part =
  | { asks: true; total: number }
  | { asks: false; first: number; last: number; total: number | undefined }

/**
 * The part of an upload in a `Content-Range` header: `bytes 0-99/200`, or with `*` for a size that
 * is not known yet; `bytes *\/200` asks for the number of stored bytes. Undefined without the
 * header.
 * @throws Refusal 400
 */
export const uploadPartOf = (header: string | undefined): Part | undefined => {
  if (header === undefined) return undefined
  const [, asked, first = '', last = '', total = ''] =
    /^\s*bytes\s+(?:(\*)|(\d{1,15})-(\d{1,15}))\/(\d{1,15}|\*)\s*$/i.exec(header) ?? []
  const given = JSON.stringify(header.slice(0, 100))
  const wrong = (fault: string) => {
    const message = `${given} ${fault}`
    return invalid(`Content-Range ${message}`, [{ path: 'Content-Range', message }])
  }
  if (total === '') throw wrong('is no range of bytes; give one like bytes 0-99/200')
  if (asked !== undefined) {
    if (total === '*') throw wrong('asks for what is kept; give the size of the whole, like bytes */200')
    return { asks: true, total: Number(total) }
  }
  const part = { first: Number(first), last: Number(last), total: total === '*' ? undefined : Number(total) }
  if (part.last < part.first) throw wrong('ends before it begins; give the first byte, then the last one')
  if (part.total !== undefined && part.last >= part.total)
    throw wrong('ends behind the whole file; give a last byte below its size')
  return { asks: false, ...part }
}

/**
 * Whether the parts of a failed upload stay. They stay for the client's next part where the client
 * left; bytes that differ from the announced ones are removed.
 */
const keepsAfter = (error: unknown): boolean => error instanceof ClientGone || error instanceof HttpRefusal

const optionsOf = (
  part: Exclude<Part, { asks: true }> | undefined,
  upload: Upload,
  overwrite: boolean,
  signal: AbortSignal,
): WriteOptions => {
  if (part === undefined)
    return { overwrite, signal, ...(upload.sizeBytes === undefined ? {} : { sizeBytes: upload.sizeBytes }) }
  const size = part.last - part.first + 1
  if (upload.sizeBytes !== undefined && upload.sizeBytes !== size)
    throw unacceptableAt('Content-Range', `names ${size} bytes, and the body has ${upload.sizeBytes}`)
  const last = part.last + 1 === part.total
  return {
    overwrite,
    signal,
    ...(last ? { sizeBytes: part.total } : {}),
    // A body in a single part has no second part.
    ...(last && part.first === 0
      ? {}
      : { part: { upload: uploadName, offset: part.first, last, keepsAfter } }),
  }
}

/**
 * The answer to a last part that is sent again because its answer was lost: the file has its name,
 * ends with the bytes of the part, and is neither written again nor a conflict.
 * @throws StorageError `exists` where the file has other bytes
 */
const repeatedEnd = async (
  { driver }: OpenedStorage,
  path: StoragePath,
  entry: Entry,
  { offset, bytes, signal }: { offset: number; bytes: Readable; signal: AbortSignal },
): Promise<Written> => {
  const { stream } = await driver.read(path, { offset, signal })
  try {
    const [there, sent] = await Promise.all([streamDigest(stream), streamDigest(bytes)])
    if (there !== sent) throw taken(path)
  } finally {
    stream.destroy()
  }
  return { receivedBytes: entry.sizeBytes ?? 0, entry, sha256: await driver.digest(path, { signal }) }
}

/**
 * Stores a body, or a part of one, while it arrives, and makes the directories above it. A client
 * that leaves aborts no upload that it could continue.
 */
export const takeUpload = (
  opened: OpenedStorage,
  path: StoragePath,
  given: { upload: Upload; overwrite: boolean; contentRange: string | undefined; signal: AbortSignal },
): Promise<Written> =>
  refusing('body', async () => {
    const { driver } = opened
    const part = uploadPartOf(given.contentRange)
    if (part?.asks === true) {
      // A request for the number of stored bytes has no body.
      given.upload.stream.resume()
      return { receivedBytes: (await driver.received?.(path, uploadName)) ?? 0 }
    }
    const options = optionsOf(part, given.upload, given.overwrite, given.signal)
    if (options.part !== undefined) {
      if (driver.received === undefined)
        throw new StorageError(
          'unsupported',
          'this kind of storage takes a file in one request; send it without Content-Range',
        )
      delete options.signal
    }
    // The first part of a file makes the directories above it.
    if ((options.part?.offset ?? 0) === 0)
      await ensureDirectory(driver, path.slice(0, -1), new Set(), options.signal)
    const { part: written, sizeBytes = 0 } = options
    if (part !== undefined && part.last + 1 === part.total) {
      const kept = written === undefined ? 0 : await driver.received?.(path, uploadName)
      // Where the service ended before a whole file got its name, the client repeats the last part. The
      // kept bytes get the name, and the answer has their digest.
      if (written !== undefined && kept === sizeBytes)
        return driver.write(path, behind(given.upload.stream, sizeBytes - written.offset), {
          ...options,
          part: { ...written, offset: sizeBytes },
        })
      const there = kept === 0 && !given.overwrite ? await shownAt(driver, path, given.signal) : undefined
      if (there?.type === 'file' && there.sizeBytes === sizeBytes) {
        const { stream: bytes } = given.upload
        return repeatedEnd(opened, path, there, { offset: part.first, bytes, signal: given.signal })
      }
    }
    return driver.write(path, given.upload.stream, options)
  })
