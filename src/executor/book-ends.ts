import {
  bookedEnd,
  copiedTransfer,
  endOf,
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
import { change, freeCores, isInFlight, nameAt, stages, taskAt, type Book } from './book-state.ts'
import type { Outcome, Sight } from './flight.ts'
import type { TaskEnd, TaskRetry, TaskTransfer } from './journal.ts'

/** More tasks are intended ahead where the last one took less than this. */
const briskSeconds = 1
/** Of an attempt whose command was never read: it was adopted and has ended for another reason than these. */
const noLimits = { timeoutSeconds: 0, memoryBytes: 0 }

/** An attempt has ended; one whose start waits to be recorded is booked after that. */
export const attemptEnded = (book: Book, i: number, outcome: Outcome, copied: readonly Copied[]): void => {
  book.flying.delete(i)
  const waits = book.unrecorded.get(i)
  if (waits === undefined) conclude(book, i, outcome, copied)
  else Object.assign(waits, { outcome, copied })
  recordInOrder(book)
}

/** What is to be shown of a task that goes on. */
export const attemptSeen = (book: Book, i: number, told: Sight): void => {
  const waits = book.unrecorded.get(i)
  if (waits !== undefined) {
    waits.sight = { ...waits.sight, ...told }
    return
  }
  const { reason, ...sight } = told
  change(book, { id: taskAt(book, i).id, atSite: true, ...sight, ...(reason === undefined ? {} : { reason: reason ?? '' }) })
}

/** Records the starts of adopted tasks, each after the ends of those before it in its lanes and of its predecessors. */
export const recordInOrder = (book: Book): void => {
  for (let again = book.unrecorded.size > 0; again;) {
    again = false
    for (const [i, { startedAt, sight, outcome, copied }] of book.unrecorded) {
      if (comesAfterFlying(book, i)) continue
      book.unrecorded.delete(i)
      book.stage[i] = stages.flying
      const { id, ready_at } = taskAt(book, i)
      book.starts.set(i, { id, name: nameAt(book, i), readyAt: ready_at ?? startedAt, startedAt, order: (book.order += 1) })
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
  // What the site may still hold, or come to hold, is to be ended there once it answers again.
  if (outcome.kind === 'silent' || outcome.kind === 'unstopped') book.entry.leftovers.push({ name: nameAt(book, i), words: outcome.words })
  const end = endAs(book, i, outcome)
  // What was lost while it was being ended is ended.
  const ended = end.failureClass === 'infrastructure' && book.stopping === 'cancelled'
  settle(book, i, ended ? { ...end, status: 'cancelled' } : end, copied)
}

const endAs = (book: Book, i: number, outcome: Outcome): AttemptEnd => {
  const task = taskAt(book, i)
  const { site, patience } = book.facts
  if (outcome.kind === 'collected') return endOf(task, outcome.collected, book.commands[i] ?? noLimits, book.at)
  if (outcome.kind === 'lost') return lost(task, outcome.cause, book.at)
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
  task.finished_at = end.finishedAt
  if (end.status === 'completed') complete(book, i, row, end)
  else if (end.status === 'cancelled' || book.stopping === 'cancelled') {
    record(book, i, row)
    takeBack(book)
    freeCores(book, i)
    opened(book, book.frontier.kill(i))
  } else fail(book, i, row, end)
}

/** The row of an end; a task that has begun since the last commit has its start in it. */
const endRow = (book: Book, i: number, end: AttemptEnd, copies: readonly Copied[]): TaskEnd => {
  const { facts } = book
  const task = taskAt(book, i)
  const copied =
    end.staged === undefined || end.staged.length === 0
      ? []
      : copies.map((copy) => copiedTransfer(facts.runId, facts.site, task, end, copy))
  book.entry.transfers.push(...copied)
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

const complete = (book: Book, i: number, row: TaskEnd, end: AttemptEnd): void => {
  const { runId, contentVersionId, hostId } = book.facts
  record(book, i, row)
  const expected = book.commands[i]?.expectedOutputs ?? []
  book.entry.outputs.push(...outputsOf(runId, contentVersionId, taskAt(book, i), end.manifest, hostId, expected))
  book.completed += 1
  book.brisk = end.finishedAt - (end.startedAt ?? 0) < briskSeconds
  handOver(book, i)
  opened(book, book.frontier.complete(i))
}

const fail = (book: Book, i: number, row: TaskEnd, end: AttemptEnd): void => {
  const { facts } = book
  // Its lanes may go to another run before its next attempt: what waits behind it holds none meanwhile.
  takeBack(book)
  freeCores(book, i)
  const task = taskAt(book, i)
  const next = book.stopping === 'no' ? nextAttempt(facts.runId, task, end, book.commands[i], book.at, facts.patience) : undefined
  row.final = next === undefined
  record(book, i, row)
  if (next !== undefined) {
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
  task.queued_at = null
  task.started_at = null
  task.finished_at = null
  book.readyAt[i] = next.readyAt
  book.frontier.putBack(i)
  book.deferred.push(i)
}
