import type { Dispatched } from './dispatcher.ts'
import { auditEventRoutes } from './domains/audit-events/routes.ts'
import { credentialRoutes } from './domains/credentials/routes.ts'
import { environmentConnectionRoutes } from './domains/environment-connections/routes.ts'
import {
  markDiscoveryDispatched,
  markMonitored,
  monitoredConnections,
  openDiscoveries,
  undispatchedDiscoveries,
  unmonitored,
} from './domains/environment-connections/store.ts'
import { environmentRoutes } from './domains/environments/routes.ts'
import { executionRunRoutes } from './domains/execution-runs/routes.ts'
import { functionCallRoutes } from './domains/function-calls/routes.ts'
import { markRunDispatched, openRuns, undispatchedRuns } from './domains/execution-runs/store.ts'
import { executionScopeRoutes } from './domains/execution-scopes/routes.ts'
import { instanceRoutes } from './domains/instance/routes.ts'
import { networkTopologyRoutes } from './domains/network-topologies/routes.ts'
import { planningSessionRoutes } from './domains/planning-sessions/routes.ts'
import { markSessionDispatched, openSessions, undispatchedSessions } from './domains/planning-sessions/store.ts'
import { resourceRoutes } from './domains/resources/routes.ts'
import { schedulePlanRoutes } from './domains/schedule-plans/routes.ts'
import { workflowDefinitionRoutes } from './domains/workflow-definitions/routes.ts'
import type { Method, Route } from './http/route.ts'
import type { Parts } from './parts.ts'

/** Every route of the API, in the specification's order: the table of contents. */
export const routesOf = (parts: Parts): Route[] => [
  ...instanceRoutes(parts),
  ...auditEventRoutes(parts),
  ...environmentRoutes(parts),
  ...environmentConnectionRoutes(parts),
  ...credentialRoutes(parts),
  ...resourceRoutes(parts),
  ...networkTopologyRoutes(parts),
  ...executionScopeRoutes(parts),
  ...workflowDefinitionRoutes(parts),
  ...schedulePlanRoutes(parts),
  ...planningSessionRoutes(parts),
  ...executionRunRoutes(parts),
  ...functionCallRoutes(parts),
]

/** Records whose workflows the dispatcher looks after. */
export const dispatchedKinds: Dispatched[] = [
  { kind: 'planningSession', undispatched: undispatchedSessions, markDispatched: markSessionDispatched, open: openSessions },
  { kind: 'executionRun', undispatched: undispatchedRuns, markDispatched: markRunDispatched, open: openRuns },
  // Last: many of them, and none that anybody waits for.
  { kind: 'connectionMonitor', undispatched: unmonitored, markDispatched: markMonitored, open: monitoredConnections },
  { kind: 'connectionDiscovery', undispatched: undispatchedDiscoveries, markDispatched: markDiscoveryDispatched, open: openDiscoveries },
]

/** Pairs of the specification that are not built yet: 503 `unavailable` before anything is stored. This table shrinks to nothing. */
const notBuilt: Record<string, string> = {
  '/search/': 'GET',
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
  '/provenance/entities/': 'GET',
  '/provenance/entities/{entity}/': 'GET',
  '/provenance/sql/schema/': 'GET',
  '/provenance/sql/': 'POST',
  '/provenance/sql/explain/': 'POST',
  '/provenance/lineage/{entity}/{id}/': 'GET',
  '/console-commands/': 'GET POST',
  '/console-sessions/': 'GET POST',
  '/console-sessions/{sessionId}/': 'DELETE',
  '/console-sessions/{sessionId}/log/': 'GET',
  '/console-sessions/{sessionId}/stream/': 'GET',
}

export const unbuilt: { method: Method; path: string }[] = Object.entries(notBuilt).flatMap(([path, methods]) =>
  methods.split(' ').map((method) => ({ method: method as Method, path })),
)
