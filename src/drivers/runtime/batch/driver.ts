import { DriverError, type Intent } from '../contract/driver.ts'
import { gather } from '../contract/gather.ts'
import { outcomesOf } from '../contract/outcomes.ts'
import { RecentMap } from '../contract/recent.ts'
import type { RootedDriver } from '../contract/rooted.ts'
import { asDriverError } from '../remote/site.ts'
import { openRemoteWatch } from '../remote/watch.ts'
import { cancelTasks } from './cancelling.ts'
import { collectTask } from './collecting.ts'
import { openPlacing } from './placing.ts'
import type { BatchPlace, BatchScheduler } from './scheduler.ts'
import { openBatchSight } from './sight.ts'
import type { BatchSite } from './site.ts'
import { isOver } from './verdict.ts'

/** Looking at records costs the scheduler nothing. */
const recordsPollMs = 5000
/** Names of arrays whose tasks a cancel may find all over. */
const arraysKept = 20_000

/**
 * Tasks as elements of a batch scheduler's arrays. What they do is recorded by themselves (`remote/tasks.ts`), what is submitted where by us
 * (`books.ts`), why the scheduler ended something by the scheduler, which an adapter speaks with; `sight.ts` makes one state of the three.
 *
 * A name is submitted once: it is put into one array by an exclusive file, an array has a name that can be asked for when the answer was lost,
 * and the task's own record, created exclusively at its start, is the last to say no.
 *
 * `pollMilliseconds`: between two looks at everything; ends are told by the tasks themselves, at once.
 */
export function openBatchDriver<Request extends object, Listing>(
  site: BatchSite,
  scheduler: BatchScheduler<Request, Listing>,
  { pollMilliseconds }: { pollMilliseconds: number },
): RootedDriver {
  const { tasks, books } = site
  const sight = openBatchSight(site, scheduler)
  /** Names by array, of those that this process submitted: as long as the scheduler keeps something of an array. */
  const tasksOf = new RecentMap<string, readonly string[]>(arraysKept)
  const placing = openPlacing(site, scheduler, sight, {
    ready: () => watcher.ready(),
    accepted: ({ name, tasks: names }) => void (scheduler.drop === undefined ? undefined : tasksOf.set(name, names)),
  })
  let closed = false
  let weighing = false

  /**
   * Whoever has a recorded end is not kept waiting by a scheduler that does not answer: it is asked beside, writes down what it finds, and that is
   * read next time.
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
    return [...found, ...strays].filter(([, { state }]) => isOver(state)).map(([name]) => name)
  }
  const seeOne = gather(sight.see, { most: 1000 })
  /** Undefined where the scheduler has to be asked. */
  const seeRecord = gather(async (names: readonly string[]) => {
    const { found } = await sight.records(names)
    return new Map(names.map((name) => [name, { found: found.get(name) }]))
  })
  const watcher = openRemoteWatch({
    look: lookForEnds,
    follow: (ended, stands) => {
      // What the site stopped is no end before the scheduler has told why.
      const tell = (name: string): void => {
        const state = scheduler.answersPromptly ? seeOne(name) : seeRecord(name).then(({ found }) => found)
        state.then((found) => (isOver(found?.state) ? ended(name) : undefined)).catch(() => undefined)
      }
      const stops = [scheduler.onEnds?.(tell), tasks.onEnds(tell, stands)]
      return () => {
        for (const stop of stops) stop?.()
      }
    },
    pollMilliseconds: Math.min(pollMilliseconds, recordsPollMs),
  })

  /** Submits that come together are one: what costs is the call, and an array is as good as a job. */
  const submitOne = gather(
    async (intents: readonly Intent[]) => {
      const results = await placing.submit([...new Map(intents.map((intent) => [intent.name, intent])).values()])
      const missing = (name: string): DriverError => new DriverError('infrastructure', `${name} was removed while it was submitted`)
      return new Map(intents.map((intent) => [intent, { outcome: results.get(intent.name) ?? missing(intent.name) }]))
    },
    { milliseconds: 20, most: 10_000 },
  )

  /** Arrays all of whose tasks are over start none any more. */
  async function dropEnded(arrays: Iterable<string>): Promise<void> {
    if (scheduler.drop === undefined) return
    for (const array of arrays) {
      const all = tasksOf.get(array)
      if (all === undefined) continue
      const { found, open } = await sight.records(all)
      if (open.size > 0 || ![...found.values()].every(({ state }) => isOver(state))) continue
      await scheduler.drop([array])
      tasksOf.delete(array)
    }
  }

  /** What the scheduler keeps of an array goes with the last of its names. */
  const unbook = gather(async (names: readonly string[]) => {
    const entries = await books.read(names)
    const gone = await books.remove(names)
    if (gone.length > 0) await scheduler.drop?.(gone)
    for (const array of gone) tasksOf.delete(array)
    return new Map(names.map((name): [string, { place: BatchPlace | undefined }] => [name, { place: entries.get(name)?.place }]))
  })

  return {
    kind: scheduler.kind,
    capabilities: scheduler.capabilities,
    root: () => site.root(),
    async submit(intents) {
      if (closed) throw new DriverError('infrastructure', `the ${scheduler.kind} driver is closed; open another`)
      return outcomesOf(intents, submitOne, asDriverError)
    },
    find: async (names) => new Map([...(await sight.see(names))].map(([name, { state }]) => [name, state])),
    watch: (names, onEnd) => watcher.watch(names, onEnd),
    async cancel(names, graceSeconds) {
      if (names.length > 0) await dropEnded(await cancelTasks({ site, scheduler, sight }, names, graceSeconds))
    },
    collect: async (name) => collectTask({ site, scheduler }, name, (await seeRecord(name)).found ?? (await seeOne(name))),
    async logs(name, stream, range) {
      const place = scheduler.logs === undefined ? undefined : (await books.read([name])).get(name)?.place
      return (await scheduler.logs?.(name, place, stream, range)) ?? tasks.logs(name, stream, range)
    },
    async remove(name) {
      const { state } = await seeOne(name)
      if (state.state === 'running' || state.state === 'queued')
        throw new DriverError('refused', `${name} is ${state.state}; cancel it before removing it`)
      const { place } = await unbook(name)
      await tasks.remove(name)
      await scheduler.forget?.(name, place)
      for (const memory of [sight.memory.requestsOf, sight.memory.overSince, sight.memory.ranSince]) memory.delete(name)
      watcher.forget(name)
    },
    async close() {
      closed = true
      placing.close()
      scheduler.close?.()
      watcher.close()
    },
  }
}
