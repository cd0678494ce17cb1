import { z } from 'zod'
import { JsonObject, Paid, Timestamp } from '../../http/schema.ts'

const price = { priceCurrency: z.string().optional(), priceSource: z.string().optional() }

const Machine = z.strictObject({
  provider: z.string(),
  providerTypeId: z.string(),
  region: z.string(),
  zones: z.array(z.string()),
  family: z.string().optional(),
  vcpu: z.number().describe('virtual cores'),
  memoryMiB: z.number(),
  architecture: z.string(),
  gpuCount: z.number(),
  gpuModel: z.string().optional(),
  supportsSpot: z.boolean(),
  available: z.boolean(),
  pricePerHour: Paid.optional(),
  pricePerMinute: Paid.optional(),
  ...price,
  providerMetadata: JsonObject.optional(),
})

const Image = z.strictObject({
  provider: z.string(),
  providerImageId: z.string(),
  name: z.string(),
  publisher: z.string().optional(),
  family: z.string().optional(),
  operatingSystem: z.string(),
  architecture: z.string(),
  source: z.string(),
  status: z.string(),
  minimumDiskGiB: z.number(),
  deprecated: z.boolean(),
  providerMetadata: JsonObject.optional(),
})

const Disk = z.strictObject({
  provider: z.string(),
  providerTypeId: z.string(),
  name: z.string(),
  region: z.string(),
  zones: z.array(z.string()),
  available: z.boolean(),
  pricePerGiBMonth: Paid.optional(),
  ...price,
})

export const Catalog = z.strictObject({
  provider: z.string(),
  environmentId: z.string(),
  project: z.string().optional(),
  region: z.string().optional(),
  source: z.string(),
  machines: z.array(Machine),
  images: z.array(Image),
  disks: z.array(Disk),
  warnings: z.array(z.string()).optional(),
  discoveredAt: Timestamp,
})

export const Refreshing = z.strictObject({ status: z.literal('running'), environmentId: z.string() })
