import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { computeOf, sharesOf } from '../../src/domains/execution-runs/machine-shares.ts'
import { secondsIn } from '../../src/spans.ts'

const use = fc
  .record({ runId: fc.constantFrom('a', 'b', 'c', 'd'), from: fc.nat(100), seconds: fc.option(fc.nat(50)) })
  .map(({ runId, from, seconds }) => ({ runId, from, to: seconds === null ? undefined : from + seconds }))
const life = fc.record({ from: fc.nat(40), seconds: fc.integer({ min: 1, max: 120 }) })

test('the shares of all runs are the whole life of the machine, without gap or overlap', () => {
  fc.assert(
    fc.property(life, fc.array(use, { minLength: 1, maxLength: 8 }), ({ from, seconds }, uses) => {
      const whole = { from, to: from + seconds }
      const spans = [...sharesOf(whole, uses).values()].flat().toSorted((a, b) => a.from - b.from)
      expect(spans[0]?.from).toBe(whole.from)
      expect(spans.at(-1)?.to).toBe(whole.to)
      spans.slice(1).forEach((span, k) => expect(span.from).toBe(spans[k]!.to))
      expect(secondsIn(spans, whole)).toBe(seconds)
    }),
  )
})

test('the first to take it pays while it uses it, the last one for the time without use', () => {
  const shares = sharesOf({ from: 0, to: 100 }, [
    { runId: 'first', from: 10, to: 40 },
    { runId: 'second', from: 20, to: 60 },
  ])
  expect(Object.fromEntries(shares)).toEqual({
    first: [{ from: 0, to: 40 }],
    second: [{ from: 40, to: 100 }],
  })
  expect(sharesOf({ from: 5, to: 5 }, [{ runId: 'a', from: 1 }]).size).toBe(0)
})

const secondsOf = (spans: readonly { from: number; to: number }[]): number =>
  spans.reduce((sum, span) => sum + span.to - span.from, 0)

test('the runs together pay for each second in which the machine ran, also for those of unknown times', () => {
  const pauses = fc.uniqueArray(fc.nat(120), { maxLength: 8 })
  fc.assert(
    fc.property(life, fc.array(use, { maxLength: 8 }), pauses, fc.nat(30), (given, uses, at, unknown) => {
      const whole = { from: given.from, to: given.from + given.seconds }
      const bounds = at.map((one) => Math.min(whole.to, whole.from + one)).toSorted((a, b) => a - b)
      const recorded = bounds.flatMap((from, k) =>
        k % 2 === 0 && bounds[k + 1] !== undefined ? [{ from, to: bounds[k + 1]! }] : [],
      )
      const seconds = secondsOf(recorded) + Math.min(unknown, given.seconds)
      const ran = computeOf(whole, recorded, seconds)
      expect(secondsOf(ran)).toBe(seconds)
      const paid = [...sharesOf(whole, uses).values()].flatMap((own) => ran.map((one) => secondsIn(own, one)))
      expect(paid.reduce((sum, one) => sum + one, 0)).toBe(uses.length === 0 ? 0 : seconds)
    }),
  )
})
