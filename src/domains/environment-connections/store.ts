import { createHash, randomUUID } from 'node:crypto'
import { z } from 'zod'
import type { SshHostKey } from '../../clients/ssh/target.ts'
import { columnsOf, time } from '../../db/projection.ts'
import { sql, type Db } from '../../db/sql.ts'
import { missing, unacceptable, type Problem } from '../../refusal.ts'
import type { Telling } from '../../engine.ts'
import { recordAudit } from '../audit-events/store.ts'
import { holdCredential } from '../credentials/store.ts'
import { putConnection, setEnvironmentStatus } from '../environments/connections.ts'
import { connectionSecretProblems, unmasked, withMasked } from '../environments/secrets.ts'
import { lockInventory } from '../environments/store.ts'
import { ResourceSnapshot } from '../resources/schemas.ts'
import { ConnectionCheck, ConnectionDocument } from './schemas.ts'
import { environmentStatus } from './status.ts'

/** Checks that are kept of each connection. */
export const keptChecks = 1_000
/** Connections of one environment. */
const maxConnections = 1_000

const columns = columnsOf(ConnectionDocument, 'c', { createdAt: time('c.created_at') })

/** A stored connection as it was saved, secrets in its configuration masked: nothing uses them. */
export const readConnection = async (db: Db, id: string): Promise<ConnectionDocument | undefined> => {
  const connection = await storedConnection(db, id)
  return connection === undefined ? undefined : withMasked(connection)
}

const storedConnection = (db: Db, id: string): Promise<ConnectionDocument | undefined> =>
  db.maybe(ConnectionDocument, sql`select ${columns} from connections c where c.id = ${id}`)

const CreationChecksRow = z.object({
  environment: z.boolean(),
  owner: z.string().optional(),
  namesake: z.string().optional(),
  others: z.number(),
})

/** What only the store knows against a connection: an environment that does not exist, an id or a name that is taken, secrets that it does not hold already. Takes any value. */
export const storedProblems = async (db: Db, document: unknown): Promise<Problem[]> => {
  const { id, environmentId, name } = z
    .object({ id: z.string().catch(''), environmentId: z.string().catch(''), name: z.string().catch('') })
    .catch({ id: '', environmentId: '', name: '' })
    .parse(document)
  const found = await db.one(
    CreationChecksRow,
    sql`select exists (select from environments where id = ${environmentId}) as environment,
          (select environment_id from connections where id = ${id})::text as owner,
          (select min(id collate "C") from connections where environment_id = ${environmentId} and name = ${name} and id <> ${id})::text as namesake,
          (select count(*) from connections where environment_id = ${environmentId} and id <> ${id}) as others`,
  )
  const problems = connectionSecretProblems(document, (await storedConnection(db, id))?.configuration)
  const say = (path: string, message: string): void => void problems.push({ path, message })
  if (environmentId !== '' && !found.environment)
    say('environmentId', `${JSON.stringify(environmentId)} names no environment; register the environment first`)
  if (found.owner !== undefined && environmentId !== '' && found.owner !== environmentId)
    say(
      'environmentId',
      `the connection ${JSON.stringify(id)} belongs to environment ${JSON.stringify(found.owner)}; a connection stays in its environment`,
    )
  if (found.namesake !== undefined)
    say(
      'name',
      `${JSON.stringify(name)} is the name of connection ${JSON.stringify(found.namesake)} of this environment; give each its own`,
    )
  if (found.owner === undefined && found.others >= maxConnections)
    say('', `the environment has ${maxConnections} connections, which is the most`)
  return problems
}

/** What of a connection decides which host keys are right; recorded ones are forgotten when it changes. */
const trustOf = ({ endpoint, configuration = {} }: ConnectionDocument): string =>
  JSON.stringify([
    endpoint,
    ...['port', 'knownHosts', 'hostKeyFingerprints', 'hostKeyAlias', 'proxyJump'].map((key) => configuration[key] ?? null),
  ])

/** Stores a connection under its id, new or in place of what it was; answers it with its creation time. Refuses (422) what the store knows against it. */
export const saveConnection = (db: Db, connection: ConnectionDocument): Promise<ConnectionDocument> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    const problems = await storedProblems(tx, connection)
    if (problems.length > 0) throw unacceptable(problems)
    const { id, credentialRef, configuration } = connection
    // A reference is opaque: one to nothing is kept, and its use says so.
    await holdCredential(tx, credentialRef)
    const before = await storedConnection(tx, id)
    const json = configuration === undefined ? null : JSON.stringify(unmasked(configuration, before?.configuration))
    await putConnection(tx, connection, json)
    if (before !== undefined && trustOf(before) !== trustOf(connection))
      await tx.run(sql`delete from connection_host_keys where connection_id = ${id}`)
    return (await readConnection(tx, id))!
  })

const KnownHostRow = z.object({ host: z.string(), fingerprint: z.string(), line: z.string() })

// --------------------------------------------------------------------------------------------------------------- host keys

/** Keys that first contacts recorded. */
export const recordedHostKeys = (db: Db, connectionId: string): Promise<{ host: string; fingerprint: string; line: string }[]> =>
  db.many(KnownHostRow, sql`select host, fingerprint, line from connection_host_keys where connection_id = ${connectionId} order by host`)

const FingerprintRow = z.object({ fingerprint: z.string() })

/** Records the key of a first contact, unless the host has one; answers the fingerprint that is recorded. A key of another type is another key. */
export const keepHostKey = async (db: Db, connectionId: string, key: SshHostKey): Promise<{ fingerprint: string; isNew: boolean }> => {
  const inserted = await db.run(
    sql`insert into connection_host_keys (connection_id, host, key_type, fingerprint, line)
        values (${connectionId}, ${key.host}, ${key.type}, ${key.fingerprint}, ${key.line}) on conflict do nothing`,
  )
  const { fingerprint } = await db.one(
    FingerprintRow,
    sql`select fingerprint from connection_host_keys where connection_id = ${connectionId} and host = ${key.host}`,
  )
  return { fingerprint, isNew: inserted === 1 }
}

// ------------------------------------------------------------------------------------------------------------------ checks

const checkColumns = columnsOf(ConnectionCheck, 'connection_checks')

/** The newest checks of a connection. */
export const listChecks = (db: Db, connectionId: string, limit: number): Promise<ConnectionCheck[]> =>
  db.many(
    ConnectionCheck,
    sql`select ${checkColumns} from connection_checks where connection_id = ${connectionId} order by checked_at desc, id desc limit ${limit}`,
  )

export interface NewCheck {
  status: 'online' | 'offline'
  message: string
  latencyMs: number
  metadata: Record<string, unknown>
}

/** Locks an environment and its connection in the order in which deleting the environment does; false when they are gone. */
const lockConnection = async (tx: Db, environmentId: string, connectionId: string): Promise<boolean> => {
  await tx.run(sql`select 1 from environments where id = ${environmentId} for no key update`)
  return (await tx.run(sql`select 1 from connections where id = ${connectionId} for update`)) === 1
}

/** A check is about to be made: an environment that nobody has looked at becomes `connecting`. */
export const beginCheck = (db: Db, connection: ConnectionDocument): Promise<void> =>
  db.transaction((tx) => settleEnvironment(tx, connection.environmentId, connection.id, true))

/**
 * Records a check, with what it changes: the connection's state and the environment's status, each change an audit record, unless the check
 * is `audited` already. Undefined when the connection is gone.
 */
export const recordCheck = (
  db: Db,
  connection: ConnectionDocument,
  check: NewCheck,
  { audited = false }: { audited?: boolean } = {},
): Promise<ConnectionCheck | undefined> =>
  db.transaction(async (tx) => {
    const { id: connectionId, environmentId } = connection
    if (!(await lockConnection(tx, environmentId, connectionId))) return undefined
    const [before] = await listChecks(tx, connectionId, 1)
    const recorded = await tx.one(
      ConnectionCheck,
      sql`insert into connection_checks (id, connection_id, status, message, latency_ms, checked_at, metadata)
          values (${`connection-check-${randomUUID()}`}, ${connectionId}, ${check.status}, ${check.message}, ${check.latencyMs}, clock_timestamp(),
            ${JSON.stringify(check.metadata)}) returning ${checkColumns}`,
    )
    await tx.run(
      sql`delete from connection_checks where connection_id = ${connectionId} and (checked_at, id) <
          (select checked_at, id from connection_checks where connection_id = ${connectionId} order by checked_at desc, id desc offset ${keptChecks - 1} limit 1)`,
    )
    if (before?.status !== check.status && !audited)
      await recordAudit(tx, {
        eventType: 'connection.health.checked',
        actorType: 'service',
        environmentId,
        connectionId,
        outcome: check.status === 'online' ? 'succeeded' : 'failed',
        summary: `connection ${connectionId} is ${check.status}: ${check.message}`,
        metadata: { checkId: recorded.id, ...(before === undefined ? {} : { before: before.status }) },
      })
    await settleEnvironment(tx, environmentId, connectionId, false)
    return recorded
  })

const Standing = z.object({ id: z.string(), status: z.string().optional(), discovering: z.boolean(), discovered: z.boolean() })

const StatusRow = z.object({ status: z.string() })

/** Brings the environment's status in line with its connections. */
export const settleEnvironment = async (tx: Db, environmentId: string, connectionId: string, checking: boolean): Promise<void> => {
  const environment = await tx.maybe(StatusRow, sql`select status from environments where id = ${environmentId} for no key update`)
  if (environment === undefined) return
  const connections = await tx.many(
    Standing,
    sql`select c.id, k.status, exists (select from connection_discoveries d where d.connection_id = c.id and d.status in ('queued', 'running')) as discovering,
          exists (select from connection_discoveries d where d.connection_id = c.id and d.status = 'completed') as discovered
        from connections c left join lateral (select status from connection_checks where connection_id = c.id order by checked_at desc, id desc limit 1) k on true
        where c.environment_id = ${environmentId}`,
  )
  const status = environmentStatus(environment.status, connections, checking)
  if (status === environment.status) return
  await setEnvironmentStatus(tx, environmentId, status)
  await recordAudit(tx, {
    eventType: 'environment.status-changed',
    actorType: 'service',
    environmentId,
    connectionId,
    outcome: status === 'unreachable' || status === 'degraded' ? 'failed' : 'succeeded',
    summary: `environment ${environmentId}: ${environment.status} → ${status}`,
    metadata: { before: environment.status, after: status },
  })
}

// ----------------------------------------------------------------------------------------------------------------- monitor

/** Whether a connection has enough to be looked at. Kept in step with what `monitored` says in SQL. */
const monitored = sql`(type = 'local' or (type in ('ssh', 'kubernetes') and endpoint <> '') or (type = 'cloud' and credential_ref <> ''))`
const Monitored = z.object({ id: z.string(), generation: z.number() })

export const unmonitored = (db: Db, limit: number) =>
  db.many(
    Monitored,
    sql`select id, 1 as generation from connections where monitored_since is null and ${monitored} order by created_at, id limit ${limit}`,
  )

export const monitoredConnections = (db: Db, limit: number) =>
  db.many(
    Monitored,
    sql`select id, 1 as generation from connections where monitored_since is not null and ${monitored} order by monitored_since, id limit ${limit}`,
  )

/** Whether the connection is there and watched. */
export const isMonitored = async (db: Db, id: string): Promise<boolean> =>
  (await db.maybe(
    Monitored,
    sql`select id, 1 as generation from connections where id = ${id} and monitored_since is not null and ${monitored}`,
  )) !== undefined

const SuccessesRow = z.object({ successes: z.number() })

/** How often in a row a connection was found online, its newest check first; undefined when there is nothing to look at. */
export const successesInRow = async (db: Db, connectionId: string): Promise<number | undefined> => {
  const found = await db.maybe(
    SuccessesRow,
    sql`select (select count(*) from (select 1 from connection_checks k where k.connection_id = c.id and k.checked_at >
            coalesce((select max(checked_at) from connection_checks where connection_id = c.id and status = 'offline'), '-infinity') limit 100) counted) as successes
        from connections c where c.id = ${connectionId} and ${monitored}`,
  )
  return found?.successes
}

// ------------------------------------------------------------------------------------------------------------- discoveries

const DiscoveryRow = z.object({
  connectionId: z.string(),
  number: z.number(),
  status: z.enum(['queued', 'running', 'completed', 'failed']),
  problem: z.string().optional(),
  transient: z.boolean().optional(),
})
type DiscoveryRow = z.output<typeof DiscoveryRow>
const discoveryColumns = columnsOf(DiscoveryRow, 'connection_discoveries')

/** The discovery that is under way for a connection, or a new one. @throws Refusal 404 */
export const requestDiscovery = (db: Db, connectionId: string): Promise<DiscoveryRow> =>
  db.transaction(async (tx) => {
    const connection = await readConnection(tx, connectionId)
    if (connection === undefined || !(await lockConnection(tx, connection.environmentId, connectionId)))
      throw missing('connection', connectionId)
    const open = await tx.maybe(
      DiscoveryRow,
      sql`select ${discoveryColumns} from connection_discoveries where connection_id = ${connectionId} and status in ('queued', 'running')`,
    )
    if (open !== undefined) return open
    const made = await tx.one(
      DiscoveryRow,
      sql`insert into connection_discoveries (connection_id, number)
          values (${connectionId}, (select coalesce(max(number), 0) + 1 from connection_discoveries where connection_id = ${connectionId})) returning ${discoveryColumns}`,
    )
    // The last one stays, whatever it found: it tells whether the environment was ever discovered.
    await tx.run(
      sql`delete from connection_discoveries where connection_id = ${connectionId} and number <= ${made.number - keptDiscoveries} and status = 'failed'`,
    )
    await tx.run(
      sql`delete from connection_discoveries where connection_id = ${connectionId} and number <= ${made.number - keptDiscoveries}
          and exists (select from connection_discoveries later where later.connection_id = ${connectionId} and later.number > connection_discoveries.number and later.status = 'completed')`,
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

const discoveryEvent = ({ id, environmentId }: Pick<ConnectionDocument, 'id' | 'environmentId'>, number: number) => ({
  actorType: 'service',
  environmentId,
  connectionId: id,
  metadata: { discovery: number },
})

export const readDiscovery = (db: Db, connectionId: string, number: number): Promise<DiscoveryRow | undefined> =>
  db.maybe(
    DiscoveryRow,
    sql`select ${discoveryColumns} from connection_discoveries where connection_id = ${connectionId} and number = ${number}`,
  )

/** queued → running; undefined when it is over or gone. */
export const beginDiscovery = (db: Db, connectionId: string, number: number): Promise<DiscoveryRow | undefined> =>
  db.maybe(
    DiscoveryRow,
    sql`update connection_discoveries set status = 'running' where connection_id = ${connectionId} and number = ${number} and status in ('queued', 'running')
        returning ${discoveryColumns}`,
  )

/** Ends a discovery, once, with its audit record. True when this call did. */
export const endDiscovery = async (
  tx: Db,
  connection: Pick<ConnectionDocument, 'id' | 'environmentId'>,
  number: number,
  end: { snapshotIds: readonly string[] } | { problem: string; transient: boolean; actorId?: string },
): Promise<boolean> => {
  const connectionId = connection.id
  const failed = 'problem' in end
  const fields =
    'problem' in end
      ? sql`status = 'failed', problem = ${end.problem}, transient = ${end.transient}`
      : sql`status = 'completed', snapshot_ids = ${end.snapshotIds}`
  const ended = await tx.run(
    sql`update connection_discoveries set ${fields}, finished_at = now() where connection_id = ${connectionId} and number = ${number} and status in ('queued', 'running')`,
  )
  if (ended === 0) return false
  await recordAudit(tx, {
    ...discoveryEvent(connection, number),
    ...('problem' in end && end.actorId !== undefined ? { actorId: end.actorId } : {}),
    eventType: failed ? 'resource.discovery.failed' : 'resource.discovery.completed',
    outcome: failed ? 'failed' : 'succeeded',
    summary: `discovery ${number} through connection ${connectionId} ${failed ? `failed: ${end.problem}` : `found ${end.snapshotIds.length} resources`}`,
  })
  return true
}

export const undispatchedDiscoveries = (db: Db, limit: number) =>
  db.many(
    Monitored,
    sql`select connection_id as id, number as generation from connection_discoveries where dispatched_at is null and status = 'queued' order by requested_at limit ${limit}`,
  )

export const markDiscoveryDispatched = (db: Db, connectionId: string): Promise<number> =>
  db.run(sql`update connection_discoveries set dispatched_at = now() where connection_id = ${connectionId} and dispatched_at is null`)

export const openDiscoveries = (db: Db, limit: number) =>
  db.many(
    Monitored,
    sql`select connection_id as id, number as generation from connection_discoveries where status in ('queued', 'running') and dispatched_at is not null
        order by requested_at limit ${limit}`,
  )

/** Whether the discovery is not over. */
export const isDiscoveryOpen = async (db: Db, connectionId: string, number: number): Promise<boolean> => {
  const discovery = await readDiscovery(db, connectionId, number)
  return discovery?.status === 'queued' || discovery?.status === 'running'
}

const NamedRow = z.object({ name: z.string(), type: z.string(), environment: z.string() })

/** What Temporal's page says of work for a connection: "watch connection login (ssh) of lab"; `deed` is its beginning. */
const connectionTelling = async (db: Db, id: string, deed: string): Promise<Telling | undefined> => {
  const row = await db.maybe(
    NamedRow,
    sql`select c.name, c.type, e.name as environment from connections c join environments e on e.id = c.environment_id where c.id = ${id}`,
  )
  return (
    row && {
      line: `${deed} connection ${row.name} (${row.type}) of ${row.environment}`,
      path: `/environment-connections/${encodeURIComponent(id)}/`,
    }
  )
}

export const monitorTelling = (db: Db, id: string): Promise<Telling | undefined> => connectionTelling(db, id, 'watch')

export const discoveryTelling = (db: Db, id: string, number: number): Promise<Telling | undefined> =>
  connectionTelling(db, id, `discovery ${String(number)} through`)

/** What a discovery observed, in the order of what it found. */
export const snapshotsOf = (db: Db, connectionId: string, number: number): Promise<ResourceSnapshot[]> =>
  db.many(
    ResourceSnapshot,
    sql`select ${columnsOf(ResourceSnapshot, 's')}
        from connection_discoveries d cross join lateral unnest(d.snapshot_ids) with ordinality as named (id, place) join resource_snapshots s on s.id = named.id
        where d.connection_id = ${connectionId} and d.number = ${number} order by named.place`,
  )

/** A name that the same things always get, readable and no longer than an id may be. */
export const deterministicId = (words: string, ...of: readonly string[]): string => {
  const hash = createHash('sha256').update(JSON.stringify(of)).digest('hex').slice(0, 10)
  const slug = words.replace(/[^A-Za-z0-9._-]+/g, '-').slice(0, 200)
  return `${slug}-${hash}`
}
