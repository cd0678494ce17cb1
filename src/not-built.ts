import type { Method } from './http/route.ts'
import { Refusal } from './refusal.ts'

/**
 * What the API names and this version does not have. A request for it is refused with `notBuilt` before anything is stored. Drivers of
 * runtimes are not listed: the drivers that exist are those of `drivers/runtime/registry.ts`. This file shrinks to nothing.
 */

const pairs: Record<string, string> = {
  '/instances/': 'GET',
  '/instances/default/export/': 'GET',
  '/instances/import/': 'POST',
  '/instance-activations/{instanceId}/': 'POST',
  '/factory-reset/': 'POST',
  '/environments/{environmentId}/cloud-capacity-targets/': 'GET POST',
  '/cloud-capacity-targets/{targetId}/': 'DELETE',
  '/environments/{environmentId}/cloud-instances/': 'GET POST',
  '/environments/{environmentId}/cloud-provisioning/': 'POST',
  '/cloud-instances/{instanceId}/provisioning-log/': 'GET',
  '/cloud-instances/{instanceId}/{action}/': 'POST',
  '/cloud-operations/': 'GET',
  '/cloud-operations/{operationId}/': 'GET',
  '/cloud-operations/{operationId}/events/': 'GET',
  '/machine-configurations/': 'GET POST',
  '/machine-configurations/{configurationId}/': 'GET',
  '/machine-configurations/{configurationId}/versions/': 'POST',
  '/machine-configuration-validations/': 'POST',
  '/environments/{environmentId}/cloud-catalog/': 'GET',
  '/environments/{environmentId}/cloud-catalog/refresh/': 'POST',
  '/environments/{environmentId}/storages/': 'GET',
  '/storages/{storageId}/roots/': 'GET',
  '/storages/{storageId}/entries/': 'GET DELETE',
  '/storages/{storageId}/entry/': 'GET',
  '/storages/{storageId}/stat/': 'GET',
  '/storages/{storageId}/downloads/': 'POST',
  '/storages/{storageId}/checksum/': 'POST',
  '/storages/{storageId}/copies/': 'POST',
  '/storages/{storageId}/archives/': 'POST',
  '/storages/{storageId}/promote-data/': 'POST',
  '/storages/{storageId}/promote-artifact/': 'POST',
  '/storages/{storageId}/index-runs/': 'GET POST',
  '/storage-downloads/{downloadId}/': 'GET',
  '/storage-downloads/{downloadId}/content/': 'GET',
  '/artifacts/': 'GET',
  '/artifacts/docker/': 'POST',
  '/artifact-locations/': 'GET',
  '/artifact-materializations/': 'GET POST',
  '/build-contexts/': 'POST',
  '/artifact-builds/': 'POST',
  '/artifact-builds/{buildId}/': 'GET',
  '/artifacts/{artifactId}/builds/': 'GET',
  '/artifact-builds/{buildId}/runs/': 'GET POST',
  '/build-runs/{runId}/': 'GET',
  '/build-runs/{runId}/output/': 'GET',
  '/console-commands/': 'GET POST',
  '/console-sessions/': 'GET POST',
  '/console-sessions/{sessionId}/': 'DELETE',
  '/console-sessions/{sessionId}/log/': 'GET',
  '/console-sessions/{sessionId}/stream/': 'GET',
}

/** Pairs of method and path of the API specification. */
export const unbuiltPairs: { method: Method; path: string }[] = Object.entries(pairs).flatMap(([path, methods]) =>
  methods.split(' ').map((method) => ({ method: method as Method, path })),
)

/** Planning algorithms (domain-reference 11). */
export const unbuiltAlgorithms: ReadonlySet<string> = new Set(['prism-cost', 'prism-time'])

/** Types of connections that can be used; every other text is stored and not used yet (API specification: not validated). */
const usedTypes: ReadonlySet<string> = new Set(['ssh', 'kubernetes', 'cloud', 'local'])

/** The refusal to use a connection of a type that this version does not have; undefined for the types it has. */
export const unbuiltConnectionType = (type: string): Refusal | undefined =>
  usedTypes.has(type)
    ? undefined
    : notBuilt(`connections of type ${JSON.stringify(type.slice(0, 60))}`, `use one of ${[...usedTypes].join(', ')}`)

/** 503 `not_built` without `Retry-After`, because waiting does not help. `remedy` says what to use instead. */
export const notBuilt = (what: string, remedy?: string): Refusal =>
  new Refusal('not_built', `${what}: part of the API, not built in this version${remedy === undefined ? '' : `; ${remedy}`}`)
