import { z } from 'zod'
import { columnsOf } from '../../db/projection.ts'
import { sql, type Db } from '../../db/sql.ts'
import type { OperationKind, OperationRef } from '../../operations/kind.ts'
import { beginOperation, endOperation } from '../../operations/records.ts'
import { missing } from '../../refusal.ts'
import { recordAudit } from '../audit-events/store.ts'
import { ResourceSnapshot } from '../resources/schemas.ts'
import type { ConnectionDocument } from './schemas.ts'
import { lockConnection, readConnection, settleEnvironment } from './store.ts'
import { connectionPageSummary } from './page-summary.ts'

/**
 * Discoveries as operations. One discovery of a connection is open at a time, and their numbers are
 * its generations.
 */
export const discoveryKind: OperationKind<'connectionDiscovery'> = {
  name: 'connection-discovery',
  idInLog: 'connectionId',
  workflow: 'connectionDiscovery',
  noun: 'discovery',
  table: 'connection_discoveries',
  columns: {
    id: 'connection_id',
    generation: 'number',
    created_at: 'requested_at',
    failure_reason: 'problem',
  },
  states: { accepted: 'queued', running: 'running' },
  events: 'resource.discovery',
  cancelEnds: 'open',
  pageSummary: (db, id, number) => connectionPageSummary(db, id, `discovery ${String(number)} through`),
  // Audit records of starts and ends name the environment.
  audit: (connectionId, change) =>
    change === 'workflow-restarted'
      ? { eventType: 'resource.discovery.workflow-restarted', connectionId }
      : undefined,
}

/** A discovery: the id of its connection, its number as its generation, and its key. */
export type DiscoveryRef = OperationRef

const DiscoveryRow = z.object({
  connectionId: z.string(),
  number: z.number(),
  status: z.enum(['queued', 'running', 'completed', 'failed']),
  problem: z.string().optional(),
  transient: z.boolean().optional(),
  /** The host that a local connection leads to. */
  hostId: z.string().optional(),
})
type DiscoveryRow = z.output<typeof DiscoveryRow>
const discoveryColumns = columnsOf(DiscoveryRow, 'connection_discoveries')

/**
 * The discovery that is under way for a connection, or a new one. Where the connection is local, that
 * describes this host. @throws Refusal 404
 */
export const requestDiscovery = (db: Db, connectionId: string, hostId: string): Promise<DiscoveryRow> =>
  db.transaction(async (tx) => {
    const connection = await readConnection(tx, connectionId)
    if (connection === undefined || !(await lockConnection(tx, connection)))
      throw missing('connection', connectionId)
    const open = await tx.maybe(
      DiscoveryRow,
      sql`select ${discoveryColumns} from connection_discoveries where connection_id = ${connectionId}
        and status in ('queued', 'running')`,
    )
    if (open !== undefined) return open
    const made = await tx.one(
      DiscoveryRow,
      sql`insert into connection_discoveries (connection_id, number, last_event_sequence, host_id)
          select ${connectionId}, coalesce(max(number), 0) + 1, coalesce(max(last_event_sequence), 0),
            ${connection.type === 'local' ? hostId : null}::text
            from connection_discoveries where connection_id = ${connectionId} returning ${discoveryColumns}`,
    )
    // The last discovery stays, whatever its result: it shows whether the environment was ever
    // discovered.
    await tx.run(
      sql`delete from connection_discoveries where connection_id = ${connectionId}
        and number <= ${made.number - keptDiscoveries} and status = 'failed'`,
    )
    await tx.run(
      sql`delete from connection_discoveries where connection_id = ${connectionId}
        and number <= ${made.number - keptDiscoveries}
          and exists (select from connection_discoveries later where later.connection_id = ${connectionId}
            and later.number > connection_discoveries.number and later.status = 'completed')`,
    )
    await settleEnvironment(tx, connection.environmentId, connectionId, false)
    await recordAudit(tx, {
      ...discoveryEvent(connection, made.number),
      eventType: 'resource.discovery.started',
      outcome: 'started',
      summary: `discovery ${made.number} through connection ${connectionId} started`,
    })
    return made
  })

const keptDiscoveries = 100

const discoveryEvent = (
  { id, environmentId }: Pick<ConnectionDocument, 'id' | 'environmentId'>,
  number: number,
) => ({
  actorType: 'service',
  environmentId,
  connectionId: id,
  metadata: { discovery: number },
})

export const readDiscovery = (
  db: Db,
  connectionId: string,
  number: number,
): Promise<DiscoveryRow | undefined> =>
  db.maybe(
    DiscoveryRow,
    sql`select ${discoveryColumns} from connection_discoveries where connection_id = ${connectionId}
      and number = ${number}`,
  )

const HostRow = z.object({ hostId: z.string().optional() })

/**
 * The host that a local connection is about: the one of its last discovery that found it, else of its
 * last. Undefined before its first one, and for connections of other types.
 */
export const hostOfConnection = async (db: Db, connectionId: string): Promise<string | undefined> =>
  (
    await db.maybe(
      HostRow,
      sql`select d.host_id from connection_discoveries d join connections c on c.id = d.connection_id
        where c.id = ${connectionId} and c.type = 'local' order by d.status = 'completed' desc, d.number desc limit 1`,
    )
  )?.hostId

/** Moves a discovery from queued to running. @returns undefined where it is over or gone */
export const beginDiscovery = async (db: Db, of: DiscoveryRef): Promise<DiscoveryRow | undefined> => {
  const begun = await beginOperation(db, discoveryKind, of)
  return begun?.status === 'running' ? readDiscovery(db, of.id, of.generation) : undefined
}

/** Ends a discovery, once, with its audit record. @returns true where this call ended it */
export const endDiscovery = async (
  tx: Db,
  connection: Pick<ConnectionDocument, 'id' | 'environmentId'>,
  of: DiscoveryRef,
  end: { snapshotIds: readonly string[] } | { problem: string; transient: boolean; actorId?: string },
): Promise<boolean> => {
  const { id: connectionId, generation: number } = of
  const failed = 'problem' in end
  if (
    !(await endOperation(
      tx,
      discoveryKind,
      of,
      'problem' in end ? { status: 'failed', reason: end.problem } : { status: 'completed' },
    ))
  )
    return false
  const facts = 'problem' in end ? sql`transient = ${end.transient}` : sql`snapshot_ids = ${end.snapshotIds}`
  await tx.run(
    sql`update connection_discoveries set ${facts} where connection_id = ${connectionId} and number = ${number}`,
  )
  await recordAudit(tx, {
    ...discoveryEvent(connection, number),
    ...('problem' in end && end.actorId !== undefined ? { actorId: end.actorId } : {}),
    eventType: failed ? 'resource.discovery.failed' : 'resource.discovery.completed',
    outcome: failed ? 'failed' : 'succeeded',
    summary:
      `discovery ${number} through connection ${connectionId} ` +
      (failed ? `failed: ${end.problem}` : `found ${end.snapshotIds.length} resources`),
  })
  return true
}

/** The snapshots of a discovery, in the order of their discovery. */
export const snapshotsOf = (db: Db, connectionId: string, number: number): Promise<ResourceSnapshot[]> =>
  db.many(
    ResourceSnapshot,
    sql`select ${columnsOf(ResourceSnapshot, 's')}
        from connection_discoveries d cross join lateral unnest(d.snapshot_ids) with ordinality as named (id,
          place) join resource_snapshots s on s.id = named.id
        where d.connection_id = ${connectionId} and d.number = ${number} order by named.place`,
  )
