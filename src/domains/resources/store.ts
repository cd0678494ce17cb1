import { z } from 'zod'
import { columnsOf } from '../../db/projection.ts'
import { documentRow, readPage } from '../../db/rows.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { resourceObject } from '../environments/document-sql.ts'
import { insertResources } from '../environments/save.ts'
import type { Resource } from '../environments/schemas.ts'
import { lockInventory } from '../environments/store.ts'
import { ResourceSnapshot } from './schemas.ts'

// Rows keep to the bounds of the time at which they were taken.
const Row = documentRow(z.custom<Resource>())
const document = sql`${raw(resourceObject)}::json as document`

/** Resources of all environments by name; `total` is counted to one above `countBound`. */
export const listResources = (db: Db, page: Page) =>
  readPage(db, Row, { select: document, from: sql`resources r`, order: sql`r.name collate "C", r.id`, page })

export const readResource = (db: Db, id: string): Promise<Resource | undefined> =>
  db.maybe(Row, sql`select ${document} from resources r where r.id = ${id}`)

const Against = z.object({
  taken: z.boolean(),
  version: z.boolean(),
  provider: z.boolean(),
  parent: z.boolean(),
})

const PositionRow = z.object({ position: z.number() })

/**
 * Adds a resource to an existing version. @throws Refusal 422 with all problems that the store
 * finds
 */
export const createResource = (db: Db, resource: Resource): Promise<void> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    const { id, environmentVersionId, providerId, parentResourceId = '' } = resource
    const known = await tx.one(
      Against,
      sql`select exists (select from resources where id = ${id}) as taken,
            exists (select from environment_versions where id = ${environmentVersionId}) as version,
            exists (select from resources where environment_version_id = ${environmentVersionId}
              and provider_id = ${providerId}) as provider,
            exists (select from resources where id = ${parentResourceId}) as parent`,
    )
    const problems: Problem[] = []
    const report = (path: string, message: string): void => void problems.push({ path, message })
    if (known.taken)
      report('id', `${JSON.stringify(id)} is taken by another resource; ids are global, choose another`)
    if (!known.version)
      report(
        'environmentVersionId',
        `${JSON.stringify(environmentVersionId)} names no environment version; register the environment first`,
      )
    if (known.provider)
      report(
        'providerId',
        `${JSON.stringify(providerId)} is the providerId of another resource of this version; ` +
          'give each its own',
      )
    if (parentResourceId === id)
      report('parentResourceId', 'names the resource itself; name another resource, or leave it out')
    else if (parentResourceId !== '' && !known.parent)
      report(
        'parentResourceId',
        `${JSON.stringify(parentResourceId)} names no resource; name a resource, or leave it out`,
      )
    if (problems.length > 0) throw unacceptable(problems)
    // The new resource comes after those that the version has already.
    const { position } = await tx.one(
      PositionRow,
      sql`select coalesce(max(position) + 1, 0) as position from resources
        where environment_version_id = ${environmentVersionId}`,
    )
    await insertResources(tx, [{ ...resource, position }])
  })

/** The newest observation of a resource, or undefined where there is none. */
export const latestSnapshot = (db: Db, resourceId: string): Promise<ResourceSnapshot | undefined> =>
  db.maybe(
    ResourceSnapshot,
    sql`select ${columnsOf(ResourceSnapshot, 'resource_snapshots')} from resource_snapshots
      where resource_id = ${resourceId} order by captured_at desc, id desc limit 1`,
  )

/** The number of snapshots stored of each resource. */
const keptSnapshots = 200

export interface NewSnapshot {
  id: string
  resourceId: string
  available: boolean
  cpuUsed: number
  memoryUsedBytes: number
  queueLength: number
  metadata: object
}

/** Adds observations of resources, and deletes the oldest of each beyond 200. */
export const recordSnapshots = async (tx: Db, snapshots: readonly NewSnapshot[]): Promise<void> => {
  await tx.run(
    sql`insert into resource_snapshots (id, resource_id, captured_at, available, cpu_used, memory_used_bytes,
      queue_length, metadata)
        select id, "resourceId", clock_timestamp(), available, "cpuUsed", "memoryUsedBytes", "queueLength", metadata
        from json_to_recordset(${JSON.stringify(snapshots)}::json) as s(id text, "resourceId" text, available boolean,
          "cpuUsed" double precision, "memoryUsedBytes" bigint, "queueLength" bigint, metadata jsonb)`,
  )
  await tx.run(
    sql`delete from resource_snapshots where id in (
          select id from (select id, row_number() over (partition by resource_id
            order by captured_at desc, id desc) as place
            from resource_snapshots where resource_id = any(${snapshots.map(({ resourceId }) => resourceId)})) ranked
          where place > ${keptSnapshots})`,
  )
}
