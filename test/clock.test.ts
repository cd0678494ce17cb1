import { expect, test } from '@jest/globals'
import { openClock } from '../src/clock.ts'

/**
 * A clock over times that the test sets: the time of day is cut to milliseconds, as Node cuts it.
 */
const clockOver = (true_: { ms: number; monotonic: number }, origin = 0) =>
  openClock(
    () => Math.floor(true_.ms),
    () => true_.monotonic,
    origin,
  )

test('the clock tells microseconds between the milliseconds of the time of day', () => {
  const now = { ms: 1_000.25, monotonic: 0.25 }
  const clock = clockOver(now, 1_000)
  expect(clock()).toBe(1.00025)
  Object.assign(now, { ms: 1_000.75, monotonic: 0.75 })
  expect(clock()).toBe(1.00075)
})

test('it follows corrections of the time of day, within a millisecond, and never goes back without one', () => {
  const now = { ms: 1_000, monotonic: 0 }
  const clock = clockOver(now, 1_000)
  let before = clock()
  // The time of day runs faster by half a thousandth.
  for (let step = 0; step < 5_000; step++) {
    now.monotonic += 0.37
    now.ms += 0.37 * 1.0005
    const told = clock()
    expect(Math.abs(told * 1_000 - now.ms)).toBeLessThan(1)
    expect(told).toBeGreaterThanOrEqual(before)
    before = told
  }
  now.ms -= 3_600_000
  expect(Math.abs(clock() * 1_000 - now.ms)).toBeLessThan(1)
})
