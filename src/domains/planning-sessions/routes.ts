import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import type { Engine } from '../../engine.ts'
import { arraySizes, pagedArray, pageOf, pageQuery } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { missing, Refusal } from '../../refusal.ts'
import { Plan } from '../schedule-plans/schemas.ts'
import { assignmentDocument, detailBound, planSummary } from '../schedule-plans/store.ts'
import { algorithmList } from './algorithms.ts'
import { createSession, referenceProblems } from './create-session.ts'
import {
  AlgorithmDescriptor,
  Candidate,
  CandidateSummary,
  Session,
  SessionDetail,
  type SessionDocument as Document,
  SessionDocument,
} from './schemas.ts'
import { candidateAssignments, candidatePlan, selectCandidate } from './select-candidate.ts'
import {
  cancelSession,
  listCandidates,
  listSessions,
  markSessionDispatched,
  readAlgorithmRuns,
  readCandidate,
  readSession,
  sessionTelling,
  sessionDocument,
  type CandidateRow,
  type SessionRow,
} from './store.ts'

const path = (sessionId: string): string => `/planning-sessions/${encodeURIComponent(sessionId)}/`

export const planningSessionRoutes = ({ db, engine }: { db: Db; engine: Pick<Engine, 'start' | 'cancel' | 'live'> }): Route[] => [
  route({
    method: 'GET',
    path: '/planning-algorithms/',
    tag: 'planning-sessions',
    summary: 'The planning algorithms by id',
    response: z.array(AlgorithmDescriptor),
    handle: () => algorithmList.map(({ descriptor }) => descriptor),
  }),
  route({
    method: 'GET',
    path: '/planning-sessions/',
    tag: 'planning-sessions',
    summary: 'Planning sessions, newest first',
    query: z.strictObject(pageQuery),
    response: z.array(Session),
    handle: async ({ query, target }) => {
      const page = pageOf(query, arraySizes)
      const { rows, total } = await listSessions(db, page)
      return pagedArray(rows.map(sessionDocument), { page, total, target })
    },
  }),
  route({
    method: 'POST',
    path: '/planning-sessions/',
    tag: 'planning-sessions',
    summary: 'Open a planning session: each algorithm plans the workflow on the schedulable resources of the scope',
    body: SessionDocument,
    alsoCheck: ({ document }) => referenceProblems(db, document),
    response: Session,
    status: 202,
    audit: { eventType: 'planning-session.created', summary: ({ body }) => `planning session ${(body as Document).id} created` },
    handle: async ({ body }) => {
      const session = await createSession(db, body)
      // Where the engine is away the dispatcher starts what has no mark.
      const telling = await sessionTelling(db, session.id)
      if (await engine.start('planningSession', session.id, 1, telling)) await markSessionDispatched(db, session.id)
      return new Reply({ body: sessionDocument(session), headers: { location: path(session.id) } })
    },
  }),
  route({
    method: 'GET',
    path: '/planning-sessions/{sessionId}/',
    tag: 'planning-sessions',
    summary: 'A planning session with the runs of its algorithms',
    response: SessionDetail,
    handle: async ({ params }) => {
      const session = await sessionOf(db, params.sessionId)
      const open = session.status === 'queued' || session.status === 'running'
      const [algorithmRuns, live] = await Promise.all([
        readAlgorithmRuns(db, session.id),
        open ? engine.live('planningSession', session.id) : undefined,
      ])
      return {
        session: sessionDocument(session),
        algorithmRuns,
        ...(live === undefined ? {} : { live: live as unknown as NonNullable<SessionDetail['live']> }),
      }
    },
  }),
  route({
    method: 'POST',
    path: '/planning-sessions/{sessionId}/cancel/',
    tag: 'planning-sessions',
    summary: 'Cancel a queued or running session; again is harmless',
    audit: { eventType: 'planning-session.cancelled', summary: ({ params }) => `planning session ${params['sessionId'] ?? ''} cancelled` },
    handle: async ({ params }) => {
      const found = await cancelSession(db, params.sessionId)
      if (found === undefined) throw missing('planning session', params.sessionId)
      if (found === 'completed' || found === 'failed')
        throw new Refusal('conflict', `the planning session is ${found}; only a queued or running one can be cancelled`, {
          extra: { state: found },
        })
      // The record is what counts; the workflow hears it now, or sees it with its next heartbeat.
      await engine.cancel('planningSession', params.sessionId)
      return undefined
    },
  }),
  route({
    method: 'GET',
    path: '/planning-sessions/{sessionId}/candidates/',
    tag: 'planning-sessions',
    summary: 'The candidates of a session by rank; unranked ones last',
    query: z.strictObject(pageQuery),
    response: z.array(CandidateSummary),
    handle: async ({ params, query, target }) => {
      const session = await sessionOf(db, params.sessionId)
      const page = pageOf(query, arraySizes)
      const { rows, total } = await listCandidates(db, session.id, page)
      return pagedArray(
        rows.map((row) => candidateSummary(session, row)),
        { page, total, target },
      )
    },
  }),
  route({
    method: 'GET',
    path: '/planning-sessions/{sessionId}/candidates/{candidateId}/',
    tag: 'planning-sessions',
    summary: 'One candidate with its plan',
    response: Candidate,
    handle: async ({ params }) => {
      const session = await sessionOf(db, params.sessionId)
      const candidate = await readCandidate(db, session.id, params.candidateId)
      if (candidate === undefined) throw missing('planning candidate', params.candidateId)
      const summary = candidateSummary(session, candidate)
      if (candidate.activityCount > detailBound) return summary
      const { plan } = summary
      const assignments = await candidateAssignments(db, session, candidate)
      return { ...summary, plan: { ...plan, assignments: assignments.map((assignment) => assignmentDocument(plan.id, assignment)) } }
    },
  }),
  route({
    method: 'POST',
    path: '/planning-sessions/{sessionId}/candidates/{candidateId}/select/',
    tag: 'planning-sessions',
    summary: 'Make a plan of a candidate and the choice of its session',
    response: Plan,
    status: 201,
    audit: {
      eventType: 'planning-candidate.selected',
      summary: ({ params }) => `candidate ${params['candidateId'] ?? ''} of planning session ${params['sessionId'] ?? ''} selected`,
    },
    handle: async ({ params }) => {
      const plan = await selectCandidate(db, params.sessionId, params.candidateId)
      return new Reply({ body: plan, headers: { location: `/schedule-plans/${encodeURIComponent(plan.id)}/` } })
    },
  }),
]

const sessionOf = async (db: Db, id: string): Promise<SessionRow> => {
  const session = await readSession(db, id)
  if (session === undefined) throw missing('planning session', id)
  return session
}

const candidateSummary = (session: SessionRow, row: CandidateRow): z.output<typeof CandidateSummary> => {
  const { predicted, ...header } = candidatePlan(session, row)
  const plan = planSummary({
    ...header,
    embedded: undefined,
    predictedMakespanSeconds: predicted.makespanSeconds,
    predictedCost: predicted.cost,
    predictedFeasible: row.feasible,
    assignmentCount: row.activityCount,
    lifecycleActions: undefined,
    createdAt: row.createdAt,
  })
  return {
    id: row.id,
    planningSessionId: row.planningSessionId,
    algorithmRunId: row.algorithmRunId,
    algorithm: row.algorithm,
    objective: row.objective,
    ...(row.rank === undefined ? {} : { rank: row.rank }),
    paretoOptimal: row.paretoOptimal,
    dominated: row.dominated,
    feasible: row.feasible,
    predicted: plan.predicted,
    ...(row.contentionFreeMakespanSeconds === undefined ? {} : { contentionFreeMakespanSeconds: row.contentionFreeMakespanSeconds }),
    fingerprint: row.fingerprint,
    createdAt: row.createdAt,
    plan,
  }
}
