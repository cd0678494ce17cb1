import {
  ApplicationFailure,
  CancellationScope,
  CancelledFailure,
  condition,
  patched,
  proxyLocalActivities,
} from '@temporalio/workflow'
import type { EndActivities } from '../activities/ends.ts'

/** How a record ended; `reason` where it failed. */
export interface End {
  /** Undefined: there is no such record (any more). */
  status?: string | undefined
  reason?: string | undefined
}

/**
 * Temporal's request to end a workflow: from its page, or from the service after the record was
 * cancelled.
 */
export interface Cancel {
  asked: boolean
}

/** Absent in open workflows of the version before, and in their histories. */
const cancelOfRecord = 'a cancel belongs to the record'
const endOfRecord = 'a workflow ends as its record'

const { askForCancel } = proxyLocalActivities<EndActivities>({
  startToCloseTimeout: '1 minute',
  summary: "ask for this workflow's cancel, as its record was cancelled",
  retry: { initialInterval: '200 milliseconds', backoffCoefficient: 2, maximumInterval: '10 seconds' },
})
/** Pause before a cancel that did not arrive is requested again: a reset may have dropped it. */
const askAgainAfter = '10 seconds'

/**
 * Runs `work` out of reach of Temporal's cancel: the record decides how a workflow ends, and
 * `onCancel` applies the cancel to the record. In histories of the version before, a cancel still
 * ends the work itself.
 */
export const outOfReach = (
  work: (cancel: Cancel) => Promise<void>,
  onCancel: () => Promise<void>,
): Promise<void> => {
  const cancel: Cancel = { asked: false }
  const scope = new CancellationScope({
    cancellable: true,
    parent: new CancellationScope({ cancellable: false }),
  })
  CancellationScope.current().cancelRequested.catch(() => {
    cancel.asked = true
    if (!patched(cancelOfRecord)) {
      scope.cancel()
      return
    }
    // The history shows an activity that fails permanently; the record stays unchanged.
    scope.run(onCancel).catch(() => undefined)
  })
  return scope.run(() => work(cancel))
}

/**
 * Reads how the record of a workflow without work had ended; the version before did not read it.
 */
export const endBefore = async (read: () => Promise<End>): Promise<End> =>
  patched(endOfRecord) ? read() : {}

/**
 * Ends the workflow as its record has ended: Failed with the record's reason, Canceled, or
 * Completed.
 * @throws ApplicationFailure of `type`, never retried
 * @throws CancelledFailure once Temporal received a cancel request: without one the SDK ends
 *   no workflow as Canceled
 */
export const endAsRecord = async (cancel: Cancel, type: string, { status, reason }: End): Promise<void> => {
  if ((status !== 'failed' && status !== 'cancelled') || !patched(endOfRecord)) return
  if (status === 'failed') throw ApplicationFailure.nonRetryable(reason ?? 'the record names no reason', type)
  while (!cancel.asked) {
    await askForCancel()
    await condition(() => cancel.asked, askAgainAfter)
  }
  throw new CancelledFailure('cancelled')
}
