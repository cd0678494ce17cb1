/**
 * Whether a system call failed with one of these codes (`ENOENT`, …). It checks the shape: an error
 * of the platform may come from another realm, where `instanceof` is false.
 */
export function isErrno(error: unknown, ...codes: string[]): boolean {
  return (
    typeof error === 'object' &&
    error !== null &&
    'code' in error &&
    typeof error.code === 'string' &&
    codes.includes(error.code)
  )
}

export function messageOf(error: unknown): string {
  return typeof error === 'object' && error !== null && 'message' in error
    ? String(error.message)
    : String(error)
}

/** The code of a failed system call (`EACCES`), for messages; else the error's own message. */
export function causeOf(error: unknown): string {
  return typeof error === 'object' && error !== null && 'code' in error && typeof error.code === 'string'
    ? error.code
    : messageOf(error)
}
