import type { ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const workflowDefinitionConstraints: ConstraintTexts = {
  workflow_definitions_pkey: {
    path: 'name',
    message: 'is taken by another workflow; choose another name (import takes ?name=)',
  },
  workflow_definitions_external_id: {
    path: 'name',
    message: 'is taken by another workflow; choose another name (import takes ?name=)',
  },
  workflow_versions_pkey: {
    path: 'name',
    message: 'has a version id that is taken by another workflow; choose another name (import takes ?name=)',
  },
  activity_types_pkey: {
    path: 'spec.activities',
    message: 'hold an activity type whose id is taken by another workflow; choose another activityType',
  },
  activity_definitions_id: {
    path: 'spec.activities',
    message: 'hold an id twice; give each activity its own name',
  },
}
