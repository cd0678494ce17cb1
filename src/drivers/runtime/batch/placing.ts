import { randomBytes } from 'node:crypto'
import { openBackoff } from '../../../pacing/backoff.ts'
import { DriverError, type Intent } from '../contract/driver.ts'
import { asDriverError, driverClosed, removedMeanwhile } from '../contract/results.ts'
import { arraysOf, requestKey } from './arrays.ts'
import { packOf, type ArrayElement } from './array-script.ts'
import type { Claim, SubmittedTask } from './submissions.ts'
import { externalIdIn, NoRoom, type BatchArray, type BatchScheduler, type BatchTerms } from './scheduler.ts'
import type { BatchSight } from './sight.ts'
import type { BatchSite } from './site.ts'

/** By name: the id of an accepted task, or why it was not accepted. */
export type Submitted = Map<string, string | DriverError>
/** By name: the scripts of this submission. */
type Scripts = ReadonlyMap<string, ArrayElement>

/** How long to wait for another worker's submission of the same names. */
const submitPatienceMs = 120_000
/** A younger submission may still get its answer, so the array is not looked up by name yet. */
const answerSeconds = 1
const pauses = { firstMs: 100, longestMs: 2000 }

export interface PlacingHooks<Request> {
  /** Resolves once the terms are known. */
  ready(): Promise<void>
  accepted(array: BatchArray<Request>): void
}

/**
 * A name is submitted once: an exclusive file puts it into one array, and the scheduler can be
 * queried for an array's name when an answer was lost.
 */
export class Placing<Request extends object, Listing> {
  readonly #site: BatchSite
  readonly #scheduler: BatchScheduler<Request, Listing>
  readonly #sight: BatchSight<Request, Listing>
  readonly #hooks: PlacingHooks<Request>
  #closed = false

  constructor(
    site: BatchSite,
    scheduler: BatchScheduler<Request, Listing>,
    sight: BatchSight<Request, Listing>,
    hooks: PlacingHooks<Request>,
  ) {
    this.#site = site
    this.#scheduler = scheduler
    this.#sight = sight
    this.#hooks = hooks
  }

  #idOf({ place }: SubmittedTask): string {
    return externalIdIn(this.#scheduler, place)
  }

  /** Undefined for a name that no array has. */
  async #idsOf(names: readonly string[]): Promise<Map<string, string | undefined>> {
    const entries = await this.#site.submissions.read(names)
    return new Map(
      names.map((name) => [name, entries.has(name) ? this.#idOf(entries.get(name)!) : undefined]),
    )
  }

  /**
   * Submits the indexes that are ours; undefined: the scheduler has no room for so many at once,
   * and they are free again.
   */
  async #submitOurs(
    array: BatchArray<Request>,
    indexes: readonly number[],
    { pack, bytes }: { pack: string; bytes: Buffer },
  ): Promise<string | undefined> {
    try {
      if (bytes.length > 0) await this.#site.submissions.fill(array.name, pack, bytes)
      const job = await this.#scheduler.submit(array, indexes)
      this.#hooks.accepted(array)
      return job
    } catch (error) {
      // While the result is unknown the claim stays: the next worker queries the array's name.
      if (error instanceof DriverError && error.trouble === 'unknown') throw error
      await this.#site.submissions.release(
        array.name,
        indexes.flatMap((index) => array.tasks[index] ?? []),
      )
      if (!(error instanceof NoRoom)) throw error
      if (indexes.length === 1 || !error.smaller)
        throw new DriverError('unknown', error.message, { cause: error })
      return undefined
    }
  }

  async #placeOurs(
    array: BatchArray<Request>,
    { indexes, held, failed }: Extract<Claim, { state: 'ours' }>,
    {
      scripts,
      terms,
      pack,
    }: { scripts: Scripts; terms: BatchTerms<Request>; pack: { pack: string; bytes: Buffer } },
  ): Promise<Submitted> {
    const results: Submitted = new Map(failed)
    const mine = indexes.flatMap((index) => array.tasks[index] ?? [])
    const again = async (names: readonly string[], arraySize: number): Promise<void> => {
      const requests = new Map(names.map((name) => [name, array.request]))
      for (const [name, result] of await this.#placeAll(requests, scripts, { ...terms, arraySize }))
        results.set(name, result)
    }
    if (mine.length === 0) await this.#site.submissions.release(array.name, [])
    else if (mine.length < array.tasks.length && !this.#scheduler.leavesOut) {
      // Names that other arrays hold stay there; the rest becomes another array.
      await this.#site.submissions.release(array.name, mine)
      await again(mine, terms.arraySize)
    } else {
      const job = await this.#submitOurs(array, indexes, pack)
      if (job === undefined) {
        await again(array.tasks, Math.ceil(array.tasks.length / 2))
        return results
      }
      for (const index of indexes) {
        const name = array.tasks[index]
        if (name !== undefined)
          results.set(name, externalIdIn(this.#scheduler, { array: array.name, index, submittedAt: 0, job }))
      }
      for (const [name, { place }] of held)
        if (place.array === array.name) results.set(name, externalIdIn(this.#scheduler, { ...place, job }))
    }
    for (const [name, entry] of held)
      if (!results.has(name))
        results.set(name, entry.place.job === undefined ? await this.#adopt(name, entry) : this.#idOf(entry))
    return results
  }

  /**
   * Puts an array into the queue, or finds it there; returns the ids of its names, or the reason of
   * a refusal.
   */
  async #place(array: BatchArray<Request>, scripts: Scripts, terms: BatchTerms<Request>): Promise<Submitted> {
    const until = performance.now() + submitPatienceMs
    const elements = array.tasks.map((name) => scripts.get(name) ?? { script: name })
    const pack = `${randomBytes(6).toString('hex')}.pack`
    const script = await this.#scheduler.script(array, elements, `../arrays/${array.name}/${pack}`)
    const { bytes } = packOf(elements)
    for (const backoff = openBackoff(pauses); ;) {
      if (this.#closed) throw driverClosed(this.#scheduler.kind)
      const claim = await this.#site.submissions.claim(array, script)
      if (claim.state === 'accepted')
        return new Map(
          [...(await this.#idsOf(array.tasks))].map(([name, id]) => [name, id ?? removedMeanwhile(name)]),
        )
      if (claim.state === 'ours')
        return await this.#placeOurs(array, claim, { scripts, terms, pack: { pack, bytes } })
      // A submitter whose process still runs has recorded the job within this time.
      const job = claim.ageSeconds > answerSeconds ? await this.#scheduler.find(array.name) : undefined
      if (job !== undefined) await this.#site.submissions.accepted(array.name, job)
      else if (claim.ageSeconds > this.#scheduler.claimSeconds())
        return await this.#placeAgain(array, scripts, terms)
      else if (performance.now() > until)
        throw new DriverError(
          'unknown',
          `${array.name} is being submitted by another worker since ${claim.ageSeconds} s`,
        )
      else await backoff.pause()
    }
  }

  /**
   * Frees an array whose submitter has not reported, and submits it with the same indexes: the
   * scheduler may still get the first one, and its element is then that of the same task.
   */
  async #placeAgain(
    array: BatchArray<Request>,
    scripts: Scripts,
    terms: BatchTerms<Request>,
  ): Promise<Submitted> {
    const entries = await this.#site.submissions.read(array.tasks)
    await this.#site.submissions.release(array.name, array.tasks)
    const kept = new Map<number, string>()
    for (const name of array.tasks) {
      const place = entries.get(name)?.place
      if (place?.array === array.name) kept.set(place.index, name)
    }
    // The others get the indexes between, so that no index means another of the kept tasks.
    const named = new Set(kept.values())
    const others = array.tasks.filter((name) => !named.has(name))
    const tasks = array.tasks.flatMap((_, index) => kept.get(index) ?? others.shift() ?? [])
    return this.#place({ ...array, tasks }, scripts, terms)
  }

  /**
   * The name is in an array whose acceptance is unknown: this waits for its submitter as long as a
   * submission may take.
   */
  async #adopt(name: string, held: SubmittedTask): Promise<string | DriverError> {
    const until = performance.now() + submitPatienceMs
    let entry: SubmittedTask | undefined = held
    for (const backoff = openBackoff(pauses); entry !== undefined;) {
      const { place } = entry
      if (place.job !== undefined) return this.#idOf(entry)
      const job = await this.#scheduler.find(place.array)
      if (job !== undefined) {
        await this.#site.submissions.accepted(place.array, job)
        return externalIdIn(this.#scheduler, { ...place, job })
      }
      const late = Date.now() / 1000 - place.submittedAt > this.#scheduler.claimSeconds()
      if (late) await this.#site.submissions.release(place.array, [name])
      if (late || this.#closed || performance.now() > until)
        return new DriverError('unknown', `${name} is being submitted as part of ${place.array}`)
      await backoff.pause()
      entry = (await this.#site.submissions.read([name])).get(name)
    }
    return new DriverError('unknown', `${name} was given back by the worker that submitted it`)
  }

  async #placeAll(
    requests: ReadonlyMap<string, Request>,
    scripts: Scripts,
    terms: BatchTerms<Request>,
  ): Promise<Submitted> {
    const results: Submitted = new Map()
    for (const array of arraysOf(requests, terms)) {
      const placed = await this.#place(array, scripts, terms).catch((error: unknown) => asDriverError(error))
      // A name that is not placed has a record: its task started or was cancelled meanwhile.
      for (const name of array.tasks)
        results.set(name, placed instanceof DriverError ? placed : (placed.get(name) ?? name))
    }
    return results
  }

  #requestOf(intent: Intent, terms: BatchTerms<Request>): Request {
    const request = terms.requestOf(intent)
    const hopeless = this.#sight.memory.impossible.get(requestKey(request))
    if (hopeless !== undefined && hopeless.until > performance.now())
      throw new DriverError('refused', `${intent.name}: ${this.#scheduler.hopeless(request, hopeless.words)}`)
    return request
  }

  /** A name that was accepted earlier stays accepted, whatever the limits are now. */
  async #acceptedEarlier(names: readonly string[]): Promise<Map<string, string>> {
    const found = await this.#sight.see(names.filter((name) => /^[a-z0-9-]{1,63}$/.test(name)))
    return new Map(
      [...found].flatMap(([name, { state, entry }]) =>
        state.state === 'unknown' ? [] : [[name, entry === undefined ? name : this.#idOf(entry)] as const],
      ),
    )
  }

  /** Puts new names into arrays and submits them; returns the result for each name. */
  async submit(intents: readonly Intent[]): Promise<Submitted> {
    const results: Submitted = new Map()
    const requests = new Map<string, Request>()
    const terms = await this.#scheduler.terms()
    await this.#hooks.ready()
    for (const intent of intents) {
      try {
        requests.set(intent.name, this.#requestOf(intent, terms))
      } catch (error) {
        results.set(intent.name, asDriverError(error))
      }
    }
    for (const [name, id] of await this.#acceptedEarlier([...results.keys()])) results.set(name, id)
    for (const [name, { externalId }] of (await this.#scheduler.strays?.([...requests.keys()])) ?? []) {
      requests.delete(name)
      results.set(name, externalId)
    }
    const known: string[] = []
    const ready = new Map<string, Request>()
    const scripts = new Map<string, ArrayElement>()
    for (const [name, outcome] of await this.#site.tasks.submit(
      intents.filter((intent) => requests.has(intent.name)),
    )) {
      const request = requests.get(name)
      if (outcome.state === 'failed') results.set(name, outcome.error)
      else if (outcome.state === 'known') known.push(name)
      else if (outcome.state === 'ready' && request !== undefined) {
        ready.set(name, request)
        scripts.set(name, outcome)
        this.#sight.memory.requestsOf.set(name, requestKey(request))
      }
    }
    for (const [name, id] of await this.#idsOf(known)) results.set(name, id ?? name)
    for (const [name, result] of await this.#placeAll(ready, scripts, terms)) results.set(name, result)
    return results
  }

  /** Stops further submissions. */
  close(): void {
    this.#closed = true
  }
}
