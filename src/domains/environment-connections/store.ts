import { createHash, randomUUID } from 'node:crypto'
import { z } from 'zod'
import type { SshHostKey } from '../../clients/ssh/target.ts'
import { columnsOf, time } from '../../db/projection.ts'
import { raw, sql, type Db } from '../../db/sql.ts'
import { appendEvent, type EventSource } from '../../operations/events.ts'
import { storableJson } from '../../outside-text.ts'
import { unacceptable, type Problem } from '../../refusal.ts'
import { recordAudit } from '../audit-events/store.ts'
import { holdCredential } from '../credentials/store.ts'
import { putConnection, setEnvironmentStatus } from '../environments/connections.ts'
import { connectionSecretProblems, maskedConnection, unmaskedConnection } from '../environments/secrets.ts'
import type { ConnectionChange } from './changes.ts'
import { lockInventory } from '../environments/store.ts'
import type { ConnectionsReplaced } from '../environments/users.ts'
import { ConnectionCheck, ConnectionDocument } from './schemas.ts'
import { environmentStatus } from './status.ts'

/** The number of checks stored of each connection. */
export const keptChecks = 1_000
/** The limit of connections per environment. */
const maxConnections = 1_000

const createdAtText = time('c.created_at')
const columns = columnsOf(ConnectionDocument, 'c', { createdAt: createdAtText })

/** A stored connection with its secrets masked: no code uses those secrets. */
export const readConnection = async (db: Db, id: string): Promise<ConnectionDocument | undefined> => {
  const connection = await storedConnection(db, id)
  return connection === undefined ? undefined : maskedConnection(connection)
}

/** One connection, or all of an environment. */
export type ConnectionsOf = { connectionId: string } | { environmentId: string }

const storedConnections = (db: Db, of: ConnectionsOf): Promise<ConnectionDocument[]> =>
  db.many(
    ConnectionDocument,
    sql`select ${columns} from connections c
      where ${'connectionId' in of ? sql`c.id = ${of.connectionId}` : sql`c.environment_id = ${of.environmentId}`}`,
  )

/** Stored connections with their secrets masked, as `readConnection`. */
export const readConnections = async (db: Db, of: ConnectionsOf): Promise<ConnectionDocument[]> =>
  (await storedConnections(db, of)).map(maskedConnection)

const storedConnection = (db: Db, id: string): Promise<ConnectionDocument | undefined> =>
  db.maybe(ConnectionDocument, sql`select ${columns} from connections c where c.id = ${id}`)

const CreationChecksRow = z.object({
  environment: z.boolean(),
  owner: z.string().optional(),
  namesake: z.string().optional(),
  others: z.number(),
})

/**
 * Problems of a connection that only the store can find: an environment that does not exist, an id
 * or a name that is taken, secrets that the store does not hold already. Takes any value.
 */
export const storedProblems = async (db: Db, document: unknown): Promise<Problem[]> => {
  const { id, environmentId, name } = z
    .object({ id: z.string().catch(''), environmentId: z.string().catch(''), name: z.string().catch('') })
    .catch({ id: '', environmentId: '', name: '' })
    .parse(document)
  const found = await db.one(
    CreationChecksRow,
    sql`select exists (select from environments where id = ${environmentId}) as environment,
          (select environment_id from connections where id = ${id})::text as owner,
          (select min(id collate "C") from connections where environment_id = ${environmentId}
            and name = ${name} and id <> ${id})::text as namesake,
          (select count(*) from connections where environment_id = ${environmentId} and id <> ${id}) as others`,
  )
  const problems = connectionSecretProblems(document, await storedConnection(db, id))
  const report = (path: string, message: string): void => void problems.push({ path, message })
  if (environmentId !== '' && !found.environment)
    report(
      'environmentId',
      `${JSON.stringify(environmentId)} names no environment; register the environment first`,
    )
  if (found.owner !== undefined && environmentId !== '' && found.owner !== environmentId)
    report(
      'environmentId',
      `the connection ${JSON.stringify(id)} belongs to environment ${JSON.stringify(found.owner)}; ` +
        'a connection stays in its environment',
    )
  if (found.namesake !== undefined)
    report(
      'name',
      `${JSON.stringify(name)} is the name of connection ${JSON.stringify(found.namesake)} of this ` +
        'environment; give each its own',
    )
  if (found.owner === undefined && found.others >= maxConnections)
    report('', `the environment has ${maxConnections} connections, which is the most`)
  return problems
}

/**
 * The members of a connection that decide which host keys are right. A change of them deletes the
 * recorded keys.
 */
const trustOf = ({
  endpoint,
  configuration = {},
}: Pick<ConnectionDocument, 'endpoint' | 'configuration'>): string =>
  JSON.stringify([
    endpoint,
    ...['port', 'knownHosts', 'hostKeyFingerprints', 'hostKeyAlias', 'proxyJump'].map(
      (key) => configuration[key] ?? null,
    ),
  ])

/**
 * Stores a connection under its id, new or in place of the stored one.
 * @returns the connection with its creation time
 * @throws Refusal 422 with the problems that the store finds
 */
export const saveConnection = (db: Db, connection: ConnectionDocument): Promise<ConnectionDocument> =>
  db.transaction(async (tx) => {
    await lockInventory(tx)
    const problems = await storedProblems(tx, connection)
    if (problems.length > 0) throw unacceptable(problems)
    const { id, credentialRef } = connection
    // A reference is opaque: a reference to a missing credential is stored, and its use reports the
    // lack.
    await holdCredential(tx, credentialRef)
    const before = await storedConnection(tx, id)
    const whole = unmaskedConnection(connection, before)
    const { configuration } = whole
    await putConnection(tx, whole, configuration === undefined ? null : JSON.stringify(configuration))
    if (before !== undefined && trustOf(before) !== trustOf(whole))
      await tx.run(sql`delete from connection_host_keys where connection_id = ${id}`)
    return (await readConnection(tx, id))!
  })

/** Deletes the recorded host keys of connections that get another trust with their environment. */
export const dropChangedTrust: ConnectionsReplaced = async (tx, environmentId, replacing) => {
  const trusts = new Map(replacing.map((connection) => [connection.id, trustOf(connection)]))
  const changed = (await storedConnections(tx, { environmentId })).filter(
    (connection) => trusts.get(connection.id) !== trustOf(connection),
  )
  await tx.run(
    sql`delete from connection_host_keys where connection_id = any(${changed.map(({ id }) => id)}::text[])`,
  )
}

const KnownHostRow = z.object({ host: z.string(), fingerprint: z.string(), line: z.string() })

// ---------------------------------------------------------------------------------------------------------------
// host keys

/** The host keys that first contacts recorded. */
export const recordedHostKeys = (
  db: Db,
  connectionId: string,
): Promise<{ host: string; fingerprint: string; line: string }[]> =>
  db.many(
    KnownHostRow,
    sql`select host, fingerprint, line from connection_host_keys where connection_id = ${connectionId} order by host`,
  )

/**
 * Records the key of a first contact, unless the host has one. A key of another type is another
 * key.
 * @returns the recorded fingerprint
 */
export const keepHostKey = async (
  db: Db,
  connectionId: string,
  key: SshHostKey,
): Promise<{ fingerprint: string; isNew: boolean }> => {
  const inserted = await db.run(
    sql`insert into connection_host_keys (connection_id, host, key_type, fingerprint, line)
        values (${connectionId}, ${key.host}, ${key.type}, ${key.fingerprint}, ${key.line}) on conflict do nothing`,
  )
  const fingerprint = await db.only(
    z.string(),
    sql`select fingerprint from connection_host_keys where connection_id = ${connectionId} and host = ${key.host}`,
  )
  return { fingerprint, isNew: inserted === 1 }
}

// ------------------------------------------------------------------------------------------------------------------
// checks

const checkColumns = columnsOf(ConnectionCheck, 'connection_checks')

/** The newest checks of a connection. */
export const listChecks = (db: Db, connectionId: string, limit: number): Promise<ConnectionCheck[]> =>
  db.many(
    ConnectionCheck,
    sql`select ${checkColumns} from connection_checks where connection_id = ${connectionId}
      order by checked_at desc, id desc limit ${limit}`,
  )

/** Events of connections are stored beside the events of operations. */
const connectionEvents: EventSource = { name: 'connection', table: 'connections' }

export interface NewCheck {
  status: 'online' | 'offline'
  message: string
  latencyMs: number
  metadata: Record<string, unknown>
}

/**
 * Locks an environment and its connection, in the order that the deletion of an environment uses.
 * @returns false where they are gone; another connection may have the id by then
 */
export const lockConnection = async (
  tx: Db,
  { id, environmentId, createdAt }: ConnectionDocument,
): Promise<boolean> => {
  await tx.run(sql`select 1 from environments where id = ${environmentId} for no key update`)
  const locked = await tx.run(
    sql`select 1 from connections c where id = ${id} and ${raw(createdAtText)} = ${createdAt} for update`,
  )
  return locked === 1
}

/** Marks the start of a check: an environment without any check becomes `connecting`. */
export const beginCheck = (db: Db, connection: ConnectionDocument): Promise<void> =>
  db.transaction((tx) => settleEnvironment(tx, connection.environmentId, connection.id, true))

/**
 * Records a check and its effects: the connection's state and the environment's status. Each change
 * is an audit record, unless the check is `audited` already.
 * @returns undefined where the connection is gone
 */
export const recordCheck = (
  db: Db,
  connection: ConnectionDocument,
  check: NewCheck,
  { audited = false }: { audited?: boolean } = {},
): Promise<{ check: ConnectionCheck; change: ConnectionChange | undefined } | undefined> =>
  db.transaction(async (tx) => {
    const { id: connectionId, environmentId } = connection
    if (!(await lockConnection(tx, connection))) return undefined
    const [before] = await listChecks(tx, connectionId, 1)
    const recorded = await tx.one(
      ConnectionCheck,
      sql`insert into connection_checks (id, connection_id, status, message, latency_ms, checked_at, metadata)
          values (${`connection-check-${randomUUID()}`}, ${connectionId}, ${check.status}, ${check.message},
            ${check.latencyMs}, clock_timestamp(),
            ${storableJson(check.metadata)}) returning ${checkColumns}`,
    )
    await tx.run(
      sql`delete from connection_checks where connection_id = ${connectionId} and (checked_at, id) <
          (select checked_at, id from connection_checks where connection_id = ${connectionId}
            order by checked_at desc, id desc offset ${keptChecks - 1} limit 1)`,
    )
    if (before?.status !== check.status)
      await appendEvent(
        tx,
        connectionEvents,
        { id: connectionId, generation: 1 },
        `connection.${check.status}`,
        { message: check.message },
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
    return { check: recorded, change: changeBetween(before, recorded) }
  })

const waitsForLogin = ({ metadata }: ConnectionCheck): boolean => metadata?.['waitsForLogin'] === true

/** The difference between a check and the one before; undefined where there is none. */
const changeBetween = (
  before: ConnectionCheck | undefined,
  check: ConnectionCheck,
): ConnectionChange | undefined => {
  const { connectionId, status, message: reason = '' } = check
  if (before?.status === status && waitsForLogin(before) === waitsForLogin(check)) return undefined
  return {
    connectionId,
    status,
    reason,
    waitsForLogin: waitsForLogin(check),
    ...(before === undefined ? {} : { before: before.status }),
  }
}

const Standing = z.object({
  id: z.string(),
  status: z.string().optional(),
  discovering: z.boolean(),
  discovered: z.boolean(),
})

/** Updates the environment's status to match its connections. */
export const settleEnvironment = async (
  tx: Db,
  environmentId: string,
  connectionId: string,
  checking: boolean,
): Promise<void> => {
  const before = await tx.value(
    z.string(),
    sql`select status from environments where id = ${environmentId} for no key update`,
  )
  if (before === undefined) return
  const connections = await tx.many(
    Standing,
    sql`select c.id, k.status, exists (select from connection_discoveries d where d.connection_id = c.id
      and d.status in ('queued', 'running')) as discovering,
          exists (select from connection_discoveries d where d.connection_id = c.id
            and d.status = 'completed') as discovered
        from connections c left join lateral (select status from connection_checks where connection_id = c.id
          order by checked_at desc, id desc limit 1) k on true
        where c.environment_id = ${environmentId}`,
  )
  const status = environmentStatus(before, connections, checking)
  if (status === before) return
  await setEnvironmentStatus(tx, environmentId, status)
  await recordAudit(tx, {
    eventType: 'environment.status-changed',
    actorType: 'service',
    environmentId,
    connectionId,
    outcome: status === 'unreachable' || status === 'degraded' ? 'failed' : 'succeeded',
    summary: `environment ${environmentId}: ${before} → ${status}`,
    metadata: { before, after: status },
  })
}

// -----------------------------------------------------------------------------------------------------------------
// monitor

/** Whether a connection has the members that a check needs. */
export const monitored = sql`connection_is_monitored(type, endpoint, credential_ref)`

/**
 * The number of consecutive successful checks, counted from the newest; undefined where the
 * connection cannot be checked.
 */
export const successesInRow = (db: Db, connectionId: string): Promise<number | undefined> =>
  db.value(
    z.number(),
    sql`select (select count(*) from (select 1 from connection_checks k where k.connection_id = c.id and k.checked_at >
            coalesce((select max(checked_at) from connection_checks where connection_id = c.id
              and status = 'offline'), '-infinity') limit 100) counted) as successes
        from connections c where c.id = ${connectionId} and ${monitored}`,
  )

/** A name that equal inputs always yield, readable and within the length limit of ids. */
export const deterministicId = (prefix: string, ...of: readonly string[]): string => {
  const hash = createHash('sha256').update(JSON.stringify(of)).digest('hex').slice(0, 10)
  const slug = prefix.replace(/[^A-Za-z0-9._-]+/g, '-').slice(0, 200)
  return `${slug}-${hash}`
}
