import { expect, test } from '@jest/globals'
import { openRetries } from '../../src/pacing/retries.ts'
import { until } from '../failures/programs.ts'

const itself = (key: string): string => key

test('what failed waits for its next try, and no other does', () => {
  const retries = openRetries({ firstMs: 86_400_000, longestMs: 86_400_000 })
  retries.failed('bad')
  expect([retries.due(['bad', 'good'], itself), retries.waiting]).toEqual([['good'], 1])
  retries.succeeded('bad')
  expect([retries.due(['bad', 'good'], itself), retries.waiting]).toEqual([['bad', 'good'], 0])
})

test('what is due and does not come again is forgotten, whatever list comes', async () => {
  const retries = openRetries({ firstMs: 1, longestMs: 2 })
  retries.failed('gone')
  await until('the end of its memory', 120, () => {
    retries.due(['another'], itself)
    return retries.waiting === 0
  })
})
