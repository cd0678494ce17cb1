import { sql } from '../../db/sql.ts'
import type { EnvironmentUse } from '../environments/users.ts'

export const jobsOfEnvironment: EnvironmentUse = {
  kind: 'open storage download',
  ids: ({ versions }) =>
    sql`select d.id::text from storage_downloads d join storages s on s.id in (d.storage_id, d.destination_storage_id)
        where d.status in ('queued', 'streaming') and s.environment_version_id in (${versions})`,
}

export const indexRunsOfEnvironment: EnvironmentUse = {
  kind: 'open storage index run',
  ids: ({ versions }) =>
    sql`select r.id::text from storage_index_runs r join storages s on s.id = r.storage_id
        where r.status in ('queued', 'running') and s.environment_version_id in (${versions})`,
}
