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
import { isRun } from './domains/execution-runs/identity.ts'
import { unusedByRuns } from './domains/execution-runs/machines.ts'
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

/** Routes with the folder of their domain as their tag in the API's document. */
const of = (tag: string, routes: readonly Route[]): Route[] => routes.map((one) => ({ ...one, tag }))

/** Every route of the API, in the specification's order: the table of contents. */
export const routesOf = (parts: Parts & { consoleKeeper: ConsoleKeeper }): Route[] => [
  ...of('instance', systemInstanceRoutes(parts)),
  ...of('instance', archiveRoutes(parts)),
  ...of('instance', resetRoutes({ ...parts, kinds: durableKinds })),
  ...of('search', searchRoutes(parts)),
  ...of('audit-events', auditEventRoutes({ ...parts, proofs: [endProof(durableKinds), recordingProof] })),
  ...of('environments', environmentRoutes({ ...parts, uses })),
  ...of('environment-connections', environmentConnectionRoutes(parts)),
  ...of('credentials', credentialRoutes(parts)),
  ...of('cloud', cloudRoutes({ ...parts, unused: unusedByRuns })),
  ...of('machine-configurations', machineConfigurationRoutes(parts)),
  ...of('resources', resourceRoutes({ ...parts, uses })),
  ...of('network-topologies', networkTopologyRoutes(parts)),
  ...of('execution-scopes', executionScopeRoutes({ ...parts, uses })),
  ...of('storages', storageRoutes({ ...parts, promoted: promotedData })),
  ...of('storages', storageJobRoutes(parts)),
  ...of('storages', indexRoutes(parts)),
  ...of('workflow-definitions', workflowDefinitionRoutes({ ...parts, uses })),
  ...of('schedule-plans', schedulePlanRoutes({ ...parts, uses })),
  ...of('planning-sessions', planningSessionRoutes(parts)),
  ...of('execution-runs', executionRunRoutes(parts)),
  ...of('events', feedRoutes({ ...parts, topics })),
  ...of('function-calls', functionCallRoutes(parts)),
  ...of('artifacts', artifactRoutes({ ...parts, uses, isRun })),
  ...of('artifacts', buildRunRoutes(parts)),
  ...of('console', consoleRoutes(parts)),
  ...of('provenance', provenanceRoutes(parts)),
  ...of('provenance', exportRoutes(parts)),
]
