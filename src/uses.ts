import { locationsOfEnvironment } from './domains/artifacts/uses.ts'
import { instancesOfEnvironment, resourcesOfTargets, targetsOfEnvironment } from './domains/cloud/uses.ts'
import { commandsOfEnvironment, terminalsOfEnvironment } from './domains/console/uses.ts'
import { dropChangedTrust } from './domains/environment-connections/store.ts'
import {
  dataOfEnvironment,
  runsOfArtifact,
  runsOfEnvironment,
  runsOfPlan,
  runsOfWorkflow,
} from './domains/execution-runs/uses.ts'
import { scopesOfEnvironment } from './domains/execution-scopes/uses.ts'
import { linksOfEnvironment, topologiesOfScope } from './domains/network-topologies/uses.ts'
import {
  sessionsOfPlan,
  sessionsOfResource,
  sessionsOfScope,
  sessionsOfWorkflow,
} from './domains/planning-sessions/uses.ts'
import { assignmentsOfEnvironment, plansOfScope, plansOfWorkflow } from './domains/schedule-plans/uses.ts'
import { indexRunsOfEnvironment, jobsOfEnvironment } from './domains/storages/uses.ts'

/**
 * The records that prevent the deletion of others, in the order in which a refusal names them. A
 * new domain adds its own here.
 */
export const uses = {
  environment: [
    scopesOfEnvironment,
    linksOfEnvironment,
    assignmentsOfEnvironment,
    runsOfEnvironment,
    locationsOfEnvironment,
    dataOfEnvironment,
    jobsOfEnvironment,
    indexRunsOfEnvironment,
    instancesOfEnvironment,
    targetsOfEnvironment,
    terminalsOfEnvironment,
    commandsOfEnvironment,
  ],
  /** What a replacing document leaves as it is. */
  keptResources: resourcesOfTargets,
  connectionsReplaced: dropChangedTrust,
  /** What prevents a change of a single resource: the plan or the candidate was made for it as it is. */
  resource: [assignmentsOfEnvironment, sessionsOfResource],
  executionScope: [topologiesOfScope, plansOfScope, sessionsOfScope],
  workflow: [plansOfWorkflow, sessionsOfWorkflow, runsOfWorkflow],
  plan: [runsOfPlan, sessionsOfPlan],
  artifact: [runsOfArtifact],
} as const
