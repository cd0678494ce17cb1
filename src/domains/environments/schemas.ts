import { z } from 'zod'
import { ranges } from '../../ranges.ts'
import type { KindName } from '../../drivers/runtime/registry.ts'
import type { accessOf } from '../../drivers/storage/access.ts'
import * as field from '../../http/schema.ts'
import {
  amount,
  Id,
  JsonObject,
  Metadata,
  Name,
  ofAnswer,
  OptionalId,
  ServerManaged,
} from '../../http/schema.ts'
import { networkModels } from '../../simulator/channel.ts'
import { documentProblems } from './rules.ts'

/**
 * Like `Count`, but a fraction does not end the check of the whole document (`z.int()` does), so
 * the rules about names are still checked.
 */
export const Whole = z
  .number()
  .refine((value) => Number.isSafeInteger(value), 'must be a whole number of at most 2^53-1')
  .refine((value) => value >= 0, 'must not be negative')
  .meta({ type: 'integer', minimum: 0, maximum: Number.MAX_SAFE_INTEGER })

// An omitted member is 0, false or empty, and is saved as such.
const Seconds = field.Seconds.default(0)
const Ratio = amount(ranges.ratio).default(0)
const Count = Whole.default(0)
const Flag = z.boolean().default(false)
const Text = field.Text.default('')

/** Each is a kind of site, but for `simgrid`, which this version lacks. */
export const drivers = [
  'slurm',
  'kubernetes',
  'ssh',
  'local',
  'serverless',
  'simgrid',
  'cloud',
] as const satisfies readonly (KindName | 'simgrid')[]
/** Where a storage is mounted in containers unless its binding says otherwise. */
export const usualContainerPath = '/akoflow/data'
export const runtimeModes = ['execution', 'simulation'] as const
export const executionTargets = ['batch', 'direct', 'provisioned'] as const
export const relationTypes = ['contains', 'member_of', 'accessible_via'] as const
export const storageTypes = [
  'local',
  'pvc',
  'nfs',
  's3',
  'lustre',
  'gcs',
  's3-compatible',
  'ssh-filesystem',
] as const satisfies readonly (keyof typeof accessOf)[]

/**
 * The id of the enclosing record. It is set on save and ignores the client's value. The answer to
 * POST shows it empty where it was omitted.
 */
const ParentId = OptionalId.default('').describe('id of the enclosing record, whatever is sent')
/**
 * Set by the service. It is accepted, but never read, so that an answer of GET can be sent back.
 */
const ServerTime = z.string().optional().describe(ofAnswer)

export const Environment = z.strictObject({
  id: Id,
  name: Name,
  description: Text.describe('free text'),
  status: field.Text.default('defined').describe(
    'defined, connecting, connected, discovering, ready, degraded or unreachable; not validated',
  ),
  createdAt: ServerTime,
})

export const Version = z.strictObject({
  id: Id,
  environmentId: ParentId,
  version: Whole,
  status: Text.describe('draft, published or retired; not validated'),
  networkModel: Text.describe(
    `${networkModels.join(', ')}: that of sessions and plans in a scope of the version that name none; ` +
      'other text is kept as it is',
  ),
  interferenceModel: Text.describe('free text, kept as it is'),
  costModel: Text.describe('active-window: resources cost from first start to last finish; else by task'),
  configurationHash: Text.describe("the client's own; not computed"),
  createdAt: ServerTime,
  publishedAt: ServerTime,
})
export type Version = z.output<typeof Version>

const Capabilities = z.strictObject({
  batch: Flag.describe('runs tasks to their end'),
  interactive: Flag.describe('has terminals'),
  container: Flag.describe('runs images'),
  serverless: Flag.describe('calls functions'),
  gpu: Flag.describe('has accelerators'),
  mpi: Flag.describe('runs parallel programs over several nodes'),
  sharedStorage: Flag.describe('its resources share a file system'),
  dataStaging: Flag.describe('brings files to tasks and back'),
  cancellation: Flag.describe('can end a task that runs'),
  logStreaming: Flag.describe('gives the output of tasks that run'),
  simulation: Flag.describe('is simulated'),
})

export const Runtime = z.strictObject({
  id: Id,
  environmentVersionId: ParentId,
  name: Name,
  driver: z.enum(drivers),
  mode: z.enum(runtimeModes),
  role: Text.describe('free text'),
  configuration: JsonObject.optional().describe('settings of the driver'),
  capabilities: Capabilities.prefault({}).describe(
    'what the runtime can do, as its author says; each false by default',
  ),
})
export type Runtime = z.output<typeof Runtime>

export const Resource = z.strictObject({
  id: Id,
  environmentVersionId: ParentId,
  type: Text.describe(
    'free text; hpc_machine, batch_queue, hpc_partition and slurm_reservation have a meaning',
  ),
  name: Name,
  providerId: Name,
  executionTarget: z
    .enum(executionTargets)
    .default('batch')
    .describe('batch (the default), direct, or provisioned: paid from its first start to its last finish'),
  parentResourceId: OptionalId.optional().describe('another resource; empty means none'),
  tier: Text.describe('free text, such as cloud or hpc'),
  region: Text.describe('free text'),
  zone: Text.describe('free text'),
  architecture: Text.describe('of the processor, such as amd64; empty: any'),
  cpuCores: Count.describe('cores, each a lane of plans; 0 by default'),
  cpuCapacity: field.Cores.default(0),
  memoryBytes: Count,
  storageBytes: Count,
  computeSpeedup: amount(ranges.speed).default(0),
  pricePerSecond: field.Money.default(0),
  bootOverheadSeconds: Seconds,
  containerOverheadSeconds: Seconds,
  schedulable: Flag.describe('true: planners may use it; false by default'),
  metadata: Metadata,
})
export type Resource = z.output<typeof Resource>

export const ResourceRuntimeBinding = z.strictObject({
  resourceId: Id,
  runtimeId: Id,
  enabled: Flag.describe('true: the runtime runs tasks of the resource; false by default'),
  configuration: JsonObject.optional().describe("goes before the runtime's, member by member"),
})
export type ResourceRuntimeBinding = z.output<typeof ResourceRuntimeBinding>

export const ResourceRelation = z.strictObject({
  environmentVersionId: ParentId,
  sourceResourceId: Id,
  targetResourceId: Id,
  type: z.enum(relationTypes),
  metadata: Metadata,
})

const StorageRuntimeBinding = z.strictObject({
  runtimeId: Id,
  containerPath: field.Text.default(usualContainerPath).describe('where containers see the storage'),
  default: Flag.describe('true: the storage that tasks of the runtime use; false by default'),
  readOnly: Flag.describe('false by default'),
  hostPath: Text.describe('where the host of the runtime sees the storage'),
  configuration: JsonObject.optional().describe('settings of the driver'),
})

export const Storage = z.strictObject({
  id: Id,
  environmentVersionId: ParentId,
  name: Name,
  type: z.enum(storageTypes),
  endpoint: Text.describe('a folder, a bucket or a URL, by the type'),
  capacityBytes: Count,
  shared: Flag.describe('true: all resources of the version see it; false by default'),
  readOnly: Flag.describe('true: changes are refused; false by default'),
  credentialReference: Text.describe('vault:KIND/ID of the login; empty: none'),
  configuration: JsonObject.optional().describe('settings of the driver, browseRoots and indexPolicy'),
  metadata: Metadata,
  runtimeBindings: z
    .array(StorageRuntimeBinding)
    .default([])
    .describe('the runtimes that see it, with their paths'),
  // The service's own view, as GET returns it: accepted, never read.
  browseRoots: ServerManaged,
  capabilities: ServerManaged,
  health: ServerManaged,
  indexPolicy: ServerManaged,
  indexStatus: ServerManaged,
})

/** What a storage answered when it was asked. */
export const StorageProbe = z.strictObject({
  status: z.enum(['healthy', 'degraded', 'unavailable']),
  message: z.string().optional(),
  checkedAt: z.string(),
  availableBytes: z.number().optional(),
  latencyMs: z.number(),
})

/** A folder of a storage from which clients begin. */
export const BrowseRoot = z.strictObject({
  path: z.string(),
  label: z.string().optional().describe('what a page shows for it; its path by default'),
  readOnly: z.boolean().optional().describe('true: changes below it are refused; false by default'),
})
export type BrowseRoot = z.output<typeof BrowseRoot>

/** A storage as reads return it, with the service's own members (domain-reference 8). */
export const StorageProjection = Storage.extend({
  browseRoots: z.array(BrowseRoot),
  capabilities: z.strictObject({
    browse: z.boolean(),
    read: z.boolean(),
    write: z.boolean(),
    download: z.boolean(),
    upload: z.boolean(),
    checksum: z.boolean(),
    presignedDownload: z.boolean(),
    computeNodeVisible: z.boolean().describe('shared, or bound to a runtime'),
  }),
  health: z.strictObject({
    status: z.enum(['unknown', 'healthy', 'degraded', 'unavailable']),
    message: z.string().optional(),
    checkedAt: z.string().optional(),
    availableBytes: z.number().optional(),
    probe: StorageProbe.optional().describe('the newest answer to POST /storages/{storageId}/health/'),
  }),
  indexPolicy: z
    .strictObject({
      enabled: z.boolean(),
      roots: z.array(z.string()).optional(),
      maxDepth: z.number().optional().describe('levels below a root that are read; 0: none'),
      maxEntries: z.number().optional().describe('entries of one index run'),
      include: z.array(z.string()).optional(),
      exclude: z.array(z.string()).optional(),
      timeoutSeconds: z.number().optional(),
    })
    .describe('from configuration.indexPolicy'),
  indexStatus: z.strictObject({
    status: z.string().describe('not_indexed, or the status of the newest index run'),
    indexedEntries: z.number().optional().describe('files, directories and links of the last run'),
    lastIndexedAt: z.string().optional(),
    message: z.string().optional(),
  }),
})

export const ActivityResourceProfile = z.strictObject({
  id: Id,
  activityTypeId: Id,
  resourceId: Id,
  runtimeSeconds: Seconds,
  runtimeStdDevSeconds: Seconds,
  cpuUtilization: Ratio,
  peakMemoryBytes: Count,
  diskReadBytes: Count,
  diskWriteBytes: Count,
  energyJoules: amount(ranges.energy).default(0),
  source: field.Text.default('configured').describe('where the figures come from'),
  sampleSize: Count.describe('measurements behind the profile; 0: none'),
  modelVersion: Text.describe('of what made the figures'),
  metadata: Metadata,
})
export type ActivityResourceProfile = z.output<typeof ActivityResourceProfile>

export const Connection = z.strictObject({
  id: Id,
  environmentId: ParentId,
  name: Name,
  type: field.Text.max(255)
    .default('')
    .describe('ssh, kubernetes, cloud, local, agent; not validated. Without one it is stored and not used'),
  endpoint: Text.describe('address and port, or a URL'),
  username: Text.describe('of the login'),
  credentialRef: Text.describe('vault:KIND/ID of the login'),
  configuration: JsonObject.optional().describe('settings of its type, such as knownHosts of ssh'),
  createdAt: ServerTime,
})

const ConnectionCheck = z.strictObject({
  id: z.string(),
  connectionId: z.string(),
  status: z.string(),
  message: z.string().optional(),
  latencyMs: z.number(),
  checkedAt: z.string(),
  metadata: JsonObject.optional(),
})

const document = z.strictObject({
  environment: Environment,
  version: Version,
  runtimes: z.array(Runtime).default([]).describe('what runs tasks'),
  resources: z.array(Resource).default([]).describe('machines, and groups of them'),
  resourceRuntimeBindings: z
    .array(ResourceRuntimeBinding)
    .default([])
    .describe('which runtime runs tasks of which resource'),
  resourceRelations: z.array(ResourceRelation).default([]).describe('how resources belong together'),
  storages: z.array(Storage).default([]).describe('where files are'),
  activityResourceProfiles: z
    .array(ActivityResourceProfile)
    .default([])
    .describe('how long activities of a type take on a resource, and what they use'),
  connections: z.array(Connection).default([]).describe('how sites are reached'),
})

/**
 * The body of POST and PUT. Connector bindings and connection checks belong to the document type
 * but are not saved. Every rule that the document can break by itself is checked here, also on
 * documents of a wrong shape, so that one answer names all problems.
 */
export const EnvironmentDefinition = document
  .extend({
    connectorBindings: z.array(z.unknown()).optional().describe(ofAnswer),
    connectionChecks: z.array(z.unknown()).optional().describe(ofAnswer),
  })
  .superRefine(
    (value: unknown, context) => {
      for (const { path, message } of documentProblems(value)) {
        context.addIssue({
          code: 'custom',
          path: path.split('.').map((step) => (/^\d+$/.test(step) ? Number(step) : step)),
          message,
        })
      }
    },
    { when: () => true },
  )
export type EnvironmentDefinition = z.output<typeof EnvironmentDefinition>

/**
 * The answer of GET: the saved ids, the service's view of each storage, and the newest checks of
 * each connection.
 */
export const EnvironmentDocument = document.extend({
  storages: z.array(StorageProjection).default([]),
  connectionChecks: z.array(ConnectionCheck),
})
export type EnvironmentDocument = z.output<typeof EnvironmentDocument>
