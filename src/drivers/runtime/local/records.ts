import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { poll } from '../../../pacing/poll.ts'
import { memoryLimits, type MemoryLimit } from '../contract/cgroups.ts'
import type { EndReason, TaskState } from '../contract/driver.ts'
import { isErrno } from '../contract/errno.ts'
import { buriedEnd, endedState, signalNames } from '../contract/results.ts'
import { isAlive, type ProcessIdentity } from './processes.ts'

/**
 * The files of a task in the control folder, which is apart from its work directory: `NAME.task`,
 * its record; `NAME.out` and `NAME.err` if it wrote something; `NAME.staged`, the files that were
 * there before; `NAME.cancel` if a cancel was requested.
 *
 * The record is created exclusively before exec, so a name starts once, and grows by whole lines:
 * facts, runner, limits, task, exit. A line without its end does not count yet. While a task runs
 * its output is in the files of its runner.
 *
 * Records of a runner's tasks share a file, each line beginning with the task's name: `NAME.task`
 * is one more hard link to it, which is as exclusive as a new file and costs no inode (0.3 ms and
 * more of processor time on a disk in use). Records of earlier versions have a file each, and lines
 * without the name.
 *
 * Reads are synchronous: some hundred bytes from the local disk cost 10 µs, against 60 µs of
 * processor time for an asynchronous read.
 */

/** First line of the record: the facts that a new driver needs. */
export interface LocalTaskFacts {
  directory: string
  expectedOutputs: readonly string[]
  /** Seconds since epoch. */
  submittedAt: number
  /** False: no file was there before it. */
  staged?: boolean
  /** The source folders of its staged files, in the intent's order. */
  sources?: readonly string[]
}

export interface TaskExit {
  exitCode: number | null
  signal: string | null
  reason: EndReason
  finishedAt: number
  wallSeconds: number
  cpuSeconds: number
  peakMemoryBytes: number
}

export interface StartedRecord {
  form: 'started'
  facts: LocalTaskFacts
  runner: ProcessIdentity
  /** Boot id of the system on which it was started. */
  boot: string
  startedAt: number
  /** How its memory limit is enforced; absent where it has none. */
  limits?: MemoryLimit
  /** Absent until its process exists. */
  task?: ProcessIdentity
  /** Absent until it and all its descendants have ended. */
  exit?: TaskExit
}

export type LocalTaskRecord =
  | StartedRecord
  /** A process is writing it at this moment, or died while doing so. */
  | { form: 'incomplete'; changedAt: number }
  /** Cancelled before its start; it will never start. */
  | { form: 'tombstone'; at: number }

export interface ControlFolder {
  root: string
  path(name: string, file: 'task' | 'out' | 'err' | 'staged' | 'cancel'): string
  record(name: string): LocalTaskRecord | undefined
  /** Ensures that the name never starts. False if it has a record already. */
  bury(name: string): boolean
  askToStop(name: string, graceSeconds: number): void
  /** The output file of a running task. */
  runnerOutput(runner: ProcessIdentity, file: 'out' | 'err'): string
  forget(name: string): void
}

function parseExit(line: string): TaskExit | undefined {
  const [word, finishedAt, code, signal, reason, wallSeconds, cpuSeconds, peakMemoryBytes] = line.split(' ')
  if (word !== 'exit') return undefined
  const number = Number(signal)
  return {
    exitCode: number === 0 ? Number(code) : null,
    signal: number === 0 ? null : (signalNames.get(number) ?? `SIG${number}`),
    reason: reason as EndReason,
    finishedAt: Number(finishedAt),
    wallSeconds: Number(wallSeconds),
    cpuSeconds: Number(cpuSeconds),
    peakMemoryBytes: Number(peakMemoryBytes),
  }
}

/** Lines of one task, without its name. Text after the last line end does not count yet. */
function linesOf(text: string, name: string): string[] {
  if (text.startsWith('{') || text.startsWith('cancelled ')) return text.split('\n').slice(0, -1)
  const lines: string[] = []
  const prefix = `${name} `
  for (let at = 0, end = text.indexOf('\n'); end !== -1; at = end + 1, end = text.indexOf('\n', at))
    if (text.startsWith(prefix, at)) lines.push(text.slice(at + prefix.length, end))
  return lines
}

function parseRecord(text: string, name: string): LocalTaskRecord | undefined {
  const [first, second, ...rest] = linesOf(text, name)
  if (first === undefined) return undefined
  const buried = /^cancelled (\S+)$/.exec(first)
  if (buried !== null) return { form: 'tombstone', at: Number(buried[1]) }
  const runner = /^runner (\d+) (\d+) (\S+) (\S+)$/.exec(second ?? '')
  if (runner === null) return undefined
  const [, pid, birth, boot = '', startedAt] = runner
  const started: StartedRecord = {
    form: 'started',
    facts: JSON.parse(first) as LocalTaskFacts,
    runner: { pid: Number(pid), birth: Number(birth) },
    boot,
    startedAt: Number(startedAt),
  }
  for (const line of rest) {
    const task = /^task (\d+) (\d+)$/.exec(line)
    const exit = parseExit(line)
    const limits = memoryLimits.find((limit) => line === `limits ${limit}`)
    if (limits !== undefined) started.limits = limits
    if (task !== null) started.task = { pid: Number(task[1]), birth: Number(task[2]) }
    if (exit !== undefined) started.exit = exit
  }
  return started
}

/** `root` holds the records of all tasks; names are `[a-z0-9-]`, so they are safe in file names. */
export function openControlFolder(root: string): ControlFolder {
  const path: ControlFolder['path'] = (name, file) => join(root, `${name}.${file}`)
  const runnerOutput: ControlFolder['runnerOutput'] = ({ pid, birth }, file) =>
    join(root, `runner-${pid}-${birth}.${file}`)
  mkdirSync(root, { recursive: true, mode: 0o700 })

  const record = (name: string): LocalTaskRecord | undefined => {
    // A thrown absence costs 0.15 ms.
    if (!existsSync(path(name, 'task'))) return undefined
    try {
      const text = readFileSync(path(name, 'task'), 'utf8')
      return (
        parseRecord(text, name) ?? {
          form: 'incomplete',
          changedAt: statSync(path(name, 'task')).mtimeMs / 1000,
        }
      )
    } catch (error) {
      if (isErrno(error, 'ENOENT')) return undefined
      throw error
    }
  }

  return {
    root,
    path,
    record,
    runnerOutput,
    bury(name) {
      try {
        writeFileSync(path(name, 'task'), `cancelled ${Date.now() / 1000}\n`, { flag: 'wx', mode: 0o600 })
        return true
      } catch (error) {
        if (isErrno(error, 'EEXIST')) return false
        throw error
      }
    },
    askToStop(name, graceSeconds) {
      writeFileSync(path(name, 'cancel'), `${graceSeconds}\n`, { mode: 0o600 })
    },
    forget(name) {
      const old = record(name)
      if (old?.form === 'started' && old.exit === undefined && !isAlive(old.runner)) {
        for (const file of ['out', 'err'] as const) rmSync(runnerOutput(old.runner, file), { force: true })
      }
      for (const file of ['out', 'err', 'staged', 'cancel', 'task'] as const)
        rmSync(path(name, file), { force: true })
    },
  }
}

/** The state from the record alone; undefined where only a look at the processes can give it. */
export function recordedState(record: LocalTaskRecord | undefined): TaskState | undefined {
  if (record === undefined) return { state: 'unknown' }
  if (record.form === 'tombstone') return buriedEnd(record.at)
  if (record.form === 'incomplete' || record.exit === undefined) return undefined
  const { startedAt, exit } = record
  return endedState({ ...exit, startedAt }, externalId(record), exit.reason)
}

/** The site's own name of a task is its process id. */
export function externalId(record: LocalTaskRecord): string {
  return record.form === 'started' ? String((record.task ?? record.runner).pid) : 'none'
}

/** Waits until the record names the runner, at most a second: its writer needs microseconds. */
export async function settledRecord(
  control: ControlFolder,
  name: string,
): Promise<LocalTaskRecord | undefined> {
  let record: LocalTaskRecord | undefined
  const settled = (): boolean => {
    record = control.record(name)
    return record?.form === 'started'
      ? record.task !== undefined || record.exit !== undefined
      : record?.form !== 'incomplete'
  }
  await poll(() => settled() || undefined, { everyMs: 10, deadlineMs: 1_000 })
  return record
}
