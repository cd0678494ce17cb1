import { z } from 'zod'
import { networkModels } from '../../simulator/channel.ts'
import { ranges } from '../../ranges.ts'
import { beamDefaults } from '../../schedulers/beam-size.ts'
import {
  Count,
  Id,
  Money,
  ofAnswer,
  OptionalId,
  Paid,
  PlanSeconds,
  positive,
  Text,
  Timestamp,
  withDefault,
  withinObjectBounds,
} from '../../http/schema.ts'
import { Plan, PlanSummary, Predicted } from '../schedule-plans/schemas.ts'
import { Warning } from '../workflow-definitions/schemas.ts'

export const sessionStates = ['queued', 'running', 'completed', 'failed', 'cancelled'] as const
const Status = z.enum(sessionStates)

/** Options of the search algorithms. */
export const SearchOptions = z.object({
  beamWidth: z
    .int()
    .min(1)
    .max(10_000)
    .optional()
    .describe(`partial schedules that are kept; default ${String(beamDefaults.beamWidth)}`),
  optionCount: z
    .int()
    .min(1)
    .max(1_000)
    .optional()
    .describe(`candidates at most; default ${String(beamDefaults.optionCount)}`),
  readyBranchLimit: z
    .int()
    .min(1)
    .max(16)
    .optional()
    .describe(
      `ready activities by which each partial schedule is continued; default ${String(beamDefaults.readyBranchLimit)}`,
    ),
})

/** An option that the algorithm does not read is stored, and the session's warnings name it. */
export const AlgorithmConfiguration = SearchOptions.loose().superRefine(withinObjectBounds)

const Choice = z.strictObject({
  id: z.string().min(1, 'must not be blank'),
  configuration: AlgorithmConfiguration.optional().describe('options of the algorithm'),
})

/** The factors by which tasks slow each other down while they run at the same time. */
const InterferenceMatrix = z.looseObject({
  schemaVersion: z.enum(['1', '2', '3', '4']),
  model: z.enum(['pairwise-cpu-priority', 'pairwise-slowdown']),
  aggregation: z
    .enum(['minimum', 'maximum', 'additive-excess'])
    .optional()
    .describe('how several factors of one task become one'),
  priorityWeight: withDefault(positive(ranges.ratio), 'none'),
  entries: z
    .array(
      z.looseObject({
        affectedActivityId: z.string(),
        interferingActivityId: z.string(),
        slowdownFactor: withDefault(positive(ranges.ratio).min(1), 'none'),
      }),
    )
    .optional()
    .describe('by pairs of activities'),
  rules: z
    .array(
      z.looseObject({
        affectedActivityTypeId: z.string(),
        interferingActivityTypeId: z.string(),
        slowdownFactor: positive(ranges.ratio).min(1),
      }),
    )
    .optional()
    .describe('by pairs of types'),
  groups: z
    .array(
      z.looseObject({
        id: z.string(),
        activityIds: z.array(z.string()),
        slowdownFactor: positive(ranges.ratio).min(1),
      }),
    )
    .optional()
    .describe('by sets of activities'),
})

export const SessionConfiguration = z.looseObject({
  interferenceMatrix: InterferenceMatrix.optional().describe(
    'how tasks slow each other down; kept, and ignored by the algorithms of this version',
  ),
  interferenceKnowledgeMatrix: z.record(z.string(), z.unknown()).optional().describe('kept as a remark'),
})

/**
 * The document of a client. Members that only answers hold are accepted and ignored, so that an
 * answer can be sent back.
 */
export const SessionDocument = z.strictObject({
  id: Id,
  workflowVersionId: Id,
  executionScopeId: Id,
  /** Blank: the scope's topology, else none. */
  networkTopologyId: OptionalId.default('').describe("empty: the scope's topology, else none"),
  algorithms: z.array(Choice).min(1, 'must name at least one algorithm'),
  deadlineSeconds: PlanSeconds.default(0),
  budget: Money.default(0),
  networkModel: z
    .enum(networkModels)
    .optional()
    .describe('what candidates are simulated with, and runs of their plans; default: as for runs'),
  configuration: SessionConfiguration.optional().describe('of all algorithms'),
  status: z.string().optional().describe(ofAnswer),
  progress: z.number().optional().describe(ofAnswer),
  candidateCount: Count.optional().describe(ofAnswer),
  selectedCandidateId: Id.optional().describe(ofAnswer),
  selectedPlanId: Id.optional().describe(ofAnswer),
  defaultedDurations: Count.optional().describe(ofAnswer),
  failureReason: Text.optional().describe(ofAnswer),
  warnings: z.array(Warning).optional().describe(ofAnswer),
  createdAt: Timestamp.optional().describe(ofAnswer),
  startedAt: Timestamp.optional().describe(ofAnswer),
  completedAt: Timestamp.optional().describe(ofAnswer),
})
export type SessionDocument = z.output<typeof SessionDocument>

export const Session = z.strictObject({
  id: z.string(),
  workflowVersionId: z.string(),
  executionScopeId: z.string(),
  networkTopologyId: z.string(),
  status: Status,
  algorithms: z.array(
    z.strictObject({ id: z.string(), configuration: z.record(z.string(), z.unknown()).optional() }),
  ),
  progress: z.number().describe('0 to 1'),
  candidateCount: z.number(),
  selectedCandidateId: z.string().optional(),
  selectedPlanId: z.string().optional(),
  deadlineSeconds: z.number().optional(),
  budget: Paid.optional(),
  networkModel: z.enum(networkModels).optional(),
  configuration: z.record(z.string(), z.unknown()).optional(),
  defaultedDurations: z
    .number()
    .describe(
      'activities without any duration on a resource that can run them; they count 1 s / speedup there',
    ),
  warnings: z
    .array(Warning)
    .describe('what a reader of the predictions has to know, and what of the configuration nothing reads'),
  failureReason: z.string().optional(),
  createdAt: z.string(),
  startedAt: z.string().optional(),
  completedAt: z.string().optional(),
})
export type Session = z.output<typeof Session>

export const AlgorithmRun = z.strictObject({
  id: z.string(),
  planningSessionId: z.string(),
  algorithm: z.string(),
  objective: z.string(),
  status: Status,
  progress: z.number().describe('0 to 1'),
  candidateCount: z.number(),
  configuration: z.record(z.string(), z.unknown()).optional(),
  estimate: z
    .strictObject({
      durationSeconds: z.number(),
      expandedStates: z.number().describe('pairs of activity and resource that are weighed'),
      activityCount: z.number(),
      dependencyCount: z.number(),
      compatibleResources: z.number().describe('resources that some activity fits'),
      beamWidth: z
        .number()
        .optional()
        .describe(
          'partial schedules that the search keeps, fewer for large problems; 0: no search, one schedule',
        ),
      readyBranchLimit: z.number().optional().describe('activities that a search tries at each step'),
      confidence: z.literal('calibrated'),
    })
    .optional(),
  failureReason: z.string().optional(),
  startedAt: z.string().optional(),
  completedAt: z.string().optional(),
})
export type AlgorithmRun = z.output<typeof AlgorithmRun>

/** `live`: the state that the open workflow reports, when it answers in time. */
export const SessionDetail = z.strictObject({
  session: Session,
  algorithmRuns: z.array(AlgorithmRun),
  live: z
    .strictObject({
      phase: z.enum(['opening', 'planning', 'ranking']),
      algorithm: z.string().optional().describe('the algorithm that is planning'),
      ended: z.number().describe('algorithms that have ended'),
      total: z.number().describe('algorithms of the session'),
    })
    .optional(),
})

export type SessionDetail = z.output<typeof SessionDetail>

/** The members of a candidate that its record has in the same form. */
export const candidateMembers = {
  id: z.string(),
  planningSessionId: z.string(),
  algorithmRunId: z.string(),
  algorithm: z.string(),
  objective: z.string(),
  rank: z
    .number()
    .optional()
    .describe('from 1 over the whole session; absent until every algorithm has ended'),
  paretoOptimal: z.boolean(),
  dominated: z.boolean(),
  feasible: z.boolean(),
  contentionFreeMakespanSeconds: z
    .number()
    .optional()
    .describe('what the algorithm assumed while it constructed the schedule'),
  fingerprint: z.string(),
  createdAt: z.string(),
}
const candidate = {
  ...candidateMembers,
  predicted: Predicted.describe("the simulator's answer under the session's `networkModel`"),
}
export const CandidateSummary = z.strictObject({ ...candidate, plan: PlanSummary })
/**
 * Above 10,000 assignments the plan's `assignments` are left out: select the candidate and page
 * through those of its plan.
 */
export const Candidate = z.strictObject({ ...candidate, plan: Plan })
export type Candidate = z.output<typeof Candidate>

export const AlgorithmDescriptor = z.strictObject({
  id: z.string(),
  name: z.string(),
  objective: z.string(),
  multiple: z.boolean(),
  description: z.string(),
  defaults: z.record(z.string(), z.number()).optional(),
})
