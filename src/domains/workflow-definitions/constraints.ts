import type { ConstraintTexts } from '../../db/errors.ts'

/** What a violated constraint of this domain's tables means to the caller. */
export const workflowDefinitionConstraints: ConstraintTexts = {
  workflow_definitions_pkey: { path: 'name', message: 'is taken by another workflow; choose another name (import takes ?name=)' },
  workflow_definitions_external_id: { path: 'name', message: 'is taken by another workflow; choose another name (import takes ?name=)' },
  workflow_versions_pkey: {
    path: 'name',
    message: 'its version id is taken by another workflow; choose another name (import takes ?name=)',
  },
  activity_types_pkey: { path: 'spec.activities', message: 'an activity type id is taken by another workflow' },
  activity_definitions_id: { path: 'spec.activities', message: 'two activities have the same id' },
}
