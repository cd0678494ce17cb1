/**
 * The way of text from outside (programs, servers, systems) into records, reasons and events.
 */

/**
 * The text of outside bytes as PostgreSQL, JSON and every reader take it: invalid UTF-8, NUL and lone
 * surrogates become U+FFFD. Everything else stays, escape sequences too.
 */
export const outsideText = (bytes: Uint8Array | string): string =>
  (typeof bytes === 'string' ? bytes.toWellFormed() : Buffer.from(bytes).toString()).replaceAll(
    '\0',
    '\ufffd',
  )

/** A reason keeps at most so much of a text. */
export interface ReasonLimits {
  /** The last so many lines; absent: 20. */
  lines?: number
  /** The last so many characters (code points); absent: 4096. */
  characters?: number
}

/** A text is looked at from its end; more than this is never read, whatever its length. */
const mostRead = 64 * 1024

/** One step of a terminal: a sequence that begins with ESC, or one character. */
const steps =
  // oxlint-disable-next-line no-control-regex
  /\u001b\[([0-?]*)[ -/]*([@-~])?|\u001b[PX\]^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[ -/]*[0-~]?|[^]/gu

/** Controls, marks that reorder text around them, and the byte order mark. Tabulators are text. */
// oxlint-disable-next-line no-control-regex
const withoutGlyph = /^[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff]/

/** A line as a terminal shows it at its end: what was written over is gone. */
const shownLine = (line: string): string => {
  const cells: string[] = []
  let column = 0
  for (const [step, parameter = '', command] of line.matchAll(steps)) {
    if (command === 'K') {
      if (parameter === '' || parameter === '0') cells.length = Math.min(cells.length, column)
      else if (parameter === '2') cells.length = 0
      else cells.fill(' ', 0, column + 1)
    } else if (command === 'G') column = Math.max(0, Math.min(Number(parameter || 1) || 1, mostRead) - 1)
    else if (step === '\r') column = 0
    else if (step === '\b') column = Math.max(0, column - 1)
    else if (!withoutGlyph.test(step)) {
      while (cells.length < column) cells.push(' ')
      cells[column++] = step
    }
  }
  return cells.join('')
}

/** The bytes without a beginning that is the rest of a character. */
const fromCharacter = (bytes: Uint8Array): Uint8Array => {
  let at = 0
  while (at < 3 && at < bytes.length && ((bytes[at] ?? 0) & 0xc0) === 0x80) at++
  return bytes.subarray(at)
}

/**
 * The end of a program's output or of a server's message, for a reason: `outsideText` of its last
 * lines as a terminal shows them (carriage returns and backspaces write over, escape sequences and
 * other controls are gone). Cut at characters; empty where nothing is to be seen.
 */
export const reasonText = (
  bytes: Uint8Array | string,
  { lines = 20, characters = 4_096 }: ReasonLimits = {},
): string => {
  const end = typeof bytes === 'string' ? bytes.slice(-mostRead) : fromCharacter(bytes.subarray(-mostRead))
  const cut = end.length < bytes.length && typeof end === 'string' ? end.replace(/^[\udc00-\udfff]/, '') : end
  const shown = outsideText(cut).split('\n').map(shownLine).join('\n').trimEnd()
  const last = [...shown.split('\n').slice(-lines).join('\n').trim()]
  return last.length <= characters ? last.join('') : `…${last.slice(1 - characters).join('')}`
}

/** What JSON writes for NUL and for lone surrogates; after a backslash it may be plain text. */
const unstorable = /\\u(?:0000|d[89a-f])/

/**
 * JSON that PostgreSQL takes into `jsonb`, whatever characters its texts and keys hold: the last
 * line of defence for texts that came in another way than through `outsideText`.
 */
export const storableJson = (value: unknown): string => {
  const json = JSON.stringify(value)
  return unstorable.test(json) ? JSON.stringify(storable(JSON.parse(json))) : json
}

/** A parameter that PostgreSQL takes, by the same rule: texts and lists of texts lose NUL. */
export const storableParameter = (value: unknown): unknown => {
  if (typeof value === 'string') return value.includes('\0') ? outsideText(value) : value
  return Array.isArray(value) ? value.map(storableParameter) : value
}

const storable = (value: unknown): unknown => {
  if (typeof value === 'string') return outsideText(value)
  if (Array.isArray(value)) return value.map(storable)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [outsideText(key), storable(item)]))
}
