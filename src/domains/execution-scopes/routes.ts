import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { arraySizes, pagedArray, pageOf, pageQuery } from '../../http/paging.ts'
import { route, Reply, type Route } from '../../http/route.ts'
import { missing } from '../../refusal.ts'
import { ExecutionScopeDocument } from './schemas.ts'
import {
  createScope,
  deleteScope,
  listScopes,
  readExecutionScope,
  scopeStoreProblems,
  type ScopeUse,
} from './store.ts'

export const executionScopeRoutes = ({
  db,
  uses,
}: {
  db: Db
  uses: { executionScope: readonly ScopeUse[] }
}): Route[] => [
  route({
    method: 'GET',
    path: '/execution-scopes/',
    tag: 'execution-scopes',
    summary: 'Execution scopes by name',
    query: z.strictObject(pageQuery),
    response: z.array(ExecutionScopeDocument),
    handle: async ({ query, target }) => {
      const page = pageOf(query, arraySizes)
      const { rows, total } = await listScopes(db, page)
      return pagedArray(rows, { page, total, target })
    },
  }),
  route({
    method: 'POST',
    path: '/execution-scopes/',
    tag: 'execution-scopes',
    summary: 'Create a scope of existing environment versions',
    body: ExecutionScopeDocument,
    response: ExecutionScopeDocument,
    status: 201,
    alsoCheck: ({ document }) => scopeStoreProblems(db, document),
    audit: {
      eventType: 'execution-scope.created',
      summary: ({ body }) => `execution scope ${(body as ExecutionScopeDocument).id} created`,
    },
    handle: async ({ body }) => {
      await createScope(db, body)
      return new Reply({ body, headers: { location: `/execution-scopes/${encodeURIComponent(body.id)}/` } })
    },
  }),
  route({
    method: 'GET',
    path: '/execution-scopes/{scopeId}/',
    tag: 'execution-scopes',
    summary: 'One execution scope',
    response: ExecutionScopeDocument,
    handle: async ({ params }) => {
      const scope = await readExecutionScope(db, params.scopeId)
      if (scope === undefined) throw missing('execution scope', params.scopeId)
      return scope
    },
  }),
  route({
    method: 'DELETE',
    path: '/execution-scopes/{scopeId}/',
    tag: 'execution-scopes',
    summary: 'Delete a scope that nothing uses',
    refuses: [422],
    audit: {
      eventType: 'execution-scope.deleted',
      summary: ({ params }) => `execution scope ${params['scopeId'] ?? ''} deleted`,
    },
    handle: async ({ params }) => {
      await deleteScope(db, params.scopeId, uses.executionScope)
      return undefined
    },
  }),
]
