import type { SlurmJob } from './jobs.ts'
import type { SlurmLimits } from './limits.ts'
import type { SlurmArray } from './request.ts'

/**
 * The scheduler of a cluster, by its commands or by its REST interface. Times are seconds since
 * epoch by this machine's clock.
 *
 * A call without an answer rejects with `DriverError` class `unknown`: nothing is known then. A
 * submit that the scheduler refuses rejects with `refused` and the scheduler's message; one for
 * which it has no room now rejects with `NoRoom`: it accepted nothing.
 */
export interface SlurmScheduler {
  limits(): Promise<SlurmLimits>
  /** Every job of ours that the controller lists, of hidden partitions and ended ones too. */
  queue(): Promise<SlurmJob[]>
  /** The controller's records of these arrays, asked by their ids; none of an id that it denies. */
  jobs(ids: readonly string[]): Promise<SlurmJob[]>
  /** The records of accounting about arrays that were submitted at most so many seconds ago. */
  history(jobs: readonly string[], ageSeconds: number): Promise<SlurmJob[]>
  /**
   * Submits the elements `indexes` of an array whose script is in the folder `arrays/ARRAY` of the
   * site, and leaves its id there.
   * @returns the id.
   */
  submit(array: SlurmArray, indexes: readonly number[]): Promise<string>
  /**
   * `polite`: SIGUSR2, which requests a cancel, to the supervisors of running elements. `waiting`:
   * removes waiting elements. `whole`: ends them with all their processes, by force after the
   * site's own grace. `name`: only of jobs with this name, as far as the scheduler can do that; else
   * none.
   */
  cancel(
    elements: ReadonlyMap<string, readonly number[]>,
    how: 'polite' | 'waiting' | 'whole',
    name?: string,
  ): Promise<void>
}
