/** How a column is aligned: names to the left, numbers to the right. */
export type Alignment = 'left' | 'right'

/** A terminal of 80 columns without the margin of `screen.ts`. */
const widest = 74
const gap = '  '

/**
 * Rows of text as aligned lines, two blanks apart; an empty row is a rule. No line is wider than 74
 * columns while the columns after the first leave it 8. A longer first cell has its own line, above
 * the rest of its row.
 */
export const table = (alignments: readonly Alignment[], rows: readonly (readonly string[])[]): string[] => {
  const widths = alignments.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)))
  const others = widths.slice(1).reduce((sum, width) => sum + gap.length + width, 0)
  widths[0] = Math.min(widths[0] ?? 0, Math.max(8, widest - others))
  const cellsOf = (row: readonly string[]): string =>
    alignments
      .map((alignment, column) => {
        const [cell, width] = [row[column] ?? '', widths[column] ?? 0]
        return alignment === 'left' ? cell.padEnd(width) : cell.padStart(width)
      })
      .join(gap)
      .trimEnd()
  return rows.flatMap((row) => {
    if (row.length === 0) return widths.map((width) => '─'.repeat(width)).join(gap)
    const [first = '', ...rest] = row
    return first.length > (widths[0] ?? 0) ? [first, cellsOf(['', ...rest])] : cellsOf(row)
  })
}
