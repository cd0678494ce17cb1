import { relative } from 'node:path'
import { stripVTControlCharacters } from 'node:util'
import type { TestEvent } from './events.ts'

/** What one start of Jest left behind. */
export interface Round {
  /** Absolute paths of the files that should run. */
  files: readonly string[]
  events: readonly TestEvent[]
  /** The file that did not end in its time, for which Jest was ended. */
  overdue?: string
  /** What went wrong with Jest's process itself. */
  problem?: string
}

/** A file that passed when it ran again, or whose first process died. */
export interface Unsteady {
  file: string
  /** The tests that failed first. */
  tests: string[]
  /** The first failure. */
  message: string
  /** Rounds in which it failed; 0 where a second process of the same round passed it. */
  failures: number
}

export interface FileResult {
  passed: number
  failed: number
  seconds: number
}

export interface Verdict {
  success: boolean
  /** Tests that passed in the last round of their file. */
  passed: number
  /** Tests that failed in the last round of their file, and one for each other problem. */
  failed: number
  /** One line each, with the file. */
  problems: string[]
  unsteady: Unsteady[]
  /** Tests that `needs` left out, by the missing need. */
  leftOut: { need: string; tests: number; files: string[] }[]
  /** The last round of each file, the longest first. */
  files: Record<string, FileResult>
}

interface Result {
  passed: number
  seconds: number
  /** Why the file failed: a test with its message, or a failure without one. None: it passed. */
  reasons: { test?: string; message: string }[]
  processes: number
  /** To run it again cannot change the result. */
  isFinal: boolean
}

/** The result of one file in one round. */
const resultOf = (round: Round, file: string): Result => {
  const events = round.events.filter((event) => event.file === file)
  const ended = events.findLast((event) => event.kind === 'ended')
  const reasons: Result['reasons'] = [...(ended?.failures ?? [])]
  if (ended?.broken !== undefined)
    reasons.push({ message: `failed outside of its tests: ${firstLine(ended.broken)}` })
  if (ended === undefined)
    reasons.push({ message: file === round.overdue ? 'did not end within its time' : 'has no result' })
  const add = (message: string): void => {
    if (!reasons.some((reason) => reason.message === message)) reasons.push({ message })
  }
  for (const event of events) {
    if (event.kind === 'stray') add(`an error outside of its tests: ${firstLine(event.text)}`)
    if (event.kind === 'switched-off')
      add(`"${event.name}" is under ${event.mode}: remove it, or use needs()`)
  }
  const pids = events.flatMap((event) => (event.kind === 'process' ? [event.pid] : []))
  return {
    passed: ended?.passed ?? 0,
    seconds: ended?.seconds ?? 0,
    reasons,
    processes: new Set(pids).size,
    isFinal: events.some(({ kind }) => kind === 'switched-off' || kind === 'missing-need'),
  }
}

/** All results of a file, in the order of the rounds. */
const resultsOf = (rounds: readonly Round[], file: string): Result[] =>
  rounds
    .filter((round) => round.files.includes(file) && !unbegun(round).includes(file))
    .map((round) => resultOf(round, file))

const hasBegun = (round: Round, file: string): boolean =>
  round.events.some((event) => event.kind === 'began' && event.file === file)

/** The files that Jest had not begun when it was ended for an overdue one. */
export const unbegun = (round: Round): string[] =>
  round.overdue === undefined ? [] : round.files.filter((file) => !hasBegun(round, file))

/**
 * The files that failed in their last round and may pass when they run again, and those to which an
 * error outside of the tests may belong.
 */
export const retriable = (rounds: readonly Round[]): string[] => {
  const earlier = rounds
    .at(-1)
    ?.events.flatMap((event) =>
      event.kind === 'stray' && event.earlier !== undefined ? [event.earlier] : [],
    )
  return [...new Set(rounds.flatMap(({ files }) => files))].filter((file) => {
    const last = resultsOf(rounds, file).at(-1)
    if (last === undefined || last.isFinal) return false
    return last.reasons.length > 0 || earlier?.includes(file) === true
  })
}

/**
 * Judges a run of tests by the events of its rounds. The last result of a file counts. The run
 * succeeds only where each selected file has one and it is in order, at least one test passed,
 * Jest's process ended in order, and not more than `most` files needed another try.
 */
export const judge = ({
  selected,
  rounds,
  most,
  checkout,
}: {
  /** Absolute paths of the files that should run. */
  selected: readonly string[]
  rounds: readonly Round[]
  most: number
  checkout: string
}): Verdict => {
  const short = (file: string): string => relative(checkout, file)
  const problems: string[] = []
  const unsteady: Unsteady[] = []
  const ends: [string, FileResult][] = []
  let passed = 0
  for (const file of selected) {
    const results = resultsOf(rounds, file)
    const last = results.at(-1)
    passed += last?.passed ?? 0
    const reasons = last?.reasons ?? [{ message: 'has no result' }]
    ends.push([
      short(file),
      { passed: last?.passed ?? 0, failed: reasons.length, seconds: last?.seconds ?? 0 },
    ])
    for (const { test, message } of reasons)
      problems.push(test === undefined ? `${short(file)} ${message}` : `${short(file)}: ${test}`)
    const failed = results.filter((result) => result.reasons.length > 0)
    const died = results.some(({ processes }) => processes > 1)
    if (reasons.length === 0 && (failed.length > 0 || died))
      unsteady.push({
        file: short(file),
        tests: failed[0]?.reasons.flatMap(({ test }) => test ?? []) ?? [],
        message: failed[0]?.reasons[0]?.message ?? 'the process of its tests ended and was started again',
        failures: failed.length,
      })
  }
  const leftOut = groupByNeed(
    rounds.flatMap(({ events }) => events),
    short,
  )
  for (const { problem } of rounds) if (problem !== undefined) problems.push(problem)
  if (problems.length === 0 && passed === 0 && leftOut.length === 0) problems.push('no test ran')
  if (unsteady.length > most)
    problems.push(`${unsteady.length} files passed only when they ran again; at most ${most} may`)
  return {
    success: problems.length === 0,
    passed,
    failed: problems.length,
    problems,
    unsteady,
    leftOut,
    files: Object.fromEntries(ends.toSorted(([, a], [, b]) => b.seconds - a.seconds)),
  }
}

const groupByNeed = (events: readonly TestEvent[], short: (file: string) => string): Verdict['leftOut'] => {
  const groups = new Map<string, { tests: Set<string>; files: Set<string> }>()
  for (const event of events) {
    if (event.kind !== 'left-out') continue
    const group = groups.get(event.need) ?? { tests: new Set(), files: new Set() }
    group.tests.add(`${event.file} ${event.name}`)
    group.files.add(short(event.file))
    groups.set(event.need, group)
  }
  return [...groups]
    .map(([need, { tests, files }]) => ({ need, tests: tests.size, files: [...files].toSorted() }))
    .toSorted((a, b) => b.tests - a.tests)
}

const firstLine = (text: string): string =>
  stripVTControlCharacters(text)
    .split('\n')
    .map((line) => line.trim())
    .find((line) => line !== '' && !line.startsWith('●')) ?? ''
