import {
  ActivityFailure,
  ApplicationFailure,
  CancellationScope,
  defineQuery,
  isCancellation,
  patched,
  proxyActivities,
  setCurrentDetails,
  setHandler,
  TimeoutFailure,
  workflowInfo,
  type ActivityOptions,
} from '@temporalio/workflow'
import type { OperationActivities } from '../activities/operation.ts'
import { sentence, type Headline } from '../src/page-details.ts'
import { queueOfMonitors } from '../src/task-queues.ts'
import { endAsRecord, outOfReach, type Cancel, type End } from './ends.ts'

/** The live state of an open operation; its status route serves it as `live`. */
export const liveQuery = defineQuery<Record<string, unknown>>('live')

/** An operation under way. */
export interface Operating {
  headline: Headline | undefined
  /** Failure type of a failed operation's workflow: `SessionFailed`. */
  failure: string
  /** Applies Temporal's cancel to the record. True: the work has to stop. */
  cancel: () => Promise<boolean>
}

const show = (headline: Headline | undefined, { status, reason }: End): void => {
  if (status !== undefined)
    setCurrentDetails(sentence(headline, reason === undefined ? status : `${status}: ${reason}`))
}

/** Absent in histories of earlier versions, which ended as completed there. */
const cancelThatEnded = 'work that finds its record over waits for the cancel'

/**
 * Runs the work of one operation out of reach of Temporal's cancel, which becomes the record's and
 * then stops the work; the workflow ends as the record that `work` returns.
 */
export const operate = (
  { headline, failure, cancel }: Operating,
  work: () => Promise<End>,
): Promise<void> => {
  let stopped = false
  let stop: () => void = () => undefined
  let cancelling = Promise.resolve()
  const applyCancel = async (): Promise<void> => {
    if (!(await cancel())) return
    stopped = true
    stop()
  }
  return outOfReach(
    async (asked: Cancel) => {
      // Created here, as a child of the scope that Temporal's cancel does not reach.
      const scope = new CancellationScope()
      stop = () => {
        scope.cancel()
      }
      let end: End
      try {
        end = await scope.run(work)
      } catch (error) {
        if (!stopped || !isCancellation(error)) throw error
        end = { status: 'cancelled' }
      }
      // The cancel has ended the record, and its activity may return after the work's.
      if (asked.asked && end.status === 'over' && patched(cancelThatEnded)) {
        await cancelling
        if (stopped) end = { status: 'cancelled' }
      }
      show(headline, end)
      await endAsRecord(asked, failure, end)
    },
    () => {
      const applied = applyCancel()
      cancelling = applied.catch(() => undefined)
      return applied
    },
  )
}

const record = (summary: string) =>
  proxyActivities<OperationActivities>({
    summary,
    startToCloseTimeout: '1 minute',
    retry: { initialInterval: '200 milliseconds', backoffCoefficient: 2, maximumInterval: '10 seconds' },
  })

/** The work of a kind's workflow. */
export interface Work<Live extends Record<string, unknown>> {
  /** The kind's name. */
  kind: string
  id: string
  generation: number
  /** Names the record; absent in workflows of earlier versions. */
  key: string | undefined
  headline: Headline | undefined
  failure: string
  /** Changed in place by the steps. */
  live: Live
  /**
   * The steps in order, as idempotent activities. An activity that fails permanently fails the
   * operation with its message.
   */
  steps: (report: (text: string) => void) => Promise<void>
  /**
   * Undoes what unfinished steps left; also after a cancel, and never cancelled itself. `reason`:
   * that of a failure.
   */
  leave?: (reason: string | undefined) => Promise<unknown>
}

/** Absent in histories of earlier versions, which left what an execution before them had begun. */
const placedToLeave = 'what an execution before has begun is undone'

/**
 * Where the work of an operation is: as known, or asked for now. A cancel may come before an
 * execution has placed the work, which an execution before it (ended on Temporal's page) had begun.
 */
export const placed = async (
  known: string | undefined,
  place: () => Promise<string>,
): Promise<string | undefined> =>
  known ?? (patched(placedToLeave) ? place().catch(() => undefined) : undefined)

/** An activity at a host that is gone is given up after this time. */
export const takenInTime = { scheduleToStartTimeout: '10 minutes' } as const
/** One of a job that waits for its host as long as for a storage. */
export const takenPatiently = { scheduleToStartTimeout: '50 minutes' } as const

/** Whether an activity ended because no worker of its queue took it in time. */
export const isNotTaken = (error: unknown): boolean =>
  error instanceof ActivityFailure &&
  error.cause instanceof TimeoutFailure &&
  error.cause.timeoutType === 'SCHEDULE_TO_START'

/** For an activity that a host takes however full of work it is. */
const shortAt = (taskQueue: string): ActivityOptions => ({
  summary: 'whether its host takes work',
  taskQueue: queueOfMonitors(taskQueue),
  scheduleToStartTimeout: '10 minutes',
  startToCloseTimeout: '1 minute',
  retry: { initialInterval: '1 second', backoffCoefficient: 2, maximumInterval: '1 minute' },
})

/**
 * Runs an activity at a host. Where no worker of the host takes it in time, `ask` runs a short one
 * there: a host that is full of work takes that, and the first one waits for its turn again.
 * @throws ApplicationFailure with the remedy where the host takes neither
 */
export const takenAt = async <T>(
  taskQueue: string,
  act: () => Promise<T>,
  ask: (options: ActivityOptions) => Promise<unknown>,
): Promise<T> => {
  for (;;)
    try {
      return await act()
    } catch (error) {
      if (!isNotTaken(error)) throw error
      await ask(shortAt(taskQueue)).catch((silent: unknown) => {
        if (!isNotTaken(silent)) throw silent
        const host = taskQueue.slice(workflowInfo().taskQueue.length + 1)
        throw ApplicationFailure.nonRetryable(
          host === ''
            ? 'no worker took it within an hour: start one, and start this again'
            : `no worker of the host ${JSON.stringify(host)} took it within an hour: start that host, or ` +
                'a worker with its name in SERVICE_HOST_ID, and start this again',
        )
      })
    }
}

/** Behind the time limit of all tries stands what the last one before it ended with. */
const causeOf = ({ cause, message }: ActivityFailure): string =>
  (cause instanceof TimeoutFailure ? (cause.cause ?? cause) : cause)?.message ?? message

/**
 * How the steps ended; an end that is neither their failure nor a cancel is a fault of the
 * workflow.
 */
const stepsEnd = async <Live extends Record<string, unknown>>({
  steps,
  headline,
}: Work<Live>): Promise<End & { status: 'completed' | 'failed' | 'cancelled' }> => {
  try {
    await steps((text) => setCurrentDetails(sentence(headline, text)))
    return { status: 'completed' }
  } catch (error) {
    // An activity whose worker has died before the cancel ends by its timeout.
    if (isCancellation(error) || CancellationScope.current().consideredCancelled)
      return { status: 'cancelled' }
    if (error instanceof ActivityFailure) return { status: 'failed', reason: causeOf(error) }
    if (error instanceof ApplicationFailure) return { status: 'failed', reason: error.message }
    throw error
  }
}

/**
 * One operation from its begin to its end: it opens the record, runs the steps, undoes what they
 * left, and records the end.
 */
export const durably = <Live extends Record<string, unknown>>(work: Work<Live>): Promise<void> => {
  const { kind, id, generation, key, headline, failure, live } = work
  setHandler(liveQuery, () => live)
  const noun = kind.replaceAll('-', ' ')
  const cancel = (): Promise<boolean> =>
    record(`make the cancel the ${noun}'s`).cancelOperation(kind, id, generation, key)
  return operate({ headline, failure, cancel }, async () => {
    const begun = await CancellationScope.nonCancellable(() =>
      record(`begin the ${noun}, once`).beginOperation(kind, id, generation, key),
    )
    if (begun.over) return begun.end
    const end = await stepsEnd(work)
    return CancellationScope.nonCancellable(async () => {
      if (end.status !== 'completed') await work.leave?.(end.reason)
      return record(`end the ${noun}`).finishOperation(kind, id, generation, end, key)
    })
  })
}
