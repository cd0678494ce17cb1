import { append } from '../../lists.ts'
import { LinkError } from '../../shell/site-shell.ts'
import type { SshHostKey, SshStage } from './target.ts'

/**
 * The events on the way to a login: the stages in order with their durations, and the server that
 * answered.
 */
export class Journey {
  readonly stages: SshStage[] = []
  address?: string
  banner?: string
  hostKey?: SshHostKey
  hostKeyIsNew?: boolean
  #stage: SshStage['stage'] = 'name'
  #since = performance.now()

  /** The stage under way. */
  get stage(): SshStage['stage'] {
    return this.#stage
  }

  /** A copy of the present state, for a report while the login goes on. */
  copy(): Journey {
    const copy = new Journey()
    append(copy.stages, this.stages)
    copy.#stage = this.#stage
    copy.#since = this.#since
    const { address, banner, hostKey, hostKeyIsNew } = this
    return Object.assign(copy, { address, banner, hostKey, hostKeyIsNew })
  }

  /** A new journey over the same stages up to the present one, which begins now. */
  again(): Journey {
    const again = this.copy()
    again.#since = performance.now()
    return again
  }

  /** Takes the way back to where it had so many stages, of which the next one begins now. */
  back(stages: number): void {
    const next = this.stages[stages]?.stage
    if (next === undefined) return
    this.stages.length = stages
    this.#stage = next
    this.#since = performance.now()
  }

  get hasFailed(): boolean {
    return this.stages.at(-1)?.ok === false
  }

  /** Marks the present stage as passed; the next one begins. */
  reached(next: SshStage['stage'], detail?: string): void {
    this.#end(true, detail)
    this.#stage = next
  }

  /** Marks the last stage as passed. */
  arrived(detail?: string): void {
    this.#end(true, detail)
  }

  /**
   * Marks the stage that the error names as failed, else the present one: a credential that cannot
   * be opened is no fault of the name.
   */
  failed(error: unknown): LinkError {
    const link =
      error instanceof LinkError
        ? error
        : new LinkError(this.#stage, printableMessage(error), { cause: error })
    if (link.stage !== 'link') this.#stage = link.stage
    this.#end(false, link.message)
    return link
  }

  #end(ok: boolean, detail?: string): void {
    const now = performance.now()
    this.stages.push({
      stage: this.#stage,
      ok,
      milliseconds: Math.round((now - this.#since) * 10) / 10,
      ...(detail === undefined ? {} : { detail }),
    })
    this.#since = now
  }
}

/** The message of an error, without control characters and endless text from servers. */
export const printableMessage = (error: unknown): string =>
  printable(error instanceof Error ? error.message : String(error))

/** A server's text for display: one line, at most 500 characters. */
export const printable = (text: string): string =>
  [...text.replace(/[\p{Cc}\p{Cf}\s]+/gu, ' ').trim()].slice(0, 500).join('')
