import { sql } from '../../db/sql.ts'
import type { ScopeUse } from '../execution-scopes/store.ts'
import type { PlanUse } from '../schedule-plans/store.ts'
import type { WorkflowUse } from '../workflow-definitions/store.ts'

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
