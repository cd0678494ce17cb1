import { z } from 'zod'
import { JsonObject, Timestamp } from '../../http/schema.ts'
import { arraySizes, pageQueryOf, wholeNumber } from '../../http/paging.ts'

export const outcomes = ['started', 'succeeded', 'failed'] as const

/** What an event says, beside its id and its time. */
export const auditMembers = {
  eventType: z.string(),
  actorId: z.string().optional(),
  actorType: z.string().optional(),
  environmentId: z.string().optional(),
  resourceId: z.string().optional(),
  connectionId: z.string().optional(),
  runtimeId: z.string().optional(),
  sessionId: z.string().optional(),
  executionId: z.string().optional(),
  externalId: z.string().optional(),
  outcome: z.enum(outcomes),
  summary: z.string(),
  metadata: JsonObject.optional(),
}

/** An event before it is recorded. */
export type NewAuditEvent = z.input<z.ZodObject<typeof auditMembers>>

export const AuditEvent = z.strictObject({ id: z.string(), ...auditMembers, occurredAt: z.string() })
export type AuditEvent = z.output<typeof AuditEvent>

/** Sizes of pages of audit events. */
export const auditSizes = { ...arraySizes, usual: 200 }

/** Every filter that is given must match. */
export const AuditQuery = z.strictObject({
  eventType: z.string().optional().describe('events of this type, such as execution.run.created'),
  actorId: z.string().optional().describe('events of this actor'),
  since: Timestamp.optional().describe('events at this time or later'),
  until: Timestamp.optional().describe('events before this time'),
  environmentId: z.string().optional().describe('events of this environment'),
  resourceId: z.string().optional().describe('events of this resource'),
  connectionId: z.string().optional().describe('events of this connection'),
  sessionId: z.string().optional().describe('events of this session of the console or of planning'),
  executionId: z.string().optional().describe('events of this run'),
  credentialRef: z.string().optional().describe('uses of a credential'),
  outcome: z.enum(outcomes).optional().describe('events of this outcome'),
  limit: wholeNumber
    .optional()
    .meta({ description: 'Newest events to return: 200 unless from 1 to 1000; the same as pageSize' }),
  ...pageQueryOf(auditSizes),
})
export type AuditQuery = z.output<typeof AuditQuery>

const Fault = z.strictObject({ id: z.string(), reason: z.string() })

export const AuditVerdict = z.strictObject({
  sealed: z.int().min(0).describe('records that are numbered and sealed'),
  unsealed: z.int().min(0).describe('records that are not numbered yet; a second later they are'),
  head: z
    .strictObject({ number: z.number().describe('its place in the chain, from 1'), seal: z.string() })
    .nullable()
    .describe(
      'the newest link of the chain; kept outside it proves later that nothing before it was changed',
    ),
  signedFrom: z
    .number()
    .nullable()
    .describe(
      "the first record whose seal was made with the vault's key; null: the chain was never signed, and " +
        'whoever has the database could have made it',
    ),
  witness: z
    .strictObject({
      number: z.number().describe('its place in the chain, from 1'),
      since: z.number().describe('place of the head when the file began'),
    })
    .nullable()
    .describe(
      'the newest link that a file outside of the database holds, and the head when that file began; ' +
        'null: there is no witness, and a chain without its newest records would not be found',
    ),
  first: Fault.optional().describe('the first record that is not as it was sealed'),
  further: z
    .array(Fault)
    .optional()
    .describe(
      'records behind it that are not as they were sealed, 100 at most; a broken chain ends the walk',
    ),
})
