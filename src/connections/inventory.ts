import { randomUUID } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { sql, type Db } from '../db/sql.ts'
import type { Discovered, FoundResource, FoundRuntime } from './discovery/found.ts'
import {
  addRuntime,
  addStorage,
  bindFound,
  bindStorage,
  relateFound,
  renewResource,
  renewStorage,
  type Filled,
  type FilledFields,
} from '../domains/environments/found-rows.ts'
import { insertResources } from '../domains/environments/save.ts'
import { Resource, Runtime } from '../domains/environments/schemas.ts'
import { lockInventory, resourcesOfVersions, runtimesOfVersions } from '../domains/environments/store.ts'
import { recordSnapshots } from '../domains/resources/store.ts'
import type { ConnectionDocument } from '../domains/environment-connections/schemas.ts'
import { deterministicId } from '../domains/environment-connections/store.ts'

/**
 * The values that discovery wrote into a row, kept beside it in `metadata.discovered`. A person has
 * since set a field that differs from it, and the field stays; a field that is missing in it
 * existed before the discovery.
 */
const Mark = z.object({
  connectionId: z.string(),
  key: z.string(),
  fields: z.record(z.string(), z.unknown()).catch({}),
  metadata: z.record(z.string(), z.unknown()).catch({}),
})
type Mark = z.output<typeof Mark>

const markOf = (metadata: Readonly<Record<string, unknown>> | undefined): Mark | undefined =>
  Mark.safeParse(metadata?.['discovered']).data

const foundFields = (found: FoundResource): Record<Filled, string | number> => ({
  type: found.type,
  architecture: found.architecture,
  cpuCores: found.cpuCores,
  cpuCapacity: found.cpuCores,
  memoryBytes: found.memoryBytes,
})

/** The changes of a new discovery to an existing row; undefined when there are none. */
const renewed = (
  existing: Pick<Resource, Filled> & { metadata?: Record<string, unknown> | undefined },
  found: FoundResource,
  connectionId: string,
): { fields: FilledFields; metadata: Record<string, unknown> } | undefined => {
  const before = markOf(existing.metadata)
  const mark: Mark = {
    connectionId,
    key: found.key,
    fields: { ...before?.fields },
    metadata: { ...before?.metadata },
  }
  const fields: FilledFields = {}
  for (const [name, value] of Object.entries(foundFields(found)) as [Filled, string | number][]) {
    const current = existing[name]
    const ours = name in mark.fields ? mark.fields[name] === current : current === '' || current === 0
    if (!ours) continue
    mark.fields[name] = value
    if (current !== value) fields[name] = value
  }
  const { discovered: _mark, ...own } = existing.metadata ?? {}
  const metadata: Record<string, unknown> = own
  for (const [key, value] of Object.entries(found.metadata)) {
    const ours =
      key in mark.metadata ? isDeepStrictEqual(metadata[key], mark.metadata[key]) : !(key in metadata)
    if (!ours) continue
    mark.metadata[key] = value
    metadata[key] = value
  }
  const next = { ...metadata, discovered: mark }
  const same = Object.keys(fields).length === 0 && isDeepStrictEqual(next, existing.metadata)
  return same ? undefined : { fields, metadata: next }
}

const StorageRow = z.object({
  id: z.string(),
  name: z.string(),
  endpoint: z.string(),
  capacityBytes: z.number(),
  metadata: z.record(z.string(), z.unknown()).optional(),
})

/**
 * Updates the highest version of the connection's environment to the findings, within the caller's
 * transaction: adds what is missing, renews what discovery itself wrote, keeps what a person set,
 * deletes nothing. The same things found again are the same rows.
 */
export const applyFound = async (
  tx: Db,
  connection: ConnectionDocument,
  found: Discovered,
): Promise<{ snapshotIds: string[]; changes: { added: number; renewed: number } }> => {
  await lockInventory(tx)
  const { id: connectionId } = connection
  const versionId = await tx.only(
    z.string(),
    sql`select id from environment_versions where environment_id = ${connection.environmentId}
      order by version desc limit 1`,
  )
  const changes = { added: 0, renewed: 0 }
  const runtimes = await saveRuntimes(tx, connection, versionId, found.runtimes)
  const existing = await resourcesOfVersions(tx, [versionId])
  const { ids, added } = await saveResources(tx, connectionId, versionId, existing, found.resources, changes)
  changes.added += runtimes.added.size

  const pairs = found.resources.flatMap((resource) =>
    resource.runtimes.map((key) => ({
      resourceId: ids.get(resource.key)!,
      runtimeId: runtimes.ids.get(key)!,
      metadata: resource.metadata,
    })),
  )
  await bindFound(tx, versionId, pairs, { resources: added, runtimes: runtimes.added })
  const contained = found.resources.flatMap((resource) =>
    resource.within.flatMap((key) => {
      const source = ids.get(key)
      return source === undefined ? [] : [{ source, target: ids.get(resource.key)! }]
    }),
  )
  await relateFound(tx, versionId, contained, { metadata: { discovered: { connectionId } }, added })
  await saveStorages(tx, connection, versionId, found, runtimes.ids, changes)
  return { snapshotIds: await saveSnapshots(tx, connectionId, existing, found, ids), changes }
}

const saveRuntimes = async (
  tx: Db,
  { id: connectionId, name, configuration = {} }: ConnectionDocument,
  versionId: string,
  found: readonly FoundRuntime[],
): Promise<{ ids: Map<string, string>; added: Set<string> }> => {
  const existing = await runtimesOfVersions(tx, [versionId])
  const names = new Set(existing.map((runtime) => runtime.name))
  const ids = new Map<string, string>()
  const added = new Set<string>()
  for (const runtime of found) {
    const wanted = runtime.configuration['connectionId']
    const same = existing.find(
      (one) =>
        one.driver === runtime.driver &&
        one.mode === 'execution' &&
        one.configuration?.['connectionId'] === wanted,
    )
    const id =
      same?.id ??
      deterministicId(`${connectionId}.${runtime.driver}`, versionId, connectionId, runtime.driver)
    ids.set(runtime.key, id)
    if (same !== undefined) continue
    added.add(id)
    const given = Object.fromEntries(
      ['workDirectory', 'scriptDirectory', ...(runtime.driver === 'slurm' ? ['partition'] : [])].flatMap(
        (key) =>
          typeof configuration[key] === 'string' && configuration[key] !== ''
            ? [[key, configuration[key]]]
            : [],
      ),
    )
    const plain = `${name} ${runtime.driver}`
    await addRuntime(tx, versionId, {
      id,
      position: existing.length + added.size,
      name: names.has(plain) || plain.length > 255 ? id : plain,
      driver: runtime.driver,
      configuration: { ...given, ...runtime.configuration },
      capabilities: Runtime.shape.capabilities.parse(
        Object.fromEntries(runtime.capabilities.map((one) => [one, true])),
      ),
    })
  }
  return { ids, added }
}

const saveResources = async (
  tx: Db,
  connectionId: string,
  versionId: string,
  existing: readonly Resource[],
  found: readonly FoundResource[],
  changes: { added: number; renewed: number },
): Promise<{ ids: Map<string, string>; added: Set<string> }> => {
  const marked = new Map<string, Resource>()
  const unmarked = new Map<string, Resource>()
  for (const resource of existing) {
    const mark = markOf(resource.metadata)
    if (mark === undefined) unmarked.set(resource.providerId, resource)
    else if (mark.connectionId === connectionId) marked.set(mark.key, resource)
  }
  const taken = new Set(existing.map(({ providerId }) => providerId))
  const ids = new Map<string, string>()
  const added = new Set<string>()
  const inserts: (Resource & { position: number })[] = []
  for (const resource of found) {
    const namesake = unmarked.get(resource.providerId)
    const same =
      marked.get(resource.key) ??
      (namesake !== undefined && (namesake.type === '' || namesake.type === resource.type)
        ? namesake
        : undefined)
    if (same !== undefined) {
      ids.set(resource.key, same.id)
      if (namesake === same) unmarked.delete(resource.providerId)
      const change = renewed(same, resource, connectionId)
      if (change === undefined) continue
      changes.renewed += 1
      await renewResource(tx, same.id, change.metadata, change.fields)
      continue
    }
    const id = deterministicId(`${connectionId}.${resource.key}`, versionId, connectionId, resource.key)
    const providerId = taken.has(resource.providerId)
      ? `${connectionId}:${resource.key}`.slice(0, 255).toWellFormed()
      : resource.providerId
    taken.add(providerId)
    ids.set(resource.key, id)
    added.add(id)
    const mark: Mark = {
      connectionId,
      key: resource.key,
      fields: foundFields(resource),
      metadata: { ...resource.metadata },
    }
    const parent = resource.within[0] === undefined ? undefined : ids.get(resource.within[0])
    inserts.push({
      ...Resource.parse({
        id,
        environmentVersionId: versionId,
        name: resource.providerId.slice(0, 255).toWellFormed() || resource.key,
        providerId,
        executionTarget: resource.executionTarget,
        ...(parent === undefined ? {} : { parentResourceId: parent }),
        ...foundFields(resource),
        computeSpeedup: 1,
        schedulable: resource.schedulable,
        metadata: { ...resource.metadata, discovered: mark },
      }),
      position: existing.length + inserts.length,
    })
  }
  changes.added += inserts.length
  await insertResources(tx, inserts)
  return { ids, added }
}

const saveStorages = async (
  tx: Db,
  { id: connectionId }: ConnectionDocument,
  versionId: string,
  found: Discovered,
  runtimes: ReadonlyMap<string, string>,
  changes: { added: number; renewed: number },
): Promise<void> => {
  const existing = await tx.many(
    StorageRow,
    sql`select id, name, endpoint, capacity_bytes, metadata from storages
      where environment_version_id = ${versionId} order by position, id`,
  )
  const names = new Set(existing.map(({ name }) => name))
  for (const storage of found.storages) {
    const same = existing.find(({ endpoint }) => endpoint === storage.source)
    const id = same?.id ?? deterministicId(`storage.${storage.path}`, versionId, storage.source)
    const mark = {
      connectionId,
      key: storage.source,
      fields: { capacityBytes: storage.capacityBytes },
      metadata: {},
    }
    if (same === undefined) {
      const name =
        [storage.path, `${storage.path} of ${storage.source}`, id].find(
          (one) => !names.has(one) && one.length <= 255,
        ) ?? id
      names.add(name)
      existing.push({ id, name, endpoint: storage.source, capacityBytes: storage.capacityBytes })
      changes.added += 1
      await addStorage(tx, versionId, {
        id,
        position: existing.length,
        name,
        type: storage.type,
        endpoint: storage.source,
        capacityBytes: storage.capacityBytes,
        readOnly: storage.readOnly,
        metadata: { discovered: mark },
      })
    } else if (
      storage.capacityBytes > 0 &&
      markOf(same.metadata)?.fields['capacityBytes'] === same.capacityBytes &&
      same.capacityBytes !== storage.capacityBytes
    ) {
      changes.renewed += 1
      await renewStorage(tx, id, storage.capacityBytes, { ...same.metadata, discovered: mark })
    }
    for (const key of storage.runtimes)
      await bindStorage(tx, versionId, {
        storageId: id,
        runtimeId: runtimes.get(key),
        readOnly: storage.readOnly,
        hostPath: storage.path,
      })
  }
}

const saveSnapshots = async (
  tx: Db,
  connectionId: string,
  existing: readonly Resource[],
  found: Discovered,
  ids: ReadonlyMap<string, string>,
): Promise<string[]> => {
  const about = {
    connectionId,
    discoverySource: found.source,
    ...(found.warnings.length === 0 ? {} : { warnings: found.warnings }),
  }
  const seen = new Set(ids.values())
  const gone = existing.filter(
    ({ id, metadata }) => markOf(metadata)?.connectionId === connectionId && !seen.has(id),
  )
  const snapshots = [
    ...found.resources.map(({ key, observed: { metadata, ...observed } }) => ({
      resourceId: ids.get(key)!,
      ...observed,
      metadata: { ...about, ...metadata },
    })),
    ...gone.map(({ id }) => ({
      resourceId: id,
      available: false,
      cpuUsed: 0,
      memoryUsedBytes: 0,
      queueLength: 0,
      metadata: { ...about, warnings: [...found.warnings, 'the site does not know it any more'] },
    })),
  ].map((snapshot) => ({ id: `snapshot-${randomUUID()}`, ...snapshot }))
  await recordSnapshots(tx, snapshots)
  return snapshots.map(({ id }) => id)
}
