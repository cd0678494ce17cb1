import type { Capability, Collected, Intent, LogRange, LogSlice, TaskState } from '../contract/driver.ts'
import type { RemoteSight } from '../remote/record.ts'
import type { ArrayElement } from './array-script.ts'
import type { Verdict } from './verdict.ts'

/** The place of a task at the scheduler: an element of an array. */
export interface QueuedElement {
  array: string
  index: number
  /** Seconds since epoch. */
  submittedAt: number
  /** The task's time limit from the request; absent: the scheduler's default. */
  limitSeconds?: number
  /** The scheduler's id of the array; absent while it is unknown whether the array was accepted. */
  job?: string
}

/** Tasks with equal requests, submitted together. */
export interface BatchArray<Request> {
  /**
   * A hash of the tasks' names, by which the scheduler can be queried when the answer of a submit
   * was lost.
   */
  name: string
  request: Request
  tasks: readonly string[]
  limitSeconds?: number
}

/** One element of an array that the scheduler has accepted. */
export interface BatchElement {
  name: string
  array: string
  job: string
  index: number
}

/**
 * All facts about a task that was given to the scheduler, besides the scheduler's present state.
 */
export interface BatchEvidence {
  name: string
  /** The task's own record: it has priority wherever it records an end. */
  sight: RemoteSight
  place: QueuedElement
  /** The service asked for its end. */
  cancelAsked: boolean
  /**
   * Since when every answer reports it as over, milliseconds of `performance.now()`; absent: this
   * answer is the first.
   */
  overSince?: number
  /** Its start, according to the scheduler's last report that it runs; Unix seconds. */
  ranSince?: number
  /** This driver took it out of the queue, for this reason, in the scheduler's message. */
  removed?: string
}

export interface BatchJudgement {
  state: TaskState
  /** The scheduler reports it as over: the time to settle runs. */
  over: boolean
  /**
   * An end that the task's own record does not hold. It is written at the site before any caller
   * receives it, so that it does not change.
   */
  verdict?: Verdict
  /** Why it would wait for ever, in the scheduler's message: it is taken out of the queue. */
  impossible?: string
  /**
   * Why the site holds it, in the scheduler's message: it is taken out of the queue, and another
   * attempt may do better.
   */
  held?: string
}

/** How intents become requests now; the limits of a cluster change. */
export interface BatchTerms<Request> {
  /** @throws DriverError `refused` naming field and remedy. */
  requestOf(intent: Intent): Request
  /** Largest number of tasks in one array. */
  arraySize: number
  /** Further input of the hash for an array's name, besides the names of its tasks. */
  nameWords?: readonly string[]
  limitSecondsOf?: (request: Request) => number | undefined
}

/**
 * A batch system as `openBatchDriver` needs it: it submits an array, lists all of ours, judges a
 * task by its record and the list, and cancels elements. The driver keeps what all of them share
 * (claims of names, submissions, verdicts, looks, cancels, collects) at the site, so an adapter holds
 * nothing that another process lacks.
 *
 * A call without an answer rejects with `DriverError` class `unknown`: nothing is known then. A
 * submit that the scheduler refuses rejects with `refused` and the scheduler's message; one for
 * which it has no room now rejects with `NoRoom`: it accepted nothing.
 */
export interface BatchScheduler<Request, Listing> {
  /** The driver's kind, in messages too. */
  readonly kind: string
  readonly capabilities: Readonly<Record<Capability, boolean>>
  /**
   * A submitter that has not reported after this long counts as dead. @throws DriverError `refused`
   * for a wrong configuration
   */
  claimSeconds(): number
  terms(): Promise<BatchTerms<Request>>
  /** Why a request that can never run is not submitted again, with the scheduler's message. */
  hopeless(request: Request, words: string): string
  /**
   * The script of an array, as text for its file: it finds the element's script and becomes that
   * task's supervisor. `pack`: the file with the texts of tasks that create their own script.
   */
  script(array: BatchArray<Request>, elements: readonly ArrayElement[], pack: string): Promise<string>
  /** Whether an array may be submitted without some of its indexes. */
  readonly leavesOut: boolean
  /**
   * Submits the elements `indexes` of an array whose script is in the folder `arrays/ARRAY` of the
   * site, and leaves its id there. A second call submits nothing new only where the scheduler knows
   * arrays by name; elsewhere the records of submissions prevent it.
   * @returns the id.
   */
  submit(array: BatchArray<Request>, indexes: readonly number[]): Promise<string>
  /**
   * The id of an array of this account with exactly this name, whose submission is not recorded;
   * undefined: the scheduler has answered and has none. Several have the name where a submit
   * without an answer was repeated: `judge` and `cancel` mean an element in all of them.
   */
  find(array: string): Promise<string | undefined>
  /**
   * The scheduler's state of these, and of all others of ours if that costs no more. Silence is
   * part of the answer, not an error.
   */
  list(places: readonly { name: string; place: QueuedElement }[]): Promise<Listing>
  /** Pure but for the clock; without a listing the scheduler is silent. */
  judge(evidence: BatchEvidence, listing: Listing | undefined): BatchJudgement
  /**
   * Whether the record alone explains why a task ended; default: it does, unless the site stopped
   * the task without a cancel.
   */
  explains?(sight: Extract<RemoteSight, { form: 'ended' }>, cancelAsked: boolean): boolean
  /**
   * Whether `list` costs little: an end that the record does not explain is then looked up at once.
   */
  readonly answersPromptly: boolean
  /**
   * `waiting`: removes elements that have not started. `polite`: asks the supervisors of the others
   * to end their tasks. `forced`: ends them with all their processes. An element that has ended
   * meanwhile is no error.
   */
  cancel(
    elements: readonly BatchElement[],
    how: 'waiting' | 'polite' | 'forced',
    graceSeconds: number,
  ): Promise<void>
  /**
   * Seconds after which a polite cancel is repeated, and after the end of the grace a forced one
   * follows; absent: never.
   */
  readonly cancelSteps: { politeAgain?: number; forcedAfterGrace?: number }
  /**
   * An element that ended by the scheduler's report alone is cancelled by force before any caller
   * learns of that end: nothing of it runs beside the next attempt. A cancel takes elements of ended
   * tasks out of the queue.
   */
  readonly cancelsOver?: true
  /** The element's name outside this service; default `elementId`. */
  externalIdOf?(place: QueuedElement): string
  /**
   * Arrays whose tasks are all over, or forgotten: the scheduler's remains of them may be removed.
   */
  drop?(arrays: readonly string[]): Promise<void>
  /**
   * Names that are in no book because the site has lost its files, though the scheduler had them.
   * Ends their remaining processes: they are lost when the scheduler says that none is left.
   */
  strays?(names: readonly string[]): Promise<Map<string, Exclude<TaskState, { state: 'unknown' }>>>
  /**
   * Reports ends from the scheduler, beside the site's own stream of ends; the returned function
   * stops it.
   */
  onEnds?(ended: (name: string) => void): () => void
  /** The end of an element's task is known: it needs no more reports. */
  settled?(place: QueuedElement): void
  /**
   * The scheduler's facts about a task that is over; `ran`: its own record holds its end.
   * `measured`: that record has its peak memory. `outOfMemory`: it says that the task had too
   * little, whatever its exit code.
   */
  about?(task: {
    name: string
    place: QueuedElement | undefined
    sight: RemoteSight
    measured: boolean
  }): Promise<Partial<Pick<Collected, 'node' | 'detail' | 'peakMemoryBytes'>> & { outOfMemory?: true }>
  /** Output of a running task where the site does not have it yet; undefined: the site has it. */
  logs?(
    name: string,
    place: QueuedElement | undefined,
    stream: 'stdout' | 'stderr',
    range: LogRange,
  ): Promise<LogSlice | undefined>
  /** The name is not queried again. */
  forget?(name: string, place: QueuedElement | undefined): Promise<void>
  close?(): void
}

/**
 * The scheduler accepts no more jobs now: this user has too many, or all users together. `smaller`:
 * fewer at once might find room.
 */
export class NoRoom extends Error {
  readonly smaller: boolean
  constructor(words: string, { smaller = true, ...options }: ErrorOptions & { smaller?: boolean } = {}) {
    super(words, options)
    this.name = 'NoRoom'
    this.smaller = smaller
  }
}

/** `JOB_INDEX`; the array's name instead where the job is unknown. */
export const elementId = ({ array, job, index }: QueuedElement): string =>
  job === undefined ? array : `${job}_${index}`

export const externalIdIn = (
  scheduler: Pick<BatchScheduler<never, never>, 'externalIdOf'>,
  place: QueuedElement,
): string => scheduler.externalIdOf?.(place) ?? elementId(place)
