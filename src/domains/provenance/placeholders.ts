import { invalid } from '../../refusal.ts'

/**
 * A statement cut at its placeholders: `pieces[i]` precedes placeholder `i`, and the last piece
 * follows all of them. Comments are removed.
 */
export interface Cut {
  pieces: readonly Piece[]
}

interface Piece {
  /** Parts of the statement as the client sent them. A space replaces the comments between them. */
  parts: { text: string; at: number }[]
}

const startsName = /[A-Za-z_\u0080-\uffff]/
const inName = /[\w$\u0080-\uffff]/
const tag = /\$(?:[A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*)?\$/y

/**
 * The position after the closing quote of a quoted text. Without a closing quote it is the end of
 * the text, which the parser refuses.
 */
const quotedEnd = (text: string, from: number, quote: string, backslash: boolean): number => {
  for (let i = from + 1; i < text.length; i++) {
    if (backslash && text[i] === '\\') i++
    else if (text[i] === quote) {
      if (text[i + 1] !== quote) return i + 1
      i++
    }
  }
  return text.length
}

/** Comments nest in PostgreSQL. */
const commentEnd = (text: string, from: number): number => {
  let depth = 1
  for (let i = from + 2; i < text.length; i++) {
    if (text.startsWith('/*', i)) {
      depth++
      i++
    } else if (text.startsWith('*/', i)) {
      depth--
      i++
      if (depth === 0) return i + 1
    }
  }
  throw invalid('statement: a comment has no end', [
    { path: 'statement', message: `the comment at character ${String(from + 1)} has no end` },
  ])
}

const nameEnd = (text: string, from: number): number => {
  let i = from + 1
  while (i < text.length && inName.test(text[i] as string)) i++
  return i
}

/** The end of a dollar-quoted text that begins at `from`, or undefined where none begins. */
const dollarEnd = (text: string, from: number): number | undefined => {
  tag.lastIndex = from
  const mark = tag.exec(text)?.[0]
  if (mark === undefined) return undefined
  const end = text.indexOf(mark, from + mark.length)
  return end === -1 ? text.length : end + mark.length
}

/**
 * Cuts a statement at its placeholders `?`; `??` is the operator `?`. Texts, names and comments are
 * not searched.
 * @throws Refusal `invalid` for a placeholder `$n` or a comment without end
 */
export const cutAtPlaceholders = (text: string): Cut => {
  const pieces: Piece[] = [{ parts: [] }]
  let from = 0
  const keep = (to: number): void => {
    if (to > from) pieces.at(-1)?.parts.push({ text: text.slice(from, to), at: from })
  }
  for (let i = 0; i < text.length;) {
    const sign = text[i] as string
    if (sign === "'" || sign === '"') i = quotedEnd(text, i, sign, false)
    else if (startsName.test(sign)) {
      const end = nameEnd(text, i)
      i = /^e$/i.test(text.slice(i, end)) && text[end] === "'" ? quotedEnd(text, end, "'", true) : end
    } else if (text.startsWith('--', i) || text.startsWith('/*', i)) {
      keep(i)
      pieces.at(-1)?.parts.push({ text: ' ', at: i })
      const line = text.indexOf('\n', i)
      i = sign === '/' ? commentEnd(text, i) : line === -1 ? text.length : line
      from = i
    } else if (sign === '$') {
      const end = dollarEnd(text, i)
      if (end === undefined && /\d/.test(text[i + 1] ?? ''))
        throw invalid('statement: placeholders are ?, not $n; write ? for each value', [
          { path: 'statement', message: `has $${text[i + 1] ?? ''} at character ${String(i + 1)}` },
        ])
      i = end ?? i + 1
    } else if (sign === '?') {
      keep(i)
      if (text[i + 1] === '?') {
        pieces.at(-1)?.parts.push({ text: '?', at: i })
        i += 2
      } else {
        pieces.push({ parts: [] })
        i++
      }
      from = i
    } else i++
  }
  keep(text.length)
  return { pieces }
}

/**
 * The statement with a text in place of each placeholder, between spaces so that it joins no
 * neighbour. `placeOf` maps back to a position in the client's text.
 */
export const fill = (
  cut: Cut,
  values: readonly string[],
): { text: string; placeOf: (character: number) => number } => {
  let text = ''
  const starts: { out: number; at: number; length: number }[] = []
  cut.pieces.forEach((piece, i) => {
    for (const part of piece.parts) {
      starts.push({ out: text.length, at: part.at, length: part.text.length })
      text += part.text
    }
    if (i < cut.pieces.length - 1) text += ` ${values[i] ?? ''} `
  })
  return {
    // Trailing spaces and semicolons are not part of the statement.
    text: text.replace(/[\s;]+$/, ''),
    placeOf(character) {
      const index = [...text].slice(0, character - 1).join('').length
      const part = starts.findLast(({ out }) => out <= index)
      return part === undefined ? 1 : part.at + Math.min(index - part.out, part.length) + 1
    },
  }
}
