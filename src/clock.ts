/**
 * Seconds since the epoch with microseconds. A result is never earlier than the one before, unless
 * the system's clock is set back.
 *
 * Node gives the time of day in whole milliseconds only, in which a short task can begin before its
 * predecessor in the lane has ended. The steps between two milliseconds come from the monotonic
 * clock, which ignores corrections of the time of day, so each result is kept within the present
 * millisecond of the time of day.
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
    const measured = offset + monotonic()
    const held = Math.min(Math.max(measured, least), least + 0.999)
    offset += held - measured
    // A correction of less than a millisecond repeats the result before; a larger one means that
    // the clock was set back.
    last = held < last && last - held < 1 ? last : held
    return Math.round(last * 1_000) / 1_000_000
  }
}
