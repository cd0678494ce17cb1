import { greatest } from './lists.ts'

/**
 * Names of files are bytes. Inside of the drivers a path is a string in which a byte b that is no
 * UTF-8 stands as the lone surrogate U+DC00+b (`surrogateescape` of Python): paths stay keys, can be
 * joined, compared and kept in JSON, and give their bytes back. Records and people see `shownPath`.
 */

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
const escapedBytes = /[\udc80-\udcff]/u

/** The lengths of UTF-8 sequences by their first byte; 0: none begins so. */
const lengthAt = (byte: number): number =>
  byte < 0x80 ? 1 : byte < 0xc2 ? 0 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : byte < 0xf5 ? 4 : 0

const decoded = (bytes: Uint8Array): string | undefined => {
  try {
    return decoder.decode(bytes)
  } catch {
    return undefined
  }
}

/** The path of these bytes, inside of the drivers. `bytesOfPath` is its inverse. */
export const pathOfBytes = (bytes: Buffer): string => {
  const whole = bytes.toString()
  if (!whole.includes('\ufffd') || Buffer.from(whole).equals(bytes)) return whole
  let path = ''
  for (let at = 0; at < bytes.length;) {
    const first = bytes[at] ?? 0
    const length = lengthAt(first)
    const character = length === 0 ? undefined : decoded(bytes.subarray(at, at + length))
    path += character ?? String.fromCharCode(0xdc00 + first)
    at += character === undefined ? 1 : length
  }
  return path
}

/** The bytes of a path, for the system. */
export const bytesOfPath = (path: string): Buffer => {
  if (!escapedBytes.test(path)) return Buffer.from(path)
  return Buffer.concat(
    path
      .split(/([\udc80-\udcff])/u)
      .map((part) => (escapedBytes.test(part) ? Buffer.of(part.charCodeAt(0) - 0xdc00) : Buffer.from(part))),
  )
}

/** What to give to the system's calls: most paths are text, which costs less than bytes. */
export const systemPath = (path: string): string | Buffer =>
  escapedBytes.test(path) ? bytesOfPath(path) : path

/** Text that reads like an escaped byte. */
const escapeForm = /\\x[89a-f][0-9a-f]/

/**
 * The path as records and people see it: a byte that is no UTF-8 as `\xe9`. A path that has one, or
 * text of that form, has its backslashes doubled, so that no two paths look the same.
 */
export const shownPath = (path: string): string =>
  escapedBytes.test(path) || escapeForm.test(path)
    ? path
        .replaceAll('\\', '\\\\')
        .replace(/[\udc80-\udcff]/gu, (byte) => `\\x${(byte.charCodeAt(0) - 0xdc00).toString(16)}`)
    : path

/** The path that `shownPath` shows so. */
export const pathOfShown = (shown: string): string =>
  escapeForm.test(shown)
    ? shown.replace(/\\(?:\\|x([89a-f][0-9a-f]))/g, (_all, hex: string | undefined) =>
        hex === undefined ? '\\' : String.fromCharCode(0xdc00 + Number.parseInt(hex, 16)),
      )
    : shown

/** The path in a URI: what is no letter, digit or mark of a URI stands as `%` and its bytes. */
export const encodedPath = (path: string): string =>
  path
    .split(/([\udc80-\udcff])/u)
    .map((part) =>
      escapedBytes.test(part)
        ? `%${(part.charCodeAt(0) - 0xdc00).toString(16).toUpperCase()}`
        : encodeURI(part),
    )
    .join('')

/** For messages: the shown path in quotes, of a long one the beginning and the end. */
export const namedPath = (path: string): string => {
  const shown = [...shownPath(path)]
  return JSON.stringify(
    shown.length <= 200 ? shown.join('') : `${shown.slice(0, 120).join('')}…${shown.slice(-60).join('')}`,
  )
}

/** The bytes of a path in base64, where it is no text; absent: the shown path is exact. */
export const pathBytes = (path: string): { pathBytes?: string } =>
  escapedBytes.test(path) ? { pathBytes: bytesOfPath(path).toString('base64') } : {}

const longestName = 255
const longestPath = 4_095

/** Why Linux can hold no file of this path, for after its name; undefined: it can. */
export const pathTrouble = (path: string): string | undefined => {
  const longest = greatest(path.split('/').map((part) => bytesOfPath(part).length))
  if (longest > longestName)
    return `has a part of ${String(longest)} bytes, and no file system takes more than ${String(longestName)}`
  const bytes = bytesOfPath(path).length
  return bytes > longestPath
    ? `has ${String(bytes)} bytes, and the system takes ${String(longestPath)} at most`
    : undefined
}

/** Whether a path lies in a folder, or is that folder. Both are absolute, without links and dots. */
export const liesIn = (folder: string, path: string): boolean =>
  path === folder || path.startsWith(folder.endsWith('/') ? folder : `${folder}/`)
