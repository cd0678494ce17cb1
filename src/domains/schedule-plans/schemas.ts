import { z } from 'zod'
import { durationSources } from '../../schedulers/problem.ts'
import { networkModels } from '../../simulator/channel.ts'
import {
  Cost,
  Count,
  freeObject,
  Id,
  idLengths,
  isPlainText,
  Metadata,
  Money,
  ofAnswer,
  OptionalId,
  OptionalLaneId,
  OptionalMadeId,
  Paid,
  PlanSeconds,
  PlanTime,
  Rank,
  Seconds,
  Text,
  Timestamp,
} from '../../http/schema.ts'

/** An order may be any integer that is unique in its lane, also a negative one. */
const Order = z.int().describe('place in the order of its lane; unique there')

const Times = z.strictObject({
  predictedReadyAt: PlanTime,
  predictedStartAt: PlanTime,
  predictedFinishAt: PlanTime,
  predictedRuntimeSeconds: z.number(),
  predictedTransferSeconds: z.number(),
  predictedCost: Paid,
})
export type Times = z.output<typeof Times>

/** One activity's place in a plan. The simulator sets its times. */
export const Assignment = z.strictObject({
  id: z.string(),
  planId: z.string(),
  activityId: z.string(),
  /** The activity's own short name, for any form of `activityId`. */
  externalId: z.string(),
  resourceId: z.string(),
  coreId: z.string().optional(),
  slotId: z.string().optional(),
  orderOnResource: z.number().describe('place in the order of its lane'),
  priority: z.number().describe('only the order counts'),
  predictedReadyAt: z
    .number()
    .describe('when all of its data is there, in seconds from the start of the plan'),
  predictedStartAt: PlanTime,
  predictedFinishAt: PlanTime,
  predictedRuntimeSeconds: z.number(),
  predictedTransferSeconds: z.number().describe("the wait for data after the last predecessor's finish"),
  predictedCost: Paid,
  durationSource: z
    .enum(durationSources)
    .optional()
    .describe('the rule that gave the runtime; default: 1 s / speedup, nothing else is known'),
  submittedPrediction: Times.optional().describe('what the document that brought the plan predicted'),
  metadata: z.record(z.string(), z.unknown()).optional(),
})
export type Assignment = z.output<typeof Assignment>

/**
 * The kinds of cloud operation that a plan can request around its tasks, and the wait between two
 * of them.
 */
const lifecycleActionKinds = [
  'provision',
  'wait-for-ssh',
  'configure',
  'validate',
  'start',
  'stop',
  'destroy',
  'attach-volume',
  'detach-volume',
] as const

const LifecycleAction = z.strictObject({
  id: Id,
  schedulePlanId: OptionalId.optional().describe('the id of the enclosing plan'),
  capacityTargetId: Id,
  cloudInstanceId: OptionalId.optional().describe('the instance that it is about; of provision none'),
  action: z.enum(lifecycleActionKinds),
  earliestStart: PlanSeconds.default(0).describe('seconds from the start of the plan'),
  expectedDuration: Seconds.default(0),
  dependsOn: z.array(Id).optional().describe('ids of actions that come before it'),
  metadata: Metadata,
})
export type LifecycleAction = z.output<typeof LifecycleAction>

export const Predicted = z.strictObject({
  makespanSeconds: z.number(),
  cost: Paid,
  feasible: z.boolean(),
  reasons: z
    .array(z.string())
    .optional()
    .describe(
      'why it is not feasible: deadline, budget, a route that is missing (makespan and cost are 0 then)',
    ),
})

/** The prediction in a document. */
const Submitted = Predicted.omit({ reasons: true })

/** A plan without its assignments. */
export const PlanSummary = z.strictObject({
  id: z.string(),
  workflowVersionId: z.string(),
  executionScopeId: z.string(),
  networkTopologyId: z.string().optional(),
  source: z.enum(['plugin', 'manual', 'imported']),
  algorithm: z.string(),
  algorithmVersion: z.string().optional(),
  objective: z.string().optional(),
  deadlineSeconds: z.number().describe('0: none'),
  budget: z.number().describe('units of currency; 0: no limit'),
  predicted: Predicted.describe("the simulator's answer under `networkModel`"),
  networkModel: z
    .enum(networkModels)
    .optional()
    .describe('what a simulation of the plan uses; absent: `predicted` is what its author wrote'),
  contentionFreeMakespanSeconds: z
    .number()
    .optional()
    .describe('what the algorithm assumed while it constructed the plan'),
  submittedPrediction: Submitted.optional().describe('what the document that brought the plan predicted'),
  defaultedDurations: z
    .number()
    .describe('activities whose runtime nothing gives; they count 1 s / speedup of their resource'),
  assignmentCount: z.number(),
  lifecycleActions: z.array(LifecycleAction).optional(),
  metadata: z.record(z.string(), z.unknown()).optional(),
  /**
   * The embedded documents of the plan that differ from the stored ones of the same id. The plan
   * keeps its own.
   */
  embedded: z.array(z.enum(['workflow', 'resources', 'executionScope', 'networkTopology'])).optional(),
  createdAt: z.string(),
})
export type PlanSummary = z.output<typeof PlanSummary>

/** `assignments` is left out above 10,000; `/assignments/` pages through them. */
export const Plan = PlanSummary.extend({ assignments: z.array(Assignment).optional() })
export type Plan = z.output<typeof Plan>

/** Reports texts among `coreIds` that are no names of lanes. What else is wrong there, a plan's rules say. */
const namesOfLanes = ({ coreIds }: Record<string, unknown>, context: z.RefinementCtx): void => {
  if (!Array.isArray(coreIds)) return
  coreIds.forEach((core: unknown, at) => {
    if (typeof core !== 'string' || core === '' || isPlainText(core, idLengths.lane)) return
    const message = `must be at most ${idLengths.lane} characters without control characters`
    context.addIssue({ code: 'custom', path: ['coreIds', at], message })
  })
}

/**
 * The members of an assignment that an author may write. All but activity and resource have a
 * default.
 */
export const AssignmentDocument = z.strictObject({
  id: OptionalMadeId.default('').describe('made of plan and activity by default'),
  planId: OptionalId.default('').describe('id of the enclosing plan'),
  activityId: z.string().min(1, 'must not be blank').max(1_024),
  externalId: z.string().optional().describe(ofAnswer),
  resourceId: Id,
  coreId: OptionalLaneId.default('').describe('the lane on a resource with cores; orders are unique in it'),
  slotId: OptionalLaneId.default('').describe('the lane on a resource with slots'),
  orderOnResource: Order.default(0),
  priority: Rank.default(0),
  predictedReadyAt: PlanSeconds.default(0),
  predictedStartAt: PlanSeconds.default(0),
  predictedFinishAt: PlanSeconds.default(0),
  predictedRuntimeSeconds: PlanSeconds.default(0),
  predictedTransferSeconds: PlanSeconds.default(0),
  predictedCost: Cost.default(0),
  durationSource: z.string().optional().describe(ofAnswer),
  submittedPrediction: Times.optional().describe(ofAnswer),
  // A task may hold more lanes than a free-form object may have values.
  metadata: freeObject('coreIds')
    .superRefine(namesOfLanes)
    .optional()
    .describe("the client's own facts; coreIds: every lane that it holds"),
})
export type AssignmentDocument = z.output<typeof AssignmentDocument>

/**
 * A plan as an author writes it. Members that only answers hold (`assignmentCount`,
 * `defaultedDurations`, `embedded`, `createdAt`, …) are accepted and ignored, so that an answer can
 * be sent back. The author's prediction is stored beside the simulator's.
 */
export const PlanDocument = z.strictObject({
  id: Id,
  workflowVersionId: Id,
  executionScopeId: Id,
  networkTopologyId: OptionalId.default('').describe(
    'topology that transfers are predicted with; without one no transfer takes time',
  ),
  source: z
    .enum(['plugin', 'manual', 'imported'])
    .default('manual')
    .describe('who made it; manual by default'),
  algorithm: Text.default('').describe('that made it'),
  algorithmVersion: Text.default('').describe('of the algorithm'),
  objective: Text.default('').describe('of the algorithm'),
  deadlineSeconds: PlanSeconds.default(0),
  budget: Money.default(0),
  predicted: z
    .strictObject({
      makespanSeconds: PlanSeconds.default(0),
      cost: Cost.default(0),
      feasible: z.boolean().default(false).describe('false by default'),
      reasons: z.array(z.string()).optional().describe('why it is not feasible'),
    })
    .prefault({})
    .describe("the author's prediction; it is kept beside that of the simulator"),
  networkModel: z
    .enum(networkModels)
    .optional()
    .describe('what the plan is simulated with; default: as for runs'),
  assignments: z.array(AssignmentDocument),
  lifecycleActions: z
    .array(LifecycleAction)
    .optional()
    .describe('operations on machines around the tasks; none by default'),
  metadata: Metadata,
  assignmentCount: Count.optional().describe(ofAnswer),
  contentionFreeMakespanSeconds: PlanSeconds.optional().describe(ofAnswer),
  submittedPrediction: Submitted.optional().describe(ofAnswer),
  defaultedDurations: Count.optional().describe(ofAnswer),
  embedded: z.array(z.string()).optional().describe(ofAnswer),
  createdAt: Timestamp.optional().describe(ofAnswer),
})
export type PlanDocument = z.output<typeof PlanDocument>
