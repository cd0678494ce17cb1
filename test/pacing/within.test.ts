import { expect, test } from '@jest/globals'
import { orAfter } from '../../src/pacing/within.ts'

test('orAfter gives the result, or the other value where the result takes longer', async () => {
  expect(await orAfter(Promise.resolve('result'), 86_400_000, 'other')).toBe('result')
  await expect(orAfter(Promise.reject(new Error('fault')), 86_400_000, 'other')).rejects.toThrow('fault')
  const slow = Promise.withResolvers<string>()
  expect(await orAfter(slow.promise, 1, 'other')).toBe('other')
  // The gate fails where nothing takes this rejection.
  slow.reject(new Error('too late'))
})
