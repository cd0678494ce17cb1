import { reasonText } from '../../../outside-text.ts'
import { present } from '../../../json-object.ts'
import { DriverError, type TaskState } from '../contract/driver.ts'
import { RecentMap } from '../../../pacing/recent.ts'
import { isOverdue, type ClaimedSight, type RemoteSight } from '../remote/record.ts'
import { asDriverError } from '../contract/results.ts'
import type { SubmittedTask } from './submissions.ts'
import {
  externalIdIn,
  type BatchElement,
  type BatchEvidence,
  type BatchJudgement,
  type BatchScheduler,
} from './scheduler.ts'
import type { BatchSite } from './site.ts'
import { stateOfVerdict } from './verdict.ts'

export interface FoundTask {
  state: TaskState
  sight: RemoteSight
  entry?: SubmittedTask
}
type Open = FoundTask & { entry: SubmittedTask }
/** Tasks with the facts that only the scheduler reports. */
type Doubtful = ReadonlyMap<string, { one: Open; judgement: BatchJudgement }>

export interface Records {
  /** What the records alone show. */
  found: Map<string, FoundTask>
  /** The tasks that only the scheduler can judge. */
  open: Map<string, Open>
}

/**
 * The most tasks whose answers this process keeps; runs have fewer tasks that wait at one site. A
 * task that was dropped is queried again, and its time to settle begins again.
 */
const remembered = 200_000
/** How long a request that can never run is refused without another query. */
const impossibleKeptMs = 600_000

const unstarted: RemoteSight = { form: 'none' }
const isGivenUp = (sight: RemoteSight): boolean =>
  sight.form === 'claimed' && sight.givenUp === true && sight.marked !== true
/** Whether the task has not started, and no job can start it. */
const neverStarts = (sight: RemoteSight): boolean => sight.form === 'buried' || isGivenUp(sight)
/** The state of a task with a record that has no line, and without a place: no scheduler has it. */
const unplaced = (sight: ClaimedSight, externalId: string): TaskState => {
  const at = Date.now() / 1000 - sight.ageSeconds
  return isGivenUp(sight)
    ? { state: 'lost', externalId, startedAt: at }
    : { state: 'queued', externalId, submittedAt: at, ...present({ cause: sight.unwritten }) }
}

/** A judgement with the scheduler's words as reasons take them. */
const told = ({ state, verdict, impossible, ...rest }: BatchJudgement): BatchJudgement => ({
  ...rest,
  state: 'cause' in state && state.cause !== undefined ? { ...state, cause: reasonText(state.cause) } : state,
  ...(verdict === undefined ? {} : { verdict: { ...verdict, cause: reasonText(verdict.cause) } }),
  ...(impossible === undefined ? {} : { impossible: reasonText(impossible) }),
})

/** The states of tasks from their records and the scheduler's answers. */
export class BatchSight<Request, Listing> {
  /** What this process keeps of tasks; another process finds the same, only later. */
  readonly memory = {
    /** Since when every answer reports a task as over; milliseconds of `performance.now()`. */
    overSince: new RecentMap<string, number>(remembered),
    /** The starts of tasks that run by the scheduler's last report; Unix seconds. */
    ranSince: new RecentMap<string, number>(remembered),
    /** Why this driver took tasks out of the queue, in the scheduler's message. */
    removed: new RecentMap<string, string>(remembered),
    /** Requests that can never run, by key: the scheduler's message, and its expiry. */
    impossible: new RecentMap<string, { words: string; until: number }>(1000),
    /** Keys of the submitted requests. */
    requestsOf: new RecentMap<string, string>(remembered),
  }
  readonly #site: BatchSite
  readonly #scheduler: BatchScheduler<Request, Listing>

  constructor(site: BatchSite, scheduler: BatchScheduler<Request, Listing>) {
    this.#site = site
    this.#scheduler = scheduler
  }

  #evidenceOf(name: string, sight: RemoteSight, { place, cancelAsked }: SubmittedTask): BatchEvidence {
    const { overSince, ranSince, removed } = this.memory
    const known = {
      overSince: overSince.get(name),
      ranSince: ranSince.get(name),
      removed: removed.get(name),
    }
    return { name, sight, place, cancelAsked, ...present(known) }
  }

  #forgetJudged(name: string): void {
    const { overSince, ranSince, removed } = this.memory
    for (const memory of [overSince, ranSince, removed]) memory.delete(name)
  }

  /** Forgets a task that is removed. */
  forget(name: string): void {
    this.#forgetJudged(name)
    this.memory.requestsOf.delete(name)
  }

  #explains(sight: RemoteSight, cancelAsked: boolean): boolean {
    if (sight.form !== 'ended') return false
    return this.#scheduler.explains?.(sight, cancelAsked) ?? (sight.reason !== 'stopped' || cancelAsked)
  }

  async #looked(
    names: readonly string[],
  ): Promise<{ sights: Map<string, RemoteSight>; entries: Map<string, SubmittedTask> }> {
    const [sights, entries] = await Promise.all([
      this.#site.tasks.look(names),
      this.#site.submissions.read(names),
    ])
    // Another process found them over before they started, but did not bury them.
    const unburied = names.filter(
      (name) =>
        entries.get(name)?.verdict?.end === 'never' && (sights.get(name) ?? unstarted).form === 'none',
    )
    if (unburied.length > 0) await this.#site.tasks.markCancelled(unburied, 0)
    // A mark on a full disk leaves a record without its line. Where an entry counts, its scheduler
    // is queried.
    const overdue = names.filter((name) => {
      const entry = entries.get(name)
      return isOverdue(sights.get(name)) && (entry === undefined || entry.verdict?.end === 'never')
    })
    const reasons = overdue.length === 0 ? new Map<string, string>() : await this.#site.tasks.giveUp(overdue)
    const changed = [...unburied, ...overdue]
    if (changed.length > 0)
      for (const [name, sight] of await this.#site.tasks.look(changed)) {
        const unwritten = isOverdue(sight) ? reasons.get(name) : undefined
        sights.set(name, sight.form === 'claimed' ? { ...sight, ...present({ unwritten }) } : sight)
      }
    return { sights, entries }
  }

  /**
   * The state from one record and its entry; `undefined` for the state: only the scheduler can
   * answer.
   */
  #recorded(
    name: string,
    sight: RemoteSight,
    written: SubmittedTask | undefined,
  ): FoundTask | { open: Open } {
    // The task started before it could be buried.
    const verdict = written?.verdict?.end === 'never' && !neverStarts(sight) ? undefined : written?.verdict
    const place = written?.place ?? { array: name, index: 0, submittedAt: 0 }
    if (sight.form === 'claimed' && written === undefined)
      return { state: unplaced(sight, externalIdIn(this.#scheduler, place)), sight }
    const cancelAsked = written?.cancelAsked ?? false
    const entry: SubmittedTask = { place, cancelAsked, ...(verdict === undefined ? {} : { verdict }) }
    const booked = written === undefined ? {} : { entry }
    if (verdict !== undefined)
      return { state: stateOfVerdict(verdict, sight, externalIdIn(this.#scheduler, place)), sight, ...booked }
    const { state } = this.#scheduler.judge({ name, sight, place, cancelAsked }, undefined)
    if (sight.form === 'buried' || this.#explains(sight, cancelAsked)) return { state, sight, ...booked }
    if (sight.form === 'none' && place.job === undefined)
      return { state: { state: 'unknown' }, sight, ...booked }
    return { open: { state, sight, entry } }
  }

  /** What the records alone show. */
  async records(names: readonly string[]): Promise<Records> {
    const found = new Map<string, FoundTask>()
    const open = new Map<string, Open>()
    if (names.length === 0) return { found, open }
    const { sights, entries } = await this.#looked(names)
    for (const name of names) {
      const one = this.#recorded(name, sights.get(name) ?? unstarted, entries.get(name))
      if ('open' in one) open.set(name, one.open)
      else {
        found.set(name, one)
        this.#forgetJudged(name)
        if (one.entry !== undefined) this.#scheduler.settled?.(one.entry.place)
      }
    }
    return { found, open }
  }

  /** The same with the scheduler's answer; facts that only the scheduler knows are recorded. */
  async weigh(open: Records['open']): Promise<Map<string, FoundTask>> {
    const found = new Map<string, FoundTask>(open)
    if (open.size === 0) return found
    const troubles = await this.adopt([...open].map(([, { entry }]) => entry))
    const listing = await this.#scheduler.list(
      [...open].map(([name, { entry }]) => ({ name, place: entry.place })),
    )
    const judge = (name: string, sight: RemoteSight, entry: SubmittedTask): BatchJudgement => {
      const trouble = entry.place.job === undefined ? troubles.get(entry.place.array) : undefined
      if (trouble === undefined)
        return told(this.#scheduler.judge(this.#evidenceOf(name, sight, entry), listing))
      // The listing is about jobs whose ids are known.
      const { state, over } = this.#scheduler.judge(this.#evidenceOf(name, sight, entry), undefined)
      const waits = state.state === 'queued' || state.state === 'running'
      return told({ state: waits ? { ...state, cause: trouble.message } : state, over })
    }
    const doubtful = new Map<string, { one: Open; judgement: BatchJudgement }>()
    for (const [name, { sight, entry }] of open) {
      const judgement = judge(name, sight, entry)
      const { state, over, verdict, impossible, held } = judgement
      if (!over) this.memory.overSince.delete(name)
      else if (!this.memory.overSince.has(name)) this.memory.overSince.set(name, performance.now())
      if (state.state === 'running') this.memory.ranSince.set(name, state.startedAt)
      else this.memory.ranSince.delete(name)
      const one = { state, sight, entry }
      found.set(name, one)
      if ((verdict ?? impossible ?? held) !== undefined) doubtful.set(name, { one, judgement })
    }
    for (const [name, one] of await this.#decide(doubtful, judge)) found.set(name, one)
    return found
  }

  /** Cancels these; false where the scheduler did not confirm it: the next look does it again. */
  async #cancelled(
    names: readonly string[],
    doubtful: ReadonlyMap<string, { one: Open }>,
    how: 'waiting' | 'forced',
  ): Promise<boolean> {
    const tasks = new Map([...doubtful].map(([name, { one }]) => [name, one]))
    const elements = this.elementsOf(names, tasks)
    if (elements.length === 0) return true
    return this.#scheduler.cancel(elements, how, 0).then(
      () => true,
      () => false,
    )
  }

  /** Takes tasks out of the queue that would wait for ever, or that the site holds. */
  async #takeOut(doubtful: Doubtful): Promise<void> {
    const waiting = [...doubtful].flatMap(([name, { judgement }]) => {
      const words = judgement.impossible ?? judgement.held
      return words === undefined ? [] : [{ name, words, forGood: judgement.impossible !== undefined }]
    })
    const names = waiting.map(({ name }) => name)
    if (names.length === 0 || !(await this.#cancelled(names, doubtful, 'waiting'))) return
    for (const { name, words, forGood } of waiting) {
      this.memory.removed.set(name, words)
      const key = forGood ? this.memory.requestsOf.get(name) : undefined
      if (key !== undefined)
        this.memory.impossible.set(key, { words, until: performance.now() + impossibleKeptMs })
    }
  }

  /** Writes ends of tasks without a record: none of them will ever start. */
  async #bury(doubtful: Doubtful): Promise<void> {
    const buried: string[] = []
    for (const [name, { one, judgement }] of doubtful) {
      if (one.sight.form !== 'none') continue
      const { verdict } = judgement
      const cause = this.memory.removed.get(name) ?? (verdict?.end === 'never' ? verdict.cause : undefined)
      if (cause === undefined) continue
      buried.push(name)
      await this.#site.submissions.settle(name, { end: 'never', cause, at: Date.now() / 1000 })
    }
    if (buried.length > 0) await this.#site.tasks.markCancelled(buried, 0)
  }

  /**
   * Ends what the scheduler may have left of tasks that are over by its report. Returns those whose
   * end is not confirmed: they are not over yet.
   */
  async #endOver(doubtful: Doubtful): Promise<Set<string>> {
    if (this.#scheduler.cancelsOver !== true) return new Set()
    const over = [...doubtful].flatMap(([name, { judgement }]) =>
      judgement.verdict === undefined ? [] : [name],
    )
    return new Set((await this.#cancelled(over, doubtful, 'forced')) ? [] : over)
  }

  /**
   * Reads the records once more, after the scheduler's answer, and then records what only the
   * scheduler knows. A task that has not started by then never will.
   */
  async #decide(
    weighed: Doubtful,
    judge: (name: string, sight: RemoteSight, entry: SubmittedTask) => BatchJudgement,
  ): Promise<Map<string, FoundTask>> {
    const found = new Map<string, FoundTask>()
    if (weighed.size === 0) return found
    const doubtful = new Map(weighed)
    for (const name of await this.#endOver(weighed)) {
      const { sight, entry } = weighed.get(name)!.one
      const { state } = this.#scheduler.judge(this.#evidenceOf(name, sight, entry), undefined)
      found.set(name, { state, sight, entry })
      doubtful.delete(name)
    }
    if (doubtful.size === 0) return found
    await this.#takeOut(doubtful)
    const names = [...doubtful.keys()]
    await this.#bury(doubtful)
    const [again, entries] = await Promise.all([
      this.#site.tasks.look(names),
      this.#site.submissions.read(names),
    ])
    for (const [name, { one }] of doubtful) {
      const { entry } = one
      const sight = again.get(name) ?? unstarted
      const judged = judge(name, sight, entry)
      const written = sight.form === 'buried' ? entries.get(name)?.verdict : judged.verdict
      const verdict =
        written === undefined || written.end === 'never'
          ? written
          : await this.#site.submissions.settle(name, written)
      this.memory.overSince.delete(name)
      if (verdict === undefined) found.set(name, { state: judged.state, sight, entry })
      else {
        const state = stateOfVerdict(verdict, sight, externalIdIn(this.#scheduler, entry.place))
        found.set(name, { state, sight, entry: { ...entry, verdict } })
      }
    }
    return found
  }

  /**
   * Completes entries of arrays that the scheduler has accepted without an answer that gave its id.
   * Returns why that failed, by array.
   */
  async adopt(entries: readonly SubmittedTask[]): Promise<Map<string, DriverError>> {
    const troubles = new Map<string, DriverError>()
    const nameless = entries.filter(({ place }) => place.job === undefined)
    for (const array of new Set(nameless.map(({ place }) => place.array))) {
      const job = await this.#scheduler.find(array).catch(asDriverError)
      if (job instanceof DriverError) troubles.set(array, job)
      if (job === undefined || job instanceof DriverError) continue
      await this.#site.submissions.accepted(array, job).catch(() => undefined)
      for (const { place } of nameless) if (place.array === array) place.job = job
    }
    return troubles
  }

  /** The elements that the scheduler has accepted. */
  elementsOf(names: Iterable<string>, found: ReadonlyMap<string, FoundTask>): BatchElement[] {
    return [...names].flatMap((name) => {
      const { array, job, index } = found.get(name)?.entry?.place ?? {}
      return array === undefined || job === undefined || index === undefined
        ? []
        : [{ name, array, job, index }]
    })
  }

  /**
   * Among names without record and entry, those that the scheduler had nevertheless: their files
   * are lost.
   */
  async strays(found: ReadonlyMap<string, FoundTask>): Promise<Map<string, FoundTask>> {
    const unbooked = [...found].flatMap(([name, { state, entry }]) =>
      state.state === 'unknown' && entry === undefined ? [name] : [],
    )
    if (this.#scheduler.strays === undefined || unbooked.length === 0) return new Map()
    return new Map(
      [...(await this.#scheduler.strays(unbooked))].map(([name, state]) => [
        name,
        { state, sight: unstarted },
      ]),
    )
  }

  /** All available facts. */
  readonly see = async (names: readonly string[]): Promise<Map<string, FoundTask>> => {
    const { found, open } = await this.records(names)
    return new Map([...found, ...(await this.weigh(open)), ...(await this.strays(found))])
  }
}
