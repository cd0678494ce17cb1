import { reasonText } from '../../../outside-text.ts'
import { poll } from '../../../pacing/poll.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { DriverError } from '../contract/driver.ts'
import { openSlurmCommands } from './commands.ts'
import type { SlurmJob } from './jobs.ts'
import { placementOptions } from './request.ts'
import { endedByItself, isJobOver, reasonOf } from './state.ts'

/** The controller reports an end later than `srun` does, and after the epilog of the node. */
const reportWithinMs = 60_000
const commandSeconds = 30

const nameOf = (session: string): string => `orrery-console-${session}`

/**
 * The command that runs a shell on a node of the cluster, with the settings of the runtime's tasks.
 * @throws DriverError `refused` for a setting that is no line of text
 */
export const nodeTerminal = (
  session: string,
  configuration: Readonly<Record<string, unknown>>,
): readonly string[] => [
  ...['srun', '--pty', `--job-name=${nameOf(session)}`],
  ...placementOptions(session, configuration),
]

/**
 * The job of a terminal; undefined where the cluster knows none, or its commands are not here: then
 * none was started. @throws DriverError `unknown` where the cluster does not answer, LinkError
 */
const jobOf = async (shell: SiteShell, session: string): Promise<SlurmJob | undefined> => {
  const commands = openSlurmCommands({
    ...{ shell, requeue: false, deadlineSeconds: commandSeconds },
    root: () => Promise.resolve('/'),
  })
  const jobs = await commands.queue().catch((error: unknown) => {
    if (error instanceof DriverError && error.trouble === 'refused') return []
    throw error
  })
  return jobs.find(({ name }) => name === nameOf(session))
}

/**
 * Whether the cluster's will ended a job. A shell outlives a program of its job that takes too much
 * memory, and `srun` cancels a job that waits for a node when its user interrupts it.
 */
const isTaken = (job: SlurmJob): boolean =>
  !endedByItself(job) &&
  job.state !== 'OUT_OF_MEMORY' &&
  !(job.state === 'CANCELLED' && job.node === undefined)

/**
 * Why the cluster ended the job of a terminal, in its own words (`CANCELLED`, `NODE_FAIL`, `TIMEOUT
 * (TimeLimit)`); undefined where the shell or its user ended it, and where the cluster does not tell
 * within a minute. @throws LinkError
 */
export const nodeTerminalEnd = async (
  shell: SiteShell,
  session: string,
  signal: AbortSignal,
): Promise<string | undefined> => {
  const look = async () => {
    try {
      const job = await jobOf(shell, session)
      return job === undefined || isJobOver(job) ? { job } : undefined
    } catch (error) {
      if (error instanceof DriverError) return undefined
      throw error
    }
  }
  const found = await poll(look, { everyMs: 500, deadlineMs: reportWithinMs, signal })
  return found?.job !== undefined && isTaken(found.job) ? reasonOf(found.job) : undefined
}

/** Ends the job of a terminal where it is not over. May be repeated. @throws DriverError, LinkError */
export const removeNodeTerminal = async (shell: SiteShell, session: string): Promise<void> => {
  const job = await jobOf(shell, session)
  if (job === undefined || isJobOver(job)) return
  const { code, stderr } = await shell.run(`timeout -k 2 ${String(commandSeconds)} scancel ${job.job}`)
  if (code === 0) return
  const because = code === 124 ? `no answer within ${String(commandSeconds)} s` : reasonText(stderr)
  throw new DriverError('unknown', `the job of the terminal cannot be ended: ${because}`)
}
