import { spawn, type ChildProcess } from 'node:child_process'
import { chmodSync, existsSync, globSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { readArguments } from '../src/programs/arguments.ts'
import { readEvents, type TestEvent } from './support/events.ts'
import { judge, type JestReport, type Verdict } from './support/judge.ts'
import { removeAtEnd } from '../sites/remover.ts'
import { remedy } from '../sites/requirements.ts'

// npm test [-- OPTIONS] [PATH…]: runs Jest and judges its report. No exit code of Jest counts: the
// run succeeds only where the report is there, names every file that was found, and every test
// passed.

const checkout = join(import.meta.dirname, '..')

const usage = `npm test -- [OPTIONS] [PATH…]
Runs all tests, or those in files whose path contains a PATH.
  -t, --testNamePattern WORDS  only tests whose name matches this regular expression
      --workers N              files at once (default 3)
      --minutes N              time that one file may take (default 40)
      --report FILE            writes the verdict as JSON
      --verbose                lists each test
      --help | --version`

const fail = (message: string): never => {
  process.stderr.write(`${message}\n`)
  process.exit(2)
}

/**
 * The test files that the paths name, all without paths. Ends the program where a path names none.
 */
const select = (paths: readonly string[]): string[] => {
  const all = globSync('test/**/*.test.ts', { cwd: checkout }).toSorted()
  // Files that are planted to fail run only where they are named.
  if (paths.length === 0) return all.filter((file) => !file.startsWith('test/planted/'))
  const found = paths.map((path) =>
    all.filter((file) => file.includes(relative(checkout, join(checkout, path)))),
  )
  found.forEach((files, index) => {
    if (files.length === 0) fail(`no test file matches ${paths[index]}: give a part of a path below test/`)
  })
  return [...new Set(found.flat())]
}

/** The file that has been running for longer than `ms`. */
const overdue = (
  events: readonly TestEvent[],
  since: Map<string, number>,
  ms: number,
): string | undefined => {
  for (const event of events) {
    if (event.kind === 'began' && !since.has(event.file)) since.set(event.file, performance.now())
    if (event.kind === 'ended') since.set(event.file, Infinity)
  }
  return [...since].find(([, began]) => performance.now() - began > ms)?.[0]
}

/** Ends Jest and its workers, which are in its process group. */
const end = (jest: ChildProcess): void => {
  try {
    if (jest.pid !== undefined) process.kill(-jest.pid, 'SIGKILL')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

/**
 * How long Jest may take to end after its report is written: a server or timer of the set-up that
 * is left open keeps it alive.
 */
const endsWithinMs = 60_000

/** Waits for Jest's end. @returns what was wrong with it, if anything */
const watch = async (
  jest: ChildProcess,
  files: { events: string; report: string },
  minutes: number,
): Promise<string[]> => {
  const ended = new Promise<true>((resolve) => jest.once('exit', () => resolve(true)))
  const since = new Map<string, number>()
  let reportedAt: number | undefined
  while (!(await Promise.race([ended, sleep(1_000, false)]))) {
    const late = overdue(readEvents(files.events), since, minutes * 60_000)
    if (late !== undefined) {
      end(jest)
      return [`${relative(checkout, late)} did not end within ${minutes} minutes`]
    }
    if (existsSync(files.report)) reportedAt ??= performance.now()
    if (reportedAt !== undefined && performance.now() - reportedAt > endsWithinMs) {
      end(jest)
      return [
        `Jest did not end within ${endsWithinMs / 1_000} s after its report: the global set-up or ` +
          'teardown leaves something open',
      ]
    }
  }
  return []
}

const readReport = (file: string): JestReport | undefined => {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as JestReport
  } catch {
    return undefined
  }
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
  if (verdict.problems.length > 0)
    lines.push('', 'Why this run failed:', ...verdict.problems.map((problem) => `  ${problem}`))
  lines.push('', `${verdict.passed} passed, ${verdict.failed} failed`)
  process.stdout.write(`${lines.join('\n')}\n`)
}

const { values, positionals } = readArguments(
  {
    usage,
    options: {
      testNamePattern: { type: 'string', short: 't' },
      workers: { type: 'string', default: '3' },
      minutes: { type: 'string', default: '40' },
      report: { type: 'string' },
      verbose: { type: 'boolean', default: false },
    },
    positionals: [0, Infinity],
  },
  (read) => read,
)
const selected = select(positionals)

const root = mkdtempSync(join(tmpdir(), 'orrery-'))
// PostgreSQL and tasks of other accounts work below it.
chmodSync(root, 0o1777)
const remover = removeAtEnd(root, { processes: true, spawner: 'jest-worker' })
const files = { events: join(root, 'events.jsonl'), report: join(root, 'report.json') }
const jest = spawn(
  process.execPath,
  [
    '--experimental-vm-modules',
    '--disable-warning=ExperimentalWarning',
    join(checkout, 'node_modules/jest/bin/jest.js'),
    '--json',
    `--outputFile=${files.report}`,
    `--maxWorkers=${values.workers}`,
    ...(values.verbose ? ['--verbose'] : []),
    ...(values.testNamePattern === undefined ? [] : [`--testNamePattern=${values.testNamePattern}`]),
    '--runTestsByPath',
    ...selected,
  ],
  {
    cwd: checkout,
    detached: true,
    // Jest writes its report to its standard output as well.
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { ...process.env, TMPDIR: root, ORRERY_TEST_ROOT: root, ORRERY_TEST_EVENTS: files.events },
  },
)
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
  process.on(signal, () => {
    end(jest)
  })
const failures = await watch(jest, files, Number(values.minutes))
const verdict = judge({
  selected: selected.map((file) => join(checkout, file)),
  report: readReport(files.report),
  events: readEvents(files.events),
  failures,
  checkout,
})
print(verdict)
if (values.report !== undefined) writeFileSync(values.report, `${JSON.stringify(verdict, undefined, 2)}\n`)
await remover.leave()
process.exitCode = verdict.success ? 0 : 1
