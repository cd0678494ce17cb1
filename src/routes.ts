import type { Dispatched } from './dispatcher.ts'
import { auditEventRoutes } from './domains/audit-events/routes.ts'
import { credentialRoutes } from './domains/credentials/routes.ts'
import { environmentConnectionRoutes } from './domains/environment-connections/routes.ts'
import {
  discoveryTelling,
  isDiscoveryOpen,
  isMonitored,
  markDiscoveryDispatched,
  monitoredConnections,
  monitorTelling,
  openDiscoveries,
  undispatchedDiscoveries,
  unmonitored,
} from './domains/environment-connections/store.ts'
import { markMonitored } from './domains/environments/connections.ts'
import { environmentRoutes } from './domains/environments/routes.ts'
import { runEventsProof } from './domains/execution-runs/audit.ts'
import { executionRunRoutes } from './domains/execution-runs/routes.ts'
import { functionCallRoutes } from './domains/function-calls/routes.ts'
import { appendRunEvent, isRunOpen, markRunDispatched, openRuns, readRunEnd, undispatchedRuns } from './domains/execution-runs/store.ts'
import { runTelling } from './domains/execution-runs/telling.ts'
import { executionScopeRoutes } from './domains/execution-scopes/routes.ts'
import { instanceRoutes } from './domains/instance/routes.ts'
import { networkTopologyRoutes } from './domains/network-topologies/routes.ts'
import { planningSessionRoutes } from './domains/planning-sessions/routes.ts'
import {
  isSessionOpen,
  markSessionDispatched,
  openSessions,
  sessionTelling,
  undispatchedSessions,
} from './domains/planning-sessions/store.ts'
import { exportRoutes } from './domains/provenance/export-routes.ts'
import { provenanceRoutes } from './domains/provenance/routes.ts'
import { resourceRoutes } from './domains/resources/routes.ts'
import { schedulePlanRoutes } from './domains/schedule-plans/routes.ts'
import { searchRoutes } from './domains/search/routes.ts'
import { workflowDefinitionRoutes } from './domains/workflow-definitions/routes.ts'
import type { Route } from './http/route.ts'
import type { Parts } from './parts.ts'
import { uses } from './uses.ts'

/** Every route of the API, in the specification's order: the table of contents. */
export const routesOf = (parts: Parts): Route[] => [
  ...instanceRoutes(parts),
  ...searchRoutes(parts),
  ...auditEventRoutes({ ...parts, proofs: [runEventsProof] }),
  ...environmentRoutes({ ...parts, uses }),
  ...environmentConnectionRoutes(parts),
  ...credentialRoutes(parts),
  ...resourceRoutes(parts),
  ...networkTopologyRoutes(parts),
  ...executionScopeRoutes({ ...parts, uses }),
  ...workflowDefinitionRoutes({ ...parts, uses }),
  ...schedulePlanRoutes({ ...parts, uses }),
  ...planningSessionRoutes(parts),
  ...executionRunRoutes(parts),
  ...functionCallRoutes(parts),
  ...provenanceRoutes(parts),
  ...exportRoutes(parts),
]

/** Of records that somebody waits for; monitors are many, and nobody does. */
const lookEverySeconds = 30

/** Records whose workflows the dispatcher looks after. */
export const dispatchedKinds: Dispatched[] = [
  {
    kind: 'planningSession',
    undispatched: undispatchedSessions,
    markDispatched: markSessionDispatched,
    open: openSessions,
    isOpen: isSessionOpen,
    telling: sessionTelling,
    lookEverySeconds,
    audit: (sessionId) => ({ eventType: 'planning-session.workflow-restarted', sessionId }),
  },
  {
    kind: 'executionRun',
    undispatched: undispatchedRuns,
    markDispatched: markRunDispatched,
    open: openRuns,
    isOpen: isRunOpen,
    telling: runTelling,
    lookEverySeconds,
    audit: (executionId) => ({ eventType: 'execution.run.workflow-restarted', executionId }),
    // The first event of a run is its start.
    note: async (tx, runId, facts) => {
      if ((await readRunEnd(tx, runId)).status === 'running') await appendRunEvent(tx, runId, 'execution.run.workflow-restarted', facts)
    },
  },
  // Last: many of them, and none that anybody waits for.
  {
    kind: 'connectionMonitor',
    undispatched: unmonitored,
    markDispatched: markMonitored,
    open: monitoredConnections,
    isOpen: isMonitored,
    telling: monitorTelling,
    lookEverySeconds: 60,
    audit: (connectionId) => ({ eventType: 'connection.monitor.restarted', connectionId }),
  },
  {
    kind: 'connectionDiscovery',
    undispatched: undispatchedDiscoveries,
    markDispatched: markDiscoveryDispatched,
    open: openDiscoveries,
    isOpen: isDiscoveryOpen,
    telling: discoveryTelling,
    lookEverySeconds,
    audit: (connectionId) => ({ eventType: 'resource.discovery.workflow-restarted', connectionId }),
  },
]
