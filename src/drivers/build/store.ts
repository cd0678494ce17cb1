import { createHash, randomUUID } from 'node:crypto'
import { createReadStream, type ReadStream } from 'node:fs'
import { appendFile, link, mkdir, open, readdir, rm, stat, utimes, type FileHandle } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { LogRange, LogSlice } from '../runtime/contract/driver.ts'
import { readLogFile } from '../runtime/contract/log-file.ts'

/**
 * The kinds of files in the store: contexts as they were sent, the images that builds made, and
 * lists of the packages of images, under the digest of the image.
 */
export type BlobKind = 'contexts' | 'images' | 'sboms'

const hexOf = (digest: string): string => {
  const hex = /^sha256:([0-9a-f]{64})$/.exec(digest)?.[1]
  if (hex === undefined) throw new Error(`${JSON.stringify(digest.slice(0, 100))} is no digest`)
  return hex
}

export const synced = async (path: string): Promise<void> => {
  await using file = await open(path, 'r')
  await file.sync()
}

/** Digest, as `sha256:<hex>`, and size of a file, which is read once. */
export const digestOfFile = async (path: string): Promise<{ digest: string; sizeBytes: number }> => {
  const hash = createHash('sha256')
  let sizeBytes = 0
  for await (const piece of createReadStream(path, { highWaterMark: 1_048_576 })) {
    hash.update(piece as Buffer)
    sizeBytes += (piece as Buffer).length
  }
  return { digest: `sha256:${hash.digest('hex')}`, sizeBytes }
}

/** A temporary file that is being written. */
export interface Aside extends AsyncDisposable {
  write: (piece: Buffer) => Promise<void>
  /** Size of what was written so far. */
  size: () => number
  /** Moves it under its digest; equal bytes are stored once. @returns the digest */
  keep: (kind: BlobKind) => Promise<string>
}

/**
 * Files by their digest. A file is written under a temporary name, synced, and linked under its
 * digest: a file with its digest as name is complete.
 */
export interface ArtifactStore {
  pathOf: (kind: BlobKind, digest: string) => string
  /** The file's size; undefined: the store has no file of the digest. */
  sizeOf: (kind: BlobKind, digest: string) => Promise<number | undefined>
  read: (kind: BlobKind, digest: string, range?: { offset: number; length: number }) => ReadStream
  /** A new temporary file; without `keep` it is removed when it is disposed of. */
  aside: () => Promise<Aside>
  /** Moves a file in a folder of the store under its digest. */
  take: (kind: BlobKind, path: string) => Promise<{ digest: string; sizeBytes: number }>
  /** Moves a file in a folder of the store under the digest that it belongs to. */
  settle: (kind: BlobKind, path: string, digest: string) => Promise<void>
  /** A folder for the work of one build; the same name is the same folder. */
  folder: (name: string) => Promise<string>
  removeFolder: (name: string) => Promise<void>
  remove: (kind: BlobKind, digest: string) => Promise<void>
  /** Makes a file as young as a new one. @returns whether the store has it */
  renew: (kind: BlobKind, digest: string) => Promise<boolean>
  /** Digests of files that were last kept or renewed before an age in ms, in pieces. */
  olderThan: (kind: BlobKind, ageMs: number) => AsyncIterable<string[]>
  /** Whether a file was last kept or renewed before an age in ms; false where it is absent. */
  isOlder: (kind: BlobKind, digest: string, ageMs: number) => Promise<boolean>
  /** Adds to the log of a build run. */
  appendLog: (name: string, text: string) => Promise<void>
  /** Part of the log of a build run; an absent log is empty. */
  readLog: (name: string, range: LogRange) => Promise<LogSlice>
  removeLog: (name: string) => Promise<void>
}

/** All bytes of a file, or those of a range. */
export const readRange = (path: string, range?: { offset: number; length: number }): ReadStream =>
  createReadStream(path, range && { start: range.offset, end: range.offset + range.length - 1 })

/** The folders of the store, below its root. */
export const storeFolders: readonly string[] = ['contexts', 'images', 'sboms', 'builds', 'logs', 'partial']

const shortName = (name: string): string => createHash('sha256').update(name).digest('hex').slice(0, 32)

export const openArtifactStore = (root: string): ArtifactStore => {
  void sweepAside(root).catch(() => undefined)
  const pathOf = (kind: BlobKind, digest: string): string => {
    const hex = hexOf(digest)
    return join(root, kind, hex.slice(0, 2), hex)
  }
  const logOf = (name: string): string => join(root, 'logs', shortName(name))
  const put = async (kind: BlobKind, from: string, digest: string): Promise<void> => {
    const path = pathOf(kind, digest)
    await mkdir(dirname(path), { recursive: true, mode: 0o700 })
    try {
      await link(from, path)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
      await renewed(path)
    }
    await synced(dirname(path))
    await rm(from, { force: true })
  }
  const aside = async (): Promise<Aside> => {
    const folder = join(root, 'partial')
    await mkdir(folder, { recursive: true, mode: 0o700 })
    const path = join(folder, randomUUID())
    let handle: FileHandle | undefined = await open(path, 'wx', 0o600)
    const hash = createHash('sha256')
    let size = 0
    return {
      write: async (piece) => {
        hash.update(piece)
        size += piece.length
        await handle?.writeFile(piece)
      },
      size: () => size,
      keep: async (kind) => {
        await handle?.sync()
        await handle?.close()
        handle = undefined
        const digest = `sha256:${hash.digest('hex')}`
        await put(kind, path, digest)
        return digest
      },
      [Symbol.asyncDispose]: async () => {
        await handle?.close()
        await rm(path, { force: true })
      },
    }
  }
  return {
    pathOf,
    sizeOf: (kind, digest) =>
      stat(pathOf(kind, digest)).then(
        ({ size }) => size,
        () => undefined,
      ),
    read: (kind, digest, range) => readRange(pathOf(kind, digest), range),
    aside,
    take: async (kind, path) => {
      const facts = await digestOfFile(path)
      await synced(path)
      await put(kind, path, facts.digest)
      return facts
    },
    settle: async (kind, path, digest) => {
      await synced(path)
      await put(kind, path, digest)
    },
    folder: async (name) => {
      const path = join(root, 'builds', shortName(name))
      await mkdir(path, { recursive: true, mode: 0o700 })
      return path
    },
    removeFolder: (name) => rm(join(root, 'builds', shortName(name)), { recursive: true, force: true }),
    remove: (kind, digest) => rm(pathOf(kind, digest), { force: true }),
    renew: (kind, digest) => renewed(pathOf(kind, digest)),
    olderThan: (kind, ageMs) => olderFiles(join(root, kind), ageMs),
    isOlder: (kind, digest, ageMs) => isBefore(pathOf(kind, digest), Date.now() - ageMs),
    appendLog: async (name, text) => {
      await mkdir(join(root, 'logs'), { recursive: true, mode: 0o700 })
      await appendFile(logOf(name), text, { mode: 0o600 })
    },
    readLog: (name, range) => readLogFile(logOf(name), range),
    removeLog: (name) => rm(logOf(name), { force: true }),
  }
}

const renewed = async (path: string): Promise<boolean> => {
  const now = new Date()
  try {
    await utimes(path, now, now)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return false
  }
}

const isBefore = async (path: string, time: number): Promise<boolean> => {
  const found = await stat(path).catch(() => undefined)
  return found !== undefined && found.mtimeMs < time
}

/** Digests of old files below a folder, those of one of its folders at once. */
async function* olderFiles(root: string, ageMs: number): AsyncGenerator<string[]> {
  const before = Date.now() - ageMs
  for (const folder of await readdir(root).catch(() => [])) {
    const old: string[] = []
    for (const name of await readdir(join(root, folder)).catch(() => []))
      if (/^[0-9a-f]{64}$/.test(name) && (await isBefore(join(root, folder, name), before)))
        old.push(`sha256:${name}`)
    if (old.length > 0) yield old
  }
}

/**
 * Removes temporary files that are older than a day, which uploads left when the process was
 * killed.
 */
const sweepAside = async (root: string): Promise<void> => {
  const folder = join(root, 'partial')
  for (const name of await readdir(folder).catch(() => [])) {
    const path = join(folder, name)
    if (await isBefore(path, Date.now() - 86_400_000)) await rm(path, { force: true })
  }
}
