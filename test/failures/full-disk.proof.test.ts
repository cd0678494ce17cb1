import { expect } from '@jest/globals'
import { needs } from '../support/needs.ts'
import { openRecordRounds } from './record-rounds.ts'

const { afterAll, beforeAll, test } = needs('root')

let rounds: Awaited<ReturnType<typeof openRecordRounds>>
beforeAll(async () => {
  rounds = await openRecordRounds({ smallDisk: true })
}, 300_000)
afterAll(() => rounds?.close(), 120_000)

test('what meets a full disk is refused or whole, leaves nothing half, and works once there is room', async () => {
  const violations: string[] = []
  for (let number = 0; number < rounds.deeds; number += 1)
    violations.push(...(await rounds.play(number)).violations)
  expect(violations).toEqual([])
}, 900_000)
