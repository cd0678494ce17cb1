import { closeSync, existsSync, fstatSync, lstatSync, openSync, readFileSync, readSync } from 'node:fs'
import { reasonText } from '../../../outside-text.ts'
import type { Collected, LogRange, LogSlice } from '../contract/driver.ts'
import { isErrno } from '../contract/errno.ts'
import { missingOf } from '../contract/links.ts'
import { emptyResult, noEndOf } from '../contract/results.ts'
import { recordedState, type ControlFolder } from './records.ts'
import { outputManifest } from './manifest.ts'
import { leadsAt } from './planned.ts'
import { amountsFrom, type StagedFile } from './staging.ts'

/** How much of the end of the standard error is read. */
export const stderrTailBytes = 4096
/** A slice of a log is held in memory; a longer log is read in several slices. */
const largestSlice = 16 * 1024 * 1024

const absent = (error: unknown): boolean => isErrno(error, 'ENOENT', 'ENOTDIR', 'ELOOP')

const nothing: LogSlice = { bytes: Buffer.alloc(0), offset: 0, totalBytes: 0 }

/**
 * Part of a file: `limit` bytes from `offset`, or the last `tail` bytes; at most 16 MiB. A missing
 * file is empty, an offset behind the end gives no bytes.
 */
export function readSlice(path: string, range: LogRange): LogSlice {
  // Most tasks write nothing, and a thrown absence costs 0.15 ms.
  if (!existsSync(path)) return nothing
  let file: number
  try {
    file = openSync(path, 'r')
  } catch (error) {
    if (absent(error)) return nothing
    throw error
  }
  try {
    const totalBytes = fstatSync(file).size
    const wanted = 'tail' in range ? range.tail : range.limit
    const offset = 'tail' in range ? Math.max(0, totalBytes - Math.min(wanted, largestSlice)) : range.offset
    const bytes = Buffer.alloc(Math.max(0, Math.min(wanted, largestSlice, totalBytes - offset)))
    return { bytes: bytes.subarray(0, readSync(file, bytes, 0, bytes.length, offset)), offset, totalBytes }
  } finally {
    closeSync(file)
  }
}

/**
 * Part of a task's output, wherever that is now: with its runner while it runs, under its own name
 * afterwards.
 */
export function readLog(
  control: ControlFolder,
  name: string,
  stream: 'stdout' | 'stderr',
  range: LogRange,
): LogSlice {
  const file = stream === 'stdout' ? 'out' : 'err'
  const kept = control.path(name, file)
  for (;;) {
    const record = control.record(name)
    if (record?.form !== 'started' || record.exit !== undefined || existsSync(kept))
      return readSlice(kept, range)
    const slice = readSlice(control.runnerOutput(record.runner, file), range)
    // The runner may have gone on to another task: the bytes belong to this one only if it has not
    // ended.
    const now = control.record(name)
    if (now?.form === 'started' && now.exit === undefined && !existsSync(kept)) return slice
  }
}

/** None where the list cannot be read: then every file counts as the task's own. */
function readStaged(path: string): StagedFile[] {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as StagedFile[]
  } catch {
    return []
  }
}

/**
 * The expected outputs that are not in the work directory: all where it is gone, replaced, or cannot
 * be reached.
 */
export const undelivered = (
  root: string,
  expected: readonly string[],
): Pick<Collected, 'missingOutputs' | 'strayOutputs'> => {
  if (expected.length === 0) return { missingOutputs: [] }
  try {
    if (lstatSync(root, { throwIfNoEntry: false })?.isDirectory() === true)
      return missingOf(expected, leadsAt(root))
  } catch {
    // The manifest has a warning with the cause.
  }
  return { missingOutputs: [...expected] }
}

/**
 * The full result of an ended task, from its records and its work directory. Trouble with its files
 * is part of the result. After `signal`, which a cancel gives, it is cancelled.
 *
 * @throws DriverError `unknown` while there is no recorded end: it runs, was lost, or was never
 *   started.
 */
export async function collect(
  control: ControlFolder,
  runtime: string,
  hostname: string,
  name: string,
  signal: AbortSignal,
): Promise<Collected> {
  const record = control.record(name)
  const state = recordedState(record)
  if (state !== undefined && record?.form === 'tombstone')
    return emptyResult(state, { at: record.at, runtime, hostname })
  if (state?.state !== 'ended' || record?.form !== 'started' || record.exit === undefined) throw noEndOf(name)
  const { startedAt, exit, limits } = record
  const { directory, expectedOutputs, submittedAt, sources } = record.facts
  const staged = record.facts.staged === false ? [] : readStaged(control.path(name, 'staged'))
  const manifest = await outputManifest({ runtime, hostname, root: directory, staged, startedAt, signal })
  return {
    state: signal.aborted ? { ...state, reason: 'cancelled' } : state,
    submittedAt: Math.min(submittedAt, startedAt),
    wallSeconds: exit.wallSeconds,
    cpuSeconds: exit.cpuSeconds,
    peakMemoryBytes: exit.peakMemoryBytes,
    measuredBy: 'rusage',
    manifest,
    ...(sources === undefined ? {} : { staged: amountsFrom(sources, staged) }),
    ...undelivered(directory, expectedOutputs),
    stderrTail: reasonText(readSlice(control.path(name, 'err'), { tail: stderrTailBytes }).bytes),
    ...(limits === undefined ? {} : { detail: { limits } }),
  }
}
