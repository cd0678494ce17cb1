import { append } from '../../lists.ts'
import { printableMessage } from './printable.ts'
import { LinkError } from '../../shell/site-shell.ts'
import type { SshHostKey, SshStage } from './target.ts'

/** The stages of a login in order with their durations, and the server that answered. */
export class LoginProgress {
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
  copy(): LoginProgress {
    const copy = new LoginProgress()
    append(copy.stages, this.stages)
    copy.#stage = this.#stage
    copy.#since = this.#since
    const { address, banner, hostKey, hostKeyIsNew } = this
    return Object.assign(copy, { address, banner, hostKey, hostKeyIsNew })
  }

  /** A copy whose present stage begins now. */
  again(): LoginProgress {
    const again = this.copy()
    again.#since = performance.now()
    return again
  }

  /** Goes back to where it had so many stages; the next one begins now. */
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
  arrived(): void {
    this.#end(true)
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
