import { sql, type Db, type Sql } from '../../db/sql.ts'
import { findUsers, userText, type Use } from '../../db/uses.ts'
import type { EnvironmentDefinition } from './schemas.ts'

/** An environment from the view of its users: selections of ids. */
interface Inventory {
  versions: Sql
  resources: Sql
}

/** `onlyDeletion`: it does not prevent that the environment is replaced. */
export type EnvironmentUse = Use<Inventory> & { onlyDeletion?: true }

/** Resources that a replacing document leaves as they are, with their bindings: their ids. */
export type KeptResources = (tx: Db, environmentId: string) => Promise<string[]>

/** Called before the connections of an environment are replaced with those of a document. */
export type ConnectionsReplaced = (
  tx: Db,
  environmentId: string,
  replacing: EnvironmentDefinition['connections'],
) => Promise<void>

/** What other domains know of an environment that is replaced or deleted. */
export interface EnvironmentUsers {
  environment: readonly EnvironmentUse[]
  keptResources: KeptResources
  connectionsReplaced: ConnectionsReplaced
}

/**
 * Records of other environments that refer to this one. Its deletion would delete them or leave
 * them dangling.
 */
const neighbours: EnvironmentUse[] = [
  {
    kind: 'resource',
    ids: ({ versions, resources }) =>
      sql`select id::text from resources where parent_resource_id in (${resources})
        and environment_version_id not in (${versions})`,
  },
  {
    kind: 'resource-runtime binding of the version',
    ids: ({ versions, resources }) => sql`select environment_version_id::text from resource_runtime_bindings
      where (resource_id in (${resources}) or runtime_id in (select id from runtimes
        where environment_version_id in (${versions})))
        and environment_version_id not in (${versions})`,
  },
  {
    kind: 'resource relation of the version',
    ids: ({ versions, resources }) => sql`select environment_version_id::text from resource_relations
      where (source_resource_id in (${resources}) or target_resource_id in (${resources}))
        and environment_version_id not in (${versions})`,
  },
  {
    kind: 'activity resource profile',
    ids: ({ versions, resources }) =>
      sql`select id::text from activity_resource_profiles where resource_id in (${resources})
        and environment_version_id not in (${versions})`,
  },
]

/**
 * Users that prevent replacing or deleting an environment, one text per kind: `execution scope
 * "s"`, `network link "l" (and 3 more)`. Records of the environment itself do not count.
 */
export const usersOf = async (
  db: Db,
  environmentId: string,
  uses: readonly EnvironmentUse[],
): Promise<string[]> => {
  const users = await findUsers(
    db,
    [...uses, ...neighbours],
    { versions: sql`select id from versions`, resources: sql`select id from own` },
    sql`with versions as (select id from environment_versions where environment_id = ${environmentId}),
      own as (select id from resources where environment_version_id in (select id from versions))`,
  )
  return users.map(userText)
}
