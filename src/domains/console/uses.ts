import { sql } from '../../db/sql.ts'
import type { EnvironmentUse } from '../environments/users.ts'

export const terminalsOfEnvironment: EnvironmentUse = {
  kind: 'open console session',
  ids: ({ versions }) =>
    sql`select s.id::text from console_sessions s join runtimes r on r.id = s.runtime_id
        where s.status in ('starting', 'connected') and r.environment_version_id in (${versions})`,
}

export const commandsOfEnvironment: EnvironmentUse = {
  kind: 'open console command',
  ids: ({ versions }) =>
    sql`select c.id::text from console_commands c join runtimes r on r.id = c.runtime_id
        where c.status in ('accepted', 'running') and r.environment_version_id in (${versions})`,
}
