import { aheadFound, begin, holdsRead } from './book-adopt.ts'
import { opened } from './book-ahead.ts'
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
} from './book-choose.ts'
import { attemptEnded, attemptSeen, programEnded } from './book-ends.ts'
import {
  coresOf,
  makeBook,
  taskAt,
  type Book,
  type TaskCommand,
  type Effect,
  type Moment,
  type Step,
} from './book-state.ts'
import type { Copied } from './attempt.ts'
import type { CoreWish } from './host-cores.ts'
import type { Outcome, Sight } from './flight.ts'
import { completed } from './frontier.ts'
import type { CommitResult, ForeignEnd, TaskTransfer } from './journal.ts'

/**
 * The book of one site of a run: the tasks that may start, the tasks under way, the next commit. It
 * decides and does nothing: time, free cores and all results come in as events, and actions go out
 * as effects.
 *
 * The order of events: `begin`, the answers to its questions, then ticks. A tick returns a
 * question, a rest, or a step; a step is answered by `commitAnswered` and `flagsSeen` before the
 * next tick. `attemptEnded`, `attemptSeen`, `programEnded`, `driverSilent`, `transferHeard` and `drain` may come
 * between any two events.
 */
export const openBook = makeBook

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
export type Happening =
  | { type: 'begin' }
  /**
   * The starts of tasks that were intended ahead, by position, in seconds; undefined: not started.
   */
  | { type: 'aheadFound'; started: ReadonlyMap<number, number | undefined> }
  | { type: 'commandsRead'; commands: ReadonlyMap<number, TaskCommand> }
  /** Cores of the host by position, and transfers on record, for adopted attempts. */
  | { type: 'holdsRead'; cores: ReadonlyMap<number, readonly number[]>; transfers: readonly TaskTransfer[] }
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
  | { type: 'attemptEnded'; position: number; outcome: KnownOutcome; copied: readonly Copied[] }
  /** The site did not report the attempt's end within the patience. */
  | { type: 'driverSilent'; position: number; outcome: SilentOutcome }
  | { type: 'attemptSeen'; position: number; sight: Sight }
  /** The program has ended, and its files are still being read; `attemptEnded` follows. */
  | { type: 'programEnded'; position: number }
  | { type: 'transferHeard'; position: number; transfer: TaskTransfer }
  | { type: 'foreignEnds'; ends: readonly ForeignEnd[] }
  /** This worker is being drained: no task starts, ends are still committed. */
  | { type: 'drain' }

export type BookEvent = Moment & Happening

export type SilentOutcome = Extract<Outcome, { kind: 'silent' | 'unstopped' }>
export type KnownOutcome = Exclude<Outcome, SilentOutcome>

/** The next commit and the actions. */
export interface Decision {
  commit: Step | undefined
  effects: readonly Effect[]
}

const nothing: readonly Effect[] = []

/**
 * Takes an event into the book, in place, and returns its consequences. Equal books and events give
 * equal decisions.
 */
export const decide = (book: Book, event: BookEvent): Decision => {
  book.at = event.at
  book.ms = event.ms
  book.contended = event.contended
  let commit: Step | undefined
  if (event.type === 'tick') commit = tick(book, event.cores)
  else note(book, event)
  const { effects } = book
  if (effects.length === 0) return { commit, effects: nothing }
  book.effects = []
  return { commit, effects }
}

const note = (book: Book, event: Exclude<BookEvent, { type: 'tick' }>): void => {
  switch (event.type) {
    case 'attemptEnded':
      attemptEnded(book, event.position, event.outcome, event.copied)
      break
    case 'driverSilent':
      attemptEnded(book, event.position, event.outcome, [])
      break
    case 'attemptSeen':
      attemptSeen(book, event.position, event.sight)
      break
    case 'programEnded':
      programEnded(book, event.position)
      break
    case 'transferHeard':
      transferHeard(book, event.position, event.transfer)
      break
    case 'commitAnswered':
      commitAnswered(book, event)
      break
    case 'flagsSeen':
      flagsSeen(book, event)
      afterCommit(book, event.freeCores)
      break
    case 'foreignEnds':
      foreignEnds(book, event.ends)
      break
    case 'commandsRead':
      commandsRead(book, event.commands)
      break
    case 'drain':
      book.draining = true
      break
    case 'begin':
      begin(book)
      break
    case 'aheadFound':
      aheadFound(book, event.started)
      break
    case 'holdsRead':
      holdsRead(book, event.cores, event.transfers)
  }
}

/** The next step, unless the book needs an answer or a wait before it. */
const tick = (book: Book, cores: readonly number[] | undefined): Step | undefined => {
  if (book.phase !== 'resting') throw new Error(`a tick came while the book was ${book.phase}`)
  const open = book.facts.onlyEnds === true && book.flying.size + book.unrecorded.size > 0
  if (book.draining && !open && book.ends.size === 0 && book.starts.size === 0) {
    leave(book, 'drained')
    return undefined
  }
  const before = beforeStep(book, cores)
  if (before !== undefined) {
    book.effects.push(before)
    return undefined
  }
  book.foreignRead = false
  const step = makeStep(book, cores)
  const wish = wishOf(book)
  if (wish !== undefined) book.effects.push({ type: 'wish', wish })
  return step
}

/** The wait or the read before the next step. */
const beforeStep = (book: Book, cores: readonly number[] | undefined): Effect | undefined => {
  const ms = gatherFor(book, cores?.length ?? Infinity)
  if (ms > 0) return { type: 'gather', ms }
  if (book.foreign && !book.foreignRead) return { type: 'readForeignEnds' }
  if (book.draining || book.stopping !== 'no') return undefined
  bringDue(book)
  const positions = unreadForStep(book, cores)
  return positions.length === 0 ? undefined : { type: 'readCommands', positions }
}

const leave = (book: Book, why: 'settled' | 'idle' | 'drained'): void => {
  book.phase = 'left'
  book.effects.push({ type: 'leave', why })
}

/** The next step can start a task. */
const startable = (book: Book, freeCores: number): boolean =>
  book.stopping === 'no' && !book.paused && book.queue.length > 0 && !book.coresShort && freeCores > 0

/**
 * Milliseconds for which ends are gathered: tasks that follow by themselves need no commit at once,
 * and the next commit then holds more.
 */
const gatherFor = (book: Book, freeCores: number): number => {
  if (book.ahead.size === 0 || book.stopping !== 'no' || startable(book, freeCores)) return 0
  // It could start if its intent were committed, or the flags more recent.
  for (const i of book.ahead) if (book.turn[i] === 1) return 0
  const left = book.gathered ? book.sentAt + gatherMs - book.ms : gatherMs
  book.gathered = true
  return left
}

/**
 * After a commit: the site is settled, or has been idle for long enough, or rests until the next.
 */
const afterCommit = (book: Book, freeCores: number): void => {
  const over = book.stopping !== 'no' || book.frontier.open === 0
  const pending =
    book.ends.size > 0 || book.starts.size > 0 || book.changes.size > 0 || book.entry.takenBack.length > 0
  const idle = book.flying.size === 0 && book.unrecorded.size === 0
  if (idle && over && !pending) {
    leave(book, 'settled')
    return
  }
  const waits = book.queue.length > 0 || book.deferred.length > 0
  // A drained holder leaves a task ahead whose turn has come to the next holder, without delay.
  if (!idle || waits || pending || book.ahead.size > 0 || book.draining) book.idleSince = book.at
  else if ((book.at - book.idleSince) * 1_000 > idleMs) {
    leave(book, 'idle')
    return
  }
  if (startable(book, freeCores) || book.entry.takenBack.length > 0) return
  const usual = coreRetryIsDue(book) ? coreRetryMs : waits ? laneRetryMs : tickMs
  book.effects.push({ type: 'rest', ms: Math.min(usual, untilNextAttempt(book)), wish: wishOf(book) })
}

/** Milliseconds until the time of the next waiting attempt; at least 1. */
const untilNextAttempt = (book: Book): number => {
  let next = Infinity
  for (const i of book.deferred) {
    const { not_before } = taskAt(book, i)
    if (not_before !== null && not_before > book.at) next = Math.min(next, not_before)
  }
  return Math.max(1, Math.ceil((next - book.at) * 1_000))
}

/** The wish of the next task in order; undefined: none waits for cores. */
const wishOf = (book: Book): CoreWish | undefined => {
  const { hostCores } = book.facts
  const i = book.coresShort
    ? book.shortOf
    : (book.queue[0] ?? book.deferred.find((k) => book.waits.get(k)?.kind === 'cores'))
  if (hostCores === undefined || i === undefined || book.paused || book.stopping !== 'no' || book.draining)
    return undefined
  const command = book.commands[i]
  return { need: command === undefined ? 1 : coresOf(command, hostCores), retry: taskAt(book, i).attempt > 1 }
}

const commandsRead = (book: Book, commands: ReadonlyMap<number, TaskCommand>): void => {
  for (const [i, command] of commands) {
    if (book.commands[i] === undefined) book.commandsKnown += 1
    book.commands[i] = command
  }
}

/** A transfer is on record once; it is reported again after trouble on the way to the driver. */
const transferHeard = (book: Book, i: number, transfer: TaskTransfer): void => {
  const known = book.brought.get(i) ?? new Map<string, TaskTransfer>()
  if (known.has(transfer.id)) return
  book.brought.set(i, known.set(transfer.id, transfer))
  book.entry.transfers.push(transfer)
}

const foreignEnds = (book: Book, ends: readonly ForeignEnd[]): void => {
  book.foreignRead = true
  for (const { position: i, status, finished_at } of ends) {
    if (book.mine[i] === true || (book.frontier.states[i] as number) >= completed) continue
    const task = book.tasks[i]
    if (task !== undefined) task.finished_at = finished_at
    opened(book, status === 'completed' ? book.frontier.complete(i) : book.frontier.kill(i))
  }
}
