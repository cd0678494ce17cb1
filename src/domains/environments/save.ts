import { z } from 'zod'
import { fromExcluded, insertRows } from '../../db/rows.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { holdCredential } from '../credentials/store.ts'
import { changingResourceMembers } from './document-sql.ts'
import type { EnvironmentDefinition, Resource } from './schemas.ts'

/** Times of creation and publication of a version that is replaced under its id. */
export const VersionTimes = z.object({ createdAt: z.string().optional(), publishedAt: z.string().optional() })
export type VersionTimes = z.output<typeof VersionTimes>

/**
 * Inserts a version with everything below it and the environment's connections. Parent ids come
 * from the document itself; nested parent ids are ignored. The environment's own row exists
 * already. One statement per table, for any number of records.
 */
export const insertVersion = async (
  tx: Db,
  definition: EnvironmentDefinition,
  known: VersionTimes = {},
): Promise<void> => {
  const { environment, version } = definition
  await tx.run(
    sql`insert into environment_versions (id, environment_id, version, status, network_model,
      interference_model, cost_model, configuration_hash, created_at, published_at)
        values (${version.id}, ${environment.id}, ${version.version}, ${version.status},
          ${version.networkModel}, ${version.interferenceModel}, ${version.costModel},
          ${version.configurationHash}, coalesce(${known.createdAt}::timestamptz, now()),
          ${version.status === 'published' ? sql`coalesce(${known.publishedAt}::timestamptz, now())` : sql`null`})`,
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
    `id environmentVersionId position name type endpoint capacityBytes shared readOnly credentialReference
      configuration metadata`,
    definition.storages,
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
  // The lock keeps the referenced credentials from deletion. A reference to a missing credential is
  // stored unchanged, because the document may come from another installation.
  for (const reference of new Set(definition.connections.map(({ credentialRef }) => credentialRef)))
    if (reference !== '') await holdCredential(tx, reference)
  // A connection that stays keeps its creation time and its recorded checks.
  const changing = 'position name type endpoint username credentialRef configuration'
  await insert(
    sql`insert into connections`,
    `id environmentId ${changing}`,
    definition.connections,
    sql`on conflict on constraint connections_pkey do update set ${fromExcluded(changing)}
        where kept.environment_id = excluded.environment_id`,
  )
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
    `id environmentVersionId position ${changingResourceMembers}`,
    resources.map((resource) => ({ ...resource, parentResourceId: resource.parentResourceId || undefined })),
    after,
  )
