import type { Db } from '../../db/sql.ts'
import { eachOf } from '../../pacing/each-of.ts'
import { StorageError, type Entry, type StorageDriver } from '../../drivers/storage/contract.ts'
import { quotedPath, textOf, type ByteName, type StoragePath } from '../../drivers/storage/paths.ts'
import { openGlob } from './glob.ts'
import {
  endWalk,
  hashedSoFar,
  leaveUnread,
  nextFolders,
  recordDigests,
  recordIndexStep,
  unreadFiles,
  type FolderFindings,
  type IndexFolder,
  type UnreadFile,
} from './index-findings.ts'
import type { IndexRules } from './index-policy.ts'
import { readIndexWork, recordIndexLive, type IndexWork } from './index-store.ts'
import { openJobProgress } from './progress.ts'
import { isReachable } from './tree.ts'
import { mediaTypeOf } from './view.ts'

const pageSize = 1_000
/** Pages of one directory per step. */
const mostPages = 5
/** Directories per step; those of the next one are read while a step is recorded. */
const foldersInStep = 32
/** Directories at the same time. */
const atOnce = 8
/** Files per step, and at the same time. */
const filesInStep = 32
const readersAtOnce = 3

/** Faults of one directory that do not affect the others. */
const isGone = (error: unknown): boolean =>
  error instanceof StorageError && ['missing', 'notDirectory', 'link'].includes(error.fault)
const isClosed = (error: unknown): boolean =>
  error instanceof StorageError && ['denied', 'name', 'outside'].includes(error.fault)
/** Faults of one file that leave its digest out. */
const isUnreadable = (error: unknown): boolean =>
  isGone(error) ||
  isClosed(error) ||
  (error instanceof StorageError && ['notFile', 'changed'].includes(error.fault))

type Keeps = (path: StoragePath, entry: Entry) => boolean

interface Walk {
  db: Db
  driver: StorageDriver
  keeps: Keeps
  signal: AbortSignal
  /** Directories that are read ahead. */
  ahead: Promise<Reading[]>
}

/** The entries that the policy admits to the index. */
const openFilter = ({ include, exclude }: IndexRules): Keeps => {
  const [wanted, unwanted] = [include.map(openGlob), exclude.map(openGlob)]
  if (wanted.length + unwanted.length === 0) return () => true
  return (folder, { name, type }) => {
    const path = textOf([...folder, name].join('/') as ByteName)
    if (unwanted.some((fits) => fits(path))) return false
    // Directories are kept because wanted entries may be below them.
    return type === 'directory' || wanted.length === 0 || wanted.some((fits) => fits(path))
  }
}

interface Reading {
  folder: IndexFolder
  entries: Entry[]
  skipped: number
  next?: string
  isGone: boolean
}

/** Reads some pages of one directory. */
const readFolder = async ({ driver, keeps, signal }: Walk, folder: IndexFolder): Promise<Reading> => {
  const entries: Entry[] = []
  let skipped = 0
  let after = folder.after
  try {
    for (let page = 0; page < mostPages; page += 1) {
      signal.throwIfAborted()
      const listing = await driver.list(folder.path, { limit: pageSize, after, brief: true, signal })
      for (const entry of listing.entries) {
        if (!isReachable(entry.name)) skipped += 1
        else if (entry.type !== 'special' && keeps(folder.path, entry)) entries.push(entry)
      }
      after = listing.next
      if (after === undefined) return { folder, entries, skipped, isGone: false }
    }
    return { folder, entries, skipped, isGone: false, ...(after === undefined ? {} : { next: after }) }
  } catch (error) {
    if (isGone(error)) {
      if (folder.depth > 0) return { folder, entries: [], skipped, isGone: true }
      throw new StorageError(
        'missing',
        `the root ${quotedPath(folder.path)} is not there; approve another one, or make it`,
        { cause: error },
      )
    }
    if (!isClosed(error) || folder.depth === 0) throw error
    return { folder, entries, skipped: skipped + 1, isGone: false }
  }
}

/** Cuts the findings at the policy's limit of entries. */
const cutAtLimit = (
  read: readonly Reading[],
  { policy, indexedEntries }: IndexWork,
): { found: FolderFindings[]; isFull: boolean } => {
  let left = policy.maxEntries - indexedEntries
  let isFull = false
  const found: FolderFindings[] = []
  for (const { folder, entries, next, ...rest } of read) {
    const kept = entries.slice(0, Math.max(0, left))
    left -= kept.length
    isFull ||= kept.length < entries.length || (left <= 0 && next !== undefined)
    const folders = kept.filter(({ type }) => type === 'directory').map(({ name }) => name)
    const isDeep = folder.depth + 1 >= policy.maxDepth
    found.push({
      ...{ folder, entries: kept, inner: isDeep ? [] : folders, closed: isDeep ? folders : [], ...rest },
      ...(next === undefined ? {} : { next }),
    })
  }
  return { found, isFull }
}

const keyOf = ({ path, after }: IndexFolder): string => JSON.stringify([path, after])

/** Reads the directories of a step, and begins with those of the next one. */
const readStep = async (walk: Walk, folders: readonly IndexFolder[]): Promise<Reading[]> => {
  const known = new Map((await walk.ahead).map((reading) => [keyOf(reading.folder), reading]))
  const read = await eachOf(
    folders.slice(0, foldersInStep),
    atOnce,
    async (folder) => known.get(keyOf(folder)) ?? readFolder(walk, folder),
  )
  walk.ahead = eachOf(folders.slice(foldersInStep), atOnce, (folder) => readFolder(walk, folder))
  // It may fail before it is awaited.
  walk.ahead.catch(() => undefined)
  return read
}

/** One step of the walk. @returns false where no directory is left */
const takeWalkStep = async (walk: Walk, work: IndexWork): Promise<boolean> => {
  const { db } = walk
  const { id, policy } = work
  const began = performance.now()
  const media = (name: ByteName): string | undefined => mediaTypeOf(textOf(name))
  const folders = policy.maxDepth === 0 ? [] : await nextFolders(db, id, 2 * foldersInStep)
  const isLate = work.spentMs >= policy.timeoutSeconds * 1_000
  if (folders.length === 0 || isLate) {
    if (folders.length > 0 || policy.maxDepth === 0)
      await recordIndexStep(db, work, {
        ...{ found: [], spentMs: 0, mediaTypeOf: media },
        stoppedBy: policy.maxDepth === 0 ? 'depth' : 'time',
      })
    await endWalk(db, id)
    return false
  }
  const read = await readStep(walk, folders)
  const { found, isFull } = cutAtLimit(read, work)
  // Once the limit of entries is reached, the walk does not search for more.
  const entries = found.reduce((sum, each) => sum + each.entries.length, work.indexedEntries)
  const isMore = found.some(({ inner }) => inner.length > 0) || folders.length > foldersInStep
  const stops = isFull || (entries >= policy.maxEntries && isMore)
  await recordIndexStep(db, work, {
    ...{ found, spentMs: performance.now() - began, mediaTypeOf: media },
    stoppedBy: stops ? 'entries' : undefined,
  })
  return true
}

interface Slice {
  signal: AbortSignal
  forMs: number
}

/** Takes steps for some milliseconds. `step` answers false where none is left, as this does. */
const inSteps = async (
  db: Db,
  first: IndexWork,
  { signal, forMs }: Slice,
  step: (work: IndexWork) => Promise<boolean>,
): Promise<boolean> => {
  const until = performance.now() + forMs
  for (let work: IndexWork | undefined = first; work !== undefined;) {
    signal.throwIfAborted()
    if (!(await step(work))) return false
    if (performance.now() > until) return true
    work = await readIndexWork(db, first.id)
  }
  return false
}

/** Reads directories for this many milliseconds. @returns false where none is left */
export const walkIndex = async (
  db: Db,
  first: IndexWork,
  driver: StorageDriver,
  slice: Slice,
): Promise<boolean> => {
  const { signal } = slice
  const walk: Walk = { db, driver, signal, keeps: openFilter(first.policy), ahead: Promise.resolve([]) }
  using progress = openJobProgress(
    db,
    first.id,
    { phase: 'indexing', entries: first.indexedEntries, bytes: first.indexedBytes },
    recordIndexLive,
  )
  return await inSteps(db, first, slice, (work) => {
    Object.assign(progress.live, { entries: work.indexedEntries, bytes: work.indexedBytes })
    return takeWalkStep(walk, work)
  })
}

const digestOf = async (
  driver: StorageDriver,
  { path, sizeBytes, modifiedAt }: UnreadFile,
  signal: AbortSignal,
): Promise<{ path: StoragePath; sha256?: string }> => {
  try {
    const sha256 = await driver.digest(path, { signal })
    // The next run lists a file that was written to with another size or time, and reads it again.
    const now = await driver.stat(path, { signal })
    return now.sizeBytes === sizeBytes && now.modifiedAt === modifiedAt ? { path, sha256 } : { path }
  } catch (error) {
    if (isUnreadable(error)) return { path }
    throw error
  }
}

/** Computes digests for this many milliseconds. @returns false where none is left */
export const hashIndex = async (
  db: Db,
  first: IndexWork,
  driver: StorageDriver,
  slice: Slice,
): Promise<boolean> => {
  const live = { phase: 'hashing' as const, ...(await hashedSoFar(db, first.id)) }
  using progress = openJobProgress(db, first.id, live, recordIndexLive)
  return await inSteps(db, first, slice, async (work) => {
    if (work.spentMs >= work.policy.timeoutSeconds * 1_000) {
      await leaveUnread(db, work.id)
      return false
    }
    const began = performance.now()
    const files = await unreadFiles(db, work.id, filesInStep)
    if (files.length === 0) return false
    const digests = await eachOf(files, readersAtOnce, async (file) => {
      const digest = await digestOf(driver, file, slice.signal)
      progress.live.entries += 1
      progress.live.bytes += file.sizeBytes
      return digest
    })
    await recordDigests(db, work, digests, performance.now() - began)
    return true
  })
}
