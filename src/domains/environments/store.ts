import { z } from 'zod'
import { readIds, readTexts } from '../../db/rows.ts'
import { raw, sql, type Db, type Sql } from '../../db/sql.ts'
import { unacceptable, missing, type Problem } from '../../refusal.ts'
import type { Page } from '../../http/paging.ts'
import {
  bindingObject,
  environmentObject,
  environmentRows,
  newestVersion,
  profileObject,
  resourceObject,
  runtimeObject,
  versionObject,
} from './document-sql.ts'
import { definitionStoreProblems } from './references.ts'
import { replaceVersions, writeVersion } from './save.ts'
import { mayHoldPassword, passwordForms, passwordOf, urlPasswordOf } from './address-passwords.ts'
import { jsonEscape } from './secret-keys.ts'
import {
  environmentSecretProblems,
  needsStored,
  maskedText,
  mayHoldSecret,
  secretPaths,
  secretsIn,
  unmaskEnvironment,
} from './secrets.ts'
import {
  ActivityResourceProfile,
  Resource,
  ResourceRuntimeBinding,
  Runtime,
  usualContainerPath,
  Version,
  type EnvironmentDefinition,
} from './schemas.ts'
import { usersOf, type EnvironmentUse, type EnvironmentUsers } from './users.ts'

/** An arbitrary number. It has to differ from the one in `migrate.ts`. */
const inventoryLock = 7_355_608_152

/**
 * Serialises changes of the inventory until the transaction ends. The findings of
 * `definitionStoreProblems` stay true, also for references without a row to lock. Writers are rare
 * and short (10,000 resources: under a second); readers never wait.
 */
export const lockInventory = async (tx: Db): Promise<void> => {
  await tx.run(sql`select pg_advisory_xact_lock(${inventoryLock})`)
}

/**
 * Waits for changes of the inventory that are under way, and keeps others away until the transaction
 * ends: for records that forbid changes.
 */
export const holdInventory = async (tx: Db): Promise<void> => {
  await tx.run(sql`select pg_advisory_xact_lock_shared(${inventoryLock})`)
}

/**
 * The environment with its highest version as JSON text (an `EnvironmentDocument`), secrets masked,
 * in one round trip; undefined when there is none.
 */
export const readEnvironment = async (db: Db, id: string): Promise<string | undefined> => {
  const text = await storedEnvironment(db, id)
  return text === undefined ? undefined : maskedText(text)
}

const storedEnvironment = async (db: Db, id: string): Promise<string | undefined> => {
  const [row] = await db.prepared<{ document: string }>(
    'read-environment',
    `select ${environmentObject} as document from ${environmentRows} where e.id = $1`,
    [id],
  )
  return row?.document
}

/** Ids of environments by name; `total` is counted to one above `countBound`. */
export const listEnvironments = (db: Db, page: Page) =>
  readIds(db, { from: sql`environments e`, order: sql`e.name collate "C", e.id`, page })

/** These environments, each with its highest version as JSON text, secrets masked. */
export const environmentTexts = async (db: Db, ids: readonly string[]): Promise<string[]> => {
  const from = `join environments e on e.id = asked.id ${newestVersion}`
  return (await readTexts(db, ids, { document: environmentObject, from })).map(maskedText)
}

/**
 * The stored document with the secrets behind a document's masks; undefined where the document needs
 * none.
 */
const behindMasks = async (db: Db, document: unknown, replaces: string | undefined): Promise<unknown> => {
  if (replaces === undefined || !needsStored(document)) return undefined
  const text = await storedEnvironment(db, replaces)
  return text === undefined ? undefined : JSON.parse(text)
}

/**
 * Problems of a definition that the store finds, and secrets in it. `replaces` is
 * the id of the environment that the definition replaces.
 */
export const definitionProblems = async (
  db: Db,
  document: unknown,
  replaces?: string,
): Promise<Problem[]> => [
  ...environmentSecretProblems(document, await behindMasks(db, document, replaces)),
  ...(await definitionStoreProblems(db, document, replaces)),
]

/** Stores a new environment whole. @throws Refusal 422 with all problems that the store finds */
export const createEnvironment = (db: Db, definition: EnvironmentDefinition): Promise<void> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    const problems = await definitionProblems(tx, definition)
    if (problems.length > 0) throw unacceptable(problems)
    const { id, name, description, status } = definition.environment
    await tx.run(
      sql`insert into environments (id, name, description, status) values (${id}, ${name}, ${description}, ${status})`,
    )
    await writeVersion(tx, definition)
  })

/** @throws Refusal 404 for an unknown environment */
export const requireEnvironment = async (db: Db, id: string): Promise<void> => {
  if ((await db.run(sql`select 1 from environments where id = ${id}`)) === 0) throw missing('environment', id)
}

const exists = async (tx: Db, id: string): Promise<void> => {
  if ((await tx.run(sql`select 1 from environments where id = ${id} for update`)) === 0)
    throw missing('environment', id)
}

interface Refused {
  uses: readonly EnvironmentUse[]
  deed: string
  remedy: string
}

const refuseUsed = async (tx: Db, id: string, { uses, deed, remedy }: Refused): Promise<void> => {
  const users = await usersOf(tx, id, uses)
  if (users.length === 0) return
  throw unacceptable(
    users.map((user) => ({
      path: '',
      message: `environment ${JSON.stringify(id)} cannot be ${deed}: it is used by ${user}; ${remedy}`,
    })),
  )
}

/**
 * The document with the stored resources of these ids and their bindings in place of its own.
 * `missing`: runtimes that the bindings need and the document lacks.
 */
const withKept = async (
  tx: Db,
  sent: EnvironmentDefinition,
  ids: readonly string[],
): Promise<{ definition: EnvironmentDefinition; missing: Problem[] }> => {
  if (ids.length === 0) return { definition: sent, missing: [] }
  const kept = new Set(ids)
  const resources = await documents<Resource>(
    tx,
    sql`select ${raw(resourceObject)}::json as document from resources r where r.id = any(${[...ids]}::text[])
      order by r.position, r.id`,
  )
  const bindings = await bindingsOfResources(tx, ids)
  const runtimes = new Set(sent.runtimes.map(({ id }) => id))
  const environmentVersionId = sent.version.id
  return {
    definition: {
      ...sent,
      resources: [
        ...sent.resources.filter(({ id }) => !kept.has(id)),
        ...resources.map((resource) => ({ ...resource, environmentVersionId })),
      ],
      resourceRuntimeBindings: [
        ...sent.resourceRuntimeBindings.filter(({ resourceId }) => !kept.has(resourceId)),
        ...bindings,
      ],
    },
    missing: bindings
      .filter(({ runtimeId }) => !runtimes.has(runtimeId))
      .map(({ resourceId, runtimeId }) => ({
        path: 'runtimes',
        message:
          `${JSON.stringify(runtimeId)} is missing: the capacity target ${JSON.stringify(resourceId)} is bound ` +
          'to it; keep the runtime, or delete the target first',
      })),
  }
}

/**
 * Replaces a whole environment in one transaction. Its creation time stays, and so do remaining
 * connections, resources and storages with the records that belong to them.
 * @throws Refusal 404 for an unknown id, 422 while a record uses the environment or where the store
 *   finds problems
 */
export const replaceEnvironment = (
  db: Db,
  sent: EnvironmentDefinition,
  { environment: uses, keptResources, connectionsReplaced }: EnvironmentUsers,
): Promise<void> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    const { id, name, description, status } = sent.environment
    await exists(tx, id)
    await refuseUsed(tx, id, {
      uses: uses.filter(({ onlyDeletion }) => onlyDeletion !== true),
      deed: 'replaced',
      remedy: 'register the revised inventory as a new environment with new ids',
    })
    const { definition, missing: lost } = await withKept(tx, sent, await keptResources(tx, id))
    const problems = [...lost, ...(await definitionProblems(tx, definition, id))]
    if (problems.length > 0) throw unacceptable(problems)
    unmaskEnvironment(definition, await behindMasks(tx, definition, id))
    await connectionsReplaced(tx, id, definition.connections)
    await tx.run(
      sql`delete from connections where environment_id = ${id}
        and id <> all(${definition.connections.map((connection) => connection.id)})`,
    )
    await tx.run(
      sql`update environments set name = ${name}, description = ${description}, status = ${status} where id = ${id}`,
    )
    await replaceVersions(tx, definition)
  })

/**
 * Deletes an environment with everything below it.
 * @throws Refusal 404 for an unknown id, 422 while a record uses it
 */
export const deleteEnvironment = (db: Db, id: string, uses: readonly EnvironmentUse[]): Promise<void> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    await exists(tx, id)
    await refuseUsed(tx, id, { uses, deed: 'deleted', remedy: 'delete that first' })
    await tx.run(sql`delete from environments where id = ${id}`)
  })

/** Documents of rows, as they were taken: the bounds of their numbers may have been others then. */
const documents = async <T>(db: Db, query: Sql): Promise<T[]> => (await db.values(z.unknown(), query)) as T[]

/** The versions of these ids, by id; unknown ids are left out. */
export const versionsByIds = (db: Db, versionIds: readonly string[]): Promise<Version[]> =>
  documents<Version>(
    db,
    sql`select ${raw(versionObject)}::json as document from environment_versions v
      where v.id = any(${versionIds}) order by v.id`,
  )

/** All resources of these versions, schedulable or not, in the order of version id and document. */
export const resourcesOfVersions = (db: Db, versionIds: readonly string[]): Promise<Resource[]> =>
  documents<Resource>(
    db,
    sql`select ${raw(resourceObject)}::json as document from resources r
      where r.environment_version_id = any(${versionIds}) order by r.environment_version_id, r.position, r.id`,
  )

/** All runtimes of these versions, in the order of version id and document. */
export const runtimesOfVersions = (db: Db, versionIds: readonly string[]): Promise<Runtime[]> =>
  documents<Runtime>(
    db,
    sql`select ${raw(runtimeObject)}::json as document from runtimes r
      where r.environment_version_id = any(${versionIds}) order by r.environment_version_id, r.position, r.id`,
  )

/** The bindings of these resources, enabled or not, by resource and runtime id. */
export const bindingsOfResources = (
  db: Db,
  resourceIds: readonly string[],
): Promise<ResourceRuntimeBinding[]> =>
  documents<ResourceRuntimeBinding>(
    db,
    sql`select ${raw(bindingObject)}::json as document from resource_runtime_bindings b
      where b.resource_id = any(${resourceIds}) order by b.resource_id, b.runtime_id`,
  )

/**
 * The runtimes of these ids, by id; unknown ids are left out. A binding may name a runtime of
 * another version than its resource's.
 */
export const runtimesByIds = (db: Db, runtimeIds: readonly string[]): Promise<Runtime[]> =>
  documents<Runtime>(
    db,
    sql`select ${raw(runtimeObject)}::json as document from runtimes r where r.id = any(${runtimeIds}) order by r.id`,
  )

const ResourceTypeRow = z.object({ id: z.string(), type: z.string() })

/** Types of the connections of these ids; unknown ids are left out. */
export const connectionTypes = async (
  db: Db,
  connectionIds: readonly string[],
): Promise<Map<string, string>> => {
  const rows = await db.many(
    ResourceTypeRow,
    sql`select id, type from connections where id = any(${connectionIds})`,
  )
  return new Map(rows.map(({ id, type }) => [id, type]))
}

const SurroundingRow = z.object({
  versionId: z.string(),
  id: z.string(),
  type: z.string(),
  namespace: z.string().optional(),
})

/** Connections of the environments of these versions, by version and id. */
export const connectionsOfVersions = (db: Db, versionIds: readonly string[]) =>
  db.many(
    SurroundingRow,
    sql`select v.id as version_id, c.id, c.type, c.configuration ->> 'namespace' as namespace
        from environment_versions v join connections c on c.environment_id = v.environment_id
          where v.id = any(${versionIds}) order by 1, 2`,
  )

const ClaimRow = z.object({ runtimeId: z.string(), claim: z.string(), mountPath: z.string() })

/**
 * The claim of the default storage of each of these runtimes, where that is one of Kubernetes, and
 * its mount path in the containers.
 */
export const defaultClaims = (db: Db, runtimeIds: readonly string[]) =>
  db.many(
    ClaimRow,
    sql`select b.runtime_id, s.configuration ->> 'claimName' as claim, p.mount_path
        from storage_runtime_bindings b
          cross join lateral (select coalesce(nullif(b.container_path, ''), ${usualContainerPath}) as mount_path) p
          join storages s on s.environment_version_id = b.environment_version_id
          and s.id = b.storage_id
        where b.runtime_id = any(${runtimeIds}) and b.is_default and s.type = 'pvc'
          and s.configuration ->> 'claimName' <> '' and p.mount_path like '/_%'`,
  )

const MountRow = z.object({ runtimeId: z.string(), storageId: z.string(), path: z.string() })

/**
 * Mount paths of the storages of these runtimes at their sites (`hostPath`, else the storage's
 * endpoint), by runtime and storage.
 */
export const storageMounts = (db: Db, runtimeIds: readonly string[]) =>
  db.many(
    MountRow,
    sql`select b.runtime_id, b.storage_id, coalesce(nullif(b.host_path, ''), s.endpoint) as path
      from storage_runtime_bindings b
        join storages s on s.environment_version_id = b.environment_version_id and s.id = b.storage_id
        where b.runtime_id = any(${runtimeIds}) and coalesce(nullif(b.host_path, ''), s.endpoint) like '/%'
          order by 1, 2`,
  )

/**
 * Profiles of these activity types on these resources, every model version, by type, resource and
 * profile id.
 */
export const profilesFor = (
  db: Db,
  activityTypeIds: readonly string[],
  resourceIds: readonly string[],
): Promise<ActivityResourceProfile[]> =>
  documents<ActivityResourceProfile>(
    db,
    sql`select ${raw(profileObject)}::json as document from activity_resource_profiles p
        where p.activity_type_id = any(${activityTypeIds}) and p.resource_id = any(${resourceIds})
          order by p.activity_type_id, p.resource_id, p.id`,
  )

/** A digest of resources with their profiles, and of versions: another one after a change of any of them. */
export const inventoryDigest = (
  db: Db,
  resourceIds: readonly string[],
  versionIds: readonly string[],
): Promise<string> =>
  db.only(
    z.string(),
    sql`select md5(concat_ws('/',
      (select string_agg(md5(r::text), '' order by r.id) from resources r where r.id = any(${resourceIds})),
      (select string_agg(md5(p::text), '' order by p.id) from activity_resource_profiles p
        where p.resource_id = any(${resourceIds})),
      (select string_agg(md5(v::text), '' order by v.id) from environment_versions v
        where v.id = any(${versionIds})))) as digest`,
  )

const SecretRow = z.object({
  kind: z.string(),
  name: z.string(),
  configuration: z.unknown(),
  endpoint: z.string(),
})
type SecretRow = z.output<typeof SecretRow>
/** The most records that a start names one by one. */
const secretsNamed = 100

/** Records that may hold a secret. */
const secretRows = (db: Db): Promise<SecretRow[]> =>
  db.many(
    SecretRow,
    sql`select kind, name, configuration, endpoint from (
          select 'connection' as kind, id as name, configuration, endpoint from connections
          union all select 'runtime', id, configuration, '' from runtimes
          union all select 'binding of resource', resource_id || ' to runtime ' || runtime_id,
            configuration, '' from resource_runtime_bindings
          union all select 'storage', id, configuration, endpoint from storages
          union all select 'binding of storage', storage_id || ' to runtime ' || runtime_id, configuration, ''
            from storage_runtime_bindings) held
        where regexp_replace(configuration::text, ${jsonEscape}, ' ', 'g')
            ~* ${`${mayHoldSecret}|${mayHoldPassword}`}
          or endpoint ~* case kind when 'connection' then ${passwordForms.connection} else ${passwordForms.storage} end
          order by kind, name limit 1000000`,
  )

const endpointSecret = ({ kind, endpoint }: SecretRow): string | undefined =>
  passwordOf(endpoint, kind === 'connection' ? kind : 'storage')

/**
 * Records whose configuration or endpoint holds a secret, as earlier versions of the service accepted
 * it, with the dotted paths of the secrets.
 */
export const recordsWithSecrets = async (db: Db): Promise<{ record: string; paths: string[] }[]> =>
  (await secretRows(db))
    .map((row) => ({
      record: `${row.kind} ${row.name}`,
      paths: [...secretPaths(row.configuration), ...(endpointSecret(row) === undefined ? [] : ['endpoint'])],
    }))
    .filter(({ paths }) => paths.length > 0)
    .slice(0, secretsNamed)

/** The secrets themselves, for code that must not show them. */
export const configurationSecrets = async (db: Db): Promise<string[]> =>
  (await secretRows(db)).flatMap((row) => {
    const secrets = [...secretsIn(row.configuration).values()]
    const passwords = secrets.map((secret) => urlPasswordOf(String(secret)) ?? '')
    return [...secrets, ...passwords, endpointSecret(row) ?? ''].map(String)
  })
