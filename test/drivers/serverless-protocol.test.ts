import { expect, test } from '@jest/globals'
import { readAnswer } from '../../src/drivers/runtime/serverless/protocol.ts'

const answer = { schemaVersion: 1, name: 'call', exitCode: 0, startedAt: 1, finishedAt: 2 }
const output = { sizeBytes: 1, sha256: '0'.repeat(64), contentBase64: 'eA==' }
const read = (more: Record<string, unknown>) =>
  readAnswer('call', Buffer.from(JSON.stringify({ ...answer, ...more })))

test.each([
  ['exitCode', { exitCode: 3_221_225_477 }],
  ['exitCode', { exitCode: 256 }],
  ['exitCode', { exitCode: -1 }],
  ['exitCode', { exitCode: 1.5 }],
  ['peakMemoryBytes', { peakMemoryBytes: 1e300 }],
  ['outputs.0.path', { outputs: [{ ...output, path: `a/${'x'.repeat(256)}` }] }],
  ['outputs.0.path', { outputs: [{ ...output, path: 'a\ud800' }] }],
  ['outputs.0.path', { outputs: [{ ...output, path: 'a\0' }] }],
])('an answer against the protocol is refused, naming the member: %s', (member, more) => {
  expect(() => read(more)).toThrow(
    expect.objectContaining({
      trouble: 'refused',
      message: expect.stringContaining(`does not speak the call protocol, version 1: ${member}: `),
    }),
  )
})

test('texts of an answer can be kept, and a name is any bytes', () => {
  expect(
    read({
      exitCode: 255,
      requestId: 'a\0\ud800',
      problem: '\u001b[31mno\u001b[0m\0',
      outputs: [{ ...output, path: 'caf\udce9.txt' }],
    }),
  ).toMatchObject({
    exitCode: 255,
    requestId: 'a\ufffd\ufffd',
    problem: 'no\ufffd',
    outputs: [{ path: 'caf\udce9.txt' }],
  })
})
