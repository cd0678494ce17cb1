import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import type { Engine } from '../../engine.ts'
import { listRoute } from '../../http/list-route.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { Timestamp } from '../../http/schema.ts'
import { sortBy } from '../../http/sorting.ts'
import type { Feed } from '../../operations/feed.ts'
import { dispatchOperation, operationRoutes, type OperationApi } from '../../operations/routes.ts'
import type { Reports } from '../../observability/reports.ts'
import { existing } from '../../refusal.ts'
import { lifecycleMembers } from '../schedule-plans/lifecycle.ts'
import { Plan } from '../schedule-plans/schemas.ts'
import { assignmentDocument, planSummary } from '../schedule-plans/store.ts'
import { detailBound } from '../workflow-definitions/definitions.ts'
import { algorithmList } from './algorithms.ts'
import { createSession, sessionReferenceProblems } from './create-session.ts'
import { sessionKind } from './operation.ts'
import {
  AlgorithmDescriptor,
  Candidate,
  CandidateSummary,
  Session,
  SessionDetail,
  SessionDocument,
  sessionStates,
} from './schemas.ts'
import { candidateAssignments, candidatePlan, selectCandidate } from './select-candidate.ts'
import {
  listCandidates,
  listSessions,
  readAlgorithmRuns,
  readCandidate,
  readSession,
  sessionDocument,
  sessionOrders,
  usualSessionOrder,
  type CandidateRow,
  type SessionRow,
} from './store.ts'

const path = (sessionId: string): string => `/planning-sessions/${encodeURIComponent(sessionId)}/`

export interface PlanningSessionRouteParts {
  db: Db
  engine: Pick<Engine, 'start' | 'cancel' | 'live'>
  feed: Feed
  reports: Pick<Reports, 'sessionEnded'>
}

export const planningSessionRoutes = ({ db, engine, feed, reports }: PlanningSessionRouteParts): Route[] => {
  const ended = (sessionId: string): void => {
    reports.sessionEnded({ sessionId, status: 'cancelled' })
  }
  const of = { path: '/planning-sessions/', parameter: 'sessionId' } as const
  const api: OperationApi = { db, engine, feed, kind: sessionKind, ...of, ended }
  const { read, cancel, events, remove } = operationRoutes(api)
  return [
    route('listPlanningAlgorithms', 'GET /planning-algorithms/', {
      summary: 'The planning algorithms by id',
      response: z.array(AlgorithmDescriptor),
      handle: () => algorithmList.map(({ descriptor }) => descriptor),
    }),
    listRoute('listPlanningSessions', 'GET /planning-sessions/', {
      summary: 'Planning sessions, newest first or in another order',
      filters: {
        status: z.enum(sessionStates).optional().describe('sessions in this state; all by default'),
        workflowId: z.string().optional().describe('sessions for versions of this workflow'),
        environmentId: z.string().optional().describe('sessions for versions of this environment'),
        since: Timestamp.optional().describe('sessions opened at this time or later'),
        until: Timestamp.optional().describe('sessions opened before this time'),
        sort: sortBy(sessionOrders, usualSessionOrder),
      },
      item: Session,
      read: async (page, { query }) => {
        const { rows, total } = await listSessions(db, query, page)
        return { rows: rows.map(sessionDocument), total }
      },
    }),
    route('startPlanningSession', 'POST /planning-sessions/', {
      summary:
        'Open a planning session: each algorithm plans the workflow on the schedulable resources of the scope',
      body: SessionDocument,
      alsoCheck: ({ document }) => sessionReferenceProblems(db, document),
      response: Session,
      status: 202,
      audit: {
        eventType: 'planning-session.created',
        summary: 'planning session {id} created',
      },
      handle: async ({ body }) => {
        const session = await createSession(db, body)
        await dispatchOperation(api, { id: session.id, generation: 1 })
        return new Reply({ body: sessionDocument(session), location: path(session.id) })
      },
    }),
    read({
      summary: 'A planning session with the runs of its algorithms',
      response: SessionDetail,
      read: async (id) => {
        const session = await readSession(db, id)
        if (session === undefined) return undefined
        const document = { session: sessionDocument(session), algorithmRuns: await readAlgorithmRuns(db, id) }
        return { document, state: { status: session.status, generation: 1 } }
      },
    }),
    cancel({
      summary: 'Cancel a queued or running session; again is harmless',
      audit: {
        eventType: 'planning-session.cancelled',
        summary: 'planning session {sessionId} cancelled',
      },
    }),
    events(),
    remove({
      summary:
        'Delete a session that is over, with its candidates; a selected plan stays, and so does the audit',
    }),
    listRoute('listCandidates', 'GET /planning-sessions/{sessionId}/candidates/', {
      summary: 'The candidates of a session by rank; unranked ones last',
      item: CandidateSummary,
      read: async (page, { params }) => {
        const session = await sessionOf(db, params.sessionId)
        const { rows, total } = await listCandidates(db, session.id, page)
        return { rows: rows.map((row) => candidateSummary(session, row)), total }
      },
    }),
    route('getCandidate', 'GET /planning-sessions/{sessionId}/candidates/{candidateId}/', {
      summary: 'One candidate with its plan',
      response: Candidate,
      handle: async ({ params }) => {
        const session = await sessionOf(db, params.sessionId)
        const candidate = await readCandidate(db, session.id, params.candidateId)
        const { columns, lifecycle, ...row } = existing(candidate, 'planning candidate', params.candidateId)
        const summary = candidateSummary(session, row)
        const plan = { ...summary.plan, ...lifecycleMembers(lifecycle, summary.plan.metadata) }
        if (row.activityCount > detailBound) return { ...summary, plan }
        const assignments = await candidateAssignments(db, session, { ...row, columns })
        return {
          ...summary,
          plan: {
            ...plan,
            assignments: assignments.map((assignment) => assignmentDocument(plan.id, assignment)),
          },
        }
      },
    }),
    route('selectCandidate', 'POST /planning-sessions/{sessionId}/candidates/{candidateId}/select/', {
      summary: 'Make a plan of a candidate and the choice of its session',
      response: Plan,
      status: 201,
      audit: {
        eventType: 'planning-candidate.selected',
        summary: 'candidate {candidateId} of planning session {sessionId} selected',
      },
      handle: async ({ params }) => {
        const plan = await selectCandidate(db, params.sessionId, params.candidateId)
        return new Reply({
          body: plan,
          location: `/schedule-plans/${encodeURIComponent(plan.id)}/`,
        })
      },
    }),
  ]
}

const sessionOf = async (db: Db, id: string): Promise<SessionRow> =>
  existing(await readSession(db, id), 'planning session', id)

const candidateSummary = (session: SessionRow, row: CandidateRow): z.output<typeof CandidateSummary> => {
  const { predicted, ...header } = candidatePlan(session, row)
  const plan = planSummary({
    ...header,
    embeddedNames: [],
    predictedMakespanSeconds: predicted.makespanSeconds,
    predictedCost: predicted.cost,
    predictedFeasible: row.feasible,
    assignmentCount: row.activityCount,
    lifecycleActions: undefined,
    createdAt: row.createdAt,
  })
  const { predictedMakespanSeconds: _seconds, predictedCost: _cost, ...members } = row
  const { defaultedDurations: _defaulted, activityCount: _count, ...shown } = members
  return { ...shown, predicted: plan.predicted, plan }
}
