import { reasonText } from '../../../outside-text.ts'
import type { Collected } from '../contract/driver.ts'
import { emptyResult, endedState, noEndOf } from '../contract/results.ts'
import type { BatchScheduler } from './scheduler.ts'
import type { FoundTask } from './sight.ts'
import type { BatchSite } from './site.ts'
import { stateOfVerdict, type Verdict } from './verdict.ts'

/**
 * The full result of a task that is over: its record and its files, and the scheduler's account
 * beside them. @throws DriverError `unknown` while it has no end
 */
export async function collectTask<Request, Listing>(
  { site, scheduler }: { site: BatchSite; scheduler: BatchScheduler<Request, Listing> },
  name: string,
  { state, entry, sight }: FoundTask,
  onWait?: (reason: string) => void,
): Promise<Collected> {
  const { tasks, runtime } = site
  if (state.state !== 'ended') throw noEndOf(name)
  const waited =
    entry === undefined || sight.form === 'buried'
      ? undefined
      : Math.max(0, state.startedAt - entry.place.submittedAt)
  const queueSeconds = waited === undefined ? {} : { queueSeconds: waited }
  const recorded =
    sight.form === 'ended' || sight.form === 'buried' ? await tasks.collect(name, onWait) : undefined
  const measured = recorded !== undefined && recorded.peakMemoryBytes !== null
  const { outOfMemory, ...about } =
    (sight.form === 'buried'
      ? undefined
      : await scheduler.about?.({ name, place: entry?.place, sight, measured })) ?? {}
  if (recorded !== undefined) {
    const { sight: last, ...rest } = recorded
    // A cancel ended the wait for its outputs.
    const isCut = last.form === 'ended' && last.reason === 'cancelled'
    // The host may have another name on the node where the task ran.
    const manifest = about.node === undefined ? rest.manifest : { ...rest.manifest, hostname: about.node }
    const verdict: Verdict = { end: 'memory', cause: 'out of memory', at: state.finishedAt }
    const counted =
      outOfMemory === true && state.reason === 'exited'
        ? stateOfVerdict(await site.submissions.settle(name, verdict), sight, state.externalId)
        : isCut
          ? endedState(last, state.externalId, 'cancelled')
          : state
    return { ...rest, manifest, ...queueSeconds, ...about, state: counted }
  }
  const { bytes } = await tasks.logs(name, 'stderr', { tail: 4096 })
  const at = entry?.place.submittedAt ?? state.startedAt
  return {
    ...emptyResult(state, { at, runtime, hostname: about.node ?? '' }),
    ...queueSeconds,
    wallSeconds: state.finishedAt - state.startedAt,
    stderrTail: reasonText(bytes),
    ...about,
  }
}
