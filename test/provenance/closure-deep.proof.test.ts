import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { stepsOfChain } from './chain-steps.ts'

let clone: TestDatabase
beforeAll(async () => {
  clone = await cloneDatabase()
})
afterAll(() => clone.drop())

test('a lineage of 100,000 steps is walked', async () => {
  const activities = 50_000
  expect(await stepsOfChain(clone.db, activities)).toBe(2 * activities - 1)
}, 600_000)
