import { chmodSync, mkdirSync, mkdtempSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { removeAtEnd } from '../../sites/remover.ts'
import { remedy } from '../../sites/requirements.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { ArgumentError } from '../../src/programs/arguments.ts'
import { judge, retriable, unbegun, type Round, type Verdict } from './judge.ts'
import { playRound } from './round.ts'
import { makeMemoryFolder } from './run-folder.ts'

export const checkout = join(import.meta.dirname, '../..')

/** How `npm test` and `npm run proof` run test files. */
export interface RunOptions {
  /** Files at once. */
  workers: number
  /** Time that one file may take. */
  minutes: number
  /** Further rounds for files that failed. */
  retries: number
  /** Files that may need a further round. */
  most: number
  testNamePattern: string | undefined
  verbose: boolean
}

/** The options that both commands take, for `readArguments`. */
export const runOptions = {
  testNamePattern: { type: 'string', short: 't' },
  workers: { type: 'string', default: '3' },
  minutes: { type: 'string' },
  retries: { type: 'string' },
  unsteady: { type: 'string', default: '8' },
  report: { type: 'string' },
  verbose: { type: 'boolean', default: false },
} as const

/** The lines of `--help` for them. @param minutes what one file may take without the option */
export const runUsage = (minutes: number): string =>
  `  -t, --testNamePattern WORDS  only tests whose name matches this regular expression
      --workers N              files at once (default 3)
      --minutes N              time that one file may take (default ${minutes})
      --retries N              further rounds for files that failed (default 2 for the whole gate or CI=true, else 0)
      --unsteady N             files that may need them (default 8)
      --report FILE            writes the verdict as JSON
      --verbose                lists each test
      --help | --version`

/** Reads a number. @throws ArgumentError below `least` */
export const numberOf = (name: string, text: string, least: number): number => {
  const value = Number(text)
  if (!(value >= least)) throw new ArgumentError(`--${name} takes a number from ${least} on, not ${text}`)
  return value
}

/** Reads the values of `runOptions`. @throws ArgumentError for a number out of its range */
export const readRunOptions = (
  values: {
    workers: string
    minutes?: string | undefined
    retries?: string | undefined
    unsteady: string
    testNamePattern?: string | undefined
    verbose: boolean
  },
  minutes: number,
  isWholeGate = false,
): RunOptions => ({
  workers: numberOf('workers', values.workers, 1),
  minutes: numberOf('minutes', values.minutes ?? String(minutes), 0),
  retries: numberOf(
    'retries',
    values.retries ?? (isWholeGate || process.env['CI'] === 'true' ? '2' : '0'),
    0,
  ),
  most: numberOf('unsteady', values.unsteady, 0),
  testNamePattern: values.testNamePattern,
  verbose: values.verbose,
})

/** The signal that SIGINT, SIGTERM and SIGHUP abort. */
export const interruption = (): AbortSignal => {
  const interrupted = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
    process.on(signal, () => {
      interrupted.abort()
    })
  return interrupted.signal
}

/** Prints what was left out, what is unsteady, why the run failed, and the counts. */
export const printVerdict = (verdict: Verdict): void => {
  const lines: string[] = []
  if (verdict.leftOut.length > 0) {
    lines.push('', 'Left out on this machine:')
    for (const { need, tests, files } of verdict.leftOut)
      lines.push(
        `  ${tests} tests in ${files.length} files need ${need}; ${remedy(need)}`,
        ...files.map((file) => `      ${file}`),
      )
  }
  if (verdict.unsteady.length > 0) {
    lines.push('', 'Unsteady (passed when run again, alone):')
    for (const { file, tests, message, failures } of verdict.unsteady)
      lines.push(
        `  ${file}, failed ${failures} times${tests.map((test) => `\n    ${test}`).join('')}`,
        ...message.split('\n').map((line) => `      ${line}`),
      )
  }
  if (verdict.problems.length > 0)
    lines.push('', 'Why this run failed:', ...verdict.problems.map((problem) => `  ${problem}`))
  lines.push('', `${verdict.passed} passed, ${verdict.failed} failed`)
  process.stdout.write(`${lines.join('\n')}\n`)
}

/** Plays the first round, and further ones for the files that failed. */
const playAll = async (
  files: readonly string[],
  limits: { workers: number; retries: number; most: number },
  play: (files: readonly string[], number: number, workers: number) => Promise<Round>,
  signal: AbortSignal,
): Promise<Round[]> => {
  const rounds: Round[] = []
  /** A file that is overdue ends Jest; the files that were not begun go on without it. */
  const playOn = async (some: readonly string[], workers: number): Promise<void> => {
    for (let left = some; left.length > 0 && !signal.aborted;) {
      const round = await play(left, rounds.length + 1, workers)
      rounds.push(round)
      left = unbegun(round)
    }
  }
  await playOn(files, limits.workers)
  for (let tries = 0; tries < limits.retries && !signal.aborted; tries++) {
    const again = retriable(rounds)
    if (again.length === 0 || again.length > limits.most) break
    process.stderr.write(`\nagain, alone: ${again.map((file) => relative(checkout, file)).join(', ')}\n`)
    await playOn(again, 1)
  }
  return rounds
}

const secondsFile = join(configFromEnvironment().cacheDir, 'test-seconds.json')

/** The seconds of each file in its last run; none are lost where two runs end at once. */
const keepSeconds = (files: Verdict['files']): void => {
  let known: Record<string, number> = {}
  try {
    known = JSON.parse(readFileSync(secondsFile, 'utf8')) as Record<string, number>
  } catch {
    // The first run of this machine.
  }
  const measured = Object.entries(files).flatMap(([file, { seconds }]) =>
    seconds > 0 && !file.startsWith('test/planted/') ? [[file, seconds] as const] : [],
  )
  mkdirSync(join(secondsFile, '..'), { recursive: true })
  const draft = `${secondsFile}.${process.pid}`
  writeFileSync(draft, JSON.stringify({ ...known, ...Object.fromEntries(measured) }))
  renameSync(draft, secondsFile)
}

/**
 * Runs Jest in rounds and judges the results; no exit code of Jest counts. A file that failed runs
 * again, alone, with nothing beside it. All that the tests leave behind is gone at the end.
 * @param selected paths of test files from the checkout
 */
export const runFiles = async (
  selected: readonly string[],
  options: RunOptions,
  signal: AbortSignal,
): Promise<Verdict> => {
  process.env['ORRERY_TEST_SECONDS'] = secondsFile
  const root = mkdtempSync(join(tmpdir(), 'orrery-'))
  chmodSync(root, 0o1777)
  const memory = makeMemoryFolder() ?? root
  const removers = [...new Set([root, memory])].map((each) =>
    removeAtEnd(each, { processes: true, spawner: 'jest-worker' }),
  )
  const files = selected.map((file) => join(checkout, file))
  const rounds = await playAll(
    files,
    options,
    (some, number, workers) =>
      playRound(some, number, { ...options, checkout, root, memory, workers, signal }),
    signal,
  )
  const verdict = judge({ selected: files, rounds, most: options.most, checkout })
  keepSeconds(verdict.files)
  for (const remover of removers) await remover.leave()
  return verdict
}

/** The verdict where the programs of the tests cannot be made. */
export const notBegun = (selected: readonly string[], problem: string): Verdict =>
  judge({
    selected: selected.map((file) => join(checkout, file)),
    rounds: [{ files: [], events: [], problem }],
    most: 0,
    checkout,
  })
