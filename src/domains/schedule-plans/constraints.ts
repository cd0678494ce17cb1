import type { ConstraintTexts } from '../../db/errors.ts'

/** What a violated constraint of this domain's tables means to the caller. */
export const schedulePlanConstraints: ConstraintTexts = {
  schedule_plans_pkey: { path: 'plan.id', message: 'is taken by another plan; choose another id' },
  schedule_plans_content: { path: 'workflowVersionId', message: 'the workflow version does not exist, or a plan uses it' },
  schedule_plans_scope: { path: 'executionScopeId', message: 'the execution scope does not exist, or a plan uses it' },
  schedule_plan_assignments_resource: { path: 'assignments', message: 'the resource does not exist, or a plan assignment uses it' },
}
