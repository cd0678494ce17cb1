import type { SlurmJob } from './jobs.ts'
import type { SlurmLimits } from './limits.ts'
import type { SlurmArray } from './request.ts'

/**
 * The scheduler of a cluster, by its commands or by its REST interface. Times are seconds since epoch by this machine's clock.
 *
 * Whatever does not answer rejects with `DriverError` class `unknown`: nothing is known then. A submit that the scheduler refuses rejects
 * with `refused` and its words; one that it has no room for now rejects with `NoRoom`: nothing was taken.
 */
export interface SlurmScheduler {
  limits(): Promise<SlurmLimits>
  /** Every job of ours that the controller still knows, ended ones too. */
  queue(): Promise<SlurmJob[]>
  /** What accounting says about arrays that were submitted at most so many seconds ago. */
  history(jobs: readonly string[], ageSeconds: number): Promise<SlurmJob[]>
  /**
   * Submits the elements `indexes` of an array whose script lies in the folder `arrays/ARRAY` of the site, and leaves its id there.
   * @returns the id.
   */
  submit(array: SlurmArray, indexes: readonly number[]): Promise<string>
  /**
   * `polite`: SIGUSR2, which asks for a cancel, to the supervisors of elements that run. `waiting`: takes out elements that wait. `whole`: ends them with everything
   * below, by force after the site's own grace.
   */
  cancel(elements: ReadonlyMap<string, readonly number[]>, how: 'polite' | 'waiting' | 'whole'): Promise<void>
}
