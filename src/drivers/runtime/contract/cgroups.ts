import { readProgram } from '../../../shell/program.ts'
import { quote } from '../../../shell/quote.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'

/**
 * Functions of POSIX `sh` with which tasks get cgroups of their own: one rule for this machine and
 * for every host.
 */
export const cgroupFunctions = readProgram(import.meta.dirname, 'cgroups.sh')
const asking = `${cgroupFunctions}${readProgram(import.meta.dirname, 'room.sh')}`

/**
 * For `sh -c`, with a process as `$1`: moves it into a cgroup of its own where only that helps.
 * Prints the folder for cgroups and, in version 1, the folder of the process's own memory cgroup in
 * a second line; nothing where the account cannot make any.
 */
export const roomScript = `${asking}[ -z "$room" ] || printf '%s\\n%s\\n' "$room" "\${memories:+$memories$ours}"`

/**
 * How a task's memory limit is enforced: a cgroup of its own, RLIMIT_DATA of each process, or
 * nothing.
 */
export const memoryLimits = ['cgroup', 'rlimit', 'none'] as const
export type MemoryLimit = (typeof memoryLimits)[number]

const limitsScript =
  `${asking}if [ -n "$room" ]; then echo cgroup; elif (ulimit -d 1048576) 2> /dev/null; then ` +
  'echo rlimit; else echo none; fi'

/** The best of `memoryLimits` that a shell's account has. The trial leaves nothing behind. */
export const siteMemoryLimit = async (shell: SiteShell, deadlineMs: number): Promise<MemoryLimit> => {
  const { stdout, stderr } = await shell.run(`sh -c ${quote(limitsScript)} < /dev/null`, { deadlineMs })
  const word = memoryLimits.find((limit) => limit === stdout.toString().trim())
  if (word === undefined)
    throw new Error(
      `the host's answer does not name what holds tasks to their memory: ${stderr.trim().slice(0, 500)}`,
    )
  return word
}

/** One sentence, for people. */
export const memoryLimitWords: Readonly<Record<MemoryLimit, string>> = {
  cgroup: 'tasks are held to their memory by a cgroup each',
  rlimit:
    'each process of a task is held to twice the memory of the task and 256 MiB (RLIMIT_DATA); the ' +
    'account may make no cgroups',
  none: 'tasks are not held to their memory; the account may make no cgroups and set no RLIMIT_DATA',
}
