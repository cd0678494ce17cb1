import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { openRecordRounds } from './record-rounds.ts'

/** One round of each kind; `npx node bench/failures.ts records` plays many. */
let rounds: Awaited<ReturnType<typeof openRecordRounds>>
beforeAll(async () => {
  rounds = await openRecordRounds()
}, 300_000)
afterAll(() => rounds?.close(), 120_000)

test('what is under way when the daemon or PostgreSQL is killed is whole afterwards, or not there', async () => {
  const violations: string[] = []
  for (let number = 0; number < rounds.deeds; number += 1)
    violations.push(...(await rounds.play(number)).violations)
  expect(violations).toEqual([])
}, 900_000)
