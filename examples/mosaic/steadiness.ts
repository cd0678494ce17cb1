/** The least and the most passes of a type. */
const leastPasses = 3
export const mostPasses = 7

/**
 * A measurement agrees with the median within this share, or within these seconds: the start of a
 * process varies by as much.
 */
const tolerance = 0.05
const toleranceSeconds = 0.01

export const median = (values: readonly number[]): number => {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = Math.floor(sorted.length / 2)
  const upper = sorted[middle]
  if (upper === undefined) throw new RangeError('the median of no values')
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? upper) + upper) / 2
}

/** Whether the passes suffice: at least three, and three that agree with their median. */
export const isSteady = (passes: readonly number[]): boolean => {
  if (passes.length < leastPasses) return false
  const middle = median(passes)
  const near = Math.max(toleranceSeconds, tolerance * middle)
  return passes.filter((seconds) => Math.abs(seconds - middle) <= near).length >= leastPasses
}
