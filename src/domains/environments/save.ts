import { z } from 'zod'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { holdCredential } from '../credentials/store.ts'
import type { EnvironmentDefinition } from './schemas.ts'

/** Rows for `json_to_recordset`, in the order of the document. */
const rows = (items: readonly object[]): string =>
  JSON.stringify(items.map((item, position) => ({ ...item, position })))

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
  const insert = async (items: readonly object[], statement: (json: string) => Sql): Promise<void> => {
    if (items.length > 0) await tx.run(statement(rows(items)))
  }
  await insert(
    definition.runtimes,
    (json) => sql`insert into runtimes (id, environment_version_id, position, name, driver, mode, role,
      configuration, capabilities)
      select id, ${version.id}, position, name, driver, mode, role, configuration, capabilities
      from json_to_recordset(${json}::json) as r(id text, position int, name text, driver text, mode text,
        role text, configuration jsonb, capabilities jsonb)`,
  )
  await insert(
    definition.resources.map((resource) => ({ ...resource, environmentVersionId: version.id })),
    insertResources,
  )
  await insert(
    definition.resourceRuntimeBindings,
    (
      json,
    ) => sql`insert into resource_runtime_bindings (resource_id, runtime_id, environment_version_id, position,
      enabled, configuration)
      select "resourceId", "runtimeId", ${version.id}, position, enabled, configuration
      from json_to_recordset(${json}::json) as r("resourceId" text, "runtimeId" text, position int, enabled
        boolean, configuration jsonb)`,
  )
  await insert(
    definition.resourceRelations,
    (
      json,
    ) => sql`insert into resource_relations (environment_version_id, source_resource_id, target_resource_id,
      relation_type, position, metadata)
      select ${version.id}, "sourceResourceId", "targetResourceId", type, position, metadata
      from json_to_recordset(${json}::json) as r("sourceResourceId" text, "targetResourceId" text, type text,
        position int, metadata jsonb)`,
  )
  await insert(
    definition.storages,
    (
      json,
    ) => sql`insert into storages (id, environment_version_id, position, name, type, endpoint, capacity_bytes,
      shared, read_only, credential_reference, configuration, metadata)
      select id, ${version.id}, position, name, type, endpoint, "capacityBytes", shared, "readOnly",
        "credentialReference", configuration, metadata
      from json_to_recordset(${json}::json) as r(id text, position int, name text, type text, endpoint text,
        "capacityBytes" bigint, shared boolean, "readOnly" boolean,
        "credentialReference" text, configuration jsonb, metadata jsonb)`,
  )
  await insert(
    definition.storages.flatMap((storage) =>
      storage.runtimeBindings.map((binding) => ({ ...binding, storageId: storage.id })),
    ),
    (
      json,
    ) => sql`insert into storage_runtime_bindings (environment_version_id, storage_id, runtime_id, position,
      container_path, is_default, read_only, host_path, configuration)
      select ${version.id}, "storageId", "runtimeId", position, "containerPath", "default", "readOnly",
        "hostPath", configuration
      from json_to_recordset(${json}::json) as r("storageId" text, "runtimeId" text, position int,
        "containerPath" text, "default" boolean, "readOnly" boolean, "hostPath" text, configuration jsonb)`,
  )
  await insert(
    definition.activityResourceProfiles,
    (
      json,
    ) => sql`insert into activity_resource_profiles (id, environment_version_id, position, activity_type_id,
      resource_id, runtime_seconds, runtime_stddev_seconds, cpu_utilization,
        peak_memory_bytes, disk_read_bytes, disk_write_bytes, energy_joules, source, sample_size,
          model_version, metadata)
      select id, ${version.id}, position, "activityTypeId", "resourceId", "runtimeSeconds",
        "runtimeStdDevSeconds", "cpuUtilization",
        "peakMemoryBytes", "diskReadBytes", "diskWriteBytes", "energyJoules", source, "sampleSize",
          "modelVersion", metadata
      from json_to_recordset(${json}::json) as r(id text, position int, "activityTypeId" text, "resourceId"
        text, "runtimeSeconds" double precision, "runtimeStdDevSeconds" double precision,
        "cpuUtilization" double precision, "peakMemoryBytes" bigint, "diskReadBytes" bigint, "diskWriteBytes"
          bigint, "energyJoules" double precision, source text, "sampleSize" bigint,
        "modelVersion" text, metadata jsonb)`,
  )
  // The lock keeps the referenced credentials from deletion. A reference to a missing credential is
  // stored unchanged, because the document may come from another installation.
  for (const reference of new Set(definition.connections.map(({ credentialRef }) => credentialRef)))
    if (reference !== '') await holdCredential(tx, reference)
  // A connection that stays keeps its creation time and its recorded checks.
  await insert(
    definition.connections,
    (
      json,
    ) => sql`insert into connections as kept (id, environment_id, position, name, type, endpoint, username,
      credential_ref, configuration)
      select id, ${environment.id}, position, name, type, endpoint, username, "credentialRef", configuration
      from json_to_recordset(${json}::json) as r(id text, position int, name text, type text, endpoint text,
        username text, "credentialRef" text, configuration jsonb)
      on conflict on constraint connections_pkey do update set position = excluded.position, name =
        excluded.name, type = excluded.type, endpoint = excluded.endpoint,
        username = excluded.username, credential_ref = excluded.credential_ref, configuration = excluded.configuration
        where kept.environment_id = excluded.environment_id`,
  )
}

/**
 * Inserts resources given as a JSON array of documents with `environmentVersionId` and `position`.
 */
export const insertResources = (json: string): Sql =>
  sql`insert into resources (id, environment_version_id, position, type, name, provider_id, execution_target,
    parent_resource_id, tier, region, zone, architecture, cpu_cores,
      cpu_capacity, memory_bytes, storage_bytes, compute_speedup, price_per_second, boot_overhead_seconds,
        container_overhead_seconds, schedulable, metadata)
    select id, "environmentVersionId", position, type, name, "providerId", "executionTarget",
      nullif("parentResourceId", ''), tier, region, zone, architecture, "cpuCores",
      "cpuCapacity", "memoryBytes", "storageBytes", "computeSpeedup", "pricePerSecond", "bootOverheadSeconds",
        "containerOverheadSeconds", schedulable, metadata
    from json_to_recordset(${json}::json) as r(id text, "environmentVersionId" text, position int, type text,
      name text, "providerId" text, "executionTarget" text,
      "parentResourceId" text, tier text, region text, zone text, architecture text, "cpuCores" bigint,
        "cpuCapacity" double precision, "memoryBytes" bigint, "storageBytes" bigint,
      "computeSpeedup" double precision, "pricePerSecond" double precision, "bootOverheadSeconds" double
        precision, "containerOverheadSeconds" double precision, schedulable boolean, metadata jsonb)`
