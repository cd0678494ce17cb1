import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { columnsOf } from '../../db/projection.ts'
import { documentRow, fromExcluded, readPage } from '../../db/rows.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import { findUsers, userText } from '../../db/uses.ts'
import type { Page } from '../../http/paging.ts'
import { storableJson } from '../../outside-text.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { changingResourceMembers, resourceObject } from '../environments/document-sql.ts'
import { insertResources } from '../environments/save.ts'
import type { Resource } from '../environments/schemas.ts'
import { lockInventory } from '../environments/store.ts'
import type { EnvironmentUse } from '../environments/users.ts'
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
  version: z.boolean(),
  provider: z.boolean(),
  parent: z.boolean(),
  ancestor: z.boolean(),
})

/** Problems of a resource with the other records of the store. */
const problemsAgainst = async (tx: Db, resource: Resource): Promise<Problem[]> => {
  const { id, environmentVersionId, providerId, parentResourceId = '' } = resource
  const known = await tx.one(
    Against,
    sql`with recursive ancestors (id) as (select id from resources where id = ${parentResourceId}
          union select r.parent_resource_id from resources r join ancestors a on r.id = a.id
            where r.parent_resource_id is not null)
        select exists (select from environment_versions where id = ${environmentVersionId}) as version,
          exists (select from resources where environment_version_id = ${environmentVersionId}
            and provider_id = ${providerId} and id <> ${id}) as provider,
          exists (select from resources where id = ${parentResourceId}) as parent,
          exists (select from ancestors where id = ${id}) as ancestor`,
  )
  const problems: Problem[] = []
  if (!known.version)
    problems.push({
      path: 'environmentVersionId',
      message: `${JSON.stringify(environmentVersionId)} names no environment version; register the environment first`,
    })
  if (known.provider)
    problems.push({
      path: 'providerId',
      message:
        `${JSON.stringify(providerId)} is the providerId of another resource of this version; ` +
        'give each its own',
    })
  if (parentResourceId === id)
    problems.push({
      path: 'parentResourceId',
      message: 'names the resource itself; name another resource, or leave it out',
    })
  else if (parentResourceId !== '' && !known.parent)
    problems.push({
      path: 'parentResourceId',
      message: `${JSON.stringify(parentResourceId)} names no resource; name a resource, or leave it out`,
    })
  else if (known.ancestor)
    problems.push({
      path: 'parentResourceId',
      message: `${JSON.stringify(parentResourceId)} lies below the resource; name another one, or leave it out`,
    })
  return problems
}

/** A document without the members that say no more than their absence. */
const plain = ({ parentResourceId, ...rest }: Resource): object =>
  parentResourceId === '' || parentResourceId === undefined ? rest : { ...rest, parentResourceId }

/** Why a stored resource cannot become another one. */
const problemsOfChange = async (
  tx: Db,
  stored: Resource,
  { id, environmentVersionId }: Resource,
  uses: readonly EnvironmentUse[],
): Promise<Problem[]> => {
  if (stored.environmentVersionId !== environmentVersionId)
    return [
      {
        path: 'id',
        message: `${JSON.stringify(id)} is taken by a resource of another version; ids are global, choose another`,
      },
    ]
  if (stored.metadata?.['capacityTargetId'] === id)
    return [
      { path: 'id', message: `${JSON.stringify(id)} stands for a capacity target; make another target` },
    ]
  const users = await findUsers(tx, uses, {
    versions: sql`select null::text`,
    resources: sql`select ${id}::text`,
  })
  return users.map((user) => ({
    path: 'id',
    message:
      `${JSON.stringify(id)} cannot be changed: it is used by ${userText(user)}; ` +
      'delete that first, or add the revised resource under another id and providerId',
  }))
}

/**
 * Adds a resource to an existing version, or puts it in place of the one with its id there.
 * @param uses what prevents that a resource becomes another one
 * @throws Refusal 422 with all problems that the store finds
 */
export const putResource = (
  db: Db,
  resource: Resource,
  uses: readonly EnvironmentUse[] = [],
): Promise<void> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    const { id, environmentVersionId } = resource
    const stored = await readResource(tx, id)
    if (stored !== undefined && isDeepStrictEqual(plain(stored), plain(resource))) return
    const problems = [
      ...(stored === undefined ? [] : await problemsOfChange(tx, stored, resource, uses)),
      ...(await problemsAgainst(tx, resource)),
    ]
    if (problems.length > 0) throw unacceptable(problems)
    // A new resource comes after those that the version has already.
    const position = await tx.only(
      z.number(),
      sql`select coalesce(max(position) + 1, 0) as position from resources
        where environment_version_id = ${environmentVersionId}`,
    )
    await insertResources(
      tx,
      [{ ...resource, position }],
      sql`on conflict on constraint resources_pkey do update set ${fromExcluded(changingResourceMembers)}`,
    )
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
        from json_to_recordset(${storableJson(snapshots)}::json) as s(id text, "resourceId" text, available boolean,
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
