import { append } from '../lists.ts'
import {
  bookedEnd,
  copiedTransfer,
  attemptEndOf,
  lost,
  nextAttempt,
  notStarted,
  outputsOf,
  silent,
  unstopped,
  type AttemptEnd,
  type Copied,
} from './attempt.ts'
import { handOver, opened, takeBack } from './book-ahead.ts'
import {
  change,
  endWait,
  freeCores,
  isInFlight,
  nameAt,
  showWait,
  stages,
  taskAt,
  type Book,
} from './book-state.ts'
import type { Outcome, Sight } from './flight.ts'
import type { TaskEnd, TaskRetry, TaskTransfer } from './journal.ts'

/** More tasks are intended ahead where the last one took less than this. */
const briskSeconds = 1
/**
 * For an attempt whose command was never read: it was adopted and has ended for another reason than
 * these.
 */
const noLimits = { timeoutSeconds: 0, memoryBytes: 0 }

/** An attempt has ended; while its start is not on record, the end is booked after it. */
export const attemptEnded = (book: Book, i: number, outcome: Outcome, copied: readonly Copied[]): void => {
  book.flying.delete(i)
  const waits = book.unrecorded.get(i)
  if (waits === undefined) conclude(book, i, outcome, copied)
  else Object.assign(waits, { outcome, copied })
  recordInOrder(book)
}

/** Others may have the cores of the host from the program's end on; its lanes are its own to its end. */
export const programEnded = (book: Book, i: number): void => {
  if (book.stage[i] !== stages.flying || !book.flying.has(i) || !book.heldCores.has(i)) return
  // Its heirs would get cores that it has no more.
  takeBack(book)
  freeCores(book, i)
  change(book, { id: taskAt(book, i).id, atSite: true, freesCores: true })
}

/** What to show of a task that goes on. */
export const attemptSeen = (book: Book, i: number, seen: Sight): void => {
  const waits = book.unrecorded.get(i)
  if (waits !== undefined) {
    waits.sight = { ...waits.sight, ...seen }
    return
  }
  const { reason, ...sight } = seen
  noteWait(book, i, seen)
  change(book, {
    id: taskAt(book, i).id,
    atSite: true,
    ...sight,
    ...(reason === undefined ? {} : { reason: reason ?? '' }),
  })
}

/**
 * The reason for which a task waits at its site; the row is written with the other observations of
 * it.
 */
const noteWait = (book: Book, i: number, { reason, waitsFor }: Sight): void => {
  const known = book.waits.get(i)
  if (reason === undefined || (known !== undefined && known.kind === waitsFor)) return
  endWait(book, i)
  if (reason !== null && waitsFor !== undefined)
    book.waits.set(i, { kind: waitsFor, reason, since: book.at, foundAt: book.at })
}

/**
 * Records the starts of adopted tasks, each after the ends of those before it in its lanes and of
 * its predecessors.
 */
export const recordInOrder = (book: Book): void => {
  for (let again = book.unrecorded.size > 0; again;) {
    again = false
    for (const [i, { startedAt, sight, outcome, copied }] of book.unrecorded) {
      if (comesAfterFlying(book, i)) continue
      book.unrecorded.delete(i)
      book.stage[i] = stages.flying
      const { id, ready_at } = taskAt(book, i)
      book.starts.set(i, {
        id,
        name: nameAt(book, i),
        readyAt: ready_at ?? startedAt,
        startedAt,
        order: (book.order += 1),
      })
      if (outcome !== undefined) {
        conclude(book, i, outcome, copied ?? [])
        again = true
      } else if (sight !== undefined) attemptSeen(book, i, sight)
    }
  }
}

const comesAfterFlying = (book: Book, i: number): boolean => {
  const before = book.heirFrom[i] as number
  if (before >= 0 && isInFlight(book, before)) return true
  for (const p of book.frontier.predecessorsOf(i)) if (isInFlight(book, p)) return true
  return false
}

const conclude = (book: Book, i: number, outcome: Outcome, copied: readonly Copied[]): void => {
  // The attempt that the site may hold, now or later, has to be ended there once the site answers
  // again.
  if (outcome.kind === 'silent' || outcome.kind === 'unstopped')
    book.entry.leftovers.push({ name: nameAt(book, i), words: outcome.words })
  const end = endAs(book, i, outcome)
  // An attempt that was lost while it was being ended counts as ended.
  const ended = end.failureClass === 'infrastructure' && book.stopping === 'cancelled'
  settle(book, i, ended ? { ...end, status: 'cancelled' } : end, copied)
}

const endAs = (book: Book, i: number, outcome: Outcome): AttemptEnd => {
  const task = taskAt(book, i)
  const { site, patience } = book.facts
  if (outcome.kind === 'collected')
    return attemptEndOf(task, outcome.collected, book.commands[i] ?? noLimits, book.at)
  if (outcome.kind === 'lost') return lost(task, outcome, book.at)
  if (outcome.kind === 'refused') return notStarted(task, outcome.error, book.at)
  if (outcome.kind === 'silent') return silent(task, site, patience.silentSeconds, outcome.words, book.at)
  return unstopped(task, site, outcome.words, book.at)
}

/** Books the end of an attempt: success, another attempt, or the end of the activity. */
const settle = (book: Book, i: number, end: AttemptEnd, copied: readonly Copied[]): void => {
  const task = taskAt(book, i)
  const row = endRow(book, i, end, copied)
  book.changes.delete(task.id)
  book.starts.delete(i)
  book.brought.delete(i)
  book.stage[i] = stages.none
  endWait(book, i)
  task.finished_at = end.finishedAt
  if (end.status === 'completed') complete(book, i, row, end)
  else if (end.status === 'cancelled' || book.stopping === 'cancelled') {
    record(book, i, row)
    takeBack(book)
    freeCores(book, i)
    opened(book, book.frontier.kill(i))
  } else fail(book, i, row, end)
}

/** The row of an end; it includes the start of a task that has begun since the last commit. */
const endRow = (book: Book, i: number, end: AttemptEnd, copies: readonly Copied[]): TaskEnd => {
  const { facts } = book
  const task = taskAt(book, i)
  const copied =
    end.staged === undefined || end.staged.length === 0
      ? []
      : copies.map((copy) => copiedTransfer(facts.runId, facts.site, task, end, copy))
  append(book.entry.transfers, copied)
  const brought: Iterable<TaskTransfer> = book.brought.get(i)?.values() ?? []
  const booked = bookedEnd(task, end, [...brought, ...copied], facts.prices.get(task.resource_id) ?? 0)
  const start = book.starts.get(i)
  return {
    ...booked,
    final: false,
    order: 0,
    heir: null,
    ...(start === undefined ? {} : { startOrder: start.order, name: start.name }),
  }
}

const record = (book: Book, i: number, row: TaskEnd): void => {
  row.order = book.order += 1
  book.ends.set(i, row)
}

/**
 * Where the files of an attempt are from its end on: at its site, or where copies of them are kept.
 */
const filesOf = (
  { manifest, place }: AttemptEnd,
  hostId: string,
): { manifest: AttemptEnd['manifest']; host: string } => {
  const { keptOn: host, keptAt: root } = place ?? {}
  return typeof host === 'string' && typeof root === 'string' && manifest !== null
    ? { manifest: { ...manifest, root }, host }
    : { manifest, host: hostId }
}

const complete = (book: Book, i: number, row: TaskEnd, end: AttemptEnd): void => {
  const { runId, contentVersionId, hostId } = book.facts
  record(book, i, row)
  const { manifest, host } = filesOf(end, hostId)
  const expected = book.commands[i]?.expectedOutputs ?? []
  append(book.entry.outputs, outputsOf(runId, contentVersionId, taskAt(book, i), manifest, host, expected))
  book.completed += 1
  book.brisk = end.finishedAt - (end.startedAt ?? 0) < briskSeconds
  handOver(book, i)
  opened(book, book.frontier.complete(i))
}

const fail = (book: Book, i: number, row: TaskEnd, end: AttemptEnd): void => {
  const { facts } = book
  // Another run may get its lanes before its next attempt: the tasks behind it hold none meanwhile.
  takeBack(book)
  freeCores(book, i)
  const task = taskAt(book, i)
  const next =
    book.stopping === 'no'
      ? nextAttempt(facts.runId, task, end, book.commands[i], book.at, facts.patience)
      : undefined
  row.final = next === undefined
  record(book, i, row)
  if (next !== undefined) {
    if (end.suspect === true) task.suspects += 1
    tryAgain(book, i, next)
    return
  }
  book.failed += 1
  if (facts.onFailure === 'stop' && book.stopping === 'no') book.stopping = 'failed'
  opened(book, book.frontier.kill(i))
}

const tryAgain = (book: Book, i: number, next: TaskRetry): void => {
  book.entry.retries.push(next)
  const task = taskAt(book, i)
  task.id = next.id
  task.attempt = next.attempt
  book.names[i] = undefined
  task.user_attempts = next.userAttempts
  task.walltime_extensions = next.walltimeExtensions
  task.status = 'ready'
  task.ready_at = next.readyAt
  task.not_before = next.notBefore
  task.silent_since = null
  task.host_id = null
  task.queued_at = null
  task.started_at = null
  task.finished_at = null
  book.readyAt[i] = next.readyAt
  if (next.notBefore > book.at)
    showWait(
      book,
      i,
      'retry',
      `waiting for its next attempt, ${String(Math.ceil(next.notBefore - book.at))} s after the last`,
    )
  book.frontier.putBack(i)
  book.deferred.push(i)
}
