import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { LanePool } from '../../src/schedulers/lane-pool.ts'
import { Lane } from '../../src/schedulers/lane.ts'
import { growth } from '../support/growth.ts'
import { proved } from '../support/share.ts'

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

/** The lanes of a pool by a look at everything on all of them, one candidate start after the other. */
const together = (
  pool: readonly (readonly Interval[])[],
  { count, ready, seconds, boot, total }: Record<'count' | 'ready' | 'seconds' | 'boot' | 'total', number>,
) => {
  const search = (length: number, firstUse: boolean): { start: number; lanes: number[] } => {
    const indexes = Array.from({ length: firstUse ? total : pool.length }, (_, index) => index)
    const starts = [ready, ...pool.flat().map(([, end]) => end)].filter((start) => start >= ready)
    for (const start of starts.toSorted((a, b) => a - b)) {
      const free = indexes.filter(
        (index) => index >= pool.length || earliest(pool[index]!, start, length, firstUse) === start,
      )
      if (free.length >= count) return { start, lanes: free.slice(0, count) }
    }
    return { start: Infinity, lanes: [] }
  }
  const warm = search(seconds, false)
  const cold = search(seconds + boot, true)
  return boot > 0 && warm.start + seconds <= cold.start + seconds + boot ? warm : cold
}

test('a pool finds the same lanes as a look at everything on all of them, however many there are', () => {
  const request = fc.record({
    count: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 6 }), fc.integer({ min: 30, max: 60 })),
    ready: fc.nat(60),
    seconds: fc.integer({ min: 1, max: 9 }),
    boot: fc.constantFrom(0, 0, 3),
  })
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 90 }), fc.array(request, { maxLength: 120 }), (total, requests) => {
      const pool = new LanePool(total)
      const busy: Interval[][] = []
      for (const each of requests) {
        if (each.count > total) continue
        const { count, ready, seconds, boot } = each
        pool.find(count, ready, seconds, boot)
        const expected = together(busy, { ...each, total })
        expect(pool.start).toBe(expected.start)
        const lanes = pool.take()
        expect(lanes).toEqual(expected.lanes)
        for (const lane of lanes) (busy[lane] ??= []).push([pool.start, pool.finish])
      }
    }),
    { numRuns: 100, seed: 20261126 },
  )
})

proved.each([
  ['one lane each', 1, false],
  ['three lanes each', 3, false],
  ['one lane each, the longest first and then the shorter ones on all lanes', 1, true],
])('tasks of %s take about proportional time on as many lanes', async (_, count, falling) => {
  const place = (n: number): void => {
    const pool = new LanePool(n)
    for (let task = 0; task < 2 * n; task++) {
      pool.find(count, 0, falling ? 3 * n - task : 5, 0)
      pool.take()
    }
  }
  expect(await growth(place, 1_500)).toBeLessThan(1.6)
})
