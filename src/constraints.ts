import { createTranslation, type ConstraintTexts } from './db/errors.ts'
import { artifactConstraints } from './domains/artifacts/constraints.ts'
import { cloudConstraints } from './domains/cloud/constraints.ts'
import { environmentConstraints } from './domains/environments/constraints.ts'
import { executionRunConstraints } from './domains/execution-runs/constraints.ts'
import { executionScopeConstraints } from './domains/execution-scopes/constraints.ts'
import { machineConfigurationConstraints } from './domains/machine-configurations/constraints.ts'
import { networkTopologyConstraints } from './domains/network-topologies/constraints.ts'
import { planningSessionConstraints } from './domains/planning-sessions/constraints.ts'
import { schedulePlanConstraints } from './domains/schedule-plans/constraints.ts'
import { storageConstraints } from './domains/storages/constraints.ts'
import { workflowDefinitionConstraints } from './domains/workflow-definitions/constraints.ts'

/** The texts of violated constraints, by the domain that owns the tables. */
export const constraintTexts: Readonly<Record<string, ConstraintTexts>> = {
  'machine-configurations': machineConfigurationConstraints,
  environments: environmentConstraints,
  cloud: cloudConstraints,
  'execution-scopes': executionScopeConstraints,
  'network-topologies': networkTopologyConstraints,
  artifacts: artifactConstraints,
  storages: storageConstraints,
  'workflow-definitions': workflowDefinitionConstraints,
  'schedule-plans': schedulePlanConstraints,
  'planning-sessions': planningSessionConstraints,
  'execution-runs': executionRunConstraints,
}

/** Turns errors of the database into refusals, in the texts of all domains. */
export const refusalOf = createTranslation(
  Object.assign({}, ...Object.values(constraintTexts)) as ConstraintTexts,
)
