import { elementId, type BatchJudgement, type QueuedElement } from '../batch/scheduler.ts'
import { stateOfVerdict, type Verdict } from '../batch/verdict.ts'
import type { TaskState } from '../contract/driver.ts'
import { buriedEnd, endedState } from '../contract/results.ts'
import type { RemoteSight } from '../remote/tasks.ts'
import type { SlurmJob } from './jobs.ts'

/** All facts about a task that was given to the scheduler. */
export interface Evidence {
  /** The task's own record: it has priority wherever it records an end. */
  sight: RemoteSight
  place: QueuedElement
  /** The service asked for its end. */
  cancelAsked: boolean
  /**
   * `absent`: the controller answered, its list does not have the job, and asked by the job's id it
   * gave no state. `silent`: it did not answer.
   */
  queue: SlurmJob | 'absent' | 'silent'
  /**
   * `none`: there is no accounting. `silent`: there is, and it does not answer, or was not queried.
   */
  history: SlurmJob | 'absent' | 'silent' | 'none'
  /**
   * For how long every answer of the scheduler has reported it as over, in seconds; 0: for the
   * first time.
   */
  overSeconds: number
  /**
   * Its start, by the scheduler's last report that it runs: a started task waits again only where
   * the scheduler reports that.
   */
  ranSince?: number
  /** It was taken out of the queue for this reason, and the controller confirmed that. */
  removed?: string
}

export interface QueuePatience {
  /**
   * A record may appear late (a shared file system), and so may accounting: before this time the
   * scheduler's report alone ends nothing.
   */
  settleSeconds: number
  /**
   * How long to wait for silent accounting to tell why a task was stopped whose own record holds
   * its end.
   */
  historySeconds: number
}

const waiting = /^(PENDING|CONFIGURING|REQUEUED|REQUEUE_FED|REQUEUE_HOLD|SPECIAL_EXIT|RESV_DEL_HOLD)$/
/** `REVOKED` is none of them: another cluster of the federation runs the job. */
const over =
  /^(COMPLETED|FAILED|CANCELLED|TIMEOUT|DEADLINE|PREEMPTED|NODE_FAIL|BOOT_FAIL|OUT_OF_MEMORY|LAUNCH_FAILED)$/
/** The script ended by itself: its record may only be late. */
const byItself = /^(COMPLETED|FAILED)$/

/** Reasons for waiting that time does not remove. */
const neverRuns = new RegExp(
  `^(${[
    'PartitionTimeLimit|PartitionNodeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed',
    'QOSNotAllowed|ReservationDeleted|DependencyNeverSatisfied|(Assoc|QOS)Max\\w*PerJob\\w*',
  ].join('|')})$`,
)

/** States in which the site keeps a job from running until somebody releases it. */
const heldStates = /^(REQUEUE_HOLD|SPECIAL_EXIT|RESV_DEL_HOLD)$/
/**
 * Reasons of the same meaning, `launch failed requeued held`, `job requeued in held state` among
 * them; `scontrol` writes their blanks as underscores.
 */
const heldReasons = /held|^JobHold|special[ _]exit/i
const heldByUser = /^JobHeldUser$/

/** Why the site holds a job; undefined where it does not. A hold of the user is the user's will. */
const holdOf = ({ state, reason = '' }: SlurmJob): string | undefined => {
  if (heldStates.test(state)) return reason === '' ? state : `${state} (${reason})`
  const isHeld = waiting.test(state) && heldReasons.test(reason) && !heldByUser.test(reason)
  return isHeld ? reason : undefined
}

/** Why a job waits, in the scheduler's words. */
const waitOf = ({ state, reason }: SlurmJob, externalId: string): string | undefined => {
  if (reason !== undefined && heldByUser.test(reason))
    return `${reason}: its user holds it; scontrol release ${externalId} lets it go on`
  return reason ?? (state === 'PENDING' ? undefined : state)
}

/** Whether the scheduler has ended it for good. */
export const isJobOver = ({ state }: SlurmJob): boolean => over.test(state)
/** Whether the scheduler has yet to start it. */
export const isJobWaiting = ({ state }: SlurmJob): boolean => waiting.test(state)

/**
 * The report about one element of an array; its own line has priority over that of the whole. A
 * controller that lost its state assigns ids again: the name shows whose job it is. Where several
 * jobs have the name, each may start the task: one that runs counts first, then one that waits.
 * `jobs`: a text where there is no report.
 */
export const jobOf = (
  jobs: readonly SlurmJob[] | string,
  { array, job, index }: Pick<QueuedElement, 'array' | 'job' | 'index'>,
): SlurmJob | undefined => {
  if (typeof jobs === 'string' || job === undefined) return undefined
  const same = jobs.filter((one) => one.name === array && one.indexes?.includes(index) !== false)
  const own = same.filter((one) => one.job === job)
  const live = [...own, ...same].filter((one) => one.indexes !== undefined && !isJobOver(one))
  return (
    live.find((one) => !isJobWaiting(one)) ??
    live[0] ??
    own.find(({ indexes }) => indexes !== undefined) ??
    own[0]
  )
}

/** Whether its script or command ended, and not the scheduler's will. */
export const endedByItself = ({ state }: SlurmJob): boolean => byItself.test(state)
const overIn = (job: SlurmJob | string): SlurmJob | undefined =>
  typeof job === 'object' && isJobOver(job) ? job : undefined

/** `NODE_FAIL`, `CANCELLED by 0`, `FAILED (NonZeroExitCode)`. */
export const reasonOf = (job: SlurmJob): string =>
  job.reason === undefined
    ? job.state
    : /^by /.test(job.reason)
      ? `${job.state} ${job.reason}`
      : `${job.state} (${job.reason})`

/** The meaning of the scheduler's last report about a task that recorded no end of its own. */
function verdictOf(job: SlurmJob, sight: RemoteSight, fallbackAt: number): Verdict {
  const at = job.endedAt ?? fallbackAt
  if (sight.form === 'started' && sight.cancelAsked) return { end: 'cancelled', cause: reasonOf(job), at }
  if (job.state === 'TIMEOUT') return { end: 'walltime', cause: reasonOf(job), at }
  if (job.state === 'OUT_OF_MEMORY') return { end: 'memory', cause: reasonOf(job), at }
  const where = job.node === undefined ? '' : ` on node ${job.node}`
  const never = sight.form === 'none' && byItself.test(job.state)
  return {
    end: 'lost',
    cause: never
      ? `${reasonOf(job)}${where} before the task was started: is the work directory visible there?`
      : byItself.test(job.state)
        ? `${reasonOf(job)}${where}, without a record of the task's end`
        : `${reasonOf(job)}${where}`,
    at,
  }
}

/** Why the driver waits for a job that no answer lists, and what a person can do. */
const unmentioned = (externalId: string, history: Evidence['history'], begun: boolean): string => {
  const accounting =
    typeof history === 'object'
      ? `accounting has it as ${history.state}`
      : history === 'none'
        ? 'there is no accounting'
        : history === 'silent'
          ? 'accounting does not answer'
          : 'accounting has no end of it'
  const record = begun ? 'its record has no end' : 'it has no record of a start'
  return (
    `the scheduler does not mention job ${externalId}, ${accounting}, and ${record}: it may still run, ` +
    'so it is waited for; if it is gone, cancel the run and retry it'
  )
}

/**
 * The task's state from the record, the queue and the accounting, in whatever order and state they
 * arrive.
 *
 * - An end in the task's own record is its end; only if the site stopped it does the
 *   scheduler's reason count.
 * - Silence ends nothing. An unknown state ends nothing. An answer that does not mention the job
 *   ends nothing: the job may run where the answer does not reach.
 * - Where only the scheduler reports it as over, that becomes a verdict: at once if the
 *   scheduler ended it, after `settleSeconds` if the script ended by itself (its record may be
 *   late).
 * - What this service itself took away, and the scheduler does not mention any more, is over after
 *   `settleSeconds`.
 */
export function judgeJob(
  { sight, place, cancelAsked, queue, history, overSeconds, ranSince, removed }: Evidence,
  patience: QueuePatience,
): BatchJudgement {
  const externalId = elementId(place)
  if (sight.form === 'buried') return { state: buriedEnd(sight.at, externalId), over: false }
  if (sight.form === 'ended' && sight.reason !== 'stopped') {
    // The step ran out of memory, whatever the script reported.
    const memory =
      sight.reason === 'exited' &&
      [queue, history].some((job) => typeof job === 'object' && job.state === 'OUT_OF_MEMORY')
    return { state: endedState(sight, externalId, memory ? 'memory' : sight.reason), over: false }
  }

  // Where a cancel went to the scheduler itself, the supervisor saw a stop by the site.
  if (sight.form === 'ended' && cancelAsked)
    return { state: endedState(sight, externalId, 'cancelled'), over: false }

  const begun = sight.form === 'started' || sight.form === 'ended' ? sight : undefined
  const live = typeof queue === 'object' && !isJobOver(queue) ? queue : undefined
  const waits = live !== undefined && isJobWaiting(live)
  const meanwhile = (words?: string): TaskState => {
    const startedAt = waits
      ? undefined
      : (begun?.startedAt ?? live?.startedAt ?? (live === undefined ? ranSince : undefined))
    const waitsFor = startedAt === undefined && live !== undefined ? waitOf(live, externalId) : undefined
    const cause = words ?? waitsFor
    const why = cause === undefined ? {} : { cause }
    return startedAt === undefined
      ? { state: 'queued', externalId, submittedAt: place.submittedAt, ...why }
      : { state: 'running', externalId, startedAt, ...why }
  }
  if (live !== undefined) {
    const impossible =
      live.state === 'PENDING' && live.reason !== undefined && neverRuns.test(live.reason)
        ? live.reason
        : undefined
    const held = holdOf(live)
    return {
      state: meanwhile(),
      over: false,
      ...(impossible === undefined ? {} : { impossible }),
      ...(held === undefined ? {} : { held }),
    }
  }
  if (queue === 'silent') return { state: meanwhile(), over: false }

  // The controller has answered, and it does not run, wait or hold the job.
  const later: BatchJudgement = { state: meanwhile(), over: true }
  const last = overIn(queue) ?? overIn(history)
  const settled = overSeconds >= patience.settleSeconds
  const decide = (verdict: Verdict): BatchJudgement => ({
    state: stateOfVerdict(verdict, sight, externalId),
    over: true,
    verdict,
  })
  const fallbackAt =
    sight.form === 'ended' ? sight.finishedAt : sight.form === 'started' ? sight.startedAt : place.submittedAt

  if (sight.form === 'ended') {
    if (last !== undefined && !byItself.test(last.state)) return decide(verdictOf(last, sight, fallbackAt))
    if (last === undefined && history === 'silent' && overSeconds < patience.historySeconds) return later
    if (last === undefined && !settled) return later
    const { limitSeconds } = place
    if (limitSeconds !== undefined && sight.finishedAt - sight.startedAt >= limitSeconds)
      return decide({
        end: 'walltime',
        cause: `stopped after its ${limitSeconds} s at the site`,
        at: fallbackAt,
      })
    return decide({ end: 'lost', cause: 'stopped by a signal from outside', at: fallbackAt })
  }
  if (last !== undefined) {
    if (byItself.test(last.state) && !settled) return later
    const verdict = verdictOf(last, sight, fallbackAt)
    return decide(removed === undefined || verdict.end !== 'lost' ? verdict : { ...verdict, cause: removed })
  }
  if (!settled) return later
  if (sight.form !== 'none' && (cancelAsked || (sight.form === 'started' && sight.cancelAsked)))
    return decide({ end: 'cancelled', cause: 'cancelled', at: fallbackAt })
  if (removed !== undefined) return decide({ end: 'lost', cause: removed, at: fallbackAt })
  return { state: meanwhile(unmentioned(externalId, history, begun !== undefined)), over: true }
}
