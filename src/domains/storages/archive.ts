import { once } from 'node:events'
import { Readable } from 'node:stream'
import { pack, type Pack } from 'tar-stream'
import type { Db } from '../../db/sql.ts'
import { StorageError, type SmallFile, type StorageDriver } from '../../drivers/storage/contract.ts'
import {
  bytesOf,
  isText,
  nameOf,
  quotedPath,
  textOf,
  type ByteName,
  type StoragePath,
} from '../../drivers/storage/paths.ts'
import { streamDigest } from '../../drivers/storage/streams.ts'
import { tarTime } from '../../drivers/tar-time.ts'
import { discardEarlier, uploadOf } from './copy.ts'
import { gzipped } from './gzip.ts'
import {
  archiveAttempt,
  archivedEntries,
  recordArchive,
  recordUpload,
  type JobEntry,
  type StorageJob,
} from './job-store.ts'
import { contentsOf, packsOf } from './packs.ts'
import { openJobProgress } from './progress.ts'
import { endReplaced } from './replaced.ts'
import { entryAt, isUnchanged, orWritten, type Ends } from './send.ts'

/** The path of a directory's archive; undefined where the directory has no name. */
export const archivePath = (path: StoragePath): StoragePath | undefined => {
  const name = path.at(-1)
  return name === undefined ? undefined : [...path.slice(0, -1), (name + nameOf('.tar.gz')) as ByteName]
}

/**
 * GNU tar's entry with the name of the next one, which tar-stream would write as UTF-8. It counts
 * before the name in the head of that one.
 */
const longName = (name: ByteName): Buffer => {
  const bytes = bytesOf(name)
  const head = Buffer.alloc(512)
  head.write('././@LongLink')
  // Mode, owner, group, size with the NUL behind the name, time, and spaces for the sum.
  head.write(`0000644\0${'0000000\0'.repeat(2)}`, 100)
  head.write(`${(bytes.length + 1).toString(8).padStart(11, '0')}\0${'0'.repeat(11)}\0${' '.repeat(8)}L`, 124)
  head.write('ustar  \0', 257)
  const sum = head.reduce((before, byte) => before + byte, 0)
  head.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148)
  return Buffer.concat([head, bytes, Buffer.alloc(512 - (bytes.length % 512))])
}

/**
 * Begins an entry, once the one before is `done`: when all its bytes are packed, or with its error.
 * Omits owners, modes and the path above the directory: equal files yield equal bytes.
 */
const begunEntry = (
  tar: Pack,
  path: StoragePath,
  { type, modifiedAt, size }: { type: 'file' | 'directory'; modifiedAt: number; size: number },
) => {
  const { promise: done, resolve, reject } = Promise.withResolvers<undefined>()
  // The promise may reject before it is awaited.
  done.catch(() => undefined)
  const name = (type === 'directory' ? `${path.join('/')}/` : path.join('/')) as ByteName
  if (!isText(name)) tar.push(longName(name))
  const header = {
    // With an empty one tar-stream writes no PAX record of the name, which readers would take instead.
    ...{ name: isText(name) ? textOf(name) : '', type, size },
    ...{ mode: type === 'directory' ? 0o755 : 0o644, uid: 0, gid: 0, uname: '', gname: '' },
    ...tarTime(modifiedAt),
  }
  const sink = tar.entry(header, (error) => (error == null ? resolve(undefined) : reject(error)))
  // `done` reports the error.
  sink.on('error', () => undefined)
  return { sink, done }
}

/** Adds one file to the archive, with exactly the number of bytes in its header. */
export const packFile = async (
  tar: Pack,
  source: StorageDriver,
  from: StoragePath,
  name: StoragePath,
  counted: (bytes: number) => void,
  signal: AbortSignal,
) => {
  const { entry, stream } = await source.read(from, { signal })
  const { sizeBytes = 0, modifiedAt = 0 } = entry
  const changed = (): StorageError =>
    new StorageError(
      'changed',
      `${quotedPath(from)} was written to while it was packed; retry when nothing writes to it`,
    )
  try {
    const { sink, done } = begunEntry(tar, name, { type: 'file', modifiedAt, size: sizeBytes })
    let size = 0
    for await (const bytes of stream as AsyncIterable<Buffer>) {
      signal.throwIfAborted()
      size += bytes.length
      if (size > sizeBytes) throw changed()
      counted(bytes.length)
      if (!sink.write(bytes)) await Promise.race([once(sink, 'drain'), done])
    }
    if (size !== sizeBytes || !(await isUnchanged({ source }, { from, signal }, entry))) throw changed()
    sink.end(undefined)
    await done
  } finally {
    stream.destroy()
  }
}

/** Adds a file whose bytes are here. */
const addSmall = async (
  tar: Pack,
  name: StoragePath,
  { bytes, modifiedAt = 0 }: SmallFile,
): Promise<void> => {
  const { sink, done } = begunEntry(tar, name, { type: 'file', modifiedAt, size: bytes.length })
  sink.end(bytes)
  await done
}

/** The number of entries whose small files are read together. */
const windowSize = 240

interface Item {
  entry: JobEntry
  /** Its bytes, where it was read with others. */
  small?: SmallFile | undefined
}

const itemsOf = async (
  source: StorageDriver,
  { path }: StorageJob,
  entries: readonly JobEntry[],
  signal: AbortSignal,
): Promise<Item[]> => {
  const read = new Map<JobEntry, SmallFile>()
  for (const pack of packsOf(entries).packs) {
    const byName = new Map(pack.entries.map((entry) => [entry.path.at(-1)!, entry]))
    try {
      const from = [...path, ...pack.folder]
      for (const file of await contentsOf(source, [...byName.keys()], { from, signal }))
        read.set(byName.get(file.name)!, file)
    } catch (error) {
      signal.throwIfAborted()
      // Alone each is read again, and the job gets the reason.
      if (!(error instanceof StorageError)) throw error
    }
  }
  return entries.map((entry) => ({ entry, small: read.get(entry) }))
}

/** The entries of an archive in order. Small files are read together, and ahead of their turn. */
async function* itemsAhead(
  db: Db,
  job: StorageJob,
  source: StorageDriver,
  signal: AbortSignal,
): AsyncGenerator<Item> {
  let entries: JobEntry[] = []
  let ahead: Promise<Item[]> = Promise.resolve([])
  const readOn = (): Promise<Item[]> => {
    const before = ahead
    ahead = itemsOf(source, job, entries, signal)
    // It may fail before it is awaited.
    ahead.catch(() => undefined)
    entries = []
    return before
  }
  for await (const entry of archivedEntries(db, job.id)) {
    entries.push(entry)
    if (entries.length === windowSize) yield* await readOn()
  }
  yield* await readOn()
  yield* await ahead
}

const fill = async (
  tar: Pack,
  db: Db,
  job: StorageJob,
  source: StorageDriver,
  progress: { entries: number; bytes: number; totalEntries: number },
  signal: AbortSignal,
) => {
  const top = job.path.at(-1) ?? nameOf('data')
  const counted = (bytes: number): void => {
    progress.bytes += bytes
  }
  for await (const { entry, small } of itemsAhead(db, job, source, signal)) {
    signal.throwIfAborted()
    const [from, name] = [
      [...job.path, ...entry.path],
      [top, ...entry.path],
    ]
    if (entry.type !== 'file')
      await begunEntry(tar, name, { type: 'directory', modifiedAt: entry.modifiedAt ?? 0, size: 0 }).done
    else if (small === undefined) await packFile(tar, source, from, name, counted, signal)
    else {
      await addSmall(tar, name, small)
      counted(small.bytes.length)
    }
    progress.entries += 1
  }
  if (progress.entries !== progress.totalEntries)
    throw new Error(`another attempt has recorded the archive ${job.id} since this one began`)
  tar.finalize()
}

/** The bytes of the archive. The stream fails with the first error. */
const packed = (
  db: Db,
  job: StorageJob,
  source: StorageDriver,
  progress: { entries: number; bytes: number; totalEntries: number },
  signal: AbortSignal,
): Readable => {
  const tar = pack()
  // Errors surface through the archive. On the tar itself they are a second event.
  tar.on('error', () => undefined)
  const archive = Readable.from(gzipped(tar as AsyncIterable<Uint8Array>), { objectMode: false })
  const stop = new AbortController()
  archive.once('close', () => {
    stop.abort(new Error('the archive is not wanted any more'))
    tar.destroy()
  })
  fill(tar, db, job, source, progress, AbortSignal.any([signal, stop.signal])).catch((error: unknown) =>
    tar.destroy(error as Error),
  )
  return archive
}

/**
 * Packs a directory whose entries are listed, and stores the archive beside it. An interrupted
 * attempt starts again from the beginning.
 */
export const writeArchive = async (
  db: Db,
  job: StorageJob,
  ends: Ends,
  signal: AbortSignal,
): Promise<void> => {
  const { source, target } = ends
  const { id, destinationPath: to, onConflict } = job
  const found = await archiveAttempt(db, id)
  // The archive is recorded already, and only the answer was lost.
  if (found === undefined) return
  const { entry, totalEntries, totalBytes } = found
  const begin = { entries: 0, bytes: 0, totalEntries }
  using progress = openJobProgress(db, id, { phase: 'packing', ...begin, totalBytes })
  await discardEarlier(job, { target }, entry, signal)
  const isThere = async (): Promise<boolean> => {
    const there = await entryAt(target, to, signal)
    if (there?.type !== 'file') return false
    const [ours, theirs] = [
      await streamDigest(packed(db, job, source, { ...begin }, signal)),
      await target.digest(to, { signal }),
    ]
    if (ours === theirs) return true
    throw new StorageError(
      'exists',
      `${quotedPath(to)} is there already with other bytes; remove it, or overwrite it`,
    )
  }
  const write = async (): Promise<void> => {
    const name = uploadOf(job, entry, entry.attempt)
    // Nothing of an earlier attempt is gone on with: it may have packed other bytes.
    const continued = await target.openUpload?.(to, { name, earlier: [], sizeBytes: 0, signal })
    if (continued !== undefined) {
      entry.upload = continued.upload
      await recordUpload(db, id, entry, continued.upload)
    }
    await target.write(to, packed(db, job, source, progress.live, signal), {
      overwrite: onConflict === 'overwrite',
      ...(continued === undefined ? { part: { upload: name, offset: 0, last: true } } : { continued }),
      signal,
    })
  }
  const mayBeThere = entry.attempt > 1 || onConflict === 'skip-equal'
  if (onConflict === 'overwrite' || !mayBeThere) await write()
  else if (!(await isThere()) && (await orWritten(write, isThere)) === 'skipped')
    await discardEarlier(job, { target }, { ...entry, attempt: entry.attempt + 1 }, signal)
  const { sizeBytes = 0 } = await target.stat(to, { signal })
  await endReplaced(db, job, ends, signal)
  await recordArchive(db, id, totalEntries, sizeBytes)
}
