import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'

const User = z.object({ kind: z.string(), id: z.string(), more: z.number() })

/**
 * Who stands in the way of replacing or deleting an environment, one text per kind of user: `execution scope "s"`, `network link "l"
 * (and 3 more)`. Records of the environment itself do not count; records of other environments that point at it do, because they
 * would silently go or dangle.
 */
export const usersOf = async (db: Db, environmentId: string): Promise<string[]> => {
  const users = await db.many(
    User,
    sql`with versions as (select id from environment_versions where environment_id = ${environmentId}),
        own as (select id from resources where environment_version_id in (select id from versions)),
        users (place, kind, id) as (
          select 1, 'execution scope', execution_scope_id::text from execution_scope_environments where environment_version_id in (select id from versions)
          union select 2, 'network link', id::text from network_links where source_resource_id in (select id from own) or target_resource_id in (select id from own)
          union select 3, 'assignment of the plan', schedule_plan_id::text from schedule_plan_assignments where resource_id in (select id from own)
          union select 4, 'execution run', run.id::text from execution_runs run join schedule_plans plan on plan.id = run.schedule_plan_id
            where plan.execution_scope_id in (select execution_scope_id from execution_scope_environments where environment_version_id in (select id from versions))
          union select 5, 'resource', id::text from resources where parent_resource_id in (select id from own) and environment_version_id not in (select id from versions)
          union select 6, 'resource-runtime binding of the version', environment_version_id::text from resource_runtime_bindings
            where (resource_id in (select id from own) or runtime_id in (select id from runtimes where environment_version_id in (select id from versions)))
              and environment_version_id not in (select id from versions)
          union select 7, 'resource relation of the version', environment_version_id::text from resource_relations
            where (source_resource_id in (select id from own) or target_resource_id in (select id from own)) and environment_version_id not in (select id from versions)
          union select 8, 'activity resource profile', id::text from activity_resource_profiles
            where resource_id in (select id from own) and environment_version_id not in (select id from versions)
        )
        select kind, min(id collate "C") as id, count(*) - 1 as more from users group by place, kind order by place`,
  )
  return users.map(({ kind, id, more }) => `${kind} ${JSON.stringify(id)}${more === 0 ? '' : ` (and ${String(more)} more)`}`)
}
