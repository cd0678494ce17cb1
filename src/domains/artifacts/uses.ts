import { sql } from '../../db/sql.ts'
import type { EnvironmentUse } from '../environments/users.ts'

export const locationsOfEnvironment: EnvironmentUse = {
  kind: 'artifact location',
  ids: ({ versions }) =>
    sql`select id::text from artifact_locations where endpoint_id in (select id from storages
      where environment_version_id in (${versions})) and available`,
}
