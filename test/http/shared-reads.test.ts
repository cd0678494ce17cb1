import { expect, test } from '@jest/globals'
import { AsyncLocalStorage } from 'node:async_hooks'
import fc from '../support/fast-check.ts'
import { sharedReads } from '../../src/http/shared-reads.ts'

const own = { schema: 'public' }

test('whoever asks gets what was there when he asked or later, never older, however reads and changes interleave', async () => {
  const step = fc.oneof(
    fc.constant('change' as const),
    fc.constant('a reading ends' as const),
    fc.constantFrom('a' as const, 'b' as const),
  )
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 40 }), async (steps) => {
      let state = 0
      const readings: { key: string; end: () => void }[] = []
      const read = sharedReads(own, async (key) => {
        // The oldest that a read may see: what was there when it began.
        const seen = state
        await new Promise<void>((resolve) => readings.push({ key, end: resolve }))
        return { key, seen }
      })
      const answers: Promise<void>[] = []
      const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))
      for (const each of steps) {
        if (each === 'change') state += 1
        else if (each === 'a reading ends') readings.shift()?.end()
        else {
          const before = state
          answers.push(
            read(each).then(({ key, seen }) => {
              expect(key).toBe(each)
              expect(seen).toBeGreaterThanOrEqual(before)
            }),
          )
        }
        await settled()
        expect(new Set(readings.map(({ key }) => key)).size).toBe(readings.length)
      }
      while (readings.length > 0) {
        readings.shift()?.end()
        await settled()
      }
      await Promise.all(answers)
    }),
    { seed: 20260, numRuns: 200 },
  )
})

test('fifty who ask at once cost two reads: the one under way and one for all others', async () => {
  let reads = 0
  const read = sharedReads(own, async (key) => {
    reads += 1
    await new Promise((resolve) => setTimeout(resolve, 5))
    return key
  })
  expect(new Set(await Promise.all(Array.from({ length: 50 }, () => read('x'))))).toEqual(new Set(['x']))
  expect(reads).toBe(2)
  await read('x')
  expect(reads).toBe(3)
})

test('a read that fails fails for those who share it, and the next caller starts anew', async () => {
  let reads = 0
  const read = sharedReads(own, async () => {
    reads += 1
    if (reads <= 2) throw new Error(`read ${String(reads)}`)
    return reads
  })
  const outcomes = await Promise.allSettled([read('x'), read('x'), read('x')])
  expect(
    outcomes.map((outcome) =>
      outcome.status === 'rejected' ? (outcome.reason as Error).message : outcome.value,
    ),
  ).toEqual(['read 1', 'read 2', 'read 2'])
  expect(await read('x')).toBe(3)
})

test('whoever reads an archive shares nothing with readers of equal keys of this installation', async () => {
  const read = new AsyncLocalStorage<string>()
  const db = {
    get schema() {
      return read.getStore() ?? 'public'
    },
  }
  const shared = sharedReads(db, async (key) => {
    const { schema } = db
    await new Promise((resolve) => setImmediate(resolve))
    return `${schema} ${key}`
  })
  // The third reader in flight is the first that waits for a read that another one asked for.
  const schemas = ['public', 'archive_a', 'public', 'archive_b', 'archive_a', 'public', 'archive_a']
  const answers = await Promise.all(schemas.map((schema) => read.run(schema, () => shared('x'))))
  expect(answers).toEqual(schemas.map((schema) => `${schema} x`))
})
