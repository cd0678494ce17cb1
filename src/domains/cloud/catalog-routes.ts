import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { Refusal } from '../../refusal.ts'
import { requireEnvironment } from '../environments/store.ts'
import { Catalog, Refreshing } from './catalog-schemas.ts'
import { beginRefresh, readCatalog } from './catalog.ts'
import type { Clouds } from './clouds.ts'

const tag = 'cloud'
const connectionId = z.string().min(1).max(255).optional().describe('the only one where it is left out')

/** The offers of a provider, as the last refresh read them. */
export const catalogRoutes = (parts: { db: Db; clouds: Clouds }): Route[] => [
  route('getCloudCatalog', 'GET /environments/{environmentId}/cloud-catalog/', {
    tag,
    summary: 'What the provider offers, as the last refresh read it',
    query: z.strictObject({ connectionId }),
    response: Catalog,
    handle: async ({ params, query }) => {
      await requireEnvironment(parts.db, params.environmentId)
      return readCatalog(parts.db, params.environmentId, query.connectionId)
    },
  }),
  route('refreshCloudCatalog', 'POST /environments/{environmentId}/cloud-catalog/refresh/', {
    tag,
    summary: 'Read what the provider offers; with async=true the answer does not wait for it',
    query: z.strictObject({
      connectionId,
      async: z.enum(['true', 'false']).optional().describe('false by default'),
    }),
    response: z.union([Catalog, Refreshing]),
    alsoStatus: [202],
    refuses: [409, 422, 503],
    audit: {
      eventType: 'cloud.catalog.refreshed',
      summary: 'catalog of environment {environmentId} refreshed',
    },
    handle: async ({ params: { environmentId }, query }) => {
      await requireEnvironment(parts.db, environmentId)
      const refresh = await beginRefresh(parts, environmentId, query.connectionId)
      if (query.async === 'true') {
        // A failed refresh keeps the old catalog, and the next refresh reports the cause.
        if (refresh.own) void refresh.work().catch(() => undefined)
        return new Reply({ status: 202, body: { status: 'running' as const, environmentId } })
      }
      if (!refresh.own)
        throw new Refusal('conflict', 'a refresh of the catalog is under way; read it afterwards', {
          extra: { state: 'running' },
          retryAfterSeconds: 5,
        })
      await refresh.work()
      return readCatalog(parts.db, environmentId, query.connectionId)
    },
  }),
]
