/** The replacement for a secret in a record. */
const mark = Buffer.from('********')

/** Values shorter than this occur anywhere by chance. */
export const leastBytes = 8

const needlesOf = (secrets: readonly string[]): Buffer[] =>
  [...new Set(secrets)].map((text) => Buffer.from(text)).filter((needle) => needle.length >= leastBytes)

/** A secret in bytes. */
interface Found {
  at: number
  end: number
}

/** The secrets in bytes, in order, none inside another. */
const foundIn = (bytes: Buffer, needles: readonly Buffer[]): Found[] => {
  const all: Found[] = []
  for (const needle of needles)
    for (let at = bytes.indexOf(needle); at >= 0; at = bytes.indexOf(needle, at + needle.length))
      all.push({ at, end: at + needle.length })
  let free = 0
  return all
    .toSorted((a, b) => a.at - b.at || b.end - a.end)
    .filter(({ at, end }) => {
      if (at < free) return false
      free = end
      return true
    })
}

/**
 * Where the longest end of bytes begins that may be the beginning of a secret; their length if
 * none.
 */
const begunIn = (bytes: Buffer, needles: readonly Buffer[]): number => {
  let first = bytes.length
  for (const needle of needles) {
    const from = Math.max(0, bytes.length - needle.length + 1)
    for (let at = bytes.indexOf(needle[0] ?? 0, from); at >= 0 && at < first;) {
      if (needle.subarray(0, bytes.length - at).equals(bytes.subarray(at))) first = at
      else at = bytes.indexOf(needle[0] ?? 0, at + 1)
    }
  }
  return first
}

/** Pieces of a stream with a mark in place of each secret, in the piece where the secret begins. */
export const maskPieces = (pieces: readonly Buffer[], secrets: readonly string[]): readonly Buffer[] => {
  const needles = needlesOf(secrets)
  if (needles.length === 0) return pieces
  const bytes = Buffer.concat(pieces)
  const found = foundIn(bytes, needles)
  if (found.length === 0) return pieces
  let [start, from, next] = [0, 0, 0]
  return pieces.map(({ length }) => {
    const done: Buffer[] = []
    const end = start + length
    from = Math.max(from, start)
    for (let one = found[next]; one !== undefined && one.at < end; one = found[++next]) {
      done.push(bytes.subarray(from, one.at), mark)
      from = one.end
    }
    if (from < end) done.push(bytes.subarray(from, end))
    start = end
    return Buffer.concat(done)
  })
}

/** Bytes with a mark in place of each secret. */
export const maskWhole = (bytes: Buffer, secrets: readonly string[]): Buffer =>
  maskPieces([bytes], secrets)[0] ?? bytes

/** As `maskWhole`, for the beginning of longer bytes: without an end that may begin a secret. */
export const maskCut = (bytes: Buffer, secrets: readonly string[]): Buffer => {
  const masked = maskWhole(bytes, secrets)
  return masked.subarray(0, begunIn(masked, needlesOf(secrets)))
}

/**
 * How many pieces of a stream can be recorded now, of at most `most`. The first piece after them
 * holds the beginning of a secret, or what may become one with the next piece, or is beyond `most`.
 */
export const openCuts = (
  pieces: readonly Buffer[],
  secrets: readonly string[],
): ((most: number) => number) => {
  const needles = needlesOf(secrets)
  if (needles.length === 0) return (most) => Math.min(most, pieces.length)
  const bytes = Buffer.concat(pieces)
  const found = foundIn(bytes, needles)
  const ends: number[] = []
  for (const piece of pieces) ends.push((ends.at(-1) ?? 0) + piece.length)
  const begun = begunIn(bytes, needles)
  return (most) => {
    for (let cut = Math.min(begun, ends[most - 1] ?? 0); ;) {
      const sure = ends.filter((end) => end <= cut).length
      const boundary = ends[sure - 1] ?? 0
      const split = found.find(({ at, end }) => at < boundary && boundary < end)
      if (split === undefined) return sure
      cut = split.at
    }
  }
}
