import { append } from '../lists.ts'
import { aheadAnswered, chooseAhead, startAhead, takeBack, unreadHeirs } from './book-ahead.ts'
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
  type Book,
  type TaskCommand,
  type Step,
} from './book-state.ts'
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
export const unread = (book: Book, positions: readonly number[]): number[] => {
  const wanted = new Set(positions.filter((i) => book.commands[i] === undefined))
  const [first] = wanted
  if (first === undefined) return []
  const most = book.commandsKnown === 0 ? firstRead : nextRead
  for (let i = first, more = 0; i < book.tasks.length && more < most; i++) {
    if (
      book.mine[i] !== true ||
      book.commands[i] !== undefined ||
      (book.frontier.states[i] as number) >= completed
    )
      continue
    wanted.add(i)
    more += 1
  }
  return [...wanted]
}

const isDue = (book: Book, i: number): boolean =>
  (book.retryAt[i] as number) <= book.at && (taskAt(book, i).not_before ?? 0) <= book.at

/** Puts tasks whose wait for a time or a lane is over before the others. */
export const bringDue = (book: Book): void => {
  if (book.deferred.length === 0) return
  const due = book.deferred.filter((i) => isDue(book, i))
  if (due.length === 0) return
  book.queue = [...due, ...book.queue]
  book.deferred = book.deferred.filter((i) => !isDue(book, i))
}

const roomOf = (cores: readonly number[] | undefined): number =>
  Math.min(intentsPerCommit, cores?.length ?? intentsPerCommit)

/** Positions whose commands must be read before the next step can be made; none: it can. */
export const unreadForStep = (book: Book, cores: readonly number[] | undefined): number[] => {
  if (book.stopping !== 'no' || book.commandsKnown === book.tasks.length) return []
  const next = book.queue.slice(0, roomOf(cores)).filter((i) => isWaiting(book, i))
  return unread(book, [...next, ...unreadHeirs(book, next)])
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
const showBehind = (book: Book, shortOfCores: boolean): void => {
  const seen = Math.min(book.queue.length, intentsPerCommit)
  for (let k = 0; k < seen; k++) {
    const i = book.queue[k] as number
    if (!isWaiting(book, i)) continue
    if (shortOfCores) {
      showShortOfCores(book, i)
      continue
    }
    const task = taskAt(book, i)
    if (task.status !== 'blocked') continue
    task.status = 'ready'
    change(book, { id: task.id, atSite: false, status: 'ready', readyAt: readyAt(book, i) })
  }
}

const showShortOfCores = (book: Book, i: number): void => {
  const wait = book.waits.get(i)
  if (wait?.kind === 'lane' && book.at - wait.foundAt < laneFoundSeconds) return
  showWait(book, i, 'cores', `waiting for a free core of host ${book.facts.hostId}`)
}

/**
 * Tasks that should start; their intents are in the present step. `cores`: free ones of the host,
 * in the order in which they are taken.
 */
const choose = (book: Book, cores: readonly number[] | undefined): number[] => {
  const chosen: number[] = []
  if (book.stopping !== 'no') return chosen
  book.coresShort = false
  const first = book.queue.splice(0, roomOf(cores))
  showBehind(book, !book.paused && cores !== undefined && cores.length < intentsPerCommit)
  const free = cores === undefined ? [] : [...cores]
  const taken: number[] = []
  for (const i of first) {
    if (!isWaiting(book, i)) continue
    let held: readonly number[] = []
    if (cores !== undefined) {
      held = pickCores(book, i, free)
      if (held.length === 0) {
        if (!book.coresShort) book.shortOf = i
        book.coresShort = true
        showShortOfCores(book, i)
        book.deferred.push(i)
        continue
      }
      append(taken, held)
      book.heldCores.set(i, held)
    }
    offer(book, i, held)
    chosen.push(i)
  }
  if (taken.length > 0) book.effects.push({ type: 'takeCores', cores: taken })
  return chosen
}

/** Takes a task's cores out of `free`; none where they are too few. */
const pickCores = (book: Book, i: number, free: number[]): readonly number[] => {
  const need = coresOf(book.commands[i] as TaskCommand, book.facts.hostCores ?? 1)
  if (need > free.length) return []
  const old = book.oldCores.get(i)
  if (old === undefined || !old.every((core) => free.includes(core))) return free.splice(0, need)
  for (const core of old) free.splice(free.indexOf(core), 1)
  return old
}

/** Lanes by their keys over all runs. */
const leasedLanes = (book: Book, task: LoadedTask): TaskIntent['lanes'] => {
  const { machine } = book.facts
  const lanes = lanesOf(task)
  return machine === undefined
    ? lanes
    : lanes.map(([resource, core, slot]) => [`${resource}@${machine}`, core, slot] as const)
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
    lanes: book.schedulesItself[i] === true ? [] : leasedLanes(book, task),
    ahead: false,
  }
  for (const core of cores) intent.lanes.push([`@host/${host}`, `core-${String(core)}`, ''])
  book.entry.intents.push(intent)
  book.frontier.take(i)
  book.stage[i] = stages.offered
  task.started_at = book.at
  task.ready_at = intent.readyAt
}

/**
 * The task that has the lanes of a task after this step: heirs that end in the same step pass them
 * on at once.
 */
const heirAfter = (book: Book, i: number): string | null => {
  let heir = book.heirTo[i] as number
  while (heir >= 0 && book.ends.has(heir)) heir = book.heirTo[heir] as number
  return heir < 0 ? null : taskAt(book, heir).id
}

/**
 * The step for the next commit: everything since the last one, and the tasks that should start.
 * `cores` as in `choose`.
 */
export const makeStep = (book: Book, cores: readonly number[] | undefined): Step => {
  // First: this step may choose the next attempt of a failed task, with heirs of its own.
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
  const { waited } = book
  book.waited = []
  return { entry, positions: offered.length === 0 ? chosen : [...chosen, ...offered], waited }
}

/** The step is committed: its acquired tasks start, the others wait for their lanes. */
export const commitAnswered = (
  book: Book,
  { acquired, holders }: Pick<CommitResult, 'acquired' | 'holders'>,
): void => {
  if (book.phase !== 'committing') throw new Error('the answer of a commit came without a commit')
  book.phase = 'resting'
  if (book.endsUnderWay) book.effects.push({ type: 'wakeOthers' })
  const has = new Set(acquired)
  const go: number[] = []
  const { coreRefusals } = book
  for (const i of book.chosen) {
    const task = taskAt(book, i)
    if (!has.has(task.id)) {
      refuse(book, i, holders?.[task.id])
      continue
    }
    task.status = 'preparing'
    // Set once the lanes are held, so that no recorded start is before the end of the task that had
    // the lane.
    task.started_at = book.at
    book.stage[i] = stages.flying
    book.flying.add(i)
    endWait(book, i)
    book.oldCores.delete(i)
    go.push(i)
  }
  if (go.length > 0) book.effects.push({ type: 'start', positions: go })
  if (book.coreRefusals === coreRefusals) book.coreRefusals = 0
  book.refused = go.length < book.chosen.length
  book.chosen = []
  aheadAnswered(book, has)
}

/** The last requested core belonged to another worker, and its next try is due. */
export const coreRetryIsDue = (book: Book): boolean =>
  book.coreRefusals > 0 && book.coreRefusals <= coreRetries

const refuse = (book: Book, i: number, by: string | undefined): void => {
  const task = taskAt(book, i)
  if (by === undefined && book.heldCores.has(i)) book.oldCores.set(i, book.heldCores.get(i) ?? [])
  freeCores(book, i)
  book.frontier.putBack(i)
  book.stage[i] = stages.none
  task.started_at = null
  book.deferred.push(i)
  book.retryAt[i] = book.at + laneRetryMs / 1_000
  if (by === '') {
    book.coreRefusals += 1
    if (coreRetryIsDue(book)) book.retryAt[i] = book.at + coreRetryMs / 1_000
    showWait(book, i, 'cores', `waiting for a free core of host ${book.facts.hostId}`)
  } else if (by !== undefined) showWait(book, i, 'lane', `its lane is held by ${by}`)
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
export const flagsSeen = (book: Book, flags: Flags): void => {
  if (flags.cancelled || (flags.runStatus !== 'running' && book.stopping === 'no'))
    book.stopping = 'cancelled'
  if (flags.failed > 0 && book.facts.onFailure === 'stop' && book.stopping === 'no') book.stopping = 'failed'
  if (book.stopping === 'cancelled' && !book.stopped) {
    book.stopped = true
    book.effects.push({ type: 'stopAll' })
  }
  book.paused = flags.paused
  book.sentAt = flags.sentAt
  book.leaseUntil = flags.sentAt + startLeaseMs
  book.gathered = false
  // A task without its lanes has none to pass on.
  if (book.stopping !== 'no' || book.paused || book.refused) takeBack(book)
  else if (book.ahead.size > 0) startAhead(book)
}
