/** Names of keys that hold secrets, and the search for such keys in JSON text that is not parsed. */

/** A key as names of secrets are compared with it: its letters and digits of ASCII, in lower case. */
export const normalisedKey = (key: string): string => key.replace(/[^A-Za-z0-9]/g, '').toLowerCase()

/** What `normalisedKey` removes from a key without escapes. */
const gap = '[^a-z0-9"]*'

/**
 * A pattern of names in normalised keys, as one of keys as they were written: with gaps behind its letters, for
 * JavaScript and PostgreSQL alike. It is for text without escapes; case has to be ignored.
 */
export const asWritten = (names: string): string =>
  names.replace(/([a-z])(\??)/g, (_, letter: string, optional: string) =>
    optional === '' ? letter + gap : `(?:${letter}${gap})?`,
  )

/** An escape in JSON text, for JavaScript and PostgreSQL alike. */
export const jsonEscape = String.raw`\\(?:u[0-9a-fA-F]{4}|.)`
const jsonEscapes = new RegExp(jsonEscape, 'g')

/** JSON text with a space for each escape: in a key, the letters of `\n` and `\u001f` are no letters. */
export const withoutEscapes = (text: string): string =>
  text.includes('\\') ? text.replace(jsonEscapes, ' ') : text
