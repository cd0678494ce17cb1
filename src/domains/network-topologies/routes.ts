import { existing } from '../../refusal.ts'
import type { Db } from '../../db/sql.ts'
import { longListRoute } from '../../http/list-route.ts'
import { route, Reply, type Route } from '../../http/route.ts'
import { NetworkTopologyDocument } from './schemas.ts'
import {
  createTopology,
  listTopologies,
  readNetworkTopology,
  topologyStoreProblems,
  topologyTexts,
} from './store.ts'

export const networkTopologyRoutes = ({ db }: { db: Db }): Route[] => [
  longListRoute('listNetworkTopologies', 'GET /network-topologies/', {
    summary: 'Network topologies by name, newest version first',
    item: NetworkTopologyDocument,
    ids: (page) => listTopologies(db, page),
    texts: (ids) => topologyTexts(db, ids),
  }),
  route('createNetworkTopology', 'POST /network-topologies/', {
    summary: 'Describe the links between the resources of a scope',
    body: NetworkTopologyDocument,
    response: NetworkTopologyDocument,
    status: 201,
    alsoCheck: ({ document }) => topologyStoreProblems(db, document),
    audit: { eventType: 'network-topology.created', summary: 'network topology {id} created' },
    handle: async ({ body }) => {
      await createTopology(db, body)
      const links = body.links.map((link) => ({ ...link, topologyId: body.id }))
      return new Reply({
        body: { ...body, links },
        location: `/network-topologies/${encodeURIComponent(body.id)}/`,
      })
    },
  }),
  route('getNetworkTopology', 'GET /network-topologies/{topologyId}/', {
    summary: 'One network topology',
    response: NetworkTopologyDocument,
    handle: async ({ params }) =>
      existing(await readNetworkTopology(db, params.topologyId), 'network topology', params.topologyId),
  }),
]
