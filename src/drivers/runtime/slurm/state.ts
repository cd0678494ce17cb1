import { elementId, type BatchJudgement, type BatchPlace } from '../batch/scheduler.ts'
import { buriedEnd, endOf, stateOfVerdict, type Verdict } from '../batch/verdict.ts'
import type { TaskState } from '../contract/driver.ts'
import type { RemoteSight } from '../remote/tasks.ts'
import type { SlurmJob } from './jobs.ts'

/** All that is known about a task that was given to the scheduler. */
export interface Evidence {
  /** The task's own record: the truth wherever it speaks of an end. */
  sight: RemoteSight
  place: BatchPlace
  /** We asked for its end. */
  cancelAsked: boolean
  /** `absent`: the controller answered and does not know it. `silent`: it did not answer. */
  queue: SlurmJob | 'absent' | 'silent'
  /** `none`: there is no accounting. `silent`: there is, and it does not answer, or was not asked. */
  history: SlurmJob | 'absent' | 'silent' | 'none'
  /** For how long every answer of the scheduler has said that it is over, in seconds; 0: for the first time. */
  overSeconds: number
  /** When the scheduler's last word that it runs says that it began: what has begun waits again only where the scheduler says so. */
  ranSince?: number
}

export interface Patience {
  /** A record may show late (a shared file system), and so may accounting: the scheduler's word alone ends nothing before. */
  settleSeconds: number
  /** How long accounting that is there and silent is waited for once the controller has forgotten the job. */
  historySeconds: number
}

const waiting = /^(PENDING|CONFIGURING|REQUEUED|REQUEUE_FED|REQUEUE_HOLD|SPECIAL_EXIT|RESV_DEL_HOLD)$/
const over = /^(COMPLETED|FAILED|CANCELLED|TIMEOUT|DEADLINE|PREEMPTED|NODE_FAIL|BOOT_FAIL|OUT_OF_MEMORY|LAUNCH_FAILED|REVOKED)$/
/** The script ended by itself: whatever it left behind may only be late. */
const byItself = /^(COMPLETED|FAILED)$/

/** Reasons to wait that no passing of time removes. */
const neverRuns =
  /^(PartitionTimeLimit|PartitionNodeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|ReservationDeleted|DependencyNeverSatisfied|(Assoc|QOS)Max\w*PerJob\w*)$/

const overIn = (job: SlurmJob | string): SlurmJob | undefined => (typeof job === 'object' && over.test(job.state) ? job : undefined)

/** `NODE_FAIL`, `CANCELLED by 0`, `FAILED (NonZeroExitCode)`. */
const wordsOf = (job: SlurmJob): string =>
  job.reason === undefined ? job.state : /^by /.test(job.reason) ? `${job.state} ${job.reason}` : `${job.state} (${job.reason})`

/** What the scheduler's last word about a task that left no end of its own amounts to. */
function verdictOf(job: SlurmJob, sight: RemoteSight, fallbackAt: number): Verdict {
  const at = job.endedAt ?? fallbackAt
  if (sight.form === 'started' && sight.cancelAsked) return { end: 'cancelled', cause: wordsOf(job), at }
  if (job.state === 'TIMEOUT') return { end: 'walltime', cause: wordsOf(job), at }
  if (job.state === 'OUT_OF_MEMORY') return { end: 'memory', cause: wordsOf(job), at }
  const where = job.node === undefined ? '' : ` on node ${job.node}`
  const never = sight.form === 'none' && byItself.test(job.state)
  return {
    end: 'lost',
    cause: never
      ? `${wordsOf(job)}${where} before the task was started: is the work directory visible there?`
      : byItself.test(job.state)
        ? `${wordsOf(job)}${where}, without a record of the task's end`
        : `${wordsOf(job)}${where}`,
    at,
  }
}

/**
 * What is so, from the record, the queue and the accounting, in whatever order and state they come.
 *
 * - An end in the task's own record is its end; only if the site stopped it the scheduler is asked why.
 * - Silence ends nothing. A word that is not known ends nothing.
 * - Where the scheduler alone says that it is over, that becomes a verdict: at once if the scheduler ended it, after `settleSeconds` if the
 *   script ended by itself (its record may be late) or the scheduler does not know the job.
 */
export function judge({ sight, place, cancelAsked, queue, history, overSeconds, ranSince }: Evidence, patience: Patience): BatchJudgement {
  const externalId = elementId(place)
  if (sight.form === 'buried') return { state: buriedEnd(sight.at, externalId), over: false }
  if (sight.form === 'ended' && sight.reason !== 'stopped') {
    // The step was out of memory, whatever the script made of it.
    const memory = sight.reason === 'exited' && [queue, history].some((job) => typeof job === 'object' && job.state === 'OUT_OF_MEMORY')
    return { state: endOf(sight, externalId, memory ? 'memory' : sight.reason), over: false }
  }

  // Where the scheduler itself was asked to end it, its supervisor saw that the site stopped it.
  if (sight.form === 'ended' && cancelAsked) return { state: endOf(sight, externalId, 'cancelled'), over: false }

  const begun = sight.form === 'started' || sight.form === 'ended' ? sight : undefined
  const live = typeof queue === 'object' && !over.test(queue.state) ? queue : undefined
  const waits = live !== undefined && waiting.test(live.state)
  const meanwhile = (): TaskState => {
    if (begun !== undefined && !waits) return { state: 'running', externalId, startedAt: begun.startedAt }
    if (live?.startedAt !== undefined && !waits) return { state: 'running', externalId, startedAt: live.startedAt }
    if (live === undefined && ranSince !== undefined) return { state: 'running', externalId, startedAt: ranSince }
    const cause = live?.reason ?? (live === undefined || live.state === 'PENDING' ? undefined : live.state)
    return { state: 'queued', externalId, submittedAt: place.submittedAt, ...(cause === undefined ? {} : { cause }) }
  }
  if (live !== undefined) {
    const impossible = live.state === 'PENDING' && live.reason !== undefined && neverRuns.test(live.reason) ? live.reason : undefined
    return { state: meanwhile(), over: false, ...(impossible === undefined ? {} : { impossible }) }
  }
  if (queue === 'silent') return { state: meanwhile(), over: false }

  // The controller has answered, and it does not run, wait or hold the job.
  const later: BatchJudgement = { state: meanwhile(), over: true }
  const last = overIn(queue) ?? overIn(history)
  const settled = overSeconds >= patience.settleSeconds
  const decide = (verdict: Verdict): BatchJudgement => ({ state: stateOfVerdict(verdict, sight, externalId), over: true, verdict })
  const fallbackAt = sight.form === 'ended' ? sight.finishedAt : sight.form === 'started' ? sight.startedAt : place.submittedAt

  if (sight.form === 'ended') {
    if (last !== undefined && !byItself.test(last.state)) return decide(verdictOf(last, sight, fallbackAt))
    if (last === undefined && history === 'silent' && overSeconds < patience.historySeconds) return later
    if (last === undefined && !settled) return later
    const { limitSeconds } = place
    if (limitSeconds !== undefined && sight.finishedAt - sight.startedAt >= limitSeconds)
      return decide({ end: 'walltime', cause: `stopped after its ${limitSeconds} s at the site`, at: fallbackAt })
    return decide({ end: 'lost', cause: 'stopped by a signal from outside', at: fallbackAt })
  }
  if (last !== undefined) return byItself.test(last.state) && !settled ? later : decide(verdictOf(last, sight, fallbackAt))
  if (!settled || (history === 'silent' && overSeconds < patience.historySeconds)) return later
  if (sight.form === 'started' && sight.cancelAsked) return decide({ end: 'cancelled', cause: 'cancelled', at: fallbackAt })
  const what = begun !== undefined ? 'it left no record of its end' : 'it was never started'
  return decide({ end: 'lost', cause: `the scheduler no longer knows job ${externalId}, and ${what}`, at: fallbackAt })
}
