import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { columnsOf } from '../../db/projection.ts'
import { orderOf } from '../../db/orders.ts'
import { empty, raw, sql, where, type Db, type Sql } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { unacceptableAt } from '../../refusal.ts'
import { durationSources, type DurationSource } from '../../schedulers/problem.ts'
import { networkModels } from '../../simulator/channel.ts'
import { scopesWith } from '../execution-scopes/store.ts'
import { detailBound } from '../workflow-definitions/definitions.ts'
import { dropUnusedCopy, type WorkflowUse } from '../workflow-definitions/store.ts'
import { infeasibilities } from './prediction.ts'
import type { Assignment, LifecycleAction, Plan, PlanSummary, Times } from './schemas.ts'

/**
 * Documents embedded with a plan that differ from the stored ones of the same ids. A run of the
 * plan reads these.
 */
export type EmbeddedDocuments = NonNullable<PlanHeader['embedded']>

/** What the store or the rest of the plan tells. */
type DerivedMember =
  | 'predictedMakespanSeconds'
  | 'predictedCost'
  | 'predictedFeasible'
  | 'predictionFailure'
  | 'assignmentCount'
  | 'embeddedNames'
  | 'createdAt'

/**
 * `contentVersionId`: the version whose activities are placed, by position: the stored one, or the
 * one embedded with the plan.
 */
export type NewPlan = Omit<PlanHeader, DerivedMember> & {
  predicted: { makespanSeconds: number; cost: number; failure?: string | undefined }
  assignments: readonly NewAssignment[]
}

/** `position`: of the activity in the content version; `activityId`: as its author wrote it. */
export type NewAssignment = Omit<AssignmentRow, 'externalId' | 'durationSource'> & {
  durationSource: DurationSource
}

const json = (value: unknown): string | null => (value === undefined ? null : JSON.stringify(value))

/**
 * Stores a plan with its assignments, in the caller's transaction. A taken id is a violation of
 * `schedule_plans_pkey` (422).
 */
export const createPlan = async (tx: Db, plan: NewPlan): Promise<void> => {
  await tx.run(sql`insert into schedule_plans (id, workflow_version_id, content_version_id,
    execution_scope_id, network_topology_id, source, algorithm, algorithm_version,
      objective, deadline_seconds, budget, predicted_makespan_seconds, predicted_cost, predicted_feasible,
        prediction_failure, network_model, contention_free_makespan_seconds,
      submitted_prediction, defaulted_durations, assignment_count, lifecycle_actions, embedded, metadata)
    values (${plan.id}, ${plan.workflowVersionId}, ${plan.contentVersionId}, ${plan.executionScopeId},
      ${plan.networkTopologyId}, ${plan.source}, ${plan.algorithm},
      ${plan.algorithmVersion}, ${plan.objective}, ${plan.deadlineSeconds}, ${plan.budget},
        ${plan.predicted.makespanSeconds}, ${plan.predicted.cost},
      ${infeasibilities({ ...plan, ...plan.predicted }).length === 0}, ${plan.predicted.failure ?? null},
        ${plan.networkModel ?? null}, ${plan.contentionFreeMakespanSeconds ?? null},
      ${json(plan.submittedPrediction)}, ${plan.defaultedDurations}, ${plan.assignments.length},
        ${json(plan.lifecycleActions)}, ${json(plan.embedded)}, ${json(plan.metadata)})`)
  const column = <Name extends keyof NewAssignment>(name: Name): NewAssignment[Name][] =>
    plan.assignments.map((assignment) => assignment[name])
  await tx.run(sql`insert into schedule_plan_assignments (schedule_plan_id, activity_position, id,
    activity_id, resource_id, core_id, slot_id, order_on_resource, priority,
      predicted_ready_at, predicted_start_at, predicted_finish_at, predicted_runtime_seconds,
        predicted_transfer_seconds, predicted_cost, duration_source, submitted_prediction, metadata)
    select ${plan.id}, * from unnest(${column('position')}::int[], ${column('id')}::text[],
      ${column('activityId')}::text[], ${column('resourceId')}::text[],
      ${column('coreId')}::text[], ${column('slotId')}::text[], ${column('orderOnResource')}::bigint[],
        ${column('priority')}::float8[],
      ${column('predictedReadyAt')}::float8[], ${column('predictedStartAt')}::float8[],
        ${column('predictedFinishAt')}::float8[],
      ${column('predictedRuntimeSeconds')}::float8[], ${column('predictedTransferSeconds')}::float8[],
        ${column('predictedCost')}::float8[], ${column('durationSource')}::text[],
      ${plan.assignments.map(({ submittedPrediction }) => json(submittedPrediction))}::jsonb[],
      ${plan.assignments.map(({ metadata }) => json(metadata))}::jsonb[])`)
}

const FreeObject = z.record(z.string(), z.unknown())

const PlanRow = z.object({
  id: z.string(),
  workflowVersionId: z.string(),
  contentVersionId: z.string(),
  executionScopeId: z.string(),
  networkTopologyId: z.string(),
  source: z.enum(['plugin', 'manual', 'imported']),
  algorithm: z.string(),
  algorithmVersion: z.string(),
  objective: z.string(),
  deadlineSeconds: z.number(),
  budget: z.number(),
  predictedMakespanSeconds: z.number(),
  predictedCost: z.number(),
  predictedFeasible: z.boolean(),
  predictionFailure: z.string().optional(),
  networkModel: z.enum(networkModels).optional(),
  contentionFreeMakespanSeconds: z.number().optional(),
  submittedPrediction: z
    .object({ makespanSeconds: z.number(), cost: z.number(), feasible: z.boolean() })
    .optional(),
  defaultedDurations: z.number(),
  assignmentCount: z.number(),
  lifecycleActions: z.array(z.custom<LifecycleAction>()).optional(),
  embeddedNames: z.array(z.string()),
  metadata: FreeObject.optional(),
  createdAt: z.string(),
})
const HeaderRow = PlanRow.extend({
  embedded: z
    .object({
      resources: z.array(FreeObject).optional(),
      executionScope: FreeObject.optional(),
      networkTopology: FreeObject.optional(),
    })
    .optional(),
})
/** A plan's row without its assignments. */
export type PlanHeader = z.output<typeof HeaderRow>

/** A plan of a list does without its embedded documents, which may be large. */
const derived = { embeddedNames: 'array(select jsonb_object_keys(p.embedded))' }
const columns = columnsOf(PlanRow, 'p', derived)

/**
 * A plan without its assignments; undefined where no plan has the id. With the lock `for key share`
 * it stays until the end of the transaction.
 */
export const readPlan = (db: Db, id: string, lock: Sql = empty): Promise<PlanHeader | undefined> =>
  db.maybe(
    HeaderRow,
    sql`select ${columnsOf(HeaderRow, 'p', derived)} from schedule_plans p where p.id = ${id} ${lock}`,
  )

export const planOrders = {
  createdAt: 'p.created_at',
  makespanSeconds: 'p.predicted_makespan_seconds',
  cost: 'p.predicted_cost',
}
export const usualPlanOrder = '-createdAt'

/** Times are RFC 3339; `until` is exclusive. `sort`: a name of `planOrders`, or `-` and a name. */
export interface PlanFilter {
  workflowId?: string | undefined
  environmentId?: string | undefined
  since?: string | undefined
  until?: string | undefined
  sort?: string | undefined
}

/** The conditions of a filter for rows of plans, or of planning sessions; `row`: their alias. */
export const planConditions = (row: string, { workflowId, environmentId, since, until }: PlanFilter) => [
  workflowId !== undefined &&
    sql`${raw(row)}.workflow_version_id in (select id from workflow_versions where workflow_id = ${workflowId})`,
  environmentId !== undefined && sql`${raw(row)}.execution_scope_id in (${scopesWith(environmentId)})`,
  since !== undefined && sql`${raw(row)}.created_at >= ${since}`,
  until !== undefined && sql`${raw(row)}.created_at < ${until}`,
]

/** Plans in the order asked for; `total` is counted to one above `countBound`. */
export const listPlans = (db: Db, filter: PlanFilter, page: Page) =>
  readPage(db, PlanRow, {
    select: columns,
    from: sql`schedule_plans p ${where(...planConditions('p', filter))}`,
    order: orderOf(planOrders, filter.sort ?? usualPlanOrder, 'p'),
    page,
  })

/** A plan in the API's form for lists. */
export const planSummary = (row: z.output<typeof PlanRow>): PlanSummary => {
  const embedded = [
    ...(row.contentVersionId === row.workflowVersionId ? [] : (['workflow'] as const)),
    ...(['resources', 'executionScope', 'networkTopology'] as const).filter((name) =>
      row.embeddedNames.includes(name),
    ),
  ]
  const predicted = { makespanSeconds: row.predictedMakespanSeconds, cost: row.predictedCost }
  // In a plan without a network model `feasible` comes from the author, and the reasons are
  // unknown.
  const reasons =
    row.networkModel === undefined
      ? []
      : infeasibilities({ ...row, ...predicted, failure: row.predictionFailure })
  return {
    id: row.id,
    workflowVersionId: row.workflowVersionId,
    executionScopeId: row.executionScopeId,
    networkTopologyId: row.networkTopologyId || undefined,
    source: row.source,
    algorithm: row.algorithm,
    algorithmVersion: row.algorithmVersion || undefined,
    objective: row.objective || undefined,
    deadlineSeconds: row.deadlineSeconds,
    budget: row.budget,
    predicted: {
      ...predicted,
      feasible: row.predictedFeasible,
      ...(reasons.length === 0 ? {} : { reasons }),
    },
    networkModel: row.networkModel,
    contentionFreeMakespanSeconds: row.contentionFreeMakespanSeconds,
    submittedPrediction: row.submittedPrediction,
    defaultedDurations: row.defaultedDurations,
    assignmentCount: row.assignmentCount,
    lifecycleActions: row.lifecycleActions,
    metadata: row.metadata,
    ...(embedded.length === 0 ? {} : { embedded }),
    createdAt: row.createdAt,
  }
}

const AssignmentRow = z.object({
  position: z.number(),
  id: z.string(),
  activityId: z.string(),
  externalId: z.string(),
  resourceId: z.string(),
  coreId: z.string(),
  slotId: z.string(),
  orderOnResource: z.number(),
  priority: z.number(),
  predictedReadyAt: z.number(),
  predictedStartAt: z.number(),
  predictedFinishAt: z.number(),
  predictedRuntimeSeconds: z.number(),
  predictedTransferSeconds: z.number(),
  predictedCost: z.number(),
  durationSource: z.enum(durationSources).optional(),
  submittedPrediction: z.custom<Times>().optional(),
  metadata: FreeObject.optional(),
})
type AssignmentRow = z.output<typeof AssignmentRow>
const assignmentColumns = columnsOf(AssignmentRow, 'a', {
  position: 'a.activity_position',
  externalId: 'd.external_id',
})

/** Assignments in the order of the workflow's activities; `page` absent: all of them. */
export const readAssignments = (
  db: Db,
  planId: string,
  page?: { limit: number; offset: number },
): Promise<AssignmentRow[]> =>
  db.many(
    AssignmentRow,
    sql`select ${assignmentColumns} from schedule_plan_assignments a
      join schedule_plans p on p.id = a.schedule_plan_id
      join activity_definitions d on d.workflow_version_id = p.content_version_id and d.position = a.activity_position
      ${where(sql`a.schedule_plan_id = ${planId}`)}
      order by a.activity_position ${page === undefined ? sql`` : sql`limit ${page.limit} offset ${page.offset}`}`,
  )

/** An assignment in the API's form. */
export const assignmentDocument = (
  planId: string,
  row: AssignmentRow | (NewAssignment & { externalId: string }),
): Assignment => ({
  id: row.id,
  planId,
  activityId: row.activityId,
  externalId: row.externalId,
  resourceId: row.resourceId,
  coreId: row.coreId || undefined,
  slotId: row.slotId || undefined,
  orderOnResource: row.orderOnResource,
  priority: row.priority,
  predictedReadyAt: row.predictedReadyAt,
  predictedStartAt: row.predictedStartAt,
  predictedFinishAt: row.predictedFinishAt,
  predictedRuntimeSeconds: row.predictedRuntimeSeconds,
  predictedTransferSeconds: row.predictedTransferSeconds,
  predictedCost: row.predictedCost,
  durationSource: row.durationSource,
  submittedPrediction: row.submittedPrediction,
  metadata: row.metadata,
})

/** The answer of `GET /schedule-plans/{planId}/`; undefined where there is no such plan. */
export const readPlanDocument = async (db: Db, id: string): Promise<Plan | undefined> => {
  const header = await readPlan(db, id)
  if (header === undefined) return undefined
  if (header.assignmentCount > detailBound) return planSummary(header)
  const rows = await readAssignments(db, id)
  return { ...planSummary(header), assignments: rows.map((row) => assignmentDocument(id, row)) }
}

/** The members of an assignment that a run needs. */
export interface PlannedTask {
  assignmentId: string
  activityId: string
  resourceId: string
  coreId: string
  /** The task's lanes, at least one. Ids are opaque and may be empty. */
  coreIds: string[]
  slotId: string
  orderOnResource: number
  predictedRuntimeSeconds: number
  /** `default`: no document gave the runtime. */
  durationSource?: string
  metadata?: Record<string, unknown>
}

interface TaskRow {
  id: string
  activity_id: string
  resource_id: string
  core_id: string
  core_ids: string[] | null
  slot_id: string
  order_on_resource: number
  predicted_runtime_seconds: number
  duration_source: string | null
  metadata: Record<string, unknown> | null
}

/**
 * A plan's tasks by position of their activities in the content version. Rows are not parsed by a
 * schema, because a run reads up to 100,000 of them.
 */
export const planAssignments = async (db: Db, planId: string): Promise<PlannedTask[]> => {
  const rows = await db.prepared<TaskRow>(
    'plan_assignments',
    `select id, activity_id, resource_id, core_id, slot_id, order_on_resource, predicted_runtime_seconds,
      duration_source, metadata,
       case when jsonb_typeof(metadata -> 'coreIds') = 'array' then array(select
         jsonb_array_elements_text(metadata -> 'coreIds')) end as core_ids
     from schedule_plan_assignments where schedule_plan_id = $1 order by activity_position`,
    [planId],
  )
  return rows.map((row) => ({
    assignmentId: row.id,
    activityId: row.activity_id,
    resourceId: row.resource_id,
    coreId: row.core_id,
    coreIds: row.core_ids === null || row.core_ids.length === 0 ? [row.core_id] : row.core_ids,
    slotId: row.slot_id,
    orderOnResource: row.order_on_resource,
    predictedRuntimeSeconds: row.predicted_runtime_seconds,
    ...(row.duration_source === null ? {} : { durationSource: row.duration_source }),
    ...(row.metadata === null ? {} : { metadata: row.metadata }),
  }))
}

/** A foreign key of another domain that prevents a plan's deletion, and the text of the refusal. */
export interface PlanUse {
  constraint: string
  text: string
}

/**
 * Deletes a plan, and the workflow embedded with it where nothing else uses that; 422 while a record
 * names the plan. It locks the plan before the workflow, as the acceptance of a run does.
 * @returns false for an unknown id
 */
export const deletePlan = async (
  db: Db,
  id: string,
  uses: { plan: readonly PlanUse[]; workflow: readonly WorkflowUse[] },
): Promise<boolean> => {
  try {
    return await db.transaction(async (tx) => {
      const contentVersionId = await tx.value(
        z.string(),
        sql`delete from schedule_plans where id = ${id} returning content_version_id`,
      )
      if (contentVersionId === undefined) return false
      await dropUnusedCopy(tx, contentVersionId, uses.workflow)
      return true
    })
  } catch (error) {
    const use = uses.plan.find(
      ({ constraint }) => constraint === (error as { constraint?: string }).constraint,
    )
    if (use === undefined) throw error
    throw unacceptableAt('planId', `the plan ${JSON.stringify(id)} cannot be deleted: ${use.text}`)
  }
}
