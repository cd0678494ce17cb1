import type { ConstraintTexts } from '../../db/errors.ts'

/** What a violated constraint of this domain's tables means to the caller. */
export const executionRunConstraints: ConstraintTexts = {
  execution_runs_pkey: { path: 'run.id', message: 'is taken by another run; choose another id', code: 'conflict' },
  execution_runs_plan: { path: 'run.schedulePlanId', message: 'the plan does not exist, or a run uses it' },
}
