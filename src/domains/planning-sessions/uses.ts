import { sql } from '../../db/sql.ts'
import type { EnvironmentUse } from '../environments/users.ts'
import { scopesOver, type ScopeUse } from '../execution-scopes/store.ts'
import type { PlanUse } from '../schedule-plans/store.ts'
import type { WorkflowUse } from '../workflow-definitions/store.ts'

/** Sessions that may still plan with a resource, and those with a candidate that was planned on it. */
export const sessionsOfResource: EnvironmentUse = {
  kind: 'planning session',
  ids: ({ resources }) =>
    sql`select s.id::text from planning_sessions s where s.execution_scope_id in (${scopesOver(resources)})
      and (s.status in ('queued', 'running') or s.id in (select c.planning_session_id from planning_candidates c
        where c.plan -> 'resourceIds' ?| array(${resources})))`,
}

export const sessionsOfScope: ScopeUse = {
  kind: 'planning session',
  ids: (scopeId) => sql`select id::text from planning_sessions where execution_scope_id = ${scopeId}`,
}

export const sessionsOfWorkflow: WorkflowUse = {
  kind: 'planning session',
  ids: (versionId) => sql`select id::text from planning_sessions where workflow_version_id = ${versionId}`,
}

export const sessionsOfPlan: PlanUse = {
  constraint: 'planning_sessions_selected_plan',
  text: 'a planning session has selected it; select another candidate there first',
}
