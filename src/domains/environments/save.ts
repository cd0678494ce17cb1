import { fromExcluded, insertRows } from '../../db/rows.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { holdCredentialsOf } from '../credentials/store.ts'
import { storableJson } from '../../outside-text.ts'
import { changingResourceMembers } from './document-sql.ts'
import type { EnvironmentDefinition, Resource } from './schemas.ts'

/** Members of a storage's configuration that say nothing of its place. */
const placeless = ['browseRoots', 'indexPolicy']

/** What decides where a storage leads: a bucket's service, a claim, a connection, a folder of a runtime. */
const placeOf = ({
  id,
  type,
  endpoint,
  configuration,
  runtimeBindings,
}: EnvironmentDefinition['storages'][number]): object => ({
  ...{ id, type, endpoint, configuration: configuration ?? {} },
  bindings: Object.fromEntries(runtimeBindings.map(({ runtimeId, hostPath }) => [runtimeId, hostPath])),
})

/**
 * Removes what a definition of the same environment does not keep. The version, resources and
 * storages whose ids the definition has stay, with the records that belong to them: snapshots,
 * indexes, downloads. Those of a storage that leads elsewhere tell of another place.
 */
const clearVersions = async (
  tx: Db,
  { environment, version, resources, storages }: EnvironmentDefinition,
): Promise<void> => {
  const versions = sql`(select id from environment_versions where environment_id = ${environment.id})`
  // Before the runtimes, with which the stored bindings go.
  await tx.run(
    sql`delete from storages s where environment_version_id in ${versions} and not exists (
      select from json_to_recordset(${storableJson(storages.map(placeOf))}::json)
          as kept (id text, type text, endpoint text, configuration jsonb, bindings jsonb)
        where (kept.id, kept.type, kept.endpoint) = (s.id::text, s.type, s.endpoint)
          and kept.configuration - ${placeless}::text[] = coalesce(s.configuration, '{}') - ${placeless}::text[]
          and kept.bindings = coalesce((select jsonb_object_agg(b.runtime_id, b.host_path)
            from storage_runtime_bindings b where b.storage_id = s.id), '{}'))`,
  )
  await tx.run(sql`delete from resource_runtime_bindings where environment_version_id in ${versions}`)
  await tx.run(sql`delete from resource_relations where environment_version_id in ${versions}`)
  await tx.run(sql`delete from activity_resource_profiles where environment_version_id in ${versions}`)
  await tx.run(sql`delete from runtimes where environment_version_id in ${versions}`)
  await tx.run(
    sql`delete from resources where environment_version_id in ${versions}
      and id <> all(${resources.map(({ id }) => id)})`,
  )
  // Records that stay may exchange names that are unique in a version.
  await tx.run(
    sql`update resources set provider_id = gen_random_uuid() where environment_version_id in ${versions}`,
  )
  await tx.run(sql`update storages set name = gen_random_uuid() where environment_version_id in ${versions}`)
  // A version that goes may have the number of the new one, and goes when its records have left it.
  await tx.run(
    sql`update environment_versions set version = -1 - version
      where environment_id = ${environment.id} and id <> ${version.id}`,
  )
}

/** Puts a definition in the place of all versions of its environment, within the caller's transaction. */
export const replaceVersions = async (tx: Db, definition: EnvironmentDefinition): Promise<void> => {
  await clearVersions(tx, definition)
  await writeVersion(tx, definition)
  const { environment, version } = definition
  await tx.run(
    sql`delete from environment_versions where environment_id = ${environment.id} and id <> ${version.id}`,
  )
}

const resourceRow = `environmentVersionId position ${changingResourceMembers}`
const storageRow = `environmentVersionId position name type endpoint capacityBytes shared readOnly
  credentialReference configuration metadata`

/**
 * Writes a version with everything below it and the environment's connections. Parent ids come
 * from the document itself; nested parent ids are ignored. The environment's own row exists
 * already. The version, resources, storages and connections that are there are renewed under their
 * ids. One statement per table, for any number of records.
 */
export const writeVersion = async (tx: Db, definition: EnvironmentDefinition): Promise<void> => {
  const { environment, version } = definition
  await tx.run(
    sql`insert into environment_versions as kept (id, environment_id, version, status, network_model,
      interference_model, cost_model, configuration_hash, published_at)
        values (${version.id}, ${environment.id}, ${version.version}, ${version.status},
          ${version.networkModel}, ${version.interferenceModel}, ${version.costModel},
          ${version.configurationHash}, ${version.status === 'published' ? sql`now()` : sql`null`})
        on conflict on constraint environment_versions_pkey do update set
          ${fromExcluded('version status networkModel interferenceModel costModel configurationHash')},
          published_at = case excluded.status
            when 'published' then coalesce(kept.published_at, excluded.published_at)
            when 'retired' then kept.published_at end`,
  )
  const insert = (into: Sql, members: string, items: readonly object[], after?: Sql): Promise<void> =>
    insertRows(
      tx,
      into,
      members,
      items.map((item, position) => ({
        ...item,
        position,
        environmentVersionId: version.id,
        environmentId: environment.id,
      })),
      after,
    )
  await insert(
    sql`insert into runtimes`,
    'id environmentVersionId position name driver mode role configuration capabilities',
    definition.runtimes,
  )
  await insertResources(
    tx,
    definition.resources.map((resource, position) => ({
      ...resource,
      environmentVersionId: version.id,
      position,
    })),
    sql`on conflict on constraint resources_pkey do update set ${fromExcluded(resourceRow)}`,
  )
  await insert(
    sql`insert into resource_runtime_bindings`,
    'resourceId runtimeId environmentVersionId position enabled configuration',
    definition.resourceRuntimeBindings,
  )
  await insert(
    sql`insert into resource_relations`,
    'environmentVersionId sourceResourceId targetResourceId relationType position metadata',
    definition.resourceRelations.map((relation) => ({ ...relation, relationType: relation.type })),
  )
  await insert(
    sql`insert into storages`,
    `id ${storageRow}`,
    definition.storages,
    // What the storage answered to another login says nothing.
    sql`on conflict on constraint storages_pkey do update set ${fromExcluded(storageRow)},
      probe = case when (kept.credential_reference, kept.configuration)
        is not distinct from (excluded.credential_reference, excluded.configuration) then kept.probe end`,
  )
  await insert(
    sql`insert into storage_runtime_bindings`,
    `environmentVersionId storageId runtimeId position containerPath isDefault readOnly hostPath configuration`,
    definition.storages.flatMap((storage) =>
      storage.runtimeBindings.map((binding) => ({
        ...binding,
        storageId: storage.id,
        isDefault: binding.default,
      })),
    ),
  )
  await insert(
    sql`insert into activity_resource_profiles`,
    `id environmentVersionId position activityTypeId resourceId runtimeSeconds runtimeStddevSeconds cpuUtilization
      peakMemoryBytes diskReadBytes diskWriteBytes energyJoules source sampleSize modelVersion metadata`,
    definition.activityResourceProfiles.map((profile) => ({
      ...profile,
      runtimeStddevSeconds: profile.runtimeStdDevSeconds,
    })),
  )
  // A connection that stays keeps its creation time and its recorded checks.
  const changing = 'position name type endpoint username credentialRef configuration'
  await insert(
    sql`insert into connections`,
    `id environmentId ${changing}`,
    definition.connections,
    sql`on conflict on constraint connections_pkey do update set ${fromExcluded(changing)}
        where kept.environment_id = excluded.environment_id`,
  )
  // The locks keep the referenced credentials from deletion. A reference to a missing credential is
  // stored unchanged, because the document may come from another installation.
  await holdCredentialsOf(tx, environment.id)
}

/** Inserts resources, each with its version and its position there. */
export const insertResources = (
  tx: Db,
  resources: readonly (Resource & { position: number })[],
  after?: Sql,
): Promise<void> =>
  insertRows(
    tx,
    sql`insert into resources`,
    `id ${resourceRow}`,
    resources.map((resource) => ({ ...resource, parentResourceId: resource.parentResourceId || undefined })),
    after,
  )
