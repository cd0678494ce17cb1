import { z } from 'zod'
import { JsonObject, Id } from '../../http/schema.ts'
import { Resource } from '../environments/schemas.ts'

/**
 * A resource to add to an existing version. The fields are those of a definition's `resources[]`.
 */
export const NewResource = Resource.extend({ environmentVersionId: Id })

/** The newest observation of a resource. */
export const ResourceSnapshot = z.strictObject({
  id: z.string(),
  resourceId: z.string(),
  capturedAt: z.string(),
  available: z.boolean(),
  cpuUsed: z.number().describe('cores'),
  memoryUsedBytes: z.number(),
  networkInBps: z.number().describe('bytes per second'),
  networkOutBps: z.number().describe('bytes per second'),
  diskReadBps: z.number().describe('bytes per second'),
  diskWriteBps: z.number().describe('bytes per second'),
  queueLength: z.number().describe('jobs that wait'),
  metadata: JsonObject.optional(),
})
export type ResourceSnapshot = z.output<typeof ResourceSnapshot>
