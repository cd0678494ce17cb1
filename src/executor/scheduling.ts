import { aheadFound, begin, holdsRead, type Holds } from './scheduling-adoption.ts'
import { opened } from './scheduling-ahead.ts'
import {
  bringDue,
  commitAnswered,
  coreRetryIsDue,
  coreRetryMs,
  flagsSeen,
  laneRetryMs,
  makeStep,
  unreadForStep,
  type Flags,
} from './scheduling-starts.ts'
import { attemptEnded, attemptObserved, programEnded } from './scheduling-ends.ts'
import {
  coresOf,
  taskAt,
  type SchedulingState,
  type TaskCommand,
  type Effect,
  type Moment,
  type Step,
} from './scheduling-state.ts'
import { append } from '../lists.ts'
import type { Copied } from './attempt.ts'
import type { CoreRequest } from './host-cores.ts'
import type { Outcome, Observation } from './attempts-in-flight.ts'
import { completed } from './frontier.ts'
import type { CommitResult, ForeignEnd, TaskTransfer } from './journal.ts'

/**
 * Ends and starts of this period go into one commit while no task waits for it. Milliseconds, as
 * the others.
 */
const gatherMs = 60
/**
 * This often the flags are read, the lease is renewed and ends of predecessors elsewhere are read.
 */
const tickMs = 400
/** Other sites get the worker's slot after this long without work. */
const idleMs = 2_000

/** An event, without its moment. */
export type SiteEvent =
  | { type: 'begin' }
  /**
   * The starts of tasks that were intended ahead, by position, in seconds; undefined: not started.
   */
  | { type: 'aheadFound'; started: ReadonlyMap<number, number | undefined> }
  | { type: 'commandsRead'; commands: ReadonlyMap<number, TaskCommand> }
  | ({ type: 'holdsRead' } & Holds)
  /**
   * Free cores of the host in the order in which they should be taken; undefined: only the site
   * counts them.
   */
  | { type: 'tick'; cores: readonly number[] | undefined }
  | ({ type: 'commitAnswered' } & Pick<CommitResult, 'acquired' | 'holders'>)
  | ({ type: 'flagsSeen'; freeCores: number } & Flags)
  /**
   * `copied`: files of predecessors that were copied inside the site, where the driver reports
   * them.
   */
  | { type: 'attemptEnded'; position: number; outcome: Outcome; copied: readonly Copied[] }
  | { type: 'attemptObserved'; position: number; observation: Observation }
  /** The program has ended, and its files are still being read; `attemptEnded` follows. */
  | { type: 'programEnded'; position: number }
  | { type: 'transferHeard'; position: number; transfer: TaskTransfer }
  | { type: 'foreignEnds'; ends: readonly ForeignEnd[] }
  /** This worker is being drained: no task starts, ends are still committed. */
  | { type: 'drain' }

export type TimedEvent = Moment & SiteEvent

/** The next commit and the actions. */
export interface Decision {
  commit: Step | undefined
  effects: readonly Effect[]
}

const nothing: readonly Effect[] = []

/**
 * The scheduling of one site of a run: the tasks that may start, the tasks under way, the next
 * commit. It decides and does nothing: time, free cores and all results come in as events, and
 * actions go out as effects.
 *
 * The order of events: `begin`, the answers to its questions, then ticks. A tick returns a
 * question, a rest, or a step; a step is answered by `commitAnswered` and `flagsSeen` before the
 * next tick. `attemptEnded`, `attemptObserved`, `programEnded`, `transferHeard` and `drain` may come
 * between any two events.
 *
 * `decide` takes an event into the state, in place, and returns its consequences. Equal states and
 * events give equal decisions.
 */
export const decide = (state: SchedulingState, event: TimedEvent): Decision => {
  state.at = event.at
  state.ms = event.ms
  state.contended = event.contended
  let commit: Step | undefined
  if (event.type === 'tick') commit = tick(state, event.cores)
  else note(state, event)
  const { effects } = state
  if (effects.length === 0) return { commit, effects: nothing }
  state.effects = []
  return { commit, effects }
}

const note = (state: SchedulingState, event: Exclude<TimedEvent, { type: 'tick' }>): void => {
  switch (event.type) {
    case 'attemptEnded':
      attemptEnded(state, event.position, event.outcome, event.copied)
      break
    case 'attemptObserved':
      attemptObserved(state, event.position, event.observation)
      break
    case 'programEnded':
      programEnded(state, event.position)
      break
    case 'transferHeard':
      transferHeard(state, event.position, event.transfer)
      break
    case 'commitAnswered':
      commitAnswered(state, event)
      break
    case 'flagsSeen':
      flagsSeen(state, event)
      afterCommit(state, event.freeCores)
      break
    case 'foreignEnds':
      foreignEnds(state, event.ends)
      break
    case 'commandsRead':
      commandsRead(state, event.commands)
      break
    case 'drain':
      state.draining = true
      break
    case 'begin':
      begin(state)
      break
    case 'aheadFound':
      aheadFound(state, event.started)
      break
    case 'holdsRead':
      holdsRead(state, event)
  }
}

/** The next step, unless it needs an answer or a wait before it. */
const tick = (state: SchedulingState, cores: readonly number[] | undefined): Step | undefined => {
  if (state.phase !== 'resting') throw new Error(`a tick came while the site was ${state.phase}`)
  const open = state.facts.onlyEnds === true && state.submitted.size + state.unrecorded.size > 0
  if (state.draining && !open && state.ends.size === 0 && state.starts.size === 0) {
    leave(state, 'drained')
    return undefined
  }
  const before = beforeStep(state, cores)
  if (before !== undefined) {
    state.effects.push(before)
    return undefined
  }
  state.foreignRead = false
  const step = makeStep(state, cores)
  const request = coreRequestOf(state)
  if (request !== undefined) state.effects.push({ type: 'requestCores', request })
  return step
}

/** The wait or the read before the next step. */
const beforeStep = (state: SchedulingState, cores: readonly number[] | undefined): Effect | undefined => {
  const ms = gatherFor(state, cores?.length ?? Infinity)
  if (ms > 0) return { type: 'gather', ms }
  if (state.foreign && !state.foreignRead) return { type: 'readForeignEnds', after: state.foreignSeen }
  if (state.draining || state.stopping !== 'no') return undefined
  bringDue(state)
  const positions = unreadForStep(state, cores)
  return positions.length === 0 ? undefined : { type: 'readCommands', positions }
}

const leave = (state: SchedulingState, why: 'settled' | 'idle' | 'drained'): void => {
  state.phase = 'left'
  state.effects.push({ type: 'leave', why })
}

/** The next step can start a task. */
const startable = (state: SchedulingState, freeCores: number): boolean =>
  state.stopping === 'no' && !state.paused && state.queue.length > 0 && !state.coresShort && freeCores > 0

/**
 * Milliseconds for which ends are gathered: tasks that follow by themselves need no commit at once,
 * and the next commit then holds more.
 */
const gatherFor = (state: SchedulingState, freeCores: number): number => {
  if (state.ahead.size === 0 || state.stopping !== 'no' || startable(state, freeCores)) return 0
  // It could start if its intent were committed, or the flags more recent.
  for (const i of state.ahead) if (state.turn[i] === 1) return 0
  const left = state.gathered ? state.sentAt + gatherMs - state.ms : gatherMs
  state.gathered = true
  return left
}

/**
 * After a commit: the site is settled, or has been idle for long enough, or rests until the next.
 */
const afterCommit = (state: SchedulingState, freeCores: number): void => {
  const over = state.stopping !== 'no' || state.frontier.open === 0
  const pending =
    state.ends.size > 0 || state.starts.size > 0 || state.changes.size > 0 || state.entry.takenBack.length > 0
  const idle = state.submitted.size === 0 && state.unrecorded.size === 0
  if (idle && over && !pending) {
    leave(state, 'settled')
    return
  }
  // In a pause nothing starts: others get the slot until its end.
  const waits = !state.paused && (state.queue.length > 0 || state.deferred.length > 0)
  // A drained holder leaves a task ahead whose turn has come to the next holder, without delay.
  if (!idle || waits || pending || state.ahead.size > 0 || state.draining) state.idleSince = state.at
  else if ((state.at - state.idleSince) * 1_000 > idleMs) {
    leave(state, 'idle')
    return
  }
  if (startable(state, freeCores) || state.entry.takenBack.length > 0) return
  // In a pause the empty step brings its end.
  const usual = state.paused || !waits ? tickMs : coreRetryIsDue(state) ? coreRetryMs : laneRetryMs
  state.effects.push({
    type: 'rest',
    ms: Math.min(usual, untilNextAttempt(state)),
    request: coreRequestOf(state),
  })
}

/** Milliseconds until the time of the next waiting attempt; at least 1. */
const untilNextAttempt = (state: SchedulingState): number => {
  let next = Infinity
  for (const i of state.deferred) {
    const { not_before } = taskAt(state, i)
    if (not_before !== null && not_before > state.at) next = Math.min(next, not_before)
  }
  return Math.max(1, Math.ceil((next - state.at) * 1_000))
}

/** The request of the next task in order; undefined: none waits for cores. */
const coreRequestOf = (state: SchedulingState): CoreRequest | undefined => {
  const { hostCores } = state.facts
  const i = state.coresShort
    ? state.shortOf
    : (state.queue[0] ?? state.deferred.find((k) => state.waits.get(k)?.kind === 'cores'))
  if (hostCores === undefined || i === undefined || state.paused || state.stopping !== 'no' || state.draining)
    return undefined
  const command = state.commands[i]
  return {
    need: command === undefined ? 1 : coresOf(command, hostCores),
    retry: taskAt(state, i).attempt > 1,
  }
}

const commandsRead = (state: SchedulingState, commands: ReadonlyMap<number, TaskCommand>): void => {
  for (const [i, command] of commands) {
    if (state.commands[i] === undefined) state.commandsKnown += 1
    state.commands[i] = command
  }
}

/** A transfer is on record once; it is reported again after trouble on the way to the driver. */
const transferHeard = (state: SchedulingState, i: number, transfer: TaskTransfer): void => {
  const known = state.brought.get(i) ?? new Map<string, TaskTransfer>()
  if (known.has(transfer.id)) return
  state.brought.set(i, known.set(transfer.id, transfer))
  state.entry.transfers.push(transfer)
}

const foreignEnds = (state: SchedulingState, ends: readonly ForeignEnd[]): void => {
  state.foreignRead = true
  append(state.elsewhere, state.frontier.takeElsewhere())
  for (const { sequence, position: i, status, ...end } of ends) {
    state.foreignSeen = Math.max(state.foreignSeen, sequence)
    if (state.mine[i] === true || (state.frontier.states[i] as number) >= completed) continue
    // The row that was loaded may be of an earlier attempt, whose files are gone.
    Object.assign(taskAt(state, i), end)
    opened(state, status === 'completed' ? state.frontier.complete(i) : state.frontier.kill(i))
  }
  // The site of such an end wakes the others, but it may not know the ends here by then.
  const feeds = (i: number): boolean => state.frontier.predecessorsOf(i).some((p) => state.mine[p] === true)
  append(state.elsewhere, state.frontier.takeElsewhere().filter(feeds))
}
