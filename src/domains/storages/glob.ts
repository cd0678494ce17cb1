/**
 * Patterns of paths in the syntax of shells. Users write the patterns. Libraries turn them into
 * regular expressions, in which a pattern of fifty characters can take minutes. This matcher takes
 * at most (length of pattern) × (length of path) steps.
 */

type Token =
  | { kind: 'any' }
  | { kind: 'one' }
  | { kind: 'text'; text: string }
  | { kind: 'set'; negated: boolean; ranges: (readonly [string, string])[] }
/** Names of a path; `deep` matches any number of them. */
type Segment = 'deep' | Token[]

/** Parses `[a-z]` after the bracket; undefined where it is not closed and so is plain text. */
const setAt = (text: readonly string[], start: number): { token: Token; end: number } | undefined => {
  const negated = text[start] === '!' || text[start] === '^'
  const first = negated ? start + 1 : start
  const ranges: [string, string][] = []
  for (let at = first; at < text.length; at += 1) {
    const from = text[at]!
    if (from === ']' && at > first) return { token: { kind: 'set', negated, ranges }, end: at }
    const isRange = text[at + 1] === '-' && text[at + 2] !== undefined && text[at + 2] !== ']'
    ranges.push([from, isRange ? text[at + 2]! : from])
    if (isRange) at += 2
  }
  return undefined
}

const segmentOf = (source: string): Segment => {
  if (source === '**') return 'deep'
  const text = [...source]
  const tokens: Token[] = []
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at]!
    const set = char === '[' ? setAt(text, at + 1) : undefined
    if (set !== undefined) {
      tokens.push(set.token)
      at = set.end
    } else if (char === '*') tokens.push({ kind: 'any' })
    else if (char === '?') tokens.push({ kind: 'one' })
    else if (char === '\\' && at + 1 < text.length) {
      tokens.push({ kind: 'text', text: text[at + 1]! })
      at += 1
    } else tokens.push({ kind: 'text', text: char })
  }
  return tokens
}

/**
 * Whether items match tokens, some of which match any number of items. Only the last of these needs
 * backtracking.
 */
const runs = <T, I>(
  tokens: readonly T[],
  items: readonly I[],
  isAny: (token: T) => boolean,
  fits: (token: T, item: I) => boolean,
): boolean => {
  let [token, item, retryToken, retryItem] = [0, 0, -1, 0]
  while (item < items.length) {
    const wanted = tokens[token]
    if (wanted !== undefined && isAny(wanted)) {
      token += 1
      retryToken = token
      retryItem = item
    } else if (wanted !== undefined && fits(wanted, items[item]!)) {
      token += 1
      item += 1
    } else if (retryToken >= 0) {
      retryItem += 1
      token = retryToken
      item = retryItem
    } else return false
  }
  return tokens.slice(token).every(isAny)
}

const fitsChar = (token: Token, char: string): boolean => {
  if (token.kind === 'one') return true
  if (token.kind === 'text') return token.text === char
  if (token.kind === 'any') return false
  return token.ranges.some(([from, to]) => from <= char && char <= to) !== token.negated
}
const fitsName = (segment: Segment, name: string): boolean =>
  segment !== 'deep' && runs(segment, [...name], ({ kind }) => kind === 'any', fitsChar)

/**
 * Whether a path matches: `*` and `?` within a name, `[a-z]`, `**` for any number of names. A
 * pattern without a slash matches the last name.
 */
export const openGlob = (pattern: string): ((path: string) => boolean) => {
  const isName = !pattern.includes('/')
  const segments = pattern
    .split('/')
    .filter((text) => text !== '')
    .map(segmentOf)
  if (isName && segments.length === 1 && segments[0] !== 'deep')
    return (path) => fitsName(segments[0]!, path.slice(path.lastIndexOf('/') + 1))
  return (path) => runs(segments, path.split('/'), (segment) => segment === 'deep', fitsName)
}
