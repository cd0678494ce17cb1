import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { envelope, envelopeOf, pageOf, pageQuery } from '../../http/paging.ts'
import { listRoute } from '../../http/list-route.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { Timestamp } from '../../http/schema.ts'
import { sortBy } from '../../http/sorting.ts'
import { missing, existing } from '../../refusal.ts'
import type { Compute } from '../../compute/compute.ts'
import { Resource } from '../environments/schemas.ts'
import { ExecutionScopeDocument } from '../execution-scopes/schemas.ts'
import { NetworkTopologyDocument } from '../network-topologies/schemas.ts'
import { WorkflowVersionDocument } from '../workflow-definitions/schemas.ts'
import { acceptPlan, planReferenceProblems } from './accept-plan.ts'
import { comparePlans, PlanComparison } from './compare.ts'
import { Assignment, Plan, PlanDocument, PlanSummary } from './schemas.ts'
import {
  assignmentDocument,
  deletePlan,
  listPlans,
  planOrders,
  planSummary,
  readAssignments,
  readPlan,
  readPlanDocument,
  usualPlanOrder,
} from './store.ts'

/** A plan with the documents that it was made for. */
const PlanEnvelope = z.strictObject({
  plan: PlanDocument,
  workflow: WorkflowVersionDocument,
  resources: z.array(Resource),
  executionScope: ExecutionScopeDocument,
  networkTopology: NetworkTopologyDocument.optional().describe(
    'what transfers are predicted with; needed where the plan names a topology',
  ),
})

const PlanImport = z.strictObject({ plan: PlanDocument })

const created = (plan: Plan): Reply<Plan> =>
  new Reply({ body: plan, location: `/schedule-plans/${encodeURIComponent(plan.id)}/` })
const planIdIn = (body: unknown): string => (body as z.output<typeof PlanImport>).plan.id

interface SchedulePlanParts {
  db: Db
  compute: Pick<Compute, 'simulate'>
  uses: Parameters<typeof deletePlan>[2]
}

export const schedulePlanRoutes = ({ db, compute, uses }: SchedulePlanParts): Route[] => [
  listRoute('listPlans', 'GET /schedule-plans/', {
    summary: 'Plans without their assignments, newest first or in another order',
    filters: {
      workflowId: z.string().optional().describe('plans for versions of this workflow'),
      environmentId: z.string().optional().describe('plans for versions of this environment'),
      since: Timestamp.optional().describe('plans created at this time or later'),
      until: Timestamp.optional().describe('plans created before this time'),
      sort: sortBy(planOrders, usualPlanOrder),
    },
    item: PlanSummary,
    read: async (page, { query }) => {
      const { rows, total } = await listPlans(db, query, page)
      return { rows: rows.map(planSummary), total }
    },
  }),
  route('createPlan', 'POST /schedule-plans/', {
    summary:
      'Create a plan together with the documents it was made for; they are kept with the plan and ' +
      'change no stored record',
    body: PlanEnvelope,
    alsoCheck: ({ document }) => planReferenceProblems(db, document),
    response: Plan,
    status: 201,
    audit: { eventType: 'plan.created', summary: ({ body }) => `schedule plan ${planIdIn(body)} created` },
    handle: async ({ body: { plan, ...companions } }) =>
      created(await acceptPlan({ db, compute }, plan, companions)),
  }),
  route('importPlan', 'POST /schedule-plans/import/', {
    summary: 'Import a plan of stored records',
    body: PlanImport,
    alsoCheck: ({ document }) => planReferenceProblems(db, document),
    response: Plan,
    status: 201,
    audit: { eventType: 'plan.imported', summary: ({ body }) => `schedule plan ${planIdIn(body)} imported` },
    handle: async ({ body: { plan } }) =>
      created(await acceptPlan({ db, compute }, { ...plan, source: 'imported' })),
  }),
  route('getPlan', 'GET /schedule-plans/{planId}/', {
    summary: 'A plan with its assignments; above 10,000 of them without',
    response: Plan,
    handle: async ({ params }) =>
      existing(await readPlanDocument(db, params.planId), 'schedule plan', params.planId),
  }),
  route('deletePlan', 'DELETE /schedule-plans/{planId}/', {
    summary: 'Delete a plan that no run and no selection of a planning session names',
    refuses: [422],
    audit: { eventType: 'plan.deleted', summary: 'schedule plan {planId} deleted' },
    handle: async ({ params }) => {
      if (!(await deletePlan(db, params.planId, uses))) throw missing('schedule plan', params.planId)
    },
  }),
  route('listPlanAssignments', 'GET /schedule-plans/{planId}/assignments/', {
    summary: "A page of a plan's assignments, in the order of the workflow's activities",
    query: z.strictObject(pageQuery),
    response: envelopeOf(Assignment),
    handle: async ({ params, query }) => {
      const page = pageOf(query)
      const plan = existing(await readPlan(db, params.planId), 'schedule plan', params.planId)
      const rows = await readAssignments(db, plan.id, page)
      return envelope(
        rows.map((row) => assignmentDocument(plan.id, row)),
        { page, total: plan.assignmentCount },
      )
    },
  }),
  route('comparePlans', 'GET /schedule-plans/{planId}/compare/{otherPlanId}/', {
    summary: 'Two plans of one workflow version: totals, and a page of their activities',
    query: z.strictObject(pageQuery),
    response: PlanComparison,
    refuses: [422],
    handle: ({ params, query }) => comparePlans(db, params.planId, params.otherPlanId, pageOf(query)),
  }),
]
