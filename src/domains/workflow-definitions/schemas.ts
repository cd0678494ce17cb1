import { z } from 'zod'
import { ranges, mostCores, shortestTimeoutSeconds } from '../../ranges.ts'
import { judgedLater } from '../../http/keys.ts'
import { defaultCpu } from './quantities.ts'
import {
  amount,
  Cores,
  Count,
  Id,
  JsonObject,
  Metadata,
  Name,
  ofAnswer,
  OptionalId,
  Rank,
  Seconds,
  Text,
  Timestamp,
  withDefault,
} from '../../http/schema.ts'

// ------------------------------------------------------------------------------------------------------
// shared pieces

/** The longest script is an argument of `sh`. */
const Script = z.string().max(1_048_576)
const Arguments = z.array(Script)
const Environment = z.record(z.string(), Text)

const Image = Text.optional().describe('of the container that runs the activity; none by default')
const commandShape = {
  entrypoint: Text.optional().describe('the program; an activity of real runs needs it'),
  arguments: Arguments.optional().describe('of the program; none by default'),
  environment: Environment.optional().describe('variables of the program'),
  workingDirectory: Text.optional().describe('where the program starts; the work directory by default'),
  executable: JsonObject.optional().describe('an artifact to run, in place of an image'),
}

/** The cost of an activity in the simulator: seconds at reference speed, or operations. */
export const Simulation = z.strictObject({
  model: z.string().max(255).optional().describe('of the simulator; kept, not read'),
  durationSeconds: withDefault(Seconds, 'none'),
  flops: withDefault(amount(ranges.operations), 'none'),
  parameters: JsonObject.optional().describe('of the model; flops where the member flops is left out'),
})

export const Policy = z.strictObject({
  timeoutSeconds: z.number().min(shortestTimeoutSeconds).max(ranges.seconds.most),
  maxAttempts: z.int().min(1).max(1_000).describe('tries of the activity, the first one included'),
  retryDelaySeconds: Seconds,
})
const PolicyInput = z.strictObject({
  timeoutSeconds: amount({ ...ranges.seconds, least: shortestTimeoutSeconds })
    .optional()
    .describe('of one attempt; 0: the default, 3600'),
  maxAttempts: z
    .int()
    .min(0)
    .max(1_000)
    .optional()
    .describe('tries of the activity, the first one included; 0: the default, 1'),
  retryDelaySeconds: Seconds.optional().describe('before the next try; 0 by default'),
})
export type PolicyInput = z.output<typeof PolicyInput>
export type Policy = z.output<typeof Policy>

// ---------------------------------------------------------------------------------------------------
// authoring document

export const AuthoringActivity = z.strictObject({
  name: Name,
  command: z.strictObject(commandShape).optional().describe('what the activity runs, in place of run'),
  image: Image,
  runtime: OptionalId.optional().describe(
    'id, name or driver of a runtime that is bound to its resource, where its assignment names none; ' +
      'default: the first bound one',
  ),
  run: Script.optional().describe(
    'A script for sh. Line ends of Windows become those of Unix. All of it with the variables has at most ' +
      '1,572,864 bytes',
  ),
  cpuLimit: z
    .union([z.string(), z.number()])
    .optional()
    .describe(`cores: 2, or 500m for half a core; default: ${String(defaultCpu)}`),
  memoryLimit: z.string().optional().describe('bytes, or with Ki, Mi, Gi or Ti; 16Mi by default'),
  dependsOn: z.array(z.string()).optional().describe('names of activities that end before it starts'),
  resourceSelector: Id.optional().describe('id of the only resource that may run it; any by default'),
  keepDisk: z
    .boolean()
    .optional()
    .describe('false: its work directory is removed when the run has completed; true by default'),
  mountPath: Text.optional().describe('kept as a remark'),
  workspaceSeedPath: Text.optional().describe(
    'a folder below SERVICE_SEED_ROOT whose files its work directory begins with',
  ),
  expectedOutputs: z.array(Text).optional().describe('paths of files without which it fails'),
  simulation: Simulation.optional().describe('what it costs in the simulator'),
  activityType: Id.optional().describe('name of its type; by default a type of the workflow'),
  policy: PolicyInput.optional().describe('timeout and retries'),
  priority: withDefault(Rank, 'its place in the list, from 0, and 1 more per activity in dependsOn'),
  stage: z
    .enum(['all', 'declared'])
    .optional()
    .describe('what it gets of its predecessors: all files (the default), or those of data dependencies'),
  metadata: Metadata,
})
export type AuthoringActivity = z.output<typeof AuthoringActivity>

const variableOfName =
  'Path in the work directory of the consumer. There the variable AKOFLOW_INPUT_<NAME> (or with the ' +
  "installation's prefix) holds its absolute path: letters in upper case, A-Z and 0-9 kept, all other " +
  'characters in a row one "_". Where names of one consumer give one variable, those with characters beyond ' +
  'ASCII have "_" and eight digits behind it, the first of the SHA-256 of the name in upper case, with a ' +
  'warning; other such names are refused'
export const AuthoringDataDependency = z.strictObject({
  producerActivity: z.string(),
  consumerActivity: z.string(),
  logicalName: z.string().describe(variableOfName),
  sizeBytes: z.int().min(1),
})
export type AuthoringDataDependency = z.output<typeof AuthoringDataDependency>

const Remark = z.unknown().optional().describe('kept as a remark')

/** Members of `spec` that only older documents have; stored under `metadata.legacy`. */
export const legacySpecShape = {
  runtime: Remark,
  schedule: Remark,
  storageAkoflowPolicy: Remark,
  storageAccessModes: Remark,
  volumes: Remark,
}

/**
 * Members of `spec` that describe the document instead of one activity. They are stored as written,
 * so that an export returns them.
 */
const specShape = {
  image: Text.optional().describe('of activities that have none of their own'),
  storageClassName: Text.optional().describe('kept as a remark'),
  storageSize: Text.optional().describe('kept as a remark'),
  storagePolicy: JsonObject.optional().describe('kept as a remark'),
  mountPath: Text.optional().describe('kept as a remark'),
  metadata: Metadata,
  ...legacySpecShape,
}

export const AuthoringSpec = z.strictObject({
  namespace: Name,
  ...specShape,
  activities: z.array(AuthoringActivity),
  dataDependencies: z
    .array(AuthoringDataDependency)
    .optional()
    .describe('files that activities take from others'),
})

/** The document a user writes. */
export const AuthoringDocument = z.strictObject({ name: Name, spec: AuthoringSpec })
export type AuthoringDocument = z.output<typeof AuthoringDocument>

/**
 * `spec` without activities, data dependencies and namespace: the part that is stored beside the
 * rows.
 */
export const RawSpec = z.strictObject(specShape)
export type RawSpec = z.output<typeof RawSpec>

// --------------------------------------------------------------------------------------------------
// WfFormat 1.5 and 1.6

const WfCommand = z.looseObject({
  program: z.string().optional().describe('what the task ran'),
  arguments: z.array(z.string()).optional().describe('of the program'),
})

/** The members of a WfCommons instance that are read. All others are allowed and ignored. */
export const WfFormatDocument = z.looseObject({
  name: Name,
  description: z.string().optional().describe('free text'),
  schemaVersion: z.enum(['1.5', '1.6']),
  workflow: z.looseObject({
    specification: z.looseObject({
      tasks: z.array(
        z.looseObject({
          id: z.string().min(1),
          name: z.string().optional().describe('its type is made of it; the id by default'),
          parents: z.array(z.string()).optional().describe('ids of tasks before it'),
          children: z.array(z.string()).optional().describe('ids of tasks after it'),
          inputFiles: z.array(z.string()).optional().describe('ids of files that it reads'),
          outputFiles: z.array(z.string()).optional().describe('ids of files that it makes'),
        }),
      ),
      files: z
        .array(
          z.looseObject({
            id: z.string().min(1),
            sizeInBytes: z.number().min(0).max(Number.MAX_SAFE_INTEGER),
          }),
        )
        .optional()
        .describe('sizes of the files'),
    }),
    execution: z
      .looseObject({
        makespanInSeconds: withDefault(amount(ranges.planSeconds), 'unknown'),
        tasks: z
          .array(
            z.looseObject({
              id: z.string().min(1),
              runtimeInSeconds: withDefault(Seconds, 'unknown'),
              coreCount: withDefault(Cores.max(mostCores), '1'),
              memoryInBytes: z
                .number()
                .min(0)
                .max(Number.MAX_SAFE_INTEGER)
                .optional()
                .describe('0 by default'),
              command: WfCommand.optional().describe('kept as a remark'),
            }),
          )
          .optional()
          .describe('what each task took'),
      })
      .optional()
      .describe('the measured run'),
  }),
})
export type WfFormatDocument = z.output<typeof WfFormatDocument>

// ------------------------------------------------------------------------------------------------------
// normalised shape

export const WorkflowCapability = z.enum(['real', 'simulation', 'interactive'])

const Command = z.strictObject({
  image: Image,
  resolvedExecutable: JsonObject.optional().describe(ofAnswer),
  ...commandShape,
})

const Service = JsonObject
const OfVersion = Id.optional().describe('the id of the enclosing version')

const activityKinds = ['task', 'service', 'interactive'] as const

export const Activity = z.strictObject({
  id: Id,
  workflowVersionId: Id,
  activityTypeId: Id,
  externalId: z.string(),
  name: z.string(),
  kind: z.enum(activityKinds).meta({ enum: ['task'] }),
  capabilities: z.array(WorkflowCapability),
  command: Command,
  resources: z.strictObject({
    cpu: Cores.max(mostCores),
    memoryBytes: Count,
    storageBytes: Count,
    gpu: Cores.max(mostCores).optional(),
  }),
  service: Service.optional().describe('kept as a remark'),
  simulation: Simulation.optional().describe('what it costs in the simulator'),
  policy: Policy,
  priority: Rank,
  metadata: Metadata,
})
export type Activity = z.output<typeof Activity>

export const Dependency = z.strictObject({
  activityId: Id,
  dependsOnActivityId: Id,
  type: z.literal('control'),
})
export const DataDependency = z.strictObject({
  producerActivityId: Id,
  consumerActivityId: Id,
  logicalName: z.string().min(1),
  sizeBytes: Count,
})

/**
 * A workflow version embedded in a plan or a run (domain-reference 9.2): the service's answer form,
 * where members with a default may be left out. `versionContent` computes its content,
 * `versionProblems` its problems.
 */
export const WorkflowVersionDocument = z.strictObject({
  id: Id,
  workflowId: Id.optional().describe('the workflow that the version is of'),
  version: z.int().min(1).optional().describe(ofAnswer),
  definitionHash: z.string().optional().describe(ofAnswer),
  status: z.string().optional().describe(ofAnswer),
  createdAt: z.string().optional().describe(ofAnswer),
  metadata: Metadata,
  activityCount: Count.optional().describe(ofAnswer),
  dependencyCount: Count.optional().describe(ofAnswer),
  dataDependencyCount: Count.optional().describe(ofAnswer),
  activities: z.array(
    z.strictObject({
      ...Activity.shape,
      workflowVersionId: OfVersion,
      activityTypeId: Id.optional().describe('by default a type of the workflow'),
      externalId: Id.optional().describe('its short name; made of the id by default'),
      name: z.string().optional().describe('externalId by default'),
      kind: z
        .enum(activityKinds)
        .optional()
        .meta({ enum: ['task'] })
        .describe('task by default'),
      capabilities: Activity.shape.capabilities.optional().describe('what it can do; made of its members'),
      command: Command.optional().describe('what it runs'),
      resources: z
        .strictObject({
          cpu: withDefault(Cores.max(mostCores), String(defaultCpu)),
          memoryBytes: withDefault(Count, '16 MiB'),
          storageBytes: withDefault(Count, '0'),
          gpu: withDefault(Cores.max(mostCores), '0'),
        })
        .optional()
        .describe('what it asks for'),
      policy: PolicyInput.optional().describe('timeout and retries'),
      priority: withDefault(Rank, '0'),
    }),
  ),
  dependencies: z
    .array(
      z.strictObject({
        workflowVersionId: OfVersion,
        activityId: z.string(),
        dependsOnActivityId: z.string(),
        type: z.enum(['control']).optional().describe('control by default'),
      }),
    )
    .optional()
    .describe('which activities end before which start'),
  dataDependencies: z
    .array(
      z.strictObject({
        workflowVersionId: OfVersion,
        producerActivityId: z.string(),
        consumerActivityId: z.string(),
        logicalName: z.string().min(1),
        sizeBytes: Count,
      }),
    )
    .optional()
    .describe('files that activities take from others'),
})
export type WorkflowVersionDocument = z.output<typeof WorkflowVersionDocument>

/** One activity's kind of work. Tables, profiles and calibration refer to it. */
export const ActivityType = z.strictObject({
  id: Id,
  name: z.string(),
  application: z.string().optional().describe('free text'),
  defaultImage: z.string().optional().describe('kept as a remark'),
  cpuIntensity: Rank,
  memoryIntensity: Rank,
  ioIntensity: Rank,
  networkIntensity: Rank,
  metadata: Metadata,
})
export type ActivityType = z.output<typeof ActivityType>

/** A definition in the service's answer form, as a client may send it back. */
export const NormalisedDocument = z.strictObject({
  id: Id.optional().describe('the service makes one by default'),
  externalId: z.string().optional().describe(ofAnswer),
  name: Name,
  namespace: Name,
  createdAt: z.string().optional().describe(ofAnswer),
  version: WorkflowVersionDocument,
  activityTypes: z
    .array(
      ActivityType.extend({
        cpuIntensity: Rank.default(0),
        memoryIntensity: Rank.default(0),
        ioIntensity: Rank.default(0),
        networkIntensity: Rank.default(0),
      }),
    )
    .optional()
    .describe('that its activities name'),
  warnings: z.array(z.unknown()).optional().describe(ofAnswer),
})
export type NormalisedDocument = z.output<typeof NormalisedDocument>

// --------------------------------------------------------------------------------------------------------------
// answers

/**
 * A stored version. The arrays are left out of big workflows: in lists above 1,000 activities, in
 * the detail above 10,000.
 */
export const WorkflowVersion = z.strictObject({
  id: Id,
  workflowId: Id,
  version: Count,
  definitionHash: z.string(),
  status: z.string(),
  createdAt: Timestamp,
  activityCount: Count,
  dependencyCount: Count,
  dataDependencyCount: Count,
  metadata: Metadata,
  activities: z.array(Activity).optional(),
  dependencies: z.array(Dependency).optional(),
  dataDependencies: z.array(DataDependency).optional(),
})
export type WorkflowVersion = z.output<typeof WorkflowVersion>

export const WorkflowDefinition = z.strictObject({
  id: Id,
  externalId: z.string(),
  name: z.string(),
  namespace: z.string(),
  createdAt: Timestamp,
  version: WorkflowVersion,
  activityTypes: z.array(ActivityType),
})
export type WorkflowDefinition = z.output<typeof WorkflowDefinition>

/** A remark on an accepted document that may not mean what its author intends. */
export const Warning = z.strictObject({ path: z.string(), message: z.string() })
export const CreatedWorkflow = z.strictObject({ ...WorkflowDefinition.shape, warnings: z.array(Warning) })

export const DuplicateRequest = z.strictObject({
  name: Name,
  namespace: Name.optional().describe('that of the original by default'),
})

const documentForms = [AuthoringDocument, WfFormatDocument, NormalisedDocument].map((form) => {
  const { $schema: _, ...schema } = z.toJSONSchema(form, {
    io: 'input',
    unrepresentable: 'any',
    override: ({ zodSchema, jsonSchema }) => {
      if (zodSchema._zod.def.type === 'unknown') jsonSchema.$ref = '#/$defs/JsonValue'
    },
  })
  return schema
})

/** The body of create and import. Its keys determine its form, so the routes read it themselves. */
export const WorkflowDocument = judgedLater(
  z.looseObject({}).meta({
    description:
      'A workflow as its author writes it, or a WfCommons instance (WfFormat 1.5 or 1.6), or a ' +
      'definition as the service answers it',
    anyOf: documentForms,
  }),
)
