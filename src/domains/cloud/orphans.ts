import { z } from 'zod'
import { eachRecord } from '../../db/each-record.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import type { Machine } from '../../drivers/cloud/contract.ts'
import { recordAudit } from '../audit-events/store.ts'
import { builtProviders, connectionsOf, refusalOfCloud } from './clouds.ts'
import type { Cloud, CloudConnection, Clouds } from './clouds.ts'
import { noteLosses, recordFound } from './loss.ts'
import { serviceReference } from './work.ts'

/** A machine with the tags of this service and no living record. It costs money without use. */
export const Orphan = z.strictObject({
  connectionId: z.string(),
  region: z.string(),
  providerId: z.string(),
  instanceId: z.string().optional().describe('of the record that it was made for'),
  state: z.string(),
})
export type Orphan = z.output<typeof Orphan>

const RegionRow = z.object({ region: z.string(), projectId: z.string().nullish() })
const TrackedRow = z.object({ reference: z.string(), providerId: z.string().nullish() })

/**
 * The providers that may have machines of a connection, by region: its own region and project, and
 * those of instances and targets.
 */
const cloudsOf = async (
  { db, clouds }: { db: Db; clouds: Clouds },
  connection: CloudConnection,
): Promise<Map<Cloud, string>> => {
  const { id, environmentId, provider, region: own } = connection
  const rows = await db.many(
    RegionRow,
    sql`select region, null as project_id from cloud_instances
        where environment_id = ${environmentId} and provider = ${provider}
      union select region, case when machine_gone or status = 'destroyed' then project_id
          else coalesce(account, project_id) end
        from cloud_instances where connection_id = ${id} and provider = ${provider}
      union select region, null from cloud_capacity_targets
        where environment_id = ${environmentId} and provider = ${provider} and region <> ''`,
  )
  const found = new Map<Cloud, string>()
  for (const { region, projectId } of [...(own == null ? [] : [{ region: own, projectId: null }]), ...rows])
    found.set(
      await clouds.of({ ...connection, projectId: projectId ?? connection.projectId }, region),
      region,
    )
  return found
}

/**
 * The machines that no living record names. The machines were read before the records, so a machine
 * that is being made now has its record already.
 */
const untracked = async (db: Db, machines: readonly Machine[]): Promise<Machine[]> => {
  const references = machines.flatMap(({ reference }) => (reference === undefined ? [] : [reference]))
  const rows = await db.many(
    TrackedRow,
    sql`select reference::text as reference, provider_id from cloud_instances
      where reference::text = any(${references}) and status <> 'destroyed' and not machine_gone`,
  )
  const known = new Map(rows.map((row) => [row.reference, row.providerId]))
  return machines.filter(({ id, reference = '' }) => {
    if (!known.has(reference)) return true
    const providerId = known.get(reference)
    return providerId != null && providerId !== id
  })
}

/**
 * `failed` gets the error of one connection, region or project, as its provider answers; the others
 * are searched all the same. `seen` gets the machines of each before they are compared with the records.
 */
const findOrphans = async (
  { db, clouds }: { db: Db; clouds: Clouds },
  environmentId: string,
  failed: (error: unknown) => void,
  seen: (machines: readonly Machine[]) => Promise<void> = async () => {},
): Promise<(Orphan & { cloud: Cloud })[]> => {
  const service = await serviceReference(db)
  const found: (Orphan & { cloud: Cloud })[] = []
  const search = async (connection: CloudConnection): Promise<void> => {
    if (!builtProviders.has(connection.provider)) return
    const searchAt = async ([cloud, region]: readonly [Cloud, string]): Promise<void> => {
      const machines = await cloud.driver.list(service)
      await seen(machines)
      for (const { id, instanceId, state } of await untracked(db, machines))
        found.push({
          ...{ connectionId: connection.id, region, providerId: id, state, cloud },
          ...(instanceId === undefined ? {} : { instanceId }),
        })
    }
    await eachRecord(await cloudsOf({ db, clouds }, connection), searchAt, failed)
  }
  await eachRecord(await connectionsOf(db, environmentId), search, failed)
  return found
}

const shown = ({ cloud: _, ...orphan }: Orphan & { cloud: Cloud }): Orphan => orphan

const refuse = (error: unknown): never => {
  throw refusalOfCloud(error)
}

/**
 * Machines of this service without a living record.
 * @throws Refusal 422 or 503 as the provider of the first failing connection answers
 */
export const listOrphans = async (
  parts: { db: Db; clouds: Clouds },
  environmentId: string,
): Promise<Orphan[]> => (await findOrphans(parts, environmentId, refuse)).map(shown)

/**
 * Ends the orphans, and no other machine, with an audit record of each, and records machines of
 * failed instances. `failed` gets the error of one connection or machine; by default it is thrown as
 * a refusal, else the others are ended all the same.
 * @returns those that were ended
 */
export const sweepOrphans = async (
  parts: { db: Db; clouds: Clouds },
  environmentId: string,
  failed: (error: unknown) => void = refuse,
): Promise<Orphan[]> => {
  const ended: Orphan[] = []
  const end = async (orphan: Orphan & { cloud: Cloud }): Promise<void> => {
    const { connectionId, region, providerId, instanceId } = orphan
    await orphan.cloud.driver.destroy(providerId)
    await recordAudit(parts.db, {
      ...{ eventType: 'cloud.orphan.ended', actorId: 'service', actorType: 'service', outcome: 'succeeded' },
      ...{ environmentId, connectionId, externalId: providerId },
      summary: `machine ${providerId} ended: no living record names it`,
      metadata: { region, ...(instanceId === undefined ? {} : { instanceId }) },
    })
    ended.push(shown(orphan))
  }
  const found = await findOrphans(parts, environmentId, failed, (machines) => recordFound(parts.db, machines))
  await eachRecord(found, end, failed)
  return ended
}

const PlaceRow = z.object({ environmentId: z.string() })

/**
 * Takes the search for this process where the last one is `seconds` old, or later than now: then
 * the clock was set back.
 */
const claimSweep = async (db: Db, seconds: number): Promise<boolean> =>
  (await db.run(sql`update cloud_service set swept_at = now()
    where swept_at is null or swept_at > clock_timestamp()
      or swept_at <= now() - make_interval(secs => ${seconds})`)) > 0

const mostEnvironments = 10_000

/**
 * Ends the orphans of every environment, and notes what others have ended or stopped, once in
 * `seconds` for all processes. Trouble with one provider does not stop the others. `parts.unused` as
 * for `noteLosses`.
 */
export const sweepAll = async (
  parts: { db: Db; clouds: Clouds; unused: Sql },
  { seconds, signal }: { seconds: number; signal: AbortSignal },
): Promise<{
  ended: (Orphan & { environmentId: string })[]
  lost: { instanceId: string; reason: string }[]
  failures: { environmentId: string; error: unknown }[]
}> => {
  const ended: (Orphan & { environmentId: string })[] = []
  const lost: { instanceId: string; reason: string }[] = []
  const failures: { environmentId: string; error: unknown }[] = []
  if (!(await claimSweep(parts.db, seconds))) return { ended, lost, failures }
  const places = await parts.db.many(
    PlaceRow,
    // Without a target no machine was ever made.
    sql`select distinct environment_id from cloud_capacity_targets order by 1 limit ${mostEnvironments}`,
  )
  const failedAt = (environmentId: string) => (error: unknown) => void failures.push({ environmentId, error })
  const sweep = async ({ environmentId }: z.output<typeof PlaceRow>): Promise<void> => {
    const failed = failedAt(environmentId)
    for (const orphan of await sweepOrphans(parts, environmentId, failed))
      ended.push({ ...orphan, environmentId })
    for (const loss of await noteLosses(parts, environmentId, failed)) lost.push(loss)
  }
  await eachRecord(places, sweep, (error, { environmentId }) => failedAt(environmentId)(error), signal)
  return { ended, lost, failures }
}
