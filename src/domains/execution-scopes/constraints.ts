import { textsAt, type ConstraintTexts } from '../../db/errors.ts'

export const executionScopeConstraints: ConstraintTexts = {
  ...textsAt('id', {
    execution_scopes_pkey: 'is taken by another execution scope; choose another id',
  }),
  ...textsAt('environmentVersionIds', {
    execution_scope_environments_pkey: 'holds a version more than once; list it once',
    execution_scope_environments_version:
      'holds an id that names no environment version (register the environment first), or a scope uses the version',
  }),
}
