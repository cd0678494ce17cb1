import { sql, type Db } from '../../db/sql.ts'
import { missing, unacceptableAt } from '../../refusal.ts'
import { plannedGraph } from '../schedule-plans/graph.ts'
import { lifecycleMembers } from '../schedule-plans/lifecycle.ts'
import { infeasibilities } from '../schedule-plans/prediction.ts'
import type { Plan } from '../schedule-plans/schemas.ts'
import { createPlan, readPlan, readPlanDocument, type NewPlan } from '../schedule-plans/store.ts'
import { algorithmOf } from './algorithms.ts'
import { assignmentsOf, planIdOf, type ScheduleColumns } from './candidate-plan.ts'
import { lockSession, readCandidate, recordSelection, type CandidateRow, type SessionRow } from './store.ts'

/** The plan of a selected candidate, without its assignments. */
export const candidatePlan = (
  session: SessionRow,
  candidate: CandidateRow,
): Omit<NewPlan, 'assignments'> => ({
  id: planIdOf(session.id, candidate.fingerprint),
  workflowVersionId: session.workflowVersionId,
  contentVersionId: session.workflowVersionId,
  executionScopeId: session.executionScopeId,
  networkTopologyId: session.networkTopologyId,
  source: 'plugin',
  algorithm: candidate.algorithm,
  algorithmVersion: '1',
  objective: algorithmOf(candidate.algorithm)?.descriptor.objective ?? candidate.objective,
  deadlineSeconds: session.deadlineSeconds,
  budget: session.budget,
  predicted: { makespanSeconds: candidate.predictedMakespanSeconds, cost: candidate.predictedCost },
  // A candidate from an earlier version has the figures of its algorithm, computed without a
  // network model.
  networkModel: candidate.contentionFreeMakespanSeconds === undefined ? undefined : session.networkModel,
  contentionFreeMakespanSeconds: candidate.contentionFreeMakespanSeconds,
  defaultedDurations: candidate.defaultedDurations,
  metadata: { planningSessionId: session.id, candidateId: candidate.id, fingerprint: candidate.fingerprint },
})

/** The assignments of a candidate's plan, in the order of the workflow's activities. */
export const candidateAssignments = async (
  db: Db,
  session: SessionRow,
  candidate: CandidateRow & { columns: ScheduleColumns },
) =>
  assignmentsOf(
    candidate.columns,
    planIdOf(session.id, candidate.fingerprint),
    (await plannedGraph(db, session.workflowVersionId)).activities,
  )

/** What a plan has of its session: candidates of two sessions with one id can be alike in the rest. */
const ownMembers = [
  'workflowVersionId',
  'executionScopeId',
  'networkTopologyId',
  'networkModel',
  'deadlineSeconds',
  'budget',
] as const

/**
 * Makes the plan of a candidate and the session's choice, in one transaction under the session's
 * lock. A repeated selection yields the same plan. The selection of another candidate moves the
 * choice, and the earlier plan stays.
 * @throws Refusal 404 for an unknown session or candidate, 422 for a candidate that misses the
 *   deadline or the budget
 */
export const selectCandidate = (db: Db, sessionId: string, candidateId: string): Promise<Plan> =>
  db.transaction(async (tx) => {
    const session = await lockSession(tx, { id: sessionId })
    if (session === undefined) throw missing('planning session', sessionId)
    const candidate = await readCandidate(tx, sessionId, candidateId)
    if (candidate === undefined) throw missing('planning candidate', candidateId)
    if (!candidate.feasible) throw unacceptableAt('candidateId', infeasible(session, candidate))
    const plan = candidatePlan(session, candidate)
    // Locked, so that a deletion of the plan that is under way has ended.
    const existing = await readPlan(tx, plan.id, sql`for key share`)
    if (existing === undefined)
      await createPlan(tx, {
        ...plan,
        ...lifecycleMembers(candidate.lifecycle, plan.metadata),
        assignments: await candidateAssignments(tx, session, candidate),
      })
    else if (
      existing.metadata?.['candidateId'] !== candidate.id ||
      existing.source !== 'plugin' ||
      // A deleted session of this id may have planned for something else.
      ownMembers.some((name) => existing[name] !== plan[name])
    )
      throw unacceptableAt(
        'candidateId',
        `the plan of this candidate would be ${JSON.stringify(plan.id)}, which is taken by ` +
          'another plan; delete that first',
      )
    await recordSelection(tx, sessionId, candidateId, plan.id)
    return (await readPlanDocument(tx, plan.id))!
  })

const infeasible = (session: SessionRow, candidate: CandidateRow): string => {
  const misses = infeasibilities({
    ...session,
    makespanSeconds: candidate.predictedMakespanSeconds,
    cost: candidate.predictedCost,
  })
  return (
    `candidate ${JSON.stringify(candidate.id)} is not feasible: ${misses.join(' and ')}; select ` +
    'another one, or open a session with other limits'
  )
}
