import { z } from 'zod'
import { ranges } from '../../ranges.ts'
import { Id, Metadata, Money, Name, OptionalId, positive, Seconds } from '../../http/schema.ts'
import { Whole } from '../environments/schemas.ts'
import { linkProblems } from './rules.ts'

export const NetworkLink = z.strictObject({
  id: Id,
  topologyId: OptionalId.default('').describe('filled in from the topology, whatever is sent'),
  sourceResourceId: Id,
  targetResourceId: Id,
  bandwidthBitsPerSecond: positive(ranges.bandwidth),
  latencySeconds: Seconds.default(0),
  pricePerByte: Money.default(0),
  bidirectional: z.boolean().default(false).describe('true: the link works both ways; false by default'),
  sharingPolicy: z
    .string()
    .max(255)
    .optional()
    .describe(
      'independent or fatpipe: every flow has the whole bandwidth; anything else, and nothing: flows share it',
    ),
  maxConcurrentTransfers: Whole.default(0).describe('0: unlimited'),
  metadata: Metadata,
})

export const NetworkTopologyDocument = z
  .strictObject({
    id: Id,
    name: Name,
    version: Whole.refine((value) => value !== 0, 'must be at least 1').meta({
      type: 'integer',
      minimum: 1,
      maximum: Number.MAX_SAFE_INTEGER,
    }),
    executionScopeId: Id,
    links: z.array(NetworkLink).default([]).describe('between resources; none by default'),
    metadata: Metadata,
  })
  .superRefine(
    (topology: unknown, context) => {
      for (const { link, key, message } of linkProblems(topology))
        context.addIssue({ code: 'custom', path: ['links', link, ...(key === '' ? [] : [key])], message })
    },
    { when: () => true },
  )
export type NetworkTopologyDocument = z.output<typeof NetworkTopologyDocument>
