import { z } from 'zod'
import { Id, JsonObject, Name, Paid, Timestamp } from '../../http/schema.ts'

export const instanceStates = [
  ...(['provisioning', 'configuring', 'ready', 'stopped', 'destroying', 'destroyed', 'failed'] as const),
] as const
export const instanceActions = ['configure', 'destroy', 'start', 'stop', 'validate'] as const
export type InstanceAction = (typeof instanceActions)[number]
export const operationKinds = [
  ...(['provision', 'configure', 'validate', 'start', 'stop', 'destroy'] as const),
  ...(['attach-volume', 'detach-volume'] as const),
] as const
const operationStates = ['queued', 'running', 'completed', 'failed', 'cancelled'] as const

/** The account that a machine gets for the service. */
export const SshUsername = z
  .string()
  .regex(/^[a-z_][a-z0-9_-]{0,31}$/, 'must be a name of an account: small letters, digits, - and _')

const Billing = z.strictObject({
  startedAt: Timestamp,
  finishedAt: Timestamp.optional(),
  computeStartedAt: Timestamp.optional(),
  accumulatedComputeSeconds: z.number(),
  computePricePerSecond: Paid,
  diskPricePerSecond: Paid,
  asOf: Timestamp.optional(),
  currentCost: z.number().describe('units of currency, from startedAt to asOf'),
})

export const CloudInstance = z.strictObject({
  id: Id,
  capacityTargetId: Id,
  environmentId: Id,
  provider: z.string(),
  providerId: z.string().optional(),
  name: z.string(),
  status: z.enum(instanceStates),
  publicAddress: z.string().optional(),
  privateAddress: z.string().optional(),
  sshUsername: z.string(),
  sshCredentialRef: z.string().optional(),
  disk: JsonObject.optional(),
  terraformOutput: JsonObject.optional(),
  failureReason: z.string().optional(),
  createdAt: Timestamp,
  readyAt: Timestamp.optional(),
  destroyedAt: Timestamp.optional(),
  billing: Billing.optional(),
})

export const CloudOperation = z.strictObject({
  id: Id,
  kind: z.enum(operationKinds),
  status: z.enum(operationStates),
  environmentId: Id,
  capacityTargetId: Id.optional(),
  instanceId: Id.optional(),
  executionRunId: Id.optional(),
  activityId: Id.optional(),
  phase: z.string(),
  request: JsonObject,
  failureReason: z.string().optional(),
  createdAt: Timestamp,
  startedAt: Timestamp.optional(),
  finishedAt: Timestamp.optional(),
  live: JsonObject.optional().describe('what the work says of itself while it is open'),
})
export type CloudOperation = z.output<typeof CloudOperation>

export const CloudEvent = z.strictObject({
  operationId: Id,
  sequence: z.number().describe('place in the events of the operation, from 1'),
  timestamp: z.string(),
  tool: z.string().optional(),
  phase: z.string().optional(),
  level: z.enum(['info', 'error']),
  event: z.string(),
  task: z.string().optional(),
  host: z.string().optional(),
  message: z.string().optional(),
  raw: z.string().optional(),
  durationSeconds: z.number().optional(),
})
export type CloudEvent = z.output<typeof CloudEvent>

export const NewProvisioning = z.strictObject({
  capacityTargetId: Id,
  name: Name.optional().describe('of the machine; made of its id by default'),
  sshUsername: SshUsername.optional().describe('of the login; that of the capacity target by default'),
  instanceId: Id.optional().describe('of the new record; the service makes one by default'),
})
export type NewProvisioning = z.output<typeof NewProvisioning>

export const ProvisioningLog = z.strictObject({ log: z.string() })
