import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { Lane } from '../../src/schedulers/lane.ts'

type Interval = readonly [start: number, end: number]

/** The earliest start by trying `ready` and the end of everything that is on the lane. */
function earliest(busy: readonly Interval[], ready: number, seconds: number, beforeFirst: boolean): number {
  const first = Math.min(...busy.map(([start]) => start))
  const free = (from: number): boolean => busy.every(([start, end]) => from + seconds <= start || from >= end)
  const allowed = (from: number): boolean => beforeFirst || from >= first
  const candidates = [ready, ...busy.map(([, end]) => end)].filter(
    (from) => from >= ready && free(from) && allowed(from),
  )
  return Math.min(...candidates)
}

test('a lane finds the same starts as a look at everything on it, through hundreds of insertions', () => {
  const request = fc.record({
    ready: fc.nat(400),
    seconds: fc.integer({ min: 1, max: 12 }),
    beforeFirst: fc.boolean(),
  })
  fc.assert(
    fc.property(
      fc.integer({ min: 0, max: 300 }),
      fc.array(request, { minLength: 1, maxLength: 250 }),
      (start, requests) => {
        const lane = new Lane(start, start + 3)
        const busy: Interval[] = [[start, start + 3]]
        for (const { ready, seconds, beforeFirst } of requests) {
          const found = lane.earliest(ready, seconds, beforeFirst)
          expect(found).toBe(earliest(busy, ready, seconds, beforeFirst))
          lane.occupy(found, found + seconds)
          busy.push([found, found + seconds])
        }
      },
    ),
    { numRuns: 150, seed: 20261121 },
  )
})

test('a task without duration divides a gap: nothing is later put across it', () => {
  const lane = new Lane(0, 1)
  lane.occupy(10, 11)
  expect(lane.earliest(4, 0, false)).toBe(4)
  lane.occupy(4, 4)
  expect(lane.earliest(1, 5, false)).toBe(4)
  expect(lane.earliest(1, 3, false)).toBe(1)
})
