import { expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import fc from '../support/fast-check.ts'
import { gunzipSync } from 'node:zlib'
import { gzipped } from '../../src/domains/storages/gzip.ts'

/** Compression on several processors, read by zlib and by GNU gzip. */

async function* partsOf(bytes: Buffer, sizes: readonly number[]): AsyncGenerator<Buffer> {
  let at = 0
  for (let n = 0; at < bytes.length; n += 1) {
    const part = bytes.subarray(at, at + (sizes[n % sizes.length] ?? 1))
    at += part.length
    await Promise.resolve()
    yield part
  }
}
const gzipOf = async (bytes: Buffer, sizes: readonly number[] = [65_536]): Promise<Buffer> => {
  const parts: Buffer[] = []
  for await (const part of gzipped(partsOf(bytes, sizes))) parts.push(part)
  return Buffer.concat(parts)
}
const large = Buffer.concat([
  Buffer.alloc(1_500_000, 'a text that comes again, and again; '),
  randomBytes(1_200_000),
  Buffer.alloc(900_000),
])

test('any bytes come back, and the same bytes give the same file however they arrive', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 0, max: large.length }),
      fc.integer({ min: 0, max: large.length }),
      fc.array(fc.integer({ min: 1, max: 2_000_000 }), { minLength: 1, maxLength: 5 }),
      async (from, length, sizes) => {
        const bytes = large.subarray(from, from + length)
        const file = await gzipOf(bytes, sizes)
        expect(gunzipSync(file).equals(bytes)).toBe(true)
        expect(file.equals(await gzipOf(bytes))).toBe(true)
      },
    ),
    { numRuns: 25 },
  )
})

test('GNU gzip reads it, and its size is that of GNU gzip within 5 %', async () => {
  const file = await gzipOf(large)
  expect(execFileSync('gzip', ['-dc'], { input: file, maxBuffer: 2 ** 30 }).equals(large)).toBe(true)
  const theirs = execFileSync('gzip', ['-c'], { input: large, maxBuffer: 2 ** 30 })
  expect(file.length).toBeLessThan(theirs.length * 1.05)
})

test('an error of the source ends it', async () => {
  async function* broken(): AsyncGenerator<Buffer> {
    yield large
    await Promise.resolve()
    throw new Error('the source is gone')
  }
  const read = async (): Promise<void> => {
    for await (const part of gzipped(broken())) expect(part).toBeDefined()
  }
  await expect(read()).rejects.toThrow('the source is gone')
})
