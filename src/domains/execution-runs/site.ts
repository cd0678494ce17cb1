import type { Db } from '../../db/sql.ts'
import { DriverError, type Intent, type RuntimeDriver, type StagedAmount } from '../../drivers/runtime/driver.ts'
import {
  bookedEnd,
  broughtTransfer,
  copiedTransfer,
  endOf,
  lost,
  nextAttempt,
  notStarted,
  outputsOf,
  silent,
  unstopped,
  usualPatience,
  type AttemptEnd,
  type Copied,
  type Patience,
  type TransferFacts,
} from './attempt.ts'
import { openFlight, type Outcome, type Sight } from './flight.ts'
import { completed as done, createFrontier, dead, inFlight, waiting } from './frontier.ts'
import type { HostCores } from './host-cores.ts'
import {
  claimSite,
  commitSite,
  emptyEntry,
  LeasePassedOn,
  loadRun,
  loadTransfers,
  outlastingOutage,
  type Entry,
  type LoadedTask,
  type TaskEnd,
  type TaskIntent,
  type TaskStart,
  type TaskStateChange,
  type TaskTransfer,
} from './journal.ts'
import { dataTransferId } from './names.ts'
import type { RunRoute } from './network.ts'
import type { Wakes } from './wakes.ts'

/** What an activity is, as far as its execution needs it; read from the run's content version when the task is about to start. */
export interface Command {
  argv: string[]
  environment: Record<string, string>
  workingDirectory?: string
  cpu: number
  memoryBytes: number
  timeoutSeconds: number
  maxAttempts: number
  retryDelaySeconds: number
  expectedOutputs: string[]
}

/** Decides, for one task, everything its driver needs; pure apart from the paths it is given. */
export interface SitePlan {
  contentVersionId: string
  onFailure: 'stop' | 'finish-independent'
  /** Where a task runs: those of other sites are waited for, not run. */
  siteOf: (task: Pick<LoadedTask, 'runtime_id' | 'resource_id'>) => string
  pricePerSecond: ReadonlyMap<string, number>
  /** Name of an attempt's effect at the site. */
  nameOf: (task: Pick<LoadedTask, 'position' | 'attempt'>) => string
  /** The site's own scheduler decides what of a resource runs when: its one slot is a name, not a lane. */
  schedulesItself: (task: Pick<LoadedTask, 'runtime_id' | 'resource_id'>) => boolean
  commandsOf: (positions: readonly number[]) => Promise<Map<number, Command>>
  intentOf: (task: LoadedTask, command: Command, name: string, predecessors: readonly LoadedTask[]) => Intent
  /** The way between two resources for so many bytes. */
  routeOf: (source: string, target: string, bytes: number) => RunRoute
  /** What of `staged` (by entry of the intent's `stage`) came from another resource of the task's own site. */
  copiedFor: (task: LoadedTask, intent: Intent, predecessors: readonly LoadedTask[], staged: readonly StagedAmount[]) => Copied[]
}

export interface SiteParts {
  db: Db
  driver: RuntimeDriver
  /** Whose files and cores the site's are: this host's name, or the connection's. */
  hostId: string
  /** Real cores of that host, shared by all runs of this worker; undefined where nobody but the site counts them. */
  cores: HostCores | undefined
  /** Who is to hear of what was brought from other sites for the task of a name, before it is handed on; one listener. */
  onTransfer?: (listener: (name: string, facts: TransferFacts) => Promise<void>) => void
  patience?: Partial<Patience>
  /** Other sites of the run in this process: they tell each other of ends. */
  wakes?: Wakes
  /**
   * How many tasks of a lane may be intended ahead of their turn while short ones run, so that one follows the other without a commit in
   * between. For sites whose `find` always answers; 0 by default.
   */
  aheadPerLane?: number
  /** Seconds since the epoch. */
  clock: () => number
  failpoint: (name: string) => void
}

/** A task that is to start, and its intent as it is committed and as the driver gets it. */
interface Chosen {
  position: number
  name: string
  intent: Intent
  record: TaskIntent
}

/** Intended ahead of its turn, or about to be. */
interface Ahead extends Chosen {
  committed: boolean
  /** Not to be started on this intent any more. */
  revoked: boolean
  /** Its predecessors have completed and its lanes have come to it. */
  turn: boolean
}

export interface SiteOutcome {
  /** Nothing is in flight here and nothing will be: all tasks of the site are over, or the run is being stopped. */
  settled: boolean
  /** Tasks of the site so far, over all its holders. */
  completed: number
  failed: number
}

/** Tasks committed as intents in one step; more only make the step slow (500 take about 25 ms). */
const intentsPerCommit = 500
/** Ends and starts of this long go into one commit while nothing waits for it. */
const gatherMs = 60
/** Tasks are intended ahead where the last one took less than this. */
const briskSeconds = 1
/** Looks at flags, renews the lease and looks for predecessors elsewhere this often, in milliseconds. */
const tickMs = 400
/** Leaves the worker slot to others after this long without anything to do. */
const idleMs = 2_000
/** Lanes held by another run, or cores by another worker, are asked for again after this long. */
const laneRetryMs = 150
/**
 * What was intended ahead is started only so long after the last look at the run's flags; then they are looked at first. A pause or a
 * cancel is so in force after this time at the latest, and a holder that was replaced or frozen starts nothing after it.
 */
export const startLeaseMs = 200
/** `aheadPerLane` of sites on this machine: twice what processes of 2 ms need to outlast `gatherMs`. */
export const usualAhead = 64

/**
 * Runs every task of one site of a run: the only writer of their rows while it holds the site's lease.
 *
 * In memory it knows which tasks may start (`createFrontier`); each step commits the ends since the last one together with the next
 * intents, and only committed intents take effect (`openFlight`). After a crash the next holder finds the intents and asks the driver, by
 * their deterministic names, what became of them: adopted, started for the first time, or lost with their machine, never started twice.
 *
 * Resolves when the site is settled or has been idle for a while; rejects with `LeasePassedOn` when another worker took over, and
 * with the signal's reason when this worker is being drained (what runs goes on and is adopted later).
 */
export const runSite = async (
  parts: SiteParts,
  runId: string,
  site: string,
  plan: SitePlan,
  holder: string,
  signal: AbortSignal,
  beat: (facts: { completed: number; running: number; paused: boolean; news: number }) => void,
): Promise<SiteOutcome> => {
  const { db, driver, clock } = parts
  const epoch = await outlastingOutage(() => claimSite(db, runId, site, holder), signal)
  const loaded = await outlastingOutage(() => loadRun(db, runId, plan.contentVersionId), signal)
  const { tasks } = loaded
  const n = tasks.length
  const at = (i: number): LoadedTask => tasks[i] as LoadedTask
  const mine = tasks.map((task) => plan.siteOf(task) === site)

  const states = new Uint8Array(n)
  for (const [i, task] of tasks.entries()) {
    states[i] =
      task.status === 'completed'
        ? done
        : task.status === 'failed' || task.status === 'cancelled'
          ? dead
          : task.intended
            ? inFlight
            : waiting
  }
  const lanesOf = (task: LoadedTask): (readonly [resourceId: string, coreId: string, slotId: string])[] =>
    plan.schedulesItself(task)
      ? []
      : (task.core_ids.length === 0 ? [''] : task.core_ids).map((core) => [task.resource_id, core, task.slot_id] as const)
  const frontier = createFrontier({
    states,
    from: loaded.from,
    to: loaded.to,
    lanes: tasks.map((task) => lanesOf(task).map((lane) => JSON.stringify(lane))),
    orders: tasks.map((task) => task.order_on_resource),
    mine,
  })

  const patience = { ...usualPatience, ...parts.patience }
  let entry: Entry = emptyEntry()
  /** One per task and step: two changes of one row in one statement would be one of them. */
  let changes = new Map<string, TaskStateChange>()
  /** By position; a task that started and ended between two commits has only an end. */
  let ends = new Map<number, Omit<TaskEnd, 'heir'>>()
  let starts = new Map<number, TaskStart>()
  /** Counts starts and ends in the order in which they happened. */
  let order = 0
  const ahead = new Map<number, Ahead>()
  /** Who has the lanes of a task after it, where that is settled before its end. */
  const heirs = new Map<number, number>()
  /** Adopted tasks whose start is not on record, and what came of them since: the ends of those before them are still being read, and come first. */
  const unrecorded = new Map<number, { startedAt: number; sight?: Sight; outcome?: Outcome }>()
  /** What came from other sites for attempts under way, by id of the transfer; and whose tasks wait for it to be on record. */
  const brought = new Map<number, Map<string, TaskTransfer>>()
  const unheard: { resolve: () => void; reject: (error: Error) => void }[] = []
  let brisk = false
  let paused = false
  /** Counts reasons to wait and failures, for who tells of them. */
  let news = 0
  /** `performance.now()` until which what is ahead may be started. */
  let leaseUntil = 0
  const commands = new Map<number, Command>()
  const heldCores = new Map<number, number[]>()
  const readyAt = new Map<number, number>()
  const retryAt = new Map<number, number>()
  const queueReasons = new Map<number, string>()
  // First ready, first started; what has to wait for a time, a lane of another run or a core is looked at again later.
  // After a take-over a retry still waits for its time.
  const ready = frontier.ready()
  const loadedAt = clock()
  const early = (i: number): boolean => (at(i).not_before ?? 0) > loadedAt
  const queue: number[] = ready.filter((i) => !early(i))
  let deferred: number[] = ready.filter(early)
  let finished = states.reduce((sum, state, i) => sum + (state === done && mine[i] === true ? 1 : 0), 0)
  let failed = tasks.filter((task, i) => task.status === 'failed' && mine[i] === true).length
  let stopping: 'cancelled' | 'failed' | undefined =
    plan.onFailure === 'stop' && tasks.some((task) => task.status === 'failed') ? 'failed' : undefined
  let trouble: unknown
  let wake: () => void = () => undefined
  let woken = false
  /** The task whose turn it is needs more cores than are free: what is behind it waits too, else it would starve. */
  let coresShort = false
  const nudge = (): void => {
    woken = true
    wake()
  }
  // A composite signal that is asked looks at all its sources.
  let draining = signal.aborted
  const drain = (): void => {
    draining = true
    nudge()
  }
  signal.addEventListener('abort', drain)

  const commandOf = async (positions: number[]): Promise<void> => {
    const unknown = positions.filter((i) => !commands.has(i))
    if (unknown.length === 0) return
    // The tasks just behind them are about to be asked for as well: one read for a thousand instead of one per hop, but the first starts at once.
    const most = commands.size === 0 ? 100 : 1_000
    const ahead: number[] = []
    for (let i = unknown[0] as number; i < n && ahead.length < most; i++)
      if (mine[i] === true && !commands.has(i) && (states[i] as number) < done) ahead.push(i)
    for (const [position, command] of await outlastingOutage(() => plan.commandsOf([...new Set([...unknown, ...ahead])]), signal))
      commands.set(position, command)
  }

  const lastFinish = (i: number): number => {
    let latest = 0
    for (const p of frontier.predecessorsOf(i)) latest = Math.max(latest, at(p).finished_at ?? 0)
    return latest
  }

  const freeCores = (i: number): void => {
    const held = heldCores.get(i)
    if (held !== undefined) parts.cores?.give(held)
    heldCores.delete(i)
  }

  /** The lanes, and the cores, of a task that is over go to its heir, if that is still to have them. */
  const handOver = (i: number): void => {
    const heir = heirs.get(i)
    const cores = heldCores.get(i)
    if (heir === undefined || !ahead.has(heir) || parts.cores?.contended === true) {
      takeBack()
      freeCores(i)
    } else if (cores !== undefined) {
      heldCores.delete(i)
      heldCores.set(heir, cores)
    }
  }
  /** What is intended ahead and has not been started will not be, on this intent. */
  const takeBack = (): void => {
    for (const [i, one] of ahead) {
      one.revoked = true
      if (!one.committed) continue
      entry.takenBack.push(one.record.id)
      forget(i, one)
    }
  }
  const forget = (i: number, one: Ahead): void => {
    ahead.delete(i)
    for (const [from, to] of heirs) if (to === i) heirs.delete(from)
    freeCores(i)
    if (one.turn && states[i] === waiting) queue.push(i)
  }
  const startAhead = (): void => {
    if (stopping !== undefined || paused || draining || performance.now() > leaseUntil) return
    const now = clock()
    const begun: Chosen[] = []
    for (const [i, one] of ahead) {
      if (!one.turn || !one.committed || one.revoked || states[i] !== waiting) continue
      ahead.delete(i)
      frontier.take(i)
      const task = at(i)
      const since = readyAt.get(i) ?? task.ready_at ?? (lastFinish(i) || now)
      Object.assign(task, { status: 'preparing', started_at: now, ready_at: since })
      starts.set(i, { id: task.id, name: one.name, readyAt: since, startedAt: now, order: (order += 1) })
      begun.push(one)
    }
    if (begun.length > 0) flight.start(begun)
  }

  const opened = (freed: number[]): void => {
    for (const i of freed) {
      const one = ahead.get(i)
      if (one === undefined) queue.push(i)
      else one.turn = true
    }
    if (ahead.size > 0) startAhead()
  }

  const change = (next: TaskStateChange): void => {
    if (next.reason !== undefined) news += 1
    changes.set(next.id, { ...changes.get(next.id), ...next })
  }

  /** Books the end of an attempt: success, another attempt, or the end of the activity. */
  const settle = (i: number, end: AttemptEnd): void => {
    const task = at(i)
    const command = commands.get(i)
    changes.delete(task.id)
    const start = starts.get(i)
    starts.delete(i)
    const copied = copiedFor(i, end)
    const transfers = [...(brought.get(i)?.values() ?? []), ...copied]
    brought.delete(i)
    const booked = bookedEnd(task, end, transfers, plan.pricePerSecond.get(task.resource_id) ?? 0)
    entry.transfers.push(...copied)
    task.finished_at = end.finishedAt
    const book = (final: boolean): void => {
      ends.set(i, { ...booked, final, order: (order += 1), ...(start === undefined ? {} : { startOrder: start.order, name: start.name }) })
    }
    if (end.status === 'completed') {
      book(false)
      entry.outputs.push(...outputsOf(runId, plan.contentVersionId, task, end.manifest, parts.hostId, command?.expectedOutputs ?? []))
      finished += 1
      brisk = end.finishedAt - (end.startedAt ?? 0) < briskSeconds
      handOver(i)
      opened(frontier.complete(i))
    } else if (end.status === 'cancelled' || stopping === 'cancelled') {
      book(false)
      takeBack()
      freeCores(i)
      opened(frontier.kill(i))
    } else {
      news += 1
      // Its lanes may go to another run before its next attempt: who waits behind it holds none meanwhile.
      takeBack()
      freeCores(i)
      const next = stopping === undefined ? nextAttempt(runId, task, end, command, clock(), patience) : undefined
      book(next === undefined)
      if (next === undefined) {
        failed += 1
        if (plan.onFailure === 'stop') stopping ??= 'failed'
        opened(frontier.kill(i))
      } else {
        entry.retries.push(next)
        const { id, attempt, userAttempts, walltimeExtensions, notBefore } = next
        Object.assign(task, { id, attempt, user_attempts: userAttempts, walltime_extensions: walltimeExtensions })
        Object.assign(task, { status: 'ready', ready_at: next.readyAt, not_before: notBefore, silent_since: null })
        Object.assign(task, { queued_at: null, started_at: null, finished_at: null })
        readyAt.set(i, next.readyAt)
        frontier.putBack(i)
        deferred.push(i)
      }
    }
    nudge()
  }

  const intentFor = (i: number): Intent => {
    const task = at(i)
    const intent = plan.intentOf(task, commands.get(i) as Command, plan.nameOf(task), [...frontier.predecessorsOf(i)].map(at))
    return task.walltime_extensions === 0 ? intent : { ...intent, walltimeExtensions: task.walltime_extensions }
  }

  const copiedFor = (i: number, end: AttemptEnd): TaskTransfer[] => {
    if (end.staged === undefined || end.staged.length === 0) return []
    const copies = plan.copiedFor(at(i), intentFor(i), [...frontier.predecessorsOf(i)].map(at), end.staged)
    return copies.map((copy) => copiedTransfer(runId, site, at(i), end, copy))
  }

  /** Puts a transfer on record; resolves once it is there. What brings no predecessor's files (a seed) has no record. */
  const heard = (name: string, facts: TransferFacts): Promise<void> => {
    const i = flight.positionOf(name)
    const producer = i === undefined ? undefined : [...frontier.predecessorsOf(i)].map(at).find((one) => one.external_id === facts.label)
    if (i === undefined || producer === undefined) return Promise.resolve()
    const task = at(i)
    const transfer = broughtTransfer(runId, task, producer, facts, plan.routeOf(producer.resource_id, task.resource_id, facts.bytes))
    const known = brought.get(i) ?? new Map<string, TaskTransfer>()
    brought.set(i, known)
    // Told again after trouble on the way to the driver: what moved is on record.
    if (known.has(transfer.id)) return Promise.resolve()
    known.set(transfer.id, transfer)
    entry.transfers.push(transfer)
    return new Promise((resolve, reject) => {
      unheard.push({ resolve, reject })
      nudge()
    })
  }
  parts.onTransfer?.(heard)

  const recordInOrder = (): void => {
    for (let again = unrecorded.size > 0; again;) {
      again = false
      for (const [i, { startedAt, sight, outcome }] of unrecorded) {
        const before = [...heirs].flatMap(([from, to]) => (to === i ? [from] : []))
        if ([...before, ...frontier.predecessorsOf(i)].some((p) => states[p] === inFlight)) continue
        unrecorded.delete(i)
        const { id, attempt, position, ready_at } = at(i)
        starts.set(i, { id, name: plan.nameOf({ position, attempt }), readyAt: ready_at ?? startedAt, startedAt, order: (order += 1) })
        nudge()
        if (outcome !== undefined) {
          conclude(i, outcome)
          again = true
        } else if (sight !== undefined) seen(i, sight)
      }
    }
  }

  const ended = (i: number, outcome: Outcome): void => {
    const one = unrecorded.get(i)
    if (one === undefined) conclude(i, outcome)
    else one.outcome = outcome
    recordInOrder()
  }

  const conclude = (i: number, outcome: Outcome): void => {
    const task = at(i)
    const now = clock()
    // What the site may still hold, or come to hold, is to be ended there once it answers again.
    if (outcome.kind === 'silent' || outcome.kind === 'unstopped') entry.leftovers.push({ name: plan.nameOf(task), words: outcome.words })
    const end = ((): AttemptEnd => {
      if (outcome.kind === 'collected') return endOf(task, outcome.collected, commands.get(i) ?? { timeoutSeconds: 0, memoryBytes: 0 }, now)
      if (outcome.kind === 'lost') return lost(task, outcome.cause, now)
      if (outcome.kind === 'refused') return notStarted(task, outcome.error, now)
      if (outcome.kind === 'silent') return silent(task, site, patience.silentSeconds, outcome.words, now)
      return unstopped(task, site, outcome.words, now)
    })()
    // What was lost while it was being ended is ended.
    settle(i, end.failureClass === 'infrastructure' && stopping === 'cancelled' ? { ...end, status: 'cancelled' } : end)
  }

  const seen = (i: number, told: Sight): void => {
    const one = unrecorded.get(i)
    if (one !== undefined) {
      one.sight = { ...one.sight, ...told }
      return
    }
    const { reason, ...sight } = told
    change({ id: at(i).id, atSite: true, ...sight, ...(reason === undefined ? {} : { reason: reason ?? '' }) })
    nudge()
  }

  const flight = openFlight({
    driver,
    site,
    clock,
    failpoint: parts.failpoint,
    silentSeconds: patience.silentSeconds,
    intentOf: intentFor,
    ended,
    seen,
    fault: (error) => {
      trouble ??= error
      nudge()
    },
  })

  /** What an earlier holder intended goes on; what it had intended ahead goes on where it was started, and is taken back where not. */
  const adopt = async (): Promise<void> => {
    const intended = [...states.keys()].filter((i) => mine[i] === true && states[i] === inFlight)
    const unsure = [...states.keys()].filter((i) => mine[i] === true && states[i] === waiting && at(i).ahead)
    if (unsure.length > 0) {
      // Until its lease is over the other may still start them; twice, because it counts from another moment.
      await new Promise((resolve) => setTimeout(resolve, 2 * startLeaseMs))
      const nameOf = (i: number): string => plan.nameOf(at(i))
      const found = await outlastingOutage(() => driver.find(unsure.map(nameOf)), signal)
      for (const i of unsure) {
        const state = found.get(nameOf(i)) ?? { state: 'unknown' }
        if (state.state === 'unknown') {
          entry.takenBack.push(at(i).id)
          continue
        }
        const startedAt = 'startedAt' in state ? state.startedAt : clock()
        frontier.take(i)
        intended.push(i)
        at(i).started_at = startedAt
        at(i).ready_at ??= startedAt
        unrecorded.set(i, { startedAt })
        // Its lanes come to it with the end of the one before it.
        for (const before of intended) if (frontier.followerOf(before) === i) heirs.set(before, i)
      }
      recordInOrder()
    }
    if (intended.length === 0) return
    await commandOf(intended)
    if (parts.onTransfer !== undefined) {
      const of = new Map(
        intended.flatMap((i) =>
          [...frontier.predecessorsOf(i)].map(
            (p) => [dataTransferId(runId, at(p).activity_id, at(i).activity_id, at(i).attempt), i] as const,
          ),
        ),
      )
      for (const transfer of await outlastingOutage(() => loadTransfers(db, [...of.keys()]), signal)) {
        const i = of.get(transfer.id) as number
        brought.set(i, (brought.get(i) ?? new Map<string, TaskTransfer>()).set(transfer.id, transfer))
      }
    }
    if (parts.cores !== undefined) for (const i of intended) heldCores.set(i, parts.cores.hold(await coresHeld(db, parts.hostId, at(i).id)))
    flight.adopt(
      intended.map((i) => ({
        position: i,
        name: plan.nameOf(at(i)),
        silentSince: at(i).silent_since ?? undefined,
      })),
    )
  }

  const choose = async (): Promise<Chosen[]> => {
    const chosen: Chosen[] = []
    if (stopping !== undefined) return chosen
    coresShort = false
    const now = clock()
    const due = (i: number): boolean => (retryAt.get(i) ?? 0) <= now && (at(i).not_before ?? 0) <= now
    queue.unshift(...deferred.filter(due))
    deferred = deferred.filter((i) => !due(i))
    const room = Math.min(intentsPerCommit, parts.cores?.free ?? intentsPerCommit)
    const first = queue.splice(0, room).filter((i) => states[i] === waiting)
    // What stays behind is shown as ready once, so that a poller can tell waiting for a core from waiting for data.
    for (const i of queue.slice(0, intentsPerCommit)) {
      if (at(i).status !== 'blocked' || states[i] !== waiting) continue
      at(i).status = 'ready'
      readyAt.set(i, lastFinish(i) || now)
      change({ id: at(i).id, atSite: false, status: 'ready', readyAt: readyAt.get(i) as number })
    }
    if (first.length === 0) return chosen
    await commandOf(first)
    for (const i of first) {
      const task = at(i)
      const command = commands.get(i) as Command
      if (!readyAt.has(i)) readyAt.set(i, task.ready_at ?? (lastFinish(i) || now))
      let cores: number[] | undefined = []
      if (parts.cores !== undefined) {
        cores = parts.cores.take(Math.max(1, Math.ceil(command.cpu)))
        if (cores === undefined) {
          coresShort = true
          if (task.status !== 'queued')
            change({
              id: task.id,
              atSite: false,
              status: 'queued',
              readyAt: readyAt.get(i) as number,
              queuedAt: now,
              reason: `waiting for a free core of host ${parts.hostId}`,
            })
          task.status = 'queued'
          deferred.push(i)
          continue
        }
        heldCores.set(i, cores)
      }
      const name = plan.nameOf(task)
      const intent = intentFor(i)
      const lanes = [...lanesOf(task), ...cores.map((core) => [`@host/${parts.hostId}`, `core-${String(core)}`, ''] as const)]
      const record = { id: task.id, name, directory: intent.directory, host: parts.hostId }
      chosen.push({
        position: i,
        name,
        intent,
        record: { ...record, readyAt: readyAt.get(i) as number, startedAt: now, lanes, ahead: false },
      })
      frontier.take(i)
      task.started_at = now
      task.ready_at = readyAt.get(i) as number
    }
    return chosen
  }

  /** Heirs of what runs, as far as they need nothing but what is under way here to be started: no lane, no end of another site. */
  const chooseAhead = async (chosen: readonly Chosen[]): Promise<Ahead[]> => {
    const most = parts.aheadPerLane ?? 0
    if (most === 0 || !brisk || stopping !== undefined || paused || parts.cores?.contended === true) return []
    const given = (p: number): boolean => states[p] === done || (states[p] === inFlight && mine[p] === true) || ahead.has(p)
    const offered: Ahead[] = []
    const roots = [...flight.positions(), ...chosen.map(({ position }) => position)]
    await commandOf(roots.flatMap((root) => frontier.heirOf(root) ?? []))
    for (const root of roots) {
      if (states[root] !== inFlight) continue
      let last = root
      for (let depth = 0; depth < most && offered.length < intentsPerCommit; depth++) {
        let heir = heirs.get(last)
        if (heir === undefined) {
          heir = frontier.heirOf(last)
          const command = heir === undefined ? undefined : commands.get(heir)
          if (heir === undefined || command === undefined || ahead.has(heir)) break
          if ((at(heir).not_before ?? 0) > 0 || ![...frontier.predecessorsOf(heir)].every(given)) break
          if (parts.cores !== undefined && heldCores.get(root)?.length !== Math.min(parts.cores.count, Math.max(1, Math.ceil(command.cpu))))
            break
          const task = at(heir)
          const name = plan.nameOf(task)
          const intent = intentFor(heir)
          const record = {
            id: task.id,
            name,
            directory: intent.directory,
            host: parts.hostId,
            readyAt: 0,
            startedAt: 0,
            lanes: [],
            ahead: true,
          }
          const one: Ahead = { position: heir, name, intent, record, committed: false, revoked: false, turn: false }
          ahead.set(heir, one)
          heirs.set(last, heir)
          offered.push(one)
        }
        last = heir
      }
    }
    return offered
  }

  const foreign = [...states.keys()].some((i) => mine[i] !== true && (states[i] as number) < done)
  const lookElsewhere = async (): Promise<void> => {
    const rows = await db.prepared<{ position: number; status: string; finished_at: number | null }>(
      'foreign_ends',
      `select activity_position as position, status, finished_at from task_executions where execution_run_id = $1 and latest and status in ('completed', 'failed', 'cancelled')`,
      [runId],
    )
    for (const row of rows) {
      if (mine[row.position] === true || (states[row.position] as number) >= done) continue
      at(row.position).finished_at = row.finished_at
      opened(row.status === 'completed' ? frontier.complete(row.position) : frontier.kill(row.position))
    }
  }

  let idleSince = clock()
  const deaf = foreign ? parts.wakes?.listen(runId, nudge) : undefined
  try {
    await adopt()
    for (;;) {
      if (trouble !== undefined) throw trouble as Error
      if (draining && ends.size === 0 && starts.size === 0) throw signal.reason as Error
      woken = false
      flight.turn()
      const chosen = draining ? [] : await choose()
      const offered = draining ? [] : await chooseAhead(chosen)
      const intents = [...chosen, ...offered].map(({ record }) => record)
      /** Who has the lanes after this step: heirs that are over in it pass them on at once. */
      const heirAfter = (i: number): string | null => {
        let heir = heirs.get(i)
        while (heir !== undefined && ends.has(heir)) heir = heirs.get(heir)
        return heir === undefined ? null : at(heir).id
      }
      const step: Entry = {
        ...entry,
        starts: [...starts.values()],
        ends: [...ends].map(([i, end]) => ({ ...end, heir: heirAfter(i) })),
        states: [...changes.values()],
        intents,
      }
      for (const i of ends.keys()) heirs.delete(i)
      entry = emptyEntry()
      changes = new Map()
      ends = new Map()
      starts = new Map()
      const waiters = unheard.length
      parts.failpoint('before-commit')
      let tries = 0
      let sentAt = performance.now()
      const result = await outlastingOutage(() => {
        // After an outage the lanes may have been had only now.
        if ((tries += 1) > 1) for (const intent of intents) intent.startedAt = clock()
        sentAt = performance.now()
        return commitSite(db, runId, site, epoch, step)
      }, signal)
      for (const { resolve } of unheard.splice(0, waiters)) resolve()
      if (step.ends.length > 0) parts.wakes?.tell(runId, nudge)
      // Once the lanes are held, so that no task begins on the record before the one that had its lane has ended.
      const startedAt = clock()
      parts.failpoint('committed')

      const acquired = new Set(result.acquired)
      const go: Chosen[] = []
      for (const one of chosen) {
        const { position: i, record } = one
        if (acquired.has(record.id)) {
          at(i).status = 'preparing'
          at(i).started_at = startedAt
          queueReasons.delete(i)
          go.push(one)
          continue
        }
        freeCores(i)
        frontier.putBack(i)
        at(i).started_at = null
        deferred.push(i)
        retryAt.set(i, clock() + laneRetryMs / 1_000)
        const by = result.holders?.[record.id]
        if (by !== undefined && queueReasons.get(i) !== by) {
          queueReasons.set(i, by)
          at(i).status = 'queued'
          change({
            id: record.id,
            atSite: false,
            status: 'queued',
            readyAt: record.readyAt,
            queuedAt: clock(),
            reason: `its lane is held by ${by}`,
          })
        }
      }
      if (go.length > 0) flight.start(go)
      if (result.run_status !== 'running') stopping ??= 'cancelled'
      if (result.cancelled) stopping = 'cancelled'
      if (result.failed > 0 && plan.onFailure === 'stop') stopping ??= 'failed'
      if (stopping === 'cancelled') flight.cancel()
      paused = result.paused
      leaseUntil = sentAt + startLeaseMs
      for (const one of offered) {
        one.committed = acquired.has(one.record.id)
        if (one.committed && one.revoked) entry.takenBack.push(one.record.id)
        if (!one.committed || one.revoked) forget(one.position, one)
      }
      // Who did not get his lanes has none to pass on.
      if (stopping !== undefined || paused || go.length < chosen.length) takeBack()
      else if (ahead.size > 0) startAhead()
      beat({ completed: finished, running: flight.size, paused, news })

      const over = stopping !== undefined || frontier.open === 0
      const pending = ends.size > 0 || starts.size > 0 || changes.size > 0 || entry.takenBack.length > 0
      if (flight.size === 0 && over && !pending) return { settled: true, completed: finished, failed }
      const busy = flight.size > 0 || queue.length > 0 || deferred.length > 0 || pending
      if (busy) idleSince = clock()
      else if ((clock() - idleSince) * 1_000 > idleMs) return { settled: false, completed: finished, failed }

      const startable = (): boolean => stopping === undefined && !paused && queue.length > 0 && !coresShort && parts.cores?.free !== 0
      const waiter = (): boolean => [...ahead.values()].some(({ turn }) => turn)
      const sleep = (ms: number): Promise<void> =>
        new Promise((resolve) => {
          const timer = setTimeout(resolve, ms)
          wake = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      if (!woken && !startable() && entry.takenBack.length === 0) {
        if (queue.length > 0 || coresShort) parts.cores?.whenFree(nudge)
        const calm = deferred.length > 0 || queue.length > 0 ? laneRetryMs : tickMs
        await sleep(Math.min(calm, Math.max(0, (flight.dueAt - clock()) * 1_000)))
      }
      // What follows by itself needs no commit at once: the next one takes more.
      for (let left = gatherMs; left > 0 && ahead.size > 0 && stopping === undefined && !startable() && !waiter();) {
        await sleep(left)
        left = sentAt + gatherMs - performance.now()
      }
      wake = () => undefined
      if (foreign) await outlastingOutage(lookElsewhere, signal)
    }
  } catch (error) {
    if (error instanceof LeasePassedOn) beat({ completed: finished, running: 0, paused, news })
    throw error
  } finally {
    deaf?.()
    // Their tasks are not handed on: whoever takes the site over brings the files again, and finds them there.
    for (const { reject } of unheard) reject(new DriverError('unknown', `the executor of ${site} has let go of the run`))
    signal.removeEventListener('abort', drain)
    flight.close()
    for (const i of [...heldCores.keys()]) freeCores(i)
  }
}

/** Cores of this host that a task's intent has leased, as numbers. */
const coresHeld = async (db: Db, hostId: string, taskId: string): Promise<number[]> => {
  const rows = await db.prepared<{ core_id: string }>(
    'cores_held',
    'select core_id from lane_leases where task_execution_id = $1 and resource_id = $2',
    [taskId, `@host/${hostId}`],
  )
  return rows.map((row) => Number(row.core_id.replace('core-', '')))
}
