import { sql } from '../../db/sql.ts'
import type { EnvironmentUse } from '../environments/users.ts'

export const scopesOfEnvironment: EnvironmentUse = {
  kind: 'execution scope',
  ids: ({ versions }) =>
    sql`select execution_scope_id::text from execution_scope_environments
      where environment_version_id in (${versions})`,
}
