import { readdirSync, readFileSync } from 'node:fs'
import { isErrno } from '../contract/errno.ts'

/**
 * A process id is reused; together with the start time (clock ticks since boot, field 22 of
 * `/proc/PID/stat`) it is unique.
 */
export interface ProcessIdentity {
  pid: number
  birth: number
}

/** A file of a process that may end at any moment: a missing file is a normal answer. */
function ofProcess(pid: number, file: 'stat' | 'environ'): Buffer | undefined {
  try {
    return readFileSync(`/proc/${pid}/${file}`)
  } catch {
    // ENOENT and ESRCH: it has ended. EACCES: another user's, so not one of ours.
    return undefined
  }
}

/** The live process of that number. A zombie has ended: its parent may reap it late. */
export function processOf(pid: number): (ProcessIdentity & { group: number }) | undefined {
  const text = ofProcess(pid, 'stat')?.toString('latin1')
  if (text === undefined) return undefined
  // The command in parentheses may contain anything, blanks and parentheses too.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  const [state = '', , group] = fields
  return 'ZX'.includes(state) ? undefined : { pid, birth: Number(fields[19]), group: Number(group) }
}

/** Lets a process that a signal has stopped go on. */
export function wakeStopped(pid: number): void {
  const text = ofProcess(pid, 'stat')?.toString('latin1')
  if (text?.slice(text.lastIndexOf(')') + 2).startsWith('T') === true) signal(pid, 'SIGCONT')
}

export function isAlive(identity: ProcessIdentity): boolean {
  return processOf(identity.pid)?.birth === identity.birth
}

export function bootId(): string {
  return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
}

const cell = new Int32Array(new SharedArrayBuffer(4))

/**
 * Process ids by the value of environment variable `variable`, for the given values. During an exec
 * a process has no environment for a moment, so those without one are looked at again, for 30 ms at
 * most; kernel threads, whose group is 0, never have one.
 */
export function findMarked(variable: string, values: ReadonlySet<string>): Map<string, number[]> {
  const found = new Map<string, number[]>()
  const prefix = `${variable}=`
  let left = readdirSync('/proc')
    .map(Number)
    .filter((pid) => Number.isInteger(pid) && pid !== process.pid)
  for (let wait = 1; left.length > 0; wait *= 2) {
    const becoming: number[] = []
    for (const pid of left) {
      const environment = ofProcess(pid, 'environ')
      if (environment === undefined) continue
      if (environment.length === 0) {
        if ((processOf(pid)?.group ?? 0) !== 0) becoming.push(pid)
        continue
      }
      if (!environment.includes(prefix)) continue
      const mark = environment
        .toString('latin1')
        .split('\0')
        .find((line) => line.startsWith(prefix))
      const value = mark?.slice(prefix.length)
      if (value === undefined || !values.has(value) || processOf(pid) === undefined) continue
      const pids = found.get(value) ?? []
      pids.push(pid)
      found.set(value, pids)
    }
    left = wait <= 16 ? becoming : []
    if (left.length > 0) Atomics.wait(cell, 0, 0, wait)
  }
  return found
}

/** Sends a signal to a process (or, negative, to a group) that may have ended already. */
export function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name)
  } catch (error) {
    if (!isErrno(error, 'ESRCH')) throw error
  }
}
