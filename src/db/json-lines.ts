/**
 * Rows as JSON objects, made of PostgreSQL's COPY text, and back. `row_to_json` and
 * `json_populate_record` look up every column's type again for every row and take three times as
 * long as COPY itself.
 */

/** What the text of a column is in JSON. */
export type ColumnKind = 'text' | 'number' | 'boolean' | 'json'

export interface LineColumn {
  name: string
  kind: ColumnKind
}

const signs: Record<string, string> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t', v: '\v' }
/** The text of a field that COPY wrote with backslashes. */
const unescaped = (field: string): string =>
  field.includes('\\') ? field.replaceAll(/\\(.)/gs, (_, sign: string) => signs[sign] ?? sign) : field

/** Whether JSON writes a text in another form, or COPY has. */
const isSpecial = (text: string, from: number, to: number): boolean => {
  for (let at = from; at < to; at += 1) {
    const code = text.charCodeAt(at)
    if (code < 0x20 || code === quote || code === backslash) return true
  }
  return false
}
const [quote, backslash, capitalN] = [0x22, 0x5c, 0x4e]

const valueOf = (kind: ColumnKind, text: string, from: number, to: number): string => {
  const field = text.slice(from, to)
  if (kind === 'text') return isSpecial(text, from, to) ? JSON.stringify(unescaped(field)) : `"${field}"`
  if (kind === 'json') return unescaped(field)
  if (kind === 'boolean') return field === 't' ? 'true' : 'false'
  // NaN and the infinities are no numbers of JSON.
  return /^-?\d/.test(field) ? field : `"${field}"`
}

/**
 * Whole lines of COPY text as lines of JSON, equal to those of `row_to_json` but for columns that
 * are null, which are left out. Numbers stay as PostgreSQL wrote them.
 */
export const toJsonLines = (columns: readonly LineColumn[]): ((text: string) => string) => {
  const kinds = columns.map(({ kind }) => kind)
  const keys = columns.map(({ name }) => `${JSON.stringify(name)}:`)
  const last = columns.length - 1
  return (text) => {
    let out = ''
    let from = 0
    while (from < text.length) {
      let between = '{'
      for (let at = 0; at <= last; at += 1) {
        const to = text.indexOf(at === last ? '\n' : '\t', from)
        if (to === -1) throw new Error('a row has fewer columns than its table')
        const isNull =
          to === from + 2 && text.charCodeAt(from) === backslash && text.charCodeAt(from + 1) === capitalN
        if (!isNull) {
          out += between + keys[at]! + valueOf(kinds[at]!, text, from, to)
          between = ','
        }
        from = to + 1
      }
      out += between === '{' ? '{}\n' : '}\n'
    }
    return out
  }
}

const copySigns: Record<string, string> = { '\b': '\\b', '\f': '\\f', '\n': '\\n', '\r': '\\r', '\t': '\\t' }
/** A text as a field of COPY. */
const inCopy = (text: string): string =>
  isSpecial(text, 0, text.length)
    ? text.replaceAll(/[\\\b\f\n\r\t]/g, (sign) => (sign === '\\' ? '\\\\' : copySigns[sign]!))
    : text

/** A list of JSON as PostgreSQL writes an array; lists in it are further dimensions. */
const arrayText = (list: readonly unknown[]): string =>
  `{${list
    .map((item) => {
      if (Array.isArray(item)) return arrayText(item)
      if (item === null) return 'NULL'
      if (typeof item === 'number' && !Number.isSafeInteger(item))
        throw new SyntaxError('a list holds a number that JavaScript would change')
      const text = typeof item === 'string' ? item : JSON.stringify(item)
      return `"${text.replaceAll(/[\\"]/g, '\\$&')}"`
    })
    .join(',')}}`

/** The position behind the closing quote of the JSON text that begins at `from`. */
const textEnd = (line: string, from: number): number => {
  for (let at = line.indexOf('"', from + 1); at !== -1; at = line.indexOf('"', at + 1)) {
    let before = at
    while (line.charCodeAt(before - 1) === backslash) before -= 1
    if ((at - before) % 2 === 0) return at + 1
  }
  throw new SyntaxError('a text has no end')
}

/** The position behind the value of JSON that begins at `from`. PostgreSQL judges the value itself. */
const valueEnd = (line: string, from: number): number => {
  let depth = 0
  for (let at = from; at < line.length;) {
    const sign = line[at]
    if (sign === '"') at = textEnd(line, at)
    else {
      if (depth === 0 && (sign === ',' || sign === '}')) return at
      if (sign === '{' || sign === '[') depth += 1
      if (sign === '}' || sign === ']') depth -= 1
      at += 1
    }
    if (depth === 0 && sign !== undefined && '"}]'.includes(sign)) return at
  }
  throw new SyntaxError('a value has no end')
}

const number = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/

const fieldOf = (kind: ColumnKind | 'other', value: string): string => {
  if (value === 'null') return '\\N'
  if (kind === 'json') return inCopy(value)
  const sign = value[0]
  if (sign === '"') {
    const last = value.length - 1
    return isSpecial(value, 1, last) ? inCopy(JSON.parse(value) as string) : value.slice(1, last)
  }
  if (sign === '[' && kind === 'other') return inCopy(arrayText(JSON.parse(value) as unknown[]))
  if (sign === '[' || sign === '{') return inCopy(JSON.stringify(JSON.parse(value)))
  if (value === 'true' || value === 'false') return value
  if (!number.test(value)) throw new SyntaxError('a value is no JSON')
  return value
}

/**
 * Whole lines of JSON objects as COPY text, the reverse of `toJsonLines`. Columns may come in any
 * order; one that is absent is null.
 * @throws SyntaxError for a line that is no object of these columns
 */
export const toCopyLines = (
  columns: readonly { name: string; kind: ColumnKind | 'other' }[],
): ((text: string) => string) => {
  const keys = columns.map(({ name }) => `${JSON.stringify(name)}:`)
  const places = new Map(columns.map(({ name }, at) => [name, at]))
  const placeAt = (line: string, from: number, expected: number): { place: number; next: number } => {
    for (let place = expected; place < keys.length; place += 1)
      if (line.startsWith(keys[place]!, from)) return { place, next: from + keys[place]!.length }
    const end = line[from] === '"' ? textEnd(line, from) : from
    const name = end === from ? undefined : (JSON.parse(line.slice(from, end)) as string)
    const place = places.get(name ?? '')
    if (name === undefined || line[end] !== ':') throw new SyntaxError('a row is no JSON object')
    if (place === undefined) throw new SyntaxError(`${JSON.stringify(name.slice(0, 100))} is no column`)
    return { place, next: end + 1 }
  }
  const rowOf = (line: string): string => {
    if (line[0] !== '{') throw new SyntaxError('a row is no JSON object')
    const fields = Array<string>(columns.length).fill('\\N')
    let at = line[1] === '}' ? 2 : 0
    let expected = 0
    while (at === 0 || line[at] === ',') {
      const { place, next } = placeAt(line, at === 0 ? 1 : at + 1, expected)
      const end = valueEnd(line, next)
      fields[place] = fieldOf(columns[place]!.kind, line.slice(next, end))
      at = end
      expected = place + 1
      if (line[at] === '}') {
        at += 1
        break
      }
    }
    if (at !== line.length) throw new SyntaxError('a row is no JSON object')
    return fields.join('\t')
  }
  return (text) => {
    const lines = text.split('\n')
    lines.pop()
    return lines.map((line) => `${rowOf(line)}\n`).join('')
  }
}
