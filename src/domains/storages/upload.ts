import type { Readable } from 'node:stream'
import { behind } from '../../drivers/storage/continued.ts'
import { StorageError, type Entry, type WriteOptions, type Written } from '../../drivers/storage/contract.ts'
import { taken, wrongOffset } from '../../drivers/storage/faults.ts'
import { quotedPath, type StoragePath } from '../../drivers/storage/paths.ts'
import { streamDigest } from '../../drivers/storage/streams.ts'
import { ClientGone, HttpRefusal } from '../../http/errors.ts'
import type { Upload } from '../../http/route.ts'
import { within } from '../../pacing/within.ts'
import { invalid, unacceptableAt } from '../../refusal.ts'
import { refusing } from './errors.ts'
import type { OpenedStorage } from './open.ts'
import { ensureDirectory, faultIn, shownAt } from './send.ts'

/** The limit of one body: the largest object that S3 accepts. */
export const largestUpload = 5 * 2 ** 40
/**
 * The name under which the stored parts of an upload are found again: one unfinished upload per
 * entry.
 */
const uploadName = 'content-range'

interface SentPart {
  asks: false
  first: number
  last: number
  total: number | undefined
}

export type Part = { asks: true; total: number } | SentPart

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
  part: SentPart | undefined,
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

/** Stores a body, or a part of one, while it arrives, and makes the directories above it. */
const takeUpload = async (
  opened: OpenedStorage,
  path: StoragePath,
  part: SentPart | undefined,
  { stream, signal }: { stream: Readable; signal: AbortSignal },
  options: WriteOptions,
): Promise<Written> => {
  const { driver } = opened
  const { part: written, sizeBytes = 0, overwrite } = options
  // The first part of a file makes the directories above it.
  if ((written?.offset ?? 0) === 0)
    await ensureDirectory(driver, path.slice(0, -1), new Set(), options.signal)
  if (part !== undefined && part.last + 1 === part.total) {
    const kept = written === undefined ? 0 : await driver.received?.(path, uploadName)
    // Where the service ended before a whole file got its name, the client repeats the last part. The
    // kept bytes get the name, and the answer has their digest.
    if (written !== undefined && kept === sizeBytes)
      return driver.write(path, behind(stream, sizeBytes - written.offset), {
        ...options,
        part: { ...written, offset: sizeBytes },
      })
    const there = kept === 0 && overwrite !== true ? await shownAt(driver, path, signal) : undefined
    if (there?.type === 'file' && there.writable && there.sizeBytes === sizeBytes)
      return repeatedEnd(opened, path, there, { offset: part.first, bytes: stream, signal })
  }
  return driver.write(path, stream, options)
}

/** A part that is being written, or waits for the end of the one before it. */
interface PartUnderWay {
  first: number
  stream: Readable
  /** Ends its requests to the storage. */
  ending: AbortController
  /** Resolves when neither it nor one before it is written any more. */
  ended: Promise<unknown>
}

/** Milliseconds for which a part waits for the end of the one before it. */
const waitMs = 60_000
/** Milliseconds in which the requests of an ended part end: a session ends a script within 15 s. */
const endingMs = 20_000
/** Milliseconds in which the storage has to write what came of a part that was ended. */
const graceMs = waitMs - endingMs

const stillWritten = (path: StoragePath): StorageError =>
  new StorageError(
    'busy',
    `${quotedPath(path)}: the storage still writes another part of this upload; try again later`,
  )

const endPart = ({ stream, ending }: PartUnderWay): void => {
  // A part that was read to its end is complete, and its file may get its name now.
  if (stream.readableEnded) return
  const error = new HttpRefusal(
    'conflict',
    'another request goes on with this upload, which ends this one; send its parts one after another',
  )
  stream.destroy(error)
  setTimeout(() => ending.abort(error), graceMs).unref()
}

/**
 * Takes uploads, and writes one part of a file at a time: two at once could leave a hole between
 * their bytes. A part that goes on where the kept bytes end, or begins anew, ends the one that is
 * being written, as its connection may hang. Other parts are refused meanwhile.
 */
export const openUploads = () => {
  /** The newest part, by the place of the file: two storages may have the same folder. */
  const newest = new Map<string, PartUnderWay>()

  /** Ends the part before this one. @returns it @throws StorageError `offset` */
  const follow = async (
    key: string,
    path: StoragePath,
    { first, last, total }: SentPart,
    mine: PartUnderWay,
    kept: () => Promise<number>,
  ): Promise<PartUnderWay | undefined> => {
    for (let before = newest.get(key); before !== undefined; before = newest.get(key)) {
      const has = await kept()
      if (newest.get(key) !== before) continue
      // The file is whole, and gets its name or has it.
      const repeats = last + 1 === total && (has === total || (has === 0 && first === before.first))
      if (first !== 0 && first !== has && !repeats) throw wrongOffset(path, has)
      endPart(before)
      newest.set(key, mine)
      return before
    }
    newest.set(key, mine)
    return undefined
  }

  /** A client that leaves aborts no upload that it could continue. */
  return (
    opened: OpenedStorage,
    path: StoragePath,
    {
      contentRange,
      upload,
      overwrite,
      signal,
    }: { contentRange: string | undefined; upload: Upload; overwrite: boolean; signal: AbortSignal },
  ): Promise<Written> =>
    refusing('body', async () => {
      const { driver, place } = opened
      const { stream } = upload
      const kept = async (): Promise<number> => {
        try {
          return (await driver.received?.(path, uploadName)) ?? 0
        } catch (error) {
          // The first part makes the folder.
          if (faultIn(error, 'missing')) return 0
          throw error
        }
      }
      const part = uploadPartOf(contentRange)
      if (part?.asks === true) {
        // A request for the number of stored bytes has no body.
        stream.resume()
        return { receivedBytes: await kept() }
      }
      const options = optionsOf(part, upload, overwrite, signal)
      if (part === undefined || options.part === undefined)
        return takeUpload(opened, path, part, { stream, signal }, options)
      if (driver.received === undefined)
        throw new StorageError(
          'unsupported',
          'this kind of storage takes a file in one request; send it without Content-Range',
        )
      const key = JSON.stringify([place.at, ...place.base, ...path])
      const { promise: ended, resolve: end } = Promise.withResolvers<undefined>()
      const mine = { first: part.first, stream, ending: new AbortController(), ended }
      const before = (await follow(key, path, part, mine, kept))?.ended ?? Promise.resolve()
      try {
        await within(before, waitMs, () => stillWritten(path))
        // A client that left meanwhile, or sent the part again, begins nothing anew.
        signal.throwIfAborted()
        if (stream.errored !== null) throw stream.errored
        return await takeUpload(
          opened,
          path,
          part,
          { stream, signal },
          { ...options, signal: mine.ending.signal },
        )
      } finally {
        void before.then(() => {
          end(undefined)
          if (newest.get(key) === mine) newest.delete(key)
        })
      }
    })
}
