import { z } from 'zod'
import { ranges, mostCores, shortestTimeoutSeconds } from '../../ranges.ts'
import {
  amount,
  Cores,
  Count,
  Id,
  JsonObject,
  Name,
  OptionalId,
  Rank,
  Seconds,
  Text,
  Timestamp,
} from '../../http/schema.ts'

// ------------------------------------------------------------------------------------------------------
// shared pieces

/** The longest script is an argument of `sh`. */
const Script = z.string().max(1_048_576)
const Arguments = z.array(Script)
const Environment = z.record(z.string(), Text)

/** The cost of an activity in the simulator: seconds at reference speed, or operations. */
export const Simulation = z.strictObject({
  model: z.string().max(255).optional(),
  durationSeconds: Seconds.optional(),
  flops: amount(ranges.operations).optional(),
  parameters: JsonObject.optional(),
})

export const Policy = z.strictObject({
  timeoutSeconds: z.number().min(shortestTimeoutSeconds).max(ranges.seconds.most),
  maxAttempts: z.int().min(1).max(1_000).describe('tries of the activity, the first one included'),
  retryDelaySeconds: Seconds,
})
const PolicyInput = z.strictObject({
  timeoutSeconds: amount({ ...ranges.seconds, least: shortestTimeoutSeconds }).optional(),
  maxAttempts: z
    .int()
    .min(0)
    .max(1_000)
    .optional()
    .describe('tries of the activity, the first one included; 0: the default, 1'),
  retryDelaySeconds: Seconds.optional(),
})
export type PolicyInput = z.output<typeof PolicyInput>
export type Policy = z.output<typeof Policy>

// ---------------------------------------------------------------------------------------------------
// authoring document

export const AuthoringActivity = z.strictObject({
  name: Name,
  command: z
    .strictObject({
      entrypoint: Text.optional(),
      arguments: Arguments.optional(),
      environment: Environment.optional(),
      workingDirectory: Text.optional(),
      executable: JsonObject.optional(),
    })
    .optional(),
  image: Text.optional(),
  runtime: OptionalId.optional(),
  run: Script.optional().describe(
    'A script for sh. Line ends of Windows become those of Unix. All of it with the variables has at most ' +
      '1,572,864 bytes',
  ),
  cpuLimit: z.union([z.string(), z.number()]).optional().describe('cores: 2, or 500m for half a core'),
  memoryLimit: z.string().optional(),
  dependsOn: z.array(z.string()).optional(),
  resourceSelector: OptionalId.optional(),
  keepDisk: z.boolean().optional(),
  mountPath: Text.optional(),
  workspaceSeedPath: Text.optional(),
  expectedOutputs: z.array(Text).optional(),
  simulation: Simulation.optional(),
  activityType: OptionalId.optional(),
  policy: PolicyInput.optional(),
  priority: Rank.optional(),
  stage: z.enum(['all', 'declared']).optional(),
  metadata: JsonObject.optional(),
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

/** Members of `spec` that only older documents have; stored under `metadata.legacy`. */
export const legacySpecShape = {
  runtime: z.unknown().optional(),
  schedule: z.unknown().optional(),
  storageAkoflowPolicy: z.unknown().optional(),
  storageAccessModes: z.unknown().optional(),
  volumes: z.unknown().optional(),
}

/**
 * Members of `spec` that describe the document instead of one activity. They are stored as written,
 * so that an export returns them.
 */
const specShape = {
  image: Text.optional(),
  storageClassName: Text.optional(),
  storageSize: Text.optional(),
  storagePolicy: JsonObject.optional(),
  mountPath: Text.optional(),
  metadata: JsonObject.optional(),
  ...legacySpecShape,
}

export const AuthoringSpec = z.strictObject({
  namespace: Name,
  ...specShape,
  activities: z.array(AuthoringActivity),
  dataDependencies: z.array(AuthoringDataDependency).optional(),
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

const WfCommand = z.looseObject({ program: z.string().optional(), arguments: z.array(z.string()).optional() })

/** The members of a WfCommons instance that are read. All others are allowed and ignored. */
export const WfFormatDocument = z.looseObject({
  name: Name,
  description: z.string().optional(),
  schemaVersion: z.enum(['1.5', '1.6']),
  workflow: z.looseObject({
    specification: z.looseObject({
      tasks: z.array(
        z.looseObject({
          id: z.string().min(1),
          name: z.string().optional(),
          parents: z.array(z.string()).optional(),
          children: z.array(z.string()).optional(),
          inputFiles: z.array(z.string()).optional(),
          outputFiles: z.array(z.string()).optional(),
        }),
      ),
      files: z
        .array(
          z.looseObject({
            id: z.string().min(1),
            sizeInBytes: z.number().min(0).max(Number.MAX_SAFE_INTEGER),
          }),
        )
        .optional(),
    }),
    execution: z
      .looseObject({
        makespanInSeconds: amount(ranges.planSeconds).optional(),
        tasks: z
          .array(
            z.looseObject({
              id: z.string().min(1),
              runtimeInSeconds: Seconds.optional(),
              coreCount: Cores.max(mostCores).optional(),
              memoryInBytes: z.number().min(0).max(Number.MAX_SAFE_INTEGER).optional(),
              command: WfCommand.optional(),
            }),
          )
          .optional(),
      })
      .optional(),
  }),
})
export type WfFormatDocument = z.output<typeof WfFormatDocument>

// ------------------------------------------------------------------------------------------------------
// normalised shape

export const WorkflowCapability = z.enum(['real', 'simulation', 'interactive'])

const Command = z.strictObject({
  image: Text.optional(),
  executable: JsonObject.optional(),
  resolvedExecutable: JsonObject.optional(),
  entrypoint: Text.optional(),
  arguments: Arguments.optional(),
  environment: Environment.optional(),
  workingDirectory: Text.optional(),
})

const Service = JsonObject

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
  service: Service.optional(),
  simulation: Simulation.optional(),
  policy: Policy,
  priority: Rank,
  metadata: JsonObject.optional(),
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
  workflowId: Id.optional(),
  version: z.int().min(1).optional(),
  definitionHash: z.string().optional(),
  status: z.string().optional(),
  createdAt: z.string().optional(),
  metadata: JsonObject.optional(),
  activityCount: Count.optional(),
  dependencyCount: Count.optional(),
  dataDependencyCount: Count.optional(),
  activities: z.array(
    z.strictObject({
      ...Activity.shape,
      workflowVersionId: Id.optional(),
      activityTypeId: Id.optional(),
      externalId: Id.optional(),
      name: z.string().optional(),
      kind: Activity.shape.kind.optional(),
      capabilities: Activity.shape.capabilities.optional(),
      command: Command.optional(),
      resources: z
        .strictObject({
          cpu: Cores.max(mostCores).optional(),
          memoryBytes: Count.optional(),
          storageBytes: Count.optional(),
          gpu: Cores.max(mostCores).optional(),
        })
        .optional(),
      policy: PolicyInput.optional(),
      priority: Rank.optional(),
    }),
  ),
  dependencies: z
    .array(
      z.strictObject({
        workflowVersionId: Id.optional(),
        activityId: z.string(),
        dependsOnActivityId: z.string(),
        type: z.enum(['control']).optional(),
      }),
    )
    .optional(),
  dataDependencies: z
    .array(
      z.strictObject({
        workflowVersionId: Id.optional(),
        producerActivityId: z.string(),
        consumerActivityId: z.string(),
        logicalName: z.string().min(1),
        sizeBytes: Count,
      }),
    )
    .optional(),
})
export type WorkflowVersionDocument = z.output<typeof WorkflowVersionDocument>

/** One activity's kind of work. Tables, profiles and calibration refer to it. */
export const ActivityType = z.strictObject({
  id: Id,
  name: z.string(),
  application: z.string().optional(),
  defaultImage: z.string().optional(),
  cpuIntensity: Rank,
  memoryIntensity: Rank,
  ioIntensity: Rank,
  networkIntensity: Rank,
  metadata: JsonObject.optional(),
})
export type ActivityType = z.output<typeof ActivityType>

/** A definition in the service's answer form, as a client may send it back. */
export const NormalisedDocument = z.strictObject({
  id: Id.optional(),
  externalId: z.string().optional(),
  name: Name,
  namespace: Name,
  createdAt: z.string().optional(),
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
    .optional(),
  warnings: z.array(z.unknown()).optional(),
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
  metadata: JsonObject.optional(),
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

export const DuplicateRequest = z.strictObject({ name: Name, namespace: Name.optional() })

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
export const WorkflowDocument = z.looseObject({}).meta({
  description:
    'A workflow as its author writes it, or a WfCommons instance (WfFormat 1.5 or 1.6), or a ' +
    'definition as the service answers it',
  anyOf: documentForms,
})
