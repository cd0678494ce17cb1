import { z } from 'zod'
import { raw, sql, type Db } from '../../db/sql.ts'
import { storableJson } from '../../outside-text.ts'
import { missing, existing } from '../../refusal.ts'
import { storageObject } from './document-sql.ts'
import { lockInventory, requireEnvironment } from './store.ts'
import { maskedStorage } from './secrets.ts'
import { storageTypes, type BrowseRoot, type StorageProbe } from './schemas.ts'

/**
 * The storages of an environment's newest version, each as JSON text, secrets masked.
 * @throws Refusal 404 for an unknown environment
 */
export const storagesOfEnvironment = async (db: Db, environmentId: string): Promise<string[]> => {
  const texts = await db.values(
    z.string(),
    sql`select ${raw(storageObject)} as document from storages s
        where s.environment_version_id = (select id from environment_versions
          where environment_id = ${environmentId} order by version desc limit 1)
        order by s.position, s.id`,
  )
  if (texts.length === 0) await requireEnvironment(db, environmentId)
  return texts.map(maskedStorage)
}

const StorageFacts = z.object({
  id: z.string(),
  environmentId: z.string(),
  environmentVersionId: z.string(),
  name: z.string(),
  type: z.enum(storageTypes),
  endpoint: z.string(),
  readOnly: z.boolean(),
  credentialReference: z.string(),
  configuration: z.record(z.string(), z.unknown()).nullish(),
  bindings: z.array(
    z.object({
      hostPath: z.string(),
      connectionId: z.string().nullish(),
      connectionType: z.string().nullish(),
    }),
  ),
})
export type StorageFacts = z.output<typeof StorageFacts>

const factsColumns = sql`s.id, v.environment_id, s.environment_version_id, s.name, s.type, s.endpoint,
  s.read_only, s.credential_reference, s.configuration,
  (select coalesce(json_agg(json_build_object('hostPath', b.host_path, 'connectionId', c.id,
    'connectionType', c.type) order by b.position, b.runtime_id), '[]')
    from storage_runtime_bindings b join runtimes r on r.id = b.runtime_id
      left join connections c on c.id = r.configuration ->> 'connectionId' where b.storage_id = s.id) as bindings`

/** The facts of all storages of a type, at most 1,000. */
export const storagesOfType = (db: Db, type: StorageFacts['type']): Promise<StorageFacts[]> =>
  db.many(
    StorageFacts,
    sql`select ${factsColumns} from storages s join environment_versions v on v.id = s.environment_version_id
        where s.type = ${type} order by s.id limit 1000`,
  )

/**
 * The facts that a driver needs to reach the bytes of a storage: its own fields, and the
 * connections of the runtimes that it is bound to.
 * @throws Refusal 404
 */
export const readStorage = async (db: Db, id: string): Promise<StorageFacts> =>
  existing(
    await db.maybe(
      StorageFacts,
      sql`select ${factsColumns} from storages s join environment_versions v on v.id = s.environment_version_id
        where s.id = ${id}`,
    ),
    'storage',
    id,
  )

/** Records what a storage answered; one that was deleted meanwhile has no record. */
export const recordProbe = async (
  db: Db,
  id: string,
  probe: z.output<typeof StorageProbe>,
): Promise<void> => {
  await db.run(sql`update storages set probe = ${storableJson(probe)}::jsonb where id = ${id}`)
}

/** Replaces the roots of a storage, and its index policy where one is given. @throws Refusal 404 */
export const setBrowseRoots = (
  db: Db,
  id: string,
  roots: readonly BrowseRoot[],
  indexPolicy: Record<string, unknown> | undefined,
): Promise<void> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    const changes = { browseRoots: roots, ...(indexPolicy === undefined ? {} : { indexPolicy }) }
    const changed = await tx.run(
      sql`update storages set configuration = coalesce(configuration, '{}') ||
        ${JSON.stringify(changes)}::jsonb where id = ${id}`,
    )
    if (changed === 0) throw missing('storage', id)
  })
