import { join, raw, sql, type Db } from '../../db/sql.ts'
import { storableJson } from '../../outside-text.ts'

// Rows that a discovery adds to a version of an environment or renews there, within the caller's
// transaction.

export interface NewRuntime {
  id: string
  position: number
  name: string
  driver: string
  configuration: object
  capabilities: object
}

export const addRuntime = (tx: Db, versionId: string, runtime: NewRuntime): Promise<number> =>
  tx.run(
    sql`insert into runtimes (id, environment_version_id, position, name, driver, mode, role, configuration,
      capabilities)
        values (${runtime.id}, ${versionId}, ${runtime.position}, ${runtime.name}, ${runtime.driver}, 'execution', '',
          ${JSON.stringify(runtime.configuration)}, ${JSON.stringify(runtime.capabilities)})`,
  )

/** Columns of a resource that a discovery fills, by their names in the document. */
const filled = {
  type: 'type',
  architecture: 'architecture',
  cpuCores: 'cpu_cores',
  cpuCapacity: 'cpu_capacity',
  memoryBytes: 'memory_bytes',
} as const
export type Filled = keyof typeof filled
export type FilledFields = Partial<Record<Filled, string | number>>

export const renewResource = (
  tx: Db,
  id: string,
  metadata: object,
  fields: FilledFields,
): Promise<number> => {
  const changes = Object.entries(fields).map(
    ([name, value]) => sql`, ${raw(filled[name as Filled])} = ${value}`,
  )
  return tx.run(
    sql`update resources set metadata = ${JSON.stringify(metadata)} ${join(changes, '')} where id = ${id}`,
  )
}

/** The part of a discovery that is new to the version. */
interface Added {
  resources: ReadonlySet<string>
  runtimes: ReadonlySet<string>
}

/**
 * Binds resources to runtimes. Where both existed before and a person removed their binding, it is
 * not created again.
 */
export const bindFound = (
  tx: Db,
  versionId: string,
  pairs: readonly { resourceId: string; runtimeId: string }[],
  added: Added,
): Promise<number> =>
  tx.run(
    sql`insert into resource_runtime_bindings (resource_id, runtime_id, environment_version_id, position, enabled)
        select p."resourceId", p."runtimeId", ${versionId}, ${pairs.length}, true
        from json_to_recordset(${storableJson(pairs)}::json) as p("resourceId" text, "runtimeId" text)
        where p."resourceId" = any(${[...added.resources]}) or p."runtimeId" = any(${[...added.runtimes]})
          or not exists (select from resource_runtime_bindings b where b.resource_id = p."resourceId")
        on conflict do nothing`,
  )

/** Records which resources contain the new ones. */
export const relateFound = (
  tx: Db,
  versionId: string,
  contained: readonly { source: string; target: string }[],
  { metadata, added }: { metadata: object; added: ReadonlySet<string> },
): Promise<number> =>
  tx.run(
    sql`insert into resource_relations (environment_version_id, source_resource_id, target_resource_id,
      relation_type, position, metadata)
        select ${versionId}, r.source, r.target, 'contains', 0, ${storableJson(metadata)}::jsonb
        from json_to_recordset(${storableJson(contained)}::json) as r(source text, target text)
        where r.source = any(${[...added]}) or r.target = any(${[...added]})
        on conflict do nothing`,
  )

export interface NewStorage {
  id: string
  position: number
  name: string
  type: string
  endpoint: string
  capacityBytes: number
  readOnly: boolean
  metadata: object
}

export const addStorage = (tx: Db, versionId: string, storage: NewStorage): Promise<number> =>
  tx.run(
    sql`insert into storages (id, environment_version_id, position, name, type, endpoint, capacity_bytes,
      shared, read_only, metadata)
        values (${storage.id}, ${versionId}, ${storage.position}, ${storage.name}, ${storage.type}, ${storage.endpoint},
          ${storage.capacityBytes}, true, ${storage.readOnly}, ${JSON.stringify(storage.metadata)})`,
  )

export const renewStorage = (tx: Db, id: string, capacityBytes: number, metadata: object): Promise<number> =>
  tx.run(
    sql`update storages set capacity_bytes = ${capacityBytes}, metadata = ${JSON.stringify(metadata)} where id = ${id}`,
  )

export const bindStorage = (
  tx: Db,
  versionId: string,
  binding: { storageId: string; runtimeId: string | undefined; readOnly: boolean; hostPath: string },
): Promise<number> =>
  tx.run(
    sql`insert into storage_runtime_bindings (environment_version_id, storage_id, runtime_id, position,
      read_only, host_path)
        values (${versionId}, ${binding.storageId}, ${binding.runtimeId}, 0, ${binding.readOnly}, ${binding.hostPath})
        on conflict do nothing`,
  )
