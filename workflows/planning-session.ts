import {
  ActivityFailure,
  CancellationScope,
  defineSignal,
  isCancellation,
  proxyActivities,
  setCurrentDetails,
  setHandler,
} from '@temporalio/workflow'
import type { PlanningSessionActivities } from '../activities/planning-session.ts'
import { endBefore, type End } from './ends.ts'
import { liveQuery, operate } from './operation.ts'
import { sentence, type Headline } from '../src/page-details.ts'

/** The live state of an open session; the status route serves it as `live`. */
export interface LiveSession {
  phase: 'opening' | 'planning' | 'ranking'
  /** The algorithm that is planning now. */
  algorithm?: string
  /** Algorithms that have ended. */
  ended: number
  total: number
}

/**
 * Sent by the version before after the record had become `cancelled`: stop the work. Now Temporal's
 * cancel does this.
 */
export const cancelSignal = defineSignal('cancel')

const patient = {
  initialInterval: '200 milliseconds',
  backoffCoefficient: 2,
  maximumInterval: '10 seconds',
} as const
const brief = (summary: string) =>
  proxyActivities<PlanningSessionActivities>({ summary, startToCloseTimeout: '1 minute', retry: patient })
const lasting = (summary: string) =>
  proxyActivities<PlanningSessionActivities>({
    summary,
    startToCloseTimeout: '1 day',
    heartbeatTimeout: '30 seconds',
    retry: patient,
  })

/**
 * One planning session: its algorithms one after another, then the ranking of their candidates. A
 * failed algorithm does not fail the others. The activities record everything under the session's
 * row, and all of them leave a finished session alone.
 */
export async function planningSession(
  sessionId: string,
  _generation: number,
  headline?: Headline,
  key?: string,
): Promise<void> {
  const live: LiveSession & Record<string, unknown> = { phase: 'opening', ended: 0, total: 0 }
  setHandler(liveQuery, () => live)
  let stop: () => void = () => undefined
  setHandler(cancelSignal, () => {
    stop()
  })
  const plan = async (): Promise<End> => {
    const algorithms = await brief('open the session, once').openSession(sessionId, key)
    live.total = algorithms.length
    for (const { algorithm } of algorithms) {
      Object.assign(live, { phase: 'planning', algorithm })
      setCurrentDetails(
        sentence(headline, `${algorithm}: algorithm ${String(live.ended + 1)} of ${String(live.total)}`),
      )
      try {
        await lasting(`plan with ${algorithm}`).planAlgorithm(sessionId, algorithm, key)
      } catch (error) {
        if (isCancellation(error) || !(error instanceof ActivityFailure)) throw error
        await brief(`record that ${algorithm} could not be run`).failAlgorithm(
          sessionId,
          algorithm,
          error.cause?.message ?? error.message,
          key,
        )
      }
      live.ended += 1
    }
    if (algorithms.length === 0)
      return endBefore(() => brief('read how the session ended').sessionEnd(sessionId, key))
    live.phase = 'ranking'
    const end: End | string = await brief('rank the candidates and end the session').rankSession(
      sessionId,
      key,
    )
    // Histories of the version before hold the status alone.
    return typeof end === 'string' ? { status: end } : end
  }
  await operate(
    {
      headline,
      failure: 'SessionFailed',
      cancel: async () =>
        (await brief("make the cancel the session's").cancelSession(sessionId, key)) === 'cancelled',
    },
    async () => {
      const scope = new CancellationScope()
      stop = () => {
        scope.cancel()
      }
      try {
        return await scope.run(plan)
      } catch (error) {
        // The record was cancelled before this workflow received the cancel: there is nothing left
        // to write.
        if (isCancellation(error)) return { status: 'cancelled' }
        if (!(error instanceof ActivityFailure)) throw error
        return brief('record that the session was given up').failSession(
          sessionId,
          error.cause?.message ?? error.message,
          key,
        )
      }
    },
  )
}
