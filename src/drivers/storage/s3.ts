import { createHash } from 'node:crypto'
import { PassThrough, Readable, Transform } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { usualPartBytes } from '../../clients/pieces.ts'
import { S3Error, type S3Bucket, type S3Object } from '../../clients/s3.ts'
import {
  StorageError,
  type Entry,
  type StorageDriver,
  type StorageFault,
  type UploadOptions,
  type Watch,
  type WriteOptions,
} from './contract.ts'
import { namedBy, nameIn, notDeleted, takenByFile, takenByFolder, wrongSize } from './faults.ts'
import { isText, nameOf, quotedPath, textOf, type ByteName, type StoragePath } from './paths.ts'
import { discardParts, openUploadParts, putWhole, sendParts } from './s3-upload.ts'
import { endedBy, streamDigest, through } from './streams.ts'

/** Limit of S3, in bytes of UTF-8. */
const longestKey = 1_024
/** Limit of one answer to a list. */
const largestPage = 1_000

const byCode: Readonly<Record<string, StorageFault>> = {
  NoSuchKey: 'missing',
  // Another attempt has completed or removed it, and the next one begins anew.
  NoSuchUpload: 'away',
  InvalidPart: 'away',
  // The way to the store has changed them; they are sent again.
  BadDigest: 'away',
  NotFound: 'missing',
  PreconditionFailed: 'exists',
  SourceChanged: 'changed',
  KeyTooLongError: 'name',
  InvalidObjectName: 'name',
  ObjectParentIsFile: 'notDirectory',
  ExistingObjectIsDirectory: 'notFile',
  InvalidAccessKeyId: 'credential',
  SignatureDoesNotMatch: 'credential',
  ExpiredToken: 'credential',
  InvalidToken: 'credential',
  RequestTimeTooSkewed: 'credential',
  AccessDenied: 'denied',
  Forbidden: 'denied',
  QuotaExceeded: 'full',
  XMinioStorageFull: 'full',
  InsufficientCapacity: 'full',
  SlowDown: 'busy',
  // Another request for the same key is not over.
  ConditionalRequestConflict: 'busy',
  OperationAborted: 'busy',
  ServiceUnavailable: 'busy',
  TooManyRequests: 'busy',
  RequestTimeout: 'late',
  late: 'late',
  lost: 'away',
  name: 'away',
  denied: 'refused',
  certificate: 'refused',
  redirect: 'refused',
  large: 'refused',
}

const byStatus = (status: number | undefined): StorageFault => {
  if (status === undefined) return 'away'
  if (status === 404) return 'missing'
  if (status === 403 || status === 401) return 'denied'
  if (status === 412) return 'exists'
  if (status === 429 || status === 503) return 'busy'
  if (status === 507) return 'full'
  return status >= 500 ? 'away' : 'refused'
}

const remedies: Partial<Record<StorageFault, string>> = {
  missing: 'nothing has that key',
  exists: 'the key is taken; choose another one, or overwrite it',
  notDirectory: 'this store keeps objects as files, and a part of the path is one; choose another path',
}

const isFault = (error: unknown, fault: StorageFault): boolean =>
  error instanceof StorageError && error.fault === fault

export interface S3StorageOptions {
  /** Prefix of the storage's keys. */
  prefix: StoragePath
  signed: boolean
  /** Bytes of one part of an upload, asked for at its begin; default 8 MiB. */
  partBytes?: (() => Promise<number>) | undefined
}

/** Keys, errors and entries of a bucket. */
const openKeys = (bucket: S3Bucket, options: S3StorageOptions) => {
  const { prefix, signed, partBytes = () => Promise.resolve(usualPartBytes) } = options
  const keyOf = (path: StoragePath): string => {
    const key = [...prefix, ...path].join('/')
    if (key.length > longestKey)
      throw new StorageError(
        'name',
        `${quotedPath(path)} has more than the ${longestKey} bytes that a key may have; choose a shorter name`,
      )
    if (!isText(key as ByteName))
      throw new StorageError('name', `${quotedPath(path)} is not UTF-8, and keys are; choose another name`)
    return textOf(key as ByteName)
  }
  const folderOf = (path: StoragePath): string => {
    const key = keyOf(path)
    return key === '' ? '' : `${key}/`
  }

  const unsigned = signed
    ? ''
    : '; requests are not signed: set configuration.signed to true, with a credentialReference, ' +
      'for what is not public'
  const errorOf = (error: unknown, path: StoragePath): Error => {
    if (!(error instanceof S3Error)) return error as Error
    const { code, status, message, retryAfterSeconds } = error
    if (code === 'NoSuchBucket')
      return new StorageError('refused', `${message}; correct the endpoint of the storage`, { cause: error })
    const fault = byCode[code] ?? byStatus(status)
    const words = remedies[fault] ?? message
    return new StorageError(fault, `${quotedPath(path)}: ${words}${fault === 'denied' ? unsigned : ''}`, {
      cause: error,
      retryAfterSeconds,
    })
  }
  const named = namedBy(errorOf)

  const fileEntry = (name: ByteName, { sizeBytes, modifiedAt, etag }: S3Object): Entry => ({
    ...{ name, type: 'file', sizeBytes, modifiedAt, etag },
    ...{ readable: isReachable(name), writable: isReachable(name) },
  })
  const folderEntry = (name: ByteName): Entry => ({
    name,
    type: 'directory',
    readable: isReachable(name),
    writable: isReachable(name),
  })

  /** Whether a directory has the path, which no file has. @throws StorageError `missing`, `unlisted` */
  const isFolder = async (path: StoragePath, watch: Watch): Promise<boolean> => {
    try {
      const { objects, folders } = await bucket.page(folderOf(path), { limit: 1, ...watch })
      return objects.length + folders.length > 0
    } catch (error) {
      if (!isFault(errorOf(error, path), 'denied')) throw errorOf(error, path)
      throw new StorageError(
        'missing',
        `${quotedPath(path)}: no file has that key, and this login may not list the bucket, so a directory ` +
          `cannot be seen; give it the right to list (s3:ListBucket, storage.objects.list)${unsigned}`,
        { cause: error, unlisted: true },
      )
    }
  }

  const stat = async (path: StoragePath, watch: Watch = {}): Promise<Entry> => {
    if (path.length === 0) return { name: '' as ByteName, type: 'directory', readable: true, writable: true }
    const name = path.at(-1) as ByteName
    try {
      return fileEntry(name, await bucket.head(keyOf(path), watch))
    } catch (error) {
      const named = errorOf(error, path)
      // The answer to HEAD has no body; that to a list names the fault of the credential.
      if (error instanceof S3Error && error.status === 400) {
        await bucket.page(folderOf(path), { limit: 1, ...watch }).catch((listed: unknown) => {
          throw errorOf(listed, path)
        })
        throw new StorageError(
          'name',
          `${quotedPath(path)} is a key that the store does not take; choose another name`,
          {
            cause: error,
          },
        )
      }
      if (!isFault(named, 'missing')) throw named
      if (await isFolder(path, watch)) return folderEntry(name)
      throw named
    }
  }
  /**
   * Undefined where nothing has the path, or the login may not see whether something has it: some
   * stores deny a key that is free to logins that may not list. Other errors are thrown.
   */
  const statIfSeen = (path: StoragePath, watch: Watch): Promise<Entry | undefined> =>
    stat(path, watch).catch((error: unknown) => {
      if (isFault(error, 'missing') || isFault(error, 'denied')) return undefined
      throw error
    })

  const fileAt = async (path: StoragePath, watch: Watch): Promise<Entry> => {
    const entry = await stat(path, watch)
    if (entry.type !== 'file')
      throw new StorageError('notFile', `${quotedPath(path)} is a directory; name a file in it`)
    return entry
  }

  return {
    ...{ bucket, prefix, partBytes, keyOf, folderOf, errorOf, named },
    ...{ fileEntry, folderEntry, isFolder, stat, statIfSeen, fileAt },
  }
}
type Keys = ReturnType<typeof openKeys>

const readsOf = ({
  bucket,
  prefix,
  keyOf,
  folderOf,
  errorOf,
  named,
  fileEntry,
  folderEntry,
  stat,
  fileAt,
}: Keys) => {
  const open = async (
    path: StoragePath,
    {
      offset = 0,
      length = Infinity,
      signal,
    }: Watch & { offset?: number | undefined; length?: number | undefined },
  ) => {
    if (offset === 0 && length === Infinity) {
      const { object, stream } = await bucket.get(keyOf(path), { signal })
      return { entry: fileEntry(path.at(-1) as ByteName, object), stream, expected: object.sizeBytes }
    }
    const entry = await fileAt(path, { signal })
    const expected = Math.max(0, Math.min((entry.sizeBytes ?? 0) - offset, length))
    if (expected === 0) return { entry, stream: Readable.from([]), expected }
    const { object, stream } = await bucket.get(keyOf(path), {
      from: offset,
      to: offset + expected - 1,
      signal,
    })
    if (object.etag === entry.etag) return { entry, stream, expected }
    stream.destroy()
    throw new StorageError('changed', `${quotedPath(path)} was replaced while it was read; read it again`)
  }

  const read: StorageDriver['read'] = (path, watch = {}) =>
    named(path, async () => {
      if (path.length === 0)
        throw new StorageError('notFile', 'the endpoint of the storage is a directory; name a file in it')
      try {
        const { entry, stream, expected } = await open(path, watch)
        return { entry, stream: counted(stream, expected, (error) => errorOf(error, path), path) }
      } catch (error) {
        // A directory has no object of its own, so the store does not know it.
        const fault = errorOf(error, path)
        if (isFault(fault, 'missing')) await fileAt(path, watch)
        throw error
      }
    })

  return {
    list: (path, { limit, after, signal }) =>
      named(path, async () => {
        const folder = folderOf(path)
        const page = await bucket.page(folder, { limit: Math.min(limit, largestPage), after, signal })
        const files = page.objects
          .filter(({ key }) => key !== folder)
          .map((object) => ({
            key: object.key,
            entry: fileEntry(nameOf(object.key.slice(folder.length)), object),
          }))
        const folders = page.folders.map((key) => ({
          key,
          entry: folderEntry(nameOf(key.slice(folder.length, -1))),
        }))
        const all = [...files, ...folders].sort((a, b) =>
          Buffer.compare(Buffer.from(a.key), Buffer.from(b.key)),
        )
        if (all.length === 0 && page.objects.length === 0 && after === undefined && path.length > 0) {
          const entry = await stat(path, { signal })
          if (entry.type === 'file')
            throw new StorageError('notDirectory', `${quotedPath(path)} is a file; name a directory`)
        }
        return {
          entries: all.map(({ entry }) => entry),
          ...(page.next === undefined ? {} : { next: page.next }),
        }
      }),

    stat: (path, watch) => named(path, () => stat(path, watch)),
    read,

    digest: async (path, { signal } = {}) => streamDigest((await read(path, { signal })).stream, signal),

    space: ({ signal } = {}) =>
      named([], async () => {
        await bucket.page([...prefix.map(textOf), ''].join('/'), { limit: 1, signal })
        return {}
      }),

    presign: (path, seconds) => bucket.presign(keyOf(path), seconds),
  } satisfies Partial<StorageDriver>
}

/** A file of this size goes in one request, from memory. */
const isSmall = (sizeBytes: number | undefined): boolean => sizeBytes !== undefined && sizeBytes <= 256 * 1024

/** Puts a stream under a key: as an upload that a later attempt can go on with, or in one go. */
const putStream = async (
  { bucket, partBytes }: Pick<Keys, 'bucket' | 'partBytes'>,
  key: string,
  body: Readable,
  { continued, overwrite = false, sizeBytes, signal }: WriteOptions,
): Promise<void> => {
  const onlyNew = !overwrite
  const { parts } = bucket
  if (isSmall(sizeBytes)) return bucket.put(key, await buffer(body), { onlyNew, signal })
  if (parts === undefined) return bucket.putStream!(key, body, { onlyNew, signal })
  const usualPart = await partBytes()
  if (continued === undefined)
    return putWhole(bucket, parts, key, body, { sizeBytes, usualPart, onlyNew, signal })
  const { upload } = continued
  return sendParts(parts, key, body, { upload, sizeBytes: sizeBytes ?? 0, usualPart, onlyNew, signal })
}

const writesOf = ({ bucket, partBytes, keyOf, folderOf, named, isFolder, stat, statIfSeen }: Keys) => {
  const { parts } = bucket
  const refuseTaken = async (
    path: StoragePath,
    { overwrite = false, signal }: WriteOptions,
  ): Promise<void> => {
    const there = await statIfSeen(path, { signal })
    if (there?.type === 'file' && !overwrite)
      throw new StorageError('exists', `${quotedPath(path)}: ${remedies.exists}`)
    if (there?.type === 'directory') throw takenByFolder(path)
  }

  return {
    write: (path, source, options = {}) =>
      named(path, async () => {
        const { part, signal, isFree = false, withoutEntry = false } = options
        try {
          nameIn(path)
          if (part !== undefined && (part.offset !== 0 || !part.last))
            throw new StorageError(
              'unsupported',
              'a bucket takes an upload in one request; send the file without Content-Range',
            )
          if (!isFree) await refuseTaken(path, options)
          const { digest, body, size } = hashed(source, path, options)
          using _ = endedBy(signal, body)
          // Both ends are awaited: a failed upload is over once its parts are removed.
          const [piped, put] = await Promise.allSettled([
            pipeline(source, body),
            // A failed upload leaves the stream, whose other end then fails too.
            putStream({ bucket, partBytes }, keyOf(path), body, options).catch((error: unknown) => {
              body.destroy()
              throw error
            }),
          ])
          if (put.status === 'rejected') throw (body.errored ?? put.reason) as Error
          if (piped.status === 'rejected') throw piped.reason as Error
          if (withoutEntry) return { receivedBytes: size(), sha256: digest() }
          const entry = await stat(path, { signal }).catch((error: unknown): Entry => {
            // The login may write files, and not read them.
            if (!isFault(error, 'denied')) throw error
            return { name: nameIn(path), type: 'file', sizeBytes: size(), readable: false, writable: true }
          })
          if (entry.sizeBytes !== size())
            throw new StorageError(
              'changed',
              `${quotedPath(path)} was replaced while it was written; write it again`,
            )
          return { receivedBytes: size(), entry, sha256: digest() }
        } finally {
          source.destroy()
        }
      }),

    ...(parts && {
      openUpload: (path: StoragePath, options: UploadOptions) =>
        named(path, () => openUploadParts(parts, keyOf(path), options)),
    }),
    discard: (path, upload, { signal } = {}) =>
      named(path, async () => {
        if (parts !== undefined) await discardParts(parts, keyOf(path), upload, { signal })
      }),

    delete: (path, { signal } = {}) =>
      named(path, async () => {
        const there = await stat(path, { signal }).catch((error: unknown) => {
          if (isFault(error, 'denied')) return undefined
          throw error
        })
        if (there?.type === 'directory') throw notDeleted(path)
        await bucket.remove(keyOf(path), { signal })
        // What was not seen may be a directory, which has no object of that key.
        const hides = async (): Promise<boolean> =>
          isFolder(path, { signal }).catch((error: unknown) => {
            if (!(error instanceof StorageError) || !error.unlisted) throw error
            const text = 'a file of that key is deleted, if there was one; this login may not list the bucket'
            throw new StorageError(
              'missing',
              `${quotedPath(path)}: ${text}, so a directory of that name cannot be seen`,
              { cause: error, unlisted: true },
            )
          })
        if (there === undefined && (await hides())) throw notDeleted(path)
      }),

    copyWithin: (to, from, { overwrite = false, signal } = {}) =>
      named(to, async () => {
        const there = await statIfSeen(to, { signal })
        if (there?.type === 'directory' || (there !== undefined && !overwrite))
          throw new StorageError('exists', `${quotedPath(to)}: ${remedies.exists}`)
        await bucket.copy(from.map(textOf).join('/'), keyOf(to), { onlyNew: !overwrite, signal })
      }),

    makeDirectory: (path, { signal } = {}) =>
      named(path, async () => {
        if (path.length === 0) return
        const there = await statIfSeen(path, { signal })
        if (there?.type === 'file') throw takenByFile(path)
        if (there === undefined) await bucket.put(folderOf(path), Buffer.alloc(0), { onlyNew: false, signal })
      }),
  } satisfies Partial<StorageDriver>
}

/** A bucket, or its keys under a prefix. */
export const openS3Storage = (bucket: S3Bucket, options: S3StorageOptions): StorageDriver => {
  const keys = openKeys(bucket, options)
  return {
    capabilities: { directories: false, versions: true },
    ...readsOf(keys),
    ...writesOf(keys),
    close: () => Promise.resolve(),
  }
}

/** Names that no path of this service can contain. */
const isReachable = (name: ByteName): boolean =>
  name !== '' && name !== '.' && name !== '..' && !name.includes('\0')

/**
 * The same bytes; fails where they are fewer than expected, and with the errors that callers know.
 */
const counted = (
  source: Readable,
  expected: number,
  errorOf: (error: unknown) => Error,
  path: StoragePath,
): Readable => {
  let size = 0
  const counting = new Transform({
    transform: (bytes: Buffer, _, done) => {
      size += bytes.length
      done(null, bytes)
    },
    flush: (done) =>
      done(
        size < expected
          ? new StorageError(
              'away',
              `${quotedPath(path)}: the store broke off after ${size} of ${expected} bytes; read it again`,
            )
          : null,
      ),
  })
  return through(source, counting, errorOf)
}

/**
 * A stream for the upload, and the digest and number of its bytes. It fails before its end where
 * these are not the announced ones.
 */
const hashed = (
  source: Readable,
  path: StoragePath,
  { sizeBytes: announced, digest: expected }: WriteOptions,
) => {
  const hash = createHash('sha256')
  let size = 0
  let sha256: string | undefined
  const digest = (): string => (sha256 ??= hash.digest('hex'))
  const body = new PassThrough({
    transform: (bytes: Buffer, _, done) => {
      hash.update(bytes)
      size += bytes.length
      if (announced !== undefined && size > announced) done(wrongSize(path, announced, size))
      else done(null, bytes)
    },
    flush: (done) => {
      if (announced !== undefined && announced !== size) done(wrongSize(path, announced, size))
      else if (expected !== undefined && expected() !== digest())
        done(
          new StorageError(
            'changed',
            `${quotedPath(path)} has other bytes than those announced; send it again`,
          ),
        )
      else done(null)
    },
  })
  // A write that is cancelled before its body has a reader: see `through`.
  body.on('error', () => undefined)
  source.once('error', (error) => body.destroy(error))
  return { digest, body, size: () => size }
}
