import { createHash } from 'node:crypto'
import { posix } from 'node:path'
import { openGate } from '../../pacing/gate.ts'
import { DriverError, type Intent, type RuntimeDriver, type Stage, type SubmitOutcome } from '../runtime/contract/driver.ts'
import { messageOf } from '../runtime/contract/errno.ts'
import { LinkError } from '../shell.ts'
import { markScript, unmarkScript } from './scripts.ts'
import { transfer, type End, type TransferLimits, type TransferOutcome } from './transfer.ts'

/** A transfer as one consumer saw it; the record of one edge. */
export interface TransferFacts extends TransferOutcome {
  fromSite: string
  toSite: string
  /** The stage's `label` and `from`: who made the files, and where. */
  label: string
  from: string
}

export interface StagingOptions {
  /** The site whose driver this is. */
  site: string
  /** What is known of a site; asked for every transfer. */
  ends: (site: string) => Promise<End>
  /** Absolute at the driver's site: a folder for what comes from elsewhere. */
  incomingRoot: () => Promise<string>
  /**
   * Called once for each stage of a task that named another site; `name` is the task's. The task is handed on when it has resolved, so what it
   * writes down is known to whoever finds the task at the site. After a crash before that, the same facts are told again.
   */
  onTransfer: (name: string, facts: TransferFacts) => Promise<void>
  limits?: Partial<TransferLimits>
}

/** A producer's files on their way to this site, for everybody who waits for them. */
interface Flight {
  outcome: Promise<TransferOutcome>
  /** Tasks that wait; when the last is cancelled, it is given up. */
  waiting: Set<string>
  abort: AbortController
}

/** Transfers of one driver at once; the streams have limits of their own, for each site. */
const flightsAtOnce = 8

const asTrouble = (error: unknown): DriverError => {
  if (error instanceof DriverError) return error
  if (error instanceof LinkError) return new DriverError(error.permanent ? 'refused' : 'unknown', error.message, { cause: error })
  return new DriverError('infrastructure', messageOf(error), { cause: error })
}

/** Names what comes from one place: the same for every consumer, in every process. */
const keyOf = ({ at, from, paths }: Stage): string =>
  createHash('sha256')
    .update(JSON.stringify([at, from, paths === undefined ? null : [...paths].sort()]))
    .digest('hex')
    .slice(0, 40)

/**
 * A driver that first brings what its tasks need from other sites, then hands them to `driver` with stages of its own site only.
 * The files of one producer come once for all consumers at the site, and stay until the last of them is removed. Conflicts between
 * producers are found where files are staged.
 *
 * A site that cannot be reached ends a submit with class `unknown`: asked again, it goes on where it was.
 */
export const withTransfers = (driver: RuntimeDriver, options: StagingOptions): RuntimeDriver => {
  const flights = new Map<string, Flight>()
  /** Brought and verified by this process. */
  const present = new Map<string, TransferOutcome>()
  const cancelled = new Set<string>()
  const turns = openGate(flightsAtOnce)
  let closed = false

  const takeOff = (name: string, key: string, stage: Stage, to: End, root: string): Flight => {
    const abort = new AbortController()
    const fly = async (): Promise<TransferOutcome> => {
      abort.signal.throwIfAborted()
      const from = await options.ends(stage.at ?? options.site)
      const { label, paths } = stage
      const outcome = await transfer({
        name: key,
        from,
        to,
        source: { directory: stage.from, ...(paths === undefined ? {} : { paths }) },
        directory: posix.join(root, key),
        label,
        for: name,
        signal: abort.signal,
        ...(options.limits === undefined ? {} : { limits: options.limits }),
      })
      present.set(key, outcome)
      return outcome
    }
    const flight: Flight = { outcome: turns.inTurn(fly).finally(() => flights.delete(key)), waiting: new Set(), abort }
    flight.outcome.catch(() => undefined)
    flights.set(key, flight)
    return flight
  }

  /** One stage for one task; the facts are those of this consumer. */
  const bring = async (name: string, stage: Stage, key: string, to: End, root: string, isThere: boolean): Promise<TransferFacts> => {
    const startedAt = Date.now() / 1000
    const edge = { fromSite: stage.at ?? options.site, toSite: options.site, label: stage.label, from: stage.from }
    const known = present.get(key)
    // What was found elsewhere than in the folder for what comes has nothing there.
    if (known !== undefined && (isThere || known.directory !== posix.join(root, key))) return { ...shared(known, name, startedAt), ...edge }
    present.delete(key)
    // One that everybody gave up is over soon, and then begins anew.
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

  /** What a transfer was for one of the tasks that needed it: only the one that it was made for moved anything. */
  const shared = (outcome: TransferOutcome, name: string, startedAt: number): TransferOutcome => {
    if (outcome.movedFor === name) return outcome
    const times = { startedAt, finishedAt: Date.now() / 1000 }
    if (outcome.strategy === 'shared-storage' || outcome.strategy === 'runtime-local') return { ...outcome, ...times }
    const reason = outcome.movedFor === undefined ? outcome.reason : `brought once for all that need it here, by ${outcome.strategy}`
    return { ...outcome, ...times, strategy: 'use-existing', reason, bytes: 0, networkBytes: 0, files: 0 }
  }

  const localStages = async (intent: Intent): Promise<Stage[]> => {
    const keys = new Map(intent.stage.filter(isRemote).map((stage) => [stage, keyOf(stage)]))
    const [root, to] = await Promise.all([options.incomingRoot(), options.ends(options.site)])
    const marked = await to.shell.run(markScript(root, intent.name, [...new Set(keys.values())]))
    if (marked.code !== 0)
      throw new DriverError('infrastructure', `cannot make room in ${root} of ${options.site}: ${marked.stderr.trim()}`)
    const there = new Set(marked.stdout.toString().split('\n'))
    return Promise.all(
      intent.stage.map(async (stage) => {
        const { label, paths } = stage
        const key = keys.get(stage)
        const rest = { label, ...(paths === undefined ? {} : { paths }) }
        if (key === undefined) return { from: stage.from, ...rest }
        const facts = await bring(intent.name, stage, key, to, root, there.has(key))
        await options.onTransfer(intent.name, facts)
        return { from: facts.directory, ...rest }
      }),
    )
  }

  const isRemote = ({ at }: Stage): boolean => at !== undefined && at !== options.site

  const submitOne = async (intent: Intent): Promise<SubmitOutcome> => {
    const { name } = intent
    try {
      if (closed) throw new DriverError('infrastructure', 'the driver is closed; open another')
      // What the site has taken already needs nothing; cancelled names never start.
      const known = (await driver.find([name])).get(name)?.state ?? 'unknown'
      const stage = known === 'unknown' && !cancelled.has(name) ? await localStages(intent) : []
      const [outcome] = await driver.submit([{ ...intent, stage }])
      return outcome ?? { name, ok: false, error: new DriverError('unknown', `no answer about ${name}`) }
    } catch (error) {
      // Its cancel has buried it: the driver beneath says how that ended.
      if (cancelled.has(name)) {
        const [outcome] = await driver.submit([{ ...intent, stage: [] }])
        if (outcome !== undefined) return outcome
      }
      return { name, ok: false, error: asTrouble(error) }
    }
  }

  return {
    ...driver,
    async submit(intents) {
      const plain = intents.filter(({ stage }) => !stage.some(isRemote))
      const [outcomes, ...others] = await Promise.all([
        plain.length === 0 ? [] : driver.submit(plain),
        ...intents.filter((intent) => intent.stage.some(isRemote)).map(submitOne),
      ])
      return [...outcomes, ...others]
    },
    async cancel(names, graceSeconds) {
      // First the names beneath: from then on whoever waits here finds them buried.
      await driver.cancel(names, graceSeconds)
      for (const name of names) cancelled.add(name)
      for (const flight of flights.values()) {
        if (flight.waiting.size === 0 || ![...flight.waiting].every((name) => cancelled.has(name))) continue
        flight.abort.abort(new DriverError('refused', 'everybody who waited for these files was cancelled'))
      }
    },
    async remove(name) {
      await driver.remove(name)
      cancelled.delete(name)
      const [root, { shell }] = await Promise.all([options.incomingRoot(), options.ends(options.site)])
      try {
        const gone = await shell.run(unmarkScript(root, name))
        for (const key of gone.stdout.toString().split('\n')) present.delete(key)
      } catch (error) {
        throw asTrouble(error)
      }
    },
    async close() {
      closed = true
      for (const { abort } of flights.values()) abort.abort(new DriverError('unknown', 'the driver was closed'))
      await Promise.allSettled([...flights.values()].map(({ outcome }) => outcome))
      await driver.close()
    },
  }
}
