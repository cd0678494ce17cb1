import { aheadFound, begin, holdsRead } from './book-adopt.ts'
import { opened } from './book-ahead.ts'
import { bringDue, commitAnswered, flagsSeen, laneRetryMs, makeStep, unreadForStep, type Flags } from './book-choose.ts'
import { attemptEnded, attemptSeen } from './book-ends.ts'
import { makeBook, type Book, type Command, type Effect, type Moment, type Step } from './book-state.ts'
import type { Copied } from './attempt.ts'
import type { Outcome, Sight } from './flight.ts'
import { completed } from './frontier.ts'
import type { CommitResult, ForeignEnd, TaskTransfer } from './journal.ts'

/**
 * The book of one site of a run: which tasks may start, which are under way, what is to be committed next. It decides
 * and does nothing: time, free cores and what has happened come in events, what is to be done goes out as effects.
 *
 * The order of events: `begin`, the answers to its questions, then ticks. A tick answers with a question, with a rest,
 * or with a step; a step is answered by `commitAnswered` and `flagsSeen` before the next tick. `attemptEnded`,
 * `attemptSeen`, `driverSilent`, `transferHeard` and `drain` may come between any two events.
 */
export const openBook = makeBook

/** Ends and starts of this long go into one commit while nothing waits for it. Milliseconds, as the others. */
const gatherMs = 60
/** Flags are looked at, the lease is renewed and predecessors elsewhere are looked for this often. */
const tickMs = 400
/** The worker's slot is left to others after this long without anything to do. */
const idleMs = 2_000

/** What happens, without its moment. */
export type Happening =
  | { type: 'begin' }
  /** When tasks that were intended ahead were started, by position, in seconds; undefined: they were not. */
  | { type: 'aheadFound'; started: ReadonlyMap<number, number | undefined> }
  | { type: 'commandsRead'; commands: ReadonlyMap<number, Command> }
  /** Cores of the host by position, and transfers on record, of attempts that are taken over. */
  | { type: 'holdsRead'; cores: ReadonlyMap<number, readonly number[]>; transfers: readonly TaskTransfer[] }
  /** Free cores of the host in the order in which they are to be taken; undefined: only the site counts them. */
  | { type: 'tick'; cores: readonly number[] | undefined }
  | ({ type: 'commitAnswered' } & Pick<CommitResult, 'acquired' | 'holders'>)
  | ({ type: 'flagsSeen'; freeCores: number } & Flags)
  /** `copied`: files of predecessors that were copied inside the site, where the driver tells of them. */
  | { type: 'attemptEnded'; position: number; outcome: KnownOutcome; copied: readonly Copied[] }
  /** The site did not say what became of the attempt, for as long as it is waited for. */
  | { type: 'driverSilent'; position: number; outcome: Silence }
  | { type: 'attemptSeen'; position: number; sight: Sight }
  | { type: 'transferHeard'; position: number; transfer: TaskTransfer }
  | { type: 'foreignEnds'; ends: readonly ForeignEnd[] }
  /** This worker is being drained: nothing starts, ends are still committed. */
  | { type: 'drain' }

export type BookEvent = Moment & Happening

export type Silence = Extract<Outcome, { kind: 'silent' | 'unstopped' }>
export type KnownOutcome = Exclude<Outcome, Silence>

/** What is to be committed and done. */
export interface Decision {
  commit: Step | undefined
  effects: readonly Effect[]
}

const nothing: readonly Effect[] = []

/** Takes an event into the book, in place, and says what follows from it. Equal books and events give equal decisions. */
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

/** The next step, unless something has to be known or waited for before it. */
const tick = (book: Book, cores: readonly number[] | undefined): Step | undefined => {
  if (book.phase !== 'resting') throw new Error(`a tick came while the book was ${book.phase}`)
  if (book.draining && book.ends.size === 0 && book.starts.size === 0) {
    leave(book, 'drained')
    return undefined
  }
  const before = beforeStep(book, cores)
  if (before !== undefined) {
    book.effects.push(before)
    return undefined
  }
  book.foreignRead = false
  return makeStep(book, cores)
}

/** What is to be waited for or read before the next step. */
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

/** Something can be started by the next step. */
const startable = (book: Book, freeCores: number): boolean =>
  book.stopping === 'no' && !book.paused && book.queue.length > 0 && !book.coresShort && freeCores > 0

/** Milliseconds for which ends are gathered: what follows by itself needs no commit at once, the next one takes more. */
const gatherFor = (book: Book, freeCores: number): number => {
  if (book.ahead.size === 0 || book.stopping !== 'no' || startable(book, freeCores)) return 0
  // It could start if its intent were committed, or the flags newer.
  for (const i of book.ahead) if (book.turn[i] === 1) return 0
  const left = book.gathered ? book.sentAt + gatherMs - book.ms : gatherMs
  book.gathered = true
  return left
}

/** After a commit: the site is settled, or has been idle for long enough, or rests until the next. */
const afterCommit = (book: Book, freeCores: number): void => {
  const over = book.stopping !== 'no' || book.frontier.open === 0
  const pending = book.ends.size > 0 || book.starts.size > 0 || book.changes.size > 0 || book.entry.takenBack.length > 0
  const idle = book.flying.size === 0 && book.unrecorded.size === 0
  if (idle && over && !pending) {
    leave(book, 'settled')
    return
  }
  const waits = book.queue.length > 0 || book.deferred.length > 0
  // What is ahead and has its turn is left by a drained holder to the next one, which must not be let wait.
  if (!idle || waits || pending || book.ahead.size > 0 || book.draining) book.idleSince = book.at
  else if ((book.at - book.idleSince) * 1_000 > idleMs) {
    leave(book, 'idle')
    return
  }
  if (startable(book, freeCores) || book.entry.takenBack.length > 0) return
  book.effects.push({ type: 'rest', ms: waits ? laneRetryMs : tickMs, forCores: book.queue.length > 0 || book.coresShort })
}

const commandsRead = (book: Book, commands: ReadonlyMap<number, Command>): void => {
  for (const [i, command] of commands) {
    if (book.commands[i] === undefined) book.commandsKnown += 1
    book.commands[i] = command
  }
}

/** What came from another site is on record once; it is told again after trouble on the way to the driver. */
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
