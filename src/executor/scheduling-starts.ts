import { append } from '../lists.ts'
import { aheadAnswered, chooseAhead, startAhead, takeBack, unreadHeirs } from './scheduling-ahead.ts'
import {
  change,
  coresOf,
  dropHeir,
  emptyEntry,
  endWait,
  freeCores,
  isWaiting,
  lanesOf,
  nameAt,
  readyAt,
  showWait,
  stages,
  startLeaseMs,
  taskAt,
  type SchedulingState,
  type TaskCommand,
  type Step,
} from './scheduling-state.ts'
import { completed } from './frontier.ts'
import type { CommitResult, LoadedTask, TaskIntent } from './journal.ts'

/**
 * Limit for tasks committed as intents in one step; more only slow the step down (500 take about 25
 * ms).
 */
const intentsPerCommit = 500
/** Pause before the next try for lanes of another run, or cores of another worker. */
export const laneRetryMs = 150
/**
 * Pause and number of tries for a core that was free here: the end that frees it may be in the
 * commit of another run.
 */
export const coreRetryMs = 20
const coreRetries = 5
/**
 * Commands in one read: the first tasks start soon, then one read serves a thousand tasks instead
 * of the tasks of one hop.
 */
const firstRead = 100
const nextRead = 1_000

/**
 * Those of `positions` without a command, and tasks just behind the first of them, which will be
 * needed soon.
 */
export const unread = (state: SchedulingState, positions: readonly number[]): number[] => {
  const wanted = new Set(positions.filter((i) => state.commands[i] === undefined))
  const [first] = wanted
  if (first === undefined) return []
  const most = state.commandsKnown === 0 ? firstRead : nextRead
  for (let i = first, more = 0; i < state.tasks.length && more < most; i++) {
    if (
      state.mine[i] !== true ||
      state.commands[i] !== undefined ||
      (state.frontier.states[i] as number) >= completed
    )
      continue
    wanted.add(i)
    more += 1
  }
  return [...wanted]
}

const isDue = (state: SchedulingState, i: number): boolean =>
  (state.retryAt[i] as number) <= state.ms && (taskAt(state, i).not_before ?? 0) <= state.at

/** Puts tasks whose wait for a time or a lane is over before the others. */
export const bringDue = (state: SchedulingState): void => {
  if (state.deferred.length === 0) return
  const due = state.deferred.filter((i) => isDue(state, i))
  if (due.length === 0) return
  state.queue = [...due, ...state.queue]
  state.deferred = state.deferred.filter((i) => !isDue(state, i))
}

const roomOf = (cores: readonly number[] | undefined): number =>
  Math.min(intentsPerCommit, cores?.length ?? intentsPerCommit)

/** Positions whose commands must be read before the next step can be made; none: it can. */
export const unreadForStep = (state: SchedulingState, cores: readonly number[] | undefined): number[] => {
  if (state.stopping !== 'no' || state.commandsKnown === state.tasks.length) return []
  const next = state.queue.slice(0, roomOf(cores)).filter((i) => isWaiting(state, i))
  return unread(state, [...next, ...unreadHeirs(state, next)])
}

/**
 * The next try for a held lane comes only when a core is free: until then an observation of it
 * counts this long, in seconds.
 */
const laneFoundSeconds = 0.8

/**
 * Shows the remaining tasks as waiting for a core, or as ready where there are more than one step
 * takes.
 */
const showBehind = (state: SchedulingState, shortOfCores: boolean): void => {
  const seen = Math.min(state.queue.length, intentsPerCommit)
  for (let k = 0; k < seen; k++) {
    const i = state.queue[k] as number
    if (!isWaiting(state, i)) continue
    if (shortOfCores) {
      showShortOfCores(state, i)
      continue
    }
    const task = taskAt(state, i)
    if (task.status !== 'blocked') continue
    task.status = 'ready'
    change(state, { id: task.id, atSite: false, status: 'ready', readyAt: readyAt(state, i) })
  }
}

const showShortOfCores = (state: SchedulingState, i: number): void => {
  const wait = state.waits.get(i)
  if (wait?.kind === 'lane' && state.at - wait.foundAt < laneFoundSeconds) return
  showWait(state, i, 'cores', `waiting for a free core of host ${state.facts.hostId}`)
}

/**
 * Tasks that should start; their intents are in the present step. `cores`: free ones of the host,
 * in the order in which they are taken.
 */
const choose = (state: SchedulingState, cores: readonly number[] | undefined): number[] => {
  const chosen: number[] = []
  state.coresShort = false
  if (state.stopping !== 'no' || state.paused) return chosen
  const first = state.queue.splice(0, roomOf(cores))
  showBehind(state, cores !== undefined && cores.length < intentsPerCommit)
  const free = cores === undefined ? [] : [...cores]
  const taken: number[] = []
  for (const i of first) {
    if (!isWaiting(state, i)) continue
    let held: readonly number[] = []
    if (cores !== undefined) {
      held = pickCores(state, i, free)
      if (held.length === 0) {
        if (!state.coresShort) state.shortOf = i
        state.coresShort = true
        showShortOfCores(state, i)
        state.deferred.push(i)
        continue
      }
      append(taken, held)
      state.heldCores.set(i, held)
    }
    offer(state, i, held)
    chosen.push(i)
  }
  if (taken.length > 0) state.effects.push({ type: 'takeCores', cores: taken })
  return chosen
}

/** Takes a task's cores out of `free`; none where they are too few. */
const pickCores = (state: SchedulingState, i: number, free: number[]): readonly number[] => {
  const need = coresOf(state.commands[i] as TaskCommand, state.facts.hostCores ?? 1)
  if (need > free.length) return []
  const old = state.oldCores.get(i)
  if (old === undefined || !old.every((core) => free.includes(core))) return free.splice(0, need)
  for (const core of old) free.splice(free.indexOf(core), 1)
  return old
}

/** Lanes by their keys over all runs. */
const leasedLanes = (state: SchedulingState, task: LoadedTask): TaskIntent['lanes'] => {
  const { machine } = state.facts
  const lanes = lanesOf(task)
  return machine === undefined
    ? lanes
    : lanes.map(([resource, core, slot]) => [`${resource}@${machine}`, core, slot] as const)
}

const offer = (state: SchedulingState, i: number, cores: readonly number[]): void => {
  const task = taskAt(state, i)
  const host = state.facts.hostId
  const intent: TaskIntent = {
    id: task.id,
    name: nameAt(state, i),
    directory: null,
    host,
    readyAt: readyAt(state, i),
    startedAt: state.at,
    lanes: state.schedulesItself[i] === true ? [] : leasedLanes(state, task),
    ahead: false,
  }
  for (const core of cores) intent.lanes.push([`@host/${host}`, `core-${String(core)}`, ''])
  state.entry.intents.push(intent)
  state.frontier.take(i)
  state.stage[i] = stages.offered
  task.started_at = state.at
  task.ready_at = intent.readyAt
}

/**
 * The task that has the lanes of a task after this step: heirs that end in the same step pass them
 * on at once.
 */
const heirAfter = (state: SchedulingState, i: number): string | null => {
  let heir = state.heirTo[i] as number
  while (heir >= 0 && state.ends.has(heir)) heir = state.heirTo[heir] as number
  return heir < 0 ? null : taskAt(state, heir).id
}

/**
 * The step for the next commit: everything since the last one, and the tasks that should start.
 * `cores` as in `choose`.
 */
export const makeStep = (state: SchedulingState, cores: readonly number[] | undefined): Step => {
  // First: this step may choose the next attempt of a failed task, with heirs of its own.
  for (const [i, end] of state.ends) end.heir = heirAfter(state, i)
  for (const i of state.ends.keys()) dropHeir(state, i)
  const chosen = state.draining ? [] : choose(state, cores)
  const offered = state.draining ? [] : chooseAhead(state, chosen, intentsPerCommit)
  const { entry } = state
  entry.starts = [...state.starts.values()]
  entry.ends = [...state.ends.values()]
  entry.states = [...state.changes.values()]
  state.entry = emptyEntry()
  state.starts = new Map()
  state.ends = new Map()
  state.changes = new Map()
  state.chosen = chosen
  state.offered = offered
  state.endsUnderWay = entry.ends.length > 0
  state.openedUnderWay = [...state.elsewhere, ...state.frontier.takeElsewhere()]
  state.elsewhere = []
  state.phase = 'committing'
  const { waited } = state
  state.waited = []
  return { entry, positions: offered.length === 0 ? chosen : [...chosen, ...offered], waited }
}

/** The step is committed: its acquired tasks start, the others wait for their lanes. */
export const commitAnswered = (
  state: SchedulingState,
  { acquired, holders }: Pick<CommitResult, 'acquired' | 'holders'>,
): void => {
  if (state.phase !== 'committing') throw new Error('the answer of a commit came without a commit')
  state.phase = 'resting'
  const opened = state.openedUnderWay
  if (state.endsUnderWay || opened.length > 0) state.effects.push({ type: 'wakeOthers', opened })
  const has = new Set(acquired)
  const go: number[] = []
  const { coreRefusals } = state
  for (const i of state.chosen) {
    const task = taskAt(state, i)
    if (!has.has(task.id)) {
      refuse(state, i, holders?.[task.id])
      continue
    }
    task.status = 'preparing'
    // Set once the lanes are held, so that no recorded start is before the end of the task that had
    // the lane.
    task.started_at = state.at
    state.stage[i] = stages.submitted
    state.submitted.add(i)
    endWait(state, i)
    state.oldCores.delete(i)
    go.push(i)
  }
  if (go.length > 0) state.effects.push({ type: 'start', positions: go })
  if (state.coreRefusals === coreRefusals) state.coreRefusals = 0
  state.refused = go.length < state.chosen.length
  state.chosen = []
  aheadAnswered(state, has)
}

/** The last requested core belonged to another worker, and its next try is due. */
export const coreRetryIsDue = (state: SchedulingState): boolean =>
  state.coreRefusals > 0 && state.coreRefusals <= coreRetries

const refuse = (state: SchedulingState, i: number, by: string | undefined): void => {
  const task = taskAt(state, i)
  if (by === undefined && state.heldCores.has(i)) state.oldCores.set(i, state.heldCores.get(i) ?? [])
  freeCores(state, i)
  state.frontier.putBack(i)
  state.stage[i] = stages.none
  task.started_at = null
  state.deferred.push(i)
  state.retryAt[i] = state.ms + laneRetryMs
  if (by === '') {
    state.coreRefusals += 1
    if (coreRetryIsDue(state)) state.retryAt[i] = state.ms + coreRetryMs
    showWait(state, i, 'cores', `waiting for a free core of host ${state.facts.hostId}`)
  } else if (by !== undefined) showWait(state, i, 'lane', `its lane is held by ${by}`)
}

/** Flags of the run's row at the last commit. `sentAt`: the `ms` at which that commit was sent. */
export interface Flags {
  sentAt: number
  cancelled: boolean
  paused: boolean
  /** Activities of the run that have failed permanently, at any site. */
  failed: number
  runStatus: string
}

/** These flags count from now on: tasks ahead start, or are taken back. */
export const flagsSeen = (state: SchedulingState, flags: Flags): void => {
  if (flags.cancelled || (flags.runStatus !== 'running' && state.stopping === 'no'))
    state.stopping = 'cancelled'
  if (flags.failed > 0 && state.facts.onFailure === 'stop' && state.stopping === 'no')
    state.stopping = 'failed'
  if (state.stopping === 'cancelled') state.effects.push({ type: 'stopAll' })
  state.paused = flags.paused
  state.sentAt = flags.sentAt
  state.leaseUntil = flags.sentAt + startLeaseMs
  state.gathered = false
  // A task without its lanes has none to pass on.
  if (state.stopping !== 'no' || state.paused || state.refused) takeBack(state)
  else if (state.ahead.size > 0) startAhead(state)
}
