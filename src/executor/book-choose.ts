import { aheadAnswered, chooseAhead, startAhead, takeBack, unreadHeirs } from './book-ahead.ts'
import {
  change,
  coresOf,
  dropHeir,
  emptyEntry,
  freeCores,
  isWaiting,
  lanesOf,
  nameAt,
  readyAt,
  stages,
  startLeaseMs,
  taskAt,
  type Book,
  type Command,
  type Step,
} from './book-state.ts'
import { completed } from './frontier.ts'
import type { CommitResult, TaskIntent } from './journal.ts'

/** Tasks committed as intents in one step; more only make the step slow (500 take about 25 ms). */
const intentsPerCommit = 500
/** Lanes held by another run, or cores by another worker, are asked for again after this long. */
export const laneRetryMs = 150
/** Commands read at once: the first tasks start soon, then one read serves a thousand tasks instead of one hop. */
const firstRead = 100
const nextRead = 1_000

/** Those of `positions` without a command, and tasks just behind the first of them, which are about to be asked for as well. */
export const unread = (book: Book, positions: readonly number[]): number[] => {
  const wanted = new Set(positions.filter((i) => book.commands[i] === undefined))
  const [first] = wanted
  if (first === undefined) return []
  const most = book.commandsKnown === 0 ? firstRead : nextRead
  for (let i = first, more = 0; i < book.tasks.length && more < most; i++) {
    if (book.mine[i] !== true || book.commands[i] !== undefined || (book.frontier.states[i] as number) >= completed) continue
    wanted.add(i)
    more += 1
  }
  return [...wanted]
}

const isDue = (book: Book, i: number): boolean => (book.retryAt[i] as number) <= book.at && (taskAt(book, i).not_before ?? 0) <= book.at

/** What waited for a time or a lane, and need not any more, is asked for before the others. */
export const bringDue = (book: Book): void => {
  if (book.deferred.length === 0) return
  const due = book.deferred.filter((i) => isDue(book, i))
  if (due.length === 0) return
  book.queue.unshift(...due)
  book.deferred = book.deferred.filter((i) => !isDue(book, i))
}

const roomOf = (cores: readonly number[] | undefined): number => Math.min(intentsPerCommit, cores?.length ?? intentsPerCommit)

/** Positions whose commands must be read before the next step can be made; none: it can. */
export const unreadForStep = (book: Book, cores: readonly number[] | undefined): number[] => {
  if (book.stopping !== 'no' || book.commandsKnown === book.tasks.length) return []
  const next = book.queue.slice(0, roomOf(cores)).filter((i) => isWaiting(book, i))
  return unread(book, [...next, ...unreadHeirs(book, next)])
}

/** What stays behind is shown as ready once, so that a poller can tell waiting for a core from waiting for data. */
const showReady = (book: Book): void => {
  const seen = Math.min(book.queue.length, intentsPerCommit)
  for (let k = 0; k < seen; k++) {
    const i = book.queue[k] as number
    const task = taskAt(book, i)
    if (task.status !== 'blocked' || !isWaiting(book, i)) continue
    task.status = 'ready'
    change(book, { id: task.id, atSite: false, status: 'ready', readyAt: readyAt(book, i) })
  }
}

const showShortOfCores = (book: Book, i: number): void => {
  const task = taskAt(book, i)
  if (task.status !== 'queued')
    change(book, {
      id: task.id,
      atSite: false,
      status: 'queued',
      readyAt: readyAt(book, i),
      queuedAt: book.at,
      reason: `waiting for a free core of host ${book.facts.hostId}`,
    })
  task.status = 'queued'
}

/** Tasks that are to start, their intents in the step that is being made. `cores`: free ones of the host, in the order in which they are taken. */
const choose = (book: Book, cores: readonly number[] | undefined): number[] => {
  const chosen: number[] = []
  if (book.stopping !== 'no') return chosen
  book.coresShort = false
  const first = book.queue.splice(0, roomOf(cores))
  showReady(book)
  const free = cores === undefined ? [] : [...cores]
  const taken: number[] = []
  for (const i of first) {
    if (!isWaiting(book, i)) continue
    let held: readonly number[] = []
    if (cores !== undefined) {
      held = pickCores(book, i, free)
      if (held.length === 0) {
        book.coresShort = true
        showShortOfCores(book, i)
        book.deferred.push(i)
        continue
      }
      taken.push(...held)
      book.heldCores.set(i, held)
    }
    offer(book, i, held)
    chosen.push(i)
  }
  if (taken.length > 0) book.effects.push({ type: 'takeCores', cores: taken })
  return chosen
}

/** Takes the cores that a task needs out of `free`; none where they do not suffice. */
const pickCores = (book: Book, i: number, free: number[]): readonly number[] => {
  const need = coresOf(book.commands[i] as Command, book.facts.hostCores ?? 1)
  if (need > free.length) return []
  const old = book.oldCores.get(i)
  if (old === undefined || !old.every((core) => free.includes(core))) return free.splice(0, need)
  for (const core of old) free.splice(free.indexOf(core), 1)
  return old
}

const offer = (book: Book, i: number, cores: readonly number[]): void => {
  const task = taskAt(book, i)
  const host = book.facts.hostId
  const intent: TaskIntent = {
    id: task.id,
    name: nameAt(book, i),
    directory: null,
    host,
    readyAt: readyAt(book, i),
    startedAt: book.at,
    lanes: book.schedulesItself[i] === true ? [] : lanesOf(task),
    ahead: false,
  }
  for (const core of cores) intent.lanes.push([`@host/${host}`, `core-${String(core)}`, ''])
  book.entry.intents.push(intent)
  book.frontier.take(i)
  book.stage[i] = stages.offered
  task.started_at = book.at
  task.ready_at = intent.readyAt
}

/** Who has the lanes of a task after this step: heirs that are over in it pass them on at once. */
const heirAfter = (book: Book, i: number): string | null => {
  let heir = book.heirTo[i] as number
  while (heir >= 0 && book.ends.has(heir)) heir = book.heirTo[heir] as number
  return heir < 0 ? null : taskAt(book, heir).id
}

/** The step that is to be committed now: everything since the last one, and what is to start. `cores` as in `choose`. */
export const makeStep = (book: Book, cores: readonly number[] | undefined): Step => {
  // First: the next attempt of a task that has failed may be chosen in this step, with heirs of its own.
  for (const [i, end] of book.ends) end.heir = heirAfter(book, i)
  for (const i of book.ends.keys()) dropHeir(book, i)
  const chosen = book.draining ? [] : choose(book, cores)
  const offered = book.draining ? [] : chooseAhead(book, chosen, intentsPerCommit)
  const { entry } = book
  entry.starts = [...book.starts.values()]
  entry.ends = [...book.ends.values()]
  entry.states = [...book.changes.values()]
  book.entry = emptyEntry()
  book.starts = new Map()
  book.ends = new Map()
  book.changes = new Map()
  book.chosen = chosen
  book.offered = offered
  book.endsUnderWay = entry.ends.length > 0
  book.phase = 'committing'
  return { entry, positions: offered.length === 0 ? chosen : [...chosen, ...offered] }
}

/** The step is committed: what it acquired starts, what it did not waits for its lane. */
export const commitAnswered = (book: Book, { acquired, holders }: Pick<CommitResult, 'acquired' | 'holders'>): void => {
  if (book.phase !== 'committing') throw new Error('the answer of a commit came without a commit')
  book.phase = 'resting'
  if (book.endsUnderWay) book.effects.push({ type: 'wakeOthers' })
  const has = new Set(acquired)
  const go: number[] = []
  for (const i of book.chosen) {
    const task = taskAt(book, i)
    if (!has.has(task.id)) {
      refuse(book, i, holders?.[task.id])
      continue
    }
    task.status = 'preparing'
    // Once the lanes are held, so that no task begins on the record before the one that had its lane has ended.
    task.started_at = book.at
    book.stage[i] = stages.flying
    book.flying.add(i)
    book.refusedBy.delete(i)
    book.oldCores.delete(i)
    go.push(i)
  }
  if (go.length > 0) book.effects.push({ type: 'start', positions: go })
  book.refused = go.length < book.chosen.length
  book.chosen = []
  aheadAnswered(book, has)
}

const refuse = (book: Book, i: number, by: string | undefined): void => {
  const task = taskAt(book, i)
  if (by === undefined && book.heldCores.has(i)) book.oldCores.set(i, book.heldCores.get(i) ?? [])
  freeCores(book, i)
  book.frontier.putBack(i)
  book.stage[i] = stages.none
  task.started_at = null
  book.deferred.push(i)
  book.retryAt[i] = book.at + laneRetryMs / 1_000
  if (by === undefined || book.refusedBy.get(i) === by) return
  book.refusedBy.set(i, by)
  task.status = 'queued'
  change(book, {
    id: task.id,
    atSite: false,
    status: 'queued',
    readyAt: readyAt(book, i),
    queuedAt: book.at,
    reason: `its lane is held by ${by}`,
  })
}

/** Flags of the run's row as the last commit saw them. `sentAt`: `ms` at which that was sent. */
export interface Flags {
  sentAt: number
  cancelled: boolean
  paused: boolean
  /** Activities of the run that have failed for good, at any site. */
  failed: number
  runStatus: string
}

/** From now on these flags count: what is ahead starts, or is taken back. */
export const flagsSeen = (book: Book, flags: Flags): void => {
  if (flags.cancelled || (flags.runStatus !== 'running' && book.stopping === 'no')) book.stopping = 'cancelled'
  if (flags.failed > 0 && book.facts.onFailure === 'stop' && book.stopping === 'no') book.stopping = 'failed'
  if (book.stopping === 'cancelled' && !book.stopped) {
    book.stopped = true
    book.effects.push({ type: 'stopAll' })
  }
  book.paused = flags.paused
  book.sentAt = flags.sentAt
  book.leaseUntil = flags.sentAt + startLeaseMs
  book.gathered = false
  // Who did not get its lanes has none to pass on.
  if (book.stopping !== 'no' || book.paused || book.refused) takeBack(book)
  else if (book.ahead.size > 0) startAhead(book)
}
