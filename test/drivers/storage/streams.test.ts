import { expect, test } from '@jest/globals'
import { Readable } from 'node:stream'
import { behind } from '../../../src/drivers/storage/continued.ts'
import { streamDigest } from '../../../src/drivers/storage/streams.ts'

test.each([
  ['with an error', new Error('gone'), 'gone'],
  ['without one', undefined, 'was closed before it was read'],
])('a stream that broke before it is passed on fails its reader: %s', async (_, error, message) => {
  const source = Readable.from(['some bytes'])
  source.on('error', () => undefined).destroy(error)
  await new Promise((closes) => source.once('close', closes))
  await expect(streamDigest(behind(source, 2))).rejects.toThrow(message)
})

test('a stream that was read to its end before it is passed on is empty', async () => {
  const source = Readable.from([])
  await streamDigest(source)
  expect(await streamDigest(behind(source, 2))).toBe(await streamDigest(Readable.from([])))
})
