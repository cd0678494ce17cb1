/**
 * Seconds since the epoch with microseconds; never earlier than its answer before, unless the system's clock is set back.
 *
 * Node tells the time of day in whole milliseconds only, in which a short task can begin before its predecessor in the lane has ended. The
 * steps between two of them come from the monotonic clock, which knows nothing of corrections of the time of day: each answer is held within
 * the millisecond that the time of day is in.
 */
export const openClock = (
  wall: () => number = Date.now,
  monotonic: () => number = () => performance.now(),
  origin: number = performance.timeOrigin,
): (() => number) => {
  let offset = origin
  let last = 0
  return () => {
    const least = wall()
    const told = offset + monotonic()
    const held = Math.min(Math.max(told, least), least + 0.999)
    offset += held - told
    // Within a millisecond of correction the answer before stands; further back the clock was set.
    last = held < last && last - held < 1 ? last : held
    return Math.round(last * 1_000) / 1_000_000
  }
}
