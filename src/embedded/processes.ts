import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { basename } from 'node:path'
import { poll } from '../pacing/poll.ts'

/**
 * A process that cannot be confused with a later one of the same id: `startTicks` is its start in
 * clock ticks since boot.
 */
export interface KnownProcess {
  pid: number
  startTicks: number
}

/**
 * The start of a process in clock ticks since boot (field 22 of /proc/PID/stat), undefined when
 * none runs under the id; a zombie does not run.
 */
export const startTicks = (pid: number): number | undefined => {
  const stat = readOrUndefined(() => readFileSync(`/proc/${pid}/stat`, 'latin1'))
  if (stat === undefined) return undefined
  // The program's name may contain blanks and brackets: fields count from the last closing one.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return fields[0] === 'Z' || fields[0] === 'X' ? undefined : Number(fields[19])
}

export const identify = (pid: number): KnownProcess | undefined => {
  const ticks = startTicks(pid)
  return ticks === undefined ? undefined : { pid, startTicks: ticks }
}

export const stillRuns = ({ pid, startTicks: ticks }: KnownProcess): boolean => startTicks(pid) === ticks

/**
 * Processes of the executable `program` that work in folder `directory`: a PostgreSQL server and
 * its backends never leave their data folder.
 */
export const processesWorkingIn = (program: string, directory: string): KnownProcess[] =>
  processes(
    (pid) =>
      executableName(pid) === program &&
      readOrUndefined(() => readlinkSync(`/proc/${pid}/cwd`)) === directory,
  )

/** Processes of the executable `program` that received `argument`. */
export const processesGiven = (program: string, argument: string): KnownProcess[] =>
  processes(
    (pid) =>
      executableName(pid) === program &&
      (readOrUndefined(() => readFileSync(`/proc/${pid}/cmdline`, 'utf8'))
        ?.split('\0')
        .includes(argument) ??
        false),
  )

/**
 * Ends processes: by `soft` first, by force those that are alive after `patienceSeconds`. Resolves
 * when none is left.
 */
export const endProcesses = async (
  targets: () => KnownProcess[],
  soft: NodeJS.Signals,
  patienceSeconds: number,
): Promise<void> => {
  for (const target of targets()) signalKnown(target, soft)
  const deadline = Date.now() + patienceSeconds * 1000
  await poll(
    () => {
      const left = targets()
      if (Date.now() > deadline) for (const target of left) signalKnown(target, 'SIGKILL')
      return left.length === 0 ? true : undefined
    },
    { everyMs: 20 },
  )
}

/** Signals a process if it is still the intended one. */
export const signalKnown = (target: KnownProcess, name: NodeJS.Signals): void => {
  if (!stillRuns(target)) return
  try {
    process.kill(target.pid, name)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

const processes = (wanted: (pid: number) => boolean): KnownProcess[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter(wanted)
    .map(identify)
    .filter((found) => found !== undefined)

const executableName = (pid: number): string | undefined => {
  const path = readOrUndefined(() => readlinkSync(`/proc/${pid}/exe`))
  // The kernel adds this mark to a program that was replaced on disk while it runs.
  return path === undefined ? undefined : basename(path.replace(/ \(deleted\)$/, ''))
}

/**
 * Processes come and go during the reads, and those of other users are unreadable: both give
 * undefined.
 */
export const readOrUndefined = <T>(read: () => T): T | undefined => {
  try {
    return read()
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    if (code === 'ENOENT' || code === 'ESRCH' || code === 'EACCES' || code === 'EPERM') return undefined
    throw error
  }
}
