import { sql } from '../../db/sql.ts'
import type { EnvironmentUse } from '../environments/users.ts'
import type { ScopeUse } from '../execution-scopes/store.ts'

export const linksOfEnvironment: EnvironmentUse = {
  kind: 'network link',
  ids: ({ resources }) =>
    sql`select id::text from network_links where source_resource_id in (${resources})
      or target_resource_id in (${resources})`,
}

export const topologiesOfScope: ScopeUse = {
  kind: 'network topology',
  ids: (scopeId) => sql`select id::text from network_topologies where execution_scope_id = ${scopeId}`,
}
