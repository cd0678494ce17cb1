import type { SiteShell } from '../../../shell/site-shell.ts'

/** The place of one terminal: a site's own shell, or something made for the terminal alone. */
export interface TerminalHost {
  shell: SiteShell
  /** Folder for the files of terminals. */
  root: () => Promise<string>
  /** Whether programs see the environment of the place (an image's) instead of a login's. */
  ownEnvironment: boolean
  /**
   * Makes the place where it is not made yet; `first`: no terminal was seen there before.
   * @throws TerminalLost for a place that is gone, with the reason
   */
  ready: (first: boolean) => Promise<void>
  /**
   * Removes what was made for the terminal alone. May be repeated. @throws LinkError where it is still
   * there after a while
   */
  remove: () => Promise<void>
  close: () => Promise<void>
}

/** The place of a terminal is gone, and the terminal with it. */
export class TerminalLost extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'TerminalLost'
  }
}
