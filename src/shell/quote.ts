/** Bytes of a path that are no UTF-8 (`outside-path.ts`). A script is text, so it has them in octal. */
const escapedBytes = /[\udc80-\udcff]+/gu
const octal = (bytes: string): string =>
  [...bytes].map((byte) => `\\${(byte.charCodeAt(0) - 0xdc00).toString(8)}`).join('')

/**
 * One word of POSIX `sh` whose value is exactly `text`: single quotes, in which only the quote
 * itself is special (POSIX.1-2017, XCU 2.2.2). Newlines and every other byte but NUL are kept, those
 * of a path that are no UTF-8 too.
 *
 * @throws RangeError for a text with NUL, which no argument and no variable can hold.
 */
export const quote = (text: string): string => {
  if (text.includes('\0')) throw new RangeError('a text with NUL cannot be passed to a shell')
  const quoted = `'${text.replaceAll("'", `'\\''`)}'`
  return quoted.replace(escapedBytes, (bytes) => `'"$(printf '${octal(bytes)}')"'`)
}

/** An argument vector as text for `sh`. */
export const quoteAll = (words: readonly string[]): string => words.map(quote).join(' ')

/**
 * A command of `sh` that prints words, each with a NUL behind it, for `xargs -0`: any number of them,
 * where the arguments of a program have a limit.
 *
 * @throws RangeError for a word with NUL.
 */
export const printedWords = (words: readonly string[]): string => {
  const format = words.map((word) => `${word.replaceAll('\\', '\\\\').replaceAll('%', '%%')}\\000`).join('')
  return `printf ${quote(format.replace(escapedBytes, octal))}`
}
