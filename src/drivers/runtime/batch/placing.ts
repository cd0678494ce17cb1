import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { DriverError, type Intent } from '../contract/driver.ts'
import { asDriverError } from '../remote/site.ts'
import { arraysOf, requestKey } from './arrays.ts'
import { packOf, type ArrayElement } from './array-script.ts'
import type { BookEntry } from './books.ts'
import { externalIdIn, NoRoom, type BatchArray, type BatchScheduler, type BatchTerms } from './scheduler.ts'
import type { BatchSight } from './sight.ts'
import type { BatchSite } from './site.ts'

/** By name: the id of what was accepted, or why it was not. */
export type Placed = Map<string, string | DriverError>
/** By name: the scripts of this submission. */
type Scripts = ReadonlyMap<string, ArrayElement>

/** How long somebody else's submission of the same names is waited for. */
const submitPatienceMs = 120_000
const [firstWaitMs, longestWaitMs] = [100, 2000]

export interface Placing {
  /** Puts what is new into arrays and submits them; answers what became of each name. */
  submit(intents: readonly Intent[]): Promise<Placed>
  /** No more. */
  close(): void
}

const removed = (name: string): DriverError => new DriverError('infrastructure', `${name} was removed while it was submitted`)

/** A name is submitted once: it is put into one array by an exclusive file, and an array has a name that can be asked for when an answer was lost. */
export function openPlacing<Request extends object, Listing>(
  site: BatchSite,
  scheduler: BatchScheduler<Request, Listing>,
  sight: BatchSight,
  hooks: {
    /** Waited for once the terms are known. */
    ready(): Promise<void>
    accepted(array: BatchArray<Request>): void
  },
): Placing {
  const { tasks, books } = site
  const { memory } = sight
  let closed = false

  const idOf = ({ place }: BookEntry): string => externalIdIn(scheduler, place)
  /** Undefined for a name that no array has. */
  async function idsOf(names: readonly string[]): Promise<Map<string, string | undefined>> {
    const entries = await books.read(names)
    return new Map(names.map((name) => [name, entries.has(name) ? idOf(entries.get(name)!) : undefined]))
  }

  /** Submits the indexes that are ours; undefined: there is no room for so many at once, and they are free again. */
  async function submitOurs(
    array: BatchArray<Request>,
    indexes: readonly number[],
    { pack, bytes }: { pack: string; bytes: Buffer },
  ): Promise<string | undefined> {
    try {
      if (bytes.length > 0) await books.fill(array.name, pack, bytes)
      const job = await scheduler.submit(array, indexes)
      hooks.accepted(array)
      return job
    } catch (error) {
      // Where nothing is known the claim stays: whoever comes next asks by the array's name.
      if (error instanceof DriverError && error.trouble === 'unknown') throw error
      await books.release(
        array.name,
        indexes.flatMap((index) => array.tasks[index] ?? []),
      )
      if (!(error instanceof NoRoom)) throw error
      if (indexes.length === 1 || !error.smaller) throw new DriverError('unknown', error.message, { cause: error })
      return undefined
    }
  }

  async function placeOurs(
    array: BatchArray<Request>,
    { indexes, held }: { indexes: readonly number[]; held: ReadonlyMap<string, BookEntry> },
    { scripts, terms, pack }: { scripts: Scripts; terms: BatchTerms<Request>; pack: { pack: string; bytes: Buffer } },
  ): Promise<Placed> {
    const results: Placed = new Map()
    const mine = indexes.flatMap((index) => array.tasks[index] ?? [])
    const again = async (names: readonly string[], arraySize: number): Promise<void> => {
      const requests = new Map(names.map((name) => [name, array.request]))
      for (const [name, result] of await placeAll(requests, scripts, { ...terms, arraySize })) results.set(name, result)
    }
    if (mine.length === 0) await books.release(array.name, [])
    else if (mine.length < array.tasks.length && !scheduler.leavesOut) {
      // What others hold is theirs, the rest becomes another array.
      await books.release(array.name, mine)
      await again(mine, terms.arraySize)
    } else {
      const job = await submitOurs(array, indexes, pack)
      if (job === undefined) {
        await again(array.tasks, Math.ceil(array.tasks.length / 2))
        return results
      }
      for (const index of indexes) {
        const name = array.tasks[index]
        if (name !== undefined) results.set(name, externalIdIn(scheduler, { array: array.name, index, submittedAt: 0, job }))
      }
      for (const [name, { place }] of held) if (place.array === array.name) results.set(name, externalIdIn(scheduler, { ...place, job }))
    }
    for (const [name, entry] of held)
      if (!results.has(name)) results.set(name, entry.place.job === undefined ? await adopt(name, entry) : idOf(entry))
    return results
  }

  /** Puts an array into the queue, or finds it there; answers the ids of its names, or why not. */
  async function place(array: BatchArray<Request>, scripts: Scripts, terms: BatchTerms<Request>): Promise<Placed> {
    const until = performance.now() + submitPatienceMs
    const elements = array.tasks.map((name) => scripts.get(name) ?? { script: name })
    const pack = `${randomBytes(6).toString('hex')}.pack`
    const script = await scheduler.script(array, elements, `../arrays/${array.name}/${pack}`)
    const { bytes } = packOf(elements)
    for (let wait = firstWaitMs; ; wait = Math.min(wait * 2, longestWaitMs)) {
      if (closed) throw new DriverError('infrastructure', `the ${scheduler.kind} driver is closed; open another`)
      const claim = await books.claim(array, script)
      if (claim.state === 'accepted') return new Map([...(await idsOf(array.tasks))].map(([name, id]) => [name, id ?? removed(name)]))
      if (claim.state === 'ours') return await placeOurs(array, claim, { scripts, terms, pack: { pack, bytes } })
      if (claim.ageSeconds > scheduler.claimSeconds()) {
        const job = await scheduler.find(array.name)
        if (job === undefined) await books.release(array.name, array.tasks)
        else await books.accepted(array.name, job)
      } else if (performance.now() > until)
        throw new DriverError('unknown', `${array.name} is being submitted by another worker since ${claim.ageSeconds} s`)
      else await sleep(wait)
    }
  }

  /** A name that an array has of which nobody knows whether it was taken: its submitter is waited for, as long as one may take. */
  async function adopt(name: string, held: BookEntry): Promise<string | DriverError> {
    const until = performance.now() + submitPatienceMs
    let entry: BookEntry | undefined = held
    for (let wait = firstWaitMs; entry !== undefined; wait = Math.min(wait * 2, longestWaitMs)) {
      const { place } = entry
      if (place.job !== undefined) return idOf(entry)
      const job = await scheduler.find(place.array)
      if (job !== undefined) {
        await books.accepted(place.array, job)
        return externalIdIn(scheduler, { ...place, job })
      }
      const late = Date.now() / 1000 - place.submittedAt > scheduler.claimSeconds()
      if (late) await books.release(place.array, [name])
      if (late || closed || performance.now() > until)
        return new DriverError('unknown', `${name} is being submitted as part of ${place.array}`)
      await sleep(wait)
      entry = (await books.read([name])).get(name)
    }
    return new DriverError('unknown', `${name} was given back by the worker that submitted it`)
  }

  async function placeAll(requests: ReadonlyMap<string, Request>, scripts: Scripts, terms: BatchTerms<Request>): Promise<Placed> {
    const results: Placed = new Map()
    for (const array of arraysOf(requests, terms)) {
      const placed = await place(array, scripts, terms).catch((error: unknown) => asDriverError(error))
      for (const name of array.tasks) results.set(name, placed instanceof DriverError ? placed : (placed.get(name) ?? name))
    }
    return results
  }

  const requestOf = (intent: Intent, terms: BatchTerms<Request>): Request => {
    const request = terms.requestOf(intent)
    const hopeless = memory.impossible.get(requestKey(request))
    if (hopeless !== undefined && hopeless.until > performance.now())
      throw new DriverError('refused', `${intent.name}: ${scheduler.hopeless(request, hopeless.words)}`)
    return request
  }

  /** What was accepted earlier stays so, whatever the limits are now. */
  async function acceptedEarlier(names: readonly string[]): Promise<Map<string, string>> {
    const found = await sight.see(names.filter((name) => /^[a-z0-9-]{1,63}$/.test(name)))
    return new Map(
      [...found].flatMap(([name, { state, entry }]) =>
        state.state === 'unknown' ? [] : [[name, entry === undefined ? name : idOf(entry)] as const],
      ),
    )
  }

  async function submit(intents: readonly Intent[]): Promise<Placed> {
    const results: Placed = new Map()
    const requests = new Map<string, Request>()
    const terms = await scheduler.terms()
    await hooks.ready()
    for (const intent of intents) {
      try {
        requests.set(intent.name, requestOf(intent, terms))
      } catch (error) {
        results.set(intent.name, asDriverError(error))
      }
    }
    for (const [name, id] of await acceptedEarlier([...results.keys()])) results.set(name, id)
    for (const [name, { externalId }] of (await scheduler.strays?.([...requests.keys()])) ?? []) {
      requests.delete(name)
      results.set(name, externalId)
    }
    const known: string[] = []
    const ready = new Map<string, Request>()
    const scripts = new Map<string, ArrayElement>()
    for (const [name, outcome] of await tasks.prepare(intents.filter((intent) => requests.has(intent.name)))) {
      const request = requests.get(name)
      if (outcome.state === 'failed') results.set(name, outcome.error)
      else if (outcome.state === 'known') known.push(name)
      else if (request !== undefined) {
        ready.set(name, request)
        scripts.set(name, outcome)
        memory.requestsOf.set(name, requestKey(request))
      }
    }
    for (const [name, id] of await idsOf(known)) results.set(name, id ?? name)
    for (const [name, result] of await placeAll(ready, scripts, terms)) results.set(name, result)
    return results
  }

  return {
    submit,
    close() {
      closed = true
    },
  }
}
