import type { SlurmrestdServer } from '../../../clients/slurmrestd.ts'
import { openBatchDriver } from '../batch/driver.ts'
import { openBatchSite } from '../batch/site.ts'
import type { RootedDriver } from '../contract/rooted.ts'
import { outputPatienceIn } from '../remote/context.ts'
import type { SiteShell } from '../../../shell/site-shell.ts'
import { slurmAdapter } from './adapter.ts'
import { openSlurmCommands } from './commands.ts'
import { openSlurmRest } from './rest.ts'

export interface SlurmDriverOptions {
  shell: SiteShell
  /**
   * Absolute at the site, on a file system that its compute nodes share; absent or blank:
   * `$HOME/.orrery`.
   */
  root?: string
  runtime: string
  taskVariable: string
  /**
   * partition, account, qos, reservation, constraint, walltimeFactor (default 2), `requests`
   * ({memory: false, time: false}: tasks ask for no memory, no time limit), `requeue`
   * (default false: a task that Slurm took away is lost, and a new attempt replaces it),
   * commandSeconds (default 30), settleSeconds (default 30), accountingPatienceSeconds (default 4
   * h), claimSeconds (default 60), outputPatienceSeconds (default 60).
   */
  configuration: Readonly<Record<string, unknown>>
  /** Query over HTTP instead of by commands. */
  slurmrestd?: SlurmrestdServer
  /**
   * Pause between two queries to the scheduler, default 10 s: the tasks themselves report their
   * ends at once.
   */
  pollMilliseconds?: number
}

const numberIn = (
  configuration: Readonly<Record<string, unknown>>,
  key: string,
  otherwise: number,
): number => {
  const value = configuration[key]
  return typeof value === 'number' && Number.isFinite(value) && value >= 0 ? value : otherwise
}

/**
 * Tasks as elements of Slurm's job arrays: `batch/driver.ts` over Slurm's commands or `slurmrestd`.
 */
export function openSlurmDriver(options: SlurmDriverOptions): RootedDriver {
  const { configuration, slurmrestd, pollMilliseconds = 10_000 } = options
  const site = openBatchSite({ ...options, ...outputPatienceIn(configuration) })
  const requeue = configuration['requeue'] === true
  const { shell, root } = site
  const common = { shell, root, requeue, deadlineSeconds: numberIn(configuration, 'commandSeconds', 30) }
  const adapter = slurmAdapter({
    site,
    scheduler:
      slurmrestd === undefined ? openSlurmCommands(common) : openSlurmRest({ ...common, ...slurmrestd }),
    configuration,
    requeue,
    patience: {
      settleSeconds: numberIn(configuration, 'settleSeconds', 30),
      historySeconds: numberIn(configuration, 'accountingPatienceSeconds', 4 * 3600),
    },
    claimSeconds: numberIn(configuration, 'claimSeconds', 60),
    pollMilliseconds,
  })
  return openBatchDriver(site, adapter, { pollMilliseconds })
}
