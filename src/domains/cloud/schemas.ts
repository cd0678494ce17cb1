import { z } from 'zod'
import { SshUsername } from './instance-schemas.ts'
import {
  Count,
  Id,
  JsonObject,
  MadeId,
  Money,
  Name,
  Seconds,
  ServerManaged,
  Text,
  Timestamp,
  withDefault,
} from '../../http/schema.ts'

const providers = ['gcp', 'aws', 'azure'] as const

const network = z
  .union([z.cidrv4(), z.cidrv6()], 'must be a network such as 192.0.2.0/24')
  .describe('a network in CIDR notation')

/**
 * What plans count for the steps of a machine until they are measured; members of the resource too.
 */
export const expectedSeconds = [
  ...(['terraformSeconds', 'sshWaitSeconds', 'configurationSeconds', 'validationSeconds'] as const),
  'stopSeconds',
] as const

const KnownConfiguration = z.looseObject({
  connectionId: z.string().max(255).optional().describe('which cloud connection of the environment'),
  diskType: z
    .string()
    .max(255)
    .optional()
    .describe("of the machine's disk, as the provider names it; its usual one by default"),
  diskSizeGiB: z
    .number()
    .gt(0)
    .max(65_536)
    .optional()
    .describe("of the machine's disk in GiB; that of the image by default"),
  network: z.string().max(255).optional().describe('the subnet of the machines'),
  sshAddress: z
    .enum(['public', 'private'])
    .optional()
    .describe('at which the service logs in; the public one where there is one, if it is left out'),
  sshPort: z.int().min(1).max(65_535).optional().describe('of SSH in the image; 22 where it is left out'),
  sshUsername: SshUsername.optional().describe('of the login; akoflow where it is left out'),
  projectId: z
    .string()
    .max(255)
    .optional()
    .describe('of the machines at Google, if it is not that of the connection or of its credential'),
  sshSourceRanges: z
    .array(network)
    .max(50)
    .optional()
    .describe('from where SSH reaches the machines; by default those of the service'),
  allowPublicSsh: z.boolean().optional().describe('must be true for a range that is every address'),
  pricePerHour: withDefault(Money, 'that of the catalog'),
  priceCurrency: z.string().max(16).optional().describe('of pricePerHour; that of the service by default'),
  priceSource: z.string().max(255).optional().describe('where pricePerHour comes from'),
  diskPricePerGiBMonth: withDefault(Money, 'that of the catalog'),
  ...Object.fromEntries(
    expectedSeconds.map((name) => [name, withDefault(Seconds, 'an estimate, until it is measured')]),
  ),
  idleSeconds: Seconds.max(31_536_000)
    .optional()
    .describe('how long a machine of policy keep stays after its last use; 900 where it is left out'),
})
const TargetConfiguration = KnownConfiguration.pipe(JsonObject)
export type TargetConfiguration = Partial<{
  connectionId: string
  diskType: string
  diskSizeGiB: number
  network: string
  sshAddress: 'public' | 'private'
  sshPort: number
  sshUsername: string
  projectId: string
  sshSourceRanges: string[]
  allowPublicSsh: boolean
  pricePerHour: number
  diskPricePerGiBMonth: number
  idleSeconds: number
}>

/** The members of a stored configuration that the service knows, without those of wrong values. */
export const knownConfiguration = (stored: Record<string, unknown> = {}): TargetConfiguration =>
  Object.fromEntries(
    Object.entries(KnownConfiguration.shape).flatMap(([name, schema]) => {
      const { success, data } = schema.safeParse(stored[name])
      return success && data !== undefined && data !== '' ? [[name, data]] : []
    }),
  )

export const TargetMachineConfiguration = z.strictObject({
  configurationVersionId: MadeId,
  executionOrder: Count.max(10_000).describe('the smallest is applied first'),
  variables: JsonObject.optional().describe('of the playbook, by the schema of the version'),
  required: z.boolean().default(true).describe('true (the default): a machine on which it fails is not used'),
  enabled: z.boolean().default(true).describe('false: it is left out; true by default'),
})
export type TargetMachineConfiguration = z.output<typeof TargetMachineConfiguration>

const Zone = z.string().max(255)
const zoneText = 'the only zone; of zonePolicy fixed'

const members = {
  name: Name,
  provider: z.enum(providers).meta({ enum: ['gcp', 'aws'] }),
  providerMachineType: Name,
  imageReference: Name,
  region: Text.max(255).default('').describe('blank: the one of the connection'),
  fixedZone: Zone.optional().describe(zoneText),
  zonePolicy: Name,
  architecture: Name.default('amd64').describe('of the processor'),
  vcpu: z.number().gt(0).max(100_000).describe('virtual cores'),
  memoryMiB: z
    .int()
    .min(1)
    .max(2 ** 32),
  provisioningMode: z
    .enum(['standard', 'spot'])
    .default('standard')
    .describe('spot: cheaper machines that the provider may take back; standard by default'),
  maximumInstances: z
    .int()
    .min(1)
    .max(10_000)
    .default(1)
    .describe('machines of the target that may exist at a time'),
  lifecyclePolicy: Name,
}

export const NewCapacityTarget = z.strictObject({
  id: Id.optional().describe('the service makes one by default'),
  environmentId: Id.optional().describe('the id in the path'),
  ...members,
  fixedZone: Zone.regex(
    /^[a-z0-9-]+$/,
    'must be a name of a zone like us-east-1a: small letters, digits and -',
  )
    .optional()
    .describe(zoneText),
  zonePolicy: z
    .enum(['any-compatible', 'fixed'])
    .default('any-compatible')
    .describe('any-compatible: where a zone has no capacity, the next one; fixed: fixedZone only'),
  lifecyclePolicy: z
    .enum(['destroy-after-execution', 'destroy-after-run', 'keep'])
    .default('destroy-after-execution')
    .describe(
      'when a machine of a run ends: after its last task, with the run, or idleSeconds after its last use',
    ),
  configuration: TargetConfiguration.optional().describe('settings of the machines'),
  machineConfigurations: z
    .array(TargetMachineConfiguration)
    .max(50)
    .default([])
    .describe('the playbooks that prepare a machine'),
  enabled: z.boolean().default(true).describe('false: no plan uses the target, as if it were deleted'),
  createdAt: ServerManaged,
  updatedAt: ServerManaged,
})
export type NewCapacityTarget = z.output<typeof NewCapacityTarget>

export const CapacityTarget = z.strictObject({
  id: Id,
  environmentId: Id,
  ...members,
  configuration: JsonObject.optional(),
  machineConfigurations: z.array(TargetMachineConfiguration),
  enabled: z.boolean(),
  createdAt: Timestamp,
})
export type CapacityTarget = z.output<typeof CapacityTarget>
