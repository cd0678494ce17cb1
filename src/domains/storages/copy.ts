import { hash } from 'node:crypto'
import type { Db } from '../../db/sql.ts'
import {
  StorageError,
  type Entry,
  type OpenUpload,
  type StorageFault,
  type UploadPart,
} from '../../drivers/storage/contract.ts'
import type { ByteName, StoragePath } from '../../drivers/storage/paths.ts'
import { inPlaces } from '../../drivers/transfer/places.ts'
import {
  addEntries,
  beginList,
  claimEntries,
  madeDirectories,
  markDone,
  markListed,
  readProgress,
  recordByStore,
  recordMade,
  recordRoute,
  recordUpload,
  recordWhole,
  sortArchive,
  type JobEntry,
  type NewEntry,
  type StorageJob,
} from './job-store.ts'
import { packsOf, sendPack, type FilePack } from './packs.ts'
import { openJobProgress } from './progress.ts'
import type { LiveJob } from './schemas.ts'
import { endReplaced } from './replaced.ts'
import {
  attributesOf,
  ensureDirectory,
  entryAt,
  orWritten,
  sendFile,
  type Ends,
  type SentBy,
} from './send.ts'
import { isReachable, pagesBelow } from './tree.ts'

/** The number of files sent at once. */
const atOnce = 6
/**
 * The number of entries claimed from the record together. After a crash this many are compared
 * again.
 */
const batchSize = 240
const mostEntries = 10_000_000
/** A smaller file is sent anew after a crash: to look for its bytes takes longer. */
const continuedFrom = 4 * 1024 * 1024

/**
 * Name of an entry's unfinished upload at the destination. Each attempt has its own name, so that a
 * hanging attempt cannot write into the next one's upload.
 */
export const uploadOf = (
  { id }: Pick<StorageJob, 'id'>,
  { position }: Pick<JobEntry, 'position'>,
  attempt: number,
): string => hash('sha256', JSON.stringify([id, position, attempt]))

/**
 * Whether a link in `folder`, below the start of a tree, leads to a place of the same tree whatever
 * other inner links are there. `..` is taken at the head only: behind a name that is a link it
 * leads elsewhere than it seems.
 */
const isInner = (folder: StoragePath, target: ByteName | undefined): boolean => {
  if (target === undefined || target === '' || target.startsWith('/')) return false
  const names = target.split('/').filter((name) => name !== '' && name !== '.')
  const first = names.findIndex((name) => name !== '..')
  const up = first === -1 ? names.length : first
  return up <= folder.length && !names.slice(up).includes('..')
}

/** Records the entries of a tree from the start. An interrupted list is made again. */
export const listCopy = async (
  db: Db,
  job: StorageJob,
  { source, target }: Ends,
  signal: AbortSignal,
): Promise<void> => {
  const { id } = job
  const list = await beginList(db, id)
  if (list === undefined) return
  using progress = openJobProgress(db, id, { phase: 'listing', entries: 0, bytes: 0 })
  const { live } = progress
  let skipped = 0
  const isArchive = job.strategy === 'archive'
  const add = async (entries: NewEntry[]): Promise<void> => {
    if (live.entries + entries.length > mostEntries)
      throw new StorageError(
        'refused',
        `the directory holds more than ${mostEntries} entries; copy the directories below it`,
      )
    await addEntries(db, list, live.entries, entries)
    live.entries += entries.length
  }
  const fileOf = (folder: StoragePath) => (entry: Entry) => ({
    path: [...folder, entry.name],
    type: 'file' as const,
    sizeBytes: entry.sizeBytes ?? 0,
    modifiedAt: entry.modifiedAt,
  })
  // A link is kept where it leads to an entry of the same copy, and the destination has links.
  const linkOf = (folder: StoragePath, entry: Entry): NewEntry[] =>
    !isArchive && target.makeLink !== undefined && isInner(folder, entry.linkTarget)
      ? [{ path: [...folder, entry.name], type: 'link', sizeBytes: 0, ...linkFacts(entry) }]
      : []
  const start = await source.stat(job.path, { signal })
  if (start.type === 'file') await add([{ path: [], type: 'file', sizeBytes: start.sizeBytes ?? 0 }])
  else
    for await (const { folder, entries, isFirst, isLast } of pagesBelow(source, job.path, { signal })) {
      const isEmpty = isFirst && isLast && entries.length === 0
      // Where directories exist only through their files, only empty ones are created explicitly.
      if (isFirst && (isArchive || target.capabilities.directories || isEmpty)) {
        const { modifiedAt, mode } =
          isArchive || target.setAttributes !== undefined
            ? await source.stat([...job.path, ...folder], { signal })
            : {}
        await add([{ path: folder, type: 'directory', sizeBytes: 0, modifiedAt, mode }])
      }
      const reachable = entries.filter(({ name }) => isReachable(name))
      const links = reachable.filter(({ type }) => type === 'symlink').flatMap((each) => linkOf(folder, each))
      skipped +=
        entries.length -
        links.length -
        reachable.filter(({ type }) => type === 'file' || type === 'directory').length
      await add([...reachable.filter(({ type }) => type === 'file').map(fileOf(folder)), ...links])
    }
  await db.transaction(async (tx) => {
    await markListed(tx, list, skipped, isArchive ? undefined : 'sha256')
    if (isArchive) await sortArchive(tx, id)
  })
}

const linkFacts = ({ modifiedAt, linkTarget }: Entry) => ({ modifiedAt, linkTarget })

/**
 * The uploads of all attempts up to this one, the last one first. An attempt whose process ends
 * before it has removed the upload of an earlier attempt leaves that removal to the next attempt.
 */
const uploadsUpTo = (job: StorageJob, entry: JobEntry, attempt: number): string[] =>
  Array.from({ length: attempt }, (_, earlier) => uploadOf(job, entry, attempt - earlier))

/** Those, and before them the one that an attempt has recorded. */
const uploadsOf = (job: StorageJob, entry: JobEntry, attempt: number): Set<string> => {
  const uploads = uploadsUpTo(job, entry, attempt)
  return new Set(typeof entry.upload === 'string' ? [entry.upload, ...uploads] : uploads)
}

/** Removes at the destination what the attempts before this one have left. */
export const discardEarlier = async (
  job: StorageJob,
  ends: Pick<Ends, 'target'>,
  entry: JobEntry,
  signal: AbortSignal,
): Promise<void> => {
  for (const upload of uploadsOf(job, entry, entry.attempt - 1))
    await discardUpload(job, ends, entry, upload, signal)
}

const holdsNone: ReadonlySet<StorageFault> = new Set(['missing', 'notDirectory', 'notFile', 'name', 'link'])

const discardUpload = async (
  job: StorageJob,
  { target }: Pick<Ends, 'target'>,
  entry: JobEntry,
  upload: string,
  signal?: AbortSignal,
): Promise<void> => {
  try {
    await target.discard([...job.destinationPath, ...entry.path], upload, { signal })
  } catch (error) {
    // Where no directory can hold such a file, the attempt left none.
    if (!(error instanceof StorageError && holdsNone.has(error.fault))) throw error
  }
}

/** The work on the entries of one activity. */
interface Sender {
  db: Db
  job: StorageJob
  ends: Ends
  known: Set<string>
  signal: AbortSignal
  /** Of the largest file. */
  mostBytes: number
  /** Whether it is on record that the store has copied a file. */
  isByStore: boolean
}

/** Records the way of the large files, where there is a choice. */
const recordWay = async ({ db, job, ends, mostBytes }: Sender): Promise<void> => {
  if (ends.direct !== undefined) await recordRoute(db, job.id, ends.direct.routeOf(mostBytes))
}

/** The upload of an entry: that of an earlier attempt where its bytes are kept. */
const openUploadOf = async (
  { db, job, ends, signal }: Sender,
  entry: JobEntry,
  to: StoragePath,
): Promise<{ continued: OpenUpload } | { part: UploadPart }> => {
  const { target } = ends
  const name = uploadOf(job, entry, entry.attempt)
  const sizeBytes = entry.sizeBytes ?? 0
  if (target.openUpload === undefined || sizeBytes < continuedFrom) {
    await discardEarlier(job, ends, entry, signal)
    return { part: { upload: name, offset: 0, last: true } }
  }
  const earlier = [...uploadsOf(job, entry, entry.attempt - 1)]
  const open = await target.openUpload(to, { name, earlier, sizeBytes, signal })
  entry.upload = open.upload
  await recordUpload(db, job.id, entry, open.upload)
  return { continued: open }
}

const sendDirectory = async (
  { db, job, ends, known, signal }: Sender,
  { position }: JobEntry,
  to: StoragePath,
): Promise<void> => {
  const { target } = ends
  if (!target.capabilities.directories) return target.makeDirectory(to, { signal })
  const isNew = to.length > 0 && (await entryAt(target, to, signal).catch(() => undefined)) === undefined
  await ensureDirectory(target, to, known, signal)
  if (isNew && target.setAttributes !== undefined) await recordMade(db, job.id, position)
}

const sendLink = async (
  { job, ends, signal }: Sender,
  entry: JobEntry,
  to: StoragePath,
): Promise<'sent' | 'skipped'> => {
  const { target } = ends
  const { linkTarget = '' as ByteName, modifiedAt } = entry
  const isThere = async (): Promise<boolean> => {
    const there = await entryAt(target, to, signal)
    return there?.type === 'symlink' && there.linkTarget === linkTarget
  }
  const isRepeated = entry.attempt > 1
  if ((isRepeated || job.onConflict === 'skip-equal') && (await isThere())) return 'skipped'
  const overwrite = job.onConflict === 'overwrite'
  const make = async (): Promise<'sent'> => {
    await target.makeLink!(to, linkTarget, { overwrite, modifiedAt, signal })
    return 'sent'
  }
  return isRepeated ? orWritten(make, isThere) : make()
}

const sendEntry = async (
  sender: Sender,
  entry: JobEntry,
  how: { isRepeated: boolean; onBytes: (count: number) => void; onSent: (count: number) => void },
): Promise<SentBy> => {
  const { job, ends, known, signal } = sender
  const to = [...job.destinationPath, ...entry.path]
  const { target } = ends
  if (entry.type === 'directory') {
    await sendDirectory(sender, entry, to)
    return 'sent'
  }
  await ensureDirectory(target, to.slice(0, -1), known, signal)
  if (entry.type === 'link') return sendLink(sender, entry, to)
  return sendFile(ends, {
    ...{ from: [...job.path, ...entry.path], to, onConflict: job.onConflict },
    ...{ signal, sizeBytes: entry.sizeBytes ?? 0, ...how },
    onNoWay: async (way, reason) => {
      ends.direct?.fail(way, reason)
      await recordWay(sender)
    },
    openUpload: () => openUploadOf(sender, entry, to),
    discardUpload: (upload) => discardUpload(job, ends, entry, upload, signal),
  })
}

/** What one call sends: one entry, or small files of one folder together. */
type Unit = FilePack | { entry: JobEntry; isRepeated?: boolean }

/** Sends small files together. @returns those that have to be sent one by one */
const sendTogether = async (
  { job, ends, known, signal }: Sender,
  pack: FilePack,
  onWhole: (entry: JobEntry, bytes: number) => void,
): Promise<Unit[]> => {
  const to = [...job.destinationPath, ...pack.folder]
  await ensureDirectory(ends.target, to, known, signal)
  const { sent, others } = await sendPack(ends, pack, {
    ...{ from: [...job.path, ...pack.folder], to, onConflict: job.onConflict, signal },
    uploadOf: (entry) => uploadOf(job, entry, entry.attempt),
  })
  for (const [entry, bytes] of sent) onWhole(entry, bytes)
  return others
}

/** Sends the claimed entries, several at once. The first failure stops the others. */
const sendBatch = async (
  sender: Sender,
  batch: readonly JobEntry[],
  live: LiveJob & { sentBytes: number },
): Promise<void> => {
  const { db, job, ends, signal } = sender
  const stop = new AbortController()
  const both = AbortSignal.any([signal, stop.signal])
  const done: number[] = []
  const onBytes = (count: number): void => {
    live.bytes += count
  }
  const onSent = (count: number): void => {
    live.sentBytes += count
  }
  const onWhole = (entry: JobEntry): void => {
    live.entries += 1
    done.push(entry.position)
  }
  const isPacked =
    job.bytesPerSecond === undefined && job.onConflict !== 'skip-equal' && ends.within === undefined
  // What an earlier attempt may have written is compared, one by one.
  const [first, again] = isPacked
    ? [batch.filter(({ attempt }) => attempt === 1), batch.filter(({ attempt }) => attempt !== 1)]
    : [[], batch]
  const { packs, others } = packsOf(first)
  const queue: Unit[] = [...packs, ...[...others, ...again].map((entry) => ({ entry }))]
  const send = async (unit: Unit): Promise<void> => {
    const aborted = { ...sender, signal: both }
    if ('entries' in unit) {
      const rest = await sendTogether(aborted, unit, (entry, bytes) => {
        onBytes(bytes)
        onSent(bytes)
        onWhole(entry)
      })
      queue.unshift(...rest)
      return
    }
    const { entry, isRepeated = entry.attempt > 1 } = unit
    const by = await sendEntry(aborted, entry, { isRepeated, onBytes, onSent })
    if (by !== 'sent') onBytes(entry.sizeBytes ?? 0)
    if (by === 'copied' && !sender.isByStore) {
      sender.isByStore = true
      await recordByStore(db, job.id)
    }
    onWhole(entry)
    // After a crash a large file would take long to compare.
    if ((entry.sizeBytes ?? 0) >= continuedFrom) await markDone(db, job.id, done.splice(0))
  }
  const work = async (): Promise<void> => {
    for (let unit = queue.shift(); unit !== undefined; unit = queue.shift()) {
      both.throwIfAborted()
      const next = unit
      await inPlaces(ends.links ?? [], () => send(next), { yields: true, signal: both })
    }
  }
  const workers = Array.from({ length: job.bytesPerSecond === undefined ? atOnce : 1 }, async () => {
    try {
      await work()
    } catch (error) {
      stop.abort(error)
      throw error
    }
  })
  const settled = await Promise.allSettled(workers)
  await markDone(db, job.id, done)
  signal.throwIfAborted()
  if (settled.some(({ status }) => status === 'rejected')) throw stop.signal.reason
}

/**
 * Gives the directories that the copy has made their modes and times: only when nothing is written
 * into them any more.
 */
const finishDirectories = async ({ db, job, ends, signal }: Sender): Promise<void> => {
  for await (const entry of madeDirectories(db, job.id)) {
    const attributes = attributesOf(ends, entry)
    if (attributes !== undefined)
      await ends.target.setAttributes?.([...job.destinationPath, ...entry.path], attributes, { signal })
  }
}

/** Sends entries for this many milliseconds. @returns false where none is left */
export const sendEntries = async (
  db: Db,
  job: StorageJob,
  ends: Ends,
  { signal, forMs }: { signal: AbortSignal; forMs: number },
): Promise<boolean> => {
  const { id } = job
  const until = performance.now() + forMs
  const { entries, bytes, allEntries, allBytes, mostBytes, sentBytes } = await readProgress(db, id)
  const live = {
    phase: 'sending' as const,
    entries,
    bytes,
    totalEntries: allEntries,
    totalBytes: allBytes,
    sentBytes,
  }
  using progress = openJobProgress(db, id, live)
  const sender = { db, job, ends, known: new Set<string>(), signal, mostBytes, isByStore: false }
  if (allEntries > 0) await recordWay(sender)
  while (performance.now() < until) {
    const batch = await claimEntries(db, id, batchSize)
    if (batch.length === 0) {
      await finishDirectories(sender)
      await endReplaced(db, job, ends, signal)
      // A completed job that runs again has no entries left.
      if (allEntries > 0) await recordWhole(db, id, allBytes, progress.live.sentBytes)
      return false
    }
    // Directories come first: their entries may be in the same batch.
    for (const entry of batch) if (entry.type === 'directory') await sendBatch(sender, [entry], progress.live)
    await sendBatch(
      sender,
      batch.filter(({ type }) => type !== 'directory'),
      progress.live,
    )
  }
  return true
}

/**
 * Removes the unfinished uploads that an incomplete copy has left at the destination, until it is
 * retried and no longer `isOver`.
 */
export const tidyCopy = async (
  job: StorageJob,
  left: readonly JobEntry[],
  ends: Pick<Ends, 'target'>,
  isOver: () => Promise<boolean>,
): Promise<void> => {
  for (const entry of left) {
    for (const upload of uploadsOf(job, entry, entry.attempt)) {
      if (!(await isOver())) return
      await discardUpload(job, ends, entry, upload)
    }
  }
}
