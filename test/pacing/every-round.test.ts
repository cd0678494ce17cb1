import { expect, test } from '@jest/globals'
import { setTimeout as sleep } from 'node:timers/promises'
import { everyRound } from '../../src/pacing/every-round.ts'

/** Longer than a test may last: a stop that waits for a pause fails its test. */
const never = 10 * 60_000
const noFailure = (error: unknown): void => {
  throw error
}

test('a stop during a round waits for the round and for no pause', async () => {
  const steps: string[] = []
  const begun = Promise.withResolvers<undefined>()
  const rounds = everyRound(
    never,
    async (signal) => {
      begun.resolve(undefined)
      await sleep(100)
      steps.push(`round over, aborted ${String(signal.aborted)}`)
    },
    noFailure,
  )
  await begun.promise
  await rounds.stop().then(() => steps.push('stopped'))
  expect(steps).toEqual(['round over, aborted true', 'stopped'])
})

test('a stop during a pause ends it at once, and a second stop is harmless', async () => {
  let count = 0
  const rounds = everyRound(never, () => Promise.resolve(void (count += 1)), noFailure)
  await sleep(20)
  await rounds.stop()
  await rounds.stop()
  expect(count).toBe(1)
})

test('rounds follow each other and never overlap, and a failed one is reported and followed by the next', async () => {
  let inside = 0
  let count = 0
  const failures: unknown[] = []
  const fourth = Promise.withResolvers<undefined>()
  const rounds = everyRound(
    5,
    async () => {
      expect(++inside).toBe(1)
      await sleep(10)
      inside -= 1
      if (++count === 4) fourth.resolve(undefined)
      if (count % 2 === 1) throw new Error(`round ${String(count)}`)
    },
    (error) => failures.push(error),
  )
  await fourth.promise
  await rounds.stop()
  expect(failures).toEqual([new Error('round 1'), new Error('round 3')])
})
