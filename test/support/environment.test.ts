import { expect, test } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { brotliDecompressSync } from 'node:zlib'
import { printableMessage } from '../../src/clients/ssh/printable.ts'

/** The error of a call, as the caller's `catch` receives it. */
const thrown = (call: () => unknown): unknown => {
  try {
    call()
    return undefined
  } catch (error) {
    return error
  }
}

class Own extends Error {}

test('an error that Node makes is an Error here, as it is in the service', async () => {
  const missing = thrown(() => readFileSync('/is/not/there'))
  const broken = thrown(() => brotliDecompressSync(Buffer.from('no brotli')))
  const wrongType = thrown(() => readFileSync({} as never))
  const refused = await new Promise((resolve) => connect(1, '127.0.0.1').once('error', resolve))
  for (const error of [missing, broken, wrongType, refused]) expect(error instanceof Error).toBe(true)
  expect(wrongType instanceof TypeError).toBe(true)
  expect(missing instanceof TypeError).toBe(false)
  expect(missing instanceof Own).toBe(false)
})

test('errors of this context and of classes of our own are told apart as usual', () => {
  expect(new Own('x') instanceof Error).toBe(true)
  expect(new Own('x') instanceof Own).toBe(true)
  expect(new Error('x') instanceof Own).toBe(false)
  expect(new RangeError('x') instanceof TypeError).toBe(false)
  expect({ message: 'x', stack: 'y' } instanceof Error).toBe(false)
})

test('code under test takes an error of Node for what it is', () => {
  expect(printableMessage(thrown(() => readFileSync('/is/not/there')))).toBe(
    "ENOENT: no such file or directory, open '/is/not/there'",
  )
})
