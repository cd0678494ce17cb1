import { expect, test } from '@jest/globals'
import fc from './support/fast-check.ts'
import {
  bytesOfPath,
  pathBytes,
  pathOfBytes,
  pathOfShown,
  shownPath,
  systemPath,
} from '../src/outside-path.ts'

const bytes = (latin1: string): Buffer => Buffer.from(latin1, 'latin1')

test.each([
  ['text', Buffer.from('été/🔭.txt'), 'été/🔭.txt', 'été/🔭.txt'],
  ['a byte order mark', Buffer.from('\ufeffa'), '\ufeffa', '\ufeffa'],
  ['Latin-1', bytes('caf\xe9.txt'), 'caf\udce9.txt', 'caf\\xe9.txt'],
  ['a backslash beside', bytes('a\\b\xff'), 'a\\b\udcff', 'a\\\\b\\xff'],
  ['text that reads like a byte', Buffer.from('caf\\xe9.txt'), 'caf\\xe9.txt', 'caf\\\\xe9.txt'],
  ['a surrogate in UTF-8', bytes('\xed\xb3\xa9'), '\udced\udcb3\udca9', '\\xed\\xb3\\xa9'],
  ['a cut character', bytes('a\xf0\x9f\x94'), 'a\udcf0\udc9f\udc94', 'a\\xf0\\x9f\\x94'],
  ['an overlong slash', bytes('\xc0\xaf'), '\udcc0\udcaf', '\\xc0\\xaf'],
])('%s', (_what, given, path, shown) => {
  expect(pathOfBytes(given)).toBe(path)
  expect(bytesOfPath(path)).toEqual(given)
  expect(Buffer.from(systemPath(path))).toEqual(given)
  expect(shownPath(path)).toBe(shown)
  expect(pathOfShown(shown)).toBe(path)
  expect(pathBytes(path)).toEqual(path.isWellFormed() ? {} : { pathBytes: given.toString('base64') })
})

test('any bytes come back, and no two paths look the same', () => {
  const names = fc.oneof(
    fc.uint8Array({ maxLength: 40 }).map((given) => Buffer.from(given)),
    fc
      .array(fc.constantFrom('\\', 'x', 'e9', '\xe9', '\xc3\xa9', '\\xe9', '/'), { maxLength: 8 })
      .map((parts) => bytes(parts.join(''))),
  )
  fc.assert(
    fc.property(names, (given) => {
      const path = pathOfBytes(given)
      expect(bytesOfPath(path)).toEqual(given)
      expect(shownPath(path).isWellFormed()).toBe(true)
      expect(pathOfShown(shownPath(path))).toBe(path)
      expect(JSON.parse(JSON.stringify(path))).toBe(path)
    }),
    { seed: 21, numRuns: 1_000 },
  )
})
