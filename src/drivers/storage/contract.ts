import type { Readable } from 'node:stream'
import type { SiteShell } from '../../shell/site-shell.ts'
import type { Door } from '../transfer/copy.ts'
import type { ByteName, StoragePath } from './byte-name.ts'

/**
 * The files of a storage, over any protocol: a file system of this machine, the account at an SSH
 * host, a bucket.
 *
 * - A path is relative to the endpoint of the storage and made of names of bytes; the empty path is
 *   the endpoint. A driver never leaves its endpoint and follows no symbolic link below it: a path
 *   that leads through one is refused with `link`.
 * - Every method has a deadline. A silent storage delays only its own requests; they reject with
 *   `late`.
 * - Every method rejects with a `StorageError` and nothing else; `signal` aborts it with the
 *   signal's reason.
 * - Reads never block at a FIFO or a device: other files than regular ones are refused with
 *   `notFile`.
 * - `list`, `stat`, `read`, `digest`, `makeDirectory` and `space` may be called again after any
 *   error. `write` may be called again with the same bytes; `delete` answers `missing` where an
 *   earlier call has succeeded.
 * - Nothing is under its final name before it is whole. A write that fails leaves nothing there,
 *   unless it belongs to an upload in parts.
 * - A method that is marked as optional is absent where that kind of storage cannot do it. These
 *   methods and the flags of `capabilities` hold each difference between kinds. No caller tests which
 *   driver it has.
 */
export interface StorageDriver {
  readonly capabilities: StorageCapabilities
  /** One level of a directory: where `directories` is true, in the order of the names' bytes. */
  list(path: StoragePath, options: ListOptions): Promise<EntryPage>
  /** The entry itself: a symbolic link is not followed. */
  stat(path: StoragePath, options?: Watch): Promise<Entry>
  /**
   * Bytes of a file from `offset` on, as they arrive. The stream fails with `changed` where the
   * file ends before the `length` of its entry.
   */
  read(path: StoragePath, options?: ReadOptions): Promise<FileReading>
  /** SHA-256 of a file, in hexadecimal digits; `changed` where it is written meanwhile. */
  digest(path: StoragePath, options?: Watch): Promise<string>
  /**
   * Reads the stream and creates the file under its name once all bytes are there. The parent has
   * to exist where `directories` is true.
   */
  write(path: StoragePath, source: Readable, options?: WriteOptions): Promise<Written>
  /**
   * A file for the programs of its site, which send it to another one. Absent where the storage's
   * site runs no programs for it.
   */
  fileAtSite?(path: StoragePath): Promise<SiteFile>
  /**
   * Writes a whole file whose bytes come straight from another site, into an upload that
   * `openUpload` has begun and that is kept after an error. Absent as `fileAtSite`.
   * @throws NoWayError where neither site is at fault, and the way between them does not work
   */
  writeFrom?(path: StoragePath, file: SiteFile, options: WriteFromOptions): Promise<Written>
  /**
   * Reads small files of one folder in one go, at most 8 MiB together. What is no regular file is
   * absent from the answer. One that is missing, denied or changes meanwhile is absent, or makes the
   * call reject: `read` gives the reason.
   */
  readMany?(folder: StoragePath, names: readonly ByteName[], options?: Watch): Promise<SmallFile[]>
  /**
   * Writes small files into one existing folder in one go, at most 8 MiB together. Each is under its
   * name once it is whole, or not at all. @returns the names of those that are; `write` gives the
   * reason for the others. After an error some may be whole. Present as `readMany`.
   */
  writeMany?(folder: StoragePath, files: readonly NewSmallFile[], options?: Replacing): Promise<ByteName[]>
  /**
   * Begins the upload of a whole file that a later attempt can go on with. The first of `earlier`
   * whose bytes are kept becomes this upload: the attempt that wrote it can no longer add to it,
   * and the others are removed.
   */
  openUpload?(path: StoragePath, options: UploadOptions): Promise<OpenUpload>
  /** The kept bytes of an upload in parts; 0 where there is none. Absent: `write` takes no parts. */
  received?(path: StoragePath, upload: string, options?: Watch): Promise<number>
  /** Removes the kept bytes of an upload in parts; no effect where there is none. */
  discard(path: StoragePath, upload: string, options?: Watch): Promise<void>
  /** Deletes a file or a link. */
  delete(path: StoragePath, options?: Watch): Promise<void>
  /**
   * Lets the storage itself copy a file of up to 5 GiB to a new name, so that no byte leaves it;
   * `from` counts from the base of the storage's place, so that it may be of another storage there,
   * whose roots the caller has checked; `exists` where the new name is taken, unless `overwrite`.
   */
  copyWithin?(path: StoragePath, from: StoragePath, options?: Replacing): Promise<void>
  /** Its parent has to exist where `directories` is true; an existing directory is no error. */
  makeDirectory(path: StoragePath, options?: Watch): Promise<void>
  /**
   * Makes a symbolic link; `exists` where the name is taken, unless `overwrite`. Nothing looks at
   * its target.
   */
  makeLink?(path: StoragePath, target: ByteName, options?: LinkOptions): Promise<void>
  /** Sets mode and time of a directory. */
  setAttributes?(path: StoragePath, attributes: Attributes, options?: Watch): Promise<void>
  /**
   * Whether the endpoint can be reached now, and how many bytes are free there where that is known.
   */
  space(options?: Watch): Promise<{ availableBytes?: number | undefined }>
  /**
   * A URL under which a file can be read without a login for this time. It is a credential: no
   * record and no log holds it.
   */
  presign?(path: StoragePath, seconds: number): Promise<string>
  close(): Promise<void>
}

/** The capabilities of a storage; each is true only where it always holds. */
interface StorageCapabilities {
  /** Directories exist by themselves, also empty ones. */
  directories: boolean
  /** All bytes of one `read` are of one version of the file, also where it is replaced meanwhile. */
  versions: boolean
}

export interface Watch {
  signal?: AbortSignal | undefined
}

export interface ListOptions extends Watch {
  /** Entries in one answer, from 1 on. */
  limit: number
  /** `next` of the page before. */
  after?: string | undefined
  /** Without `etag` and `mode`, and with both rights as true, where those cost calls of their own. */
  brief?: boolean | undefined
}

export interface EntryPage {
  entries: Entry[]
  /** Present where there are more: opaque, valid while nothing changes, no harm afterwards. */
  next?: string | undefined
}

export interface Entry {
  /** Empty for the endpoint itself. */
  name: ByteName
  /** `special`: a device, a FIFO, a socket. */
  type: 'file' | 'directory' | 'symlink' | 'special'
  /** Of files. */
  sizeBytes?: number | undefined
  /** Milliseconds since the epoch. */
  modifiedAt?: number | undefined
  /** With quotes; another one after every change of content. Of files, where the storage has it. */
  etag?: string | undefined
  /** As far as the storage shows it without an attempt. */
  readable: boolean
  writable: boolean
  /** The link's target, as written there. */
  linkTarget?: ByteName | undefined
  /** The nine permission bits, where the storage has them. */
  mode?: number | undefined
}

export interface ReadOptions extends Watch {
  /** From 0 on, default 0. At or behind the end it reads nothing. */
  offset?: number | undefined
  /** Default: to the end. */
  length?: number | undefined
}

export interface FileReading {
  entry: Entry
  stream: Readable
}

export interface WriteOptions extends Watch {
  /**
   * Default false: `exists` where the name is taken; of two writes under one name exactly one
   * succeeds. A directory is never replaced.
   */
  overwrite?: boolean | undefined
  /** Bytes of the whole, where they are known: a stream of another length fails with `changed`. */
  sizeBytes?: number | undefined
  part?: UploadPart | undefined
  /**
   * The upload that this writes. The stream has all bytes of the file; those that are kept are
   * compared or left out, and not written again. Its bytes are kept after an error.
   */
  continued?: OpenUpload | undefined
  /** For files that get their name by this call. Only where there is `setAttributes`. */
  attributes?: Attributes | undefined
  /**
   * SHA-256 of the stream in hexadecimal digits, known after its end. Bytes with another one do not
   * get the name: `changed`.
   */
  digest?: (() => string) | undefined
  /**
   * The caller has just listed the folder, and nothing had the name: some stores then get two
   * requests less. A name that is taken meanwhile is still refused.
   */
  isFree?: boolean | undefined
  /** The caller needs no `entry`: some stores then get a request less. */
  withoutEntry?: boolean | undefined
}

export interface SiteFile {
  path: StoragePath
  shell: SiteShell
  /** A script that prints these bytes of the file. What it refuses, it says on standard error. */
  content: (offset: number, length: number) => string
}

export interface WriteFromOptions extends Watch {
  continued: OpenUpload
  sizeBytes: number
  overwrite?: boolean | undefined
  attributes?: Attributes | undefined
  /** Whose site begins the connection, and where it leads. */
  by: 'source-push' | 'destination-pull'
  door: Door
  /** SHA-256 of the file at its own site; asked once its bytes have come. */
  digest: () => Promise<string>
  /** Bytes that have come, every few seconds. */
  onBytes: (count: number) => void
}

/** A whole file in memory. */
export interface SmallFile {
  name: ByteName
  bytes: Buffer
  /** Milliseconds since the epoch. */
  modifiedAt?: number | undefined
  mode?: number | undefined
}

export interface NewSmallFile {
  name: ByteName
  bytes: Buffer
  attributes?: Attributes | undefined
  /** Unique for each attempt; `discard` with it removes what a broken call has left. */
  upload: string
}

export interface Replacing extends Watch {
  overwrite?: boolean | undefined
}

export interface Attributes {
  /** The nine permission bits. */
  mode?: number | undefined
  /** Milliseconds since the epoch. */
  modifiedAt?: number | undefined
}

export interface LinkOptions extends Watch {
  overwrite?: boolean | undefined
  modifiedAt?: number | undefined
}

export interface UploadOptions extends Watch {
  /** Unique for each attempt. */
  name: string
  /** Names and answers of earlier attempts at this file, the last one first. */
  earlier: readonly string[]
  /** Bytes of the file. */
  sizeBytes: number
}

/** An upload that is under way at a storage. */
export interface OpenUpload {
  /** For `write`, `discard` and the next `openUpload`; no credential. */
  upload: string
  receivedBytes: number
}

/**
 * One part of an upload that its caller names; the next one continues where the kept bytes end. An
 * offset of 0 begins again.
 */
export interface UploadPart {
  upload: string
  offset: number
  last: boolean
  /** Whether the bytes before an error of the stream are kept; default: none of the part's. */
  keepsAfter?: ((error: unknown) => boolean) | undefined
}

export interface Written {
  /** Bytes of the upload that are kept so far, or the size of the file. */
  receivedBytes: number
  /** Entry of the whole file; absent while further parts are awaited, and with `withoutEntry`. */
  entry?: Entry | undefined
  /**
   * SHA-256 of the written bytes, in hexadecimal digits; absent while further parts are awaited.
   */
  sha256?: string | undefined
}

/**
 * What went wrong:
 *
 * - `missing`: nothing has that name. `exists`: the name is taken.
 * - `notFile`, `notDirectory`: it is something else.
 * - `link`: the path leads through a symbolic link. `outside`: it is not below a root. `name`: no
 *   entry can have that name.
 * - `readOnly`, `denied`: the storage is read-only; it does not let this account do that. `full`:
 *   no space is left.
 * - `offset`: an upload goes on at another byte, `receivedBytes`. `changed`: the bytes are not
 *   those that were announced.
 * - `credential`: the login is refused. `unsupported`: this kind of storage cannot do it.
 * - `busy`, `away`, `late`: it does not take the request now, cannot be reached, does not answer in
 *   time.
 * - `refused`: any other fault, with the storage's message.
 */
export type StorageFault =
  | 'missing'
  | 'exists'
  | 'notFile'
  | 'notDirectory'
  | 'link'
  | 'outside'
  | 'name'
  | 'readOnly'
  | 'denied'
  | 'full'
  | 'offset'
  | 'changed'
  | 'credential'
  | 'unsupported'
  | 'busy'
  | 'away'
  | 'late'
  | 'refused'

/** Faults that pass by themselves. */
const passing: ReadonlySet<StorageFault> = new Set(['busy', 'away', 'late'])

/**
 * The message names the entry and the remedy. It contains neither credentials nor addresses that
 * are credentials.
 */
export class StorageError extends Error {
  readonly fault: StorageFault
  readonly receivedBytes: number | undefined
  readonly retryAfterSeconds: number | undefined
  /** With `missing`: no file has the name, and a directory would not be seen. */
  readonly unlisted: boolean
  constructor(
    fault: StorageFault,
    message: string,
    options: ErrorOptions & {
      receivedBytes?: number | undefined
      retryAfterSeconds?: number | undefined
      unlisted?: boolean | undefined
    } = {},
  ) {
    super(message, options)
    this.name = 'StorageError'
    this.fault = fault
    this.receivedBytes = options.receivedBytes
    this.retryAfterSeconds = options.retryAfterSeconds
    this.unlisted = options.unlisted ?? false
  }

  /** Whether the same call may succeed a moment later. */
  get passes(): boolean {
    return passing.has(this.fault)
  }
}
