import { poll } from '../../../pacing/poll.ts'
import { quote } from '../../../shell/quote.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { openSlurmCommands } from './commands.ts'
import { placementOptions } from './request.ts'
import { endedByItself, isJobOver, reasonOf } from './state.ts'

/** The controller reports an end later than `srun` does. */
const reportWithinMs = 10_000
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
 * Why the cluster ended the job of a terminal, in its own words (`CANCELLED`, `NODE_FAIL`, `TIMEOUT
 * (TimeLimit)`); undefined where the shell ended by itself, and where the cluster does not tell.
 */
export const nodeTerminalEnd = async (shell: SiteShell, session: string): Promise<string | undefined> => {
  const commands = openSlurmCommands({
    ...{ shell, requeue: false, deadlineSeconds: commandSeconds },
    root: () => Promise.resolve('/'),
  })
  const look = async () => {
    const job = (await commands.queue()).find(({ name }) => name === jobOf(session))
    return job === undefined || isJobOver(job) ? { job } : undefined
  }
  const found = await poll(look, { everyMs: 500, deadlineMs: reportWithinMs }).catch(() => undefined)
  return found?.job === undefined || endedByItself(found.job) ? undefined : reasonOf(found.job)
}

/** Ends the job of a terminal where it is not over. May be repeated. @throws LinkError, Error */
export const removeNodeTerminal = async (shell: SiteShell, session: string): Promise<void> => {
  const limited = `timeout -k 2 ${String(commandSeconds)}`
  const { code, stderr } = await shell.run(
    `jobs=$(${limited} squeue --all -h -t PD,CF,R,S -u "$(id -u)" -n ${quote(jobOf(session))} -o %A) || exit
    [ -z "$jobs" ] || ${limited} scancel $jobs`,
  )
  if (code !== 0) throw new Error(`the job of the terminal cannot be ended: ${stderr.trim()}`)
}
