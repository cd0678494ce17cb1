import type { FileHandle } from 'node:fs/promises'
import { crc32 } from 'node:zlib'
import type { Readable } from 'node:stream'
import { fromFdPromise, type Entry, type ZipFile } from 'yauzl'
import { type Refusal, unacceptableAt } from '../../../refusal.ts'
import { artifactPrefix, databaseEntry, limits, manifestEntry } from './manifest.ts'

export const rejected = (message: string, path = ''): Refusal => unacceptableAt(path, message)

const artifactName = new RegExp(`^${artifactPrefix}[0-9a-f]{64}$`)
/** The bytes of an entry's header before its name. */
const localHeaderBytes = 30
const symlink = 0o120000
const regular = 0o100000
/** The most bytes of a descriptor. It follows an entry whose sizes were not known in advance. */
const mostDescriptor = 24

const checkName = ({ fileName }: Entry): void => {
  if (/\.sqlite3?$|\.db$/i.test(fileName))
    throw rejected(
      `${JSON.stringify(fileName)} is an SQLite database; only archives that this service exported ` +
        `(${databaseEntry}) can be imported`,
    )
  if (fileName !== databaseEntry && fileName !== manifestEntry && !artifactName.test(fileName))
    throw rejected(
      `the entry ${JSON.stringify(fileName.slice(0, 200))} does not belong in an instance archive; it ` +
        `holds ${databaseEntry}, artifacts/sha256/<digest> and ${manifestEntry}`,
    )
}

const checkKind = (entry: Entry): void => {
  const name = JSON.stringify(entry.fileName)
  const mode = entry.externalFileAttributes >>> 16
  const type = mode & 0o170000
  if (type === symlink) throw rejected(`the entry ${name} is a symbolic link`)
  if (type !== 0 && type !== regular) throw rejected(`the entry ${name} is no regular file`)
  if ((mode & 0o7000) !== 0) throw rejected(`the entry ${name} changes the account that runs it`)
  if ((entry.generalPurposeBitFlag & 0x41) !== 0) throw rejected(`the entry ${name} is encrypted`)
  if (entry.compressionMethod !== 0 && entry.compressionMethod !== 8)
    throw rejected(
      `the entry ${name} is compressed by method ${String(entry.compressionMethod)}, not deflate`,
    )
}

/** The field that holds the sizes where 4 bytes do not. */
const wideSizes = { id: 1, bytes: 16 } as const

/** Whether what stands between an entry's name and bytes is nothing, or sizes above 4 GiB. */
const isExpected = (extra: Buffer, entry: Entry): boolean =>
  extra.length === 0 ||
  (Math.max(entry.uncompressedSize, entry.compressedSize) >= 0xffffffff &&
    extra.length === 4 + wideSizes.bytes &&
    extra.readUInt16LE(0) === wideSizes.id &&
    extra.readUInt16LE(2) === wideSizes.bytes &&
    extra.readBigUInt64LE(4) === BigInt(entry.uncompressedSize) &&
    extra.readBigUInt64LE(12) === BigInt(entry.compressedSize))

/** Checks that an entry's local header agrees with the directory. */
const checkLocal = async (file: FileHandle, entry: Entry): Promise<{ from: number; to: number }> => {
  const from = entry.relativeOffsetOfLocalHeader
  const head = Buffer.alloc(localHeaderBytes)
  const name = JSON.stringify(entry.fileName)
  const { bytesRead } = await file.read(head, 0, localHeaderBytes, from)
  if (bytesRead < localHeaderBytes || head.readUInt32LE(0) !== 0x04034b50)
    throw rejected(`the entry ${name} has no local header at the position that the directory gives`)
  const [nameBytes, extraBytes] = [head.readUInt16LE(26), head.readUInt16LE(28)]
  const after = Buffer.alloc(nameBytes + extraBytes)
  await file.read(after, 0, after.length, from + localHeaderBytes)
  const [local, extra] = [after.subarray(0, nameBytes), after.subarray(nameBytes)]
  if (!isExpected(extra, entry) || entry.fileCommentLength > 0)
    throw rejected(`the entry ${name} carries more than its name and bytes`)
  const flags = head.readUInt16LE(6)
  if (
    local.toString('utf8') !== entry.fileName ||
    !versionsNeeded.has(head.readUInt16LE(4)) ||
    head.readUInt16LE(8) !== entry.compressionMethod ||
    head.readUInt16LE(10) !== entry.lastModFileTime ||
    head.readUInt16LE(12) !== entry.lastModFileDate ||
    flags !== entry.generalPurposeBitFlag
  )
    throw rejected(`the local header of ${name} differs from the directory`)
  // Without a descriptor after the bytes, the header holds the sizes and the sum too.
  const late = (flags & 8) !== 0
  const differs = (at: number, value: number): boolean => {
    const here = head.readUInt32LE(at)
    return here !== value && here !== 0xffffffff && !(late && here === 0)
  }
  if (differs(14, entry.crc32) || differs(18, entry.compressedSize) || differs(22, entry.uncompressedSize))
    throw rejected(`the local header of ${name} differs from the directory`)
  const to = from + localHeaderBytes + nameBytes + extraBytes + entry.compressedSize
  return { from, to: late ? to + (await checkDescriptor(file, entry, to)) : to }
}

/** Plain, deflated, above 4 GiB. */
const versionsNeeded = new Set([10, 20, 45])
const descriptorSignature = 0x08074b50

/**
 * Checks the sizes and sum that follow an entry's bytes, where its header holds none.
 * @returns their length
 */
const checkDescriptor = async (file: FileHandle, entry: Entry, at: number): Promise<number> => {
  const bytes = Buffer.alloc(mostDescriptor)
  await file.read(bytes, 0, mostDescriptor, at)
  const from = bytes.readUInt32LE(0) === descriptorSignature ? 4 : 0
  const same = (wide: boolean): boolean =>
    bytes.readUInt32LE(from) === entry.crc32 &&
    (wide
      ? bytes.readBigUInt64LE(from + 4) === BigInt(entry.compressedSize) &&
        bytes.readBigUInt64LE(from + 12) === BigInt(entry.uncompressedSize)
      : bytes.readUInt32LE(from + 4) === entry.compressedSize &&
        bytes.readUInt32LE(from + 8) === entry.uncompressedSize)
  if (same(false)) return from + 12
  if (same(true)) return from + 20
  throw rejected(`the sizes after ${JSON.stringify(entry.fileName)} are not those of the directory`)
}

const checkPlaces = (
  places: { from: number; to: number }[],
  directory: number | undefined,
  size: number,
): void => {
  let end = 0
  for (const { from, to } of places.toSorted((a, b) => a.from - b.from)) {
    if (from < end) throw rejected('entries of the archive overlap')
    if (from > end) throw rejected('the archive has bytes of no entry')
    end = to
  }
  if (end > (directory ?? size)) throw rejected('entries of the archive overlap its directory')
  if (directory !== undefined && end < directory) throw rejected('the archive has bytes of no entry')
}

const checkSizes = (entries: readonly Entry[], packed: number): void => {
  const unpacked = entries.reduce((sum, entry) => sum + entry.uncompressedSize, 0)
  if (unpacked > limits.unpackedBytes) throw rejected('the archive expands to more than 64 GiB')
  if (unpacked > packed * limits.ratio)
    throw rejected(`the archive expands to more than ${String(limits.ratio)} times its size`)
}

export interface CheckedArchive {
  entries: ReadonlyMap<string, Entry>
  /** The bytes of an entry. The read fails where size or sum differs from the directory's. */
  read(entry: Entry): Promise<AsyncIterable<Buffer>>
}

const checkedBytes = async function* (stream: Readable, entry: Entry): AsyncGenerator<Buffer> {
  let sum = 0
  try {
    for await (const chunk of stream) {
      sum = crc32(chunk as Buffer, sum)
      yield chunk as Buffer
    }
  } catch (error) {
    // Bytes that do not inflate, or whose number differs from the directory's.
    throw rejected(`the entry ${JSON.stringify(entry.fileName)} cannot be read: ${(error as Error).message}`)
  }
  if (sum !== entry.crc32) throw rejected(`the bytes of ${JSON.stringify(entry.fileName)} have another CRC`)
}

const entriesOf = async (zip: ZipFile): Promise<Entry[]> => {
  if (zip.entryCount > limits.entries)
    throw rejected(`the archive has ${String(zip.entryCount)} entries, more than ${String(limits.entries)}`)
  const entries: Entry[] = []
  for await (const entry of zip.eachEntry()) entries.push(entry)
  return entries
}

const endBytes = 22

/**
 * Checks that the record at the end of the file agrees with the directory before it.
 * @returns where the directory begins; undefined above 4 GiB, where another record says it
 */
const checkEnd = async (file: FileHandle, size: number): Promise<number | undefined> => {
  const end = Buffer.alloc(endBytes)
  await file.read(end, 0, endBytes, size - endBytes)
  const [disk, directoryDisk, here, all] = [4, 6, 8, 10].map((at) => end.readUInt16LE(at))
  const [length, offset] = [end.readUInt32LE(12), end.readUInt32LE(16)]
  // Above 4 GiB or 65,535 entries another record before it holds the numbers.
  const wide = all === 0xffff || length === 0xffffffff || offset === 0xffffffff
  if (
    end.readUInt32LE(0) !== 0x06054b50 ||
    (!wide && (disk !== 0 || directoryDisk !== 0 || here !== all || offset + length !== size - endBytes))
  )
    throw rejected('the body is no ZIP archive that can be taken: its end and its directory disagree')
  return wide ? undefined : offset
}

/** Checks everything but the content of a ZIP file. @throws Refusal with the problem */
export const checkArchive = async (file: FileHandle, size: number): Promise<CheckedArchive> => {
  let zip: ZipFile
  let entries: Entry[]
  let directory: number | undefined
  try {
    zip = await fromFdPromise(file.fd, { lazyEntries: true, autoClose: false, strictFileNames: true })
    entries = await entriesOf(zip)
    directory = await checkEnd(file, size)
  } catch (error) {
    if (error instanceof Error && error.name === 'Refusal') throw error
    throw rejected(`the body is no ZIP archive that can be taken: ${(error as Error).message}`)
  }
  const named = new Map<string, Entry>()
  const places: { from: number; to: number }[] = []
  for (const entry of entries) {
    checkKind(entry)
    checkName(entry)
    if (named.has(entry.fileName))
      throw rejected(`the entry ${JSON.stringify(entry.fileName)} is there twice`)
    named.set(entry.fileName, entry)
    places.push(await checkLocal(file, entry))
  }
  checkPlaces(places, directory, size)
  checkSizes(entries, size)
  if (entries.at(-1)?.fileName !== manifestEntry)
    throw rejected(`${manifestEntry} must be the last entry of the archive`)
  return {
    entries: named,
    read: async (entry) => checkedBytes(await zip.openReadStreamPromise(entry), entry),
  }
}
