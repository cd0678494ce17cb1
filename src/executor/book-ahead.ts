import {
  coresOf,
  dropHeir,
  endWait,
  freeCores,
  isInFlight,
  isWaiting,
  nameAt,
  readyAt,
  setHeir,
  stages,
  taskAt,
  type Book,
} from './book-state.ts'
import { completed } from './frontier.ts'

/**
 * Intents ahead of their turn. Where tasks are short, a commit between two of them would take most
 * of the time. So the next tasks of a lane are intended while those before them run: `none` →
 * `aheadOffered` → `ahead` → `flying`. An intent that is taken back goes to `none`, by way of
 * `aheadRevoked` while its commit is under way.
 */

const isAhead = (book: Book, i: number): boolean =>
  book.stage[i] === stages.ahead ||
  book.stage[i] === stages.aheadOffered ||
  book.stage[i] === stages.aheadRevoked

/** Drops the task's intent; the task is queued if its turn has come. */
const forget = (book: Book, i: number): void => {
  book.ahead.delete(i)
  book.stage[i] = stages.none
  if ((book.heirFrom[i] as number) >= 0) dropHeir(book, book.heirFrom[i] as number)
  freeCores(book, i)
  if (book.turn[i] === 1 && isWaiting(book, i)) book.queue.push(i)
  book.turn[i] = 0
}

/** No task that is intended ahead will start on that intent. */
export const takeBack = (book: Book): void => {
  for (const i of book.ahead) {
    if (book.stage[i] === stages.aheadOffered) book.stage[i] = stages.aheadRevoked
    if (book.stage[i] !== stages.ahead) continue
    book.entry.takenBack.push(taskAt(book, i).id)
    forget(book, i)
  }
}

/**
 * Lanes and cores of a completed task go to its heir; where the heir is not to have them, they
 * become free.
 */
export const handOver = (book: Book, i: number): void => {
  const heir = book.heirTo[i] as number
  if (heir < 0 || !isAhead(book, heir) || book.contended) {
    takeBack(book)
    freeCores(book, i)
    return
  }
  const cores = book.heldCores.get(i)
  if (cores === undefined) return
  book.heldCores.delete(i)
  book.heldCores.set(heir, cores)
}

/**
 * Starts tasks that are committed ahead and whose turn has come, while the run's flags are recent
 * enough.
 */
export const startAhead = (book: Book): void => {
  if (book.stopping !== 'no' || book.paused || book.draining || book.ms > book.leaseUntil) return
  const positions: number[] = []
  for (const i of book.ahead) {
    if (book.turn[i] !== 1 || book.stage[i] !== stages.ahead || !isWaiting(book, i)) continue
    book.ahead.delete(i)
    book.turn[i] = 0
    book.stage[i] = stages.flying
    book.flying.add(i)
    book.frontier.take(i)
    endWait(book, i)
    const task = taskAt(book, i)
    task.status = 'preparing'
    task.ready_at = readyAt(book, i)
    task.started_at = book.at
    book.starts.set(i, {
      id: task.id,
      name: nameAt(book, i),
      readyAt: task.ready_at,
      startedAt: book.at,
      order: (book.order += 1),
    })
    positions.push(i)
  }
  if (positions.length > 0) book.effects.push({ type: 'start', positions })
}

/** These tasks may start: predecessors have completed and the lanes are theirs. */
export const opened = (book: Book, freed: readonly number[]): void => {
  for (const i of freed) {
    if (isAhead(book, i)) book.turn[i] = 1
    else book.queue.push(i)
  }
  if (book.ahead.size > 0) startAhead(book)
}

const mayBeAhead = (book: Book): boolean =>
  book.facts.aheadPerLane > 0 && book.brisk && book.stopping === 'no' && !book.paused && !book.contended

/** Heirs whose commands `chooseAhead` would need and does not have. */
export const unreadHeirs = (book: Book, chosen: readonly number[]): number[] => {
  if (!mayBeAhead(book)) return []
  const unread: number[] = []
  const look = (i: number): void => {
    const heir = book.frontier.heirOf(i)
    if (heir !== undefined && book.commands[heir] === undefined) unread.push(heir)
  }
  for (const i of book.flying) look(i)
  for (const i of chosen) look(i)
  return unread
}

/**
 * It needs nothing beyond the tasks under way here: no end of another site, no time, no more cores
 * than it inherits.
 */
const mayInherit = (book: Book, heir: number, root: number): boolean => {
  const { facts, frontier } = book
  const command = book.commands[heir]
  if (command === undefined || isAhead(book, heir) || (taskAt(book, heir).not_before ?? 0) > 0) return false
  for (const p of frontier.predecessorsOf(heir))
    if (
      frontier.states[p] !== completed &&
      !(isInFlight(book, p) && book.mine[p] === true) &&
      !isAhead(book, p)
    )
      return false
  return (
    facts.hostCores === undefined || book.heldCores.get(root)?.length === coresOf(command, facts.hostCores)
  )
}

/**
 * Intends the heirs of running tasks and of `chosen`, at most `most` of them; they go into the
 * present step.
 */
export const chooseAhead = (book: Book, chosen: readonly number[], most: number): readonly number[] => {
  const offered: number[] = []
  if (!mayBeAhead(book)) return offered
  const follow = (root: number): void => {
    if (!isInFlight(book, root)) return
    for (let last = root, depth = 0; depth < book.facts.aheadPerLane && offered.length < most; depth++) {
      let heir = book.heirTo[last] as number
      if (heir < 0) {
        heir = book.frontier.heirOf(last) ?? -1
        if (heir < 0 || !mayInherit(book, heir, root)) return
        setHeir(book, last, heir)
        book.stage[heir] = stages.aheadOffered
        book.ahead.add(heir)
        offered.push(heir)
        const { id } = taskAt(book, heir)
        const intent = {
          id,
          name: nameAt(book, heir),
          directory: null,
          host: book.facts.hostId,
          readyAt: 0,
          startedAt: 0,
        }
        book.entry.intents.push({ ...intent, lanes: [], ahead: true })
      }
      last = heir
    }
  }
  for (const i of book.flying) follow(i)
  for (const i of chosen) follow(i)
  return offered
}

/**
 * The commit under way is answered: its intents ahead are committed, or dropped. Intents that it
 * did not acquire are taken back too: where the answer to a first try was lost, and the run was
 * paused before the second, they are on record.
 */
export const aheadAnswered = (book: Book, acquired: ReadonlySet<string>): void => {
  for (const i of book.offered) {
    const { id } = taskAt(book, i)
    if (acquired.has(id) && book.stage[i] === stages.aheadOffered) {
      book.stage[i] = stages.ahead
      continue
    }
    book.entry.takenBack.push(id)
    forget(book, i)
  }
  book.offered = []
}
