import { DriverError, type Collected, type Intent, type RuntimeDriver, type TaskState } from '../drivers/runtime/contract/driver.ts'
import { LinkError } from '../drivers/shell.ts'

/** What became of a task whose intent is committed. */
export type Outcome =
  | { kind: 'collected'; collected: Collected }
  /** Accepted once, not alive, left no exit; `cause` in the site's words. */
  | { kind: 'lost'; cause: string | undefined }
  /** The site did not take it, or could not give it what it needs (an image that does not exist). */
  | { kind: 'refused'; error: DriverError }
  /** The site did not answer for longer than it is waited for; what became of the task is not known. */
  | { kind: 'silent'; words: string }
  /** To be ended, and the site did not say in time that it is. */
  | { kind: 'unstopped'; words: string }

/** What is to be shown of a task that goes on; what is absent stays as it is. */
export interface Sight {
  status?: 'queued' | 'running'
  externalId?: string
  /** Null: nothing is waited for any more. */
  reason?: string | null
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
  /** A site that does not answer is asked again for this long. */
  silentSeconds: number
  intentOf: (position: number) => Intent
  ended: (position: number, outcome: Outcome) => void
  seen: (position: number, sight: Sight) => void
  /** What `intentOf`, `ended` or `seen` threw: a fault of the engine, not of the site. */
  fault: (error: unknown) => void
}

/** A question that was not answered is asked again after this, doubled up to the other. */
const firstPauseSeconds = 0.5
const longestPauseSeconds = 30
/** A task still alive after this long is looked at, to be shown as running or queued; shorter ones go from `preparing` to their end in one write. */
const firstLookSeconds = 0.15
/** One that waits in the site's queue is looked at again after this, doubled up to the other. */
const nextLookSeconds = 1
const longestLookSeconds = 15
/** A site that cannot be reached has this long to end what it is asked to end, one that does not answer at all the other. */
const unreachableStopSeconds = 5
const silentStopSeconds = 15
const cancelGraceSeconds = 5

type Question = 'submit' | 'find' | 'collect'

interface Flying {
  position: number
  name: string
  /** What is to be asked, from `dueAt` on; undefined while there is an answer to come, or nothing to ask but its end. */
  question: Question | undefined
  dueAt: number
  pause: number
  /** Since when the site has not answered about it. */
  silentSince: number | undefined
  /** The trouble is the link's, not this task's. */
  linkLost: boolean
  collecting: boolean
  reason: string | undefined
  lookAt: number
  lookPause: number
}

const errorOf = (error: unknown): DriverError =>
  error instanceof DriverError ? error : new DriverError('unknown', (error as Error).message, { cause: error })

const linkErrorOf = (error: unknown): LinkError | undefined => {
  for (let cause: unknown = error; cause instanceof Error; cause = cause.cause) if (cause instanceof LinkError) return cause
  return undefined
}

/** What is under way at a site, and the trouble with ending it. */
interface Underway {
  parts: FlightParts
  flying: Map<string, Flying>
  stops: (() => void)[]
  closed: boolean
  cancelledAt: number | undefined
  /** Why the site could not be asked to end what is under way. */
  stopTrouble: string | undefined
  asking: boolean
  askAgainAt: number
  askPause: number
}

/**
 * The tasks of a site whose intents are committed, until their ends are known: every call of the driver about them.
 *
 * A site that does not answer is asked again, each task by itself under its own name, and no other task waits for it: what cannot be
 * submitted is submitted again, what cannot be collected is collected later. Only after `silentSeconds` is silence an outcome.
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
    /** Tasks whose ends are not known. */
    get size(): number {
      return flying.size
    },
    /** Which of them the site knows by this name. */
    positionOf: (name: string): number | undefined => flying.get(name)?.position,
    /** Starts what has just been committed. */
    start(tasks: readonly { position: number; name: string; intent: Intent }[]): void {
      launch(
        flight,
        tasks.map(({ position, name }) => add(flight, position, name, undefined)),
        tasks.map(({ intent }) => intent),
      )
    },
    /** Takes over what an earlier holder intended. `silentSince`: since when the site has not answered about it. */
    adopt(tasks: readonly { position: number; name: string; silentSince: number | undefined }[]): void {
      if (tasks.length === 0) return
      find(
        flight,
        tasks.map(({ position, name, silentSince }) => add(flight, position, name, silentSince)),
      )
    },
    /** Asks what is due to be asked, and sees to it that what is to end ends. Called whenever the executor has a turn. */
    turn: (): void => {
      turn(flight)
    },
    /** Seconds since the epoch at which `turn` has something to do; Infinity when nothing is due by itself. */
    get dueAt(): number {
      let due = Infinity
      for (const task of flying.values()) due = Math.min(due, task.dueAt, task.lookAt)
      return flight.cancelledAt === undefined || flying.size === 0 ? due : Math.min(due, parts.clock() + firstPauseSeconds)
    },
    /** Ends everything, now and what is still on its way. Idempotent. */
    cancel(): void {
      if (flight.cancelledAt !== undefined) return
      flight.cancelledAt = parts.clock()
      for (const task of flying.values()) if (task.question === 'submit') task.question = 'collect'
      turn(flight)
    },
    /** Lets go of everything; what runs goes on. */
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
    linkLost: false,
    collecting: false,
    // What the row says of an earlier holder's waiting is to be taken back at the first answer.
    reason: silentSince === undefined ? undefined : '',
    lookAt: Infinity,
    lookPause: nextLookSeconds,
  }
  flight.flying.set(name, task)
  return task
}
const finish = (flight: Underway, task: Flying, outcome: Outcome): void => {
  if (flight.flying.delete(task.name)) flight.parts.ended(task.position, outcome)
}
const tell = (flight: Underway, task: Flying, sight: Sight): void => {
  const { reason } = sight
  if (reason !== undefined) {
    if ((reason ?? undefined) === task.reason && sight.status === undefined) return
    task.reason = reason ?? undefined
  }
  flight.parts.seen(task.position, sight)
}

/** The site has answered about this task; what waits for the same link need not wait out its pause. */
const answered = (flight: Underway, task: Flying): void => {
  if (task.linkLost)
    for (const other of flight.flying.values())
      if (other.linkLost && other.question !== undefined) other.dueAt = Math.min(other.dueAt, flight.parts.clock() + firstPauseSeconds)
  task.question = undefined
  task.dueAt = Infinity
  task.pause = firstPauseSeconds
  task.linkLost = false
  if (task.silentSince === undefined) return
  task.silentSince = undefined
  if (task.reason !== undefined) tell(flight, task, { reason: null })
}

const unanswered = (flight: Underway, task: Flying, question: Question, error: DriverError): void => {
  if (!flight.flying.has(task.name)) return
  const now = flight.parts.clock()
  task.silentSince ??= now
  const link = linkErrorOf(error)
  const words = `waiting for ${link?.waitsForPerson === true ? 'login to ' : ''}${flight.parts.site}: ${error.message}`
  if (now - task.silentSince >= flight.parts.silentSeconds) {
    finish(flight, task, { kind: 'silent', words: error.message })
    return
  }
  // What is being ended is not started any more.
  task.question = question === 'submit' && flight.cancelledAt !== undefined ? 'collect' : question
  task.linkLost = link !== undefined
  task.dueAt = now + task.pause
  task.pause = Math.min(task.pause * 2, longestPauseSeconds)
  tell(flight, task, { reason: words, silentSince: task.silentSince })
}

/** What an ended task left behind; undefined when that is not known yet and has to be asked again. */
const outcomeOf = async (flight: Underway, task: Flying): Promise<Outcome | undefined> => {
  try {
    const collected = await flight.parts.driver.collect(task.name)
    return collected.state.state === 'lost' ? { kind: 'lost', cause: collected.state.cause } : { kind: 'collected', collected }
  } catch (error) {
    // A login that is refused says nothing about the task.
    if (errorOf(error).trouble === 'refused' && linkErrorOf(error) === undefined) return { kind: 'refused', error: errorOf(error) }
    // Either the site does not answer, or there is nothing to collect because the task was lost.
    try {
      const state = errorOf(error).trouble === 'unknown' ? (await flight.parts.driver.find([task.name])).get(task.name) : undefined
      if (state?.state === 'lost') return { kind: 'lost', cause: state.cause }
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
const collect = (flight: Underway, task: Flying): void => void collectNow(flight, task).catch(flight.parts.fault)

const watch = (flight: Underway, tasks: readonly Flying[]): void => {
  if (tasks.length === 0 || flight.closed) return
  const names = tasks.map(({ name }) => name)
  flight.stops.push(
    flight.parts.driver.watch(names, (name) => {
      const task = flight.flying.get(name)
      if (task !== undefined) collect(flight, task)
    }),
  )
}

const refused = (flight: Underway, task: Flying, error: DriverError): void => {
  if (error.trouble === 'unknown') unanswered(flight, task, 'submit', error)
  else finish(flight, task, { kind: 'refused', error })
}
const submitNow = async (flight: Underway, tasks: readonly Flying[], intents: readonly Intent[]): Promise<void> => {
  for (const task of tasks) Object.assign(task, { question: undefined, dueAt: Infinity })
  flight.parts.failpoint('intended-not-started')
  const answer = await flight.parts.driver.submit(intents).catch(errorOf)
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
      answered(flight, task)
      task.lookAt = flight.parts.clock() + firstLookSeconds
      accepted.push(task)
    } else refused(flight, task, outcome.error)
  }
  watch(flight, accepted)
}
const submit = (flight: Underway, tasks: readonly Flying[], intents: readonly Intent[]): void =>
  void submitNow(flight, tasks, intents).catch(flight.parts.fault)
/** Those without files to stage go together; a long staging must not keep the ends of the others from being seen. */
const launch = (flight: Underway, tasks: readonly Flying[], intents: readonly Intent[]): void => {
  const together = intents.map((intent) => flight.parts.driver.capabilities.batch && intent.stage.length === 0)
  const batch = tasks.filter((_, k) => together[k])
  if (batch.length > 0)
    submit(
      flight,
      batch,
      intents.filter((_, k) => together[k]),
    )
  for (const [k, task] of tasks.entries()) if (together[k] === false) submit(flight, [task], [intents[k] as Intent])
}
const launchAgain = (flight: Underway, tasks: readonly Flying[]): void => {
  if (tasks.length > 0)
    launch(
      flight,
      tasks,
      tasks.map(({ position }) => flight.parts.intentOf(position)),
    )
}

/** What earlier holders intended, by name: adopt what lives, collect what ended, start what never started. */
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
    if (state.state === 'unknown') fresh.push(task)
    else if (state.state === 'running' || state.state === 'queued') {
      alive.push(task)
      show(flight, task, state)
    } else collect(flight, task)
  }
  watch(flight, alive)
  // What is being ended is not started any more: the site has been asked to see to it.
  if (flight.cancelledAt === undefined) launchAgain(flight, fresh)
  else for (const task of fresh) Object.assign(task, { question: 'collect', dueAt: flight.parts.clock() + firstPauseSeconds })
}
const find = (flight: Underway, tasks: readonly Flying[]): void => void findNow(flight, tasks).catch(flight.parts.fault)

const show = (flight: Underway, task: Flying, state: TaskState): void => {
  if (state.state === 'running') {
    task.lookAt = Infinity
    tell(flight, task, { status: 'running', externalId: state.externalId, reason: null })
  } else if (state.state === 'queued') {
    const reason = `at the site: ${state.cause ?? 'queued'}`
    if (reason !== task.reason) tell(flight, task, { status: 'queued', externalId: state.externalId, reason })
    task.lookAt = flight.parts.clock() + task.lookPause
    task.lookPause = Math.min(task.lookPause * 2, longestLookSeconds)
  }
}
/** To show those that take long; their ends come by `watch`, so silence here says nothing. */
const look = async (flight: Underway, tasks: readonly Flying[]): Promise<void> => {
  const now = flight.parts.clock()
  for (const task of tasks) {
    task.lookAt = now + task.lookPause
    task.lookPause = Math.min(task.lookPause * 2, longestLookSeconds)
  }
  const states = await flight.parts.driver.find(tasks.map(({ name }) => name)).catch(() => new Map<string, TaskState>())
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
    abandon(flight, flight.stopTrouble ?? `${flight.parts.site} did not confirm it within ${String(silentStopSeconds)} s`)
  else if (flight.asking) return
  else if (flight.stopTrouble !== undefined && now - since >= unreachableStopSeconds) abandon(flight, flight.stopTrouble)
  else if (now >= flight.askAgainAt) void askToStop(flight).catch(flight.parts.fault)
}

/** Asks what is due to be asked, and sees to it that what is to end ends. */
const turn = (flight: Underway): void => {
  const now = flight.parts.clock()
  if (flight.cancelledAt !== undefined) seeToStop(flight, now, flight.cancelledAt)
  const due: Record<Question, Flying[]> = { submit: [], find: [], collect: [] }
  const looks: Flying[] = []
  for (const task of flight.flying.values()) {
    if (task.question !== undefined && task.dueAt <= now) due[task.question].push(task)
    else if (task.lookAt <= now) looks.push(task)
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
