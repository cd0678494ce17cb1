import { spawn, type ChildProcess } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { removeAtEnd } from '../../sites/remover.ts'
import { readEvents, type TestEvent } from './events.ts'
import type { Round } from './judge.ts'

export interface RoundOptions {
  checkout: string
  /** The folder of the run; the round has one of its own below it. */
  root: string
  /** As `root`, for the servers of the round and Jest's cache. */
  memory: string
  /** Files at once. */
  workers: number
  /** The time that one file may take. */
  minutes: number
  testNamePattern: string | undefined
  verbose: boolean
  /** Ends the round. */
  signal: AbortSignal
}

const minuteMs = 60_000

/** How long the global set-up may take before the first file begins. */
const setUpMs = 10 * minuteMs

/** How long Jest may take to end after the last file: a server that is left open keeps it alive. */
const tearDownMs = 5 * minuteMs

/**
 * Starts Jest once with these files and waits for its end. PostgreSQL, Temporal and all that tests
 * leave behind live in a folder of the round, and end with it: a later round starts with nothing
 * beside it.
 * @param files absolute paths
 */
export const playRound = async (
  files: readonly string[],
  number: number,
  { checkout, root, memory, workers, minutes, testNamePattern, verbose, signal }: RoundOptions,
): Promise<Round> => {
  const [folder, servers] = [join(root, String(number)), join(memory, `${String(number)}-servers`)]
  mkdirSync(folder)
  mkdirSync(servers)
  // PostgreSQL and tasks of other accounts work below them.
  chmodSync(servers, 0o711)
  chmodSync(folder, 0o1777)
  const removers = [folder, servers].map((each) =>
    removeAtEnd(each, { processes: true, spawner: 'jest-worker' }),
  )
  const paths = { events: join(folder, 'events.jsonl'), report: join(folder, 'report.json') }
  const jest = spawn(
    process.execPath,
    [
      '--experimental-vm-modules',
      '--disable-warning=ExperimentalWarning',
      join(checkout, 'node_modules/jest/bin/jest.js'),
      '--json',
      `--outputFile=${paths.report}`,
      `--cacheDirectory=${join(memory, 'jest')}`,
      `--maxWorkers=${workers}`,
      ...(verbose ? ['--verbose'] : []),
      ...(testNamePattern === undefined ? [] : [`--testNamePattern=${testNamePattern}`]),
      '--runTestsByPath',
      ...files,
    ],
    {
      cwd: checkout,
      detached: true,
      // Jest writes its report to its standard output as well.
      stdio: ['ignore', 'ignore', 'inherit'],
      env: {
        ...process.env,
        TMPDIR: folder,
        ORRERY_TEST_ROOT: folder,
        ORRERY_TEST_SHARED: root,
        ORRERY_TEST_MEMORY: servers,
        ORRERY_TEST_EVENTS: paths.events,
        ...(number === 1 ? {} : { ORRERY_TEST_AGAIN: 'true' }),
      },
    },
  )
  const stop = (): void => {
    end(jest)
  }
  signal.addEventListener('abort', stop)
  if (signal.aborted) stop()
  const wrong = await watch(jest, files, paths, minutes * minuteMs)
  signal.removeEventListener('abort', stop)
  const round = { files, events: readEvents(paths.events), ...wrong }
  for (const remover of removers) await remover.clear()
  return round
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
 * Waits for Jest's end, and ends it where nothing goes on. @returns what was wrong with it
 */
const watch = async (
  jest: ChildProcess,
  files: readonly string[],
  paths: { events: string; report: string },
  fileMs: number,
): Promise<Pick<Round, 'overdue' | 'problem'>> => {
  const ended = new Promise<true>((resolve) => jest.once('exit', () => resolve(true)))
  const began = performance.now()
  const beganAt = new Map<string, number>()
  let lastEnd: number | undefined
  while (!(await Promise.race([ended, sleep(1_000, false)]))) {
    const now = performance.now()
    const events = readEvents(paths.events)
    for (const file of running(events)) if (!beganAt.has(file)) beganAt.set(file, now)
    for (const file of ends(events)) beganAt.set(file, Infinity)
    const overdue = [...beganAt].find(([, at]) => now - at > fileMs)?.[0]
    if (overdue !== undefined) {
      end(jest)
      return { overdue }
    }
    if (beganAt.size === 0 && now - began > setUpMs) {
      end(jest)
      return { problem: `the global set-up did not end within ${setUpMs / minuteMs} minutes` }
    }
    if (ends(events).size === files.length) lastEnd ??= now
    if (lastEnd !== undefined && now - lastEnd > tearDownMs) {
      end(jest)
      return {
        problem:
          `Jest did not end within ${tearDownMs / minuteMs} minutes after the last file: the global ` +
          'set-up or teardown leaves something open',
      }
    }
  }
  return problemOf(readEvents(paths.events), files, paths.report)
}

const ends = (events: readonly TestEvent[]): Set<string> =>
  new Set(events.flatMap((event) => (event.kind === 'ended' ? [event.file] : [])))

const running = (events: readonly TestEvent[]): string[] =>
  events.flatMap((event) => (event.kind === 'began' ? [event.file] : []))

/**
 * What was wrong with Jest's process where each file has a result; a file without one fails by
 * itself, and its next round decides.
 */
const problemOf = (
  events: readonly TestEvent[],
  files: readonly string[],
  reportFile: string,
): Pick<Round, 'problem'> => {
  const ended = events.filter((event) => event.kind === 'ended')
  if (ends(events).size < files.length) return {}
  if (!existsSync(reportFile)) return { problem: 'Jest left no report: its global teardown failed' }
  const report = JSON.parse(readFileSync(reportFile, 'utf8')) as {
    success: boolean
    wasInterrupted: boolean
  }
  if (report.wasInterrupted) return { problem: 'Jest was interrupted' }
  const failed = ended.some(({ failures, broken }) => failures.length > 0 || broken !== undefined)
  return report.success || failed ? {} : { problem: 'Jest reports a failure that no file explains' }
}
