import { DriverError, type Collected, type Intent, type RuntimeDriver, type TaskState } from '../drivers/runtime/driver.ts'
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

/**
 * The tasks of a site whose intents are committed, until their ends are known: everything that is said to the driver about them.
 *
 * A site that does not answer is asked again, each task by itself under its own name, and no other task waits for it: what cannot be
 * submitted is submitted again, what cannot be collected is collected later. Only after `silentSeconds` is silence an outcome.
 */
export const openFlight = (parts: FlightParts) => {
  const { driver, site, clock } = parts
  const flying = new Map<string, Flying>()
  const stops: (() => void)[] = []
  let closed = false
  let cancelledAt: number | undefined
  let stopTrouble: string | undefined
  let asking = false
  let askAgainAt = 0
  let askPause = firstPauseSeconds

  const add = (position: number, name: string, silentSince: number | undefined): Flying => {
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
    flying.set(name, task)
    return task
  }
  const finish = (task: Flying, outcome: Outcome): void => {
    if (flying.delete(task.name)) parts.ended(task.position, outcome)
  }
  const tell = (task: Flying, sight: Sight): void => {
    const { reason } = sight
    if (reason !== undefined) {
      if ((reason ?? undefined) === task.reason && sight.status === undefined) return
      task.reason = reason ?? undefined
    }
    parts.seen(task.position, sight)
  }

  /** The site has answered about this task; what waits for the same link need not wait out its pause. */
  const answered = (task: Flying): void => {
    if (task.linkLost)
      for (const other of flying.values())
        if (other.linkLost && other.question !== undefined) other.dueAt = Math.min(other.dueAt, clock() + firstPauseSeconds)
    task.question = undefined
    task.dueAt = Infinity
    task.pause = firstPauseSeconds
    task.linkLost = false
    if (task.silentSince === undefined) return
    task.silentSince = undefined
    if (task.reason !== undefined) tell(task, { reason: null })
  }

  const unanswered = (task: Flying, question: Question, error: DriverError): void => {
    if (!flying.has(task.name)) return
    const now = clock()
    task.silentSince ??= now
    const link = linkErrorOf(error)
    const words = `waiting for ${link?.waitsForPerson === true ? 'login to ' : ''}${site}: ${error.message}`
    if (now - task.silentSince >= parts.silentSeconds) {
      finish(task, { kind: 'silent', words: error.message })
      return
    }
    // What is being ended is not started any more.
    task.question = question === 'submit' && cancelledAt !== undefined ? 'collect' : question
    task.linkLost = link !== undefined
    task.dueAt = now + task.pause
    task.pause = Math.min(task.pause * 2, longestPauseSeconds)
    tell(task, { reason: words, silentSince: task.silentSince })
  }

  /** What an ended task left behind; undefined when that is not known yet and has to be asked again. */
  const outcomeOf = async (task: Flying): Promise<Outcome | undefined> => {
    try {
      const collected = await driver.collect(task.name)
      return collected.state.state === 'lost' ? { kind: 'lost', cause: collected.state.cause } : { kind: 'collected', collected }
    } catch (error) {
      // A login that is refused says nothing about the task.
      if (errorOf(error).trouble === 'refused' && linkErrorOf(error) === undefined) return { kind: 'refused', error: errorOf(error) }
      // Either the site does not answer, or there is nothing to collect because the task was lost.
      try {
        const state = errorOf(error).trouble === 'unknown' ? (await driver.find([task.name])).get(task.name) : undefined
        if (state?.state === 'lost') return { kind: 'lost', cause: state.cause }
        unanswered(task, state?.state === 'unknown' ? 'submit' : 'collect', errorOf(error))
      } catch (again) {
        unanswered(task, 'collect', errorOf(again))
      }
      return undefined
    }
  }
  const collectNow = async (task: Flying): Promise<void> => {
    if (task.collecting || !flying.has(task.name)) return
    task.collecting = true
    const outcome = await outcomeOf(task)
    task.collecting = false
    if (outcome === undefined) return
    parts.failpoint('ended-not-recorded')
    answered(task)
    finish(task, outcome)
  }
  const collect = (task: Flying): void => void collectNow(task).catch(parts.fault)

  const watch = (tasks: readonly Flying[]): void => {
    if (tasks.length === 0 || closed) return
    const names = tasks.map(({ name }) => name)
    stops.push(
      driver.watch(names, (name) => {
        const task = flying.get(name)
        if (task !== undefined) collect(task)
      }),
    )
  }

  const refused = (task: Flying, error: DriverError): void => {
    if (error.trouble === 'unknown') unanswered(task, 'submit', error)
    else finish(task, { kind: 'refused', error })
  }
  const submitNow = async (tasks: readonly Flying[], intents: readonly Intent[]): Promise<void> => {
    for (const task of tasks) Object.assign(task, { question: undefined, dueAt: Infinity })
    parts.failpoint('intended-not-started')
    const answer = await driver.submit(intents).catch(errorOf)
    parts.failpoint('started-not-watched')
    if (answer instanceof DriverError) {
      for (const task of tasks) refused(task, answer)
      return
    }
    const accepted: Flying[] = []
    for (const outcome of answer) {
      const task = flying.get(outcome.name)
      if (task === undefined) continue
      if (outcome.ok) {
        answered(task)
        task.lookAt = clock() + firstLookSeconds
        accepted.push(task)
      } else refused(task, outcome.error)
    }
    watch(accepted)
  }
  const submit = (tasks: readonly Flying[], intents: readonly Intent[]): void => void submitNow(tasks, intents).catch(parts.fault)
  /** Those without files to stage go together; a long staging must not keep the ends of the others from being seen. */
  const launch = (tasks: readonly Flying[], intents: readonly Intent[]): void => {
    const together = intents.map((intent) => driver.capabilities.batch && intent.stage.length === 0)
    const batch = tasks.filter((_, k) => together[k])
    if (batch.length > 0)
      submit(
        batch,
        intents.filter((_, k) => together[k]),
      )
    for (const [k, task] of tasks.entries()) if (together[k] === false) submit([task], [intents[k] as Intent])
  }
  const launchAgain = (tasks: readonly Flying[]): void => {
    if (tasks.length > 0)
      launch(
        tasks,
        tasks.map(({ position }) => parts.intentOf(position)),
      )
  }

  /** What earlier holders intended, by name: adopt what lives, collect what ended, start what never started. */
  const findNow = async (tasks: readonly Flying[]): Promise<void> => {
    for (const task of tasks) Object.assign(task, { question: undefined, dueAt: Infinity })
    const states = await driver.find(tasks.map(({ name }) => name)).catch(errorOf)
    if (states instanceof DriverError) {
      for (const task of tasks) unanswered(task, 'find', states)
      return
    }
    const alive: Flying[] = []
    const fresh: Flying[] = []
    for (const task of tasks) {
      if (!flying.has(task.name)) continue
      const state = states.get(task.name) ?? { state: 'unknown' }
      answered(task)
      if (state.state === 'unknown') fresh.push(task)
      else if (state.state === 'running' || state.state === 'queued') {
        alive.push(task)
        show(task, state)
      } else collect(task)
    }
    watch(alive)
    // What is being ended is not started any more: the site has been asked to see to it.
    if (cancelledAt === undefined) launchAgain(fresh)
    else for (const task of fresh) Object.assign(task, { question: 'collect', dueAt: clock() + firstPauseSeconds })
  }
  const find = (tasks: readonly Flying[]): void => void findNow(tasks).catch(parts.fault)

  const show = (task: Flying, state: TaskState): void => {
    if (state.state === 'running') {
      task.lookAt = Infinity
      tell(task, { status: 'running', externalId: state.externalId, reason: null })
    } else if (state.state === 'queued') {
      const reason = `at the site: ${state.cause ?? 'queued'}`
      if (reason !== task.reason) tell(task, { status: 'queued', externalId: state.externalId, reason })
      task.lookAt = clock() + task.lookPause
      task.lookPause = Math.min(task.lookPause * 2, longestLookSeconds)
    }
  }
  /** To show those that take long; their ends come by `watch`, so silence here says nothing. */
  const look = async (tasks: readonly Flying[]): Promise<void> => {
    const now = clock()
    for (const task of tasks) {
      task.lookAt = now + task.lookPause
      task.lookPause = Math.min(task.lookPause * 2, longestLookSeconds)
    }
    const states = await driver.find(tasks.map(({ name }) => name)).catch(() => new Map<string, TaskState>())
    for (const task of tasks) {
      const state = states.get(task.name)
      if (state !== undefined && flying.has(task.name)) show(task, state)
    }
  }

  const abandon = (words: string): void => {
    for (const task of [...flying.values()]) finish(task, { kind: 'unstopped', words })
  }
  const askToStop = async (): Promise<void> => {
    asking = true
    const names = [...flying.keys()]
    try {
      await driver.cancel(names, cancelGraceSeconds)
      stopTrouble = undefined
      askAgainAt = Infinity
      for (const name of names) {
        const task = flying.get(name)
        if (task !== undefined) collect(task)
      }
    } catch (error) {
      stopTrouble = errorOf(error).message
      askAgainAt = clock() + askPause
      askPause = Math.min(askPause * 2, longestPauseSeconds)
    } finally {
      asking = false
    }
  }
  const seeToStop = (now: number, since: number): void => {
    if (flying.size === 0) return
    if (now - since >= silentStopSeconds) abandon(stopTrouble ?? `${site} did not confirm it within ${String(silentStopSeconds)} s`)
    else if (asking) return
    else if (stopTrouble !== undefined && now - since >= unreachableStopSeconds) abandon(stopTrouble)
    else if (now >= askAgainAt) void askToStop().catch(parts.fault)
  }

  return {
    /** Tasks whose ends are not known. */
    get size(): number {
      return flying.size
    },
    /** Which of them the site knows by this name. */
    positionOf: (name: string): number | undefined => flying.get(name)?.position,
    positions: (): number[] => [...flying.values()].map(({ position }) => position),
    /** Starts what has just been committed. */
    start(tasks: readonly { position: number; name: string; intent: Intent }[]): void {
      launch(
        tasks.map(({ position, name }) => add(position, name, undefined)),
        tasks.map(({ intent }) => intent),
      )
    },
    /** Takes over what an earlier holder intended. `silentSince`: since when the site has not answered about it. */
    adopt(tasks: readonly { position: number; name: string; silentSince: number | undefined }[]): void {
      if (tasks.length > 0) find(tasks.map(({ position, name, silentSince }) => add(position, name, silentSince)))
    },
    /** Asks what is due to be asked, and sees to it that what is to end ends. Called whenever the executor has a turn. */
    turn(): void {
      const now = clock()
      if (cancelledAt !== undefined) seeToStop(now, cancelledAt)
      const due: Record<Question, Flying[]> = { submit: [], find: [], collect: [] }
      const looks: Flying[] = []
      for (const task of flying.values()) {
        if (task.question !== undefined && task.dueAt <= now) due[task.question].push(task)
        else if (task.lookAt <= now) looks.push(task)
      }
      launchAgain(due.submit)
      if (due.find.length > 0) find(due.find)
      for (const task of due.collect) {
        task.dueAt = Infinity
        collect(task)
      }
      if (looks.length > 0) void look(looks).catch(parts.fault)
    },
    /** Seconds since the epoch at which `turn` has something to do; Infinity when nothing is due by itself. */
    get dueAt(): number {
      let due = Infinity
      for (const task of flying.values()) due = Math.min(due, task.dueAt, task.lookAt)
      return cancelledAt === undefined || flying.size === 0 ? due : Math.min(due, clock() + firstPauseSeconds)
    },
    /** Ends everything, now and what is still on its way. Idempotent. */
    cancel(): void {
      if (cancelledAt !== undefined) return
      cancelledAt = clock()
      for (const task of flying.values()) if (task.question === 'submit') task.question = 'collect'
      this.turn()
    },
    /** Lets go of everything; what runs goes on. */
    close(): void {
      closed = true
      for (const stop of stops) stop()
      flying.clear()
    },
  }
}

export type Flight = ReturnType<typeof openFlight>
