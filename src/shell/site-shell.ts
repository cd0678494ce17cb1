import type { Readable, Writable } from 'node:stream'

/**
 * A POSIX `sh` at a site, over any link: a child process here, a channel of a pooled SSH session
 * there. It is the only way to drive remote processes.
 *
 * - A script is text for `/bin/sh`; values are put into it by `quote` of `src/shell/quote.ts` only.
 *   Its standard input is `input`, or empty.
 * - `run` rejects with a `LinkError` when the link broke, or the deadline passed, before the answer
 *   came. The script may then have run, wholly or in part: scripts are written to be run again.
 * - An exit code that is not 0 is an answer, not an error.
 * - After a lost link the next call makes a new one; the caller reopens only streams.
 */
export interface SiteShell {
  /** The id of its connection; absent where it belongs to none. Shells of one link share its streams. */
  readonly link?: string | undefined
  run(script: string, options?: RunOptions): Promise<ShellResult>
  /** For long or large streams (`tail -f`, `tar`): bytes in, bytes out, as they arrive. */
  open(script: string, options?: StreamOptions): Promise<ShellStream>
  /**
   * A script on a pseudo terminal of the site, as long as the link; absent where the link has none.
   * It lasts, as a stream of `StreamOptions` may. @throws LinkError that is `permanent` where the site
   * gives none
   */
  terminal?(script: string, size: TerminalSize): Promise<ShellStream>
  close(): Promise<void>
}

export interface StreamOptions {
  /**
   * It lasts as long as a person wants, for hours: it takes none of the few channels of short
   * streams where the link can be opened once more. Default false.
   */
  lasting?: boolean
}

export interface TerminalSize {
  rows: number
  columns: number
}

export interface RunOptions {
  input?: Uint8Array | string
  /** Default 60 s. */
  deadlineMs?: number
  /** Output beyond this many bytes (default 64 MiB) rejects. */
  maxBytes?: number
}

export const runDefaults = { deadlineMs: 60_000, maxBytes: 64 * 1024 * 1024 }

export interface ShellResult {
  code: number | null
  signal: string | null
  stdout: Buffer
  /** The last 64 KiB. */
  stderr: string
}

export interface ShellStream {
  stdin: Writable
  stdout: Readable
  /** Resolves after the last byte; rejects with a `LinkError` when the link broke before. */
  done: Promise<{ code: number | null; signal: string | null; stderr: string }>
  /** Ends it from this side; no effect after its end. */
  kill(): void
  /** Present for a terminal. */
  resize?(rows: number, columns: number): void
}

/** The stage at which a link failed. */
export type LinkStage = 'name' | 'route' | 'host key' | 'login' | 'shell' | 'link'

/**
 * The site could not be reached, or the link to it was lost: no statement about its processes.
 *
 * `waitsForPerson`: a login that needs a person's answer to a prompt. `permanent`: a retry is
 * useless before a person changes something (a changed host key, a refused key). `full`: the link
 * carries as many lasting streams as it can, and no other link can be opened.
 */
export class LinkError extends Error {
  readonly stage: LinkStage
  readonly waitsForPerson: boolean
  readonly permanent: boolean
  readonly full: boolean
  constructor(
    stage: LinkStage,
    message: string,
    options: ErrorOptions & { waitsForPerson?: boolean; permanent?: boolean; full?: boolean } = {},
  ) {
    super(message, options)
    this.name = 'LinkError'
    this.stage = stage
    this.waitsForPerson = options.waitsForPerson ?? false
    this.permanent = options.permanent ?? false
    this.full = options.full ?? false
  }
}
