import { existing } from '../../refusal.ts'
import type { Db } from '../../db/sql.ts'
import { listRoute } from '../../http/list-route.ts'
import { route, Reply, type Route } from '../../http/route.ts'
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
  listRoute('listExecutionScopes', 'GET /execution-scopes/', {
    summary: 'Execution scopes by name',
    item: ExecutionScopeDocument,
    read: (page) => listScopes(db, page),
  }),
  route('createExecutionScope', 'POST /execution-scopes/', {
    summary: 'Create a scope of existing environment versions',
    body: ExecutionScopeDocument,
    response: ExecutionScopeDocument,
    status: 201,
    alsoCheck: ({ document }) => scopeStoreProblems(db, document),
    audit: { eventType: 'execution-scope.created', summary: 'execution scope {id} created' },
    handle: async ({ body }) => {
      await createScope(db, body)
      return new Reply({ body, location: `/execution-scopes/${encodeURIComponent(body.id)}/` })
    },
  }),
  route('getExecutionScope', 'GET /execution-scopes/{scopeId}/', {
    summary: 'One execution scope',
    response: ExecutionScopeDocument,
    handle: async ({ params }) =>
      existing(await readExecutionScope(db, params.scopeId), 'execution scope', params.scopeId),
  }),
  route('deleteExecutionScope', 'DELETE /execution-scopes/{scopeId}/', {
    summary: 'Delete a scope that nothing uses',
    refuses: [422],
    audit: { eventType: 'execution-scope.deleted', summary: 'execution scope {scopeId} deleted' },
    handle: ({ params }) => deleteScope(db, params.scopeId, uses.executionScope),
  }),
]
