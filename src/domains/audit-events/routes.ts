import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { arraySizes, pagedArray, pageOf } from '../../http/paging.ts'
import { route, type Route } from '../../http/route.ts'
import { AuditEvent, AuditQuery } from './schemas.ts'
import { listAuditEvents } from './store.ts'

/** Events of one answer unless another number is asked for, and instead of one that is out of range. */
const sizes = { ...arraySizes, usual: 200, beyond: 'usual' } as const

export const auditEventRoutes = ({ db }: { db: Db }): Route[] => [
  route({
    method: 'GET',
    path: '/audit-events/',
    tag: 'audit-events',
    summary: 'What was done to the service, newest first',
    query: AuditQuery,
    response: z.array(AuditEvent),
    handle: async ({ query, target }) => {
      const page = pageOf({ page: query.page, pageSize: query.pageSize ?? query.limit }, sizes)
      const { rows, total } = await listAuditEvents(db, query, page)
      return pagedArray(rows, { page, total, target })
    },
  }),
]
