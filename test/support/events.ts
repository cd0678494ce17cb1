import { appendFileSync, existsSync, readFileSync } from 'node:fs'

/** A test that failed, with the first message of its failure. */
export interface Failure {
  test: string
  message: string
}

/**
 * Events of a round of tests; `test/support/run-files.ts` judges the run by them. Files are absolute paths.
 */
export type TestEvent =
  /**
   * An error or a rejection outside of the tests of a file, which Jest does not count. `earlier`: the
   * file that ran before it in the same process, whose late error it may be.
   */
  | { kind: 'stray'; file: string; text: string; earlier?: string }
  /** A test that `needs` left out, with the missing need. */
  | { kind: 'left-out'; file: string; name: string; need: string }
  /** A file that `needs` refused under `CI=true`. */
  | { kind: 'missing-need'; file: string; need: string }
  /** A test or a group under `skip`, `only` or `todo`. */
  | { kind: 'switched-off'; file: string; name: string; mode: string }
  /** A process runs the file's tests: a second one in the same round means that the first died. */
  | { kind: 'process'; file: string; pid: number }
  | { kind: 'began'; file: string }
  /**
   * The file ended. `broken` is the failure of a file whose tests could not run, or of its hooks.
   */
  | { kind: 'ended'; file: string; seconds: number; passed: number; failures: Failure[]; broken?: string }

const eventsFile = (): string | undefined => process.env['ORRERY_TEST_EVENTS']

/** Appends an event to the file of the round in one write, because several processes write to it. */
export const record = (event: TestEvent): void => {
  const file = eventsFile()
  if (file !== undefined) appendFileSync(file, `${JSON.stringify(event)}\n`)
}

/** All events of a round up to here, in order. */
export const readEvents = (file: string): TestEvent[] =>
  existsSync(file)
    ? readFileSync(file, 'utf8')
        .split('\n')
        .slice(0, -1)
        .map((line) => JSON.parse(line) as TestEvent)
    : []

/**
 * Present on the global object of a test file while `needs` leaves a test out. Its value names the
 * missing need.
 */
export const leftOutMark = Symbol.for('orrery.left-out')
