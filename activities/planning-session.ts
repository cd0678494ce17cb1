import { ApplicationFailure, Context } from '@temporalio/activity'
import type { Db } from '../src/db/sql.ts'
import { CyclicWorkflow, Infeasible, problemSize, type AlgorithmId } from '../src/schedulers/algorithm.ts'
import { PlanningTooLong, type Compute } from '../src/compute/compute.ts'
import { algorithmOf, estimateOf, searchOptions } from '../src/domains/planning-sessions/algorithms.ts'
import {
  candidateId,
  planIdOf,
  scheduleColumns,
  fingerprintOf,
  placesIn,
} from '../src/domains/planning-sessions/candidate-plan.ts'
import { sessionKind } from '../src/domains/planning-sessions/operation.ts'
import { rankCandidates } from '../src/domains/planning-sessions/ranking.ts'
import * as sessions from '../src/domains/planning-sessions/store.ts'
import type { Schedule } from '../src/schedulers/problem.ts'
import type { Reports } from '../src/observability/reports.ts'
import { loadProblem } from '../src/domains/schedule-plans/load-problem.ts'
import { poll } from '../src/pacing/poll.ts'
import type { RecordRef } from '../src/operations/kind.ts'
import { requestCancel, temporalActor } from '../src/operations/records.ts'
import { lifecycleOf } from '../src/domains/schedule-plans/lifecycle.ts'
import { infeasibilities, predict } from '../src/domains/schedule-plans/prediction.ts'
import { defaultedDurations } from '../src/domains/schedule-plans/problem.ts'
import { openTries, passes } from './tries.ts'

/** A session and its problem, read once for each algorithm. */
type Loaded = { session: sessions.SessionRow } & Awaited<ReturnType<typeof loadProblem>>

export interface PlanningSessionParts {
  db: Db
  compute: Compute
  reports: Pick<Reports, 'planned' | 'planningFailed' | 'sessionEnded'>
}

/**
 * An algorithm is given up after its worker died this often, because the problem itself kills the
 * worker; and so is a step of a session after this many errors in a row.
 */
const attemptBound = 5
const heartbeatMs = 2_000
const giveBackMs = 1_000

/** A schedule as a candidate, by the simulator's times and costs; or why its simulation fails. */
const candidateOf = async (
  compute: Compute,
  { session, problem, networkModel, resources, measured }: Loaded,
  schedule: Schedule,
  signal: AbortSignal,
): Promise<sessions.NewCandidate | { failure: string }> => {
  const assignments = placesIn(problem, schedule)
  const prediction = await predict(compute, { problem, assignments, networkModel }, signal)
  if (prediction.failure !== undefined) return { failure: prediction.failure }
  const columns = scheduleColumns(problem, schedule, prediction)
  const fingerprint = fingerprintOf(columns)
  const lifecycle = lifecycleOf(planIdOf(session.id, fingerprint), {
    ...{ resources, measured },
    tasks: prediction.tasks.map((task, at) => ({ ...task, resourceId: assignments[at]!.resourceId })),
  })
  const cost = prediction.cost + lifecycle.cost
  return {
    id: candidateId(session.id, fingerprint),
    fingerprint,
    feasible: infeasibilities({ ...session, ...prediction, cost }).length === 0,
    makespanSeconds: prediction.makespanSeconds,
    cost,
    lifecycle: lifecycle.actions.length === 0 ? undefined : lifecycle,
    contentionFreeMakespanSeconds: schedule.makespanSeconds,
    defaultedDurations: prediction.tasks.filter(({ durationSource }) => durationSource === 'default').length,
    columns,
  }
}

/** What one algorithm makes of a session's problem: candidates, or why there is none. */
const candidatesOf = async (
  { db, compute, reports }: PlanningSessionParts,
  of: RecordRef,
  algorithm: string,
  { session, configuration }: { session: sessions.SessionRow; configuration: Record<string, unknown> },
  watch: { signal: AbortSignal; onProgress: (step: { progress: number }) => void },
): Promise<Parameters<typeof sessions.endAlgorithm>[3]> => {
  const loaded = { session, ...(await loadProblem(db, session)) }
  const { problem, networkModel } = loaded
  const known = algorithmOf(algorithm)
  if (known === undefined) return { failure: 'this version of the service does not have the algorithm' }
  await sessions.recordProblem(db, of, algorithm, {
    defaultedDurations: defaultedDurations(problem),
    networkModel,
    estimate: estimateOf(known, problemSize(problem), configuration),
  })
  const startedAt = performance.now()
  const { deadlineSeconds, budget } = session
  const { schedules } = await compute.plan(
    {
      problem,
      algorithm: algorithm as AlgorithmId,
      options: { ...searchOptions(configuration), deadlineSeconds, budget },
    },
    watch,
  )
  reports.planned(algorithm, (performance.now() - startedAt) / 1_000)
  const candidates: sessions.NewCandidate[] = []
  let failure: string | undefined
  for (const schedule of schedules) {
    const found = await candidateOf(compute, loaded, schedule, watch.signal)
    if ('failure' in found) failure ??= found.failure
    else candidates.push(found)
  }
  return candidates.length === 0 && failure !== undefined ? { failure } : { candidates }
}

const stepsOf = (parts: PlanningSessionParts) => {
  const { db, reports } = parts
  return {
    /** queued → running, once. Returns the algorithms to run; none when the session is over. */
    openSession: (of: RecordRef): Promise<{ algorithm: string }[]> => sessions.openSession(db, of),

    /**
     * Runs one algorithm on a thread of its own and records its schedule, or why it found none.
     * Idempotent: a candidate's id is derived from its schedule, and nothing is written once the
     * algorithm's run or the session is over. Throws only errors that may pass by themselves.
     */
    async planAlgorithm(of: RecordRef, algorithm: string): Promise<void> {
      const context = Context.current()
      const begun = await sessions.beginAlgorithm(db, of, algorithm)
      if (begun === undefined) return
      const fail = (failure: string): Promise<void> => sessions.endAlgorithm(db, of, algorithm, { failure })
      /** An attempt that an outage ended counts for nothing, once the database takes that. */
      const giveBack = (attempts: number, until: AbortSignal): Promise<unknown> =>
        poll(
          () =>
            sessions.giveBackAttempt(db, of, algorithm, attempts).catch((error: unknown) => {
              if (!passes(error)) throw error
              return undefined
            }),
          { everyMs: giveBackMs, signal: until },
        )
      if (begun.attempts > attemptBound) {
        await fail(`${attemptBound} workers died or were stopped while they planned`)
        return
      }

      const over = new AbortController()
      const signal = AbortSignal.any([context.cancellationSignal, over.signal])
      let progress = 0
      // Each heartbeat writes the progress into the record and reads whether the record is over.
      const beats = setInterval(() => {
        context.heartbeat({ progress })
        sessions.recordProgress(db, of, algorithm, progress).then(
          (open) => {
            if (!open) over.abort()
          },
          (error: unknown) => {
            context.log.debug('progress was not recorded', { error: String(error) })
          },
        )
      }, heartbeatMs)
      try {
        const found = await candidatesOf(parts, of, algorithm, begun, {
          signal,
          onProgress: (step) => void (progress = step.progress),
        })
        await sessions.endAlgorithm(db, of, algorithm, found)
      } catch (error) {
        if (over.signal.aborted) return
        if (context.cancellationSignal.aborted) throw error
        if (passes(error)) {
          await giveBack(begun.attempts, context.cancellationSignal)
          throw error
        }
        const reason =
          error instanceof Infeasible || error instanceof CyclicWorkflow || error instanceof PlanningTooLong
            ? error.message
            : undefined
        // A fault of the service fails this algorithm and not the session; the record does not show
        // its internals.
        if (reason === undefined) reports.planningFailed({ sessionId: of.id, algorithm, error })
        await fail(reason ?? "the planner failed; the cause is in the worker's log")
      } finally {
        clearInterval(beats)
      }
    },

    /** Records that an algorithm could not be run. */
    failAlgorithm: (of: RecordRef, algorithm: string, reason: string): Promise<void> =>
      sessions.endAlgorithm(db, of, algorithm, { failure: reason }),

    /** Ranks the candidates and ends the session; returns how it ended. */
    rankSession: async (of: RecordRef): Promise<sessions.SessionEnd> => {
      const ended = await sessions.closeSession(db, of, rankCandidates)
      const end = await sessions.readSessionEnd(db, of)
      if (ended)
        reports.sessionEnded({
          sessionId: of.id,
          status: end.status ?? 'gone',
          ...(end.reason === undefined ? {} : { reason: end.reason }),
        })
      return end
    },
  }
}

/**
 * The activities of a session. `key` names its record among all that have its id; a workflow of an
 * earlier version knows none.
 */
export const planningSessionActivities = (parts: PlanningSessionParts) => {
  const { db, reports } = parts
  const tries = openTries(attemptBound)
  const steps = stepsOf(parts)
  /** `step` names the step in the reason. */
  const inStep = <T>(step: string, of: RecordRef, work: () => Promise<T>): Promise<T> =>
    tries([of.id, of.key, step], work, (error) => {
      reports.planningFailed({ sessionId: of.id, error })
      throw ApplicationFailure.nonRetryable(
        `the service could not ${step} in ${attemptBound} tries; the cause is in the worker's log`,
        'SessionGivenUp',
      )
    })
  return {
    openSession: (id: string, key?: string) =>
      inStep('open the session', { id, key }, () => steps.openSession({ id, key })),
    planAlgorithm: (id: string, algorithm: string, key?: string) =>
      inStep(`plan with ${algorithm}`, { id, key }, () => steps.planAlgorithm({ id, key }, algorithm)),
    failAlgorithm: (id: string, algorithm: string, reason: string, key?: string) =>
      inStep(`record the end of ${algorithm}`, { id, key }, () =>
        steps.failAlgorithm({ id, key }, algorithm, reason),
      ),
    rankSession: (id: string, key?: string) =>
      inStep('rank the candidates', { id, key }, () => steps.rankSession({ id, key })),

    /** Records that a step of the session was given up; returns how the session ended. */
    failSession: async (id: string, reason: string, key?: string): Promise<sessions.SessionEnd> => {
      if (await sessions.failSession(db, { id, key }, reason))
        reports.sessionEnded({ sessionId: id, status: 'failed', reason })
      return sessions.readSessionEnd(db, { id, key })
    },

    /** How a session ended, where it is over. */
    sessionEnd: (id: string, key?: string): Promise<sessions.SessionEnd> =>
      sessions.readSessionEnd(db, { id, key }),

    /** Applies a cancel from Temporal's page to the session; returns the state afterwards. */
    cancelSession: async (id: string, key?: string): Promise<string | undefined> => {
      const found = await requestCancel(db, sessionKind, { id, key }, { actorId: temporalActor })
      if (found?.change === 'ended') reports.sessionEnded({ sessionId: id, status: 'cancelled' })
      return (await sessions.readSessionEnd(db, { id, key })).status
    },
  }
}

export type PlanningSessionActivities = ReturnType<typeof planningSessionActivities>
