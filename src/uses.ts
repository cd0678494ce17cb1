import { runsOfEnvironment, runsOfPlan } from './domains/execution-runs/uses.ts'
import { scopesOfEnvironment } from './domains/execution-scopes/uses.ts'
import { linksOfEnvironment, topologiesOfScope } from './domains/network-topologies/uses.ts'
import { sessionsOfPlan, sessionsOfScope, sessionsOfWorkflow } from './domains/planning-sessions/uses.ts'
import { assignmentsOfEnvironment, plansOfScope, plansOfWorkflow } from './domains/schedule-plans/uses.ts'

/** Which records stand in the way of deleting which others, in the order in which a refusal names them. A new domain adds its own here. */
export const uses = {
  environment: [scopesOfEnvironment, linksOfEnvironment, assignmentsOfEnvironment, runsOfEnvironment],
  executionScope: [topologiesOfScope, plansOfScope, sessionsOfScope],
  workflow: [plansOfWorkflow, sessionsOfWorkflow],
  plan: [runsOfPlan, sessionsOfPlan],
} as const
