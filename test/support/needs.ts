import * as jest from '@jest/globals'
import { leftOutMark, record } from './events.ts'
import { isMet, remedy, type Need } from '../../sites/requirements.ts'

const nothing = (): void => undefined

/** A `test` or `describe` whose tests are left out and counted under `need`. */
const leavingOut = <T extends typeof jest.test | typeof jest.describe>(original: T, need: string): T => {
  const marked =
    (call: (...args: never[]) => unknown) =>
    (...args: never[]): unknown => {
      const scope = globalThis as unknown as Record<symbol, unknown>
      const outer = scope[leftOutMark]
      scope[leftOutMark] = need
      try {
        return call(...args)
      } finally {
        scope[leftOutMark] = outer
      }
    }
  const skip = original.skip as unknown as ((...args: never[]) => unknown) & {
    each: (...table: never[]) => (...args: never[]) => unknown
  }
  return Object.assign(marked(skip), {
    each: (...table: never[]) => marked(skip.each(...table)),
  }) as unknown as T
}

/** Whether an error names one of these packages, and this machine lacks it. */
export const isForLack = (error: unknown, ...packages: readonly Need[]): boolean =>
  packages.some((need) => !isMet(need) && typeof error === 'string' && error.includes(need))

type Api = Pick<typeof jest, 'test' | 'describe' | 'beforeAll' | 'afterAll' | 'beforeEach' | 'afterEach'>

/**
 * Jest's functions for tests with a need that not every machine meets. Where it is met they are
 * Jest's own. Where it is not, their tests are left out and listed at the end of the run, and their
 * hooks do nothing; under `CI=true` this throws instead, so that the file fails. No other way to
 * leave a test out is permitted.
 * @throws Error under `CI=true`, naming the missing need and its remedy
 */
export const needs = (...all: readonly Need[]): Api => {
  const missing = all.find((need) => !isMet(need))
  if (missing === undefined) return jest
  if (process.env['CI'] === 'true') {
    record({ kind: 'missing-need', file: jest.expect.getState().testPath ?? 'no test file', need: missing })
    throw new Error(`these tests need ${missing}: ${remedy(missing)}`)
  }
  return {
    test: leavingOut(jest.test, missing),
    describe: leavingOut(jest.describe, missing),
    beforeAll: nothing,
    afterAll: nothing,
    beforeEach: nothing,
    afterEach: nothing,
  }
}
