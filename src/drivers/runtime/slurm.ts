import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { SlurmrestdServer } from '../../clients/slurmrestd.ts'
import type { SiteShell } from '../shell.ts'
import { DriverError, type Capability, type Collected, type Intent, type TaskState } from './driver.ts'
import { gather } from './gather.ts'
import { asDriverError } from './remote-site.ts'
import { outcomesOf } from './outcomes.ts'
import { openRemoteWatch } from './remote-watch.ts'
import { openRemoteTasks, type RemoteSight } from './remote.ts'
import type { RootedDriver } from './rooted.ts'
import { arrayScript, openSlurmBooks, packOf, type ArrayElement, type BookEntry } from './slurm-books.ts'
import { openSlurmCommands } from './slurm-commands.ts'
import { jobOf, type SlurmJob } from './slurm-jobs.ts'
import type { SlurmLimits } from './slurm-limits.ts'
import { arraysOf, requestKey, requestOf, type SlurmArray, type SlurmRequest } from './slurm-request.ts'
import { openSlurmRest } from './slurm-rest.ts'
import { NoRoom, type SlurmScheduler } from './slurm-scheduler.ts'
import { externalIdOf, judge, stateOfVerdict, type Judgement, type Patience, type SlurmPlace } from './slurm-state.ts'

export const slurmCapabilities: Readonly<Record<Capability, boolean>> = {
  batch: true,
  interactive: false,
  container: false,
  serverless: false,
  gpu: true,
  mpi: false,
  sharedStorage: true,
  dataStaging: true,
  cancellation: true,
  logStreaming: true,
  simulation: false,
}

export interface SlurmDriverOptions {
  shell: SiteShell
  /** Absolute at the site, on a file system that its compute nodes share; default `$HOME/.orrery`. */
  root?: string
  runtime: string
  taskVariable: string
  /**
   * partition, account, qos, reservation, constraint, walltimeFactor (default 2), `requeue` (default false: a task that Slurm took away is lost
   * and tried again as another attempt), commandSeconds (default 30), settleSeconds (default 30), accountingPatienceSeconds (default 4 h),
   * claimSeconds (default 60).
   */
  configuration: Readonly<Record<string, unknown>>
  /** Ask over HTTP instead of by commands. */
  slurmrestd?: SlurmrestdServer
  /** Between two questions to the scheduler, default 10 s: ends are told by the tasks themselves, at once. */
  pollMilliseconds?: number
}

/** Limits change rarely; reading them costs three commands. */
const limitsKeptMs = 300_000
/** How long a request that can never run is refused without asking again. */
const impossibleKeptMs = 600_000
const submitPatienceMs = 120_000
/** Looking at records costs the scheduler nothing. */
const recordsPollMs = 5000
/** Beyond the grace, for the scheduler to end by force what does not end. */
const cancelPatienceMs = 120_000
/** A signal that came before the supervisor could take it is repeated. */
const politeAgainSeconds = 3

const numberIn = (configuration: Readonly<Record<string, unknown>>, key: string, otherwise: number): number => {
  const value = configuration[key]
  return typeof value === 'number' && Number.isFinite(value) && value >= 0 ? value : otherwise
}

/** The same shell; a broken link is a `DriverError` of the class that tells what to do about it. */
const withDriverErrors = (shell: SiteShell): SiteShell => ({
  run: (script, options) =>
    shell.run(script, options).catch((error: unknown) => {
      throw asDriverError(error)
    }),
  open: (script) => shell.open(script),
  close: () => shell.close(),
})

/** By name: the scripts of this submission. */
type Scripts = ReadonlyMap<string, ArrayElement>

/** One question under way at a time; whoever asks meanwhile gets the next answer, not one that was on its way before. */
function sharing<T>(question: () => Promise<T>): () => Promise<T> {
  let running: Promise<T> | undefined
  let next: Promise<T> | undefined
  const start = (): Promise<T> => {
    const answer = question().finally(() => {
      if (running === answer) running = undefined
    })
    running = answer
    return answer
  }
  return () => {
    if (running === undefined) return start()
    const before = running
    next ??= before
      .catch(() => undefined)
      .then(() => {
        next = undefined
        return start()
      })
    return next
  }
}

/**
 * Tasks as elements of Slurm's job arrays. What they do is recorded by themselves (`remote.ts`), what is submitted where by us
 * (`slurm-books.ts`), why the scheduler ended something by the scheduler; `slurm-state.ts` makes one state of the three.
 *
 * A name is submitted once: it is put into one array by an exclusive file, an array has a name that can be asked for when the answer was lost,
 * and the task's own record, created exclusively at its start, is the last to say no.
 */
export function openSlurmDriver(options: SlurmDriverOptions): RootedDriver {
  const { runtime, configuration } = options
  const shell = withDriverErrors(options.shell)
  const remote = {
    shell: options.shell,
    runtime,
    taskVariable: options.taskVariable,
    elsewhere: true,
    ...(options.root === undefined ? {} : { root: options.root }),
  }
  const tasks = openRemoteTasks(remote)
  const root = (): Promise<string> => tasks.root()
  const books = openSlurmBooks(shell, root)
  const requeue = configuration['requeue'] === true
  const common = { shell, root, requeue, deadlineSeconds: numberIn(configuration, 'commandSeconds', 30) }
  const scheduler: SlurmScheduler =
    options.slurmrestd === undefined ? openSlurmCommands(common) : openSlurmRest({ ...common, ...options.slurmrestd })
  const patience: Patience = {
    settleSeconds: numberIn(configuration, 'settleSeconds', 30),
    historySeconds: numberIn(configuration, 'accountingPatienceSeconds', 4 * 3600),
  }
  const claimSeconds = numberIn(configuration, 'claimSeconds', 60)
  const pollMilliseconds = options.pollMilliseconds ?? 10_000
  /** Since when every answer says that a task is over; milliseconds of `performance.now()`. */
  const overSince = new Map<string, number>()
  /** When tasks began that ran by the scheduler's last word; Unix seconds. */
  const ranSince = new Map<string, number>()
  /** Requests that can never run, by key: the scheduler's words, and until when. */
  const impossible = new Map<string, { words: string; until: number }>()
  /** Keys of the requests of what was submitted. */
  const requestsOf = new Map<string, string>()
  let closed = false

  let limits: { value: SlurmLimits; at: number } | undefined
  const askLimits = sharing(async () => {
    const value = await scheduler.limits()
    limits = { value, at: performance.now() }
    return value
  })
  const currentLimits = (): Promise<SlurmLimits> =>
    limits !== undefined && performance.now() - limits.at < limitsKeptMs ? Promise.resolve(limits.value) : askLimits()

  let queue: { jobs: SlurmJob[]; at: number } | undefined
  const askQueue = sharing(async () => {
    const at = performance.now()
    const jobs = await scheduler.queue()
    queue = { jobs, at }
    return jobs
  })
  /** Not older than an interval: many who ask make one call. */
  const recentQueue = async (): Promise<SlurmJob[] | 'silent'> => {
    if (queue !== undefined && performance.now() - queue.at < pollMilliseconds * 0.9) return queue.jobs
    return askQueue().catch(() => 'silent' as const)
  }
  const askHistory = async (places: readonly SlurmPlace[]): Promise<SlurmJob[] | 'silent' | 'none'> => {
    try {
      const { accounting } = await currentLimits()
      if (!accounting) return 'none'
      const jobs = [...new Set(places.flatMap(({ job }) => job ?? []))]
      const oldest = Math.min(...places.map(({ submittedAt }) => submittedAt))
      return await scheduler.history(jobs, Date.now() / 1000 - oldest)
    } catch {
      return 'silent'
    }
  }

  interface Found {
    state: TaskState
    sight: RemoteSight
    entry?: BookEntry
  }
  /** What the records alone tell; `open` needs the scheduler. */
  async function seeRecords(
    names: readonly string[],
  ): Promise<{ found: Map<string, Found>; open: Map<string, Found & { entry: BookEntry }> }> {
    const found = new Map<string, Found>()
    const open = new Map<string, Found & { entry: BookEntry }>()
    if (names.length === 0) return { found, open }
    const [sights, entries] = await Promise.all([tasks.look(names, { processes: false }), books.read(names)])
    // Found to be over before they started, by one who did not come to bury them.
    const unburied = names.filter((name) => entries.get(name)?.verdict?.end === 'never' && (sights.get(name)?.form ?? 'none') === 'none')
    if (unburied.length > 0) {
      await tasks.markCancelled(unburied, 0)
      for (const [name, sight] of await tasks.look(unburied, { processes: false })) sights.set(name, sight)
    }
    for (const name of names) {
      const sight = sights.get(name) ?? { form: 'none' }
      const written = entries.get(name)
      // It started before it could be buried.
      const verdict = written?.verdict?.end === 'never' && sight.form !== 'buried' ? undefined : written?.verdict
      const place = written?.place ?? { array: name, index: 0, submittedAt: 0 }
      const cancelAsked = written?.cancelAsked ?? false
      const entry: BookEntry = { place, cancelAsked, ...(verdict === undefined ? {} : { verdict }) }
      const booked = written === undefined ? {} : { entry }
      const settled = sight.form === 'buried' || (sight.form === 'ended' && (sight.reason !== 'stopped' || cancelAsked))
      const { state } = judge({ sight, place, cancelAsked, queue: 'silent', history: 'silent', overSeconds: 0 }, patience)
      if (verdict !== undefined) found.set(name, { state: stateOfVerdict(verdict, sight, place), sight, ...booked })
      else if (settled) found.set(name, { state, sight, ...booked })
      else if (sight.form === 'none' && place.job === undefined) found.set(name, { state: { state: 'unknown' }, sight, ...booked })
      else {
        open.set(name, { state, sight, entry })
        continue
      }
      overSince.delete(name)
      ranSince.delete(name)
    }
    return { found, open }
  }

  /** The same with what the scheduler says; what it alone knows is written down. */
  async function weigh(open: ReadonlyMap<string, Found & { entry: BookEntry }>): Promise<Map<string, Found>> {
    const found = new Map<string, Found>(open)
    if (open.size === 0) return found
    const jobs = await recentQueue()
    const inQueue = (place: SlurmPlace): SlurmJob | 'absent' | 'silent' =>
      jobs === 'silent' ? 'silent' : place.job === undefined ? 'absent' : (jobOf(jobs, place.array, place.job, place.index) ?? 'absent')
    const missing = [...open.values()].flatMap(({ entry: { place } }) =>
      place.job !== undefined && inQueue(place) === 'absent' ? [place] : [],
    )
    const history = missing.length === 0 ? 'none' : await askHistory(missing)
    const judgeOne = (name: string, sight: RemoteSight, { place, cancelAsked }: BookEntry): Judgement => {
      const told =
        typeof history === 'string'
          ? history
          : ((place.job === undefined ? undefined : jobOf(history, place.array, place.job, place.index)) ?? 'absent')
      const overSeconds = (performance.now() - (overSince.get(name) ?? performance.now())) / 1000
      const since = ranSince.get(name)
      const begun = since === undefined ? {} : { ranSince: since }
      return judge({ sight, place, cancelAsked, queue: inQueue(place), history: told, overSeconds, ...begun }, patience)
    }
    const doubtful = new Map<string, Found & { entry: BookEntry }>()
    for (const [name, { sight, entry }] of open) {
      const { state, over, verdict, impossible: words } = judgeOne(name, sight, entry)
      if (over) overSince.set(name, overSince.get(name) ?? performance.now())
      else overSince.delete(name)
      if (state.state === 'running') ranSince.set(name, state.startedAt)
      else ranSince.delete(name)
      found.set(name, { state, sight, entry })
      if (verdict !== undefined || words !== undefined) doubtful.set(name, { state, sight, entry })
    }
    for (const [name, one] of await decide(doubtful, judgeOne)) found.set(name, one)
    return found
  }

  async function see(names: readonly string[]): Promise<Map<string, Found>> {
    const { found, open } = await seeRecords(names)
    return new Map([...found, ...(await weigh(open))])
  }

  /** The records are asked once more, after the scheduler; what it alone knows is then written down. What never started never will. */
  async function decide(
    doubtful: ReadonlyMap<string, Found & { entry: BookEntry }>,
    judgeOne: (name: string, sight: RemoteSight, entry: BookEntry) => Judgement,
  ): Promise<Map<string, Found>> {
    const found = new Map<string, Found>()
    if (doubtful.size === 0) return found
    const names = [...doubtful.keys()]
    const hopeless: string[] = []
    const unstarted: string[] = []
    for (const [name, { sight, entry }] of doubtful) {
      if (sight.form !== 'none') continue
      const { impossible: words, verdict } = judgeOne(name, sight, entry)
      const key = requestsOf.get(name)
      if (words !== undefined) hopeless.push(name)
      if (words !== undefined && key !== undefined) impossible.set(key, { words, until: performance.now() + impossibleKeptMs })
      const cause = words ?? verdict?.cause
      if (cause === undefined) continue
      unstarted.push(name)
      await books.settle(name, { end: 'never', cause, at: Date.now() / 1000 })
    }
    if (unstarted.length > 0) await tasks.markCancelled(unstarted, 0)
    const [again, entries] = await Promise.all([tasks.look(names, { processes: false }), books.read(names)])
    for (const [name, { entry }] of doubtful) {
      const { place } = entry
      const sight = again.get(name) ?? { form: 'none' }
      const judged = judgeOne(name, sight, entry)
      const written = sight.form === 'buried' ? entries.get(name)?.verdict : judged.verdict
      const verdict = written === undefined || written.end === 'never' ? written : await books.settle(name, written)
      overSince.delete(name)
      if (verdict === undefined) found.set(name, { state: judged.state, sight, entry })
      else found.set(name, { state: stateOfVerdict(verdict, sight, place), sight, entry: { ...entry, verdict } })
    }
    if (hopeless.length > 0) await scheduler.cancel(elementsOf(hopeless, found), 'waiting').catch(() => undefined)
    return found
  }

  const elementsOf = (names: Iterable<string>, found: ReadonlyMap<string, Found>): Map<string, number[]> => {
    const elements = new Map<string, number[]>()
    for (const name of names) {
      const place = found.get(name)?.entry?.place
      if (place?.job === undefined) continue
      const indexes = elements.get(place.job) ?? []
      indexes.push(place.index)
      elements.set(place.job, indexes)
    }
    return elements
  }

  const isOver = (state: TaskState | undefined): boolean => state?.state === 'ended' || state?.state === 'lost'
  let weighing = false
  /** Whoever has a recorded end is not kept waiting by a scheduler that does not answer: it is asked beside, and what it knows is read next time. */
  const lookForEnds = async (names: readonly string[]): Promise<string[]> => {
    const { found, open } = await seeRecords(names)
    if (open.size > 0 && !weighing) {
      weighing = true
      void weigh(open)
        .catch(() => undefined)
        .finally(() => (weighing = false))
    }
    return [...found].filter(([, { state }]) => isOver(state)).map(([name]) => name)
  }
  const seeOne = gather(see, { most: 1000 })
  /** Undefined where the scheduler has to be asked. */
  const seeRecord = gather(async (names: readonly string[]) => {
    const { found } = await seeRecords(names)
    return new Map(names.map((name) => [name, { found: found.get(name) }]))
  })
  const watcher = openRemoteWatch({
    look: lookForEnds,
    follow: (ended, stands) =>
      tasks.onEnds((name) => {
        // What the site stopped is no end before the scheduler has told why.
        seeRecord(name)
          .then(({ found }) => (isOver(found?.state) ? ended(name) : undefined))
          .catch(() => undefined)
      }, stands),
    pollMilliseconds: Math.min(pollMilliseconds, recordsPollMs),
  })

  /** The id of an array whose submission nobody wrote down. */
  async function findArray(name: string): Promise<string | undefined> {
    const jobs = await askQueue()
    return jobs.find((job) => job.name === name)?.job
  }

  /** Puts an array into the queue, or finds it there; answers the ids of its names, or why not. */
  async function place(array: SlurmArray, scripts: Scripts): Promise<Map<string, string | DriverError>> {
    const until = performance.now() + submitPatienceMs
    const elements = array.tasks.map((name) => scripts.get(name) ?? { script: name })
    const pack = `${randomBytes(6).toString('hex')}.pack`
    const script = arrayScript(
      elements,
      `../arrays/${array.name}/${pack}`,
      `${await root()}/tasks`,
      await tasks.foregroundCommand('"$script"'),
      requeue,
    )
    const { bytes } = packOf(elements)
    for (let wait = 100; ; wait = Math.min(wait * 2, 2000)) {
      if (closed) throw new DriverError('infrastructure', 'the slurm driver is closed; open another')
      const claim = await books.claim(array, script)
      if (claim.state === 'accepted') return new Map([...(await idsOf(array.tasks))].map(([name, id]) => [name, id ?? removed(name)]))
      if (claim.state === 'ours') {
        const { indexes, held } = claim
        const ids = new Map<string, string | DriverError>()
        if (indexes.length > 0) {
          try {
            if (bytes.length > 0) await books.fill(array.name, pack, bytes)
            const job = await scheduler.submit(array, indexes)
            for (const index of indexes) ids.set(array.tasks[index] ?? '', `${job}_${index}`)
            for (const [name, { place: at }] of held) if (at.array === array.name) ids.set(name, externalIdOf({ ...at, job }))
          } catch (error) {
            // Where nothing is known the claim stays: whoever comes next asks by the array's name.
            if (error instanceof DriverError && error.trouble === 'unknown') throw error
            await books.release(
              array.name,
              indexes.flatMap((index) => array.tasks[index] ?? []),
            )
            if (!(error instanceof NoRoom)) throw error
            if (indexes.length === 1) throw new DriverError('unknown', error.message, { cause: error })
            return await halves(array, scripts)
          }
        } else await books.release(array.name, [])
        for (const [name, entry] of held) {
          const { array: of, job } = entry.place
          if (of !== array.name) ids.set(name, job === undefined ? await adopt(name, entry) : externalIdOf(entry.place))
        }
        return ids
      }
      if (claim.ageSeconds > claimSeconds) {
        const job = await findArray(array.name)
        if (job === undefined) await books.release(array.name, array.tasks)
        else await books.accepted(array.name, job)
      } else if (performance.now() > until)
        throw new DriverError('unknown', `${array.name} is being submitted by another worker since ${claim.ageSeconds} s`)
      else await sleep(wait)
    }
  }

  /** A name that an array has of which nobody knows whether it was taken: asked again until that is known. */
  async function adopt(name: string, entry: BookEntry): Promise<string | DriverError> {
    const job = await findArray(entry.place.array)
    if (job !== undefined) await books.accepted(entry.place.array, job)
    else if (Date.now() / 1000 - entry.place.submittedAt > claimSeconds) await books.release(entry.place.array, [name])
    const now = await seeOne(name)
    if (now.state.state !== 'unknown' && now.entry !== undefined) return externalIdOf(now.entry.place)
    return new DriverError('unknown', `${name} is being submitted as part of ${entry.place.array}`)
  }

  async function halves(array: SlurmArray, scripts: Scripts): Promise<Map<string, string | DriverError>> {
    const middle = Math.ceil(array.tasks.length / 2)
    const results = new Map<string, string | DriverError>()
    const requests = (part: readonly string[]): ReadonlyMap<string, SlurmRequest> => new Map(part.map((name) => [name, array.request]))
    for (const part of [array.tasks.slice(0, middle), array.tasks.slice(middle)])
      for (const [name, result] of await placeAll(arraysOf(requests(part), middle), scripts)) results.set(name, result)
    return results
  }

  const removed = (name: string): DriverError => new DriverError('infrastructure', `${name} was removed while it was submitted`)

  /** Undefined for a name that no array has. */
  async function idsOf(names: readonly string[]): Promise<Map<string, string | undefined>> {
    const entries = await books.read(names)
    return new Map(
      names.map((name) => {
        const entry = entries.get(name)
        return [name, entry === undefined ? undefined : externalIdOf(entry.place)]
      }),
    )
  }

  async function placeAll(arrays: readonly SlurmArray[], scripts: Scripts): Promise<Map<string, string | DriverError>> {
    const results = new Map<string, string | DriverError>()
    for (const array of arrays) {
      const placed = await place(array, scripts).catch((error: unknown) => asDriverError(error))
      for (const name of array.tasks) results.set(name, placed instanceof DriverError ? placed : (placed.get(name) ?? name))
    }
    return results
  }

  const unbook = gather(async (names: readonly string[]) => {
    await books.remove(names)
    return new Map(names.map((name) => [name, true as const]))
  })

  async function submitSome(intents: readonly Intent[]): Promise<Map<string, string | DriverError>> {
    const results = new Map<string, string | DriverError>()
    const requests = new Map<string, SlurmRequest>()
    const [current] = await Promise.all([currentLimits(), watcher.ready()])
    for (const intent of intents) {
      try {
        const request = requestOf(intent, configuration, current)
        const hopeless = impossible.get(requestKey(request))
        if (hopeless !== undefined && hopeless.until > performance.now())
          throw new DriverError('refused', `${intent.name}: the scheduler would keep it waiting for ever (${hopeless.words})`)
        requests.set(intent.name, request)
      } catch (error) {
        results.set(intent.name, asDriverError(error))
      }
    }
    // What was accepted earlier stays so, whatever the limits are now.
    for (const [name, { state, entry }] of await see([...results.keys()]))
      if (state.state !== 'unknown') results.set(name, entry === undefined ? name : externalIdOf(entry.place))

    const prepared = await tasks.prepare(intents.filter((intent) => requests.has(intent.name)))
    const known: string[] = []
    const ready = new Map<string, SlurmRequest>()
    const scripts = new Map<string, ArrayElement>()
    for (const [name, outcome] of prepared) {
      const request = requests.get(name)
      if (outcome.state === 'failed') results.set(name, outcome.error)
      else if (outcome.state === 'known') known.push(name)
      else if (request !== undefined) {
        ready.set(name, request)
        scripts.set(name, outcome)
      }
    }
    for (const [name, request] of ready) requestsOf.set(name, requestKey(request))
    for (const [name, id] of await idsOf(known)) results.set(name, id ?? name)
    for (const [name, result] of await placeAll(arraysOf(ready, current.arraySize), scripts)) results.set(name, result)
    return results
  }

  /** Submits that come together are one: what costs is the call, and an array is as good as a job. */
  const submitOne = gather(
    async (intents: readonly Intent[]) => {
      const results = await submitSome([...new Map(intents.map((intent) => [intent.name, intent])).values()])
      return new Map(intents.map((intent) => [intent, { outcome: results.get(intent.name) ?? removed(intent.name) }]))
    },
    { milliseconds: 20, most: 10_000 },
  )

  async function cancel(names: readonly string[], graceSeconds: number): Promise<void> {
    if (names.length === 0) return
    await tasks.markCancelled(names, graceSeconds)
    const from = performance.now()
    let left = [...names]
    let forced = false
    let polite = 0
    for (let wait = 100; ; wait = Math.min(wait * 1.5, 2000)) {
      const found = await see(left)
      // Buried names may still wait in the queue: they would only start to leave at once.
      const buried = left.filter((name) => found.get(name)?.sight.form === 'buried')
      if (buried.length > 0) await scheduler.cancel(elementsOf(buried, found), 'waiting')
      left = left.filter((name) => !isOver(found.get(name)?.state) && found.get(name)?.state.state !== 'unknown')
      if (left.length === 0) return
      const spent = (performance.now() - from) / 1000
      if (spent > graceSeconds + cancelPatienceMs / 1000)
        throw new DriverError(
          'unknown',
          `${left.slice(0, 3).join(', ')}${left.length > 3 ? ' …' : ''} did not end within ${Math.round(spent)} s`,
        )
      const late = spent > graceSeconds + 5
      if (late && !forced) await scheduler.cancel(elementsOf(left, found), 'whole')
      else if (!late && spent >= polite) {
        await scheduler.cancel(elementsOf(left, found), 'polite')
        polite = spent + politeAgainSeconds
      }
      forced ||= late
      await sleep(wait)
    }
  }

  /** Where nothing at the nodes measures memory, what accounting has sampled; it may not know yet. */
  const peakOf = gather(
    async (places: readonly SlurmPlace[]) => {
      const history = await askHistory(places)
      return new Map(
        places.map((place): [SlurmPlace, Pick<Collected, 'peakMemoryBytes'> | Record<string, never>] => {
          const { job, array, index } = place
          const peakMemoryBytes =
            typeof history === 'string' || job === undefined ? undefined : jobOf(history, array, job, index)?.peakMemoryBytes
          return [place, peakMemoryBytes === undefined ? {} : { peakMemoryBytes }]
        }),
      )
    },
    { milliseconds: 50 },
  )

  async function collect(name: string): Promise<Collected> {
    const found = (await seeRecord(name)).found ?? (await seeOne(name))
    const { state } = found
    if (state.state !== 'ended')
      throw new DriverError('unknown', `${name} has no recorded end; find tells whether it runs, is lost or was never started`)
    const { entry, sight } = found
    const queued = entry === undefined || sight.form === 'buried' ? undefined : Math.max(0, state.startedAt - entry.place.submittedAt)
    const queueSeconds = queued === undefined ? {} : { queueSeconds: queued }
    if (sight.form === 'ended' || sight.form === 'buried') {
      const { sight: _, ...rest } = await tasks.collect(name)
      const told = rest.peakMemoryBytes === null && sight.form === 'ended' && entry !== undefined ? await peakOf(entry.place) : {}
      return { ...rest, ...queueSeconds, ...told, state }
    }
    const summary = { initialFiles: 0, finalFiles: 0, createdFiles: 0, modifiedFiles: 0, deletedFiles: 0, outputBytes: 0 }
    const { bytes } = await tasks.logs(name, 'stderr', { tail: 4096 })
    return {
      state,
      submittedAt: entry?.place.submittedAt ?? state.startedAt,
      ...queueSeconds,
      ...(sight.form === 'started' ? { node: sight.node } : {}),
      wallSeconds: state.finishedAt - state.startedAt,
      cpuSeconds: null,
      peakMemoryBytes: null,
      measuredBy: 'none',
      manifest: { schemaVersion: 1, runtime, hostname: sight.form === 'started' ? sight.node : '', root: '', files: [], summary },
      missingOutputs: [],
      stderrTail: bytes.toString().trimEnd().split('\n').slice(-20).join('\n'),
    }
  }

  return {
    kind: 'slurm',
    capabilities: slurmCapabilities,
    root,
    async submit(intents) {
      if (closed) throw new DriverError('infrastructure', 'the slurm driver is closed; open another')
      return outcomesOf(intents, submitOne, asDriverError)
    },
    find: async (names) => new Map([...(await see(names))].map(([name, { state }]) => [name, state])),
    watch: (names, onEnd) => watcher.watch(names, onEnd),
    cancel,
    collect,
    logs: (name, stream, range) => tasks.logs(name, stream, range),
    async remove(name) {
      const { state } = await seeOne(name)
      if (state.state === 'running' || state.state === 'queued')
        throw new DriverError('refused', `${name} is ${state.state}; cancel it before removing it`)
      await unbook(name)
      await tasks.remove(name)
      requestsOf.delete(name)
      watcher.forget(name)
      overSince.delete(name)
      ranSince.delete(name)
    },
    async close() {
      closed = true
      watcher.close()
    },
  }
}
