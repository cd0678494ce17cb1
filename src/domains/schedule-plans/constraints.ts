import { textsAt, type ConstraintTexts } from '../../db/errors.ts'

export const schedulePlanConstraints: ConstraintTexts = {
  ...textsAt('plan.id', {
    schedule_plans_pkey: 'is taken by another plan; choose another id',
  }),
  ...textsAt('workflowVersionId', {
    schedule_plans_content: 'names no workflow version (register it first), or a plan uses the version',
  }),
  ...textsAt('executionScopeId', {
    schedule_plans_scope: 'names no execution scope (create it first), or a plan uses the scope',
  }),
  ...textsAt('assignments', {
    schedule_plan_assignments_resource:
      'hold a resourceId that names no resource (register it first), or an assignment uses the resource',
  }),
}
