import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import type { Frame } from '../../src/domains/console/frames.ts'
import { openMasks } from '../../src/domains/console/masks.ts'
import { Served } from '../../src/domains/console/served.ts'

/** What a session records does not depend on how its output is cut into pieces. */

const secret = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 8, maxLength: 12 })
const piece = fc.oneof(
  fc.string({ unit: fc.constantFrom('a', 'b', 'c', '-'), maxLength: 20 }),
  fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 1 }),
)

test('a secret is masked in whatever pieces it comes, and however often they are stored', () => {
  fc.assert(
    fc.property(
      fc.array(secret, { maxLength: 4 }),
      fc.array(
        fc.record({ text: piece, secret: fc.nat(20), kind: fc.constantFrom('o', 'i'), stores: fc.boolean() }),
        {
          maxLength: 60,
        },
      ),
      (secrets, steps) => {
        const session = new Served()
        const masks = openMasks(secrets)
        session.masks = masks
        const given = { i: '', o: '' }
        const kept: Record<string, Buffer[]> = { input: [], output: [] }
        let at = 0
        let taken = 0
        const store = (all: boolean): void => {
          for (let due = session.due(all); due !== undefined; due = session.due(all)) {
            for (const { direction, content } of due.records) kept[direction]?.push(content)
            expect([due.from, due.to > taken]).toEqual([taken, true])
            taken = due.to
            due.recorded()
          }
        }
        for (const { text, secret: chosen, kind, stores } of steps) {
          // Every few pieces hold a secret, cut in two.
          const whole = secrets[chosen] ?? ''
          const half = Math.floor(whole.length / 2)
          for (const part of [text + whole.slice(0, half), whole.slice(half)].filter((one) => one !== '')) {
            const content = Buffer.from(part)
            given[kind as 'i' | 'o'] += part
            at += 13 + content.length
            session.take([{ kind: kind as Frame['kind'], atSeconds: 0, content, end: at }])
            if (stores) store(false)
          }
        }
        store(true)
        expect(taken).toBe(at)
        expect(session.waitingBytes).toBe(0)
        for (const [direction, text] of [
          ['input', given.i],
          ['output', given.o],
        ] as const)
          expect(Buffer.concat(kept[direction] ?? []).toString()).toBe(
            masks.whole(Buffer.from(text)).toString(),
          )
      },
    ),
    { numRuns: 2_000 },
  )
})

test('masking replaces the longest secret that begins first', () => {
  const secrets = ['abcdefgh', 'abcdefghij', 'xxabcdefgh']
  expect(openMasks(secrets).whole(Buffer.from('1 abcdefghij 2 xxabcdefgh 3 abcdefgh 4')).toString()).toBe(
    '1 ******** 2 ******** 3 ******** 4',
  )
})

test('a secret that overlaps itself is masked behind another one, too', () => {
  const masks = openMasks(['abababab', 'xxxxxxab'])
  expect(masks.whole(Buffer.from('xxxxxxababababab-')).toString()).toBe('****************-')
})

test('what comes at once after an outage is recorded with its times, in its order', () => {
  const session = new Served()
  session.masks = openMasks(['a-secret'])
  const given = [
    ['o', 1, 'one '],
    ['o', 1.01, 'more '],
    ['o', 60, 'a-se'],
    ['o', 61, 'cret after'],
    ['i', 3_600, 'ls'],
    ['o', 3_600, 'ls'],
    ['o', 3_700.5, 'last'],
  ] as const
  let end = 0
  session.take(
    given.map(([kind, atSeconds, text]) => {
      const content = Buffer.from(text)
      end += 13 + content.length
      return { kind, atSeconds, content, end }
    }),
  )
  const records = session.due(false)?.records ?? []
  expect(
    records.map(({ direction, atSeconds, content }) => [direction, atSeconds, content.toString()]),
  ).toEqual([
    ['output', 1, 'one more '],
    ['output', 60, '********'],
    ['output', 61, ' after'],
    ['input', 3_600, 'ls'],
    ['output', 3_600, 'ls'],
    ['output', 3_700.5, 'last'],
  ])
})

test('what may begin a secret does not hold more than 1 MiB back', () => {
  const session = new Served()
  session.masks = openMasks(['abcdefgh'])
  session.take([{ kind: 'i', atSeconds: 0, content: Buffer.from('abcd'), end: 17 }])
  expect(session.due(false)).toBeUndefined()
  session.take([{ kind: 'o', atSeconds: 0, content: Buffer.alloc(2 * 1024 * 1024), end: 3 * 1024 * 1024 }])
  expect(session.due(false)?.to).toBe(3 * 1024 * 1024)
})

test('the beginning of longer bytes ends before what may begin a secret', () => {
  const secret = 'a-secret-of-a-person'
  const text = `see ${secret} and ${secret}`
  for (let cut = 0; cut <= text.length; cut++) {
    const kept = openMasks([secret])
      .cut(Buffer.from(text.slice(0, cut)))
      .toString()
    expect(kept).not.toMatch(/a-s|person/)
    expect('see ******** and ********').toContain(kept)
  }
})
