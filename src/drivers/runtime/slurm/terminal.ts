import { reasonText } from '../../../outside-text.ts'
import { poll } from '../../../pacing/poll.ts'
import { quote } from '../../../shell/quote.ts'
import { LinkError, type SiteShell } from '../../../shell/site-shell.ts'
import { DriverError } from '../contract/driver.ts'
import { openSlurmCommands, plainEnvironment } from './commands.ts'
import type { SlurmJob } from './jobs.ts'
import { placementOptions } from './request.ts'
import { endedByItself, isJobOver, reasonOf } from './state.ts'

/** The controller reports an end later than `srun` does, and after the epilog of the node. */
const reportWithinMs = 60_000
const commandSeconds = 30

const jobOf = (session: string): string => `orrery-console-${session}`

/**
 * The command that runs a shell on a node of the cluster, with the settings of the runtime's tasks.
 * @throws DriverError `refused` for a setting that is no line of text
 */
export const nodeTerminal = (
  session: string,
  configuration: Readonly<Record<string, unknown>>,
): readonly string[] => [
  ...['srun', '--pty', `--job-name=${jobOf(session)}`],
  ...placementOptions(session, configuration),
]

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
  const commands = openSlurmCommands({
    ...{ shell, requeue: false, deadlineSeconds: commandSeconds },
    root: () => Promise.resolve('/'),
  })
  const look = async () => {
    const jobs = await commands.queue().catch((error: unknown) => {
      if (error instanceof DriverError && !(error.cause instanceof LinkError))
        return error.trouble === 'unknown' ? undefined : []
      throw error
    })
    const job = jobs?.find(({ name }) => name === jobOf(session))
    return jobs !== undefined && (job === undefined || isJobOver(job)) ? { job } : undefined
  }
  const found = await poll(look, { everyMs: 500, deadlineMs: reportWithinMs, signal })
  return found?.job !== undefined && isTaken(found.job) ? reasonOf(found.job) : undefined
}

/**
 * Ends the job of a terminal where it is not over. A login node without Slurm's commands has started
 * none. May be repeated. @throws LinkError, Error
 */
export const removeNodeTerminal = async (shell: SiteShell, session: string): Promise<void> => {
  const limited = `timeout -k 2 ${String(commandSeconds)}`
  const { code, stderr } = await shell.run(
    `${plainEnvironment}command -v squeue > /dev/null || exit 0
    jobs=$(${limited} squeue --all -h -t PD,CF,R,S,ST,RQ,RH,SE -u "$(id -u)" -n ${quote(jobOf(session))} \
      -o %A) || exit
    [ -z "$jobs" ] || ${limited} scancel $jobs`,
  )
  if (code === 0) return
  const because = code === 124 ? `no answer within ${String(commandSeconds)} s` : reasonText(stderr)
  throw new Error(`the job of the terminal cannot be ended: ${because}`)
}
