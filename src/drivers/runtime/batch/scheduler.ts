import type { Capability, Collected, Intent, LogSlice, TaskState } from '../contract/driver.ts'
import type { RemoteSight } from '../remote/record.ts'
import type { ArrayElement } from './array-script.ts'
import type { Verdict } from './verdict.ts'

/** Where a task stands in the scheduler's books: an element of an array. */
export interface BatchPlace {
  array: string
  index: number
  /** Seconds since epoch. */
  submittedAt: number
  /** What it may take, by what was asked for; absent: what the scheduler gives. */
  limitSeconds?: number
  /** The scheduler's id of the array; absent while nobody knows whether the array was accepted. */
  job?: string
}

/** Tasks with equal requests, submitted as one. */
export interface BatchArray<Request> {
  /** A hash of the tasks' names, so that the scheduler can be asked for it when the answer of a submit was lost. */
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

/** All that is known about a task that was given to the scheduler, besides what the scheduler says now. */
export interface BatchEvidence {
  name: string
  /** The task's own record: the truth wherever it speaks of an end. */
  sight: RemoteSight
  place: BatchPlace
  /** We asked for its end. */
  cancelAsked: boolean
  /** Since when every answer says that it is over, milliseconds of `performance.now()`; absent: it is said for the first time. */
  overSince?: number
  /** When the scheduler's last word that it runs says that it began; Unix seconds. */
  ranSince?: number
}

export interface BatchJudgement {
  state: TaskState
  /** The scheduler says that it is over: the time to settle runs. */
  over: boolean
  /** An end that the task's own record does not tell: written at the site before anybody hears of it, so that it stays what it is. */
  verdict?: Verdict
  /** It ran and left no record, as nothing of ours was where it ran: the scheduler's word becomes its record. Times in seconds since epoch. */
  record?: { exitCode: number; startedAt: number; finishedAt: number; node?: string }
  /** Why it will wait for ever, in the scheduler's words: it is taken out of the queue. */
  impossible?: string
}

/** How intents become requests now: limits of a cluster change. */
export interface BatchTerms<Request> {
  /** @throws DriverError `refused` naming field and remedy. */
  requestOf(intent: Intent): Request
  /** Tasks of one array, at most. */
  arraySize: number
  /** What an array's name is hashed from besides the names of its tasks. */
  nameWords?: readonly string[]
  limitSecondsOf?: (request: Request) => number | undefined
}

/**
 * A batch system as `openBatchDriver` needs it: an array is submitted, all of ours are listed, a task is judged by its record and the list,
 * elements are cancelled. What the driver shares for all of them (claims of names, books, verdicts, looks, cancels, collects) it keeps at the
 * site, so an adapter holds nothing that another process lacks.
 *
 * Whatever does not answer rejects with `DriverError` class `unknown`: nothing is known then. A submit that the scheduler refuses rejects
 * with `refused` and its words; one that it has no room for now rejects with `NoRoom`: nothing was taken.
 */
export interface BatchScheduler<Request, Listing> {
  /** Of the driver, in messages too. */
  readonly kind: string
  readonly capabilities: Readonly<Record<Capability, boolean>>
  /** Who submits and has not said so after this long is taken for dead. @throws DriverError `refused` for a wrong configuration */
  claimSeconds(): number
  terms(): Promise<BatchTerms<Request>>
  /** Why a request that can never run is not submitted again, with the scheduler's words. */
  hopeless(request: Request, words: string): string
  /**
   * What an array runs, as text for its file: it finds the element's script and becomes that task's supervisor. `pack`: the file of the texts
   * of those that make their own script.
   */
  script(array: BatchArray<Request>, elements: readonly ArrayElement[], pack: string): Promise<string>
  /** Whether an array may be submitted without some of its indexes. */
  readonly leavesOut: boolean
  /**
   * Submits the elements `indexes` of an array whose script lies in the folder `arrays/ARRAY` of the site, and leaves its id there. Doing that
   * twice submits once only where the scheduler knows arrays by name; the books see to the rest.
   * @returns the id.
   */
  submit(array: BatchArray<Request>, indexes: readonly number[]): Promise<string>
  /** The id of an array whose submission nobody wrote down; undefined: the scheduler has answered and has none. */
  find(array: string): Promise<string | undefined>
  /** What it says about these, and all others of ours if that costs no more. Silence is part of the answer, not an error. */
  list(places: readonly { name: string; place: BatchPlace }[]): Promise<Listing>
  /** Pure but for the clock; without a listing the scheduler is silent. */
  judge(evidence: BatchEvidence, listing: Listing | undefined): BatchJudgement
  /** Whether the record alone tells why a task ended; default: it does unless the site stopped it and nobody had asked for that. */
  explains?(sight: Extract<RemoteSight, { form: 'ended' }>, cancelAsked: boolean): boolean
  /** Whether `list` costs little: the end of a task that its record does not explain is then asked for at once. */
  readonly answersPromptly: boolean
  /**
   * `waiting`: takes out elements that have not started. `polite`: asks the supervisors of the others to end their tasks. `forced`: ends them with
   * everything below. What has ended meanwhile is no error.
   */
  cancel(elements: readonly BatchElement[], how: 'waiting' | 'polite' | 'forced', graceSeconds: number): Promise<void>
  /** Seconds after which a polite cancel is repeated, and after the end of the grace a forced one follows; absent: never. */
  readonly cancelSteps: { politeAgain?: number; forcedAfterGrace?: number }
  /** The name of the element for others; default `elementId`. */
  externalIdOf?(place: BatchPlace): string
  /** Arrays all of whose tasks are over, or forgotten: what the scheduler keeps of them is in nobody's way any more, or goes. */
  drop?(arrays: readonly string[]): Promise<void>
  /** Names that stand in no book because the site has lost its files, though the scheduler had them: they are lost. Ends what they still do. */
  strays?(names: readonly string[]): Promise<Map<string, Extract<TaskState, { state: 'lost' }>>>
  /** Ends as the scheduler tells them, beside the site's own stream of ends; the returned function stops it. */
  onEnds?(ended: (name: string) => void): () => void
  /** The end of an element's task is known: nothing has to be told of it any more. */
  settled?(place: BatchPlace): void
  /** What the scheduler knows of a task that is over; `ran`: its own record tells its end. `measured`: that has its peak memory. */
  about?(task: {
    name: string
    place: BatchPlace | undefined
    sight: RemoteSight
    measured: boolean
  }): Promise<Partial<Pick<Collected, 'node' | 'detail' | 'peakMemoryBytes'>>>
  /** Output of a running task where the site does not have it yet; undefined: the site tells. */
  logs?(
    name: string,
    place: BatchPlace | undefined,
    stream: 'stdout' | 'stderr',
    range: { offset: number; limit: number } | { tail: number },
  ): Promise<LogSlice | undefined>
  /** Nobody will ask for it again. */
  forget?(name: string, place: BatchPlace | undefined): Promise<void>
  close?(): void
}

/** The scheduler takes no more jobs now: too many of this user's, or of anybody's. `smaller`: fewer at once might find room. */
export class NoRoom extends Error {
  readonly smaller: boolean
  constructor(words: string, { smaller = true, ...options }: ErrorOptions & { smaller?: boolean } = {}) {
    super(words, options)
    this.name = 'NoRoom'
    this.smaller = smaller
  }
}

/** `JOB_INDEX`, and the array's name where the job is not known. */
export const elementId = ({ array, job, index }: BatchPlace): string => (job === undefined ? array : `${job}_${index}`)

export const externalIdIn = (scheduler: Pick<BatchScheduler<never, never>, 'externalIdOf'>, place: BatchPlace): string =>
  scheduler.externalIdOf?.(place) ?? elementId(place)
