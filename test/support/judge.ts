import { relative } from 'node:path'
import { stripVTControlCharacters } from 'node:util'
import type { TestEvent } from './events.ts'

/** The part of Jest's `--json` report that is judged. */
export interface JestReport {
  success: boolean
  wasInterrupted: boolean
  testResults: {
    name: string
    status: string
    message: string
    assertionResults: { fullName: string; status: string }[]
  }[]
}

export interface Run {
  /** Absolute paths of the files that should run. */
  selected: readonly string[]
  /** Undefined where Jest wrote none. */
  report: JestReport | undefined
  events: readonly TestEvent[]
  /** Failures of Jest's process. */
  failures: readonly string[]
  checkout: string
}

export interface Verdict {
  success: boolean
  passed: number
  /** Failed tests, and one for each other problem. */
  failed: number
  /** One line each, with the file. */
  problems: string[]
  /** Tests that `needs` left out, by the missing need. */
  leftOut: { need: string; tests: number; files: string[] }[]
}

/**
 * Judges a run of tests by its report and events. It succeeds only where Jest's report exists,
 * names every file and reports success, at least one test passed, no test is switched off, and no
 * error occurred outside of the tests.
 */
export const judge = ({ selected, report, events, failures, checkout }: Run): Verdict => {
  const short = (file: string): string => relative(checkout, file)
  const results = report?.testResults ?? []
  const named = new Set(results.map(({ name }) => name))
  const failedTests = results.flatMap((file) =>
    file.assertionResults
      .filter(({ status }) => status === 'failed')
      .map(({ fullName }) => `${short(file.name)}: ${fullName}`),
  )
  const brokenFiles = results
    .filter(
      (file) => file.status === 'failed' && file.assertionResults.every(({ status }) => status !== 'failed'),
    )
    .map((file) => `${short(file.name)} failed outside of its tests: ${firstLine(file.message)}`)
  const missing =
    report === undefined
      ? []
      : selected.filter((file) => !named.has(file)).map((file) => `${short(file)} has no result`)
  const stray = events.flatMap((event) =>
    event.kind === 'stray'
      ? [`${short(event.file)}: an error outside of its tests: ${firstLine(event.text)}`]
      : [],
  )
  const switchedOff = events.flatMap((event) =>
    event.kind === 'switched-off'
      ? [`${short(event.file)}: "${event.name}" is under ${event.mode}: remove it, or use needs()`]
      : [],
  )
  const passed = results
    .flatMap(({ assertionResults }) => assertionResults)
    .filter(({ status }) => status === 'passed').length
  const leftOut = groupByNeed(events, short)
  const others = [
    ...failures,
    ...(report === undefined
      ? ['Jest left no report: it ended before its last test, or its set-up failed']
      : []),
    ...(report?.wasInterrupted === true ? ['Jest was interrupted'] : []),
    ...missing,
    ...brokenFiles,
    ...new Set(stray),
    ...new Set(switchedOff),
    ...(report !== undefined && passed === 0 && leftOut.length === 0 ? ['no test ran'] : []),
  ]
  const problems = [...failedTests, ...others]
  if (report?.success === false && problems.length === 0) problems.push('Jest says that the run failed')
  return { success: problems.length === 0, passed, failed: problems.length, problems, leftOut }
}

const groupByNeed = (events: readonly TestEvent[], short: (file: string) => string): Verdict['leftOut'] => {
  const groups = new Map<string, { tests: number; files: Set<string> }>()
  for (const event of events) {
    if (event.kind !== 'left-out') continue
    const group = groups.get(event.need) ?? { tests: 0, files: new Set() }
    groups.set(event.need, { tests: group.tests + 1, files: group.files.add(short(event.file)) })
  }
  return [...groups]
    .map(([need, { tests, files }]) => ({ need, tests, files: [...files].toSorted() }))
    .toSorted((a, b) => b.tests - a.tests)
}

const firstLine = (text: string): string =>
  stripVTControlCharacters(text)
    .split('\n')
    .map((line) => line.trim())
    .find((line) => line !== '' && !line.startsWith('●')) ?? ''
