import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { route, type Route } from '../../http/route.ts'
import { requireEnvironment } from '../environments/store.ts'
import type { Clouds } from './clouds.ts'
import { listOrphans, Orphan, sweepOrphans } from './orphans.ts'

const tag = 'cloud'

/** Machines without a record. */
export const orphanRoutes = (parts: { db: Db; clouds: Clouds }): Route[] => [
  route('listCloudOrphans', 'GET /environments/{environmentId}/cloud-orphans/', {
    tag,
    summary: 'Machines at the providers that bear the tags of this service and have no living record',
    response: z.array(Orphan),
    refuses: [422, 503],
    handle: async ({ params }) => {
      await requireEnvironment(parts.db, params.environmentId)
      return listOrphans(parts, params.environmentId)
    },
  }),
  route('sweepCloudOrphans', 'POST /environments/{environmentId}/cloud-orphans/sweep/', {
    tag,
    summary: 'End the machines of this service that have no living record, and nothing else',
    response: z.array(Orphan),
    refuses: [422, 503],
    audit: { eventType: 'cloud.orphans.swept', summary: 'orphans of environment {environmentId} swept' },
    handle: async ({ params }) => {
      await requireEnvironment(parts.db, params.environmentId)
      return sweepOrphans(parts, params.environmentId)
    },
  }),
]
