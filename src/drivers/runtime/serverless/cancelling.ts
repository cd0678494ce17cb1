import { setTimeout as sleep } from 'node:timers/promises'
import { DriverError } from '../contract/driver.ts'
import { cancelBody, type Ask } from './asking.ts'
import { endUnanswered, keep, settle } from './ends.ts'
import { readAnswer } from './protocol.ts'
import { clock, shortDeadlineSeconds, troubleOf, type FunctionSite } from './site.ts'

/** Troubles after which the function may still be told. */
const passing = ['unreachable', 'busy', 'cut', 'failed', 'unknown']

/** Asks the function once: true when the call has an end by it. */
async function tell(site: FunctionSite, ask: Ask, name: string, { grace, until }: { grace: number; until: number }): Promise<boolean> {
  const { calls } = site
  try {
    const response = await ask(name, cancelBody(name, grace), { deadlineSeconds: grace + shortDeadlineSeconds })
    const said = response.status === 202 ? 'running' : readAnswer(name, response.body)
    if (said === 'unknown') {
      endUnanswered(calls, name, 'cancelled')
      return true
    }
    // What it kept is settled at the next turn, at once.
    if (said !== 'running') return await keep(calls, name, said, response).then(() => false)
  } catch (error) {
    const { trouble, message } = troubleOf(error)
    if (!passing.includes(trouble)) {
      // It knows no cancelling: it may go on, and nobody listens.
      endUnanswered(calls, name, 'cancelled')
      return true
    }
    if (clock() > until) throw new DriverError('unknown', `${name} could not be cancelled: ${message}`, { cause: error })
  }
  if (clock() > until) throw new DriverError('unknown', `${name} is being cancelled and runs on`)
  await sleep(200)
  return false
}

/** Buries a call that was not made, and sees to the end of one that was. @throws DriverError `unknown` when it cannot be told in time */
export async function cancelCall(site: FunctionSite, ask: Ask, name: string, grace: number): Promise<void> {
  const { calls } = site
  if (calls.bury(name)) return
  const record = calls.record(name)
  if (record?.form !== 'accepted') return
  calls.askToStop(name, grace)
  for (const until = clock() + grace + shortDeadlineSeconds; ;) {
    if (calls.end(name) !== undefined || (await settle(site, name, record.facts))) return
    if (calls.sentAt(name) === undefined) return endUnanswered(calls, name, 'cancelled')
    if (await tell(site, ask, name, { grace, until })) return
  }
}
