/** Passwords in addresses: `user:password@host`, behind a scheme or without one. */

const scheme = String.raw`[a-z][a-z0-9+.-]*:[\\/]{2,}`
/**
 * Group 1 ends with the colon before the password, group 2 is the password. It ends at the last `@`
 * before a slash, `?` or `#`; where there is none, at the last one, as not everybody escapes those
 * characters, and a port with a path behind it is no password then. For JavaScript and PostgreSQL
 * alike; case has to be ignored.
 */
const form = (before: string): string =>
  String.raw`^(\s*${before}(?:[^/?#:\\[]*:(?=[^/?#]+@)|[^/?#@:\\[]*:(?!//|\d{1,5}[/?#\\])))([^/?#]+|.+)(?=@)`

/** How the endpoint of a record holds a password, by its kind; that of a storage may be `host:/path@x`. */
export const passwordForms = { connection: form(`(?:${scheme})?`), storage: form(scheme) }
export type Addressed = keyof typeof passwordForms

const patterns: Readonly<Record<Addressed, RegExp>> = {
  connection: new RegExp(passwordForms.connection, 'is'),
  storage: new RegExp(passwordForms.storage, 'is'),
}

/** `image:tag@sha256:…` behind a scheme has no password. */
const digest = /@sha(?:256|512):[0-9a-f]{64,128}\s*$/i

/** An address that ends with its port, and words behind it, which may name a person. */
const inWords = new RegExp(String.raw`^\s*${scheme}[^\s/?#@:]*:\d{1,5}[,;]?\s`, 'i')

/** The password of the URL with which a text of a configuration begins, or undefined. */
export const urlPasswordOf = (text: string): string | undefined =>
  text.includes('@') && !inWords.test(text) ? patterns.storage.exec(text.replace(digest, ''))?.[2] : undefined

/**
 * Finds every JSON text without escapes that may hold such a URL, for JavaScript and PostgreSQL alike;
 * case has to be ignored.
 */
export const mayHoldPassword = String.raw`"\s*[a-z][a-z0-9+.-]*:[/ ]{2}[^"@]*@`

/** The passwords of URLs anywhere in a text. It looks back over a bounded part: a text may be of anything. */
export const urlPasswords = /(?<=:\/\/[^\s/:@]{0,255}:)[^\s/@]{1,255}(?=@)/g

/** The password in an endpoint, or undefined. */
export const passwordOf = (endpoint: unknown, of: Addressed): string | undefined =>
  typeof endpoint === 'string' ? patterns[of].exec(endpoint)?.[2] : undefined

/** An endpoint with another text in place of its password; any other value as it is. */
export const endpointWith = <T>(endpoint: T, of: Addressed, password: string): T | string =>
  typeof endpoint === 'string'
    ? endpoint.replace(patterns[of], (_, before: string) => before + password)
    : endpoint

/** An endpoint without its password; any other value as it is. */
export const endpointWithout = <T>(endpoint: T, of: Addressed): T | string =>
  typeof endpoint === 'string'
    ? endpoint.replace(patterns[of], (_, before: string) => before.slice(0, -1))
    : endpoint
