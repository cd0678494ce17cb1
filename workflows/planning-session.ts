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
import { endAsRecord, endBefore, outOfReach, type End } from './ends.ts'
import { sentence, type Told } from '../src/telling.ts'

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
/** Sent by the version before after the record had become `cancelled`: stop working for it. Now Temporal's cancel says so. */
export const cancelSignal = defineSignal('cancel')

const patient = { initialInterval: '200 milliseconds', backoffCoefficient: 2, maximumInterval: '10 seconds' } as const
const brief = (summary: string) => proxyActivities<PlanningSessionActivities>({ summary, startToCloseTimeout: '1 minute', retry: patient })
const lasting = (summary: string) =>
  proxyActivities<PlanningSessionActivities>({ summary, startToCloseTimeout: '1 day', heartbeatTimeout: '30 seconds', retry: patient })

/**
 * One planning session: its algorithms one after another, then the ranking of what they found. One that fails does not fail the others.
 * Everything is recorded by the activities under the session's row; a session that is over is left alone by all of them.
 */
export async function planningSession(sessionId: string, _generation: number, told?: Told): Promise<void> {
  const live: LiveSession = { phase: 'opening', ended: 0, total: 0 }
  setHandler(liveQuery, () => live)
  let stop: () => void = () => undefined
  setHandler(cancelSignal, () => {
    stop()
  })
  const plan = async (): Promise<End> => {
    const algorithms = await brief('open the session, once').openSession(sessionId)
    live.total = algorithms.length
    for (const { algorithm } of algorithms) {
      Object.assign(live, { phase: 'planning', algorithm })
      setCurrentDetails(sentence(told, `${algorithm}: algorithm ${String(live.ended + 1)} of ${String(live.total)}`))
      try {
        await lasting(`plan with ${algorithm}`).planAlgorithm(sessionId, algorithm)
      } catch (error) {
        if (isCancellation(error) || !(error instanceof ActivityFailure)) throw error
        await brief(`record that ${algorithm} could not be run`).failAlgorithm(sessionId, algorithm, error.cause?.message ?? error.message)
      }
      live.ended += 1
    }
    if (algorithms.length === 0) return endBefore(() => brief('read how the session ended').sessionEnd(sessionId))
    live.phase = 'ranking'
    const end: End | string = await brief('rank the candidates and end the session').rankSession(sessionId)
    // Histories of the version before hold the status alone.
    return typeof end === 'string' ? { status: end } : end
  }
  await outOfReach(
    async (cancel) => {
      const scope = new CancellationScope()
      stop = () => {
        scope.cancel()
      }
      let end: End
      try {
        end = await scope.run(plan)
      } catch (error) {
        // The record was cancelled before this was heard: there is nothing left to write.
        if (!isCancellation(error)) throw error
        end = { status: 'cancelled' }
      }
      if (end.status !== undefined)
        setCurrentDetails(sentence(told, end.reason === undefined ? end.status : `${end.status}: ${end.reason}`))
      await endAsRecord(cancel, 'SessionFailed', end)
    },
    async () => {
      if ((await brief("make the cancel the session's").cancelSession(sessionId)) === 'cancelled') stop()
    },
  )
}
