/** How a column is aligned: names to the left, numbers to the right. */
export type Alignment = 'left' | 'right'

/** A heading over the columns from `first` to `last`. */
export interface Span {
  first: number
  last: number
  text: string
}

/** Rows of text as aligned lines, two blanks apart; an empty row is a rule. Spans make a line of their own above. */
export const table = (alignments: readonly Alignment[], rows: readonly (readonly string[])[], spans: readonly Span[] = []): string[] => {
  const widths = alignments.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)))
  const lines = rows.map((row) => {
    if (row.length === 0) return widths.map((width) => '─'.repeat(width)).join('  ')
    const cells = alignments.map((alignment, column) => {
      const [cell, width] = [row[column] ?? '', widths[column] ?? 0]
      return alignment === 'left' ? cell.padEnd(width) : cell.padStart(width)
    })
    return cells.join('  ').trimEnd()
  })
  return spans.length === 0 ? lines : [spanLine(widths, spans), ...lines]
}

/** Each text in the middle of its columns, between lines. */
const spanLine = (widths: readonly number[], spans: readonly Span[]): string => {
  const startOf = (column: number): number => widths.slice(0, column).reduce((sum, width) => sum + width + 2, 0)
  let line = ''
  for (const { first, last, text } of spans) {
    const length = startOf(last + 1) - 2 - startOf(first)
    const before = Math.floor((length - text.length - 2) / 2)
    line = line.padEnd(startOf(first)) + ` ${text} `.padStart(text.length + 2 + before, '─').padEnd(length, '─')
  }
  return line
}
