import { textsAt, type ConstraintTexts } from '../../db/errors.ts'

export const workflowDefinitionConstraints: ConstraintTexts = {
  ...textsAt('name', {
    workflow_definitions_pkey: 'is taken by another workflow; choose another name (import takes ?name=)',
    workflow_definitions_external_id:
      'is taken by another workflow; choose another name (import takes ?name=)',
    workflow_versions_pkey:
      'has a version id that is taken by another workflow; choose another name (import takes ?name=)',
  }),
  ...textsAt('spec.activities', {
    activity_types_pkey:
      'hold an activity type whose id is taken by another workflow; choose another activityType',
    activity_definitions_id: 'hold an id twice; give each activity its own name',
  }),
}
