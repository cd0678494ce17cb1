import type { ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const executionScopeConstraints: ConstraintTexts = {
  execution_scopes_pkey: { path: 'id', message: 'is taken by another execution scope; choose another id' },
  execution_scope_environments_pkey: {
    path: 'environmentVersionIds',
    message: 'holds a version more than once; list it once',
  },
  execution_scope_environments_version: {
    path: 'environmentVersionIds',
    message:
      'holds an id that names no environment version (register the environment first), or a scope uses the version',
  },
}
