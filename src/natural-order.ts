/** The difference of two runs of digits as numbers, of any length. */
const byValue = (a: string, b: string): number => {
  const [left, right] = [a.replace(/^0+/, ''), b.replace(/^0+/, '')]
  return left.length - right.length || (left < right ? -1 : left > right ? 1 : 0)
}

const partsOf = (text: string): string[] => text.match(/\d+|\D+/g) ?? []

/**
 * Natural order: `core-10` after `core-9`, `1.10` after `1.9`. Texts of equal numbers are ordered by
 * code units, so that every machine yields the same order.
 */
export const naturally = (a: string, b: string): number => {
  const [left, right] = [partsOf(a), partsOf(b)]
  for (const [index, one] of left.entries()) {
    const other = right[index]
    if (other === undefined) return 1
    const difference = /^\d/.test(one) && /^\d/.test(other) ? byValue(one, other) : 0
    if (difference !== 0) return difference
    if (one !== other) return one < other ? -1 : 1
  }
  return left.length - right.length
}
