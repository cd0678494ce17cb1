/**
 * The files of an account at a site by SFTP, for accounts that have no shell. Paths are absolute,
 * as the account sees them.
 *
 * Every call has a deadline and rejects with a `FilesError`, or with a `LinkError` where the link
 * broke. The next call after a lost link makes a new one; open files are gone with it.
 */
export interface SiteFiles {
  /** The entry itself: a link is not followed. */
  lstat(path: string): Promise<FileFacts>
  /** In the order of the server, without `.` and `..`. */
  readdir(path: string): Promise<{ name: string; facts: FileFacts }[]>
  readlink(path: string): Promise<string>
  symlink(target: string, path: string): Promise<void>
  mkdir(path: string): Promise<void>
  unlink(path: string): Promise<void>
  /** `failure` where the new name is taken, unless `replaces`. */
  rename(from: string, to: string, replaces: boolean): Promise<void>
  /** Times in seconds since the epoch. */
  setAttributes(path: string, attributes: { mode?: number; modifiedSeconds?: number }): Promise<void>
  truncate(path: string, sizeBytes: number): Promise<void>
  /** Free bytes; undefined where the server does not report them. */
  freeBytes(path: string): Promise<number | undefined>
  /** The server follows links at the last name too. */
  open(path: string, mode: 'read' | 'create' | 'continue'): Promise<OpenSiteFile>
  close(): Promise<void>
}

export interface FileFacts {
  type: 'file' | 'directory' | 'symlink' | 'special'
  sizeBytes: number
  modifiedSeconds: number
  /** The nine permission bits. */
  mode: number
}

export interface OpenSiteFile {
  facts(): Promise<FileFacts>
  /** Fewer bytes than asked for only at the end of the file. */
  read(offset: number, length: number): Promise<Buffer>
  write(offset: number, bytes: Buffer): Promise<void>
  sync(): Promise<void>
  close(): Promise<void>
}

/** What a server answers; `failure` is all that has no code of its own. */
export class FilesError extends Error {
  readonly code: 'missing' | 'denied' | 'failure' | 'unsupported' | 'late'
  constructor(code: FilesError['code'], message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'FilesError'
    this.code = code
  }
}
