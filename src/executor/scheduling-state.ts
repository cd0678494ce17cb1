import type { Copied, Patience } from './attempt.ts'
import type { CoreRequest } from './host-cores.ts'
import type { Outcome, Observation } from './attempts-in-flight.ts'
import { completed, createFrontier, dead, inFlight, waiting } from './frontier.ts'
import type {
  JournalEntry,
  LoadedRun,
  LoadedTask,
  TaskEnd,
  TaskStart,
  TaskStateChange,
  TaskTransfer,
  WaitKind,
} from './journal.ts'
import { intentName } from './names.ts'

/**
 * An intent ahead is started only this long after the run's flags were requested; later the flags
 * are read first. So a pause or a cancel is in force after this time at the latest, and a replaced
 * or frozen holder starts nothing after it. Milliseconds.
 */
export const startLeaseMs = 200
/**
 * `aheadPerLane` of sites on this machine: twice the number of 2 ms processes in one gathering of
 * ends.
 */
export const usualAhead = 64

/**
 * The facts about an activity that its execution needs; read from the run's content version before
 * its first intent.
 */
export interface TaskCommand {
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

/** The moment of an event; the scheduling has no clock. */
export interface Moment {
  /** Seconds since the epoch. */
  at: number
  /** Milliseconds of a monotonic clock. */
  ms: number
  /** Another run waits for cores of the host: cores become free instead of being passed on. */
  contended: boolean
}

/** The facts about a site and its run before the first event; plain data. */
export interface SchedulingFacts {
  runId: string
  contentVersionId: string
  /** With position and attempt, it gives the names of effects. */
  effectKey: string
  site: string
  /** Host or site under which cores are leased. */
  hostId: string
  onFailure: 'stop' | 'finish-independent'
  /** By resource, per second. */
  prices: ReadonlyMap<string, number>
  patience: Patience
  /** How many tasks of a lane may be intended ahead of their turn. */
  aheadPerLane: number
  /** Cores of the host; undefined where only the site counts them. */
  hostCores: number | undefined
  /**
   * The resource's lanes are those of this cloud instance: another run may use another instance of
   * the resource.
   */
  machine?: string | undefined
  /** Nothing starts, and the executor leaves only when the ends of all attempts are known. */
  onlyEnds?: boolean | undefined
  /** Files come from other sites: the transfers for an attempt are read when it is adopted. */
  brings: boolean
  /** The last event of the run before its tasks were loaded: they have the ends up to it. */
  seen?: number
}

/**
 * The stage of a task with its intent at this site, one byte a task. `frontier.ts` holds beside it
 * whether the task waits, is in flight or is over.
 */
export const stages = {
  /** No intent: it waits, is queued, or is over. */
  none: 0,
  /** Its intent is in the commit under way. */
  offered: 1,
  /** Its intent is committed: the driver has it. */
  submitted: 2,
  /** Its intent ahead of its turn is in the commit under way. */
  aheadOffered: 3,
  /** The same, and it will not start on this intent. */
  aheadRevoked: 4,
  /** Its intent ahead of its turn is committed. */
  ahead: 5,
  /** Adopted: it has begun, and no start is on record yet. */
  unrecorded: 6,
} as const

/** Why no task starts any more. */
export type Stopping = 'no' | 'failed' | 'cancelled'

/**
 * `adopting`: the questions of a take-over are open. `resting`: the next tick may commit.
 * `committing`: an answer is due.
 */
export type Phase = 'adopting' | 'resting' | 'committing' | 'left'

/**
 * An adopted task whose start has to be recorded after the ends of the tasks before it, with its
 * later events.
 */
export interface Unrecorded {
  startedAt: number
  observation?: Observation
  outcome?: Outcome
  copied?: readonly Copied[]
}

/** The reason for which a task waits, as on record after the next commit. */
export interface Wait {
  kind: WaitKind
  reason: string
  /** Seconds since the epoch: when this kind of wait began, and when it was last observed. */
  since: number
  foundAt: number
}

/** A wait that is over. */
export interface EndedWait {
  kind: WaitKind
  seconds: number
}

/** The writes of one commit; `positions` are those of the tasks of `entry.intents`. */
export interface Step {
  entry: JournalEntry
  positions: readonly number[]
  /** Waits that have ended since the last commit: reported, not written. */
  waited: readonly EndedWait[]
}

/** Actions that the scheduling asks for, in this order; the event behind the arrow answers a question. */
export type Effect =
  /** Starts the committed tasks. */
  | { type: 'start'; positions: readonly number[] }
  /**
   * Takes over the commits of an earlier holder: the driver is queried by name, and starts those
   * that it does not know, but for a `stopAll` before. In a pause they start at its end; where the run
   * has failed they end.
   */
  | { type: 'adopt'; positions: readonly number[] }
  /** Ends everything at the site; repeated. */
  | { type: 'stopAll' }
  /** Takes these cores of the host; the event listed them as free. */
  | { type: 'takeCores'; cores: readonly number[] }
  | { type: 'giveCores'; cores: readonly number[] }
  /** Waits for cores from now on, before the commit is answered; as `rest` repeats it. */
  | { type: 'requestCores'; request: CoreRequest }
  /**
   * The other sites of the run in this process look for ends here; `opened`: their tasks that may start
   * because of one, or never will.
   */
  | { type: 'wakeOthers'; opened: readonly number[] }
  /** After `afterMs`: the starts of tasks that an earlier holder intended ahead → `aheadFound`. */
  | { type: 'findAhead'; positions: readonly number[]; afterMs: number }
  /** → `holdsRead` */
  | { type: 'readHolds'; positions: readonly number[] }
  /** → `commandsRead` */
  | { type: 'readCommands'; positions: readonly number[] }
  /** After this sequence of events → `foreignEnds` */
  | { type: 'readForeignEnds'; after: number }
  /**
   * Rests for this long, unless an event comes; `request`: free cores of the host count as an event.
   */
  | { type: 'rest'; ms: number; request: CoreRequest | undefined }
  /** Waits for more to commit, also after an event; the next event is a tick. */
  | { type: 'gather'; ms: number }
  /**
   * `settled`: nothing is in flight here and nothing will be. `idle`: others may have the slot.
   * `drained`: running tasks are adopted later.
   */
  | { type: 'leave'; why: 'settled' | 'idle' | 'drained' }

export const emptyEntry = (): JournalEntry => ({
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

export type SchedulingState = ReturnType<typeof openScheduling>

/**
 * The scheduling state of a site at its opening: only the facts on record. `mine`: the tasks of
 * this site. `schedulesItself`: tasks whose site decides when they run; their slot is a name, not a lane.
 */
export const openScheduling = (
  facts: SchedulingFacts,
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
    lanes: tasks.map((task, i) =>
      of.schedulesItself[i] === true ? [] : lanesOf(task).map((lane) => JSON.stringify(lane)),
    ),
    orders: tasks.map((task) => task.order_on_resource),
    mine: of.mine,
  })
  const ready = frontier.ready()
  const early = (i: number): boolean => ((tasks[i] as LoadedTask).not_before ?? 0) > at
  const own = (status: string): number =>
    tasks.reduce((sum, task, i) => sum + (task.status === status && of.mine[i] === true ? 1 : 0), 0)
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
    stopping: (facts.onFailure === 'stop' && tasks.some(({ status }) => status === 'failed')
      ? 'failed'
      : 'no') as Stopping,
    paused: false,
    draining: false,
    /** By position, with the values of `stages`. */
    stage: new Uint8Array(n),
    /** 1: its predecessors have completed and its lanes are its own; for tasks intended ahead. */
    turn: new Uint8Array(n),
    /**
     * `heirTo`: the task that gets the lanes of a task at its end, where that is decided before the
     * end. `heirFrom`: the inverse. -1: none.
     */
    heirTo: new Int32Array(n).fill(-1),
    heirFrom: new Int32Array(n).fill(-1),
    /** Seconds since the epoch; NaN: not known. */
    readyAt: new Float64Array(n).fill(NaN),
    /** `ms` of the earliest next try: another run holds its lane. */
    retryAt: new Float64Array(n).fill(-Infinity),
    /** Names of the latest attempts' effects, computed at first use: a hash takes 2 µs. */
    names: new Array<string | undefined>(n).fill(undefined),
    commands: new Array<TaskCommand | undefined>(n).fill(undefined),
    commandsKnown: 0,
    /** Tasks intended ahead, in the order of their intents. */
    ahead: new Set<number>(),
    /** Tasks with the driver, in the order of their arrival there. */
    submitted: new Set<number>(),
    unrecorded: new Map<number, Unrecorded>(),
    heldCores: new Map<number, readonly number[]>(),
    /**
     * Cores that a task was refused with while no other task held its lanes. Where the answer to a
     * first try was lost and the run was paused before the second, the task has leased them: it
     * requests them again.
     */
    oldCores: new Map<number, readonly number[]>(),
    /** By position, for waiting tasks whose reason this holder knows. */
    waits: new Map<number, Wait>(),
    /** Waits that have ended since the last commit. */
    waited: [] as EndedWait[],
    /** Transfers from other sites for attempts under way, by id of the transfer. */
    brought: new Map<number, Map<string, TaskTransfer>>(),
    // First ready, first started; tasks that wait for a time, a lane of another run or a core are
    // tried later. After a take-over a retry still waits for its time.
    queue: ready.filter((i) => !early(i)),
    deferred: ready.filter(early),
    /**
     * The next task in order needs more cores than are free: the tasks behind it wait too,
     * otherwise smaller tasks could delay it without limit.
     */
    coresShort: false,
    /** That task. */
    shortOf: -1,
    /** How often in a row a core that was free here belonged to another worker. */
    coreRefusals: 0,
    /** The last task took less than `briskSeconds`: more are intended ahead. */
    brisk: false,
    /** `ms` until which tasks ahead may start. */
    leaseUntil: -Infinity,
    /** `ms` of the last commit, and whether ends were gathered since. */
    sentAt: -Infinity,
    gathered: false,
    /** Tasks of other sites are not over; whether their ends were read since the last commit. */
    foreign: tasks.some((_, i) => of.mine[i] !== true && (states[i] as number) < completed),
    foreignRead: true,
    /** The sequence of the last event that was read of them. */
    foreignSeen: facts.seen ?? 0,
    /** Tasks of other sites that may start, or died, since the last step; and those of that step. */
    elsewhere: [] as number[],
    openedUnderWay: [] as readonly number[],
    idleSince: at,
    completed: own('completed'),
    failed: own('failed'),
    /** Counts starts and ends in the order in which they happened. */
    order: 0,
    /** What the next commit writes. */
    entry: emptyEntry(),
    /**
     * One for each task and step: of two changes of one row in one statement only one would count.
     */
    changes: new Map<string, TaskStateChange>(),
    /** By position; a task that started and ended between two commits has only an end. */
    ends: new Map<number, TaskEnd>(),
    starts: new Map<number, TaskStart>(),
    /** The tasks that the commit under way should start. */
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

/** Lanes of a task in the plan: resource, core, slot. */
export const lanesOf = ({
  resource_id,
  core_ids,
  slot_id,
}: LoadedTask): (readonly [string, string, string])[] =>
  (core_ids.length === 0 ? [''] : core_ids).map((core) => [resource_id, core, slot_id] as const)

export const taskAt = (state: SchedulingState, i: number): LoadedTask => state.tasks[i] as LoadedTask

/** Name of the effect of the task's latest attempt. */
export const nameAt = (state: SchedulingState, i: number): string =>
  (state.names[i] ??= intentName(state.facts.effectKey, i, taskAt(state, i).attempt))
/** Names of the effects of its earlier attempts. */
export const earlierNames = (state: SchedulingState, i: number): string[] =>
  Array.from({ length: taskAt(state, i).attempt - 1 }, (_, k) => intentName(state.facts.effectKey, i, k + 1))

export const isWaiting = (state: SchedulingState, i: number): boolean => state.frontier.states[i] === waiting
export const isInFlight = (state: SchedulingState, i: number): boolean =>
  state.frontier.states[i] === inFlight
/** Seconds since the epoch at which the last predecessor ended, now where there is none. */
const lastFinish = (state: SchedulingState, i: number): number => {
  let latest = 0
  for (const p of state.frontier.predecessorsOf(i))
    latest = Math.max(latest, taskAt(state, p).finished_at ?? 0)
  return latest || state.at
}

/** The earliest moment at which a task could have started; settled at first use. */
export const readyAt = (state: SchedulingState, i: number): number => {
  if (Number.isNaN(state.readyAt[i])) state.readyAt[i] = taskAt(state, i).ready_at ?? lastFinish(state, i)
  return state.readyAt[i] as number
}

/** A change of a row in the next commit, over an earlier one of the same row. */
export const change = (state: SchedulingState, next: TaskStateChange): void => {
  const known = { ...state.changes.get(next.id) }
  // What belongs to another reason goes with it.
  if (next.reason !== undefined)
    for (const member of ['waitsFor', 'silentSince', 'silentFor'] as const) delete known[member]
  state.changes.set(next.id, { ...known, ...next })
}

/**
 * Shows why a task waits: written only when the reason has changed. Its wait began with the first
 * of them.
 */
export const showWait = (state: SchedulingState, i: number, kind: WaitKind, reason: string): void => {
  const known = state.waits.get(i)
  if (known?.kind === kind) known.foundAt = state.at
  if (known?.kind === kind && known.reason === reason) return
  if (known?.kind === kind) known.reason = reason
  else {
    endWait(state, i)
    state.waits.set(i, { kind, reason, since: state.at, foundAt: state.at })
  }
  const task = taskAt(state, i)
  task.status = 'queued'
  task.queued_at ??= state.at
  change(state, {
    id: task.id,
    atSite: false,
    status: 'queued',
    readyAt: readyAt(state, i),
    queuedAt: task.queued_at,
    waitsFor: kind,
    reason,
  })
}

/** The task's wait is over. */
export const endWait = (state: SchedulingState, i: number): void => {
  const wait = state.waits.get(i)
  if (wait === undefined) return
  state.waits.delete(i)
  state.waited.push({ kind: wait.kind, seconds: Math.max(0, state.at - wait.since) })
}

export const freeCores = (state: SchedulingState, i: number): void => {
  const cores = state.heldCores.get(i)
  if (cores === undefined) return
  state.heldCores.delete(i)
  if (cores.length > 0) state.effects.push({ type: 'giveCores', cores })
}

/** Cores of the host that a task needs. */
export const coresOf = (command: TaskCommand, hostCores: number): number =>
  Math.min(hostCores, Math.max(1, Math.ceil(command.cpu)))

/** The task of `to` gets the lanes of the task of `from`. */
export const setHeir = (state: SchedulingState, from: number, to: number): void => {
  state.heirTo[from] = to
  state.heirFrom[to] = from
}

/** Removes the decision which task gets the lanes of the task of `from`. */
export const dropHeir = (state: SchedulingState, from: number): void => {
  const to = state.heirTo[from] as number
  if (to < 0) return
  state.heirTo[from] = -1
  if (state.heirFrom[to] === from) state.heirFrom[to] = -1
}
