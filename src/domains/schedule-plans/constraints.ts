import type { ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const schedulePlanConstraints: ConstraintTexts = {
  schedule_plans_pkey: { path: 'plan.id', message: 'is taken by another plan; choose another id' },
  schedule_plans_content: {
    path: 'workflowVersionId',
    message: 'names no workflow version (register it first), or a plan uses the version',
  },
  schedule_plans_scope: {
    path: 'executionScopeId',
    message: 'names no execution scope (create it first), or a plan uses the scope',
  },
  schedule_plan_assignments_resource: {
    path: 'assignments',
    message:
      'hold a resourceId that names no resource (register it first), or an assignment uses the resource',
  },
}
