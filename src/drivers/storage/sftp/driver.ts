import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import { FilesError, type FileFacts, type OpenSiteFile, type SiteFiles } from '../../../shell/site-files.ts'
import { LinkError } from '../../../shell/site-shell.ts'
import { append } from '../../../lists.ts'
import { whole } from '../continued.ts'
import {
  linkFault,
  namedBy,
  nameIn,
  notFile,
  otherBytes,
  shorter,
  siteFault,
  writtenTo,
  wrongOffset,
  wrongSize,
} from '../faults.ts'
import { isSettled, openNames, pageBehind } from '../names.ts'
import {
  StorageError,
  type Attributes,
  type Entry,
  type StorageDriver,
  type WriteOptions,
  type Written,
} from '../contract.ts'
import {
  isText,
  nameOf,
  quotedPath,
  temporaryName,
  textOf,
  type ByteName,
  type StoragePath,
} from '../paths.ts'
import { streamDigest } from '../streams.ts'

/** As much as OpenSSH takes in one request. */
const pieceBytes = 255 * 1024
/** Requests under way for one file: a link of 100 ms then carries some 40 MB/s. */
const piecesAtOnce = 16
/** Requests under way for the entries of a page. */
const looksAtOnce = 256
/** Between two looks whether a later attempt has taken over the file. */
const lookEveryBytes = 4 * 1024 * 1024

const errorOf = (error: unknown, path: StoragePath): Error => {
  if (error instanceof LinkError) return linkFault(error)
  if (!(error instanceof FilesError)) return error as Error
  if (error.code === 'late') return new StorageError('late', error.message, { cause: error })
  const fault = error.code === 'missing' || error.code === 'denied' ? error.code : 'refused'
  return siteFault(fault, path, { said: error.message, cause: error })
}

const notAFile = (path: StoragePath, type: FileFacts['type']): StorageError =>
  type === 'symlink' ? siteFault('link', path) : notFile(path, type)

export interface SftpStorageOptions {
  /** Closing the storage closes it. */
  files: SiteFiles
  /** An absolute path at the site; links on the way to it are followed. */
  base: string
}

const entryOf = (name: ByteName, { type, sizeBytes, modifiedSeconds, mode }: FileFacts): Entry => {
  const plain = type === 'file' || type === 'directory'
  return {
    ...{ name, type, ...(type === 'file' ? { sizeBytes } : {}), modifiedAt: modifiedSeconds * 1_000 },
    // The server does not report which of the bits are this account's.
    ...{ readable: plain && (mode & 0o444) !== 0, writable: plain && (mode & 0o222) !== 0 },
    ...(plain ? { mode } : {}),
  }
}

/** Paths and entries at the site. */
const openPlaces = ({ files, base }: SftpStorageOptions) => {
  const at = (path: StoragePath): string => {
    const wrong = path.find((name) => !isText(name) || name.length > 255)
    if (wrong !== undefined)
      throw new StorageError(
        'name',
        `${quotedPath(path)} is a name that SFTP or the site does not take; choose another one`,
      )
    return [base.replace(/\/+$/, ''), ...path.map(textOf)].join('/')
  }
  const named = namedBy(errorOf)
  const factsAt = async (path: StoragePath): Promise<FileFacts | undefined> => {
    try {
      // The dot makes the server follow a link that the endpoint itself may be.
      return await files.lstat(path.length === 0 ? `${at(path)}/.` : at(path))
    } catch (error) {
      if (error instanceof FilesError && error.code === 'missing') return undefined
      throw errorOf(error, path)
    }
  }
  /**
   * Looks at each directory on the way. The server itself follows links in a path. @returns what it
   * says of the last one
   */
  const walk = async (folder: StoragePath): Promise<FileFacts> => {
    const ways = Array.from({ length: folder.length + 1 }, (_, depth) => folder.slice(0, depth))
    const all = await Promise.all(ways.map((way) => factsAt(way).catch((error: unknown) => error as Error)))
    for (const [depth, facts] of all.entries()) {
      const way = ways[depth] ?? []
      if (facts instanceof Error) throw facts
      if (facts === undefined && depth === 0)
        throw new StorageError('away', 'the folder of the storage is not there; correct its endpoint')
      if (facts === undefined) throw siteFault('missing', way)
      if (facts.type === 'symlink') throw siteFault('link', way)
      if (facts.type !== 'directory') throw siteFault('notDirectory', way)
      if (depth === folder.length) return facts
    }
    throw siteFault('missing', folder)
  }
  const stat = async (path: StoragePath): Promise<Entry> => {
    await walk(path.slice(0, -1))
    const facts = await factsAt(path)
    if (facts === undefined && path.length === 0)
      throw new StorageError('away', 'the folder of the storage is not there; correct its endpoint')
    if (facts === undefined) throw siteFault('missing', path)
    const entry = entryOf(path.at(-1) ?? ('' as ByteName), facts)
    if (facts.type !== 'symlink') return entry
    return { ...entry, linkTarget: nameOf(await named(path, () => files.readlink(at(path)))) }
  }
  const freeName = async (path: StoragePath, overwrite: boolean): Promise<void> => {
    const facts = await factsAt(path)
    if (facts?.type === 'directory') throw notFile(path, 'directory')
    if (facts !== undefined && !overwrite) throw siteFault('exists', path)
  }
  const besideOf = (path: StoragePath, upload: string | undefined): StoragePath => {
    nameIn(path)
    return [...path.slice(0, -1), temporaryName(path, upload)]
  }
  return { files, at, named, factsAt, walk, stat, freeName, besideOf }
}
type Places = ReturnType<typeof openPlaces>

/** The bytes of an open file, several pieces ahead of the reader. */
async function* pieces(file: OpenSiteFile, offset: number, end: number, path: StoragePath) {
  const waiting: { bytes: Promise<Buffer>; length: number }[] = []
  let place = offset
  try {
    for (;;) {
      for (; waiting.length < piecesAtOnce && place < end; place += pieceBytes) {
        const length = Math.min(pieceBytes, end - place)
        const bytes = file.read(place, length)
        bytes.catch(() => undefined)
        waiting.push({ bytes, length })
      }
      const next = waiting.shift()
      if (next === undefined) return
      const bytes = await next.bytes.catch((error: unknown) => {
        throw errorOf(error, path)
      })
      if (bytes.length < next.length) throw shorter(path)
      yield bytes
    }
  } finally {
    await Promise.allSettled(waiting.map(({ bytes }) => bytes))
    await file.close().catch(() => undefined)
  }
}

const readsOf = (places: Places) => {
  const { files, at, named, factsAt, walk, stat } = places

  const read: StorageDriver['read'] = async (path, { offset = 0, length = Infinity, signal } = {}) => {
    signal?.throwIfAborted()
    nameIn(path)
    const { type } = await stat(path)
    if (type !== 'file') throw notAFile(path, type)
    const file = await named(path, () => files.open(at(path), 'read'))
    const facts = await named(path, () => file.facts())
    if (facts.type !== 'file') {
      await file.close()
      throw notAFile(path, facts.type)
    }
    const end = Math.min(facts.sizeBytes, offset + length)
    const stream = Readable.from(pieces(file, offset, end, path), { objectMode: false })
    // A stream without a reader has not begun its generator.
    stream.once('close', () => void file.close().catch(() => undefined))
    return { entry: entryOf(nameIn(path), facts), stream }
  }

  const kept = openNames()
  const mostSkewSeconds = 60
  const isExact = (name: ByteName): boolean => !textOf(name).includes('\ufffd')

  /** Names that were read lately, or those of the server with its facts. */
  const namesOf = async (path: StoragePath, isFurther: boolean) => {
    const { modifiedSeconds } = await walk(path)
    const stamp = String(modifiedSeconds)
    const known = isFurther ? kept.find(path) : undefined
    if (known?.stamp === stamp) return { names: known.names, facts: undefined }
    const all = await named(path, () => files.readdir(at(path)))
    const facts = new Map(all.map((one) => [nameOf(one.name), one.facts]))
    const names = all.map((one) => nameOf(one.name)).sort()
    // What SFTP cannot name is known from here alone.
    // The server's clock may be behind this one.
    if (isSettled(modifiedSeconds + mostSkewSeconds, Date.now() / 1_000) && names.every(isExact))
      kept.keep(path, { stamp, names })
    return { names, facts }
  }

  const listed = async (path: StoragePath, name: ByteName, facts: FileFacts): Promise<Entry> => {
    const entry = entryOf(name, facts)
    if (!isExact(name)) return { ...entry, readable: false, writable: false }
    if (facts.type !== 'symlink') return entry
    const target = await files.readlink(at([...path, name])).catch(() => '')
    return { ...entry, linkTarget: nameOf(target) }
  }

  return {
    async list(path, { limit, after, signal }) {
      signal?.throwIfAborted()
      const { names, facts } = await namesOf(path, after !== undefined)
      const { page, more } = pageBehind(names, { after, limit })
      const entries: Entry[] = []
      for (let from = 0; from < page.length; from += looksAtOnce) {
        signal?.throwIfAborted()
        const found = await Promise.all(
          page.slice(from, from + looksAtOnce).map(async (name) => {
            const own = facts === undefined ? await factsAt([...path, name]) : facts.get(name)
            // It was removed since the directory was read.
            return own === undefined ? [] : [await listed(path, name, own)]
          }),
        )
        append(entries, found.flat())
      }
      return { entries, ...more }
    },
    async stat(path, { signal } = {}) {
      signal?.throwIfAborted()
      return stat(path)
    },
    read,
    async digest(path, { signal } = {}) {
      const { entry, stream } = await read(path, { signal })
      const digest = await streamDigest(stream, signal)
      const { sizeBytes, modifiedAt } = await stat(path)
      if (sizeBytes !== entry.sizeBytes || modifiedAt !== entry.modifiedAt) throw writtenTo(path)
      return digest
    },
    async space() {
      await walk([])
      const availableBytes = await named([], () => files.freeBytes(at([])))
      return availableBytes === undefined ? {} : { availableBytes }
    },
  } satisfies Partial<StorageDriver>
}

/** Writes a stream behind `offset`. @returns the size of the file, and the digest of a whole one */
const writeStream = async (
  file: OpenSiteFile,
  source: Readable,
  { offset, signal, look }: { offset: number; signal: AbortSignal | undefined; look: () => Promise<void> },
): Promise<{ size: number; sha256: string | undefined }> => {
  const hash = createHash('sha256')
  const open = new Set<Promise<void>>()
  let failed: { error: unknown } | undefined
  let [size, looked] = [offset, offset]
  const settled = async (): Promise<void> => {
    await Promise.all(open)
    if (failed !== undefined) throw failed.error
  }
  try {
    for await (const bytes of source as AsyncIterable<Buffer>) {
      hash.update(bytes)
      for (let from = 0; from < bytes.length; from += pieceBytes) {
        signal?.throwIfAborted()
        if (failed !== undefined) throw failed.error
        if (open.size >= piecesAtOnce) await Promise.race(open)
        const piece = bytes.subarray(from, from + pieceBytes)
        const sending = file.write(size, piece).catch((error: unknown) => {
          failed ??= { error }
        })
        open.add(sending)
        void sending.then(() => open.delete(sending))
        size += piece.length
      }
      if (size - looked < lookEveryBytes) continue
      looked = size
      await look()
    }
  } catch (error) {
    // The bytes that stay must have no hole: a piece that failed counts more than a client that left.
    await settled()
    throw error
  }
  await settled()
  return { size, sha256: offset === 0 ? hash.digest('hex') : undefined }
}

const attributesFor = ({ mode, modifiedAt }: Attributes) => ({
  ...(mode === undefined ? {} : { mode: mode & 0o777 }),
  ...(modifiedAt === undefined ? {} : { modifiedSeconds: Math.floor(modifiedAt / 1_000) }),
})

const removing = (places: Places) => {
  const { files, at, factsAt } = places
  /** @returns whether it was there */
  return async (path: StoragePath): Promise<boolean> => {
    const facts = await factsAt(path)
    if (facts !== undefined) await files.unlink(at(path)).catch(() => undefined)
    return facts !== undefined
  }
}

const writeOf = (places: Places, digest: (path: StoragePath) => Promise<string>) => {
  const { files, at, named, walk, stat, factsAt, freeName, besideOf } = places
  const drop = removing(places)

  const begin = async (path: StoragePath, temporary: StoragePath, offset: number): Promise<OpenSiteFile> => {
    const kept = (await factsAt(temporary))?.sizeBytes
    if (offset !== 0 && offset !== (kept ?? 0)) throw wrongOffset(path, kept ?? 0)
    if (offset === 0 && kept !== undefined) await files.unlink(at(temporary))
    return files.open(at(temporary), offset === 0 ? 'create' : 'continue')
  }
  const give = async (path: StoragePath, temporary: StoragePath, options: WriteOptions): Promise<void> => {
    const { attributes, overwrite = false } = options
    await freeName(path, overwrite)
    if (attributes !== undefined) await files.setAttributes(at(temporary), attributesFor(attributes))
    try {
      await files.rename(at(temporary), at(path), overwrite)
    } catch (error) {
      // The server has no code for a name that is taken.
      if (!overwrite && (await factsAt(path)) !== undefined) throw siteFault('exists', path, { cause: error })
      throw error
    }
  }
  /** A full disk has no code either. */
  const full = async (error: unknown, path: StoragePath): Promise<unknown> => {
    if (!(error instanceof FilesError) || error.code !== 'failure') return error
    const free = await files.freeBytes(at([])).catch(() => undefined)
    return free !== undefined && free < 1024 * 1024 ? siteFault('full', path, { cause: error }) : error
  }

  return (path: StoragePath, all: Readable, given: WriteOptions = {}): Promise<Written> =>
    named(path, async () => {
      const { source, write: options } = whole(all, given)
      const { part, overwrite = false, sizeBytes, signal } = options
      let temporary: StoragePath | undefined
      let file: OpenSiteFile | undefined
      try {
        signal?.throwIfAborted()
        nameIn(path)
        await walk(path.slice(0, -1))
        await freeName(path, overwrite)
        const own = besideOf(path, part?.upload)
        file = await begin(path, own, part?.offset ?? 0)
        temporary = own
        const look = async (): Promise<void> => {
          if ((await factsAt(own)) === undefined)
            throw new StorageError(
              'away',
              `${quotedPath(path)}: another attempt goes on with this file; try again later`,
            )
        }
        const { size, sha256 } = await writeStream(file, source, { offset: part?.offset ?? 0, signal, look })
        await file.sync()
        if (part?.last === false) return { receivedBytes: size }
        if (sizeBytes !== undefined && size !== sizeBytes) throw wrongSize(path, sizeBytes, size)
        const found = sha256 ?? (await digest(own))
        if ((options.digest?.() ?? found) !== found) throw otherBytes(path)
        await give(path, own, options)
        temporary = undefined
        return { receivedBytes: size, entry: await stat(path), sha256: found }
      } catch (error) {
        await file?.sync().catch(() => undefined)
        if (temporary !== undefined && part?.keepsAfter?.(error) !== true) {
          if (part === undefined || part.offset === 0) await drop(temporary).catch(() => undefined)
          else await files.truncate(at(temporary), part.offset).catch(() => undefined)
        }
        throw await full(error, path)
      } finally {
        source.destroy()
        await file?.close().catch(() => undefined)
      }
    })
}

const changesOf = (places: Places) => {
  const { files, at, named, walk, factsAt, freeName, besideOf } = places
  const drop = removing(places)
  const beside = async (path: StoragePath): Promise<void> => {
    nameIn(path)
    await walk(path.slice(0, -1))
  }

  return {
    openUpload: (path, { name, earlier }) =>
      named(path, async () => {
        await beside(path)
        const own = besideOf(path, name)
        for (const old of earlier.map((each) => besideOf(path, each))) {
          if (old.at(-1) === own.at(-1) || (await factsAt(old)) === undefined) continue
          if ((await factsAt(own)) === undefined) await files.rename(at(old), at(own), false)
          else await drop(old)
        }
        return { upload: name, receivedBytes: (await factsAt(own))?.sizeBytes ?? 0 }
      }),
    received: (path, upload) =>
      named(path, async () => {
        await beside(path)
        return (await factsAt(besideOf(path, upload)))?.sizeBytes ?? 0
      }),
    discard: (path, upload) =>
      named(path, async () => {
        await beside(path)
        await drop(besideOf(path, upload))
      }),
    delete: (path) =>
      named(path, async () => {
        await beside(path)
        const facts = await factsAt(path)
        if (facts === undefined) throw siteFault('missing', path)
        if (facts.type === 'directory') throw notFile(path, 'directory')
        await files.unlink(at(path))
      }),
    makeDirectory: (path) =>
      named(path, async () => {
        await beside(path)
        const facts = await factsAt(path)
        if (facts?.type === 'directory') return
        if (facts !== undefined) throw siteFault('exists', path)
        await files.mkdir(at(path)).catch(async (error: unknown) => {
          if ((await factsAt(path))?.type !== 'directory') throw error
        })
      }),
    makeLink: (path, target, { overwrite = false } = {}) =>
      named(path, async () => {
        if (!isText(target))
          throw new StorageError('name', `the target of ${quotedPath(path)} is not UTF-8; choose another one`)
        await beside(path)
        await freeName(path, overwrite)
        const own = besideOf(path, undefined)
        await files.symlink(textOf(target), at(own))
        try {
          await files.rename(at(own), at(path), overwrite)
        } catch (error) {
          await drop(own)
          if (!overwrite && (await factsAt(path)) !== undefined)
            throw siteFault('exists', path, { cause: error })
          throw error
        }
      }),
    setAttributes: (path, attributes) =>
      named(path, async () => {
        await walk(path)
        await files.setAttributes(at(path), attributesFor(attributes))
      }),
  } satisfies Partial<StorageDriver>
}

/**
 * A folder of an account that has SFTP and no shell. The server knows paths only, and follows the
 * links in them: the driver looks at each step, and a link that is made between the look and
 * the call is followed, inside of what the account may reach. Times have seconds.
 */
export const openSftpStorage = (options: SftpStorageOptions): StorageDriver => {
  const places = openPlaces(options)
  const reads = readsOf(places)
  const write = writeOf(places, (path) => reads.digest(path))
  return {
    capabilities: { directories: true, versions: false },
    ...reads,
    ...changesOf(places),
    write,
    close: () => options.files.close(),
  }
}
