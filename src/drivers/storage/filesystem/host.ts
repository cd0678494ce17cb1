/**
 * The process that touches a file system. A mount whose server is gone blocks a thread of its
 * caller without limit. Here that is a thread of this process, which its parent ends after a
 * deadline, so no part of the service waits.
 *
 * It walks paths from the approved folder by descriptors (`/proc/self/fd/N/name`, since Node has no
 * `openat`) and follows no link at any step: after a swap it has either the opened directory or an
 * error.
 */
import { createHash, type Hash } from 'node:crypto'
import {
  accessSync,
  closeSync,
  chmodSync,
  constants,
  fchmodSync,
  fstatSync,
  fsync,
  ftruncateSync,
  futimesSync,
  linkSync,
  lstatSync,
  lutimesSync,
  mkdirSync,
  openSync,
  read,
  readdirSync,
  readlinkSync,
  readSync,
  renameSync,
  statfsSync,
  symlinkSync,
  unlinkSync,
  utimesSync,
  write,
  type BigIntStats,
} from 'node:fs'
import { setImmediate as turn } from 'node:timers/promises'
import { promisify } from 'node:util'
import { eachOf } from '../../../pacing/each-of.ts'
import {
  StorageError,
  type Attributes,
  type Entry,
  type EntryPage,
  type LinkOptions,
  type ListOptions,
  type NewSmallFile,
  type SmallFile,
  type StorageFault,
} from '../contract.ts'
import {
  nameIn,
  notDeleted,
  notFile,
  taken,
  takenByFile,
  takenByFolder,
  writtenTo,
  wrongOffset,
} from '../faults.ts'
import { isSettled, pageBehind } from '../names.ts'
import { bytesOf, quotedPath, temporaryName, type ByteName, type StoragePath } from '../paths.ts'

/** Where the endpoint is: the first message to the process. */
export interface Where {
  /** An approved absolute path without links. The walk below it follows no link. */
  base: string
  /** The endpoint, below it. */
  below: StoragePath
}

/** To the process: where the endpoint is, then calls. */
export type ToHost = Where | { id: number; call: keyof HostCalls; args: readonly unknown[] }

/** From the process: an answer, a fault, or that it still reads a file for its digest. */
export type FromHost =
  | { id: number; answer: unknown }
  | { id: number; fault: Pick<StorageError, 'fault' | 'message' | 'receivedBytes'> }
  | 'reading'

/** The calls; each has one answer. */
export type HostCalls = typeof calls

const readAt = promisify(read)
const writeAt = promisify(write)
const flush = promisify(fsync)

const { O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_NOCTTY, O_RDONLY, O_RDWR, O_CREAT, O_EXCL, R_OK, W_OK } =
  constants
/**
 * A descriptor for paths alone: it needs no right to read the directory. Node has no name for it.
 */
const O_PATH = 0o10000000
const digestPiece = 1024 * 1024
/** Bytes between two looks at other requests. */
const digestTurn = 64 * digestPiece

interface OpenFile {
  fd: number
  /**
   * The reads and writes under way. The descriptor stays open until they end: the next file that is
   * opened gets its number, and a write that still waits for a thread would go there.
   */
  work: Promise<unknown>
  /** The target of a file that is being written. */
  target?: {
    folder: number
    name: ByteName
    path: StoragePath
    temporary: ByteName
    overwrite: boolean
    upload: boolean
    begun: number
    size: number
    hash: Hash | undefined
  }
}

let endpoint: Where = { base: '', below: [] }
const files = new Map<number, OpenFile>()
let lastFile = 0
/**
 * The names of the directory that was listed last, sorted: further pages of a large one need not
 * read it again.
 */
let listed: { key: string; names: ByteName[] } | undefined

const at = (folder: number, name: ByteName): Buffer =>
  Buffer.concat([Buffer.from(`/proc/self/fd/${folder}/`), bytesOf(name)])

const tooMuch = 'cannot be opened now: the service has too many files open, or too little memory'
const faults: Readonly<Record<string, readonly [StorageFault, string]>> = {
  ENOENT: ['missing', 'is not there'],
  EEXIST: ['exists', 'is there already'],
  ENOTDIR: ['notDirectory', 'is not a directory'],
  EISDIR: ['notFile', 'is a directory'],
  ELOOP: ['link', 'is a symbolic link, and none is followed; name what it leads to'],
  ENAMETOOLONG: ['name', 'is too long for this file system'],
  EILSEQ: ['name', 'is a name that this file system does not take'],
  EINVAL: ['name', 'is a name that this file system does not take'],
  EROFS: ['readOnly', 'lies on a file system that is mounted read-only'],
  EACCES: ['denied', 'is denied to the account of the service'],
  EPERM: ['denied', 'is denied to the account of the service'],
  ENOSPC: ['full', 'does not fit: no space is left on the file system'],
  EDQUOT: ['full', 'does not fit: the quota of the account is used up'],
  EFBIG: ['full', 'is larger than this file system takes'],
  EBUSY: ['busy', 'is in use by the file system'],
  EMFILE: ['busy', tooMuch],
  ENFILE: ['busy', tooMuch],
  ENOMEM: ['busy', tooMuch],
  EIO: ['away', 'cannot be reached: the file system reports an input/output error'],
  ESTALE: ['away', 'cannot be reached: the server of the file system no longer knows it'],
  ENOTCONN: ['away', 'cannot be reached: the mount has lost its server'],
  EHOSTDOWN: ['away', 'cannot be reached: the server of the file system is down'],
  ETIMEDOUT: ['away', 'cannot be reached: the server of the file system does not answer'],
  ECONNABORTED: ['away', 'cannot be reached: the mount has been cut off'],
}

/**
 * The fault of a path from an error of the system; the system's own text would name paths of this
 * process.
 */
const faultOf = (error: unknown, path: StoragePath): StorageError => {
  if (error instanceof StorageError) return error
  const { code = '', message } = error as NodeJS.ErrnoException
  const [fault, words] = faults[code] ?? (['refused', `failed: ${code === '' ? message : code}`] as const)
  return new StorageError(fault, `${quotedPath(path)} ${words}`)
}

/** Runs `use` with a descriptor of the directory. */
const walk = <T>(path: StoragePath, use: (folder: number) => T): T => {
  let folder: number
  try {
    folder = openSync(endpoint.base, O_PATH | O_DIRECTORY)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw faultOf(error, [])
    throw notThere()
  }
  const enter = (name: ByteName, way: StoragePath, isMissing?: () => StorageError): void => {
    const next = step(folder, name, way, isMissing)
    closeSync(folder)
    folder = next
  }
  try {
    for (const name of endpoint.below) enter(name, [], notThere)
    path.forEach((name, depth) => enter(name, path.slice(0, depth + 1)))
    return use(folder)
  } finally {
    closeSync(folder)
  }
}

const notThere = (): StorageError =>
  new StorageError('away', 'the folder of the storage is not there; mount it, or correct its endpoint')

const step = (folder: number, name: ByteName, path: StoragePath, isMissing?: () => StorageError): number => {
  try {
    return openSync(at(folder, name), O_PATH | O_DIRECTORY | O_NOFOLLOW)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' && isMissing !== undefined) throw isMissing()
    // For a link the system reports that it is no directory.
    if (code === 'ENOTDIR' && isLink(folder, name))
      throw new StorageError('link', `${quotedPath(path)} ${faults['ELOOP']![1]}`)
    throw faultOf(error, path)
  }
}

const isLink = (folder: number, name: ByteName): boolean =>
  lstatSync(at(folder, name), { throwIfNoEntry: false })?.isSymbolicLink() === true

/** Runs `use` with a descriptor of the directory of an entry, and its name. */
const beside = <T>(path: StoragePath, use: (folder: number, name: ByteName) => T): T => {
  const name = nameIn(path)
  return walk(path.slice(0, -1), (folder) => {
    try {
      return use(folder, name)
    } catch (error) {
      throw faultOf(error, path)
    }
  })
}

const allowed = (path: Buffer | string, mode: number): boolean => {
  try {
    accessSync(path, mode)
    return true
  } catch {
    return false
  }
}

/** Any change of content changes the time of the inode, which no user can set. */
const etagOf = ({ ino, size, mtimeNs, ctimeNs }: BigIntStats): string =>
  `"${[ino, size, mtimeNs, ctimeNs].map((each) => each.toString(36)).join('-')}"`

const typeOf = (stats: BigIntStats): Entry['type'] =>
  stats.isFile() ? 'file' : stats.isDirectory() ? 'directory' : stats.isSymbolicLink() ? 'symlink' : 'special'

const entryOf = (name: ByteName, stats: BigIntStats, path: Buffer | string): Entry => {
  const type = typeOf(stats)
  const plain = type === 'file' || type === 'directory'
  return {
    name,
    type,
    ...(type === 'file' ? { sizeBytes: Number(stats.size), etag: etagOf(stats) } : {}),
    modifiedAt: Number(stats.mtimeMs),
    readable: plain && allowed(path, R_OK),
    writable: plain && allowed(path, W_OK),
    ...(plain ? { mode: Number(stats.mode & 0o777n) } : {}),
    ...(type === 'symlink' ? { linkTarget: readlinkSync(path, 'latin1') as ByteName } : {}),
  }
}

const entryAt = (folder: number, name: ByteName): Entry => {
  const path = at(folder, name)
  return entryOf(name, lstatSync(path, { bigint: true }), path)
}

const namesOf = (folder: number): ByteName[] => {
  const { dev, ino, mtimeNs, ctimeNs } = fstatSync(folder, { bigint: true })
  const key = [dev, ino, mtimeNs, ctimeNs].join(' ')
  const settled = isSettled(Number(mtimeNs / 1_000_000n) / 1_000, Date.now() / 1_000)
  if (listed?.key === key && settled) return listed.names
  const names = (readdirSync(`/proc/self/fd/${folder}`, 'latin1') as ByteName[]).sort()
  listed = settled && names.length > 1_000 ? { key, names } : undefined
  return names
}

/** Looks at an entry once, where `entryAt` also asks for the rights to it. */
const briefAt = (folder: number, name: ByteName): Entry => {
  const path = at(folder, name)
  const stats = lstatSync(path, { bigint: true })
  const type = typeOf(stats)
  return {
    ...{ name, type, readable: true, writable: true, modifiedAt: Number(stats.mtimeMs) },
    ...(type === 'file' ? { sizeBytes: Number(stats.size) } : {}),
    ...(type === 'symlink' ? { linkTarget: readlinkSync(path, 'latin1') as ByteName } : {}),
  }
}

const list = (path: StoragePath, options: ListOptions): EntryPage =>
  walk(path, (folder) => {
    try {
      const { page, more } = pageBehind(namesOf(folder), options)
      const entries = page.flatMap((name) => {
        try {
          return [options.brief === true ? briefAt(folder, name) : entryAt(folder, name)]
        } catch (error) {
          // It was removed since the directory was read.
          if ((error as NodeJS.ErrnoException).code === 'ENOENT') return []
          throw error
        }
      })
      return { entries, ...more }
    } catch (error) {
      throw faultOf(error, path)
    }
  })

const statOf = (path: StoragePath): Entry => {
  if (path.length > 0) return beside(path, entryAt)
  return walk([], (folder) =>
    entryOf('' as ByteName, fstatSync(folder, { bigint: true }), `/proc/self/fd/${folder}`),
  )
}

/**
 * A descriptor of a regular file. It does not open a FIFO or a device; one that replaces the file
 * meanwhile does not block.
 */
const openFile = (path: StoragePath): { fd: number; entry: Entry } =>
  beside(path, (folder, name) => openRegular(folder, name, path))

const openRegular = (folder: number, name: ByteName, path: StoragePath): { fd: number; entry: Entry } => {
  const entry = entryAt(folder, name)
  if (entry.type === 'symlink') throw new StorageError('link', `${quotedPath(path)} ${faults['ELOOP']![1]}`)
  if (entry.type !== 'file') throw notFile(path, entry.type)
  const fd = openSync(at(folder, name), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
  const stats = fstatSync(fd, { bigint: true })
  if (stats.isFile()) return { fd, entry: entryOf(name, stats, `/proc/self/fd/${fd}`) }
  closeSync(fd)
  throw notFile(path, typeOf(stats))
}

const kept = (file: Omit<OpenFile, 'work'>): number => {
  lastFile += 1
  files.set(lastFile, { ...file, work: Promise.resolve() })
  return lastFile
}

/** Runs `use` behind the work that is under way at a file. */
const inTurn = <T>(file: OpenFile, use: () => Promise<T>): Promise<T> => {
  const done = file.work.then(use)
  file.work = done.catch(() => undefined)
  return done
}

const fileOf = (number: number): OpenFile => {
  const file = files.get(number)
  if (file === undefined)
    throw new StorageError('away', 'the process that had the file open has ended; try again')
  return file
}

const targetOf = (number: number): { file: OpenFile; target: NonNullable<OpenFile['target']> } => {
  const file = fileOf(number)
  if (file.target === undefined) throw new StorageError('refused', 'the file is open for reading')
  return { file, target: file.target }
}

const forget = async (number: number): Promise<void> => {
  const file = files.get(number)
  files.delete(number)
  if (file === undefined) return
  await file.work
  closeSync(file.fd)
  if (file.target !== undefined) closeSync(file.target.folder)
}

const digest = async (path: StoragePath): Promise<string> => {
  const { fd, entry } = openFile(path)
  try {
    const hash = createHash('sha256')
    const piece = Buffer.allocUnsafe(digestPiece)
    // A read may give less than a piece.
    for (let size = 0, next = digestTurn; ;) {
      const count = readSync(fd, piece, 0, digestPiece, size)
      if (count === 0) break
      hash.update(piece.subarray(0, count))
      size += count
      if (size < next) continue
      next = size + digestTurn
      send('reading')
      await turn()
    }
    if (etagOf(fstatSync(fd, { bigint: true })) !== entry.etag) throw writtenTo(path)
    return hash.digest('hex')
  } catch (error) {
    throw faultOf(error, path)
  } finally {
    closeSync(fd)
  }
}

const refuseTaken = (folder: number, name: ByteName, path: StoragePath, overwrite: boolean): void => {
  const stats = lstatSync(at(folder, name), { throwIfNoEntry: false })
  if (stats?.isDirectory() === true) throw takenByFolder(path)
  if (stats !== undefined && !overwrite) throw taken(path)
}

/** Opens the temporary file of `path`, to write behind `offset`. @returns its number */
const create = (
  path: StoragePath,
  overwrite: boolean,
  upload: string | undefined,
  offset: number,
): number => {
  let folder: number | undefined
  try {
    return beside(path, (parent, name) => {
      refuseTaken(parent, name, path, overwrite)
      folder = openSync(`/proc/self/fd/${parent}`, O_RDONLY | O_DIRECTORY)
      const temporary = temporaryName(path, upload)
      const flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | (upload === undefined ? O_EXCL : 0)
      const fd = openSync(at(folder, temporary), flags, 0o666)
      const { size } = fstatSync(fd)
      if (offset !== 0 && offset !== size) {
        closeSync(fd)
        if (size === 0) unlinkSync(at(folder, temporary))
        throw wrongOffset(path, size)
      }
      if (offset === 0 && size > 0) ftruncateSync(fd, 0)
      const hash = offset === 0 ? createHash('sha256') : undefined
      return kept({
        fd,
        target: {
          folder,
          name,
          path,
          temporary,
          overwrite,
          upload: upload !== undefined,
          begun: offset,
          size: offset,
          hash,
        },
      })
    })
  } catch (error) {
    if (folder !== undefined) closeSync(folder)
    throw error
  }
}

/** False where another attempt has renamed the file: it goes on with it, or has given it its name. */
const isOwn = (fd: number, { folder, temporary }: NonNullable<OpenFile['target']>): boolean =>
  lstatSync(at(folder, temporary), { throwIfNoEntry: false })?.ino === fstatSync(fd).ino

/**
 * Refuses bytes for a file that another attempt has given another name, and bytes behind an end
 * that another attempt has cut: they would leave a hole.
 */
const refuseAdopted = (fd: number, target: NonNullable<OpenFile['target']>): void => {
  if (isOwn(fd, target) && fstatSync(fd).size >= target.size) return
  throw new StorageError(
    'away',
    `${quotedPath(target.path)}: another attempt goes on with this file, or has removed it`,
  )
}

const append = async (number: number, bytes: Buffer): Promise<void> => {
  const { file, target } = targetOf(number)
  try {
    await inTurn(file, async () => {
      if (target.upload) refuseAdopted(file.fd, target)
      for (let done = 0; done < bytes.length;) {
        const { bytesWritten } = await writeAt(file.fd, bytes, done, bytes.length - done, target.size)
        target.hash?.update(bytes.subarray(done, done + bytesWritten))
        target.size += bytesWritten
        done += bytesWritten
      }
    })
  } catch (error) {
    throw faultOf(error, target.path)
  }
}

/** Removes the bytes since `create`; without an upload's name, all bytes. Those of other attempts stay. */
const removeBytes = (fd: number, target: NonNullable<OpenFile['target']>): void => {
  const { folder, temporary, upload, begun } = target
  try {
    if (!isOwn(fd, target)) return
    if (upload && begun > 0) ftruncateSync(fd, Math.min(begun, fstatSync(fd).size))
    else unlinkSync(at(folder, temporary))
  } catch {
    // The next upload of the same name truncates it; other uploads use another name.
  }
}

/** Ends a file whose bytes are not wanted. */
const drop = async (number: number): Promise<void> => {
  const file = files.get(number)
  if (file?.target === undefined) return
  await file.work
  if (files.get(number) !== file) return
  removeBytes(file.fd, file.target)
  await forget(number)
}

/** Ends a part; the bytes stay. */
const keep = async (number: number): Promise<number> => {
  const { file, target } = targetOf(number)
  try {
    await inTurn(file, () => flush(file.fd))
    return target.size
  } catch (error) {
    throw faultOf(error, target.path)
  } finally {
    await forget(number)
  }
}

const digestOfDescriptor = async (fd: number): Promise<Hash> => {
  const hash = createHash('sha256')
  const piece = Buffer.allocUnsafe(digestPiece)
  for (let place = 0, next = digestTurn; ;) {
    const { bytesRead } = await readAt(fd, piece, 0, digestPiece, place)
    if (bytesRead === 0) return hash
    hash.update(piece.subarray(0, bytesRead))
    place += bytesRead
    if (place < next) continue
    next = place + digestTurn
    send('reading')
  }
}

/** On file systems without hard links an empty file takes the name, and is then replaced. */
const putExclusively = (from: Buffer, to: Buffer): void => {
  try {
    linkSync(from, to)
    unlinkSync(from)
  } catch (error) {
    if (
      !['EPERM', 'EOPNOTSUPP', 'ENOTSUP', 'ENOSYS', 'EMLINK'].includes(
        (error as NodeJS.ErrnoException).code ?? '',
      )
    )
      throw error
    closeSync(openSync(to, O_RDWR | O_CREAT | O_EXCL, 0o666))
    renameSync(from, to)
  }
}

/**
 * The half microsecond keeps the milliseconds: a number of seconds is cut to microseconds, towards 0.
 * As a text: Node takes a negative number for the present time.
 */
const timesOf = (modifiedAt: number): [Date, string] => [
  new Date(),
  String(modifiedAt / 1_000 + Math.sign(modifiedAt) * 5e-7),
]

const give = (fd: number, { mode, modifiedAt }: Attributes): void => {
  if (mode !== undefined) fchmodSync(fd, mode & 0o777)
  if (modifiedAt !== undefined) futimesSync(fd, ...timesOf(modifiedAt))
}

interface Committing {
  sha256?: string | undefined
  attributes?: Attributes | undefined
  /** The caller flushes the folder. */
  folderLater?: boolean
}

/** Gives the whole file its name, where it has the digest `sha256`. */
const commit = async (
  number: number,
  { sha256, attributes, folderLater = false }: Committing,
): Promise<{ entry: Entry; sha256: string }> => {
  const { file, target } = targetOf(number)
  const { folder, name, temporary, path, overwrite } = target
  try {
    const digest = (target.hash ?? (await digestOfDescriptor(file.fd))).digest('hex')
    if (sha256 !== undefined && sha256 !== digest)
      throw new StorageError(
        'changed',
        `${quotedPath(path)}: the bytes that were written are not those that were sent; look for faults of the disk`,
      )
    const { size } = fstatSync(file.fd)
    if (size !== target.size)
      throw new StorageError(
        'changed',
        `${quotedPath(path)} has ${size} bytes at the storage, and ${target.size} were written; send it again`,
      )
    if (attributes !== undefined) give(file.fd, attributes)
    await flush(file.fd)
    const [from, to] = [at(folder, temporary), at(folder, name)]
    if (target.upload) refuseAdopted(file.fd, target)
    refuseTaken(folder, name, path, overwrite)
    if (overwrite) renameSync(from, to)
    else putExclusively(from, to)
    if (!folderLater) await flush(folder)
    const entry = entryOf(name, fstatSync(file.fd, { bigint: true }), `/proc/self/fd/${file.fd}`)
    await forget(number)
    return { entry, sha256: digest }
  } catch (error) {
    await drop(number)
    throw faultOf(error, path)
  }
}

/** Larger files are not read in one go with others. */
const smallBytes = 1024 * 1024

/** Bytes of a small file. @returns undefined where it is larger, or changes meanwhile */
const readSmall = (folder: number, name: ByteName): SmallFile | undefined => {
  const { fd, entry } = openRegular(folder, name, [name])
  try {
    const { sizeBytes = 0, modifiedAt, mode } = entry
    if (sizeBytes > smallBytes) return undefined
    // A byte more shows that the file has grown.
    const bytes = Buffer.allocUnsafe(sizeBytes + 1)
    let size = 0
    for (let count = 1; count > 0 && size < bytes.length; size += count)
      count = readSync(fd, bytes, size, bytes.length - size, size)
    if (etagOf(fstatSync(fd, { bigint: true })) !== entry.etag) return undefined
    return { name, bytes: bytes.subarray(0, sizeBytes), modifiedAt, mode }
  } finally {
    closeSync(fd)
  }
}

const readMany = (folder: StoragePath, names: readonly ByteName[]): SmallFile[] =>
  walk(folder, (opened) =>
    names.flatMap((name) => {
      try {
        return readSmall(opened, name) ?? []
      } catch {
        // The caller reads it alone, and gets the reason.
        return []
      }
    }),
  )

/** Files that are written at once: their flushes then share the disk's. */
const writtenAtOnce = 16

/** Writes each file as a single one is written; the folder is flushed once. */
const writeMany = async (
  folder: StoragePath,
  all: readonly (NewSmallFile & { sha256: string })[],
  overwrite: boolean,
): Promise<ByteName[]> => {
  const flushing = walk(folder, (opened) => openSync(`/proc/self/fd/${opened}`, O_RDONLY | O_DIRECTORY))
  const whole: ByteName[] = []
  try {
    await eachOf(all, writtenAtOnce, async ({ name, bytes, sha256, upload, attributes }) => {
      let file: number | undefined
      try {
        file = create([...folder, name], overwrite, upload, 0)
        await append(file, bytes)
        await commit(file, { sha256, attributes, folderLater: true })
        whole.push(name)
      } catch {
        // The caller writes it alone, and gets the reason.
        if (file !== undefined) await drop(file)
      }
    })
    await flush(flushing)
    return whole
  } catch (error) {
    throw faultOf(error, folder)
  } finally {
    closeSync(flushing)
  }
}

const received = (path: StoragePath, upload: string): number =>
  beside(
    path,
    (folder) => lstatSync(at(folder, temporaryName(path, upload)), { throwIfNoEntry: false })?.size ?? 0,
  )

const discard = (path: StoragePath, upload: string): void =>
  beside(path, (folder) => {
    const temporary = at(folder, temporaryName(path, upload))
    if (lstatSync(temporary, { throwIfNoEntry: false }) !== undefined) unlinkSync(temporary)
  })

/** Renames the temporary file of an earlier upload. @returns the bytes that are kept */
const adopt = (path: StoragePath, upload: string, earlier: readonly string[]): number =>
  beside(path, (folder) => {
    const own = at(folder, temporaryName(path, upload))
    for (const each of earlier) {
      const old = at(folder, temporaryName(path, each))
      if (each === upload || lstatSync(old, { throwIfNoEntry: false }) === undefined) continue
      if (lstatSync(own, { throwIfNoEntry: false }) === undefined) renameSync(old, own)
      else unlinkSync(old)
    }
    const stats = lstatSync(own, { throwIfNoEntry: false })
    return stats?.isFile() === true ? stats.size : 0
  })

const makeLink = (
  path: StoragePath,
  target: ByteName,
  { overwrite = false, modifiedAt }: LinkOptions,
): void =>
  beside(path, (folder, name) => {
    refuseTaken(folder, name, path, overwrite)
    const temporary = at(folder, temporaryName(path, undefined))
    symlinkSync(bytesOf(target), temporary)
    try {
      if (modifiedAt !== undefined) lutimesSync(temporary, ...timesOf(modifiedAt))
      if (overwrite) renameSync(temporary, at(folder, name))
      else putExclusively(temporary, at(folder, name))
    } catch (error) {
      if (lstatSync(temporary, { throwIfNoEntry: false }) !== undefined) unlinkSync(temporary)
      throw error
    }
  })

const setAttributes = (path: StoragePath, { mode, modifiedAt }: Attributes): void =>
  walk(path, (folder) => {
    // A descriptor for paths alone takes neither, and the path to it names what was opened.
    const opened = `/proc/self/fd/${folder}`
    if (modifiedAt !== undefined) utimesSync(opened, ...timesOf(modifiedAt))
    if (mode !== undefined) chmodSync(opened, mode & 0o777)
  })

const remove = (path: StoragePath): void =>
  beside(path, (folder, name) => {
    if (lstatSync(at(folder, name)).isDirectory()) throw notDeleted(path)
    unlinkSync(at(folder, name))
  })

const makeDirectory = (path: StoragePath): void =>
  beside(path, (folder, name) => {
    const stats = lstatSync(at(folder, name), { throwIfNoEntry: false })
    if (stats === undefined) mkdirSync(at(folder, name))
    else if (!stats.isDirectory()) throw takenByFile(path)
  })

/** Of an open file. */
const readPiece = async (file: number, offset: number, length: number): Promise<Buffer> => {
  const opened = fileOf(file)
  const piece = Buffer.allocUnsafe(length)
  const { bytesRead } = await inTurn(opened, () => readAt(opened.fd, piece, 0, length, offset))
  return piece.subarray(0, bytesRead)
}

const calls = {
  ...{ list, stat: statOf, read: readPiece, close: forget, digest, readMany, writeMany },
  ...{ create, append, keep, drop, commit, adopt, received, discard },
  ...{ delete: remove, makeDirectory, makeLink, setAttributes },
  open: (path: StoragePath): { file: number; entry: Entry } => {
    const { fd, entry } = openFile(path)
    return { file: kept({ fd }), entry }
  },
  /** Free bytes. */
  space: (): number =>
    walk([], (folder) => {
      const { bavail, bsize } = statfsSync(`/proc/self/fd/${folder}`)
      return bavail * bsize
    }),
}

const send = (message: FromHost): void => {
  process.send?.(message)
}

const answer = async (id: number, call: keyof HostCalls, args: readonly unknown[]): Promise<void> => {
  try {
    send({ id, answer: await (calls[call] as (...all: readonly unknown[]) => unknown)(...args) })
  } catch (error) {
    const { fault, message, receivedBytes } = faultOf(error, [])
    send({ id, fault: { fault, message, receivedBytes } })
  }
}

process.on('message', (message: ToHost) => {
  if ('base' in message) endpoint = message
  else void answer(message.id, message.call, message.args)
})
// The parent has closed it or has ended: files that are being written are dropped, but uploads in
// parts stay.
process.on('disconnect', () => {
  for (const { fd, target } of files.values()) if (target?.upload === false) removeBytes(fd, target)
  process.exit()
})
