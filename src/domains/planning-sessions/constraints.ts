import type { ConstraintTexts } from '../../db/errors.ts'

/** What a violated constraint of this domain's tables means to the caller. */
export const planningSessionConstraints: ConstraintTexts = {
  planning_sessions_selected_plan: {
    path: '',
    message: 'the plan is the selected plan of a planning session; select another candidate there first',
  },
  planning_sessions_pkey: { path: 'id', message: 'is taken by another planning session; choose another id' },
  planning_sessions_scope: { path: 'executionScopeId', message: 'the execution scope does not exist, or a planning session uses it' },
  planning_sessions_workflow: { path: 'workflowVersionId', message: 'the workflow version does not exist, or a planning session uses it' },
}
