import { z } from 'zod'
import { insertRows, readIds, readTexts } from '../../db/rows.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { array, fields, object } from '../../db/projection.ts'
import type { NetworkTopologyDocument } from './schemas.ts'

const linkObject = object(
  {
    ...fields(
      'l',
      `id topologyId sourceResourceId targetResourceId bandwidthBitsPerSecond latencySeconds pricePerByte
        bidirectional`,
    ),
    sharingPolicy: "nullif(l.sharing_policy, '')",
    maxConcurrentTransfers: 'l.max_concurrent_transfers',
  },
  { metadata: 'l.metadata::text' },
)

/** Of a row `t` of network_topologies. */
const topologyObject = object(fields('t', 'id name version executionScopeId'), {
  links: array(linkObject, 'network_links l where l.topology_id = t.id', 'l.position, l.id'),
  metadata: 't.metadata::text',
})

// Rows keep to the bounds of the time at which they were taken.
const Row = z.custom<NetworkTopologyDocument>()
const document = sql`${raw(topologyObject)}::json`

/** Ids of topologies by name, newest version first; `total` is counted to one above `countBound`. */
export const listTopologies = (db: Db, page: Page) =>
  readIds(db, {
    from: sql`network_topologies t`,
    order: sql`t.name collate "C", t.version desc, t.id`,
    page,
  })

/** These topologies as JSON texts. */
export const topologyTexts = (db: Db, ids: readonly string[]): Promise<string[]> =>
  readTexts(db, ids, { document: topologyObject, from: 'join network_topologies t on t.id = asked.id' })

export const readNetworkTopology = (db: Db, id: string): Promise<NetworkTopologyDocument | undefined> =>
  db.value(Row, sql`select ${document} from network_topologies t where t.id = ${id}`)

const Known = z.object({
  taken: z.boolean(),
  scope: z.boolean(),
  links: z.array(z.object({ id: z.string(), topology: z.string() })),
  resources: z.array(z.object({ id: z.string(), inside: z.boolean() })),
})

/**
 * The names in a topology, also in one that its schema refuses; blank where a member is not
 * readable.
 */
const Name = z.string().catch('')
const Named = z.object({
  id: Name,
  executionScopeId: Name,
  links: z
    .array(
      z
        .object({ id: Name, sourceResourceId: Name, targetResourceId: Name })
        .catch({ id: '', sourceResourceId: '', targetResourceId: '' }),
    )
    .catch([]),
})

/**
 * Problems of a topology that only the store can find: taken ids, an unknown scope, ends that do
 * not exist or are outside the scope's versions. Takes any value.
 */
export const topologyStoreProblems = async (db: Db, topology: unknown): Promise<Problem[]> => {
  const named = Named.safeParse(topology)
  if (!named.success) return []
  const { id, executionScopeId, links } = named.data
  const ends = [...new Set(links.flatMap((link) => [link.sourceResourceId, link.targetResourceId]))]
  const known = await db.one(
    Known,
    sql`select exists (select from network_topologies where id = ${id}) as taken,
          exists (select from execution_scopes where id = ${executionScopeId}) as scope,
          (select coalesce(json_agg(json_build_object('id', l.id, 'topology', l.topology_id)), '[]')
            from network_links l where l.id = any(${links.map((link) => link.id)})) as links,
          (select coalesce(json_agg(json_build_object('id', r.id, 'inside', exists (select
            from execution_scope_environments s
              where s.execution_scope_id = ${executionScopeId}
                and s.environment_version_id = r.environment_version_id))), '[]')
            from resources r where r.id = any(${ends})) as resources`,
  )
  const topologyOf = new Map(known.links.map((link) => [link.id, link.topology]))
  const inside = new Map(known.resources.map((resource) => [resource.id, resource.inside]))
  const problems: Problem[] = []
  const report = (path: string, message: string): void => void problems.push({ path, message })
  if (known.taken)
    report('id', `${JSON.stringify(id)} is taken by another network topology; choose another id`)
  if (!known.scope && executionScopeId !== '')
    report(
      'executionScopeId',
      `${JSON.stringify(executionScopeId)} names no execution scope; create the scope first`,
    )
  links.forEach((link, i) => {
    const owner = topologyOf.get(link.id)
    if (owner !== undefined) {
      report(
        `links.${String(i)}.id`,
        `${JSON.stringify(link.id)} is taken by topology ${JSON.stringify(owner)}; link ids ` +
          'are global, choose another',
      )
    }
    for (const key of ['sourceResourceId', 'targetResourceId'] as const) {
      const end = inside.get(link[key])
      const path = `links.${String(i)}.${key}`
      if (link[key] === '') continue
      if (end === undefined)
        report(path, `${JSON.stringify(link[key])} names no resource; name a resource of the scope`)
      else if (!end && known.scope) {
        report(
          path,
          `${JSON.stringify(link[key])} is not in the environments of scope ` +
            `${JSON.stringify(executionScopeId)}; link resources of the scope only`,
        )
      }
    }
  })
  return problems
}

/**
 * Stores a new topology with its links. @throws Refusal 422 with all problems that the store finds
 */
export const createTopology = (db: Db, topology: NetworkTopologyDocument): Promise<void> =>
  db.transaction(async (tx) => {
    const problems = await topologyStoreProblems(tx, topology)
    if (problems.length > 0) throw unacceptable(problems)
    const { id, name, version, executionScopeId, metadata, links } = topology
    await tx.run(
      sql`insert into network_topologies (id, name, version, execution_scope_id, metadata)
          values (${id}, ${name}, ${version}, ${executionScopeId},
            ${metadata === undefined ? null : JSON.stringify(metadata)})`,
    )
    await insertRows(
      tx,
      sql`insert into network_links`,
      `id topologyId position sourceResourceId targetResourceId bandwidthBitsPerSecond latencySeconds pricePerByte
        bidirectional sharingPolicy maxConcurrentTransfers metadata`,
      links.map((link, position) => ({
        ...link,
        topologyId: id,
        position,
        sharingPolicy: link.sharingPolicy ?? '',
      })),
    )
  })
