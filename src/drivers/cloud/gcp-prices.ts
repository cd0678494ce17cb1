import { z } from 'zod'
import type { ComputeEngine } from '../../clients/compute-engine.ts'
import type { CloudOffers, Prices } from './contract.ts'

/** An entry of Google's billing catalog, as far as it is read. */
const Sku = z.object({
  description: z.string(),
  category: z.object({ resourceFamily: z.string(), usageType: z.string() }),
  serviceRegions: z.array(z.string()),
  pricingInfo: z.array(
    z.object({
      pricingExpression: z.object({
        usageUnit: z.string(),
        tieredRates: z.array(
          z.object({
            unitPrice: z.object({
              currencyCode: z.string(),
              units: z.string().optional(),
              nanos: z.number().optional(),
            }),
          }),
        ),
      }),
    }),
  ),
})
type Sku = z.output<typeof Sku>

const currency = 'USD'

/** The price of the last tier; earlier ones are free quotas. */
const priceOf = ({ pricingInfo }: Sku, unit: string): number | undefined => {
  const expression = pricingInfo[0]?.pricingExpression
  const price = expression?.tieredRates.at(-1)?.unitPrice
  if (expression?.usageUnit !== unit || price?.currencyCode !== currency) return undefined
  const value = Number(price.units ?? 0) + (price.nanos ?? 0) / 1e9
  return value > 0 ? value : undefined
}

/** The family and part of a machine that an entry prices: `e2`, `Core`. */
const partOf = ({ description, category }: Sku): { family: string; part: string } | undefined => {
  if (category.resourceFamily !== 'Compute' || category.usageType !== 'OnDemand') return undefined
  if (/\b(?:custom|sole tenancy|commitment|reserved|extended|premium)\b/i.test(description)) return undefined
  const named = /^([A-Z]\d[A-Z]?) (?:[A-Za-z]+ )?Instance (Core|Ram) running in /.exec(description)
  if (named !== null) return { family: named[1]!.toLowerCase(), part: named[2]! }
  const compute = /^Compute optimized (?:Instance )?(Core|Ram) running in /.exec(description)
  return compute === null ? undefined : { family: 'c2', part: compute[1]! }
}

const disks: Readonly<Record<string, RegExp>> = {
  'pd-standard': /^Storage PD Capacity\b/,
  'pd-balanced': /^Balanced PD Capacity\b/,
  'pd-ssd': /^SSD backed PD Capacity\b/,
}

/** The processors that a machine with a part of a processor pays for. */
const sharedCores: Readonly<Record<string, number>> = { 'e2-micro': 0.25, 'e2-small': 0.5, 'e2-medium': 1 }

/**
 * The prices on demand of machine types and disks in a region, from Google's billing catalog. A
 * type with accelerators, or of a family that the catalog names otherwise, has none.
 * @throws ComputeEngineError
 */
export const gcpPrices = async (
  compute: ComputeEngine,
  machines: CloudOffers['machines'],
): Promise<Prices> => {
  const skus = (await compute.skus())
    .flatMap((one) => Sku.safeParse(one).data ?? [])
    .filter(({ serviceRegions }) => serviceRegions.includes(compute.place.region))
  const parts = new Map<string, number>()
  for (const sku of skus) {
    const of = partOf(sku)
    const price = of && priceOf(sku, of.part === 'Core' ? 'h' : 'GiBy.h')
    if (of !== undefined && price !== undefined) parts.set(`${of.family} ${of.part}`, price)
  }
  const perHour = new Map<string, number>()
  for (const { providerTypeId: name, family = '', vcpu, memoryMiB, gpuCount } of machines) {
    const [core, ram] = [parts.get(`${family} Core`), parts.get(`${family} Ram`)]
    if (core === undefined || ram === undefined || gpuCount > 0) continue
    perHour.set(name, (sharedCores[name] ?? vcpu) * core + (memoryMiB / 1_024) * ram)
  }
  const perGiBMonth = new Map<string, number>()
  for (const [name, form] of Object.entries(disks)) {
    const sku = skus.find(
      ({ description, category }) => category.resourceFamily === 'Storage' && form.test(description),
    )
    const price = sku && priceOf(sku, 'GiBy.mo')
    if (price !== undefined) perGiBMonth.set(name, price)
  }
  return { ...{ currency, source: 'gcp-billing-catalog' }, perHour, perGiBMonth }
}
