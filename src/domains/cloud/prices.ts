import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { knownConfiguration, type NewCapacityTarget } from './schemas.ts'

const OfferRow = z.object({ pricePerHour: z.number().nullish(), diskPrice: z.number().nullish() })

/** The disk type that a machine gets where its target names none. */
const usualDisks: Readonly<Record<string, string>> = { aws: 'gp3', gcp: 'pd-standard' }

/** The prices of a target's machines, in the currency of its provider. */
export interface TargetPrices {
  pricePerHour: number
  diskPricePerGiBMonth: number
}

/**
 * The target's own prices, else those of the environment's newest catalog of its provider and
 * region, else 0.
 */
export const pricesOf = async (
  tx: Db,
  environmentId: string,
  target: Pick<NewCapacityTarget, 'provider' | 'region' | 'providerMachineType' | 'configuration'>,
): Promise<TargetPrices> => {
  const own = knownConfiguration(target.configuration)
  const diskType = own.diskType ?? usualDisks[target.provider] ?? ''
  const offer =
    own.pricePerHour !== undefined && own.diskPricePerGiBMonth !== undefined
      ? undefined
      : await tx.maybe(
          OfferRow,
          sql`select (select (m ->> 'pricePerHour')::double precision
                from jsonb_array_elements(c.document -> 'machines') m
                where m ->> 'providerTypeId' = ${target.providerMachineType} limit 1) as price_per_hour,
              (select (d ->> 'pricePerGiBMonth')::double precision
                from jsonb_array_elements(c.document -> 'disks') d
                where d ->> 'providerTypeId' = ${diskType} limit 1) as disk_price
            from cloud_catalogs c where c.environment_id = ${environmentId} and c.document is not null
              and c.document ->> 'provider' = ${target.provider}
              and (${target.region} = '' or c.document ->> 'region' = ${target.region})
              and (${own.connectionId ?? ''} = '' or c.connection_id = ${own.connectionId ?? ''})
            order by c.discovered_at desc, c.connection_id limit 1`,
        )
  return {
    pricePerHour: own.pricePerHour ?? offer?.pricePerHour ?? 0,
    diskPricePerGiBMonth: own.diskPricePerGiBMonth ?? offer?.diskPrice ?? 0,
  }
}
