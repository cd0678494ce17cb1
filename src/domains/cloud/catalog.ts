import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { Refusal, unacceptable } from '../../refusal.ts'
import { connectionOf, refusalOfCloud, type CloudConnection, type Clouds } from './clouds.ts'
import { Catalog } from './catalog-schemas.ts'

const Row = z.object({ document: Catalog })

/**
 * The catalog of the last refresh, of the given connection or of the newest one of the environment.
 */
export const readCatalog = async (
  db: Db,
  environmentId: string,
  connectionId: string | undefined,
): Promise<z.output<typeof Catalog>> => {
  const row = await db.maybe(
    Row,
    sql`select document from cloud_catalogs where environment_id = ${environmentId} and document is not null
      and (${connectionId ?? null}::text is null or connection_id = ${connectionId ?? null})
      order by discovered_at desc, connection_id limit 1`,
  )
  if (row === undefined)
    throw new Refusal(
      'missing',
      `the environment ${JSON.stringify(environmentId)} has no catalog yet; POST …/cloud-catalog/refresh/ reads it`,
    )
  return row.document
}

/** After this time another request may take over a refresh that has not ended. */
const refreshSeconds = 300

/** @returns false where another refresh is under way */
const take = async (db: Db, environmentId: string, connectionId: string): Promise<boolean> =>
  (await db.run(sql`insert into cloud_catalogs as c (environment_id, connection_id, refreshing_since)
      values (${environmentId}, ${connectionId}, now())
      on conflict on constraint cloud_catalogs_pkey do update set refreshing_since = now()
      where c.refreshing_since is null or c.refreshing_since < now() - make_interval(secs => ${refreshSeconds})`)) >
  0

const regionOf = ({ id, region }: CloudConnection): string => {
  if (region != null) return region
  throw unacceptable([
    { path: '', message: `the connection ${JSON.stringify(id)} names no region; give configuration.region` },
  ])
}

/** A refresh that has begun. */
export interface Refresh {
  /** False: another request started the refresh that is under way. */
  own: boolean
  work: () => Promise<void>
}

/** Begins to read the offers of the provider. Where that fails, the stored catalog stays. */
export const beginRefresh = async (
  { db, clouds }: { db: Db; clouds: Clouds },
  environmentId: string,
  connectionId: string | undefined,
): Promise<Refresh> => {
  const connection = await connectionOf(db, environmentId, { connectionId })
  const region = regionOf(connection)
  const { driver } = await clouds.of(connection, region)
  const own = await take(db, environmentId, connection.id)
  const work = async (): Promise<void> => {
    try {
      const { project, ...offers } = await driver.catalog()
      const { provider } = connection
      const document: z.output<typeof Catalog> = {
        ...{ provider, environmentId, ...(project === undefined ? {} : { project }), region },
        source: 'provider',
        machines: offers.machines.map((one) => ({ provider, region, available: true, ...one })),
        images: offers.images.map((one) => ({ provider, ...one })),
        disks: offers.disks.map((one) => ({ provider, region, available: true, ...one })),
        ...(offers.warnings.length === 0 ? {} : { warnings: offers.warnings }),
        discoveredAt: new Date().toISOString(),
      }
      await db.run(sql`update cloud_catalogs set document = ${JSON.stringify(document)}::jsonb,
        discovered_at = now() where environment_id = ${environmentId} and connection_id = ${connection.id}`)
    } catch (error) {
      throw refusalOfCloud(error)
    } finally {
      await db.run(sql`update cloud_catalogs set refreshing_since = null
        where environment_id = ${environmentId} and connection_id = ${connection.id}`)
    }
  }
  return { own, work }
}
