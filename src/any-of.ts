import { smallest } from './lists.ts'

/**
 * Where one of many byte strings occurs in a text: the algorithm of Wu and Manber (TR-94-17),
 * which looks at a part of the bytes only and takes hardly longer for more strings. A regular
 * expression of the same strings tries each of them at each byte.
 */

/** Bytes of the block by which a place is judged. */
const block = 3
const mostPlaces = 1 << 16
const none: readonly Buffer[] = []

const placeOf = (a: number, b: number, c: number): number => ((a << 8) ^ (b << 4) ^ c) & (mostPlaces - 1)

/** The place of a string in bytes. */
export interface Found {
  at: number
  end: number
}

/**
 * Finds the first place, at `from` or behind it, where a string stands; of those that begin there the
 * longest.
 * @param strings each of at least `block` bytes
 */
export const openAnyOf = (
  strings: readonly Buffer[],
): ((bytes: Uint8Array, from?: number) => Found | undefined) => {
  if (strings.length === 0) return () => undefined
  const shortest = smallest(strings.map(({ length }) => length))
  if (shortest < block) throw new Error(`a string is shorter than ${String(block)} bytes`)
  // How far the next place is that may end the first `shortest` bytes of a string.
  const shift = new Uint8Array(mostPlaces).fill(Math.min(255, shortest - block + 1))
  const ending = new Map<number, Buffer[]>()
  for (const each of strings)
    for (let end = block; end <= shortest; end += 1) {
      const place = placeOf(each[end - 3]!, each[end - 2]!, each[end - 1]!)
      shift[place] = Math.min(shift[place]!, shortest - end)
      if (end === shortest) {
        const others = ending.get(place)
        if (others === undefined) ending.set(place, [each])
        else others.push(each)
      }
    }
  const startsWith = (bytes: Uint8Array, from: number, text: Buffer): boolean => {
    if (from + text.length > bytes.length) return false
    for (let at = 0; at < text.length; at += 1) if (bytes[from + at] !== text[at]) return false
    return true
  }
  return (bytes, begin = 0) => {
    for (let at = begin + shortest - 1; at < bytes.length;) {
      const place = placeOf(bytes[at - 2]!, bytes[at - 1]!, bytes[at]!)
      const further = shift[place]!
      if (further === 0) {
        const from = at - shortest + 1
        let end = 0
        for (const text of ending.get(place) ?? none)
          if (from + text.length > end && startsWith(bytes, from, text)) end = from + text.length
        if (end > 0) return { at: from, end }
        at += 1
      } else at += further
    }
    return undefined
  }
}
