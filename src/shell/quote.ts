/**
 * One word of POSIX `sh` whose value is exactly `text`: single quotes, in which only the quote
 * itself is special (POSIX.1-2017, XCU 2.2.2). Newlines and every other byte but NUL are kept.
 *
 * @throws RangeError for a text with NUL, which no argument and no variable can hold.
 */
export const quote = (text: string): string => {
  if (text.includes('\0')) throw new RangeError('a text with NUL cannot be passed to a shell')
  return `'${text.replaceAll("'", `'\\''`)}'`
}

/** An argument vector as text for `sh`. */
export const quoteAll = (words: readonly string[]): string => words.map(quote).join(' ')
