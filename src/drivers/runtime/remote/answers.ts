/** Parts of at most `most` items and, by `size`, about `bytes` bytes. */
export function* chunks<T>(
  items: readonly T[],
  most: number,
  size: (item: T) => number = () => 0,
  bytes = Infinity,
): Generator<T[]> {
  let chunk: T[] = []
  let sum = 0
  for (const item of items) {
    const own = size(item)
    if (chunk.length > 0 && (chunk.length >= most || sum + own > bytes)) {
      yield chunk
      chunk = []
      sum = 0
    }
    chunk.push(item)
    sum += own
  }
  if (chunk.length > 0) yield chunk
}

/**
 * The parts of an answer between its boundaries. Each boundary is made for this answer alone, so
 * that no quoted text can contain it.
 */
export function parts(stdout: Buffer, boundary: string): { label: string; bytes: Buffer }[] {
  const mark = Buffer.from(`\n${boundary} `)
  const found: { label: string; bytes: Buffer }[] = []
  let at = stdout.indexOf(mark)
  while (at !== -1) {
    const labelEnd = stdout.indexOf('\n', at + mark.length)
    const next = stdout.indexOf(mark, labelEnd)
    found.push({
      label: stdout.subarray(at + mark.length, labelEnd).toString(),
      bytes: stdout.subarray(labelEnd + 1, next === -1 ? stdout.length : next),
    })
    at = next
  }
  return found
}
