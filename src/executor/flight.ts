import {
  DriverError,
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
export interface Sight {
  status?: 'queued' | 'preparing' | 'running'
  externalId?: string
  /** Null: the wait is over. */
  reason?: string | null
  /** Present with each reason. */
  waitsFor?: WaitKind
  /** Since when the site has not answered about it, if that is the reason. */
  silentSince?: number
}

export interface FlightParts {
  driver: RuntimeDriver
  /** The site's name, for reasons. */
  site: string
  /** Seconds since the epoch. */
  clock: () => number
  failpoint: (name: string) => void
  /** A silent site is queried for this long. */
  silentSeconds: number
  intentOf: (position: number) => Intent
  /** Ends earlier attempts that the site has not confirmed to be over; rejects where it does not. */
  endEarlier: (positions: readonly number[]) => Promise<void>
  ended: (position: number, outcome: Outcome) => void
  seen: (position: number, sight: Sight) => void
  /** The program of a task has ended, and the look at its files takes long. */
  programEnded: (position: number) => void
  /** An error of `intentOf`, `ended` or `seen`: a fault of the engine, not of the site. */
  fault: (error: unknown) => void
}

/** Pause before an unanswered query is repeated, doubled up to the other. */
const firstPauseSeconds = 0.5
const longestPauseSeconds = 30
/**
 * A task still alive after this long is looked at, to be shown as running or queued; shorter ones
 * go from `preparing` to their end in one write.
 */
const firstLookSeconds = 0.15
/** Pause before the next look at a task in the site's queue, doubled up to the other. */
const nextLookSeconds = 1
const longestLookSeconds = 15
/** Between two looks at a task that runs: its end comes by itself, doubts of its site do not. */
const runningLookSeconds = 60
/** A submit without an answer after this long is shown as the reason of the task's wait. */
const slowSeconds = 0.8
/** A look at the files of an ended program is shown after this long. */
const longLookSeconds = 1
/** Number of predecessors in a task's reason. */
const mostStagesNamed = 3
/**
 * Time for an unreachable site to end its tasks; the second limit is for a site that does not
 * answer at all.
 */
const unreachableStopSeconds = 5
const silentStopSeconds = 15
const cancelGraceSeconds = 5

type Question = 'submit' | 'find' | 'collect'

interface Flying {
  position: number
  name: string
  /**
   * The query that is due from `dueAt` on; undefined while an answer is on its way, or only the end
   * is awaited.
   */
  question: Question | undefined
  dueAt: number
  pause: number
  /** Since when the site has not answered about it. */
  silentSince: number | undefined
  /** The last silence of the site; undefined: none since the take-over. */
  trouble: Pick<Silence, 'reason' | 'needsLogin'> | undefined
  /**
   * When a submit without an answer is shown as the reason of the task's wait; Infinity: none is
   * under way.
   */
  slowAt: number
  /** The files staged before it is passed on, for that reason; empty: none. */
  stages: string
  /** The answer to a submit was lost: the site may have it. */
  maybeThere: boolean
  /** The link has the trouble, not this task. */
  linkLost: boolean
  collecting: boolean
  /** When the look at its files is long; Infinity: its program has not ended, or that is known. */
  longAt: number
  reason: string | undefined
  /** Its row shows that it runs. */
  runs: boolean
  lookAt: number
  lookPause: number
}

const errorOf = (error: unknown): DriverError =>
  error instanceof DriverError
    ? error
    : new DriverError('unknown', (error as Error).message, { cause: error })

const linkErrorOf = (error: unknown): LinkError | undefined => {
  for (let cause: unknown = error; cause instanceof Error; cause = cause.cause)
    if (cause instanceof LinkError) return cause
  return undefined
}

/** The tasks under way at a site, and the trouble with ending them. */
interface Underway {
  parts: FlightParts
  flying: Map<string, Flying>
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
export const openFlight = (parts: FlightParts) => {
  const flying = new Map<string, Flying>()
  const flight: Underway = {
    parts,
    flying,
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
      return flying.size
    },
    /** The task with this name at the site. */
    positionOf: (name: string): number | undefined => flying.get(name)?.position,
    /** Starts the tasks of the last commit. */
    start(tasks: readonly { position: number; name: string; intent: Intent }[]): void {
      launch(
        flight,
        tasks.map(({ position, name }) => add(flight, position, name, undefined)),
        tasks.map(({ intent }) => intent),
      )
    },
    /**
     * Adopts the intents of an earlier holder. `silentSince`: since when the site has not answered
     * about it.
     */
    adopt(tasks: readonly { position: number; name: string; silentSince: number | undefined }[]): void {
      if (tasks.length === 0) return
      find(
        flight,
        tasks.map(({ position, name, silentSince }) => add(flight, position, name, silentSince)),
      )
    },
    /**
     * Makes the due queries, and pursues the requested ends. Called at every turn of the executor.
     */
    turn: (): void => {
      turn(flight)
    },
    /**
     * Since when and why the site has not answered, for the task that has waited longest for that;
     * undefined: it answers.
     */
    get silence(): Silence | undefined {
      let longest: Flying | undefined
      for (const task of flying.values())
        if (
          task.silentSince !== undefined &&
          task.trouble !== undefined &&
          task.silentSince < (longest?.silentSince ?? Infinity)
        )
          longest = task
      return longest?.silentSince === undefined || longest.trouble === undefined
        ? undefined
        : {
            since: longest.silentSince,
            reason: longest.trouble.reason,
            needsLogin: longest.trouble.needsLogin,
          }
    },
    /** Seconds since the epoch at which `turn` has work; Infinity when nothing is due by itself. */
    get dueAt(): number {
      let due = Infinity
      for (const task of flying.values())
        due = Math.min(due, task.dueAt, task.lookAt, task.slowAt, task.longAt)
      return flight.cancelledAt === undefined || flying.size === 0
        ? due
        : Math.min(due, parts.clock() + firstPauseSeconds)
    },
    /** Ends all tasks, those on their way too. Idempotent. */
    cancel(): void {
      if (flight.cancelledAt !== undefined) return
      flight.cancelledAt = parts.clock()
      for (const task of flying.values()) if (task.question === 'submit') task.question = 'collect'
      turn(flight)
    },
    /** Releases everything; running tasks go on. */
    close(): void {
      flight.closed = true
      for (const stop of flight.stops) stop()
      flying.clear()
    },
  }
}

const add = (flight: Underway, position: number, name: string, silentSince: number | undefined): Flying => {
  const task: Flying = {
    position,
    name,
    question: undefined,
    dueAt: Infinity,
    pause: firstPauseSeconds,
    silentSince,
    trouble: undefined,
    slowAt: Infinity,
    stages: '',
    maybeThere: false,
    linkLost: false,
    collecting: false,
    longAt: Infinity,
    // The first answer has to clear the row's reason from an earlier holder's wait.
    reason: silentSince === undefined ? undefined : '',
    runs: false,
    lookAt: Infinity,
    lookPause: nextLookSeconds,
  }
  flight.flying.set(name, task)
  return task
}
const finish = (flight: Underway, task: Flying, outcome: Outcome): void => {
  if (flight.flying.delete(task.name)) flight.parts.ended(task.position, outcome)
}
const report = (flight: Underway, task: Flying, sight: Sight): void => {
  const { reason } = sight
  if (reason !== undefined) {
    if ((reason ?? undefined) === task.reason && sight.status === undefined) return
    task.reason = reason ?? undefined
  }
  flight.parts.seen(task.position, sight)
}

/**
 * The site has answered about this task; other tasks on the same link need not wait out their
 * pause.
 */
const answered = (flight: Underway, task: Flying): void => {
  if (task.linkLost)
    for (const other of flight.flying.values())
      if (other.linkLost && other.question !== undefined)
        other.dueAt = Math.min(other.dueAt, flight.parts.clock() + firstPauseSeconds)
  task.question = undefined
  task.dueAt = Infinity
  task.pause = firstPauseSeconds
  task.linkLost = false
  if (task.silentSince === undefined) return
  task.silentSince = undefined
  if (task.reason !== undefined) report(flight, task, { reason: null })
}

const unanswered = (flight: Underway, task: Flying, question: Question, error: DriverError): void => {
  if (!flight.flying.has(task.name)) return
  const now = flight.parts.clock()
  task.silentSince ??= now
  const link = linkErrorOf(error)
  const needsLogin = link?.waitsForPerson === true
  const words = `waiting for ${needsLogin ? 'login to ' : ''}${flight.parts.site}: ${reasonText(error.message)}`
  if (now - task.silentSince >= flight.parts.silentSeconds) {
    finish(flight, task, { kind: 'silent', words: error.message })
    return
  }
  task.maybeThere ||= question === 'submit'
  task.trouble = { reason: error.message, needsLogin }
  // A task that is being ended does not start any more.
  task.question = question === 'submit' && flight.cancelledAt !== undefined ? 'collect' : question
  task.linkLost = link !== undefined
  task.dueAt = now + task.pause
  task.pause = Math.min(task.pause * 2, longestPauseSeconds)
  // A task that was never accepted does not run, whatever its row shows.
  const status = question === 'submit' ? ({ status: 'queued' } as const) : {}
  report(flight, task, {
    ...status,
    reason: words,
    waitsFor: needsLogin ? 'login' : 'site',
    silentSince: task.silentSince,
  })
}

/** The results of an ended task; undefined when they are not known yet and need another query. */
const outcomeOf = async (flight: Underway, task: Flying): Promise<Outcome | undefined> => {
  try {
    const collected = await flight.parts.driver.collect(task.name, (reason) => showWait(flight, task, reason))
    return collected.state.state === 'lost'
      ? { kind: 'lost', cause: collected.state.cause, suspect: collected.state.suspect }
      : { kind: 'collected', collected }
  } catch (error) {
    // A refused login is no fact about the task.
    if (errorOf(error).trouble === 'refused' && linkErrorOf(error) === undefined)
      return { kind: 'refused', error: errorOf(error) }
    // Either the site does not answer, or there is nothing to collect because the task was lost.
    try {
      const state =
        errorOf(error).trouble === 'unknown'
          ? (await flight.parts.driver.find([task.name])).get(task.name)
          : undefined
      if (state?.state === 'lost') return { kind: 'lost', cause: state.cause, suspect: state.suspect }
      unanswered(flight, task, state?.state === 'unknown' ? 'submit' : 'collect', errorOf(error))
    } catch (again) {
      unanswered(flight, task, 'collect', errorOf(again))
    }
    return undefined
  }
}
const collectNow = async (flight: Underway, task: Flying): Promise<void> => {
  if (task.collecting || !flight.flying.has(task.name)) return
  task.collecting = true
  const outcome = await outcomeOf(flight, task)
  task.collecting = false
  if (outcome === undefined) return
  flight.parts.failpoint('ended-not-recorded')
  answered(flight, task)
  finish(flight, task, outcome)
}
const collect = (flight: Underway, task: Flying): void =>
  void collectNow(flight, task).catch(flight.parts.fault)
/** The site says that its program has ended. */
const collectEnded = (flight: Underway, task: Flying): void => {
  task.longAt = flight.parts.clock() + longLookSeconds
  task.lookAt = Infinity
  collect(flight, task)
}
/** Others may use the cores of an ended program while its files are looked at. */
const showWait = (flight: Underway, task: Flying, reason: string): void => {
  if (!flight.flying.has(task.name)) return
  task.longAt = Infinity
  flight.parts.programEnded(task.position)
  if (task.silentSince === undefined) report(flight, task, { reason, waitsFor: 'data' })
}
const showLong = (flight: Underway, task: Flying): void =>
  showWait(flight, task, 'its program has ended; its files are being read')

const watch = (flight: Underway, tasks: readonly Flying[]): void => {
  if (tasks.length === 0 || flight.closed) return
  const names = tasks.map(({ name }) => name)
  flight.stops.push(
    flight.parts.driver.watch(names, (name) => {
      const task = flight.flying.get(name)
      if (task !== undefined) collectEnded(flight, task)
    }),
  )
}

const refused = (flight: Underway, task: Flying, error: DriverError): void => {
  if (error.trouble === 'unknown') unanswered(flight, task, 'submit', error)
  // The refusal is of this submit; an earlier one may have started it.
  else if (task.maybeThere) unanswered(flight, task, 'find', error)
  else finish(flight, task, { kind: 'refused', error })
}
const submitNow = async (
  flight: Underway,
  tasks: readonly Flying[],
  intents: readonly Intent[],
): Promise<void> => {
  const slowAt = flight.parts.clock() + slowSeconds
  for (const [k, task] of tasks.entries())
    Object.assign(task, {
      question: undefined,
      dueAt: Infinity,
      slowAt,
      stages: stagesOf(intents[k] as Intent),
    })
  flight.parts.failpoint('intended-not-started')
  const trouble = await flight.parts
    .endEarlier(tasks.map(({ position }) => position))
    .then(() => undefined, errorOf)
  if (flight.closed) return
  if (trouble !== undefined && tasks.length > 1 && linkErrorOf(trouble) === undefined) {
    // An attempt that does not end keeps no other task waiting.
    for (const [k, task] of tasks.entries()) submit(flight, [task], [intents[k] as Intent])
    return
  }
  const answer = trouble ?? (await flight.parts.driver.submit(intents).catch(errorOf))
  for (const task of tasks) task.slowAt = Infinity
  flight.parts.failpoint('started-not-watched')
  if (answer instanceof DriverError) {
    for (const task of tasks) refused(flight, task, answer)
    return
  }
  const accepted: Flying[] = []
  for (const outcome of answer) {
    const task = flight.flying.get(outcome.name)
    if (task === undefined) continue
    if (outcome.ok) {
      if (task.reason !== undefined) report(flight, task, { status: 'preparing', reason: null })
      answered(flight, task)
      task.lookAt = flight.parts.clock() + firstLookSeconds
      accepted.push(task)
    } else refused(flight, task, outcome.error)
  }
  watch(flight, accepted)
}
const submit = (flight: Underway, tasks: readonly Flying[], intents: readonly Intent[]): void =>
  void submitNow(flight, tasks, intents).catch(flight.parts.fault)
/**
 * Tasks without files to stage start together; a long staging must not hide the ends of the others.
 */
const launch = (flight: Underway, tasks: readonly Flying[], intents: readonly Intent[]): void => {
  const together = intents.map(
    (intent) => flight.parts.driver.capabilities.batch && intent.stage.length === 0,
  )
  const batch = tasks.filter((_, k) => together[k])
  if (batch.length > 0)
    submit(
      flight,
      batch,
      intents.filter((_, k) => together[k]),
    )
  for (const [k, task] of tasks.entries())
    if (together[k] === false) submit(flight, [task], [intents[k] as Intent])
}
const launchAgain = (flight: Underway, tasks: readonly Flying[]): void => {
  if (tasks.length > 0)
    launch(
      flight,
      tasks,
      tasks.map(({ position }) => flight.parts.intentOf(position)),
    )
}

/**
 * The intents of earlier holders, by name: it adopts live tasks, collects ended ones, starts those
 * that never started.
 */
const findNow = async (flight: Underway, tasks: readonly Flying[]): Promise<void> => {
  for (const task of tasks) Object.assign(task, { question: undefined, dueAt: Infinity })
  const states = await flight.parts.driver.find(tasks.map(({ name }) => name)).catch(errorOf)
  if (states instanceof DriverError) {
    for (const task of tasks) unanswered(flight, task, 'find', states)
    return
  }
  const alive: Flying[] = []
  const fresh: Flying[] = []
  for (const task of tasks) {
    if (!flight.flying.has(task.name)) continue
    const state = states.get(task.name) ?? { state: 'unknown' }
    answered(flight, task)
    task.maybeThere &&= state.state !== 'unknown'
    if (state.state === 'unknown') fresh.push(task)
    else if (state.state === 'running' || state.state === 'queued') {
      alive.push(task)
      show(flight, task, state)
    } else collectEnded(flight, task)
  }
  watch(flight, alive)
  // Tasks that are being ended do not start any more: the site has the request to end them.
  if (flight.cancelledAt === undefined) launchAgain(flight, fresh)
  else
    for (const task of fresh)
      Object.assign(task, { question: 'collect', dueAt: flight.parts.clock() + firstPauseSeconds })
}
const find = (flight: Underway, tasks: readonly Flying[]): void =>
  void findNow(flight, tasks).catch(flight.parts.fault)

const show = (flight: Underway, task: Flying, state: TaskState): void => {
  if (state.state === 'running') {
    task.lookAt = flight.parts.clock() + runningLookSeconds
    const { externalId, cause } = state
    const reason = cause === undefined ? undefined : `at the site: ${cause}`
    if (task.runs && reason === task.reason) return
    task.runs = true
    const wait = reason === undefined ? { reason: null } : { reason, waitsFor: 'site' as const }
    report(flight, task, { status: 'running', externalId, ...wait })
  } else if (state.state === 'queued') {
    task.runs = false
    const reason = `at the site: ${reasonText(state.cause ?? 'queued')}`
    if (reason !== task.reason)
      report(flight, task, { status: 'queued', externalId: state.externalId, reason, waitsFor: 'queue' })
    task.lookAt = flight.parts.clock() + task.lookPause
    task.lookPause = Math.min(task.lookPause * 2, longestLookSeconds)
  }
}
/** The answer to a submit takes long: its files are on their way, or the site does not answer. */
const showSlow = (flight: Underway, task: Flying): void => {
  task.slowAt = Infinity
  // Its reason for waiting is unchanged.
  if (task.silentSince !== undefined) return
  if (task.stages !== '')
    report(flight, task, { reason: `waiting for data: ${task.stages}`, waitsFor: 'data' })
  else
    report(flight, task, {
      status: 'queued',
      reason: `waiting for ${flight.parts.site}: it has not answered yet`,
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
/** Looks at long tasks to show them; their ends come by `watch`, so silence here means nothing. */
const look = async (flight: Underway, tasks: readonly Flying[]): Promise<void> => {
  const now = flight.parts.clock()
  for (const task of tasks) {
    task.lookAt = now + task.lookPause
    task.lookPause = Math.min(task.lookPause * 2, longestLookSeconds)
  }
  const states = await flight.parts.driver
    .find(tasks.map(({ name }) => name))
    .catch(() => new Map<string, TaskState>())
  for (const task of tasks) {
    const state = states.get(task.name)
    if (state !== undefined && flight.flying.has(task.name)) show(flight, task, state)
  }
}

const abandon = (flight: Underway, words: string): void => {
  for (const task of [...flight.flying.values()]) finish(flight, task, { kind: 'unstopped', words })
}
const askToStop = async (flight: Underway): Promise<void> => {
  flight.asking = true
  const names = [...flight.flying.keys()]
  try {
    await flight.parts.driver.cancel(names, cancelGraceSeconds)
    flight.stopTrouble = undefined
    flight.askAgainAt = Infinity
    for (const name of names) {
      const task = flight.flying.get(name)
      if (task !== undefined) collect(flight, task)
    }
  } catch (error) {
    flight.stopTrouble = errorOf(error).message
    flight.askAgainAt = flight.parts.clock() + flight.askPause
    flight.askPause = Math.min(flight.askPause * 2, longestPauseSeconds)
  } finally {
    flight.asking = false
  }
}
const seeToStop = (flight: Underway, now: number, since: number): void => {
  if (flight.flying.size === 0) return
  if (now - since >= silentStopSeconds)
    abandon(
      flight,
      flight.stopTrouble ?? `${flight.parts.site} did not confirm it within ${String(silentStopSeconds)} s`,
    )
  else if (flight.asking) return
  else if (flight.stopTrouble !== undefined && now - since >= unreachableStopSeconds)
    abandon(flight, flight.stopTrouble)
  else if (now >= flight.askAgainAt) void askToStop(flight).catch(flight.parts.fault)
}

/** Makes the due queries, and pursues the requested ends. */
const turn = (flight: Underway): void => {
  const now = flight.parts.clock()
  if (flight.cancelledAt !== undefined) seeToStop(flight, now, flight.cancelledAt)
  const due: Record<Question, Flying[]> = { submit: [], find: [], collect: [] }
  const looks: Flying[] = []
  for (const task of flight.flying.values()) {
    if (task.question !== undefined && task.dueAt <= now) due[task.question].push(task)
    else if (task.lookAt <= now) looks.push(task)
    if (task.slowAt <= now) showSlow(flight, task)
    if (task.longAt <= now) showLong(flight, task)
  }
  launchAgain(flight, due.submit)
  if (due.find.length > 0) find(flight, due.find)
  for (const task of due.collect) {
    task.dueAt = Infinity
    collect(flight, task)
  }
  if (looks.length > 0) void look(flight, looks).catch(flight.parts.fault)
}

export type Flight = ReturnType<typeof openFlight>
