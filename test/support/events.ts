import { appendFileSync, existsSync, readFileSync } from 'node:fs'

/**
 * Events of a test run beside the results of its tests; `test/run.ts` judges the run by them. Files
 * are absolute paths.
 */
export type TestEvent =
  /** An error or a rejection outside of the tests of a file, which Jest does not count. */
  | { kind: 'stray'; file: string; text: string }
  /** A test that `needs` left out, with the missing need. */
  | { kind: 'left-out'; file: string; name: string; need: string }
  /** A test or a group under `skip`, `only` or `todo`. */
  | { kind: 'switched-off'; file: string; name: string; mode: string }
  /** A file began or ended. */
  | { kind: 'began' | 'ended'; file: string }

const eventsFile = (): string | undefined => process.env['ORRERY_TEST_EVENTS']

/** Appends an event to the file of the run in one write, because several processes write to it. */
export const record = (event: TestEvent): void => {
  const file = eventsFile()
  if (file !== undefined) appendFileSync(file, `${JSON.stringify(event)}\n`)
}

/** All events of a run up to here, in order. */
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
