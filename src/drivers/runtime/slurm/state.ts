import { elementId, type BatchJudgement, type QueuedElement } from '../batch/scheduler.ts'
import { buriedEnd, endedState, stateOfVerdict, type Verdict } from '../batch/verdict.ts'
import type { TaskState } from '../contract/driver.ts'
import type { RemoteSight } from '../remote/tasks.ts'
import type { SlurmJob } from './jobs.ts'

/** All facts about a task that was given to the scheduler. */
export interface Evidence {
  /** The task's own record: it has priority wherever it records an end. */
  sight: RemoteSight
  place: QueuedElement
  /** The service asked for its end. */
  cancelAsked: boolean
  /** `absent`: the controller answered and does not know it. `silent`: it did not answer. */
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
}

export interface QueuePatience {
  /**
   * A record may appear late (a shared file system), and so may accounting: before this time the
   * scheduler's report alone ends nothing.
   */
  settleSeconds: number
  /** How long to wait for silent accounting once the controller has forgotten the job. */
  historySeconds: number
}

const waiting = /^(PENDING|CONFIGURING|REQUEUED|REQUEUE_FED|REQUEUE_HOLD|SPECIAL_EXIT|RESV_DEL_HOLD)$/
const over =
  /^(COMPLETED|FAILED|CANCELLED|TIMEOUT|DEADLINE|PREEMPTED|NODE_FAIL|BOOT_FAIL|OUT_OF_MEMORY|LAUNCH_FAILED|REVOKED)$/
/** The script ended by itself: its record may only be late. */
const byItself = /^(COMPLETED|FAILED)$/

/** Reasons for waiting that time does not remove. */
const neverRuns = new RegExp(
  `^(${[
    'PartitionTimeLimit|PartitionNodeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed',
    'QOSNotAllowed|ReservationDeleted|DependencyNeverSatisfied|(Assoc|QOS)Max\\w*PerJob\\w*',
  ].join('|')})$`,
)

const overIn = (job: SlurmJob | string): SlurmJob | undefined =>
  typeof job === 'object' && over.test(job.state) ? job : undefined

/** `NODE_FAIL`, `CANCELLED by 0`, `FAILED (NonZeroExitCode)`. */
const reasonOf = (job: SlurmJob): string =>
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

/**
 * The task's state from the record, the queue and the accounting, in whatever order and state they
 * arrive.
 *
 * - An end in the task's own record is its end; only if the site stopped it does the
 *   scheduler's reason count.
 * - Silence ends nothing. An unknown state ends nothing.
 * - Where only the scheduler reports it as over, that becomes a verdict: at once if the
 *   scheduler ended it, after `settleSeconds` if the script ended by itself (its record may be
 *   late) or the scheduler does not know the job.
 */
export function judgeJob(
  { sight, place, cancelAsked, queue, history, overSeconds, ranSince }: Evidence,
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
  const live = typeof queue === 'object' && !over.test(queue.state) ? queue : undefined
  const waits = live !== undefined && waiting.test(live.state)
  const meanwhile = (): TaskState => {
    if (begun !== undefined && !waits) return { state: 'running', externalId, startedAt: begun.startedAt }
    if (live?.startedAt !== undefined && !waits)
      return { state: 'running', externalId, startedAt: live.startedAt }
    if (live === undefined && ranSince !== undefined)
      return { state: 'running', externalId, startedAt: ranSince }
    const cause = live?.reason ?? (live === undefined || live.state === 'PENDING' ? undefined : live.state)
    return {
      state: 'queued',
      externalId,
      submittedAt: place.submittedAt,
      ...(cause === undefined ? {} : { cause }),
    }
  }
  if (live !== undefined) {
    const impossible =
      live.state === 'PENDING' && live.reason !== undefined && neverRuns.test(live.reason)
        ? live.reason
        : undefined
    return { state: meanwhile(), over: false, ...(impossible === undefined ? {} : { impossible }) }
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
  if (last !== undefined)
    return byItself.test(last.state) && !settled ? later : decide(verdictOf(last, sight, fallbackAt))
  if (!settled || (history === 'silent' && overSeconds < patience.historySeconds)) return later
  if (sight.form === 'started' && sight.cancelAsked)
    return decide({ end: 'cancelled', cause: 'cancelled', at: fallbackAt })
  const what = begun !== undefined ? 'it left no record of its end' : 'it was never started'
  return decide({
    end: 'lost',
    cause: `the scheduler no longer knows job ${externalId}, and ${what}`,
    at: fallbackAt,
  })
}
