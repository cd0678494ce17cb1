import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { arraySizes, pagedArray, pageOf, pageQuery } from '../../http/paging.ts'
import { route, Reply, type Route } from '../../http/route.ts'
import { missing } from '../../refusal.ts'
import { Resource } from '../environments/schemas.ts'
import type { EnvironmentUse } from '../environments/users.ts'
import { NewResource, ResourceSnapshot } from './schemas.ts'
import { latestSnapshot, listResources, putResource, readResource } from './store.ts'

const idOf = ({ body }: { body: unknown }): string => (body as Resource).id

/** `uses.resource`: the records that prevent a change of a resource. */
export const resourceRoutes = ({
  db,
  uses,
}: {
  db: Db
  uses: { resource: readonly EnvironmentUse[] }
}): Route[] => [
  route({
    method: 'GET',
    path: '/resources/',
    tag: 'resources',
    summary: 'Resources of all environments by name',
    query: z.strictObject(pageQuery),
    response: z.array(Resource),
    handle: async ({ query, target }) => {
      const page = pageOf(query, arraySizes)
      const { rows, total } = await listResources(db, page)
      return pagedArray(rows, { page, total, target })
    },
  }),
  route({
    method: 'POST',
    path: '/resources/',
    tag: 'resources',
    summary: 'Add a resource to an environment version, or put it in place of the one with its id there',
    body: NewResource,
    response: Resource,
    status: 201,
    audit: {
      eventType: 'resource.created',
      summary: (call) => `resource ${idOf(call)} saved`,
      resourceId: idOf,
    },
    handle: async ({ body }) => {
      await putResource(db, body, uses.resource)
      return new Reply({ body, headers: { location: `/resources/${encodeURIComponent(body.id)}/` } })
    },
  }),
  route({
    method: 'GET',
    path: '/resources/{resourceId}/',
    tag: 'resources',
    summary: 'One resource',
    response: Resource,
    handle: async ({ params }) => {
      const resource = await readResource(db, params.resourceId)
      if (resource === undefined) throw missing('resource', params.resourceId)
      return resource
    },
  }),
  route({
    method: 'GET',
    path: '/resources/{resourceId}/snapshot/',
    tag: 'resources',
    summary: 'What was last observed of a resource; 404 until something was',
    response: ResourceSnapshot,
    handle: async ({ params }) => {
      const snapshot = await latestSnapshot(db, params.resourceId)
      if (snapshot === undefined) throw missing('a snapshot of resource', params.resourceId)
      return snapshot
    },
  }),
]
