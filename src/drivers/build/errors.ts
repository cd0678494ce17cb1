/**
 * The refusal of a context, an image or a build; the message names the value and the remedy and may
 * be public. `passes`: a retry may help.
 */
export class BuildError extends Error {
  override readonly name = 'BuildError'
  readonly passes: boolean
  constructor(message: string, options: { passes?: boolean; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.passes = options.passes ?? false
  }
}

/** Whether the file system has no room left for a file of the store. */
export const isFull = (error: unknown): boolean =>
  error instanceof Error && ['ENOSPC', 'EDQUOT'].includes((error as NodeJS.ErrnoException).code ?? '')
export const fullStore =
  'the store of this host has no room left; make room below SERVICE_ARTIFACT_ROOT and try again'
