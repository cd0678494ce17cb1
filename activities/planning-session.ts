import { Context } from '@temporalio/activity'
import type { Db } from '../src/db/sql.ts'
import { databaseAway } from '../src/db/errors.ts'
import { CyclicWorkflow, Infeasible, problemSize, type AlgorithmId } from '../src/schedulers/algorithm.ts'
import type { Compute } from '../src/schedulers/compute.ts'
import { recordAudit } from '../src/domains/audit-events/store.ts'
import { algorithmOf, estimateOf } from '../src/domains/planning-sessions/algorithms.ts'
import { candidateId, columnsOf, fingerprintOf, placesIn } from '../src/domains/planning-sessions/candidate-plan.ts'
import { rankCandidates } from '../src/domains/planning-sessions/ranking.ts'
import * as sessions from '../src/domains/planning-sessions/store.ts'
import { loadProblem } from '../src/domains/schedule-plans/load-problem.ts'
import { infeasibilities, predict } from '../src/domains/schedule-plans/prediction.ts'
import { defaultedDurations } from '../src/domains/schedule-plans/problem.ts'

export interface PlanningSessionParts {
  db: Db
  compute: Compute
}

/** An algorithm whose worker died this often is given up: the problem is what kills it. */
const attemptBound = 5
const heartbeatMs = 2_000

export const planningSessionActivities = ({ db, compute }: PlanningSessionParts) => ({
  /** queued → running, once; the algorithms to run, none when the session is over. */
  openSession: (sessionId: string): Promise<{ algorithm: string }[]> => sessions.openSession(db, sessionId),

  /**
   * Runs one algorithm on a thread of its own and records what it found, or why it found nothing. Idempotent: a candidate's id comes
   * from its schedule, and nothing is written once the algorithm's run or the session is over. Throws only what may pass by itself.
   */
  async planAlgorithm(sessionId: string, algorithm: string): Promise<void> {
    const context = Context.current()
    const begun = await sessions.beginAlgorithm(db, sessionId, algorithm)
    if (begun === undefined) return
    const fail = (failure: string): Promise<void> => sessions.endAlgorithm(db, sessionId, algorithm, { failure })
    if (begun.attempts > attemptBound) {
      await fail(`${attemptBound} workers died or were stopped while they planned`)
      return
    }

    const over = new AbortController()
    const signal = AbortSignal.any([context.cancellationSignal, over.signal])
    let progress = 0
    // The heartbeat is also when the record learns how far it is, and when this learns that the record is over.
    const beats = setInterval(() => {
      context.heartbeat({ progress })
      sessions.recordProgress(db, sessionId, algorithm, progress).then(
        (open) => {
          if (!open) over.abort()
        },
        (error: unknown) => {
          context.log.debug('progress was not recorded', { error: String(error) })
        },
      )
    }, heartbeatMs)
    try {
      const { problem, networkModel } = await loadProblem(db, begun.session)
      const known = algorithmOf(algorithm)
      if (known === undefined) {
        await fail('this version of the service does not have the algorithm')
        return
      }
      await sessions.recordProblem(db, sessionId, algorithm, {
        defaultedDurations: defaultedDurations(problem),
        networkModel,
        estimate: estimateOf(known, problemSize(problem), begun.configuration),
      })
      const { schedule } = await compute.plan(
        { problem, algorithm: algorithm as AlgorithmId },
        { signal, onProgress: (step) => void (progress = step.progress) },
      )
      const prediction = await predict(compute, { problem, assignments: placesIn(problem, schedule), networkModel }, signal)
      if (prediction.failure !== undefined) {
        await fail(prediction.failure)
        return
      }
      const columns = columnsOf(problem, schedule, prediction)
      const fingerprint = fingerprintOf(columns)
      const candidate = {
        id: candidateId(sessionId, fingerprint),
        fingerprint,
        feasible: infeasibilities({ ...begun.session, ...prediction }).length === 0,
        makespanSeconds: prediction.makespanSeconds,
        cost: prediction.cost,
        contentionFreeMakespanSeconds: schedule.makespanSeconds,
        defaultedDurations: prediction.tasks.filter(({ durationSource }) => durationSource === 'default').length,
        columns,
      }
      await sessions.endAlgorithm(db, sessionId, algorithm, { candidates: [candidate] })
    } catch (error) {
      if (over.signal.aborted) return
      if (context.cancellationSignal.aborted || databaseAway(error)) throw error
      const reason = error instanceof Infeasible || error instanceof CyclicWorkflow ? error.message : undefined
      // A fault of the service is this algorithm's failure, not the session's; the record does not show its inside.
      if (reason === undefined) context.log.error('planning failed', { sessionId, algorithm, error })
      await fail(reason ?? "the planner failed; the cause is in the worker's log")
    } finally {
      clearInterval(beats)
    }
  },

  /** Records that an algorithm could not be run at all. */
  failAlgorithm: (sessionId: string, algorithm: string, reason: string): Promise<void> =>
    sessions.endAlgorithm(db, sessionId, algorithm, { failure: reason }),

  /** Ranks the candidates and ends the session; answers how it ended. */
  rankSession: async (sessionId: string): Promise<sessions.SessionEnd> => {
    await sessions.closeSession(db, sessionId, rankCandidates)
    return sessions.readSessionEnd(db, sessionId)
  },

  /** How a session ended that is over. */
  sessionEnd: (sessionId: string): Promise<sessions.SessionEnd> => sessions.readSessionEnd(db, sessionId),

  /** Makes a cancel that came from Temporal's page the session's; answers its state afterwards. */
  cancelSession: async (sessionId: string): Promise<string | undefined> => {
    await sessions.cancelSession(db, sessionId, (tx) =>
      recordAudit(tx, {
        eventType: 'planning-session.cancelled',
        actorId: 'temporal',
        actorType: 'service',
        outcome: 'succeeded',
        sessionId,
        summary: `planning session ${sessionId} cancelled on Temporal's page`,
      }),
    )
    return (await sessions.readSessionEnd(db, sessionId)).status
  },
})

export type PlanningSessionActivities = ReturnType<typeof planningSessionActivities>
