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
  cpuUsed: z.number(),
  memoryUsedBytes: z.number(),
  networkInBps: z.number(),
  networkOutBps: z.number(),
  diskReadBps: z.number(),
  diskWriteBps: z.number(),
  queueLength: z.number(),
  metadata: JsonObject.optional(),
})
export type ResourceSnapshot = z.output<typeof ResourceSnapshot>
