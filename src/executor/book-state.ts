import type { Copied, Patience } from './attempt.ts'
import type { Outcome, Sight } from './flight.ts'
import { completed, createFrontier, dead, inFlight, waiting } from './frontier.ts'
import type { Entry, LoadedRun, LoadedTask, TaskEnd, TaskStart, TaskStateChange, TaskTransfer } from './journal.ts'
import { intentName } from './names.ts'

/**
 * What is intended ahead is started only so long after the run's flags were asked for; then they are read first.
 * A pause or a cancel is in force after this time at the latest, and a replaced or frozen holder starts nothing
 * after it. Milliseconds.
 */
export const startLeaseMs = 200
/** `aheadPerLane` of sites on this machine: twice what processes of 2 ms need to outlast a gathering of ends. */
export const usualAhead = 64

/** What an activity is, as far as its execution needs it; read from the run's content version before its first intent. */
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

/** A moment as the book is given it; the book has no clock. */
export interface Moment {
  /** Seconds since the epoch. */
  at: number
  /** Milliseconds of a clock that nobody sets. */
  ms: number
  /** Another run waits for cores of the host: cores are given back instead of being passed on. */
  contended: boolean
}

/** What the book knows of its site and run before the first event; plain data. */
export interface BookFacts {
  runId: string
  contentVersionId: string
  /** From it, position and attempt follow the names of effects. */
  effectKey: string
  site: string
  /** Host or site under whose name cores are leased. */
  hostId: string
  onFailure: 'stop' | 'finish-independent'
  /** By resource, per second. */
  prices: ReadonlyMap<string, number>
  patience: Patience
  /** How many tasks of a lane may be intended ahead of their turn. */
  aheadPerLane: number
  /** Cores of the host; undefined where only the site counts them. */
  hostCores: number | undefined
  /** Files come from other sites: what was brought for an attempt is read when it is adopted. */
  brings: boolean
}

/**
 * How a task of the site stands with its intent, one byte a task. `frontier.ts` keeps beside it whether the task
 * waits, is in flight or is over.
 */
export const stages = {
  /** No intent: it waits, is queued, or is over. */
  none: 0,
  /** Its intent is in the commit under way. */
  offered: 1,
  /** Its intent is committed: it is the driver's. */
  flying: 2,
  /** Its intent ahead of its turn is in the commit under way. */
  aheadOffered: 3,
  /** The same, and it will not be started on this intent. */
  aheadRevoked: 4,
  /** Its intent ahead of its turn is committed. */
  ahead: 5,
  /** Adopted: it has begun, and no start is on record yet. */
  unrecorded: 6,
} as const

/** Why nothing starts any more. */
export type Stopping = 'no' | 'failed' | 'cancelled'

/** `adopting`: the questions of a take-over are open. `resting`: the next tick may commit. `committing`: an answer is due. */
export type Phase = 'adopting' | 'resting' | 'committing' | 'left'

/** An adopted task whose start waits to be recorded behind the ends of those before it, with what came of it since. */
export interface Unrecorded {
  startedAt: number
  sight?: Sight
  outcome?: Outcome
  copied?: readonly Copied[]
}

/** What one commit writes; `positions` are those of the tasks of `entry.intents`. */
export interface Step {
  entry: Entry
  positions: readonly number[]
}

/** What is to be done for the book, in this order; a question is answered by the event behind the arrow. */
export type Effect =
  /** Starts what is committed. */
  | { type: 'start'; positions: readonly number[] }
  /** Takes over what an earlier holder committed: the driver is asked by name. */
  | { type: 'adopt'; positions: readonly number[] }
  /** Ends everything at the site. */
  | { type: 'stopAll' }
  /** Takes these cores of the host; they were free in the event. */
  | { type: 'takeCores'; cores: readonly number[] }
  | { type: 'giveCores'; cores: readonly number[] }
  /** The other sites of the run in this process look at what has ended here. */
  | { type: 'wakeOthers' }
  /** After `afterMs`: what became of tasks that an earlier holder intended ahead → `aheadFound`. */
  | { type: 'findAhead'; positions: readonly number[]; afterMs: number }
  /** → `holdsRead` */
  | { type: 'readHolds'; positions: readonly number[] }
  /** → `commandsRead` */
  | { type: 'readCommands'; positions: readonly number[] }
  /** → `foreignEnds` */
  | { type: 'readForeignEnds' }
  /** Nothing is to be done for so long, unless something happens; `forCores`: free cores of the host count as that. */
  | { type: 'rest'; ms: number; forCores: boolean }
  /** Waits for more to commit, also where something has happened; the next event is a tick. */
  | { type: 'gather'; ms: number }
  /** `settled`: nothing is in flight here and nothing will be. `idle`: others may have the slot. `drained`: what runs is adopted later. */
  | { type: 'leave'; why: 'settled' | 'idle' | 'drained' }

export const emptyEntry = (): Entry => ({
  takenBack: [],
  starts: [],
  ends: [],
  retries: [],
  states: [],
  intents: [],
  outputs: [],
  transfers: [],
  leftovers: [],
})

export type Book = ReturnType<typeof makeBook>

/**
 * The book of a site at its opening: what is on record, and nothing else. `mine`: the tasks of this site.
 * `schedulesItself`: tasks whose site decides what runs when; their slot is a name, not a lane.
 */
export const makeBook = (
  facts: BookFacts,
  run: LoadedRun,
  of: { mine: readonly boolean[]; schedulesItself: readonly boolean[] },
  at: number,
) => {
  const { tasks } = run
  const n = tasks.length
  const states = Uint8Array.from(tasks, stateOf)
  const frontier = createFrontier({
    states,
    from: run.from,
    to: run.to,
    lanes: tasks.map((task, i) => (of.schedulesItself[i] === true ? [] : lanesOf(task).map((lane) => JSON.stringify(lane)))),
    orders: tasks.map((task) => task.order_on_resource),
    mine: of.mine,
  })
  const ready = frontier.ready()
  const early = (i: number): boolean => ((tasks[i] as LoadedTask).not_before ?? 0) > at
  const own = (status: string): number => tasks.reduce((sum, task, i) => sum + (task.status === status && of.mine[i] === true ? 1 : 0), 0)
  return {
    facts,
    ...of,
    /** Rows of the latest attempts, by position; changed in place. */
    tasks,
    frontier,
    at,
    ms: 0,
    contended: false,
    effects: [] as Effect[],
    phase: 'adopting' as Phase,
    stopping: (facts.onFailure === 'stop' && tasks.some(({ status }) => status === 'failed') ? 'failed' : 'no') as Stopping,
    stopped: false,
    paused: false,
    draining: false,
    /** By position, as `stages` has it. */
    stage: new Uint8Array(n),
    /** 1: its predecessors have completed and its lanes have come to it; of what is intended ahead. */
    turn: new Uint8Array(n),
    /** Who has the lanes of a task after it, where that is settled before its end, and of whom a task has them; -1: none. */
    heirTo: new Int32Array(n).fill(-1),
    heirFrom: new Int32Array(n).fill(-1),
    /** Seconds since the epoch; NaN: not known. */
    readyAt: new Float64Array(n).fill(NaN),
    /** It is not asked for again before this: its lane is held by another run. */
    retryAt: new Float64Array(n),
    /** Of the latest attempts' effects, from the first question on: a hash takes 2 µs. */
    names: new Array<string | undefined>(n).fill(undefined),
    commands: new Array<Command | undefined>(n).fill(undefined),
    commandsKnown: 0,
    /** Intended ahead, in the order in which they were. */
    ahead: new Set<number>(),
    /** With the driver, in the order in which they came to it. */
    flying: new Set<number>(),
    unrecorded: new Map<number, Unrecorded>(),
    heldCores: new Map<number, readonly number[]>(),
    /**
     * Cores that a task was refused with while no other task held its lanes. Where the answer to a first try was lost and
     * the run was paused before the second, they are leased to it: it asks for them again.
     */
    oldCores: new Map<number, readonly number[]>(),
    /** Who held the lane of a task when it was last refused. */
    refusedBy: new Map<number, string>(),
    /** What came from other sites for attempts under way, by id of the transfer. */
    brought: new Map<number, Map<string, TaskTransfer>>(),
    // First ready, first started; what has to wait for a time, a lane of another run or a core is asked for later.
    // After a take-over a retry still waits for its time.
    queue: ready.filter((i) => !early(i)),
    deferred: ready.filter(early),
    /** The task whose turn it is needs more cores than are free: what is behind it waits too, else it would starve. */
    coresShort: false,
    /** The last task took less than `briskSeconds`: more are intended ahead. */
    brisk: false,
    /** `ms` until which what is ahead may be started. */
    leaseUntil: -Infinity,
    /** `ms` of the last commit, and whether ends were gathered since. */
    sentAt: -Infinity,
    gathered: false,
    /** Tasks of other sites are not over; whether their ends were read since the last commit. */
    foreign: tasks.some((_, i) => of.mine[i] !== true && (states[i] as number) < completed),
    foreignRead: true,
    idleSince: at,
    completed: own('completed'),
    failed: own('failed'),
    /** Counts starts and ends in the order in which they happened. */
    order: 0,
    /** What the next commit writes. */
    entry: emptyEntry(),
    /** One per task and step: two changes of one row in one statement would be one of them. */
    changes: new Map<string, TaskStateChange>(),
    /** By position; a task that started and ended between two commits has only an end. */
    ends: new Map<number, TaskEnd>(),
    starts: new Map<number, TaskStart>(),
    /** What the commit under way means to start. */
    chosen: [] as readonly number[],
    offered: [] as readonly number[],
    endsUnderWay: false,
    refused: false,
  }
}

const stateOf = ({ status, intended }: LoadedTask): number => {
  if (status === 'completed') return completed
  if (status === 'failed' || status === 'cancelled') return dead
  return intended ? inFlight : waiting
}

/** Lanes of a task as the plan has them: resource, core, slot. */
export const lanesOf = ({ resource_id, core_ids, slot_id }: LoadedTask): (readonly [string, string, string])[] =>
  (core_ids.length === 0 ? [''] : core_ids).map((core) => [resource_id, core, slot_id] as const)

export const taskAt = (book: Book, i: number): LoadedTask => book.tasks[i] as LoadedTask

/** Name of the effect of the task's latest attempt. */
export const nameAt = (book: Book, i: number): string => (book.names[i] ??= intentName(book.facts.effectKey, i, taskAt(book, i).attempt))

export const isWaiting = (book: Book, i: number): boolean => book.frontier.states[i] === waiting
export const isInFlight = (book: Book, i: number): boolean => book.frontier.states[i] === inFlight
/** Seconds since the epoch at which the last predecessor ended, now where there is none. */
const lastFinish = (book: Book, i: number): number => {
  let latest = 0
  for (const p of book.frontier.predecessorsOf(i)) latest = Math.max(latest, taskAt(book, p).finished_at ?? 0)
  return latest || book.at
}

/** Since when a task could have started; settled at the first question. */
export const readyAt = (book: Book, i: number): number => {
  if (Number.isNaN(book.readyAt[i])) book.readyAt[i] = taskAt(book, i).ready_at ?? lastFinish(book, i)
  return book.readyAt[i] as number
}

/** A change of a row in the next commit, over an earlier one of the same row. */
export const change = (book: Book, next: TaskStateChange): void => {
  const known = book.changes.get(next.id)
  book.changes.set(next.id, known === undefined ? next : { ...known, ...next })
}

export const freeCores = (book: Book, i: number): void => {
  const cores = book.heldCores.get(i)
  if (cores === undefined) return
  book.heldCores.delete(i)
  if (cores.length > 0) book.effects.push({ type: 'giveCores', cores })
}

/** Cores of the host that a task needs. */
export const coresOf = (command: Command, hostCores: number): number => Math.min(hostCores, Math.max(1, Math.ceil(command.cpu)))

/** The task of `to` has the lanes of `from` after it. */
export const setHeir = (book: Book, from: number, to: number): void => {
  book.heirTo[from] = to
  book.heirFrom[to] = from
}

/** The task of `from` has no heir any more. */
export const dropHeir = (book: Book, from: number): void => {
  const to = book.heirTo[from] as number
  if (to < 0) return
  book.heirTo[from] = -1
  if (book.heirFrom[to] === from) book.heirFrom[to] = -1
}
