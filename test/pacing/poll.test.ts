import { expect, test } from '@jest/globals'
import { openBackoff } from '../../src/pacing/backoff.ts'
import { poll } from '../../src/pacing/poll.ts'

test('it asks at once and gives the first answer, false and empty ones as well', async () => {
  let asked = 0
  expect(await poll(() => (++asked === 3 ? false : undefined), { everyMs: 1 })).toBe(false)
  expect(asked).toBe(3)
  expect(await poll(() => '', { everyMs: 60_000 })).toBe('')
})

test('the last question is asked at the deadline, which cuts the pause', async () => {
  let asked = 0
  expect(await poll(() => void asked++, { everyMs: 86_400_000, deadlineMs: 50 })).toBeUndefined()
  expect(asked).toBe(2)
})

test('without time left it asks once', async () => {
  let asked = 0
  expect(await poll(() => void asked++, { everyMs: 1, deadlineMs: 0 })).toBeUndefined()
  expect(asked).toBe(1)
})

test('an abort ends a pause, and no question follows', async () => {
  const stopping = new AbortController()
  let asked = 0
  const polled = poll(() => void asked++, { everyMs: 60_000, signal: stopping.signal })
  setTimeout(() => stopping.abort(), 10)
  expect(await polled).toBeUndefined()
  expect(asked).toBe(1)
})

test('pauses may grow, and what a question rejects with ends the poll', async () => {
  const pauses: number[] = []
  const backoff = openBackoff({ firstMs: 1, longestMs: 4 })
  const everyMs = {
    next: (): number => {
      const pause = backoff.next()
      pauses.push(pause)
      return pause
    },
  }
  let asked = 0
  const failing = poll(() => (++asked === 5 ? Promise.reject(new Error('no such thing')) : undefined), {
    everyMs,
  })
  await expect(failing).rejects.toThrow('no such thing')
  expect(pauses).toEqual([1, 2, 4, 4])
})

test('the first question may come after a pause, whose length each pause is asked for; an abort in it asks nothing', async () => {
  const pauses = [30, 1, 1]
  const begun = performance.now()
  const asked: number[] = []
  const ask = (): number | undefined => {
    asked.push(performance.now() - begun)
    return asked.length === 3 ? 7 : undefined
  }
  expect(await poll(ask, { everyMs: { next: () => pauses.shift() ?? 0 }, pausesFirst: true })).toBe(7)
  expect([asked.length, asked[0]! >= 29, pauses.length]).toEqual([3, true, 0])
  const none = { everyMs: 10_000, pausesFirst: true, signal: AbortSignal.timeout(20) }
  expect(await poll(() => 1, none)).toBeUndefined()
  expect(await poll(() => 1, { everyMs: 10, deadlineMs: 0, pausesFirst: true })).toBe(1)
})
