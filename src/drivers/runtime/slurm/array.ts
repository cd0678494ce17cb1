/**
 * Indexes of an array in Slurm's form: `0-3,7`, with step (`0-8:4`) and limit (`0-3%2`); not
 * sorted, not checked for doubles.
 */
export const parseIndexes = (text: string): number[] => {
  const [list = ''] = text.replace(/^\[|\]$/g, '').split('%')
  return list.split(',').flatMap((part) => {
    const range = /^(\d+)(?:-(\d+)(?::(\d+))?)?$/.exec(part)
    if (range === null) return []
    const [first, step] = [Number(range[1]), Number(range[3] ?? 1)]
    const last = Number(range[2] ?? first)
    if (step < 1 || last < first) return []
    return Array.from(
      { length: Math.floor((last - first) / step) + 1 },
      (_, position) => first + position * step,
    )
  })
}

/** The shortest list for `--array` and `scancel`: `0-3,7`. */
export const renderIndexes = (indexes: Iterable<number>): string => {
  const ranges: [first: number, last: number][] = []
  for (const index of [...new Set(indexes)].sort((a, b) => a - b)) {
    const open = ranges.at(-1)
    if (open !== undefined && open[1] === index - 1) open[1] = index
    else ranges.push([index, index])
  }
  return ranges.map(([first, last]) => (first === last ? String(first) : `${first}-${last}`)).join(',')
}
