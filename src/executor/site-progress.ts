import type { SchedulingState, Step } from './scheduling-state.ts'
import type { SiteReports } from './reports.ts'

/** Facts of a site after each of its steps. */
export interface SiteProgress {
  completed: number
  running: number
  paused: boolean
  /** Counts steps after which a resting site has a task that may start, or that died. */
  wakes: number
  /** Counts failures and changes of the reasons for which tasks wait. */
  changes: number
}

/** Cores come and go with each task: only whether any task waits for one is a change. */
const changesIn = ({ entry }: Step): number =>
  entry.states.filter(({ reason, waitsFor }) => reason !== undefined && waitsFor !== 'cores').length +
  entry.ends.filter(({ status }) => status === 'failed').length

/** The kinds of waits at the site. */
const kindsOf = ({ waits }: SchedulingState): string =>
  [...new Set(Array.from(waits.values(), ({ kind }) => kind))].toSorted().join()

/** Counts what a site's steps have that its page on Temporal shows at once. */
export const openChangeCount = () => {
  let total = 0
  let kinds = ''
  return {
    count(step: Step, state: SchedulingState): void {
      const before = kinds
      kinds = kindsOf(state)
      total += changesIn(step) + (kinds === before ? 0 : 1)
    },
    get total() {
      return total
    },
  }
}

/** Reports the attempts, transfers and waits of a committed step. */
export const reportStep = (reports: SiteReports, { entry: { ends, transfers }, waited }: Step): void => {
  for (const { activityId, attempt, status, failureClass, exitCode, failureReason: reason } of ends)
    reports.attemptEnded({ activityId, attempt, status, failureClass, exitCode, reason })
  for (const { strategy, bytes } of transfers) reports.transferred(strategy, bytes)
  for (const { kind, seconds } of waited) reports.waited(kind, seconds)
}
