import { z } from 'zod'
import { wholeNumber } from '../../http/paging.ts'
import { JsonObject, Name, OptionalId, Text } from '../../http/schema.ts'
import { Connection } from '../environments/schemas.ts'
import { ResourceSnapshot } from '../resources/schemas.ts'

/** A connection as it is stored. Only its shape is checked, as environments do. */
export const ConnectionDocument = Connection
export type ConnectionDocument = z.output<typeof ConnectionDocument>

/** A connection that is tested before it is saved: it needs a type, and neither id nor name. */
export const ConnectionTest = Connection.extend({
  id: OptionalId.default('').describe('empty: a connection that is not saved'),
  name: Text.default('').describe('free text'),
  type: Name,
})

/**
 * The stages of a check in their order. Where a check failed, the last stage given is the failed
 * one.
 */
const stageNames = [
  'name',
  'route',
  'host key',
  'login',
  'shell',
  'scheduler',
  'container engine',
  'rights',
  'limits',
] as const
export const CheckStage = z.strictObject({
  stage: z.enum(stageNames),
  ok: z.boolean(),
  milliseconds: z.number().describe('duration of the stage'),
  detail: z.string().optional(),
})
export type CheckStage = z.output<typeof CheckStage>

export const TestResult = z.strictObject({
  healthy: z.boolean(),
  message: z.string(),
  stages: z.array(CheckStage),
})

export const ConnectionCheck = z.strictObject({
  id: z.string(),
  connectionId: z.string(),
  status: z.enum(['online', 'offline']),
  message: z.string().optional(),
  latencyMs: z.number(),
  checkedAt: z.string(),
  metadata: JsonObject.optional().describe(
    'endpoint, connectionType, stages, address, hostKey, banner; discovery of one',
  ),
})
export type ConnectionCheck = z.output<typeof ConnectionCheck>

export const Discovery = z.strictObject({
  snapshots: z.array(ResourceSnapshot),
  status: z.literal('running').optional().describe('given while the discovery is still under way'),
})

export const Login = z.strictObject({
  state: z.enum(['disconnected', 'connecting', 'connected', 'waiting for login', 'refused']),
  since: z.string(),
  prompts: z
    .strictObject({
      name: z.string(),
      instruction: z.string(),
      prompts: z.array(z.strictObject({ prompt: z.string(), echo: z.boolean() })),
    })
    .optional(),
  error: z.string().optional(),
})

export const LoginAnswers = z.strictObject({ answers: z.array(z.string().max(4_096)).max(64) })

export const HistoryQuery = z.strictObject({
  limit: wholeNumber.optional().meta({ description: 'Newest checks to return: 100 unless from 1 to 1000' }),
})
