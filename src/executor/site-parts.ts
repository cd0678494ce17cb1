import type { Db } from '../db/sql.ts'
import type { Patience } from './attempt.ts'
import type { OpenSite } from './drivers.ts'
import type { CoreShare } from './host-cores.ts'
import type { Intents, SitePlan } from './intents.ts'
import type { SiteReports } from './reports.ts'
import type { SchedulingState } from './scheduling-state.ts'
import type { RunWakeUps } from './wake-ups.ts'

/** The parts for executing a site of a run. */
export interface SiteParts extends Omit<OpenSite, 'closeScope'> {
  db: Db
  /**
   * When its run was accepted, in seconds since the epoch: of two claims to cores the earlier one
   * wins.
   */
  acceptedAt?: number
  patience?: Partial<Patience>
  /** Other sites of the run in this process: they wake each other after ends. */
  wakeUps?: RunWakeUps
  /** As in `SchedulingFacts`. */
  machine?: string | undefined
  onlyEnds?: boolean
  /** The metrics and the log. */
  reports?: SiteReports
  /** Seconds since the epoch. */
  clock: () => number
  /** Seconds of a monotonic clock, for what is due in this process; default: that of the process. */
  monotonic?: () => number
  failpoint: (name: string) => void
}

/** A site of a run while this executor holds its lease. */
export interface HeldSite extends Omit<SiteParts, 'cores'> {
  /** This run's share of the cores. */
  cores: CoreShare | undefined
  plan: SitePlan
  state: SchedulingState
  intents: Intents
  /** The epoch of the lease. */
  epoch: number
  /** Aborted when the worker is drained, or the activity is cancelled. */
  signal: AbortSignal
}
