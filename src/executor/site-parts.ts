import type { Db } from '../db/sql.ts'
import type { RuntimeDriver } from '../drivers/runtime/driver.ts'
import type { Patience, TransferFacts } from './attempt.ts'
import type { HostCores } from './host-cores.ts'
import type { Wakes } from './wakes.ts'

/** What a site of a run is executed with. */
export interface SiteParts {
  db: Db
  driver: RuntimeDriver
  /** Host or site under whose name its files are kept and its cores are leased. */
  hostId: string
  /** Real cores of that host, shared by all runs of this worker; undefined where only the site counts them. */
  cores: HostCores | undefined
  /** Names the one listener for what was brought from other sites for the task of a name, before that is handed on. */
  onTransfer?: (listener: (name: string, facts: TransferFacts) => Promise<void>) => void
  patience?: Partial<Patience>
  /** Other sites of the run in this process: they wake each other after ends. */
  wakes?: Wakes
  /**
   * How many tasks of a lane may be intended ahead of their turn while short ones run, so that one follows the other
   * without a commit in between. For sites whose `find` always answers; 0 by default.
   */
  aheadPerLane?: number
  /** Seconds since the epoch. */
  clock: () => number
  failpoint: (name: string) => void
}
