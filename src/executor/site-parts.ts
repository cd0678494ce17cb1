import type { Db } from '../db/sql.ts'
import type { RuntimeDriver } from '../drivers/runtime/contract/driver.ts'
import type { Patience, TransferFacts } from './attempt.ts'
import type { SiteReports } from './reports.ts'
import type { HostCores } from './host-cores.ts'
import type { RunWakeUps } from './wake-ups.ts'

/** The parts for executing a site of a run. */
export interface SiteParts {
  db: Db
  driver: RuntimeDriver
  /** Host or site under which its files are kept and its cores are leased. */
  hostId: string
  /**
   * Real cores of that host, shared by all runs of this worker; undefined where only the site
   * counts them.
   */
  cores: HostCores | undefined
  /**
   * When its run was accepted, in seconds since the epoch: of two claims to cores the earlier one
   * wins.
   */
  acceptedAt?: number
  /**
   * Sets the one listener for transfers from other sites for a task, called before the task is
   * passed on.
   */
  onTransfer?: (listener: (name: string, facts: TransferFacts) => Promise<void>) => void
  patience?: Partial<Patience>
  /** Other sites of the run in this process: they wake each other after ends. */
  wakeUps?: RunWakeUps
  /** As in `SchedulingFacts`. */
  machine?: string | undefined
  onlyEnds?: boolean
  /** The metrics and the log. */
  reports?: SiteReports
  /**
   * How many tasks of a lane may be intended ahead of their turn while short ones run, so that each
   * follows the one before without a commit in between. For sites whose `find` always answers; 0 by
   * default.
   */
  aheadPerLane?: number
  /** Seconds since the epoch. */
  clock: () => number
  failpoint: (name: string) => void
}
