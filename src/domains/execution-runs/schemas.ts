import { z } from 'zod'
import { waitKinds } from '../../executor/journal.ts'
import { EpochTime, Id, JsonObject, Money, OptionalId, Paid, Timestamp } from '../../http/schema.ts'
import { CloudEvent, CloudOperation } from '../cloud/instance-schemas.ts'
import { envelopeOf } from '../../http/paging.ts'
import {
  ActivityResourceProfile,
  Resource,
  ResourceRuntimeBinding,
  Runtime,
} from '../environments/schemas.ts'
import { ExecutionScopeDocument } from '../execution-scopes/schemas.ts'
import { NetworkTopologyDocument } from '../network-topologies/schemas.ts'
import { networkModels } from '../../simulator/channel.ts'
import { PlanDocument } from '../schedule-plans/schemas.ts'
import { Warning, WorkflowVersionDocument } from '../workflow-definitions/schemas.ts'
import { ArtifactTransferRun, Materialization } from '../artifacts/schemas.ts'

export const runModes = ['real', 'simulation', 'interactive'] as const
export const runStates = ['created', 'running', 'completed', 'failed', 'cancelled'] as const
export const taskStates = [
  'blocked',
  'ready',
  'queued',
  'preparing',
  'running',
  'completed',
  'failed',
  'cancelled',
] as const
const keptSeed = 'kept with the run; simulations draw no random numbers'
const runShape = {
  id: Id,
  schedulePlanId: Id,
  // A mode that the service does not support answers 503 and is not listed.
  mode: z.enum(runModes).meta({ enum: ['real', 'simulation'] }),
  seed: z.int().optional().describe(`${keptSeed}; default 0`),
  status: z.string().optional().describe('accepted from older clients, ignored'),
  title: z.string().max(255).optional().describe('free text for lists'),
  networkModel: z
    .enum(networkModels)
    .optional()
    .describe(
      "network model of a simulation; default: the plan's. docs/planning.md says what each one shares",
    ),
  simulator: z
    .enum(['built-in', 'simgrid'])
    .optional()
    .meta({ enum: ['built-in'] })
    .describe('built-in by default'),
  onFailure: z
    .enum(['stop', 'finish-independent'])
    .optional()
    .describe('what a failed activity means for branches that do not need it; default stop'),
  budget: Money.optional().describe(
    'the most that the run may cost, in units of currency; default: no limit',
  ),
  onBudget: z
    .enum(['refuse', 'ask', 'stop'])
    .optional()
    .describe(
      'refuse (default): no run that is predicted above its budget; ask: it waits for POST …/approve/; ' +
        'stop: it is cancelled once it has spent and committed more. Only stop watches a run: refuse and ' +
        'ask look at the prediction alone, and a plan that cannot be predicted is above every budget',
    ),
}
export const RunMembers = z.strictObject(runShape)
export type RunMembers = z.output<typeof RunMembers>

/**
 * Body of run creation: run id, plan id and mode, in `run` or at the top, and a snapshot of
 * workflow and infrastructure. The store fills in any part that is left out.
 */
export const RunRequest = z
  .strictObject({
    run: RunMembers.optional().describe('the members of the run, in place of those beside it'),
    ...runShape,
    id: Id.optional().describe('of the run; it stands here or in `run`'),
    schedulePlanId: Id.optional().describe('of the plan; it stands here or in `run`'),
    mode: runShape.mode.optional().describe('real or simulation; it stands here or in `run`'),
    plan: PlanDocument.optional().describe(
      'the stored plan once more: its ids and its assignments (activity, resource, core, slot, order, ' +
        'metadata.runtimeId, metadata.coreIds) have to agree with it; the rest is not read',
    ),
    workflow: WorkflowVersionDocument.optional().describe('in place of the stored one'),
    resources: z.array(Resource).optional().describe('in place of the stored ones'),
    executionScope: ExecutionScopeDocument.optional().describe('in place of the stored one'),
    networkTopology: NetworkTopologyDocument.optional().describe('in place of the stored one'),
    runtimes: z.array(Runtime).optional().describe('in place of the stored ones'),
    runtimeBindings: z.array(ResourceRuntimeBinding).optional().describe('in place of the stored ones'),
    activityProfiles: z.array(ActivityResourceProfile).optional().describe('in place of the stored ones'),
    preparationRequirementsByActivity: JsonObject.optional().describe('accepted, not read'),
  })
  .superRefine((request, context) => {
    const top = Object.keys(runShape).filter((key) => request[key as keyof typeof request] !== undefined)
    if (request.run !== undefined && top.length > 0) {
      context.addIssue({
        code: 'custom',
        path: [top[0] as string],
        message: 'is given beside `run`; write the members of the run either in `run` or at the top',
      })
    }
    const { budget, onBudget } = request.run ?? request
    if (onBudget !== undefined && budget === undefined)
      context.addIssue({
        code: 'custom',
        path: [...(request.run === undefined ? [] : ['run']), 'budget'],
        message: 'is missing: onBudget is for a run with a budget; give it one, or leave onBudget out',
      })
    if (request.run === undefined) {
      for (const key of ['id', 'schedulePlanId', 'mode'] as const)
        if (request[key] === undefined)
          context.addIssue({
            code: 'custom',
            path: [key],
            message: 'is missing; add it to `run` or to the top',
          })
    }
  })
export type RunRequest = z.output<typeof RunRequest>

/** The members of the run, from either position in the body. */
export const runMembersOf = (request: RunRequest): RunMembers =>
  request.run ??
  RunMembers.parse(
    Object.fromEntries(Object.keys(runShape).map((key) => [key, request[key as keyof RunRequest]])),
  )

export const ExecutionRun = z
  .strictObject({
    id: Id,
    schedulePlanId: OptionalId.describe('blank for a session or command of the console'),
    mode: z.enum(runModes),
    seed: z.number().describe(keptSeed),
    status: z.enum(runStates),
    kind: z.enum(['workflow', 'interactive', 'standalone']),
    title: z.string().optional(),
    resourceId: z.string().optional().describe('of a session or command of the console'),
    runtimeId: z.string().optional().describe('of a session or command of the console'),
    connectionId: z.string().optional().describe('of a session or command of the console'),
    command: z.string().optional().describe('the first 1,000 characters of a command of the console'),
    actorId: z.string().optional(),
    environmentSnapshotId: z.string().optional(),
    networkModel: z.string().optional(),
    simulator: z.string().optional(),
    onFailure: z.string(),
    generation: z.number().describe('from 1; each retry begins the next one'),
    activityCount: z.number(),
    completedActivityCount: z.number(),
    failedActivityCount: z.number(),
    makespanSeconds: z.number().describe('from the start of the first activity to the end of the last'),
    cost: Paid,
    cloudCost: z
      .number()
      .optional()
      .describe(
        'part of cost, in its unit: machines of capacity targets, beside what their tasks are charged',
      ),
    budget: Paid.optional(),
    onBudget: z.string().optional(),
    approvedAt: Timestamp.optional(),
    breakdown: z.strictObject({
      computeSeconds: z.number(),
      transferSeconds: z.number(),
      queueSeconds: z.number(),
      interferenceSeconds: z.number().describe('part of transferSeconds'),
      overheadSeconds: z.number(),
    }),
    transferredBytes: z.number(),
    defaultedDurations: z
      .number()
      .describe(
        'activities whose runtime nothing gives, as its plan counts; they count 1 s / speedup of their resource',
      ),
    warnings: z.array(Warning).describe('what a reader of the results has to know'),
    failureReason: z.string().optional(),
    paused: z.boolean(),
    cancelRequestedAt: Timestamp.optional(),
    createdAt: Timestamp,
    startedAt: Timestamp.optional(),
    finishedAt: Timestamp.optional(),
  })
  .meta({ id: 'ExecutionRun' })
export type ExecutionRun = z.output<typeof ExecutionRun>

const TaskTime = z
  .number()
  .optional()
  .describe('seconds since the epoch, in a simulation since its start; absent while it is not known')

export const TransferTime = z.number().describe('seconds since the epoch, in a simulation since its start')

export const TaskExecution = z
  .strictObject({
    id: z.string(),
    executionRunId: Id,
    planAssignmentId: z.string(),
    activityId: z.string(),
    externalId: z.string(),
    plannedResourceId: z.string(),
    allocatedResourceId: z.string().optional(),
    runtimeId: z.string().optional(),
    runtimeReason: z
      .string()
      .optional()
      .describe('why the task has another runtime than its assignment or activity names'),
    connectionId: z.string().optional(),
    cloudInstanceId: z.string().optional().describe('the machine that was made for it'),
    site: z.string().optional(),
    attempt: z.number().describe('from 1'),
    status: z.enum(taskStates),
    readyAt: TaskTime,
    dataReadyAt: TaskTime,
    queuedAt: TaskTime,
    startedAt: TaskTime,
    finishedAt: TaskTime,
    runtimeSeconds: z.number(),
    queueSeconds: z.number(),
    siteQueueSeconds: z
      .number()
      .optional()
      .describe("time in the site's own queue; queueSeconds is the time here"),
    transferSeconds: z.number(),
    transferBytes: z.number().describe("bytes of the attempt's data transfers"),
    interferenceSeconds: z
      .number()
      .describe('the part of transferSeconds that other flows on the same links caused'),
    overheadSeconds: z.number(),
    cost: Paid,
    cpuSeconds: z.number().optional(),
    peakMemoryBytes: z.number().optional(),
    measuredBy: z.string().optional(),
    durationSource: z.string().optional(),
    exitCode: z.number().optional().describe('absent where no program ended by itself'),
    failureClass: z.string().optional(),
    failureReason: z.string().optional(),
    coreIds: z.array(z.string()),
    slotId: z.string(),
    orderOnResource: z.number().describe('place in the order of its lane'),
    metadata: z.record(z.string(), z.unknown()).optional(),
  })
  .meta({ id: 'TaskExecution' })

const TransferRoute = z
  .strictObject({
    links: z
      .array(z.string())
      .describe('ids of the links of the topology, in the direction of travel; none without a topology'),
    strategy: z.string().describe('how the files came'),
    reason: z.string().describe('why this strategy, and why none of the better ones'),
    from: z.string().describe('site of the producer; in a simulation its resource'),
    to: z.string().describe('site of the consumer; in a simulation its resource'),
  })
  .meta({ id: 'TransferRoute' })

export const DataTransfer = z
  .strictObject({
    id: z.string(),
    executionRunId: Id,
    producerActivityId: z.string(),
    consumerActivityId: z.string(),
    sourceResourceId: z.string(),
    targetResourceId: z.string(),
    bytes: z.number().describe('content that moved; 0 where the files were there already'),
    status: z.string(),
    startedAt: TransferTime,
    finishedAt: TransferTime,
    durationSeconds: z.number(),
    cost: z.number().describe('bytes × Σ pricePerByte of the links, in units of currency'),
    strategy: z.string().optional(),
    route: TransferRoute.optional(),
    logicalBytes: z.number().optional(),
    networkBytes: z
      .number()
      .optional()
      .describe(
        'what left the source, packing and repetitions included; 0 where files were copied or were there',
      ),
    filesTransferred: z.number().optional().describe('regular files and links that moved'),
  })
  .meta({ id: 'DataTransfer' })

export const Handle = z
  .strictObject({
    id: z.string(),
    runId: Id,
    activityId: z.string(),
    resourceId: z.string(),
    runtimeId: z.string(),
    name: z.string(),
    externalId: z.string().optional(),
    status: z.enum(['starting', 'running', 'completed', 'failed', 'stopped']),
    startedAt: EpochTime,
    finishedAt: EpochTime.optional(),
    exitCode: z.number().optional(),
    failure: z.string().optional(),
    artifacts: z.record(z.string(), z.unknown()).optional(),
    metadata: z.record(z.string(), z.unknown()).optional(),
  })
  .meta({ id: 'Handle' })

export const RunEvent = z
  .strictObject({
    id: z.string(),
    sequence: z.number().describe('place in the events of the run, from 1'),
    eventType: z.string(),
    aggregateType: z.enum(['execution_run', 'activity_execution']),
    aggregateId: z.string(),
    payload: z.record(z.string(), z.unknown()).optional(),
    occurredAt: Timestamp,
  })
  .meta({ id: 'RunEvent' })

export const DataObjectInstance = z
  .strictObject({
    id: z.string(),
    dataObjectId: z.string(),
    executionRunId: Id,
    producerActivityId: z.string(),
    attempt: z.number().describe('from 1'),
    relativePath: z
      .string()
      .describe('a byte that is no UTF-8 stands as \\xe9; the file is downloaded by this name'),
    pathBytes: z.string().optional().describe('the bytes of a path that is no text, in base64'),
    sizeBytes: z.number(),
    checksum: z.string().optional().describe('sha256: and 64 hexadecimal digits'),
    mediaType: z.string().optional(),
    discovered: z.boolean(),
  })
  .meta({ id: 'DataObjectInstance' })

export const DataLocation = z
  .strictObject({
    id: z.string(),
    dataObjectInstanceId: z.string(),
    storageResourceId: z.string().optional().describe('the storage of promoted data'),
    resourceId: z.string().optional(),
    executionRunId: Id,
    uri: z.string(),
    status: z.string(),
  })
  .meta({ id: 'DataLocation' })

const LiveRun = z
  .strictObject({
    phase: z.enum(['opening', 'simulating', 'running', 'closing']),
    sites: z.array(
      z.strictObject({
        site: z.string(),
        state: z
          .enum(['in flight', 'waiting', 'waiting for other sites', 'settled', 'given up'])
          .describe('waiting: nothing of the run runs there'),
        completed: z.number().describe('activities'),
        running: z.number().describe('activities'),
      }),
    ),
    completed: z.number().describe('activities'),
    total: z.number().describe('activities of the run'),
    waitingFor: z.literal('approval').optional().describe('a person has to approve what it will cost'),
    waitsFor: z
      .array(
        z.strictObject({
          site: z.string(),
          kind: z.enum(waitKinds).optional(),
          reason: z.string(),
          text: z
            .string()
            .describe(
              'the reason with its time, for people: waits for ssh/far: connection refused, since 4 min',
            ),
          activities: z.number().describe('how many wait for it'),
          since: EpochTime.optional(),
        }),
      )
      .describe('what activities wait for, those of most activities first, 20 at most'),
  })
  .meta({ id: 'LiveRun' })

const truncated = (what: string) =>
  z.literal(true).optional().describe(`${what} has not all; the first ones are here`)
const total = (what: string) => z.number().optional().describe(what)

/**
 * The whole run. A cut list is marked as such, and `links` names the paths of the complete lists.
 */
export const RunDetail = z
  .strictObject({
    run: ExecutionRun,
    live: LiveRun.optional().describe(
      'phase and states of the open workflow, with the counts of the record; absent when the ' +
        'workflow does not answer within 250 ms',
    ),
    activities: z
      .array(TaskExecution)
      .optional()
      .describe('absent above 10,000 activities, like dataTransfers and handles'),
    activitiesTotal: total('instead of activities, above 10,000 of them'),
    dataTransfers: z.array(DataTransfer).optional(),
    dataTransfersTotal: total('instead of dataTransfers'),
    handles: z.array(Handle).optional(),
    handlesTotal: total('instead of handles'),
    events: z.array(RunEvent).describe('the first 1,000, from sequence 1'),
    eventsTruncated: truncated('events'),
    eventsTotal: total('beside eventsTruncated'),
    dataObjects: z.array(DataObjectInstance).describe('the first 10,000 by id'),
    dataObjectsTruncated: truncated('dataObjects'),
    dataObjectsTotal: total('beside dataObjectsTruncated'),
    dataLocations: z.array(DataLocation).describe('the first 10,000 by id'),
    dataLocationsTruncated: truncated('dataLocations'),
    dataLocationsTotal: total('beside dataLocationsTruncated'),
    infrastructureRuns: z
      .array(z.strictObject({ run: CloudOperation, events: z.array(CloudEvent) }))
      .optional()
      .describe(
        'operations at cloud providers for this run, the first 100, with the first 200 events of each',
      ),
    artifactMaterializations: z.array(Materialization).describe('where its executables were brought'),
    artifactMaterializationsTruncated: truncated('artifactMaterializations'),
    artifactMaterializationsTotal: total('beside artifactMaterializationsTruncated'),
    artifactTransferRuns: z.array(ArtifactTransferRun).describe('how, where bytes moved'),
    artifactTransferRunsTruncated: truncated('artifactTransferRuns'),
    artifactTransferRunsTotal: total('beside artifactTransferRunsTruncated'),
    links: z
      .strictObject({
        activities: z.string(),
        dataTransfers: z.string(),
        handles: z.string(),
        events: z.string(),
      })
      .optional()
      .describe('the paged lists, where one of the lists here is not whole'),
  })
  .meta({ id: 'ExecutionRunDetail' })

export const RunItem = z.strictObject({ run: ExecutionRun })
export const RunPage = envelopeOf(RunItem)
export const pages = {
  activities: envelopeOf(TaskExecution),
  'data-transfers': envelopeOf(DataTransfer),
  handles: envelopeOf(Handle),
  events: envelopeOf(RunEvent),
  outputs: envelopeOf(DataObjectInstance),
} as const

/** The measure and its unit are those of the member. */
const Delta = z.strictObject({
  a: z.number().describe('of the first run'),
  b: z.number().describe('of the second run'),
  delta: z.number().describe('b − a'),
  relative: z.number().optional().describe('delta / a; absent where a is 0'),
})
const SinceStart = z.number().optional().describe('seconds from the first start of the run')
/** A task of one of two compared runs. */
export const ComparedSide = z.strictObject({
  resourceId: z.string(),
  startAt: SinceStart,
  finishAt: SinceStart,
  runtimeSeconds: z.number(),
  cost: Paid,
  status: z.string().optional(),
})

/** Two runs of one workflow version side by side, with the predictions of their plans. */
export const RunComparison = z.strictObject({
  a: z.string(),
  b: z.string(),
  totals: z.strictObject({ makespanSeconds: Delta, cost: Delta }),
  planned: z.strictObject({
    a: z.strictObject({ makespanSeconds: z.number(), cost: Paid }),
    b: z.strictObject({ makespanSeconds: z.number(), cost: Paid }),
  }),
  activities: envelopeOf(
    z.strictObject({
      activityId: z.string(),
      externalId: z.string(),
      a: ComparedSide,
      b: ComparedSide,
      planned: z
        .strictObject({
          a: z.number().describe('by the plan of the first run'),
          b: z.number().describe('by that of the second'),
        })
        .describe('runtimes in seconds'),
      delta: z.strictObject({
        startAt: z.number().optional().describe('seconds later in the second run'),
        finishAt: z.number().optional().describe('seconds later in the second run'),
        runtimeSeconds: z.number(),
        cost: Paid,
      }),
      moved: z.boolean(),
    }),
  ),
})
