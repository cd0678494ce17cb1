import {
  Lexer,
  LineCounter,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  parseDocument,
  type Document,
  type Node as YamlNode,
} from 'yaml'
import { append } from '../lists.ts'
import type { Problem } from '../refusal.ts'
import { isFields } from '../json-object.ts'

/**
 * Bounds of a YAML document. A document beyond one of them is refused before it costs memory or
 * time.
 */
export const yamlBounds = {
  /** Nested collections. */
  depth: 100,
  /** Expanded aliases, those inside other aliases included. */
  aliases: 100,
  /**
   * Lexical tokens: about 5 a line. Each costs the library some 250 bytes and more than a
   * microsecond.
   */
  tokens: 2_000_000,
  /** Characters of one quoted text: the library joins it character by character. */
  quoted: 4_194_304,
  /** Values after expansion. */
  values: 1_000_000,
  /**
   * Characters of all values, keys, findings and paths with a line, after expansion: twice those of
   * the largest body. A copy for another thread holds the text of an alias once for each use.
   */
  characters: 67_108_864,
} as const

const nested = `it is nested deeper than ${yamlBounds.depth} levels`

/**
 * Counts tokens and open collections without building any value: the library's parser recurses, and
 * a file of 10^5 brackets would overflow its stack. The start columns of entries show the block
 * collections. The estimate may be up to twice the true depth or half of it, so its bound is wide,
 * and the exact bound is checked on the values.
 */
const scan = (text: string): string | undefined => {
  const columns: number[] = []
  let tokens = 0
  let flow = 0
  let column = 0
  let entryStart = true
  for (const token of new Lexer().lex(text)) {
    if (++tokens > yamlBounds.tokens)
      return `it has more than ${yamlBounds.tokens} tokens; send a document of this size as JSON`
    const first = token.charCodeAt(0)
    if (token.length > yamlBounds.quoted && (first === 0x22 || first === 0x27))
      return `it has a quoted text of more than ${yamlBounds.quoted} characters; send it as JSON`
    if (first < 0x20 && first !== 0x0a && first !== 0x0d && first !== 0x09) continue
    if (token === '[' || token === '{') flow++
    else if (token === ']' || token === '}') flow = Math.max(0, flow - 1)
    const blank = /^[\s]*$/.test(token.length < 64 ? token : 'x')
    if (flow === 0 && entryStart && !blank) {
      while ((columns.at(-1) ?? -1) > column) columns.pop()
      if ((columns.at(-1) ?? -1) < column) columns.push(column)
    }
    if (columns.length + flow > 2 * yamlBounds.depth) return nested
    const newline = token.lastIndexOf('\n')
    column = newline === -1 ? column + token.length : token.length - newline - 1
    entryStart = newline !== -1 || token === '-' || token === '?' || token === ':' || (blank && entryStart)
  }
  return undefined
}

const lineOf = (text: string, offset: number): string => {
  const before = text.slice(0, offset)
  return `line ${before.split('\n').length}, column ${offset - before.lastIndexOf('\n')}`
}

export interface ParsedYaml {
  value: unknown
  problems: Problem[]
  /** The line of each key and item by its dotted path, where the caller requested it. */
  lines?: ReadonlyMap<string, number>
}

/**
 * The single document of a YAML 1.2 text as plain data. Findings (syntax, custom tags, duplicate
 * keys, a second document, one of the bounds) are in `problems` with the path or the line, and make
 * the value meaningless. An integer beyond 2^53-1 becomes a bigint.
 *
 * This code builds the values instead of the library's `toJS`, for three reasons: its check for
 * duplicate keys is quadratic, its aliases are shared objects, and it counts aliases per anchor,
 * not in total.
 */
export const parseYaml = (text: string, options: { lines?: boolean } = {}): ParsedYaml => {
  const bound = scan(text)
  if (bound !== undefined) return { value: undefined, problems: [{ path: '', message: bound }] }
  const problems: Problem[] = []
  const counter = new LineCounter()
  const document = parseDocument(text, {
    ...(options.lines === true ? { lineCounter: counter } : {}),
    uniqueKeys: false,
    prettyErrors: false,
    intAsBigInt: true,
    resolveKnownTags: false,
    logLevel: 'error',
    merge: false,
  })
  for (const fault of [...document.errors, ...document.warnings].slice(0, 20)) {
    problems.push({
      path: '',
      message: `${lineOf(text, fault.pos[0])}: ${fault.message.split('\n')[0] ?? fault.code}`,
    })
  }
  if (options.lines !== true)
    return { value: problems.length > 0 ? undefined : valueOf(document, problems), problems }
  const lines = new Map<string, number>()
  const note = (path: string, offset: number) => lines.set(path, counter.linePos(offset).line)
  return { value: problems.length > 0 ? undefined : valueOf(document, problems, note), problems, lines }
}

class BoundReached extends Error {}

/**
 * Whether a key merges the keys of another map: `<<` without quotes. In quotes it is an ordinary
 * key.
 */
const isMergeKey = (key: unknown): boolean => isScalar(key) && key.value === '<<' && key.type === 'PLAIN'

/**
 * Plain assignment to `__proto__` would set the prototype. As an own property the key is found and
 * refused with the others.
 */
const setOwn = (object: Record<string, unknown>, key: string, value: unknown): void => {
  if (key === '__proto__')
    Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true })
  else object[key] = value
}

const valueOf = (
  document: Document,
  problems: Problem[],
  note?: (path: string, offset: number) => unknown,
): unknown => {
  let aliases = 0
  let values = 0
  let characters = 0
  const anchors = new Map<string, YamlNode>()

  const count = (...texts: string[]): void => {
    for (const { length } of texts) characters += length
    if (characters > yamlBounds.characters)
      throw new BoundReached(
        `it has more than ${yamlBounds.characters} characters where aliases are replaced by what they name; ` +
          'shorten its texts and keys, or use fewer aliases',
      )
  }

  const report = (path: string, message: string): void => {
    count(path, message)
    problems.push({ path, message })
  }

  const noteLine = (path: string, start: number | undefined): void => {
    if (note === undefined || start === undefined) return
    count(path)
    note(path, start)
  }

  const scalar = (value: unknown): unknown => {
    if (typeof value === 'string') count(value)
    if (typeof value !== 'bigint') return value
    const number = Number(value)
    return Number.isSafeInteger(number) ? number : value
  }

  const keyText = (key: unknown, path: string): string | undefined => {
    const target = isAlias(key) ? anchors.get(key.source) : key
    const value = isScalar(target) ? target.value : target
    if (
      typeof value === 'string' ||
      typeof value === 'number' ||
      typeof value === 'bigint' ||
      typeof value === 'boolean'
    )
      return String(value)
    if (value === null) return 'null'
    report(path, 'a collection cannot be a key')
    return undefined
  }

  /** The maps of a merge key: one, or several of which the earlier one has precedence. */
  const mergedMaps = (value: unknown, path: string): Record<string, unknown>[] => {
    const maps: unknown[] = Array.isArray(value) ? value : [value]
    if (maps.every(isFields)) return maps
    report(path, 'a merge key takes a map or a list of maps')
    return []
  }

  const convert = (item: unknown, path: string, depth: number): unknown => {
    if (++values > yamlBounds.values) throw new BoundReached(`it has more than ${yamlBounds.values} values`)
    if (depth > yamlBounds.depth) throw new BoundReached(nested)
    if (isAlias(item)) {
      if (++aliases > yamlBounds.aliases)
        throw new BoundReached(`its aliases expand more than ${yamlBounds.aliases} times`)
      const target = anchors.get(item.source)
      if (target !== undefined) return convert(target, path, depth)
      report(path, `alias *${item.source} names no anchor before it`)
      return undefined
    }
    if (isScalar(item)) {
      if (item.anchor !== undefined) anchors.set(item.anchor, item)
      return scalar(item.value)
    }
    if (isSeq(item)) {
      if (item.anchor !== undefined) anchors.set(item.anchor, item)
      return item.items.map((child, index) => {
        const at = `${path}${path === '' ? '' : '.'}${index}`
        noteLine(at, (child as YamlNode | null)?.range?.[0])
        return convert(child, at, depth + 1)
      })
    }
    if (isMap(item)) {
      if (item.anchor !== undefined) anchors.set(item.anchor, item)
      const seen = new Set<string>()
      const result: Record<string, unknown> = {}
      const merged: Record<string, unknown>[] = []
      for (const pair of item.items) {
        if (isScalar(pair.key) && pair.key.anchor !== undefined) anchors.set(pair.key.anchor, pair.key)
        const key = keyText(pair.key, path)
        if (key === undefined) continue
        count(key)
        const at = path === '' ? key : `${path}.${key}`
        noteLine(at, (pair.key as YamlNode | null)?.range?.[0])
        if (seen.has(key)) report(at, `key ${JSON.stringify(key)} is given twice`)
        seen.add(key)
        const value = convert(pair.value, at, depth + 1)
        if (isMergeKey(pair.key)) append(merged, mergedMaps(value, at))
        else setOwn(result, key, value)
      }
      for (const fields of merged)
        for (const [key, value] of Object.entries(fields))
          if (!Object.hasOwn(result, key)) setOwn(result, key, value)
      return result
    }
    return null
  }

  try {
    return convert(document.contents, '', 0)
  } catch (error) {
    if (!(error instanceof BoundReached)) throw error
    problems.push({ path: '', message: error.message })
    return undefined
  }
}
