import { describe, expect, test } from '@jest/globals'
import fc from './support/fast-check.ts'
import { outsideText, reasonText } from '../src/outside-text.ts'

const bytes = (latin1: string): Buffer => Buffer.from(latin1, 'latin1')

describe('outsideText', () => {
  test.each([
    ['NUL', Buffer.from('a\0b'), 'a\ufffdb'],
    ['invalid UTF-8', bytes('caf\xe9 \xff'), 'caf\ufffd \ufffd'],
    ['a surrogate in UTF-8', bytes('\xed\xa0\x80'), '\ufffd\ufffd\ufffd'],
    ['lone surrogates', 'a\ud800b\udc00', 'a\ufffdb\ufffd'],
    ['escape sequences', '\u001b[31mred\u001b[0m', '\u001b[31mred\u001b[0m'],
    ['an emoji', '🔭', '🔭'],
  ])('%s', (_what, given, wanted) => {
    expect(outsideText(given)).toBe(wanted)
  })
})

describe('reasonText', () => {
  test.each([
    ['a bar', ' 10%\r 50%\r100%\ndone\n', '100%\ndone'],
    ['a shorter text over a longer one', 'abcdef\rXY', 'XYcdef'],
    ['an erased line', 'a long text\r\u001b[Kshort', 'short'],
    ['a wholly erased line', 'gone\u001b[2K\rhere', 'here'],
    ['line ends of Windows', 'one\r\ntwo\r\n', 'one\ntwo'],
    ['backspaces', 'ab\b\bxy', 'xy'],
    ['colours', '\u001b[1;31mfailed\u001b[0m: no', 'failed: no'],
    [
      'a title and a link',
      '\u001b]0;title\u0007text \u001b]8;;http://x\u001b\\link\u001b]8;;\u001b\\',
      'text link',
    ],
    ['an unended sequence', 'text\u001b[', 'text'],
    ['other controls', 'a\u0007b\u000ec\u0085', 'abc'],
    ['NUL', 'cannot read \0 header', 'cannot read \ufffd header'],
    ['a change of direction', 'a\u202egnp.exe', 'agnp.exe'],
    ['a byte order mark', '\ufefftext', 'text'],
    ['tabulators', 'a\tb', 'a\tb'],
    ['nothing to be seen', '\u001b[0m\r\n\n', ''],
  ])('%s', (_what, given, wanted) => {
    expect(reasonText(given)).toBe(wanted)
    expect(reasonText(Buffer.from(given))).toBe(wanted)
  })

  test('keeps the last lines, and cuts at characters', () => {
    expect(reasonText('1\n2\n3\n', { lines: 2 })).toBe('2\n3')
    expect(reasonText('🔭'.repeat(9), { characters: 4 })).toBe('…🔭🔭🔭')
    expect(reasonText(Buffer.from(`${'🔭'.repeat(3)}end`).subarray(2))).toBe('🔭🔭end')
  })

  test('reads only the end of a long line', () => {
    expect(reasonText('x'.repeat(10_000_000), { characters: 10 })).toBe(`…${'x'.repeat(9)}`)
    expect(reasonText('🔭'.repeat(40_000)).isWellFormed()).toBe(true)
  })

  test('what any bytes give can be kept, and is its own reason', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (given) => {
        for (const text of [outsideText(given), reasonText(given, { lines: 3, characters: 40 })]) {
          expect(text.isWellFormed()).toBe(true)
          expect(text).not.toContain('\0')
        }
        const reason = reasonText(given)
        expect(reasonText(reason)).toBe(reason)
        // oxlint-disable-next-line no-control-regex
        expect(reason).not.toMatch(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/)
      }),
      { seed: 20, numRuns: 500 },
    )
  })
})
