import type { ConstraintTexts } from '../../db/errors.ts'

/** What a violated constraint of this domain's tables means to the caller. */
export const executionScopeConstraints: ConstraintTexts = {
  execution_scopes_pkey: { path: 'id', message: 'is taken by another execution scope; choose another id' },
  execution_scope_environments_pkey: { path: 'environmentVersionIds', message: 'names an environment version twice' },
  execution_scope_environments_version: {
    path: 'environmentVersionIds',
    message: 'the environment version does not exist, or an execution scope uses it',
  },
}
