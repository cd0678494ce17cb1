/** A time from one moment to another, in seconds from an origin that all of its kind share. */
export interface Span {
  from: number
  to: number
}

/** Seconds of the spans that lie in another span. */
export const secondsIn = (spans: readonly Span[], within: Span): number =>
  spans.reduce(
    (sum, { from, to }) => sum + Math.max(0, Math.min(to, within.to) - Math.max(from, within.from)),
    0,
  )
