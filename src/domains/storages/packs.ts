import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import {
  StorageError,
  type NewSmallFile,
  type SmallFile,
  type StorageDriver,
} from '../../drivers/storage/contract.ts'
import { eachOf } from '../../pacing/each-of.ts'
import { isText, type ByteName, type StoragePath } from '../../drivers/storage/paths.ts'
import type { JobEntry, OnConflict } from './job-store.ts'
import { attributesOf, isUnchanged, type Ends } from './send.ts'

/** A larger file is sent alone: its bytes then cost more than its calls. */
const smallBytes = 64 * 1024
/** Limits of one pack; the names go into one message to a site. */
const mostFiles = 120
const mostBytes = 4 * 1024 * 1024
/** Requests at once where a storage takes or gives one file in each. */
const atOnce = 6
/** Names of a folder that are read to learn which are free. */
const mostListed = 1_000

/** Small files of one folder. */
export interface FilePack {
  /** Below the path of the job. */
  folder: StoragePath
  entries: JobEntry[]
  bytes: number
}

const isSmall = ({ type, sizeBytes, path }: JobEntry): boolean =>
  type === 'file' && (sizeBytes ?? 0) <= smallBytes && path.length > 0 && isText(path.at(-1)!)

/**
 * Puts small files into packs, by their folder. @returns the packs, and all other entries
 */
export const packsOf = (entries: readonly JobEntry[]): { packs: FilePack[]; others: JobEntry[] } => {
  const open = new Map<string, FilePack>()
  const packs: FilePack[] = []
  for (const entry of entries.filter(isSmall)) {
    const folder = entry.path.slice(0, -1)
    const key = folder.join('/')
    const sizeBytes = entry.sizeBytes ?? 0
    let pack = open.get(key)
    if (pack === undefined || pack.entries.length >= mostFiles || pack.bytes + sizeBytes > mostBytes) {
      pack = { folder, entries: [], bytes: 0 }
      packs.push(pack)
      open.set(key, pack)
    }
    pack.entries.push(entry)
    pack.bytes += sizeBytes
  }
  const [several, single] = [packs.filter(isSeveral), packs.filter((pack) => !isSeveral(pack))]
  return {
    packs: several,
    others: [...entries.filter((entry) => !isSmall(entry)), ...single.flatMap((pack) => pack.entries)],
  }
}
const isSeveral = ({ entries }: FilePack): boolean => entries.length > 1

interface Packing {
  /** Folders of the pack at both ends. */
  from: StoragePath
  to: StoragePath
  onConflict: OnConflict
  uploadOf: (entry: JobEntry) => string
  signal: AbortSignal
}

/** Small files of one folder; those that cannot be read as a whole are absent. */
export const contentsOf = async (
  source: StorageDriver,
  names: ByteName[],
  { from, signal }: Pick<Packing, 'from' | 'signal'>,
): Promise<SmallFile[]> => {
  if (source.readMany !== undefined) return source.readMany(from, names, { signal })
  const files: SmallFile[] = []
  await eachOf(names, atOnce, async (name) => {
    const path = [...from, name]
    try {
      const { entry, stream } = await source.read(path, { signal })
      if ((entry.sizeBytes ?? Infinity) > smallBytes) return void stream.destroy()
      const bytes = await buffer(stream)
      const { modifiedAt, mode } = entry
      if (source.capabilities.versions || (await isUnchanged({ source }, { from: path, signal }, entry)))
        files.push({ name, bytes, modifiedAt, mode })
    } catch (error) {
      // Alone it is read again, and the job gets the reason.
      if (!(error instanceof StorageError)) throw error
    }
  })
  return files
}

/** Names of a folder; undefined where it holds more than are read here. */
const namesIn = async (
  { target }: Ends,
  folder: StoragePath,
  signal: AbortSignal,
): Promise<Set<ByteName> | undefined> => {
  try {
    const { entries, next } = await target.list(folder, { limit: mostListed, signal })
    return next === undefined ? new Set(entries.map(({ name }) => name)) : undefined
  } catch (error) {
    // Without directories a folder begins with its first file.
    if (error instanceof StorageError && error.fault === 'missing') return new Set()
    throw error
  }
}

/** What one call for all files has made of them: absent names were not touched. */
type Placed = Map<ByteName, 'whole' | 'unsure'>

const placed = async (
  ends: Ends,
  files: readonly NewSmallFile[],
  { to, onConflict, signal }: Packing,
): Promise<Placed> => {
  const { target } = ends
  const overwrite = onConflict === 'overwrite'
  if (target.writeMany !== undefined) {
    const whole = await target.writeMany(to, files, { overwrite, signal })
    return new Map(whole.map((name) => [name, 'whole']))
  }
  const taken = target.capabilities.directories ? undefined : await namesIn(ends, to, signal)
  const made: Placed = new Map()
  await eachOf(files, atOnce, async ({ name, bytes, attributes, upload }) => {
    if (taken?.has(name) === true) return
    try {
      await target.write([...to, name], Readable.from([bytes], { objectMode: false }), {
        ...{ overwrite, sizeBytes: bytes.length, attributes, withoutEntry: true, signal },
        ...{ isFree: taken !== undefined, part: { upload, offset: 0, last: true } },
      })
      made.set(name, 'whole')
    } catch (error) {
      // Alone it is written again, and the job gets the reason.
      if (!(error instanceof StorageError)) throw error
      if (error.fault !== 'exists') made.set(name, 'unsure')
    }
  })
  return made
}

export interface SentPack {
  /** Entries that are whole at the destination, with their bytes. */
  sent: Map<JobEntry, number>
  /** Entries to send one by one; `isRepeated` where this call may have written the file. */
  others: { entry: JobEntry; isRepeated: boolean }[]
}

/** Sends small files of one folder, whose counterpart exists, in as few calls as both ends take. */
export const sendPack = async (ends: Ends, { entries }: FilePack, packing: Packing): Promise<SentPack> => {
  const { to, uploadOf, signal } = packing
  const byName = new Map(entries.map((entry) => [entry.path.at(-1)!, entry]))
  let files: NewSmallFile[] = []
  let made: Placed = new Map()
  try {
    const read = await contentsOf(ends.source, [...byName.keys()], packing)
    files = read.flatMap(({ name, bytes, ...facts }) => {
      const entry = byName.get(name)
      if (entry === undefined) return []
      return [{ name, bytes, attributes: attributesOf(ends, facts), upload: uploadOf(entry) }]
    })
    if (files.length > 0) made = await placed(ends, files, packing)
  } catch (error) {
    signal.throwIfAborted()
    if (!(error instanceof StorageError)) throw error
    made = new Map(files.map(({ name }) => [name, 'unsure']))
    const [first] = files
    if (first !== undefined)
      await ends.target.discard([...to, first.name], first.upload, { signal }).catch(() => undefined)
  }
  const bytesOf = new Map(files.map(({ name, bytes }) => [name, bytes.length]))
  const sent: SentPack['sent'] = new Map()
  const others: SentPack['others'] = []
  for (const [name, entry] of byName) {
    const state = made.get(name)
    if (state === 'whole') sent.set(entry, bytesOf.get(name) ?? 0)
    else others.push({ entry, isRepeated: state === 'unsure' })
  }
  return { sent, others }
}
