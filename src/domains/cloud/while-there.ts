import { CloudError } from '../../drivers/cloud/contract.ts'
import { poll } from '../../pacing/poll.ts'
import { LinkError } from '../../shell/site-shell.ts'
import type { Clouds } from './clouds.ts'
import { lookAtInstance, type Loss, type WatchedInstance } from './loss.ts'

/** The provider is asked about a machine this often while the service works on it. */
const everyMs = 5_000
/** A machine that ran, and that the provider does not show so many times in a row, is gone. */
const mostUnseen = 3

const lostError = ({ reason }: Loss): CloudError =>
  new CloudError('refused', `${reason} while the service worked on it`)

/** Whether work failed because the machine gave no answer, which may be gone. */
const isUnanswered = (error: unknown): boolean =>
  error instanceof LinkError || (error instanceof CloudError && error.passes)

/**
 * Runs `work` on a machine and aborts it when the provider reports that the machine is gone. Without
 * this, the work would wait for an answer of a missing machine until its own deadline.
 * @throws CloudError `refused` where the machine was ended or stopped meanwhile; what the work
 *   throws
 */
export const whileThere = async <T>(
  clouds: Clouds,
  instance: WatchedInstance,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> => {
  const lost = new AbortController()
  const over = new AbortController()
  let unseen = 0
  const look = async (): Promise<Loss | undefined> => {
    // A missing answer of the provider does not show the state of the machine.
    const seen = await lookAtInstance(clouds, instance).catch(() => undefined)
    unseen = seen === 'unseen' ? unseen + 1 : 0
    if (unseen >= mostUnseen)
      return { reason: `the provider shows the machine ${instance.providerId} no more`, stays: false }
    return seen === 'unseen' ? undefined : seen
  }
  // On the same moments for all machines, so that one request asks about all.
  const pauses = { next: () => everyMs - (Date.now() % everyMs) }
  void poll(look, { everyMs: pauses, pausesFirst: true, signal: over.signal }).then((loss) => {
    if (loss !== undefined && !over.signal.aborted) lost.abort(lostError(loss))
  })
  try {
    return await work(AbortSignal.any([signal, lost.signal]))
  } catch (error) {
    if (lost.signal.aborted && !signal.aborted) throw lost.signal.reason
    // A machine that refuses connections fails each try of the work before its first look.
    const loss = isUnanswered(error) && !signal.aborted ? await look() : undefined
    throw loss === undefined ? error : lostError(loss)
  } finally {
    over.abort()
  }
}
