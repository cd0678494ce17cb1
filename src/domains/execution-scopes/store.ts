import { z } from 'zod'
import { readPage } from '../../db/rows.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import { findUsers, userText, type Use } from '../../db/uses.ts'
import type { Page } from '../../http/paging.ts'
import { missing, unacceptable, type Problem } from '../../refusal.ts'
import { ExecutionScopeDocument } from './schemas.ts'

const columns = sql`s.id, s.name, s.network_topology_id, s.metadata,
  (select json_agg(environment_version_id order by position) from execution_scope_environments
    where execution_scope_id = s.id) as environment_version_ids`

/** Scopes by name; `total` is counted to one above `countBound`. */
export const listScopes = (db: Db, page: Page) =>
  readPage(db, ExecutionScopeDocument, {
    select: columns,
    from: sql`execution_scopes s`,
    order: sql`s.name collate "C", s.id`,
    page,
  })

export const readExecutionScope = (db: Db, id: string): Promise<ExecutionScopeDocument | undefined> =>
  db.maybe(ExecutionScopeDocument, sql`select ${columns} from execution_scopes s where s.id = ${id}`)

/**
 * The names in a scope, also in one that its schema refuses; blank where a member is not readable.
 */
const Named = z.object({
  id: z.string().catch(''),
  environmentVersionIds: z.array(z.string().catch('')).catch([]),
})

const ChecksRow = z.object({ taken: z.boolean(), versions: z.array(z.string()) })

/**
 * Problems of a new scope that only the store can find: a taken id, versions that do not exist.
 * Takes any value.
 */
export const scopeStoreProblems = async (db: Db, scope: unknown): Promise<Problem[]> => {
  const named = Named.safeParse(scope)
  if (!named.success) return []
  const { id: scopeId, environmentVersionIds: ids } = named.data
  const { taken, versions } = await db.one(
    ChecksRow,
    sql`select exists (select from execution_scopes where id = ${scopeId}) as taken,
          array(select id::text from environment_versions where id = any(${ids})) as versions`,
  )
  const known = new Set(versions)
  return [
    ...(taken
      ? [
          {
            path: 'id',
            message: `${JSON.stringify(scopeId)} is taken by another execution scope; choose another id`,
          },
        ]
      : []),
    ...ids.flatMap((id, i) =>
      known.has(id) || id === ''
        ? []
        : [
            {
              path: `environmentVersionIds.${String(i)}`,
              message:
                `${JSON.stringify(id)} names no environment version; register the environment first ` +
                '(its version.id is meant)',
            },
          ],
    ),
  ]
}

/** Stores a new scope. @throws Refusal 422 with all problems that the store finds */
export const createScope = (db: Db, scope: ExecutionScopeDocument): Promise<void> =>
  db.transaction(async (tx) => {
    const problems = await scopeStoreProblems(tx, scope)
    if (problems.length > 0) throw unacceptable(problems)
    await tx.run(
      sql`insert into execution_scopes (id, name, network_topology_id, metadata, searched_environments)
          values (${scope.id}, ${scope.name}, ${scope.networkTopologyId},
            ${scope.metadata === undefined ? null : JSON.stringify(scope.metadata)},
            ${scope.environmentVersionIds.join('\n')})`,
    )
    await tx.run(
      sql`insert into execution_scope_environments (execution_scope_id, environment_version_id, position)
          select ${scope.id}, id, position from unnest(${scope.environmentVersionIds}::text[]) with ordinality
            as named(id, position)`,
    )
  })

/** SQL: the scopes that include a version of an environment. */
export const scopesWith = (environmentId: string): Sql =>
  sql`select e.execution_scope_id from execution_scope_environments e
    join environment_versions v on v.id = e.environment_version_id where v.environment_id = ${environmentId}`

/** SQL: the scopes that include the version of one of these resources; `resources` selects their ids. */
export const scopesOver = (resources: Sql): Sql =>
  sql`select e.execution_scope_id from execution_scope_environments e
    join resources r on r.environment_version_id = e.environment_version_id where r.id in (${resources})`

/** A use of a scope; the target is the scope's id. */
export type ScopeUse = Use<string>

/** Deletes a scope. @throws Refusal 404 for an unknown id, 422 while a record uses it */
export const deleteScope = (db: Db, id: string, uses: readonly ScopeUse[]): Promise<void> =>
  db.transaction(async (tx) => {
    if ((await tx.run(sql`select 1 from execution_scopes where id = ${id} for update`)) === 0)
      throw missing('execution scope', id)
    const users = await findUsers(tx, uses, id)
    if (users.length > 0) {
      throw unacceptable(
        users.map((user) => ({
          path: '',
          message:
            `execution scope ${JSON.stringify(id)} cannot be deleted: ` +
            `it is used by ${userText(user)}; delete that first, but a network topology stays, and its scope with it`,
        })),
      )
    }
    await tx.run(sql`delete from execution_scopes where id = ${id}`)
  })
