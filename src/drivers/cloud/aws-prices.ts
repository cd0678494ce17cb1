import { z } from 'zod'
import type { Ec2 } from '../../clients/ec2.ts'
import type { Prices } from './contract.ts'

/** An entry of AWS's price list, as far as it is read. */
const Product = z.object({
  product: z.object({ attributes: z.record(z.string(), z.string()) }),
  terms: z
    .object({
      OnDemand: z
        .record(
          z.string(),
          z.object({
            priceDimensions: z.record(
              z.string(),
              z.object({ unit: z.string(), pricePerUnit: z.record(z.string(), z.string()) }),
            ),
          }),
        )
        .optional(),
    })
    .optional(),
})

const currency = 'USD'

/** The price on demand of one unit; undefined where the entry has none in the currency. */
const priceOf = ({ terms }: z.output<typeof Product>, unit: string): number | undefined => {
  const dimensions = Object.values(terms?.OnDemand ?? {}).flatMap(({ priceDimensions }) =>
    Object.values(priceDimensions),
  )
  const price = Number(dimensions.find((one) => one.unit === unit)?.pricePerUnit[currency] ?? NaN)
  return price > 0 ? price : undefined
}

const pricesBy = (
  products: readonly unknown[],
  { attribute, unit }: { attribute: string; unit: string },
): Map<string, number> =>
  new Map(
    products.flatMap((one) => {
      const product = Product.safeParse(one).data
      const name = product?.product.attributes[attribute]
      const price = product && priceOf(product, unit)
      return name === undefined || price === undefined ? [] : [[name, price] as const]
    }),
  )

/**
 * The prices on demand of Linux machines and of disks in a region, from AWS's price list.
 * @throws Ec2Error
 */
export const awsPrices = async (ec2: Ec2): Promise<Prices> => {
  const of = { regionCode: ec2.region }
  const machines = await ec2.products({
    ...{ ...of, productFamily: 'Compute Instance', operatingSystem: 'Linux', tenancy: 'Shared' },
    ...{ preInstalledSw: 'NA', capacitystatus: 'Used', marketoption: 'OnDemand' },
  })
  const disks = await ec2.products({ ...of, productFamily: 'Storage' })
  return {
    ...{ currency, source: 'aws-pricing' },
    perHour: pricesBy(machines, { attribute: 'instanceType', unit: 'Hrs' }),
    perGiBMonth: pricesBy(disks, { attribute: 'volumeApiName', unit: 'GB-Mo' }),
  }
}
