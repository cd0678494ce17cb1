/** The message of an error, without control characters and endless text from servers. */
export const printableMessage = (error: unknown): string =>
  printable(error instanceof Error ? error.message : String(error))

/** A server's text for display: one line, at most 500 characters. */
export const printable = (text: string): string =>
  [...text.replace(/[\p{Cc}\p{Cf}\s]+/gu, ' ').trim()].slice(0, 500).join('')
