import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { arraySizes, pagedArray, pageOf, pageQuery } from '../../http/paging.ts'
import { route, Reply, type Route } from '../../http/route.ts'
import { missing } from '../../refusal.ts'
import { NetworkTopologyDocument } from './schemas.ts'
import { createTopology, listTopologies, readNetworkTopology, topologyStoreProblems } from './store.ts'

export const networkTopologyRoutes = ({ db }: { db: Db }): Route[] => [
  route({
    method: 'GET',
    path: '/network-topologies/',
    tag: 'network-topologies',
    summary: 'Network topologies by name, newest version first',
    query: z.strictObject(pageQuery),
    response: z.array(NetworkTopologyDocument),
    handle: async ({ query, target }) => {
      const page = pageOf(query, arraySizes)
      const { rows, total } = await listTopologies(db, page)
      return pagedArray(rows, { page, total, target })
    },
  }),
  route({
    method: 'POST',
    path: '/network-topologies/',
    tag: 'network-topologies',
    summary: 'Describe the links between the resources of a scope',
    body: NetworkTopologyDocument,
    response: NetworkTopologyDocument,
    status: 201,
    alsoCheck: ({ document }) => topologyStoreProblems(db, document),
    audit: {
      eventType: 'network-topology.created',
      summary: ({ body }) => `network topology ${(body as NetworkTopologyDocument).id} created`,
    },
    handle: async ({ body }) => {
      await createTopology(db, body)
      const links = body.links.map((link) => ({ ...link, topologyId: body.id }))
      return new Reply({
        body: { ...body, links },
        headers: { location: `/network-topologies/${encodeURIComponent(body.id)}/` },
      })
    },
  }),
  route({
    method: 'GET',
    path: '/network-topologies/{topologyId}/',
    tag: 'network-topologies',
    summary: 'One network topology',
    response: NetworkTopologyDocument,
    handle: async ({ params }) => {
      const topology = await readNetworkTopology(db, params.topologyId)
      if (topology === undefined) throw missing('network topology', params.topologyId)
      return topology
    },
  }),
]
