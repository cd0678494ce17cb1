import {
  ActivityFailure,
  CancellationScope,
  defineQuery,
  defineSignal,
  isCancellation,
  proxyActivities,
  setCurrentDetails,
  setHandler,
} from '@temporalio/workflow'
import type { PlanningSessionActivities } from '../activities/planning-session.ts'

/** What an open session says of itself; served as `live` by the status route. */
export interface LiveSession {
  phase: 'opening' | 'planning' | 'ranking'
  /** The algorithm that is planning now. */
  algorithm?: string
  /** Algorithms that have ended. */
  ended: number
  total: number
}

export const liveQuery = defineQuery<LiveSession>('live')
/** Sent after the record has become `cancelled`: stop working for it. */
export const cancelSignal = defineSignal('cancel')

const patient = { initialInterval: '200 milliseconds', backoffCoefficient: 2, maximumInterval: '10 seconds' } as const
const { openSession, failAlgorithm, rankSession } = proxyActivities<PlanningSessionActivities>({
  startToCloseTimeout: '1 minute',
  retry: patient,
})
const { planAlgorithm } = proxyActivities<PlanningSessionActivities>({
  startToCloseTimeout: '1 day',
  heartbeatTimeout: '30 seconds',
  retry: patient,
})

/**
 * One planning session: its algorithms one after another, then the ranking of what they found. One that fails does not fail the others.
 * Everything is recorded by the activities under the session's row; a session that is over is left alone by all of them.
 */
export async function planningSession(sessionId: string, _generation: number): Promise<void> {
  const live: LiveSession = { phase: 'opening', ended: 0, total: 0 }
  setHandler(liveQuery, () => live)
  const scope = new CancellationScope()
  setHandler(cancelSignal, () => {
    scope.cancel()
  })
  try {
    await scope.run(async () => {
      const algorithms = await openSession(sessionId)
      live.total = algorithms.length
      for (const { algorithm } of algorithms) {
        Object.assign(live, { phase: 'planning', algorithm })
        setCurrentDetails(`${algorithm}: algorithm ${String(live.ended + 1)} of ${String(live.total)}`)
        try {
          await planAlgorithm(sessionId, algorithm)
        } catch (error) {
          if (isCancellation(error) || !(error instanceof ActivityFailure)) throw error
          await failAlgorithm(sessionId, algorithm, error.cause?.message ?? error.message)
        }
        live.ended += 1
      }
      if (algorithms.length === 0) return
      live.phase = 'ranking'
      const status = await rankSession(sessionId)
      setCurrentDetails(status)
    })
  } catch (error) {
    // The record was cancelled before the signal was sent: there is nothing left to write.
    if (!isCancellation(error)) throw error
    setCurrentDetails('cancelled')
  }
}
