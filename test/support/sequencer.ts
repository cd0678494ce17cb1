import { existsSync, readFileSync } from 'node:fs'
import { relative } from 'node:path'
import type { Test } from '@jest/reporters'

/** Seconds of a file that no earlier run has measured. */
const unknownSeconds = 30

/**
 * Starts the files that took longest in earlier runs first, so that none of them runs alone at the
 * end. `test/support/run-files.ts` keeps the seconds, by the paths below the checkout.
 */
export default class Longest {
  sort(tests: Test[]): Test[] {
    const file = process.env['ORRERY_TEST_SECONDS']
    const seconds =
      file !== undefined && existsSync(file)
        ? (JSON.parse(readFileSync(file, 'utf8')) as Record<string, number>)
        : {}
    const of = ({ path, context }: Test): number =>
      seconds[relative(context.config.rootDir, path)] ?? unknownSeconds
    return tests.toSorted((a, b) => of(b) - of(a))
  }

  /** Part of Jest's contract for sequencers; `test/support/run-files.ts` keeps the results. */
  cacheResults(): void {}
}
