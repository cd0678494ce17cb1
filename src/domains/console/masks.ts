import { openAnyOf, type Found } from '../../any-of.ts'
import { greatest } from '../../lists.ts'

/** The replacement for a secret in a record. */
const mark = Buffer.from('********')

/** Values shorter than this occur anywhere by chance. */
export const leastBytes = 8

const needlesOf = (secrets: readonly string[]): Buffer[] =>
  [...new Set(secrets)].map((text) => Buffer.from(text)).filter((needle) => needle.length >= leastBytes)

/** The bytes at the begin of a text, as a number. */
const beginAt = (bytes: Buffer, at: number, length: number): number =>
  bytes.readUIntBE(at, length) * 4 + length
const mostBegin = 3

/**
 * Finds where the longest end of bytes begins that may be the beginning of a secret; their length if
 * none.
 */
const openBegun = (needles: readonly Buffer[]): ((bytes: Buffer) => number) => {
  const longest = greatest(
    needles.map(({ length }) => length),
    0,
  )
  const byBegin = new Map<number, Buffer[]>()
  for (const needle of needles)
    for (let length = 1; length <= mostBegin; length++) {
      const begin = beginAt(needle, 0, length)
      const others = byBegin.get(begin)
      if (others === undefined) byBegin.set(begin, [needle])
      else others.push(needle)
    }
  return (bytes) => {
    for (let at = Math.max(0, bytes.length - longest + 1); at < bytes.length; at++) {
      const left = bytes.length - at
      const begun = byBegin
        .get(beginAt(bytes, at, Math.min(mostBegin, left)))
        ?.some((needle) => left < needle.length && bytes.compare(needle, 0, left, at) === 0)
      if (begun === true) return at
    }
    return bytes.length
  }
}

/** Masks of secrets in what a console records. */
export interface Masks {
  /** Pieces of a stream with a mark in place of each secret, in the piece where the secret begins. */
  pieces(pieces: readonly Buffer[]): readonly Buffer[]
  /** Bytes with a mark in place of each secret. */
  whole(bytes: Buffer): Buffer
  /** As `whole`, for the beginning of longer bytes: without an end that may begin a secret. */
  cut(bytes: Buffer): Buffer
  /**
   * How many pieces of a stream can be recorded now, of at most `most`. The first piece after them
   * holds the beginning of a secret, or what may become one with the next piece, or is beyond `most`.
   */
  cuts(pieces: readonly Buffer[]): (most: number) => number
}

/** Prepares the search for secrets, which takes longer than a search in little output. */
export const openMasks = (secrets: readonly string[]): Masks => {
  const needles = needlesOf(secrets)
  const next = openAnyOf(needles)
  const begunIn = openBegun(needles)
  /** The secrets in bytes, in order, none inside another. */
  const foundIn = (bytes: Buffer): Found[] => {
    const all: Found[] = []
    for (let one = next(bytes); one !== undefined; one = next(bytes, one.end)) all.push(one)
    return all
  }

  const maskPieces = (pieces: readonly Buffer[]): readonly Buffer[] => {
    const bytes = Buffer.concat(pieces)
    const found = foundIn(bytes)
    if (found.length === 0) return pieces
    let [start, from, place] = [0, 0, 0]
    return pieces.map(({ length }) => {
      const done: Buffer[] = []
      const end = start + length
      from = Math.max(from, start)
      for (let one = found[place]; one !== undefined && one.at < end; one = found[++place]) {
        done.push(bytes.subarray(from, one.at), mark)
        from = one.end
      }
      if (from < end) done.push(bytes.subarray(from, end))
      start = end
      return Buffer.concat(done)
    })
  }
  const whole = (bytes: Buffer): Buffer => maskPieces([bytes])[0] ?? bytes

  return {
    pieces: maskPieces,
    whole,
    cut(bytes) {
      const masked = whole(bytes)
      return masked.subarray(0, begunIn(masked))
    },
    cuts(pieces) {
      if (needles.length === 0) return (most) => Math.min(most, pieces.length)
      const bytes = Buffer.concat(pieces)
      const found = foundIn(bytes)
      const ends: number[] = []
      for (const piece of pieces) ends.push((ends.at(-1) ?? 0) + piece.length)
      const begun = begunIn(bytes)
      return (most) => {
        for (let cut = Math.min(begun, ends[most - 1] ?? 0); ;) {
          const sure = ends.filter((end) => end <= cut).length
          const boundary = ends[sure - 1] ?? 0
          const split = found.find(({ at, end }) => at < boundary && boundary < end)
          if (split === undefined) return sure
          cut = split.at
        }
      }
    },
  }
}
