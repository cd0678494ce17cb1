import { openBackoff } from '../../../pacing/backoff.ts'
import { DriverError } from '../contract/driver.ts'
import type { BatchScheduler } from './scheduler.ts'
import type { BatchSight, FoundTask } from './sight.ts'
import type { BatchSite } from './site.ts'
import { isTaskOver } from './verdict.ts'

/** Time beyond the grace in which the scheduler ends by force what does not end. */
const patienceSeconds = 120
const pauses = { firstMs: 100, longestMs: 2000, growth: 1.5 }

/** The next request to the scheduler, by the time spent and the requests before. */
export const cancelStep = (
  { politeAgain = Infinity, forcedAfterGrace = Infinity }: BatchScheduler<never, never>['cancelSteps'],
  {
    spent,
    grace,
    askedAt,
    forced,
  }: { spent: number; grace: number; askedAt: number | undefined; forced: boolean },
): 'polite' | 'forced' | undefined => {
  if (spent > grace + forcedAfterGrace) return forced ? undefined : 'forced'
  return askedAt === undefined || spent >= askedAt + politeAgain ? 'polite' : undefined
}

/**
 * Cancels tasks: buries names that have not started, asks the supervisors of the others to end
 * their tasks, and after the grace lets the scheduler end them by force. Resolves, with the arrays
 * of the cancelled tasks, when all are over. @throws DriverError `unknown` if they are not within
 * the patience
 */
export async function cancelTasks<Request, Listing>(
  {
    site,
    scheduler,
    sight,
  }: { site: BatchSite; scheduler: BatchScheduler<Request, Listing>; sight: BatchSight<Request, Listing> },
  names: readonly string[],
  graceSeconds: number,
): Promise<Set<string>> {
  const arrays = new Set<string>()
  // No supervisor has a record of tasks whose files are lost. A mark would be an end on record.
  const strays = await scheduler.strays?.(names)
  await site.tasks.markCancelled(
    names.filter((name) => strays?.get(name)?.state !== 'running'),
    graceSeconds,
  )
  const from = performance.now()
  let left = [...names]
  let askedAt: number | undefined
  let forced = false
  const cancel = async (
    some: readonly string[],
    found: ReadonlyMap<string, FoundTask>,
    how: 'waiting' | 'polite' | 'forced',
  ): Promise<void> => {
    const elements = sight.elementsOf(some, found)
    for (const { array } of elements) arrays.add(array)
    if (elements.length > 0) await scheduler.cancel(elements, how, graceSeconds)
  }
  for (const backoff = openBackoff(pauses); ;) {
    const found = await sight.see(left)
    const troubles = await sight.adopt([...found.values()].flatMap(({ entry }) => entry ?? []))
    // Buried names may still wait in the queue, and so may tasks that have ended, where the site put
    // them back or has another job of them; a start would only end at once.
    const waiting = left.filter(
      (name) =>
        found.get(name)?.sight.form === 'buried' ||
        (scheduler.cancelsOver === true && isTaskOver(found.get(name)?.state)),
    )
    await cancel(waiting, found, 'waiting')
    // Its end was the scheduler's report alone.
    const gone = left.filter((name) => found.get(name)?.state.state === 'lost')
    if (scheduler.cancelsOver === true) await cancel(gone, found, 'forced')
    left = left.filter(
      (name) => !isTaskOver(found.get(name)?.state) && found.get(name)?.state.state !== 'unknown',
    )
    if (left.length === 0) return arrays
    const spent = (performance.now() - from) / 1000
    // No request reaches a job whose id is not known.
    const [trouble] = troubles.values()
    const state = found.get(left[0] ?? '')?.state
    const why = trouble?.message ?? (state !== undefined && 'cause' in state ? state.cause : undefined)
    if (spent > graceSeconds + patienceSeconds)
      throw new DriverError(
        'unknown',
        `${left.slice(0, 3).join(', ')}${left.length > 3 ? ' …' : ''} did not end within ${Math.round(spent)} s` +
          (why === undefined ? '' : `: ${why}`),
      )
    const how = cancelStep(scheduler.cancelSteps, { spent, grace: graceSeconds, askedAt, forced })
    if (how !== undefined) {
      await cancel(left, found, how)
      forced ||= how === 'forced'
      askedAt = spent
    }
    await backoff.pause()
  }
}
