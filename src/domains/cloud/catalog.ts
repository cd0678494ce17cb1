import { z } from 'zod'
import { eachRecord } from '../../db/each-record.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { storableJson } from '../../outside-text.ts'
import { everyRound } from '../../pacing/every-round.ts'
import { Refusal, unacceptableAt } from '../../refusal.ts'
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

/** The record of a refresh is touched this often while its process reads. */
const touchMs = 5_000
/**
 * A refresh whose record was not touched for so long has lost its process: another one takes it up.
 */
const lostSeconds = 30
const isLost = sql`c.refreshing_since not between clock_timestamp() - make_interval(secs => ${lostSeconds})
  and clock_timestamp()`

/** @returns false where another refresh is under way */
const take = async (db: Db, environmentId: string, connectionId: string): Promise<boolean> =>
  (await db.run(sql`insert into cloud_catalogs as c (environment_id, connection_id, refreshing_since)
      values (${environmentId}, ${connectionId}, now())
      on conflict on constraint cloud_catalogs_pkey do update set refreshing_since = now()
      where c.refreshing_since is null or ${isLost}`)) > 0

const regionOf = ({ id, region }: CloudConnection): string => {
  if (region != null) return region
  throw unacceptableAt('', `the connection ${JSON.stringify(id)} names no region; give configuration.region`)
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
  const mark = (since: Sql): Promise<unknown> =>
    db.run(sql`update cloud_catalogs set refreshing_since = ${since}
      where environment_id = ${environmentId} and connection_id = ${connection.id}`)
  const work = async (): Promise<void> => {
    const touching = everyRound(
      touchMs,
      async () => void (await mark(sql`clock_timestamp()`)),
      () => undefined,
    )
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
      await db.run(sql`update cloud_catalogs set document = ${storableJson(document)}::jsonb,
        discovered_at = now() where environment_id = ${environmentId} and connection_id = ${connection.id}`)
    } catch (error) {
      throw refusalOfCloud(error)
    } finally {
      await touching.stop()
      await mark(sql`null`)
    }
  }
  return { own, work }
}

const LostRow = z.object({ environmentId: z.string(), connectionId: z.string() })

/**
 * Takes up the refreshes whose processes have ended, one after the other. `failed` gets the error
 * of one refresh, which is over then: the stored catalog stays.
 */
export const resumeRefreshes = async (
  parts: { db: Db; clouds: Clouds },
  failed: (error: unknown, record: { environmentId: string; connectionId: string }) => void,
  signal?: AbortSignal,
): Promise<void> => {
  const lost = await parts.db.many(
    LostRow,
    sql`select environment_id, connection_id from cloud_catalogs c where ${isLost}
      order by refreshing_since limit 100`,
  )
  const resume = async ({ environmentId, connectionId }: z.output<typeof LostRow>): Promise<void> => {
    try {
      const { own, work } = await beginRefresh(parts, environmentId, connectionId)
      if (own) await work()
    } catch (error) {
      // A connection that is gone, or cannot be used, has no refresh.
      await parts.db.run(sql`update cloud_catalogs c set refreshing_since = null
        where environment_id = ${environmentId} and connection_id = ${connectionId} and ${isLost}`)
      throw error
    }
  }
  await eachRecord(lost, resume, failed, signal)
}
