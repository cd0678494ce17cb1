import { hash } from 'node:crypto'
import { posix } from 'node:path'
import { openGate } from '../../pacing/gate.ts'
import { kept } from '../../pacing/kept.ts'
import { RecentMap } from '../../pacing/recent.ts'
import {
  DriverError,
  type Intent,
  type RuntimeDriver,
  type Stage,
  type SubmitOutcome,
} from '../runtime/contract/driver.ts'
import { asDriverError } from '../runtime/contract/results.ts'
import { versionOf } from './copy.ts'
import { markScript, unmarkScript } from './scripts.ts'
import { transfer, type TransferSide, type TransferLimits, type TransferOutcome } from './transfer.ts'

/** A transfer from the view of one consumer; the record of one edge. */
export interface EdgeTransfer extends TransferOutcome {
  fromSite: string
  toSite: string
  /** The stage's `producer` and `from`. */
  producer?: number
  from: string
}

export interface StagingOptions {
  /** The site whose driver this is. */
  site: string
  /** The run, in letters and digits. */
  scope?: string
  /** The facts about a site; called for every transfer. */
  ends: (site: string) => Promise<TransferSide>
  /** Absolute at the driver's site: a folder for files from other sites. */
  incomingRoot: () => Promise<string>
  /**
   * Called once for each stage of a task that named another site; `name` is the task's. The task is
   * passed on when it has resolved, so every process that finds the task at the site also finds
   * this record. After a crash before that, it is called again with the same facts.
   */
  onTransfer: (name: string, facts: EdgeTransfer) => Promise<void>
  limits?: Partial<TransferLimits>
}

/** The transfer of a producer's files to this site, for all tasks that wait for them. */
interface Flight {
  outcome: Promise<TransferOutcome>
  /** Waiting tasks; when the last is cancelled, the transfer is given up. */
  waiting: Set<string>
  abort: AbortController
}

/** Limit for transfers of one driver; the streams have limits of their own, for each site. */
const flightsAtOnce = 8

type RemoteStage = Stage & Required<Pick<Stage, 'at'>>

type SourceVersions = (stage: RemoteStage) => Promise<string>

/** The versions of directories, read once for all tasks that begin within a second. */
const openVersions = ({ ends }: Pick<StagingOptions, 'ends'>): SourceVersions => {
  const known = new RecentMap<string, () => Promise<string>>(100)
  return (stage) => {
    const key = JSON.stringify([stage.at, stage.from])
    const read = known.get(key) ?? kept(1_000, async () => versionOf(await ends(stage.at), stage))
    known.set(key, read)
    return read()
  }
}

/**
 * Names the files of one source: the same for every consumer of the run at the site, in every
 * process. Sites may share the account, and so the folder for arrivals: two transfers to one place
 * would end each other. The files of an activity stay as they are; others may change between two tasks.
 */
const keyOf = async (
  { site, scope }: StagingOptions,
  versions: SourceVersions,
  stage: RemoteStage,
): Promise<string> => {
  const { at, from, paths, producer } = stage
  const version = producer === undefined ? await versions(stage) : null
  const asked = paths === undefined ? null : [...paths].sort()
  return hash('sha256', JSON.stringify([site, scope ?? null, at, from, asked, version])).slice(0, 40)
}

const isRemote = (stage: Stage, site: string): stage is RemoteStage =>
  stage.at !== undefined && stage.at !== site

/**
 * The outcome of a transfer for one of the tasks that needed it: only for the task that started it
 * did any byte move.
 */
const shared = (outcome: TransferOutcome, name: string, startedAt: number): TransferOutcome => {
  if (outcome.movedFor === name) return outcome
  const times = { startedAt, finishedAt: Date.now() / 1000 }
  if (outcome.strategy === 'shared-storage' || outcome.strategy === 'runtime-local')
    return { ...outcome, ...times }
  const reason =
    outcome.movedFor === undefined
      ? outcome.reason
      : `brought once for all that need it here, by ${outcome.strategy}`
  return { ...outcome, ...times, strategy: 'use-existing', reason, bytes: 0, networkBytes: 0, files: 0 }
}

/**
 * The transfers to one site: each producer's files come once for all tasks that need them. `closing`
 * ends them all.
 */
const openArrivals = (options: StagingOptions, closing: AbortSignal) => {
  const flights = new Map<string, Flight>()
  /** Files that this process has brought and verified. */
  const present = new Map<string, TransferOutcome>()
  const turns = openGate(flightsAtOnce)

  const takeOff = (name: string, key: string, stage: Stage, to: TransferSide, root: string): Flight => {
    const abort = new AbortController()
    const signal = AbortSignal.any([abort.signal, closing])
    const fly = async (): Promise<TransferOutcome> => {
      signal.throwIfAborted()
      const from = await options.ends(stage.at ?? options.site)
      const { label, paths } = stage
      const outcome = await transfer({
        ...{ from, to, directory: posix.join(root, key), label, for: name, signal },
        source: { directory: stage.from, ...(paths === undefined ? {} : { paths }) },
        ...(options.limits === undefined ? {} : { limits: options.limits }),
      })
      present.set(key, outcome)
      return outcome
    }
    const flight: Flight = {
      outcome: turns.inTurn(fly).finally(() => flights.delete(key)),
      waiting: new Set(),
      abort,
    }
    flight.outcome.catch(() => undefined)
    flights.set(key, flight)
    return flight
  }

  /** Brings one stage for one task; the facts are those of this consumer. */
  const bring = async (
    name: string,
    stage: Stage,
    key: string,
    to: TransferSide,
    root: string,
    isThere: boolean,
  ): Promise<EdgeTransfer> => {
    const startedAt = Date.now() / 1000
    const edge = {
      fromSite: stage.at ?? options.site,
      toSite: options.site,
      ...(stage.producer === undefined ? {} : { producer: stage.producer }),
      from: stage.from,
    }
    const known = present.get(key)
    // Files that were found outside the folder for arrivals have nothing in it.
    if (known !== undefined && (isThere || known.directory !== posix.join(root, key)))
      return { ...shared(known, name, startedAt), ...edge }
    present.delete(key)
    // A transfer that was given up is over soon, and then begins again.
    for (let given = flights.get(key); given?.abort.signal.aborted === true; given = flights.get(key))
      await given.outcome.catch(() => undefined)
    const flight = flights.get(key) ?? takeOff(name, key, stage, to, root)
    flight.waiting.add(name)
    try {
      return { ...shared(await flight.outcome, name, startedAt), ...edge }
    } finally {
      flight.waiting.delete(name)
    }
  }

  return {
    bring,

    /** These directories are gone from the site. */
    forget(keys: readonly string[]): void {
      for (const key of keys) present.delete(key)
    },

    /** Gives up transfers with only cancelled tasks. */
    giveUp(cancelled: ReadonlySet<string>): void {
      for (const flight of flights.values()) {
        if (flight.waiting.size === 0 || ![...flight.waiting].every((name) => cancelled.has(name))) continue
        flight.abort.abort(new DriverError('refused', 'every task that waited for these files was cancelled'))
      }
    },

    /** Resolves when all transfers are over. */
    async over(): Promise<void> {
      await Promise.allSettled([...flights.values()].map(({ outcome }) => outcome))
    },
  }
}

/** The stages of an intent at its own site, once all files from other sites have arrived. */
const localStages = async (
  options: StagingOptions,
  { bring }: Pick<ReturnType<typeof openArrivals>, 'bring'>,
  versions: SourceVersions,
  intent: Intent,
): Promise<Stage[]> => {
  const afar = intent.stage.filter((stage) => isRemote(stage, options.site))
  const [root, to, ...names] = await Promise.all([
    options.incomingRoot(),
    options.ends(options.site),
    ...afar.map((stage) => keyOf(options, versions, stage)),
  ])
  const keys = new Map<Stage, string>(afar.map((stage, at) => [stage, names[at] as string]))
  const marked = await to.shell.run(markScript(root, intent.name, [...new Set(keys.values())]))
  if (marked.code !== 0)
    throw new DriverError(
      'infrastructure',
      `cannot make room in ${root} of ${options.site}: ${marked.stderr.trim()}`,
    )
  const there = new Set(marked.stdout.toString().split('\n'))
  return Promise.all(
    intent.stage.map(async (stage) => {
      const { at: _here, ...own } = stage
      const key = keys.get(stage)
      if (key === undefined) return own
      const facts = await bring(intent.name, stage, key, to, root, there.has(key))
      await options.onTransfer(intent.name, facts)
      const { directory: from, left } = facts
      return { ...own, from, madeAt: stage.from, ...(left === undefined ? {} : { left }) }
    }),
  )
}

/**
 * A driver that first brings its tasks' inputs from other sites, then passes the tasks to `driver`
 * with stages of its own site only. The files of one producer come once for all consumers at the
 * site, and stay until the last of them is removed. Conflicts between producers are found where
 * files are staged.
 *
 * A site that cannot be reached ends a submit with class `unknown`: a repeat resumes where it was.
 */
export const withTransfers = (driver: RuntimeDriver, options: StagingOptions): RuntimeDriver => {
  const closing = new AbortController()
  const arrivals = openArrivals(options, closing.signal)
  const versions = openVersions(options)
  const cancelled = new Set<string>()
  const needsOthers = ({ stage }: Intent): boolean => stage.some((one) => isRemote(one, options.site))

  const submitOne = async (intent: Intent): Promise<SubmitOutcome> => {
    const { name } = intent
    try {
      closing.signal.throwIfAborted()
      // A task that the site has accepted already needs nothing; cancelled names never start.
      const known = (await driver.find([name])).get(name)?.state ?? 'unknown'
      const stage =
        known === 'unknown' && !cancelled.has(name)
          ? await localStages(options, arrivals, versions, intent)
          : []
      closing.signal.throwIfAborted()
      const [outcome] = await driver.submit([{ ...intent, stage }])
      return outcome ?? { name, ok: false, error: new DriverError('unknown', `no answer about ${name}`) }
    } catch (error) {
      // Its cancel has buried it; the driver beneath returns how that ended.
      if (cancelled.has(name)) {
        const [outcome] = await driver.submit([{ ...intent, stage: [] }])
        if (outcome !== undefined) return outcome
      }
      return { name, ok: false, error: asDriverError(error) }
    }
  }

  return {
    ...driver,
    async submit(intents) {
      const plain = intents.filter((intent) => !needsOthers(intent))
      const [outcomes, ...others] = await Promise.all([
        plain.length === 0 ? [] : driver.submit(plain),
        ...intents.filter(needsOthers).map(submitOne),
      ])
      return [...outcomes, ...others]
    },
    async cancel(names, graceSeconds) {
      // First the names beneath: after that, a task that waits here finds its name buried.
      await driver.cancel(names, graceSeconds)
      for (const name of names) cancelled.add(name)
      arrivals.giveUp(cancelled)
    },
    async remove(name) {
      await driver.remove(name)
      cancelled.delete(name)
      const [root, { shell }] = await Promise.all([options.incomingRoot(), options.ends(options.site)])
      try {
        const gone = await shell.run(unmarkScript(root, name))
        arrivals.forget(gone.stdout.toString().split('\n'))
      } catch (error) {
        throw asDriverError(error)
      }
    },
    async close() {
      closing.abort(new DriverError('unknown', 'the driver was closed'))
      // The driver beneath gives up its waits at once, also while an aborted transfer ends.
      await Promise.all([arrivals.over(), driver.close()])
    },
  }
}
