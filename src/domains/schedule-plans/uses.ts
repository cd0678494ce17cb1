import { sql } from '../../db/sql.ts'
import type { EnvironmentUse } from '../environments/users.ts'
import type { ScopeUse } from '../execution-scopes/store.ts'
import type { WorkflowUse } from '../workflow-definitions/store.ts'

export const assignmentsOfEnvironment: EnvironmentUse = {
  kind: 'assignment of the plan',
  ids: ({ resources }) =>
    sql`select schedule_plan_id::text from schedule_plan_assignments where resource_id in (${resources})`,
}

export const plansOfScope: ScopeUse = {
  kind: 'plan',
  ids: (scopeId) => sql`select id::text from schedule_plans where execution_scope_id = ${scopeId}`,
}

export const plansOfWorkflow: WorkflowUse = {
  kind: 'plan',
  ids: (versionId) =>
    sql`select id::text from schedule_plans
        where workflow_version_id = ${versionId} or content_version_id = ${versionId}`,
}
