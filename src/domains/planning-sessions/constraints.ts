import type { ConstraintTexts } from '../../db/errors.ts'

export const planningSessionConstraints: ConstraintTexts = {
  planning_sessions_selected_plan: {
    path: '',
    message: 'the plan is selected by a planning session; select another candidate there first',
  },
  planning_sessions_pkey: { path: 'id', message: 'is taken by another planning session; choose another id' },
  planning_sessions_scope: {
    path: 'executionScopeId',
    message: 'names no execution scope (create it first), or a planning session uses the scope',
  },
  planning_sessions_workflow: {
    path: 'workflowVersionId',
    message: 'names no workflow version (register it first), or a planning session uses the version',
  },
}
