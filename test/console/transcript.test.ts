import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import type { Db } from '../../src/db/sql.ts'
import { neutral, transcriptOf } from '../../src/domains/console/transcript.ts'

/** What a hostile program writes cannot control the terminal of who reads the log. */

/** Controls of ASCII and of C1, and those that change the direction of a text. */
// eslint-disable-next-line no-control-regex
const controls = /[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/

/** The transcript of output in these pieces. */
const transcriptOfPieces = async (pieces: readonly Buffer[]): Promise<string> => {
  let given = false
  const many = (): Promise<unknown[]> => {
    const rows = given
      ? []
      : pieces.map((content, i) => ({ sequence: i + 1, direction: 'output', atSeconds: i, content }))
    given = true
    return Promise.resolve(rows)
  }
  let text = ''
  for await (const part of transcriptOf({ many } as unknown as Db, 'id')) text += part
  return text
}

test('a log has no control character but line ends and tabs, whatever was written, in whatever pieces', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(
        fc.oneof(
          fc.uint8Array({ maxLength: 40 }),
          fc
            .constantFrom('\x1b]0;title\x07', '\x1b[31m', '\u009b31m', '\r', '\n', '\r\n', '\u202e', 'é')
            .map((text) => new Uint8Array(Buffer.from(text))),
        ),
        { maxLength: 20 },
      ),
      fc.array(fc.nat(400), { maxLength: 10 }),
      async (parts, cuts) => {
        const bytes = Buffer.concat(parts)
        const places = [
          0,
          ...cuts.map((cut) => Math.min(cut, bytes.length)).sort((a, b) => a - b),
          bytes.length,
        ]
        const pieces = places.slice(1).map((to, i) => bytes.subarray(places[i], to))
        const text = await transcriptOfPieces(pieces)
        expect(text).not.toMatch(controls)
        expect(text).toBe(await transcriptOfPieces([bytes]))
      },
    ),
    { numRuns: 500 },
  )
})

test('control characters are written out', () => {
  expect(neutral('\x1b[31mred\x1b[0m\ta\r\nb\x7f\u009b\u202e')).toBe('^[[31mred^[[0m\ta\nb^?<U+009B><U+202E>')
})
