import { z } from 'zod'
import { TotalRow } from '../../db/rows.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import { countBound, type Page } from '../../http/paging.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { resourceObject } from '../environments/document-sql.ts'
import { insertResources } from '../environments/save.ts'
import { Resource } from '../environments/schemas.ts'
import { lockInventory } from '../environments/store.ts'
import { ResourceSnapshot } from './schemas.ts'

const DocumentRow = z.object({ document: Resource })

/** Resources of all environments by name; `total` is counted to one above `countBound`. */
export const listResources = async (db: Db, page: Page): Promise<{ rows: Resource[]; total: number }> => {
  const rows = await db.many(
    DocumentRow,
    sql`select ${raw(resourceObject)}::json as document from resources r order by r.name collate "C", r.id limit ${page.limit} offset ${page.offset}`,
  )
  const { total } = await db.one(TotalRow, sql`select count(*) as total from (select 1 from resources limit ${countBound + 1}) counted`)
  return { rows: rows.map(({ document }) => document), total }
}

export const readResource = async (db: Db, id: string): Promise<Resource | undefined> =>
  (await db.maybe(DocumentRow, sql`select ${raw(resourceObject)}::json as document from resources r where r.id = ${id}`))?.document

const Against = z.object({ taken: z.boolean(), version: z.boolean(), provider: z.boolean(), parent: z.boolean() })

const PositionRow = z.object({ position: z.number() })

/** Adds a resource to an existing version, or refuses (422) with everything that the store knows against it. */
export const createResource = (db: Db, resource: Resource): Promise<void> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    const { id, environmentVersionId, providerId, parentResourceId = '' } = resource
    const known = await tx.one(
      Against,
      sql`select exists (select from resources where id = ${id}) as taken,
            exists (select from environment_versions where id = ${environmentVersionId}) as version,
            exists (select from resources where environment_version_id = ${environmentVersionId} and provider_id = ${providerId}) as provider,
            exists (select from resources where id = ${parentResourceId}) as parent`,
    )
    const problems: Problem[] = []
    if (known.taken)
      problems.push({ path: 'id', message: `the resource id ${JSON.stringify(id)} is taken; ids are global, choose another` })
    if (!known.version)
      problems.push({
        path: 'environmentVersionId',
        message: `${JSON.stringify(environmentVersionId)} names no environment version; register the environment first`,
      })
    if (known.provider)
      problems.push({
        path: 'providerId',
        message: `another resource of this version has the providerId ${JSON.stringify(providerId)}; give each its own`,
      })
    if (parentResourceId === id) problems.push({ path: 'parentResourceId', message: 'a resource cannot be its own parent' })
    else if (parentResourceId !== '' && !known.parent)
      problems.push({ path: 'parentResourceId', message: `${JSON.stringify(parentResourceId)} names no resource` })
    if (problems.length > 0) throw unacceptable(problems)
    // Behind the resources that the version has already.
    const { position } = await tx.one(
      PositionRow,
      sql`select coalesce(max(position) + 1, 0) as position from resources where environment_version_id = ${environmentVersionId}`,
    )
    await tx.run(insertResources(JSON.stringify([{ ...resource, position }])))
  })

/** The newest observation of a resource, or undefined when nothing was observed. */
export const latestSnapshot = (db: Db, resourceId: string): Promise<ResourceSnapshot | undefined> =>
  db.maybe(
    ResourceSnapshot,
    sql`select id, resource_id, captured_at, available, cpu_used, memory_used_bytes, network_in_bps, network_out_bps, disk_read_bps, disk_write_bps, queue_length, metadata
        from resource_snapshots where resource_id = ${resourceId} order by captured_at desc, id desc limit 1`,
  )
