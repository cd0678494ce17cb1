import {
  DriverError,
  driverErrorOf,
  type Collected,
  type Intent,
  type RuntimeDriver,
  type TaskState,
} from '../drivers/runtime/contract/driver.ts'
import { firstTexts } from '../lists.ts'
import { reasonText } from '../outside-text.ts'
import { LinkError } from '../shell/site-shell.ts'
import type { WaitKind } from './journal.ts'
import type { Silence } from './reports.ts'

/** The outcome of a task with a committed intent. */
export type Outcome =
  | { kind: 'collected'; collected: Collected }
  /** Accepted once, not alive, left no exit; `cause` is the site's reason. */
  | { kind: 'lost'; cause: string | undefined; suspect?: boolean | undefined }
  /** The site refused it, or lacked something for it (an image that does not exist). */
  | { kind: 'refused'; error: DriverError }
  /** The site was silent for longer than the patience; the task's fate is unknown. */
  | { kind: 'silent'; words: string }
  /** It had to be ended, and the site did not confirm the end in time. */
  | { kind: 'unstopped'; words: string }

/** What to show of a task that goes on; absent fields stay unchanged. */
export interface Observation {
  status?: 'queued' | 'preparing' | 'running'
  externalId?: string
  /** Null: the wait is over. */
  reason?: string | null
  /** Present with each reason. */
  waitsFor?: WaitKind
  /** Since when the site has not answered about it, if that is the reason. */
  silentSince?: number
  silentFor?: number
}

export interface AttemptParts {
  driver: RuntimeDriver
  /** The site's name, for reasons. */
  site: string
  /** Seconds since the epoch. */
  clock: () => number
  /** Seconds of a monotonic clock: what is due here stays so where the time of day is set back. */
  monotonic: () => number
  failpoint: (name: string) => void
  /**
   * A silent site is queried for this long, by `monotonic`: time in which no process of the service
   * ran does not count.
   */
  silentSeconds: number
  intentOf: (position: number) => Intent
  /**
   * Why nothing starts that has not begun; undefined: it may. In a pause it waits, after a failure
   * of the run it ends.
   */
  held: () => 'paused' | 'failed' | undefined
  /**
   * Ends earlier attempts that the site has not confirmed to be over. Rejects with a `DriverError`
   * where it does not; another error is a fault.
   */
  endEarlier: (positions: readonly number[]) => Promise<void>
  ended: (position: number, outcome: Outcome) => void
  observed: (position: number, observation: Observation) => void
  /** The program of a task has ended, and its files are still being read. */
  programEnded: (position: number) => void
  /** An error of the functions above: a fault of the engine or its database, not of the site. */
  fault: (error: unknown) => void
}

/** Pause before an unanswered query is repeated, doubled up to the other. */
const firstPauseSeconds = 0.5
const longestPauseSeconds = 30
/** Least pause between records of how long a site was asked without an answer; else a tenth of that time. */
const silentRecordSeconds = 60
/** Of the time between two questions without an answer this much counts: the process may have been frozen. */
const longestSilentStep = 300
/**
 * A task still alive after this long is polled, to be shown as running or queued; shorter ones go
 * from `preparing` to their end in one write.
 */
const firstPollSeconds = 0.15
/** Pause before the next poll of a task in the site's queue, doubled up to the other. */
const nextPollSeconds = 1
const longestPollSeconds = 15
/** Between two polls of a task that runs: its end comes by itself, doubts of its site do not. */
const runningPollSeconds = 60
/** A submit without an answer after this long is shown as the reason of the task's wait. */
const slowSubmitSeconds = 0.8
/** Reading the files of an ended program is shown after this long. */
const slowCollectSeconds = 1
/** Number of predecessors in a task's reason. */
const mostStagesNamed = 3
/**
 * Time for an unreachable site to end its tasks; the second limit is for a site that does not
 * answer at all.
 */
const unreachableStopSeconds = 5
const silentStopSeconds = 15
const cancelGraceSeconds = 5

type Query = 'submit' | 'find' | 'collect'

/** An intent of an earlier holder. */
interface Adopted {
  position: number
  name: string
  silentSince: number | undefined
  silentFor?: number
}

interface Attempt {
  position: number
  name: string
  /**
   * The query that is due from `dueAt` on; undefined while an answer is on its way, or only the end
   * is awaited.
   */
  query: Query | undefined
  dueAt: number
  pause: number
  /** Since when the site has not answered about it, also to earlier holders. */
  silentSince: number | undefined
  /** Seconds in which this and earlier holders have asked without an answer. */
  silentFor: number
  /** Seconds of `monotonic` of the last such question of this holder. */
  unansweredAt: number | undefined
  /** The part of `silentFor` that is on record, for the next holder. */
  recordedFor: number
  /** Seconds of `monotonic` at which its end was first asked for, since nothing may start any more. */
  endAskedAt: number | undefined
  /** The last silence of the site; undefined: none since the take-over. */
  trouble: Pick<Silence, 'reason' | 'needsLogin'> | undefined
  /**
   * When a submit without an answer is shown as the reason of the task's wait; Infinity: none is
   * under way.
   */
  slowSubmitAt: number
  /** The files staged before it is passed on, for that reason; empty: none. */
  stages: string
  /** The answer to a submit was lost: the site may have it. */
  maybeThere: boolean
  /** The link has the trouble, not this task. */
  linkLost: boolean
  collecting: boolean
  /** When reading its files counts as slow; Infinity: its program has not ended, or that is known. */
  slowCollectAt: number
  reason: string | undefined
  /** Its row shows that it runs. */
  runs: boolean
  pollAt: number
  pollPause: number
}

/** Rethrows what is no error of the site. */
const siteErrorOf = (error: unknown): DriverError => {
  if (error instanceof DriverError) return error
  throw error
}

const linkErrorOf = (error: unknown): LinkError | undefined => {
  for (let cause: unknown = error; cause instanceof Error; cause = cause.cause)
    if (cause instanceof LinkError) return cause
  return undefined
}

/** The tasks under way at a site, and the trouble with ending them. */
interface Attempts {
  parts: AttemptParts
  byName: Map<string, Attempt>
  stops: (() => void)[]
  closed: boolean
  cancelledAt: number | undefined
  /** Why the site received no request to end its tasks. */
  stopTrouble: string | undefined
  asking: boolean
  askAgainAt: number
  askPause: number
}

/**
 * The tasks of a site whose intents are committed, until their ends are known: all calls of the
 * driver for them.
 *
 * A silent site is queried again, for each task by its own name, and no other task waits for that:
 * a failed submit is repeated, and a failed collect follows later. Only after `silentSeconds` is
 * silence an outcome.
 */
export const openAttempts = (parts: AttemptParts) => {
  const byName = new Map<string, Attempt>()
  const attempts: Attempts = {
    parts,
    byName,
    stops: [],
    closed: false,
    cancelledAt: undefined,
    stopTrouble: undefined,
    asking: false,
    askAgainAt: 0,
    askPause: firstPauseSeconds,
  }
  return {
    /** Number of tasks whose ends are not known. */
    get size(): number {
      return byName.size
    },
    /** The task with this name at the site. */
    positionOf: (name: string): number | undefined => byName.get(name)?.position,
    /** Starts the tasks of the last commit. */
    start(tasks: readonly { position: number; name: string; intent: Intent }[]): void {
      launch(
        attempts,
        tasks.map(({ position, name, intent }) => ({
          task: add(attempts, position, name, undefined),
          intent,
        })),
      )
    },
    /**
     * Adopts the intents of an earlier holder. `silentSince`: since when the site has not answered
     * about it; `silentFor`: the seconds of that in which a holder asked.
     */
    adopt(tasks: readonly Adopted[]): void {
      if (tasks.length === 0) return
      find(
        attempts,
        tasks.map(({ position, name, silentSince, silentFor }) =>
          add(attempts, position, name, silentSince, silentFor),
        ),
      )
    },
    /**
     * Makes the due queries, and pursues the requested ends. Called at every step of the executor.
     */
    runDue: (): void => {
      runDue(attempts)
    },
    /**
     * Since when and why the site has not answered, for the task that has waited longest for that;
     * undefined: it answers.
     */
    get silence(): Silence | undefined {
      let longest: Silence | undefined
      for (const { silentSince: since, trouble } of byName.values())
        if (since !== undefined && trouble !== undefined && since < (longest?.since ?? Infinity))
          longest = { since, ...trouble }
      return longest
    },
    /** Seconds of `monotonic` at which `runDue` has work; Infinity when nothing is due by itself. */
    get dueAt(): number {
      let due = Infinity
      for (const task of byName.values())
        due = Math.min(due, task.dueAt, task.pollAt, task.slowSubmitAt, task.slowCollectAt)
      return attempts.cancelledAt === undefined || byName.size === 0
        ? due
        : Math.min(due, parts.monotonic() + firstPauseSeconds)
    },
    /** Ends all tasks, those on their way too. Idempotent. */
    cancel(): void {
      if (attempts.cancelledAt !== undefined) return
      attempts.cancelledAt = parts.monotonic()
      for (const task of byName.values()) if (task.query === 'submit') task.query = 'collect'
      runDue(attempts)
    },
    /** Releases everything; running tasks go on. */
    close(): void {
      attempts.closed = true
      for (const stop of attempts.stops) stop()
      byName.clear()
    },
  }
}

const add = (
  attempts: Attempts,
  position: number,
  name: string,
  silentSince: number | undefined,
  silentFor = 0,
): Attempt => {
  const task: Attempt = {
    position,
    name,
    query: undefined,
    dueAt: Infinity,
    pause: firstPauseSeconds,
    silentSince,
    silentFor,
    unansweredAt: silentSince === undefined ? undefined : attempts.parts.monotonic(),
    recordedFor: silentFor,
    endAskedAt: undefined,
    trouble: undefined,
    slowSubmitAt: Infinity,
    stages: '',
    maybeThere: false,
    linkLost: false,
    collecting: false,
    slowCollectAt: Infinity,
    // The first answer has to clear the row's reason from an earlier holder's wait.
    reason: silentSince === undefined ? undefined : '',
    runs: false,
    pollAt: Infinity,
    pollPause: nextPollSeconds,
  }
  attempts.byName.set(name, task)
  return task
}
const finish = (attempts: Attempts, task: Attempt, outcome: Outcome): void => {
  if (attempts.byName.delete(task.name)) attempts.parts.ended(task.position, outcome)
}
const report = (attempts: Attempts, task: Attempt, observation: Observation): void => {
  const { reason } = observation
  if (reason !== undefined) {
    if ((reason ?? undefined) === task.reason && observation.status === undefined) return
    task.reason = reason ?? undefined
  }
  attempts.parts.observed(task.position, observation)
}

/**
 * The site has answered about this task; other tasks on the same link need not wait out their
 * pause.
 */
const answered = (attempts: Attempts, task: Attempt): void => {
  if (task.linkLost)
    for (const other of attempts.byName.values())
      if (other.linkLost && other.query !== undefined)
        other.dueAt = Math.min(other.dueAt, attempts.parts.monotonic() + firstPauseSeconds)
  task.query = undefined
  task.dueAt = Infinity
  task.pause = firstPauseSeconds
  task.linkLost = false
  Object.assign(task, { silentFor: 0, unansweredAt: undefined, recordedFor: 0 })
  if (task.silentSince === undefined) return
  task.silentSince = undefined
  if (task.reason !== undefined) report(attempts, task, { reason: null })
}

const unanswered = (attempts: Attempts, task: Attempt, query: Query, error: DriverError): void => {
  if (!attempts.byName.has(task.name)) return
  const now = attempts.parts.monotonic()
  task.silentSince ??= attempts.parts.clock()
  task.silentFor += Math.min(now - (task.unansweredAt ?? now), longestSilentStep)
  task.unansweredAt = now
  const link = linkErrorOf(error)
  const needsLogin = link?.waitsForPerson === true
  const words = `waiting for ${needsLogin ? 'login to ' : ''}${attempts.parts.site}: ${reasonText(error.message)}`
  if (task.silentFor >= attempts.parts.silentSeconds) {
    finish(attempts, task, { kind: 'silent', words: error.message })
    return
  }
  task.maybeThere ||= query === 'submit'
  task.trouble = { reason: error.message, needsLogin }
  // A task that is being ended does not start any more.
  task.query = query === 'submit' && attempts.cancelledAt !== undefined ? 'collect' : query
  task.linkLost = link !== undefined
  task.dueAt = now + task.pause
  task.pause = Math.min(task.pause * 2, longestPauseSeconds)
  // Another holder goes on from what is on record.
  if (task.silentFor - task.recordedFor >= Math.max(silentRecordSeconds, task.recordedFor / 10)) {
    task.recordedFor = task.silentFor
    task.reason = undefined
  }
  // A task that was never accepted does not run, whatever its row shows.
  const status = query === 'submit' ? ({ status: 'queued' } as const) : {}
  report(attempts, task, {
    ...status,
    reason: words,
    waitsFor: needsLogin ? 'login' : 'site',
    silentSince: task.silentSince,
    silentFor: task.silentFor,
  })
}

/** The results of an ended task; undefined when they are not known yet and need another query. */
const outcomeOf = async (attempts: Attempts, task: Attempt): Promise<Outcome | undefined> => {
  const { driver } = attempts.parts
  const collected = await driver
    .collect(task.name, (reason) => showWait(attempts, task, reason))
    .catch(driverErrorOf)
  if (!(collected instanceof DriverError))
    return collected.state.state === 'lost'
      ? { kind: 'lost', cause: collected.state.cause, suspect: collected.state.suspect }
      : { kind: 'collected', collected }
  // A refused login is no fact about the task.
  if (collected.trouble === 'refused' && linkErrorOf(collected) === undefined)
    return { kind: 'refused', error: collected }
  // Either the site does not answer, or there is nothing to collect because the task was lost.
  const found =
    collected.trouble === 'unknown' ? await driver.find([task.name]).catch(driverErrorOf) : undefined
  const state = found instanceof DriverError ? undefined : found?.get(task.name)
  if (state?.state === 'lost') return { kind: 'lost', cause: state.cause, suspect: state.suspect }
  const trouble = found instanceof DriverError ? found : collected
  unanswered(attempts, task, state?.state === 'unknown' ? 'submit' : 'collect', trouble)
  return undefined
}
const collectNow = async (attempts: Attempts, task: Attempt): Promise<void> => {
  if (task.collecting || !attempts.byName.has(task.name)) return
  task.collecting = true
  const outcome = await outcomeOf(attempts, task)
  task.collecting = false
  if (outcome === undefined) return
  attempts.parts.failpoint('ended-not-recorded')
  answered(attempts, task)
  finish(attempts, task, outcome)
}
const collect = (attempts: Attempts, task: Attempt): void =>
  void collectNow(attempts, task).catch(attempts.parts.fault)
/** The site says that its program has ended. */
const collectEnded = (attempts: Attempts, task: Attempt): void => {
  task.slowCollectAt = attempts.parts.monotonic() + slowCollectSeconds
  task.pollAt = Infinity
  collect(attempts, task)
}
/** Others may use the cores of an ended program while its files are read. */
const showWait = (attempts: Attempts, task: Attempt, reason: string): void => {
  if (!attempts.byName.has(task.name)) return
  task.slowCollectAt = Infinity
  attempts.parts.programEnded(task.position)
  if (task.silentSince === undefined) report(attempts, task, { reason, waitsFor: 'data' })
}
const showSlowCollect = (attempts: Attempts, task: Attempt): void =>
  showWait(attempts, task, 'its program has ended; its files are being read')

const watch = (attempts: Attempts, tasks: readonly Attempt[]): void => {
  if (tasks.length === 0 || attempts.closed) return
  const names = tasks.map(({ name }) => name)
  attempts.stops.push(
    attempts.parts.driver.watch(names, (name) => {
      const task = attempts.byName.get(name)
      if (task !== undefined) collectEnded(attempts, task)
    }),
  )
}

const refused = (attempts: Attempts, task: Attempt, error: DriverError): void => {
  if (error.trouble === 'unknown') unanswered(attempts, task, 'submit', error)
  // The refusal is of this submit; an earlier one may have started it.
  else if (task.maybeThere) unanswered(attempts, task, 'find', error)
  else finish(attempts, task, { kind: 'refused', error })
}
/** An attempt with the intent that the driver gets. */
interface Start {
  task: Attempt
  intent: Intent
}
const submitNow = async (attempts: Attempts, starts: readonly Start[]): Promise<void> => {
  const tasks = starts.map(({ task }) => task)
  const slowSubmitAt = attempts.parts.monotonic() + slowSubmitSeconds
  for (const { task, intent } of starts)
    Object.assign(task, { query: undefined, dueAt: Infinity, slowSubmitAt, stages: stagesOf(intent) })
  attempts.parts.failpoint('intended-not-started')
  const trouble = await attempts.parts
    .endEarlier(tasks.map(({ position }) => position))
    .then(() => undefined, siteErrorOf)
  if (attempts.closed) return
  if (trouble !== undefined && tasks.length > 1 && linkErrorOf(trouble) === undefined) {
    // An attempt that does not end keeps no other task waiting.
    for (const start of starts) submit(attempts, [start])
    return
  }
  const answer =
    trouble ?? (await attempts.parts.driver.submit(starts.map(({ intent }) => intent)).catch(driverErrorOf))
  for (const task of tasks) task.slowSubmitAt = Infinity
  attempts.parts.failpoint('started-not-watched')
  if (answer instanceof DriverError) {
    for (const task of tasks) refused(attempts, task, answer)
    return
  }
  const accepted: Attempt[] = []
  for (const outcome of answer) {
    const task = attempts.byName.get(outcome.name)
    if (task === undefined) continue
    if (outcome.ok) {
      if (task.reason !== undefined) report(attempts, task, { status: 'preparing', reason: null })
      answered(attempts, task)
      task.pollAt = attempts.parts.monotonic() + firstPollSeconds
      accepted.push(task)
    } else refused(attempts, task, outcome.error)
  }
  watch(attempts, accepted)
}
const submit = (attempts: Attempts, starts: readonly Start[]): void =>
  void submitNow(attempts, starts).catch(attempts.parts.fault)
/**
 * Tasks without files to stage start together; a long staging must not hide the ends of the others.
 */
const launch = (attempts: Attempts, starts: readonly Start[]): void => {
  const { batch } = attempts.parts.driver.capabilities
  const isPlain = ({ intent }: Start): boolean => batch && intent.stage.length === 0
  const together = starts.filter(isPlain)
  if (together.length > 0) submit(attempts, together)
  for (const start of starts) if (!isPlain(start)) submit(attempts, [start])
}
/**
 * Submits tasks of earlier commits. While nothing may start, the site is asked for those that it may
 * have; the others wait for the end of the pause, or end.
 */
const launchAgain = (attempts: Attempts, tasks: readonly Attempt[]): void => {
  if (tasks.length === 0) return
  const held = attempts.parts.held()
  if (held === undefined) {
    launch(
      attempts,
      tasks.map((task) => ({ task, intent: attempts.parts.intentOf(task.position) })),
    )
    return
  }
  const unsure = tasks.filter(({ maybeThere }) => maybeThere)
  if (unsure.length > 0) find(attempts, unsure)
  const absent = tasks.filter(({ maybeThere }) => !maybeThere)
  if (held === 'failed') endAbsent(attempts, absent)
  else
    for (const task of absent)
      Object.assign(task, { query: 'submit', dueAt: attempts.parts.monotonic() + firstPauseSeconds })
}

const unconfirmed = ({ parts }: Attempts): string =>
  `${parts.site} did not confirm it within ${String(silentStopSeconds)} s`

/** Ends names that the site does not have: a submit that is still on its way then starts nothing. */
const endAbsentNow = async (attempts: Attempts, tasks: readonly Attempt[]): Promise<void> => {
  const now = attempts.parts.monotonic()
  for (const task of tasks)
    Object.assign(task, { query: undefined, dueAt: Infinity, endAskedAt: task.endAskedAt ?? now })
  const names = tasks.map(({ name }) => name)
  const trouble = await attempts.parts.driver
    .cancel(names, cancelGraceSeconds)
    .then(() => undefined, driverErrorOf)
  for (const task of tasks) {
    const isLate = now - (task.endAskedAt ?? now) >= silentStopSeconds
    if (isLate)
      finish(attempts, task, { kind: 'unstopped', words: trouble?.message ?? unconfirmed(attempts) })
    else if (trouble === undefined) collect(attempts, task)
    // The site may have received a submit meanwhile: it is asked anew.
    else if (trouble.trouble === 'unknown') unanswered(attempts, task, 'find', trouble)
    else finish(attempts, task, { kind: 'unstopped', words: trouble.message })
  }
}
const endAbsent = (attempts: Attempts, tasks: readonly Attempt[]): void => {
  if (tasks.length > 0) void endAbsentNow(attempts, tasks).catch(attempts.parts.fault)
}

/**
 * The intents of earlier holders, by name: it adopts live tasks, collects ended ones, starts those
 * that never started.
 */
const findNow = async (attempts: Attempts, tasks: readonly Attempt[]): Promise<void> => {
  for (const task of tasks) Object.assign(task, { query: undefined, dueAt: Infinity })
  const states = await attempts.parts.driver.find(tasks.map(({ name }) => name)).catch(driverErrorOf)
  if (states instanceof DriverError) {
    for (const task of tasks) unanswered(attempts, task, 'find', states)
    return
  }
  const alive: Attempt[] = []
  const fresh: Attempt[] = []
  for (const task of tasks) {
    if (!attempts.byName.has(task.name)) continue
    const state = states.get(task.name) ?? { state: 'unknown' }
    answered(attempts, task)
    task.maybeThere &&= state.state !== 'unknown'
    if (state.state === 'unknown') fresh.push(task)
    else if (state.state === 'running' || state.state === 'queued') {
      alive.push(task)
      pollLater(attempts, task)
      show(attempts, task, state)
    } else collectEnded(attempts, task)
  }
  watch(attempts, alive)
  // Tasks that are being ended do not start any more: the site has the request to end them.
  if (attempts.cancelledAt === undefined) launchAgain(attempts, fresh)
  else
    for (const task of fresh)
      Object.assign(task, { query: 'collect', dueAt: attempts.parts.monotonic() + firstPauseSeconds })
}
const find = (attempts: Attempts, tasks: readonly Attempt[]): void =>
  void findNow(attempts, tasks).catch(attempts.parts.fault)

/** Schedules the next poll of a task, each one later than the one before. */
const pollLater = (attempts: Attempts, task: Attempt): void => {
  task.pollAt = attempts.parts.monotonic() + task.pollPause
  task.pollPause = Math.min(task.pollPause * 2, longestPollSeconds)
}
const show = (attempts: Attempts, task: Attempt, state: TaskState): void => {
  if (state.state === 'running') {
    task.pollAt = attempts.parts.monotonic() + runningPollSeconds
    const { externalId, cause } = state
    const reason = cause === undefined ? undefined : `at the site: ${cause}`
    if (task.runs && reason === task.reason) return
    task.runs = true
    const wait = reason === undefined ? { reason: null } : { reason, waitsFor: 'site' as const }
    report(attempts, task, { status: 'running', externalId, ...wait })
  } else if (state.state === 'queued') {
    task.runs = false
    const reason = `at the site: ${reasonText(state.cause ?? 'queued')}`
    if (reason !== task.reason)
      report(attempts, task, { status: 'queued', externalId: state.externalId, reason, waitsFor: 'queue' })
  }
}
/** The answer to a submit takes long: its files are on their way, or the site does not answer. */
const showSlowSubmit = (attempts: Attempts, task: Attempt): void => {
  task.slowSubmitAt = Infinity
  // Its reason for waiting is unchanged.
  if (task.silentSince !== undefined) return
  if (task.stages !== '')
    report(attempts, task, { reason: `waiting for data: ${task.stages}`, waitsFor: 'data' })
  else
    report(attempts, task, {
      status: 'queued',
      reason: `waiting for ${attempts.parts.site}: it has not answered yet`,
      waitsFor: 'site',
    })
}
/** The staged files of a task, for people: "a, b of ssh/far". */
const stagesOf = ({ stage, container }: Intent): string =>
  [
    ...(container?.brought === undefined ? [] : [container.brought.label]),
    ...firstTexts(stage, mostStagesNamed, ({ label, at }) =>
      at === undefined ? label : `${label} of ${at}`,
    ),
  ].join(', ')
/** Polls long tasks to show them; their ends come by `watch`, so silence here means nothing. */
const pollStates = async (attempts: Attempts, tasks: readonly Attempt[]): Promise<void> => {
  for (const task of tasks) pollLater(attempts, task)
  const states = await attempts.parts.driver
    .find(tasks.map(({ name }) => name))
    .catch(() => new Map<string, TaskState>())
  for (const task of tasks) {
    const state = states.get(task.name)
    if (state !== undefined && attempts.byName.has(task.name)) show(attempts, task, state)
  }
}

const abandon = (attempts: Attempts, words: string): void => {
  for (const task of [...attempts.byName.values()]) finish(attempts, task, { kind: 'unstopped', words })
}
const askToStop = async (attempts: Attempts): Promise<void> => {
  attempts.asking = true
  const names = [...attempts.byName.keys()]
  try {
    await attempts.parts.driver.cancel(names, cancelGraceSeconds)
    attempts.stopTrouble = undefined
    attempts.askAgainAt = Infinity
    for (const name of names) {
      const task = attempts.byName.get(name)
      if (task !== undefined) collect(attempts, task)
    }
  } catch (error) {
    attempts.stopTrouble = driverErrorOf(error).message
    attempts.askAgainAt = attempts.parts.monotonic() + attempts.askPause
    attempts.askPause = Math.min(attempts.askPause * 2, longestPauseSeconds)
  } finally {
    attempts.asking = false
  }
}
const seeToStop = (attempts: Attempts, now: number, since: number): void => {
  if (attempts.byName.size === 0) return
  if (now - since >= silentStopSeconds) abandon(attempts, attempts.stopTrouble ?? unconfirmed(attempts))
  else if (attempts.asking) return
  else if (attempts.stopTrouble !== undefined && now - since >= unreachableStopSeconds)
    abandon(attempts, attempts.stopTrouble)
  else if (now >= attempts.askAgainAt) void askToStop(attempts).catch(attempts.parts.fault)
}

/** Makes the due queries, and pursues the requested ends. */
const runDue = (attempts: Attempts): void => {
  const now = attempts.parts.monotonic()
  if (attempts.cancelledAt !== undefined) seeToStop(attempts, now, attempts.cancelledAt)
  const due: Record<Query, Attempt[]> = { submit: [], find: [], collect: [] }
  const polled: Attempt[] = []
  for (const task of attempts.byName.values()) {
    if (task.query !== undefined && task.dueAt <= now) due[task.query].push(task)
    else if (task.pollAt <= now) polled.push(task)
    if (task.slowSubmitAt <= now) showSlowSubmit(attempts, task)
    if (task.slowCollectAt <= now) showSlowCollect(attempts, task)
  }
  launchAgain(attempts, due.submit)
  if (due.find.length > 0) find(attempts, due.find)
  for (const task of due.collect) {
    task.dueAt = Infinity
    collect(attempts, task)
  }
  if (polled.length > 0) void pollStates(attempts, polled).catch(attempts.parts.fault)
}

export type AttemptsInFlight = ReturnType<typeof openAttempts>
