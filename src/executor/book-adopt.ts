import { recordInOrder } from './book-ends.ts'
import { isInFlight, isWaiting, setHeir, stages, startLeaseMs, taskAt, type Book } from './book-state.ts'
import { unread } from './book-choose.ts'
import type { TaskTransfer } from './journal.ts'
import { dataTransferId } from './names.ts'

/**
 * A new holder takes over the commits of an earlier one. Its intents go on; intents ahead go on
 * where their task was started, and are taken back where it was not.
 */
export const begin = (book: Book): void => {
  const unsure = ownTasks(book, (i) => isWaiting(book, i) && taskAt(book, i).ahead)
  if (unsure.length === 0) readHolds(book)
  // The other holder may still start them until its lease is over; twice the lease, because it
  // counts from another moment.
  else book.effects.push({ type: 'findAhead', positions: unsure, afterMs: 2 * startLeaseMs })
}

/** `started`: the start of each task, by position; undefined: it was not started. */
export const aheadFound = (book: Book, started: ReadonlyMap<number, number | undefined>): void => {
  for (const [i, startedAt] of started) {
    const task = taskAt(book, i)
    if (startedAt === undefined) {
      book.entry.takenBack.push(task.id)
      continue
    }
    book.frontier.take(i)
    book.stage[i] = stages.unrecorded
    task.started_at = startedAt
    task.ready_at ??= startedAt
    book.unrecorded.set(i, { startedAt })
  }
  // They get their lanes with the ends of the tasks before them.
  for (const before of ownTasks(book, (i) => isInFlight(book, i))) {
    const heir = book.frontier.followerOf(before)
    if (heir !== undefined && book.unrecorded.has(heir)) setHeir(book, before, heir)
  }
  recordInOrder(book)
  readHolds(book)
}

const readHolds = (book: Book): void => {
  const positions = ownTasks(book, (i) => isInFlight(book, i))
  if (positions.length === 0) {
    book.phase = 'resting'
    return
  }
  book.effects.push(
    { type: 'readCommands', positions: unread(book, positions) },
    { type: 'readHolds', positions },
  )
}

/** What attempts under way hold: cores of the host by position, and the transfers for them. */
export const holdsRead = (
  book: Book,
  cores: ReadonlyMap<number, readonly number[]>,
  transfers: readonly TaskTransfer[],
): void => {
  const positions = ownTasks(book, (i) => isInFlight(book, i))
  const consumers = new Map(transferIds(book, positions).map(({ id, i }) => [id, i]))
  for (const transfer of transfers) {
    const i = consumers.get(transfer.id)
    if (i === undefined) continue
    const known = book.brought.get(i) ?? new Map<string, TaskTransfer>()
    book.brought.set(i, known.set(transfer.id, transfer))
  }
  for (const [i, held] of cores) book.heldCores.set(i, held)
  for (const i of positions) {
    if (book.stage[i] === stages.none) book.stage[i] = stages.flying
    book.flying.add(i)
  }
  book.phase = 'resting'
  book.effects.push({ type: 'adopt', positions })
}

/** Ids of the possible transfers for the attempts of these tasks. */
export const transferIds = (book: Book, positions: readonly number[]): { id: string; i: number }[] =>
  positions.flatMap((i) =>
    Array.from(book.frontier.predecessorsOf(i), (p) => {
      const { activity_id, attempt } = taskAt(book, i)
      return { id: dataTransferId(book.facts.runId, taskAt(book, p).activity_id, activity_id, attempt), i }
    }),
  )

const ownTasks = (book: Book, holds: (i: number) => boolean): number[] => {
  const found: number[] = []
  for (let i = 0; i < book.tasks.length; i++) if (book.mine[i] === true && holds(i)) found.push(i)
  return found
}
