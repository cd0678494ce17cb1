import { LinkError } from '../../drivers/shell.ts'
import type { SshHostKey, SshStage } from './target.ts'

/** What was seen on the way to a login: stages in their order with their durations, and who answered. */
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

  /** As it is now, to be told of while it goes on. */
  copy(): Journey {
    const copy = new Journey()
    copy.stages.push(...this.stages)
    copy.#stage = this.#stage
    copy.#since = this.#since
    const { address, banner, hostKey, hostKeyIsNew } = this
    return Object.assign(copy, { address, banner, hostKey, hostKeyIsNew })
  }

  /** Later the same way was gone again up to the stage under way, which begins now. */
  again(): Journey {
    const again = this.copy()
    again.#since = performance.now()
    return again
  }

  get hasFailed(): boolean {
    return this.stages.at(-1)?.ok === false
  }

  /** The stage under way went well; the next one begins. */
  reached(next: SshStage['stage'], detail?: string): void {
    this.#end(true, detail)
    this.#stage = next
  }

  /** The last stage went well. */
  arrived(detail?: string): void {
    this.#end(true, detail)
  }

  /** The stage that the error names failed, else the one under way: a credential that cannot be opened is no matter of the name. */
  failed(error: unknown): LinkError {
    const link = error instanceof LinkError ? error : new LinkError(this.#stage, messageOf(error), { cause: error })
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

/** The words of an error, without what servers may put between them: control characters and endless text. */
export const messageOf = (error: unknown): string => printable(error instanceof Error ? error.message : String(error))

/** Text of a server that people may read: one line, at most 500 characters. */
export const printable = (text: string): string =>
  text
    .replace(/[\p{Cc}\p{Cf}\s]+/gu, ' ')
    .trim()
    .slice(0, 500)
