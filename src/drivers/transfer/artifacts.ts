import { posix } from 'node:path'
import { assign, readProgram, sumProgram } from '../../shell/program.ts'
import type { SiteShell } from '../../shell/site-shell.ts'
import { DriverError, type Collected, type Intent, type RuntimeDriver } from '../runtime/contract/driver.ts'
import { asDriverError, emptyResult } from '../runtime/contract/results.ts'
import { discard } from './copy.ts'
import { pathsBeside } from './scripts.ts'
import { transfer, type TransferSide } from './transfer.ts'
import { poll } from '../../pacing/poll.ts'

/** Brings the executables of tasks to the site where they run, once per digest. */

const program = (name: string): string => readProgram(import.meta.dirname, name)
const programs = {
  claim: `${sumProgram}${program('artifact-claim.sh')}`,
  settle: program('artifact-settle.sh'),
  sum: `${sumProgram}${program('artifact-sum.sh')}`,
  release: program('artifact-release.sh'),
  lock: program('artifact-lock.sh'),
}

/** The bytes of an executable, and where they are. */
export interface ArtifactBytes {
  /** `sha256:…` of the file. */
  digest: string
  sizeBytes: number
  format: 'sif' | 'oci'
  /** Of an archive of an image: the image's id in engines. */
  imageId?: string | undefined
  /** The site that holds the file at `directory`/`path`. */
  at: string
  directory: string
  path: string
  label: string
  strategy: string
  reason: string
}

/** How an executable came to a site. */
export interface DeliveryFacts {
  digest: string
  /** Absolute, at the site. */
  path: string
  strategy: string
  reason: string
  /** 0 where it was there. */
  bytes: number
  networkBytes: number
  /** Seconds since the epoch. */
  startedAt: number
  finishedAt: number
}

export interface ArtifactOptions {
  site: string
  /** The facts about a site; called for every transfer. */
  ends: (site: string) => Promise<TransferSide>
  /** The root of the site's files. */
  root: () => Promise<string>
  /** The run, in letters and digits. */
  scope: string
  /** Bytes that executables may take at the site; those of open runs stay in any case. */
  cacheBytes: number
  /**
   * The bytes of an executable; undefined while a build makes them.
   * @throws DriverError `refused` where there will be none
   */
  ready: (id: string) => Promise<ArtifactBytes | undefined>
  /** The bytes of an executable begin to move to `path` at the site, for the task `name`. */
  begun: (
    name: string,
    id: string,
    facts: Pick<DeliveryFacts, 'digest' | 'path' | 'strategy' | 'reason' | 'startedAt'>,
  ) => Promise<void>
  /**
   * Called before the tasks are passed on: `names` need the executable, the first one caused the
   * transfer.
   */
  delivered: (names: readonly string[], id: string, facts: DeliveryFacts) => Promise<void>
  /** An executable could not be brought; called once for a try. */
  failed: (name: string, id: string, error: DriverError) => Promise<void>
  /** Whether executables of the run are brought to the site, by this process or one before. */
  brings: (site: string) => boolean
  /** A task has ended that ran in this image, which the site's engine had or pulled. */
  ran: (name: string, collected: Pick<Collected, 'detail' | 'state'>) => Promise<void>
}

/** A delivery that is under way. It is given up where everyone who waits for it has left. */
interface Flight {
  facts: Promise<DeliveryFacts>
  abort: AbortController
  waiting: number
}

/** Deliveries that are under way in this process, by site and digest: runs share them. */
export type Deliveries = Map<string, Flight>

const hexOf = (digest: string): string => digest.slice(7)
const fileName = ({ digest, format }: Pick<ArtifactBytes, 'digest' | 'format'>): string =>
  `${hexOf(digest)}.${format === 'sif' ? 'sif' : 'oci.tar'}`

/** Pause between looks at a build that an executable waits for. */
const pollMs = 500
/** A large file is read once for its digest. */
const claimDeadlineMs = 1_800_000

const atSite = async (
  end: TransferSide,
  doing: string,
  script: string,
  deadlineMs = 60_000,
): Promise<string> => {
  const answer = await end.shell.run(script, { deadlineMs })
  if (answer.code !== 0)
    throw new DriverError('infrastructure', `cannot ${doing} at ${end.site}: ${answer.stderr.trim()}`)
  return answer.stdout.toString()
}

/**
 * Takes the lock of a digest at a site. It ends with `release`, with this process, and with the
 * link; an abort ends the wait for it.
 */
const takeLock = async (
  shell: SiteShell,
  root: string,
  hex: string,
  signal: AbortSignal,
): Promise<() => void> => {
  signal.throwIfAborted()
  const stream = await shell.open(`${assign({ ROOT: root, HEX: hex })}${programs.lock}`)
  stream.stdin.on('error', () => undefined)
  const held = new Promise<void>((resolve) => stream.stdout.once('data', () => resolve()))
  const ended = stream.done.then(({ stderr }) => {
    throw new DriverError('infrastructure', `the lock of ${root} cannot be taken: ${stderr.trim()}`)
  })
  ended.catch(() => undefined)
  const leave = (): void => stream.kill()
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  try {
    await Promise.race([held, ended])
  } catch (error) {
    throw (signal.aborted ? signal.reason : error) as Error
  } finally {
    signal.removeEventListener('abort', leave)
  }
  signal.throwIfAborted()
  return () => stream.stdin.end()
}

/** Brings one file to the site's own store, or finds it there. */
const bring = async (
  options: ArtifactOptions,
  bytes: ArtifactBytes,
  signal: AbortSignal,
  begun?: (facts: DeliveryFacts) => Promise<void>,
): Promise<DeliveryFacts> => {
  const startedAt = Date.now() / 1_000
  const { digest, sizeBytes, label } = bytes
  const [hex, name] = [hexOf(digest), fileName(bytes)]
  const [siteRoot, from, to] = await Promise.all([
    options.root(),
    options.ends(bytes.at),
    options.ends(options.site),
  ])
  const root = posix.join(siteRoot, 'artifacts')
  const release = await takeLock(to.shell, root, hex, signal)
  const facts = (path: string, strategy: string, reason: string, moved: [number, number]): DeliveryFacts => ({
    ...{ digest, path, strategy, reason, bytes: moved[0], networkBytes: moved[1], startedAt },
    finishedAt: Date.now() / 1_000,
  })
  try {
    const claim = assign({
      ...{ ROOT: root, NAME: name, HEX: hex, SIZE: sizeBytes, SCOPE: options.scope },
      LIMIT: options.cacheBytes,
    })
    const found = await atSite(to, `look for ${label}`, `${claim}${programs.claim}`, claimDeadlineMs)
    if (found.startsWith('there'))
      return facts(posix.join(root, name), 'use-in-place', 'the site has it with this digest', [0, 0])
    const altered = found.startsWith('altered') ? '; what was there had changed and was removed' : ''
    const directory = posix.join(root, 'arriving', hex)
    signal.throwIfAborted()
    await begun?.(facts(posix.join(root, name), bytes.strategy, `${bytes.reason}${altered}`, [0, 0]))
    const outcome = await transfer({
      ...{ from, to, directory, label },
      source: { directory: bytes.directory, paths: [bytes.path] },
      signal,
    })
    const reason = `${bytes.reason}; ${outcome.strategy}: ${outcome.reason}${altered}`
    if (outcome.directory !== directory)
      return facts(posix.join(outcome.directory, bytes.path), 'use-in-place', reason, [0, 0])
    const arrived = posix.join(directory, bytes.path)
    const sum = await atSite(
      to,
      `read ${label}`,
      `${assign({ FROM: arrived })}${programs.sum}`,
      claimDeadlineMs,
    )
    if (!sum.startsWith(hex)) {
      await discard(to, directory)
      throw new DriverError(
        'refused',
        `${label} at ${bytes.at} is another file by now: it had ${digest} when the run was accepted`,
      )
    }
    const settle = assign({
      ...{ ROOT: root, NAME: name, FROM: arrived, ARRIVED: directory },
      MANIFEST: pathsBeside(directory).manifest,
    })
    await atSite(to, `keep ${label}`, `${settle}${programs.settle}`)
    const moved: [number, number] = [outcome.bytes, outcome.networkBytes]
    return facts(posix.join(root, name), bytes.strategy, reason, moved)
  } finally {
    release()
  }
}

const allCancelled = (): DriverError =>
  new DriverError('refused', 'every task that waited for this executable was cancelled')

/** Waits of one run for deliveries. The last one that leaves a delivery gives it up. */
const openWaits = (deliveries: Deliveries) => {
  const waiters = new Set<{ names: readonly string[]; leave: (why: DriverError) => void }>()

  const begin = (key: string, start: (signal: AbortSignal) => Promise<DeliveryFacts>): Flight => {
    const abort = new AbortController()
    const flight: Flight = { facts: start(abort.signal), abort, waiting: 0 }
    deliveries.set(key, flight)
    const forget = (): void => {
      if (deliveries.get(key) === flight) deliveries.delete(key)
    }
    flight.facts.then(forget, forget)
    return flight
  }

  return {
    /** Waits for a delivery, begun by this call or shared with others. */
    async forFlight(
      names: readonly string[],
      key: string,
      start: (signal: AbortSignal) => Promise<DeliveryFacts>,
    ): Promise<{ facts: DeliveryFacts; isShared: boolean }> {
      const shared = deliveries.get(key)
      const flight = shared ?? begin(key, start)
      flight.waiting += 1
      const left = Promise.withResolvers<never>()
      left.promise.catch(() => undefined)
      const waiter = { names, leave: (why: DriverError) => left.reject(why) }
      waiters.add(waiter)
      try {
        return {
          facts: await Promise.race([flight.facts, left.promise]),
          isShared: shared !== undefined,
        }
      } finally {
        waiters.delete(waiter)
        flight.waiting -= 1
        if (flight.waiting === 0) {
          flight.abort.abort(allCancelled())
          // Who comes next begins anew, behind the lock at the site.
          if (deliveries.get(key) === flight) deliveries.delete(key)
        }
      }
    },
    /** Leaves the deliveries for which only such tasks wait. */
    leave(why: DriverError, isOver: (name: string) => boolean): void {
      for (const { names, leave } of waiters) if (names.every(isOver)) leave(why)
    },
  }
}

/** The launcher's words for a file at the site that is gone or has other bytes than it should. */
const spoiled = /has no image at |^the digest of \S+ differs/

interface ScopedDriver extends RuntimeDriver {
  closeScope?: (scope: string) => Promise<void>
}

/** The intent with another image of its container, which nobody has to bring. */
const withImage = (intent: Intent, image: string): Intent => {
  const { container } = intent
  if (container === undefined) return intent
  const { brought: _brought, ...rest } = container
  return { ...intent, container: { ...rest, image } }
}

/** As a container's image: an executable at its place at the site. */
const placed = ({ format, place, digest, imageId }: ArtifactBytes & { place: string }): string =>
  format === 'sif' ? `${place}@${digest}` : `archive:${place}@${imageId ?? digest}`

/** The intent of a task that needs its executable no more. */
const unneeded = (intent: Intent): Intent => withImage(intent, 'brought-already')

/**
 * A driver whose tasks get their executables first: `container.brought` names one, and its place at
 * the site becomes the container's image. A file comes once per site and digest, under a lock
 * there, with verified bytes; it stays for later runs, the least recently used go.
 */
export function withArtifacts(
  driver: ScopedDriver,
  options: ArtifactOptions,
  deliveries: Deliveries,
): ScopedDriver {
  /** What this run has here, by executable; `recorded` once its record has been written. */
  const present = new Map<string, { facts: DeliveryFacts; recorded: boolean }>()
  const broughtFor = new Map<string, string>()
  const cancelled = new Set<string>()
  const waits = openWaits(deliveries)
  const closing = new AbortController()

  const readyBytes = async (names: readonly string[], id: string): Promise<ArtifactBytes> => {
    const look = async (): Promise<ArtifactBytes | undefined> => {
      const bytes = await options.ready(id)
      if (bytes !== undefined) return bytes
      if (names.every((name) => cancelled.has(name))) throw allCancelled()
      return undefined
    }
    const bytes = await poll(look, { everyMs: pollMs, signal: closing.signal })
    closing.signal.throwIfAborted()
    return bytes as ArtifactBytes
  }

  /** Records a delivery; where that fails the next try at its tasks records it with the same facts. */
  const keepRecord = async (names: readonly string[], id: string): Promise<void> => {
    const found = present.get(id)
    if (found === undefined || found.recorded) return
    await options.delivered(names, id, found.facts)
    found.recorded = true
  }

  const deliver = async (
    names: readonly string[],
    id: string,
  ): Promise<ArtifactBytes & { place: string }> => {
    const bytes = await readyBytes(names, id)
    const known = present.get(id)
    if (known !== undefined) {
      await keepRecord(names, id)
      return { ...bytes, place: known.facts.path }
    }
    const now = Date.now() / 1_000
    const inPlace = bytes.at === options.site
    const key = JSON.stringify([options.site, bytes.digest])
    const there = {
      ...{ digest: bytes.digest, path: posix.join(bytes.directory, bytes.path) },
      ...{ strategy: 'use-in-place', reason: bytes.reason, bytes: 0, networkBytes: 0 },
      ...{ startedAt: now, finishedAt: now },
    }
    const { facts, isShared } = inPlace
      ? { facts: there, isShared: false }
      : await waits.forFlight(names, key, (signal) =>
          bring(options, bytes, signal, (begun) => options.begun(names[0] ?? '', id, begun)),
        )
    const own = isShared
      ? {
          ...facts,
          ...{ strategy: 'use-in-place', bytes: 0, networkBytes: 0 },
          reason: 'brought once for all runs that need it here',
        }
      : facts
    // The mark of the run that brought it is not this run's.
    if (isShared)
      await waits.forFlight(names, JSON.stringify([options.site, bytes.digest, options.scope]), (signal) =>
        bring(options, bytes, signal),
      )
    present.set(id, { facts: own, recorded: false })
    await keepRecord(names, id)
    return { ...bytes, place: facts.path }
  }

  /** The intents of one executable, as the driver beneath takes them. */
  const prepared = async (id: string, intents: readonly Intent[]) => {
    const names = intents.map(({ name }) => name)
    const states = await driver.find(names)
    const fresh = intents.filter(
      ({ name }) => (states.get(name)?.state ?? 'unknown') === 'unknown' && !cancelled.has(name),
    )
    for (const { name } of intents) broughtFor.set(name, id)
    // A task that the site has accepted, or that is cancelled, needs no image any more.
    const plain = intents.filter((intent) => !fresh.includes(intent)).map(unneeded)
    if (fresh.length === 0) return plain
    const freshNames = fresh.map(({ name }) => name)
    try {
      const bytes = await deliver(freshNames, id)
      closing.signal.throwIfAborted()
      return [...plain, ...fresh.map((intent) => withImage(intent, placed(bytes)))]
    } catch (error) {
      const trouble = asDriverError(error)
      // Its cancel has buried it; the driver beneath returns how that ended.
      if (freshNames.every((name) => cancelled.has(name))) return intents.map(unneeded)
      closing.signal.throwIfAborted()
      await options.failed(freshNames[0] ?? '', id, trouble)
      throw trouble
    }
  }

  return {
    ...driver,
    async submit(intents) {
      const groups = Map.groupBy(intents, ({ container }) => container?.brought?.id ?? '')
      const outcomes = await Promise.all(
        [...groups].map(async ([id, group]) => {
          if (id === '') return driver.submit(group)
          try {
            return await driver.submit(await prepared(id, group))
          } catch (error) {
            const trouble = asDriverError(error)
            return group.map(({ name }) => ({ name, ok: false as const, error: trouble }))
          }
        }),
      )
      return outcomes.flat()
    },
    async collect(name, onWait) {
      try {
        const collected = await driver.collect(name, onWait)
        if (collected.detail?.engine !== undefined && collected.state.state === 'ended')
          await options.ran(name, collected)
        return collected
      } catch (error) {
        const id = broughtFor.get(name)
        if (!(error instanceof DriverError) || id === undefined || !spoiled.test(error.message)) throw error
        present.delete(id)
        // The next attempt brings it again.
        const cause = `${error.message}; it is brought again`
        return emptyResult({ state: 'lost', externalId: '', startedAt: 0, cause })
      }
    },
    async cancel(names, graceSeconds) {
      // First the names beneath: after that, a task that waits here finds its name buried.
      await driver.cancel(names, graceSeconds)
      for (const name of names) cancelled.add(name)
      waits.leave(allCancelled(), (name) => cancelled.has(name))
    },
    async closeScope(scope) {
      await driver.closeScope?.(scope)
      if (!options.brings(options.site)) return
      const [root, { shell }] = await Promise.all([options.root(), options.ends(options.site)])
      const release = assign({ ROOT: posix.join(root, 'artifacts'), SCOPE: options.scope })
      await shell.run(`${release}${programs.release}`)
    },
    async close() {
      closing.abort(new DriverError('unknown', 'the driver was closed'))
      waits.leave(closing.signal.reason as DriverError, () => true)
      await driver.close()
    },
  }
}
