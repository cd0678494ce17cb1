import { artifactRoutes } from './domains/artifacts/routes.ts'
import { buildRunRoutes } from './domains/artifacts/run-routes.ts'
import { auditEventRoutes } from './domains/audit-events/routes.ts'
import { cloudRoutes } from './domains/cloud/routes.ts'
import type { ConsoleKeeper } from './domains/console/keeper.ts'
import { consoleRoutes } from './domains/console/routes.ts'
import { recordingProof } from './domains/console/sessions.ts'
import { credentialRoutes } from './domains/credentials/routes.ts'
import { environmentConnectionRoutes } from './domains/environment-connections/routes.ts'
import { environmentRoutes } from './domains/environments/routes.ts'
import { promotedData } from './domains/execution-runs/promoted-data.ts'
import { executionRunRoutes } from './domains/execution-runs/routes.ts'
import { functionCallRoutes } from './domains/function-calls/routes.ts'
import { executionScopeRoutes } from './domains/execution-scopes/routes.ts'
import { archiveRoutes } from './domains/instance/archives/routes.ts'
import { resetRoutes } from './domains/instance/archives/reset.ts'
import { systemInstanceRoutes } from './domains/instance/routes.ts'
import { machineConfigurationRoutes } from './domains/machine-configurations/routes.ts'
import { networkTopologyRoutes } from './domains/network-topologies/routes.ts'
import { planningSessionRoutes } from './domains/planning-sessions/routes.ts'
import { exportRoutes } from './domains/provenance/export-routes.ts'
import { provenanceRoutes } from './domains/provenance/routes.ts'
import { resourceRoutes } from './domains/resources/routes.ts'
import { schedulePlanRoutes } from './domains/schedule-plans/routes.ts'
import { searchRoutes } from './domains/search/routes.ts'
import { indexRoutes } from './domains/storages/index-routes.ts'
import { storageJobRoutes } from './domains/storages/job-routes.ts'
import { storageRoutes } from './domains/storages/routes.ts'
import { workflowDefinitionRoutes } from './domains/workflow-definitions/routes.ts'
import type { Route } from './http/route.ts'
import { durableKinds } from './kinds.ts'
import { endProof } from './operations/end-digest.ts'
import { feedRoutes } from './operations/feed-routes.ts'
import type { Parts } from './parts.ts'
import { uses } from './uses.ts'

const topics = [...durableKinds.map(({ name }) => name), 'connection']

/** Every route of the API, in the specification's order: the table of contents. */
export const routesOf = (parts: Parts & { consoleKeeper: ConsoleKeeper }): Route[] => [
  ...systemInstanceRoutes(parts),
  ...archiveRoutes(parts),
  ...resetRoutes({ ...parts, kinds: durableKinds }),
  ...searchRoutes(parts),
  ...auditEventRoutes({ ...parts, proofs: [endProof(durableKinds), recordingProof] }),
  ...environmentRoutes({ ...parts, uses }),
  ...environmentConnectionRoutes(parts),
  ...credentialRoutes(parts),
  ...cloudRoutes(parts),
  ...machineConfigurationRoutes(parts),
  ...resourceRoutes({ ...parts, uses }),
  ...networkTopologyRoutes(parts),
  ...executionScopeRoutes({ ...parts, uses }),
  ...storageRoutes({
    ...parts,
    promoted: promotedData,
  }),
  ...storageJobRoutes(parts),
  ...indexRoutes(parts),
  ...workflowDefinitionRoutes({ ...parts, uses }),
  ...schedulePlanRoutes({ ...parts, uses }),
  ...planningSessionRoutes(parts),
  ...executionRunRoutes(parts),
  ...feedRoutes({ ...parts, topics }),
  ...functionCallRoutes(parts),
  ...artifactRoutes({ ...parts, uses }),
  ...buildRunRoutes(parts),
  ...consoleRoutes(parts),
  ...provenanceRoutes(parts),
  ...exportRoutes(parts),
]
