import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { basename } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/** A process that cannot be mistaken for a later one with the same id: `startTicks` is its start in clock ticks since boot. */
export interface ProcessIdentity {
  pid: number
  startTicks: number
}

/** The start of a process in clock ticks since boot (field 22 of /proc/PID/stat), undefined when none runs under the id; a zombie does not run. */
export const startTicks = (pid: number): number | undefined => {
  const stat = readOrUndefined(() => readFileSync(`/proc/${pid}/stat`, 'latin1'))
  if (stat === undefined) return undefined
  // The program's name may hold blanks and brackets: fields count from the last closing one.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return fields[0] === 'Z' || fields[0] === 'X' ? undefined : Number(fields[19])
}

export const identify = (pid: number): ProcessIdentity | undefined => {
  const ticks = startTicks(pid)
  return ticks === undefined ? undefined : { pid, startTicks: ticks }
}

export const isAlive = ({ pid, startTicks: ticks }: ProcessIdentity): boolean => startTicks(pid) === ticks

/** Processes of the executable `program` that work in folder `directory`: a PostgreSQL server and its backends never leave their data folder. */
export const processesWorkingIn = (program: string, directory: string): ProcessIdentity[] =>
  processes((pid) => executableName(pid) === program && readOrUndefined(() => readlinkSync(`/proc/${pid}/cwd`)) === directory)

/** Processes of the executable `program` that were given `argument`. */
export const processesGiven = (program: string, argument: string): ProcessIdentity[] =>
  processes(
    (pid) =>
      executableName(pid) === program &&
      (readOrUndefined(() => readFileSync(`/proc/${pid}/cmdline`, 'utf8'))
        ?.split('\0')
        .includes(argument) ??
        false),
  )

/** Ends processes: `soft` first, by force those that are alive after `patienceSeconds`. Resolves when none is left. */
export const endProcesses = async (targets: () => ProcessIdentity[], soft: NodeJS.Signals, patienceSeconds: number): Promise<void> => {
  for (const target of targets()) signal(target, soft)
  const deadline = Date.now() + patienceSeconds * 1000
  for (let left = targets(); left.length > 0; left = targets()) {
    if (Date.now() > deadline) for (const target of left) signal(target, 'SIGKILL')
    await sleep(20)
  }
}

/** Signals a process if it is still the one that was meant. */
export const signal = (target: ProcessIdentity, name: NodeJS.Signals): void => {
  if (!isAlive(target)) return
  try {
    process.kill(target.pid, name)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

const processes = (wanted: (pid: number) => boolean): ProcessIdentity[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter(wanted)
    .map(identify)
    .filter((found) => found !== undefined)

const executableName = (pid: number): string | undefined => {
  const path = readOrUndefined(() => readlinkSync(`/proc/${pid}/exe`))
  // A program that was replaced on disk while it runs is shown with this mark.
  return path === undefined ? undefined : basename(path.replace(/ \(deleted\)$/, ''))
}

/** Processes come and go while they are looked at, and those of other users are closed to us: both read as nothing. */
export const readOrUndefined = <T>(read: () => T): T | undefined => {
  try {
    return read()
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    if (code === 'ENOENT' || code === 'ESRCH' || code === 'EACCES' || code === 'EPERM') return undefined
    throw error
  }
}
