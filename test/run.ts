import { chmodSync, globSync, mkdirSync, mkdtempSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { randomInt } from 'node:crypto'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { removeAtEnd } from '../sites/remover.ts'
import { remedy } from '../sites/requirements.ts'
import { configFromEnvironment } from '../src/config.ts'
import { ArgumentError, readArguments } from '../src/programs/arguments.ts'
import { filesOfGroup, proofGroups } from './proof-groups.ts'
import { judge, retriable, unbegun, type Round, type Verdict } from './support/judge.ts'
import { preparePrograms } from './support/prepared-programs.ts'
import { playRound } from './support/round.ts'

// npm test, npm run proof [-- OPTIONS] [PATH…]: runs Jest in rounds and judges the results. No exit
// code of Jest counts. A file that failed runs again, alone, with nothing beside it.

const checkout = join(import.meta.dirname, '..')

const options = `  -t, --testNamePattern WORDS  only tests whose name matches this regular expression
      --workers N              files at once (default 3)
      --minutes N              time that one file may take (default 10, of a proof 60)
      --retries N              further rounds for files that failed (default 2 under CI=true, else 0)
      --unsteady N             files that may need them (default 8)
      --report FILE            writes the verdict as JSON
      --verbose                lists each test
      --help | --version`

const usage = `npm test -- [OPTIONS] [PATH…]
Runs the tests of the gate, or those in files whose path contains a PATH.
${options}

npm run proof -- [OPTIONS] GROUP|PATH…
Runs the proofs of a GROUP, or those in files whose path contains a PATH. Groups:
  ${Object.keys(proofGroups).join(' ')}`

const proofEnding = '.proof.test.ts'

/** The test files that the words name; all of the gate without words. */
const select = (words: readonly string[], wantsProofs: boolean): string[] => {
  const all = globSync('test/**/*.test.ts', { cwd: checkout }).toSorted()
  const files = all.filter((file) => file.endsWith(proofEnding) === wantsProofs)
  // Files that are planted to fail run only where they are named.
  if (words.length === 0 && !wantsProofs) return files.filter((file) => !file.startsWith('test/planted/'))
  if (words.length === 0) throw new ArgumentError('the name of a group is missing')
  const found = words.map((word) => {
    if (wantsProofs && word in proofGroups) return filesOfGroup(word, files)
    const named = (file: string): boolean => file.includes(relative(checkout, join(checkout, word)))
    const matching = files.filter(named)
    if (matching.length === 0 && all.some(named))
      throw new ArgumentError(
        wantsProofs
          ? `${word} is in the gate: npm test -- ${word}`
          : `${word} is a proof: npm run proof -- ${word}`,
      )
    if (matching.length === 0)
      throw new ArgumentError(`no test file matches ${word}: give a part of a path below test/`)
    return matching
  })
  return [...new Set(found.flat())]
}

const numberOf = (name: string, text: string, least: number): number => {
  const value = Number(text)
  if (!(value >= least)) throw new ArgumentError(`--${name} takes a number from ${least} on, not ${text}`)
  return value
}

const print = (verdict: Verdict): void => {
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

const arguments_ = readArguments(
  {
    usage,
    options: {
      proof: { type: 'boolean', default: false },
      testNamePattern: { type: 'string', short: 't' },
      workers: { type: 'string', default: '3' },
      minutes: { type: 'string' },
      retries: { type: 'string', default: process.env['CI'] === 'true' ? '2' : '0' },
      unsteady: { type: 'string', default: '8' },
      report: { type: 'string' },
      verbose: { type: 'boolean', default: false },
    },
    positionals: [0, Infinity],
  },
  ({ values, positionals }) => ({
    proof: values.proof,
    selected: select(positionals, values.proof),
    workers: numberOf('workers', values.workers, 1),
    minutes: numberOf('minutes', values.minutes ?? (values.proof ? '60' : '10'), 0),
    retries: numberOf('retries', values.retries, 0),
    most: numberOf('unsteady', values.unsteady, 0),
    testNamePattern: values.testNamePattern,
    report: values.report,
    verbose: values.verbose,
  }),
)

// Proofs play other cases at each run.
if (arguments_.proof) {
  process.env['ORRERY_SEED'] ??= String(randomInt(2 ** 31))
  process.stdout.write(`ORRERY_SEED=${process.env['ORRERY_SEED']}\n`)
}
const secondsFile = join(configFromEnvironment().cacheDir, 'test-seconds.json')
process.env['ORRERY_TEST_SECONDS'] = secondsFile

/** The seconds of each file in its last run; none are lost where two runs end at once. */
const keepSeconds = (seconds: Readonly<Record<string, number>>): void => {
  let known: Record<string, number> = {}
  try {
    known = JSON.parse(readFileSync(secondsFile, 'utf8')) as Record<string, number>
  } catch {
    // The first run of this machine.
  }
  const measured = Object.entries(seconds).filter(
    ([file, each]) => each > 0 && !file.startsWith('test/planted/'),
  )
  mkdirSync(join(secondsFile, '..'), { recursive: true })
  const draft = `${secondsFile}.${process.pid}`
  writeFileSync(draft, JSON.stringify({ ...known, ...Object.fromEntries(measured) }))
  renameSync(draft, secondsFile)
}

const root = mkdtempSync(join(tmpdir(), 'orrery-'))
chmodSync(root, 0o1777)
const remover = removeAtEnd(root, { processes: true, spawner: 'jest-worker' })
const interrupted = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
  process.on(signal, () => {
    interrupted.abort()
  })

const files = arguments_.selected.map((file) => join(checkout, file))
const cannotStart = await preparePrograms()
const rounds =
  cannotStart === undefined
    ? await playAll(
        files,
        arguments_,
        (some, number, workers) =>
          playRound(some, number, {
            ...arguments_,
            checkout,
            root,
            workers,
            signal: interrupted.signal,
          }),
        interrupted.signal,
      )
    : [{ files: [], events: [], problem: cannotStart }]
const verdict = judge({ selected: files, rounds, most: arguments_.most, checkout })
print(verdict)
if (cannotStart === undefined) keepSeconds(verdict.seconds)
if (arguments_.report !== undefined)
  writeFileSync(arguments_.report, `${JSON.stringify(verdict, undefined, 2)}\n`)
await remover.leave()
process.exitCode = verdict.success ? 0 : 1
