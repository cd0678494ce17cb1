import { DriverError, type Intent } from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { outcomesOf } from '../contract/outcomes.ts'
import { asDriverError, driverClosed, removedMeanwhile } from '../contract/results.ts'
import { RecentMap } from '../../../pacing/recent.ts'
import type { RootedDriver } from '../contract/rooted.ts'
import { openRemoteWatch } from '../remote/watch.ts'
import { cancelTasks } from './cancelling.ts'
import { collectTask } from './collecting.ts'
import { Placing } from './placing.ts'
import type { QueuedElement, BatchScheduler } from './scheduler.ts'
import { BatchSight } from './sight.ts'
import type { BatchSite } from './site.ts'
import { isTaskOver } from './verdict.ts'

/** Reading records costs the scheduler nothing. */
const recordsPollMs = 5000
/**
 * Number of arrays whose task names are kept; with them a cancel can find that all tasks of an
 * array are over.
 */
const arraysKept = 20_000

/**
 * Tasks as elements of a batch scheduler's arrays. The tasks record what they do
 * (`remote/tasks.ts`). The driver records what it submitted where (`submissions.ts`). The scheduler,
 * through its adapter, reports why it ended a task. `sight.ts` makes one state of the three.
 *
 * A name is submitted once. An exclusive file puts it into one array. An array has a name by which
 * the scheduler can be queried when the answer was lost. The task's own record, created exclusively
 * at its start, refuses a second start.
 *
 * `pollMilliseconds`: between two looks at everything; the tasks themselves report their ends at
 * once.
 */
export function openBatchDriver<Request extends object, Listing>(
  site: BatchSite,
  scheduler: BatchScheduler<Request, Listing>,
  { pollMilliseconds }: { pollMilliseconds: number },
): RootedDriver {
  const { tasks, submissions } = site
  const sight = new BatchSight(site, scheduler)
  /**
   * Names by array, for the arrays that this process submitted: kept as long as the scheduler keeps
   * something of an array.
   */
  const tasksOf = new RecentMap<string, readonly string[]>(arraysKept)
  const placing = new Placing(site, scheduler, sight, {
    ready: () => watcher.ready(),
    accepted: ({ name, tasks: names }) =>
      void (scheduler.drop === undefined ? undefined : tasksOf.set(name, names)),
  })
  let closed = false
  let weighing = false

  /**
   * A scheduler that does not answer does not delay a task with a recorded end: it is queried in
   * parallel, its findings are recorded, and the next look reads them.
   */
  const lookForEnds = async (names: readonly string[]): Promise<string[]> => {
    const { found, open } = await sight.records(names)
    if (open.size > 0 && !weighing) {
      weighing = true
      void sight
        .weigh(open)
        .catch(() => undefined)
        .finally(() => (weighing = false))
    }
    const strays = await sight.strays(found)
    return [...found, ...strays].filter(([, { state }]) => isTaskOver(state)).map(([name]) => name)
  }
  const seeOne = gather(sight.see, { most: 1000 })
  /** Undefined where only the scheduler can answer. */
  const seeRecord = gather(async (names: readonly string[]) => {
    const { found } = await sight.records(names)
    return new Map(names.map((name) => [name, { found: found.get(name) }]))
  })
  const watcher = openRemoteWatch({
    look: lookForEnds,
    follow: (ended, stands) => {
      // A stop by the site is no end before the scheduler has given the cause.
      const notify = (name: string): void => {
        const state = scheduler.answersPromptly ? seeOne(name) : seeRecord(name).then(({ found }) => found)
        state.then((found) => (isTaskOver(found?.state) ? ended(name) : undefined)).catch(() => undefined)
      }
      const stops = [scheduler.onEnds?.(notify), tasks.onEnds(notify, stands)]
      return () => {
        for (const stop of stops) stop?.()
      }
    },
    pollMilliseconds: Math.min(pollMilliseconds, recordsPollMs),
  })

  /**
   * Submits that come together become one: the call is what costs, and an array costs no more than
   * a job.
   */
  const submitOne = gather(
    async (intents: readonly Intent[]) => {
      const results = await placing.submit([
        ...new Map(intents.map((intent) => [intent.name, intent])).values(),
      ])
      return new Map(
        intents.map((intent) => [
          intent,
          { outcome: results.get(intent.name) ?? removedMeanwhile(intent.name) },
        ]),
      )
    },
    { milliseconds: 20, most: 10_000 },
  )

  /** Arrays whose tasks are all over start no more tasks. */
  async function dropEnded(arrays: Iterable<string>): Promise<void> {
    if (scheduler.drop === undefined) return
    for (const array of arrays) {
      const all = tasksOf.get(array)
      if (all === undefined) continue
      const { found, open } = await sight.records(all)
      if (open.size > 0 || ![...found.values()].every(({ state }) => isTaskOver(state))) continue
      await scheduler.drop([array])
      tasksOf.delete(array)
    }
  }

  /** Removes the scheduler's files of an array with the last of its names. */
  const unbook = gather(async (names: readonly string[]) => {
    const entries = await submissions.read(names)
    const gone = await submissions.remove(names)
    if (gone.length > 0) await scheduler.drop?.(gone)
    for (const array of gone) tasksOf.delete(array)
    return new Map(
      names.map((name): [string, { place: QueuedElement | undefined }] => [
        name,
        { place: entries.get(name)?.place },
      ]),
    )
  })

  return {
    kind: scheduler.kind,
    capabilities: scheduler.capabilities,
    root: () => site.root(),
    async submit(intents) {
      if (closed) throw driverClosed(scheduler.kind)
      return outcomesOf(intents, submitOne, asDriverError)
    },
    find: async (names) => new Map([...(await sight.see(names))].map(([name, { state }]) => [name, state])),
    watch: (names, onEnd) => watcher.watch(names, onEnd),
    async cancel(names, graceSeconds) {
      if (names.length > 0)
        await dropEnded(await cancelTasks({ site, scheduler, sight }, names, graceSeconds))
    },
    collect: async (name, onWait) =>
      collectTask({ site, scheduler }, name, (await seeRecord(name)).found ?? (await seeOne(name)), onWait),
    async logs(name, stream, range) {
      const place =
        scheduler.logs === undefined ? undefined : (await submissions.read([name])).get(name)?.place
      return (await scheduler.logs?.(name, place, stream, range)) ?? tasks.logs(name, stream, range)
    },
    async remove(name) {
      const { state } = await seeOne(name)
      if (state.state === 'running' || state.state === 'queued')
        throw new DriverError('refused', `${name} is ${state.state}; cancel it before removing it`)
      const { place } = await unbook(name)
      await tasks.remove(name)
      await scheduler.forget?.(name, place)
      sight.forget(name)
      watcher.forget(name)
    },
    async close() {
      closed = true
      placing.close()
      scheduler.close?.()
      tasks.close()
      watcher.close()
    },
  }
}
