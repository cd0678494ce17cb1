import type { ConstraintTexts } from '../../db/errors.ts'

export const executionRunConstraints: ConstraintTexts = {
  execution_runs_pkey: {
    path: 'run.id',
    message: 'is taken by another run; choose another id',
    code: 'conflict',
  },
  execution_runs_plan: {
    path: 'run.schedulePlanId',
    message: 'names no plan (create or import it first), or a run uses the plan',
  },
}
