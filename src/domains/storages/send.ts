import { createHash } from 'node:crypto'
import { addAbortSignal, Transform, type Readable } from 'node:stream'
import {
  StorageError,
  type Attributes,
  type Entry,
  type OpenUpload,
  type StorageDriver,
  type UploadPart,
} from '../../drivers/storage/contract.ts'
import { quotedPath, type StoragePath } from '../../drivers/storage/paths.ts'
import { through } from '../../drivers/storage/streams.ts'
import { NoWayError } from '../../drivers/transfer/copy.ts'
import type { OnConflict } from './job-store.ts'
import type { PromotedData } from './promoted.ts'
import type { Direct, DirectWay } from './direct.ts'

/** Both ends of a copy. */
export interface Ends {
  source: StorageDriver
  target: StorageDriver
  /**
   * Where both ends are one place that copies by itself: the endpoint of the source, from the base
   * of that place on.
   */
  within?: StoragePath | undefined
  /** Of the destination. */
  promoted?: PromotedData | undefined
  /** Connections whose streams both ends take; transfers of runs go first there. */
  links?: readonly string[] | undefined
  /** Where each end is behind a login of its own: the ways from one site to the other. */
  direct?: Direct | undefined
}

/** As large as a store copies in one request. */
const largestWithin = 5 * 2 ** 30

export interface Sending {
  from: StoragePath
  to: StoragePath
  onConflict: OnConflict
  /** As it was listed. */
  sizeBytes: number
  /**
   * The file's unfinished upload at the destination: that of an earlier attempt, where its bytes
   * are kept.
   */
  openUpload: () => Promise<{ continued: OpenUpload } | { part: UploadPart }>
  /** Removes it, so that the next one begins anew. */
  discardUpload: (upload: string) => Promise<void>
  /** A way from site to site does not work; the file goes on by the next one. */
  onNoWay: (way: DirectWay, reason: string) => Promise<void>
  /** Whether an earlier attempt may have written the file. */
  isRepeated: boolean
  signal: AbortSignal
  /** Bytes of the file that the destination has, or is given now. */
  onBytes: (count: number) => void
  /** Bytes that are given to the destination. */
  onSent: (count: number) => void
}

/** A file that changes during the transfer is sent this many times in total. */
const tries = 2

export const faultIn = (error: unknown, ...faults: StorageError['fault'][]): error is StorageError =>
  error instanceof StorageError && faults.includes(error.fault)

/** The entry of a name; undefined where there is none. */
export const entryAt = async (
  driver: StorageDriver,
  path: StoragePath,
  signal?: AbortSignal,
): Promise<Entry | undefined> => {
  try {
    return await driver.stat(path, { signal })
  } catch (error) {
    if (faultIn(error, 'missing')) return undefined
    throw error
  }
}

/** As `entryAt`; undefined also where the storage refuses to show the entry to this login. */
export const shownAt = async (...asked: Parameters<typeof entryAt>): Promise<Entry | undefined> => {
  try {
    return await entryAt(...asked)
  } catch (error) {
    if (faultIn(error, 'denied')) return undefined
    throw error
  }
}

/**
 * Creates a directory with all its parents, where directories exist by themselves; `known` holds the
 * existing ones.
 */
export const ensureDirectory = async (
  driver: StorageDriver,
  path: StoragePath,
  known: Set<string>,
  signal?: AbortSignal,
): Promise<void> => {
  const key = path.join('/')
  if (!driver.capabilities.directories || path.length === 0 || known.has(key)) return
  const entry = await entryAt(driver, path, signal)
  if (entry !== undefined && entry.type !== 'directory')
    throw new StorageError(
      'exists',
      `${quotedPath(path)} at the destination is a ${entry.type}, and a directory has to be there; choose another path`,
    )
  if (entry === undefined) {
    await ensureDirectory(driver, path.slice(0, -1), known, signal)
    await driver.makeDirectory(path, { signal })
  }
  known.add(key)
}

/**
 * The bytes of a file with their digest. The stream fails, before its end, where the file has
 * changed since it was opened.
 */
const checked = (
  stream: Readable,
  onBytes: (count: number) => void,
  unchanged: () => Promise<boolean>,
  path: StoragePath,
) => {
  const hash = createHash('sha256')
  const hashing = new Transform({
    transform: (bytes: Buffer, _, done) => {
      hash.update(bytes)
      onBytes(bytes.length)
      done(null, bytes)
    },
    flush: (done) => {
      unchanged().then(
        (same) => done(same ? null : writtenTo(path)),
        (error: unknown) => done(error as Error),
      )
    },
  })
  return { through: through(stream, hashing), digest: () => hash.digest('hex') }
}

/** Mode and time of an entry, where both ends have them. */
export const attributesOf = (
  { source, target }: Ends,
  { mode, modifiedAt }: { mode?: number | undefined; modifiedAt?: number | undefined },
): Attributes | undefined =>
  source.setAttributes !== undefined && target.setAttributes !== undefined ? { mode, modifiedAt } : undefined

/** Whether two looks at a file have seen the same content. */
export const isSameContent = (one: Entry, { etag, sizeBytes, modifiedAt }: Entry): boolean =>
  one.etag === etag && one.sizeBytes === sizeBytes && (etag !== undefined || one.modifiedAt === modifiedAt)

/** Whether a file of the source is still the one that was seen. */
export const isUnchanged = async (
  { source }: Pick<Ends, 'source'>,
  { from, signal }: Pick<Sending, 'from' | 'signal'>,
  seen: Entry,
): Promise<boolean> => isSameContent(await source.stat(from, { signal }), seen)

const writtenTo = (path: StoragePath): StorageError =>
  new StorageError('changed', `${quotedPath(path)} was written to while it was sent; retry`)

/** Lets the bytes of a file go from site to site. @throws NoWayError */
const sendDirect = async (
  ends: Ends,
  sending: Sending,
  continued: OpenUpload,
  way: DirectWay,
): Promise<void> => {
  const { source, target } = ends
  const { from, to, onConflict, signal, onBytes, onSent } = sending
  if (source.fileAtSite === undefined || target.writeFrom === undefined)
    throw new NoWayError('one of the sites runs no programs')
  const entry = await source.stat(from, { signal })
  onBytes(continued.receivedBytes)
  try {
    await target.writeFrom(to, await source.fileAtSite(from), {
      ...{ ...way, continued, signal, overwrite: onConflict === 'overwrite' },
      ...{ sizeBytes: entry.sizeBytes ?? 0, attributes: attributesOf(ends, entry) },
      digest: async () => {
        const sha256 = await source.digest(from, { signal })
        if (!(await isUnchanged(ends, sending, entry))) throw writtenTo(from)
        return sha256
      },
      onBytes: (count) => {
        onBytes(count)
        onSent(count)
      },
    })
  } catch (error) {
    if (error instanceof NoWayError && !(await isUnchanged(ends, sending, entry))) throw writtenTo(from)
    throw error
  }
}

const sendOnce = async (
  ends: Ends,
  sending: Sending,
  upload: { continued: OpenUpload } | { part: UploadPart },
): Promise<void> => {
  const { from, to, onConflict, signal, onBytes, onSent } = sending
  const { source, target } = ends
  const { entry, stream } = await source.read(from, { signal })
  let kept = 'continued' in upload ? upload.continued.receivedBytes : 0
  const counted = (count: number): void => {
    onSent(Math.max(0, count - kept))
    kept = Math.max(0, kept - count)
    onBytes(count)
  }
  const { through, digest } = checked(stream, counted, () => isUnchanged(ends, sending, entry), from)
  let sha256: string | undefined
  // A destination waits for the next bytes, which a slow source may give minutes later.
  await target.write(to, addAbortSignal(signal, through), {
    overwrite: onConflict === 'overwrite',
    sizeBytes: entry.sizeBytes,
    ...upload,
    attributes: attributesOf(ends, entry),
    digest: () => (sha256 ??= digest()),
    signal,
  })
}

/** Whether two files have the same bytes. */
const isEqual = async (
  { source, target }: Ends,
  { from, to, signal }: Sending,
  there: Entry,
): Promise<boolean> => {
  const here = await source.stat(from, { signal })
  if (there.type !== 'file' || here.sizeBytes !== there.sizeBytes) return false
  const [read, written] = await Promise.all([source.digest(from, { signal }), target.digest(to, { signal })])
  return read === written
}

/**
 * Lets the store copy a file. @returns false where it cannot: the file then goes through this
 * process
 */
const copiedWithin = async (
  base: StoragePath,
  { source, target }: Ends,
  { from, to, onConflict, signal }: Sending,
): Promise<boolean> => {
  const withoutOwn = async (): Promise<false> => {
    if (isOwn) await target.delete(to, { signal })
    return false
  }
  let isOwn = false
  for (let left = tries - 1; ; left--) {
    const before = await source.stat(from, { signal })
    const { sizeBytes = 0 } = before
    if (sizeBytes > largestWithin) return withoutOwn()
    try {
      await target.copyWithin!(to, [...base, ...from], {
        overwrite: onConflict === 'overwrite' || isOwn,
        signal,
      })
      isOwn = true
      const there = await target.stat(to, { signal })
      if (there.sizeBytes === sizeBytes && (await isUnchanged({ source }, { from, signal }, before)))
        return true
    } catch (error) {
      // The account of the destination may not read the source.
      if (faultIn(error, 'denied', 'missing', 'refused')) return withoutOwn()
      if (!faultIn(error, 'changed')) throw error
    }
    if (left > 0) continue
    await withoutOwn()
    throw new StorageError(
      'changed',
      `${quotedPath(from)} was written to each of the ${tries} times that the store copied it; retry ` +
        'when nothing writes to it',
    )
  }
}

/** `copied`: by the store itself. `skipped`: it was there, with the same SHA-256. */
export type SentBy = 'sent' | 'copied' | 'skipped'

/** Sends a file whether or not the destination has it. */
const sendNew = async (ends: Ends, sending: Sending): Promise<'sent' | 'copied'> => {
  const { from, onBytes } = sending
  if (ends.within !== undefined && (await copiedWithin(ends.within, ends, sending))) return 'copied'
  for (let left = tries - 1; ;) {
    let passed = 0
    const counted = (count: number): void => {
      passed += count
      onBytes(count)
    }
    const way = ends.direct?.wayOf(sending.sizeBytes)
    const open = await sending.openUpload()
    try {
      if (way !== undefined && 'continued' in open)
        await sendDirect(ends, { ...sending, onBytes: counted }, open.continued, way)
      else await sendOnce(ends, { ...sending, onBytes: counted }, open)
      return 'sent'
    } catch (error) {
      // Bytes of a failed transfer do not count.
      onBytes(-passed)
      if (way !== undefined && error instanceof NoWayError) {
        await sending.onNoWay(way, error.message)
        continue
      }
      if (!faultIn(error, 'changed', 'exists')) throw error
      // The kept bytes are those of an earlier content, or of a file that is there already.
      await sending.discardUpload('continued' in open ? open.continued.upload : open.part.upload)
      if (error.fault === 'exists') throw error
      if (left-- > 0) continue
      throw new StorageError(
        'changed',
        `${quotedPath(from)} was written to each of the ${tries} times that it was sent; retry when ` +
          'nothing writes to it',
        { cause: error },
      )
    }
  }
}

/**
 * Writes what an earlier attempt may write, too: that one may still run, or the storage may carry out
 * a request whose answer was lost. A name that is taken is then no conflict where the same has it.
 */
export const orWritten = async <T>(
  write: () => Promise<T>,
  isThere: () => Promise<boolean>,
): Promise<T | 'skipped'> => {
  try {
    return await write()
  } catch (error) {
    if (faultIn(error, 'exists') && (await isThere())) return 'skipped'
    throw error
  }
}

/**
 * Copies one file of a storage into another: from site to site where that is possible, else through
 * this process and never over its disk. The parent directory has to exist.
 * @throws StorageError `exists` for a conflict; `changed` for a file that changes during every
 *   transfer
 */
export const sendFile = async (ends: Ends, sending: Sending): Promise<SentBy> => {
  const { to, onConflict, isRepeated, signal } = sending
  if (!isRepeated && onConflict !== 'skip-equal') return sendNew(ends, sending)
  const isThere = async (): Promise<boolean> => {
    const there = await entryAt(ends.target, to, signal)
    if (there === undefined) return false
    if (await isEqual(ends, sending, there)) return true
    if (onConflict !== 'skip-equal') return false
    throw new StorageError(
      'exists',
      `${quotedPath(to)} is at the destination with other bytes; choose another path, or overwrite it`,
    )
  }
  if (await isThere()) return 'skipped'
  return orWritten(() => sendNew(ends, sending), isThere)
}
