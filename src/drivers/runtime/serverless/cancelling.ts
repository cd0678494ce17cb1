import { poll } from '../../../pacing/poll.ts'
import { DriverError } from '../contract/driver.ts'
import { cancelBody, type Ask } from './asking.ts'
import { endUnanswered, keep, settle } from './ends.ts'
import { readAnswer } from './protocol.ts'
import { shortDeadlineSeconds, troubleOf, type FunctionSite } from './site.ts'

/** Troubles after which the cancel may still reach the function. */
const passing = ['unreachable', 'busy', 'cut', 'failed', 'unknown']

/** Whether a cancel ended the call. If not, why the function could not be asked, if that is so. */
type Cancelled = { over: true } | { over: false; error?: { message: string; cause: unknown } }

/** Sends one cancel to the function. */
async function sendCancel(site: FunctionSite, ask: Ask, name: string, grace: number): Promise<Cancelled> {
  const { calls } = site
  try {
    const response = await ask(name, cancelBody(name, grace), {
      deadlineSeconds: grace + shortDeadlineSeconds,
    })
    const answer = response.status === 202 ? 'running' : readAnswer(name, response.body)
    if (answer === 'running') return { over: false }
    if (answer === 'unknown') {
      endUnanswered(calls, name, 'cancelled')
      return { over: true }
    }
    // The next round settles the kept answer.
    await keep(calls, name, answer, response)
    return { over: false }
  } catch (error) {
    const { trouble, message } = troubleOf(error)
    if (!passing.includes(trouble)) {
      // The function does not support cancels: it may go on, and its answer is dropped.
      endUnanswered(calls, name, 'cancelled')
      return { over: true }
    }
    return { over: false, error: { message, cause: error } }
  }
}

/**
 * Buries a call that was not made, and waits for the end of one that was. @throws DriverError
 * `unknown` when the end is not known in time
 */
export async function cancelCall(site: FunctionSite, ask: Ask, name: string, grace: number): Promise<void> {
  const { calls } = site
  if (calls.bury(name)) return
  const record = calls.record(name)
  if (record?.form !== 'accepted') return
  calls.askToStop(name, grace)
  let last: Cancelled = { over: false }
  const round = async (): Promise<true | undefined> => {
    if (calls.end(name) !== undefined || (await settle(site, name, record.facts))) return true
    if (calls.sentAt(name) === undefined) {
      endUnanswered(calls, name, 'cancelled')
      return true
    }
    last = await sendCancel(site, ask, name, grace)
    return last.over ? true : undefined
  }
  const over = await poll(round, { everyMs: 200, deadlineMs: (grace + shortDeadlineSeconds) * 1_000 })
  if (over !== undefined) return
  const error = 'error' in last ? last.error : undefined
  throw error === undefined
    ? new DriverError('unknown', `${name} is being cancelled and runs on`)
    : new DriverError('unknown', `${name} could not be cancelled: ${error.message}`, { cause: error.cause })
}
