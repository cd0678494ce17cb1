import { sql } from '../../db/sql.ts'
import type { EnvironmentUse } from '../environments/users.ts'
import type { PlanUse } from '../schedule-plans/store.ts'

export const runsOfEnvironment: EnvironmentUse = {
  kind: 'execution run',
  ids: ({ versions }) =>
    sql`select run.id::text from execution_runs run join schedule_plans plan on plan.id = run.schedule_plan_id
        where plan.execution_scope_id in
          (select execution_scope_id from execution_scope_environments where environment_version_id in (${versions}))`,
}

export const runsOfPlan: PlanUse = { constraint: 'execution_runs_plan', text: 'a run executes it' }
