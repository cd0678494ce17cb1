import type { Readable, Writable } from 'node:stream'

/**
 * A POSIX `sh` at a site, whatever lies between: a child process here, a channel of a pooled SSH session there. What runs remotely is
 * driven through it and through nothing else.
 *
 * - A script is text for `/bin/sh`; values are put into it by `quote` of `src/drivers/quote.ts` only. Its standard input is `input`, or empty.
 * - `run` rejects with a `LinkError` when the link broke, or the deadline passed, before the answer came. The script may then have
 *   run, wholly or in part: scripts are written to be run again.
 * - An exit code that is not 0 is an answer, not an error.
 * - After a lost link the next call makes a new one; nothing has to be opened again by the caller but streams.
 */
export interface SiteShell {
  run(script: string, options?: RunOptions): Promise<ShellResult>
  /** For what lasts or is large (`tail -f`, `tar`): bytes in, bytes out, as they come. */
  open(script: string): Promise<ShellStream>
  close(): Promise<void>
}

export interface RunOptions {
  input?: Uint8Array | string
  /** Default 60 s. */
  deadlineMs?: number
  /** Output beyond this many bytes (default 64 MiB) rejects. */
  maxBytes?: number
}

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
  /** Ends it from this side; harmless afterwards. */
  kill(): void
}

/** How far a link came: the stage that failed. */
export type LinkStage = 'name' | 'route' | 'host key' | 'login' | 'shell' | 'link'

/**
 * The site could not be reached, or the link to it was lost: says nothing about what runs there.
 *
 * `waitsForPerson`: a login that needs somebody to answer a prompt. `permanent`: trying again is useless before somebody changes something
 * (a changed host key, a refused key).
 */
export class LinkError extends Error {
  readonly stage: LinkStage
  readonly waitsForPerson: boolean
  readonly permanent: boolean
  constructor(stage: LinkStage, message: string, options: ErrorOptions & { waitsForPerson?: boolean; permanent?: boolean } = {}) {
    super(message, options)
    this.name = 'LinkError'
    this.stage = stage
    this.waitsForPerson = options.waitsForPerson ?? false
    this.permanent = options.permanent ?? false
  }
}
