import { existing } from '../../refusal.ts'
import type { Db } from '../../db/sql.ts'
import { listRoute } from '../../http/list-route.ts'
import { route, Reply, type Route } from '../../http/route.ts'
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
  listRoute('listResources', 'GET /resources/', {
    summary: 'Resources of all environments by name',
    item: Resource,
    read: (page) => listResources(db, page),
  }),
  route('createResource', 'POST /resources/', {
    summary: 'Add a resource to an environment version, or put it in place of the one with its id there',
    body: NewResource,
    response: Resource,
    status: 201,
    audit: {
      eventType: 'resource.created',
      summary: 'resource {id} saved',
      resourceId: idOf,
    },
    handle: async ({ body }) => {
      await putResource(db, body, uses.resource)
      return new Reply({ body, location: `/resources/${encodeURIComponent(body.id)}/` })
    },
  }),
  route('getResource', 'GET /resources/{resourceId}/', {
    summary: 'One resource',
    response: Resource,
    handle: async ({ params }) =>
      existing(await readResource(db, params.resourceId), 'resource', params.resourceId),
  }),
  route('getResourceSnapshot', 'GET /resources/{resourceId}/snapshot/', {
    summary: 'What was last observed of a resource; 404 until something was',
    response: ResourceSnapshot,
    handle: async ({ params }) => {
      return existing(
        await latestSnapshot(db, params.resourceId),
        'a snapshot of resource',
        params.resourceId,
      )
    },
  }),
]
