import { z } from 'zod'
import { columnsOf } from '../../db/projection.ts'
import { countUpTo } from '../../db/rows.ts'
import { join, sql, type Db, type Sql } from '../../db/sql.ts'
import { Refusal } from '../../refusal.ts'
import { recordAudit } from '../audit-events/store.ts'
import type { Proof } from '../audit-events/verify.ts'
import { ConsolePlace, type Console, type SessionPlace } from './place.ts'
import type { ConsoleSession } from './schemas.ts'

/** The table of terminals, which are no durable operations. */
export const terminalsTable = 'console_sessions'

const ConsoleSessionRow = z.object({
  id: z.string(),
  status: z.enum(['starting', 'connected', 'closed', 'failed']),
  resourceId: z.string(),
  runtimeId: z.string(),
  connectionId: z.string().optional(),
  actorId: z.string().optional(),
  place: ConsolePlace,
  externalId: z.string().optional(),
  failure: z.string().optional(),
  /** The process that serves it. */
  servedBy: z.string().optional(),
  takenBytes: z.number(),
  closeRequestedAt: z.string().optional(),
  /** Seconds since the close was requested, by the database's clock. */
  closingSeconds: z.number().optional(),
  createdAt: z.string(),
  connectedAt: z.string().optional(),
  finishedAt: z.string().optional(),
})
export type ConsoleSessionRow = Omit<z.output<typeof ConsoleSessionRow>, 'place'> & { place: SessionPlace }
const columns = columnsOf(ConsoleSessionRow, 's', {
  closingSeconds: 'extract(epoch from clock_timestamp() - s.close_requested_at)::double precision',
})

/** A row as its answer. */
export const consoleSessionDocument = (row: ConsoleSessionRow): ConsoleSession => {
  const { id, resourceId, runtimeId, connectionId = '', status, createdAt } = row
  const { actorId, externalId, failure, connectedAt, finishedAt } = row
  return {
    ...{ id, resourceId, runtimeId, connectionId, status, createdAt },
    ...{ actorId, externalId, failure, connectedAt, finishedAt },
  }
}

/**
 * Records a session to be opened, which `server` serves. @throws Refusal 409 while the allowed number of
 * sessions is open
 */
export const acceptSession = (
  db: Db,
  {
    id,
    resourceId,
    actorId,
    console: { runtimeId, place },
    server,
    most,
  }: Pick<ConsoleSessionRow, 'id' | 'resourceId'> & {
    actorId: string
    console: Console
    server: string
    most: number
  },
): Promise<void> =>
  db.transaction(async (tx) => {
    await tx.run(sql`select pg_advisory_xact_lock(hashtext('console_sessions'))`)
    if ((await countUpTo(tx, sql`console_sessions where status in ('starting', 'connected')`, most)) >= most)
      throw new Refusal(
        'conflict',
        `${String(most)} console sessions are open, as many as SERVICE_CONSOLE_SESSIONS allows; close one`,
      )
    await tx.run(sql`insert into console_sessions (id, resource_id, runtime_id, connection_id, actor_id, place,
        served_by, served_at)
      values (${id}, ${resourceId}, ${runtimeId}, ${place.connectionId ?? null}, ${actorId}, ${JSON.stringify(place)},
        ${server}, clock_timestamp())`)
    await audit(
      tx,
      { id, resourceId, runtimeId, connectionId: place.connectionId, actorId },
      'started',
      `console session ${id} on ${resourceId} started`,
    )
  })

const audit = (
  tx: Db,
  {
    id,
    actorId,
    ...subject
  }: Pick<ConsoleSessionRow, 'id' | 'resourceId' | 'runtimeId' | 'connectionId' | 'actorId'>,
  change: 'started' | 'connected' | 'closed' | 'failed',
  summary: string,
  metadata?: Record<string, unknown>,
): Promise<unknown> => {
  const { resourceId, runtimeId, connectionId } = subject
  return recordAudit(tx, {
    ...{ eventType: `console.session.${change}`, resourceId, runtimeId, sessionId: id, summary },
    ...(actorId === undefined
      ? { actorId: 'service', actorType: 'service' }
      : { actorId, actorType: 'user' }),
    ...(connectionId === undefined ? {} : { connectionId }),
    ...(metadata === undefined ? {} : { metadata }),
    outcome: change === 'failed' ? 'failed' : change === 'started' ? 'started' : 'succeeded',
  })
}

export const readConsoleSession = async (db: Db, id: string): Promise<ConsoleSessionRow | undefined> =>
  (await db.maybe(ConsoleSessionRow, sql`select ${columns} from console_sessions s where s.id = ${id}`)) as
    | ConsoleSessionRow
    | undefined

/** Sessions that are open, oldest first. */
export const openSessions = async (db: Db): Promise<ConsoleSessionRow[]> =>
  (await db.many(
    ConsoleSessionRow,
    sql`select ${columns} from console_sessions s where s.status in ('starting', 'connected')
      order by s.created_at, s.id limit 1000`,
  )) as ConsoleSessionRow[]

/** A process that has not renewed its word for this long serves a terminal no longer. */
const goneSeconds = 30
const renewedSeconds = 5
const neverSeconds = 1e9

/**
 * Makes `server` serve the open sessions that this host reaches, but for those of another one that lives.
 * `takesOver`: also those of servers that have not renewed their word.
 */
export const claimSessions = (
  db: Db,
  server: string,
  hostId: string,
  { takesOver }: { takesOver: boolean },
): Promise<number> =>
  db.run(sql`update console_sessions set served_by = ${server}, served_at = clock_timestamp()
    where status in ('starting', 'connected') and coalesce(place ->> 'host', ${hostId}) = ${hostId}
      and coalesce(served_at < clock_timestamp() - make_interval(secs =>
        case served_by when ${server} then ${renewedSeconds}::double precision
          else ${takesOver ? goneSeconds : neverSeconds} end), true)`)

/** Leaves the sessions of `server` to others. */
export const releaseSessions = (db: Db, server: string): Promise<number> =>
  db.run(sql`update console_sessions set served_by = null, served_at = null
    where status in ('starting', 'connected') and served_by = ${server}`)

/** Moves a session from starting to connected, once. */
export const connectSession = (db: Db, row: ConsoleSessionRow, externalId: string): Promise<void> =>
  db.transaction(async (tx) => {
    const changed =
      await tx.run(sql`update console_sessions set status = 'connected', connected_at = clock_timestamp(),
        external_id = ${externalId}, failure = null
      where id = ${row.id} and status = 'starting'`)
    if (changed === 1) await audit(tx, row, 'connected', `console session ${row.id} connected`)
  })

/** Records why a session that has not begun must wait. */
export const recordWait = (db: Db, id: string, reason: string): Promise<number> =>
  db.run(sql`update console_sessions set failure = ${reason}
    where id = ${id} and status = 'starting' and failure is distinct from ${reason}`)

const Recording = z.object({ pieces: z.number(), recordingDigest: z.string() })

/** The number of pieces of a session's recording, and the digest over them. */
const recordingOf = (tx: Db, id: string) =>
  tx.one(
    Recording,
    sql`select count(*) as pieces, encode(sha256(coalesce(string_agg(sha256(convert_to(
        concat_ws('|', sequence, direction, at_seconds), 'UTF8') || content), '' order by sequence), '')), 'hex')
        as recording_digest
      from console_records where session_id = ${id}`,
  )

/** Compares the recording of a session with the digest that the record of its end holds. */
export const recordingProof: Proof = async (tx, { sessionId, metadata }) => {
  const recorded = Recording.safeParse(metadata)
  if (sessionId === undefined || !recorded.success) return undefined
  // Archives hold sessions without their recordings.
  const session = await tx.value(
    z.string(),
    sql`select id from console_sessions where id = ${sessionId} and current_schema() = 'public'`,
  )
  if (session === undefined) return undefined
  const found = await recordingOf(tx, sessionId)
  return found.recordingDigest === recorded.data.recordingDigest
    ? undefined
    : `changed: the recording of console session ${sessionId} is not the one that it ended with`
}

/** Ends an open session, once; `failure` is the reason of a failure. */
export const endSession = (db: Db, row: ConsoleSessionRow, failure?: string): Promise<void> =>
  db.transaction(async (tx) => {
    const status = failure === undefined ? 'closed' : 'failed'
    const changed =
      await tx.run(sql`update console_sessions set status = ${status}, failure = ${failure ?? null},
        finished_at = clock_timestamp()
      where id = ${row.id} and status in ('starting', 'connected')`)
    if (changed === 1)
      await audit(
        tx,
        row,
        status,
        `console session ${row.id} ${status}${failure === undefined ? '' : `: ${failure}`}`,
        await recordingOf(tx, row.id),
      )
  })

/** Condition of a session or a command that is over and may have left something that this host clears. */
export const isUncleared = (hostId: string): Sql =>
  sql`finished_at > now() - interval '30 days' and cleared_at is null
    and coalesce(place ->> 'host', ${hostId}) = ${hostId}`

/**
 * Sessions that ended in the last 30 days and may have left something at their resource, as far as
 * this host reaches it; oldest first, `limit` at most.
 */
export const unclearedSessions = async (
  db: Db,
  hostId: string,
  limit: number,
): Promise<ConsoleSessionRow[]> =>
  (await db.many(
    ConsoleSessionRow,
    sql`select ${columns} from console_sessions s where ${isUncleared(hostId)} order by s.finished_at limit ${limit}`,
  )) as ConsoleSessionRow[]

/** Selects `id` and `status` of the terminals that are open. */
export const openTerminals = sql`select id, status from console_sessions where status in ('starting', 'connected')`

/** Ended terminals and commands that may still have something at their resource; 100 at most. */
export const leftOfConsole = async (db: Db): Promise<string[]> =>
  db.values(
    z.string(),
    sql`select 'console-session/' || id as id from console_sessions
        where finished_at > now() - interval '30 days' and cleared_at is null
      union all select 'console-command/' || id from console_commands
        where finished_at > now() - interval '30 days' and cleared_at is null
      order by 1 limit 100`,
  )

/** Records that a session has left nothing at its resource. */
export const clearSession = (db: Db, id: string): Promise<number> =>
  db.run(sql`update console_sessions set cleared_at = clock_timestamp() where id = ${id}`)

/** Records the request to close a session. @returns false where there is no such session */
export const requestClose = async (db: Db, id: string): Promise<boolean> =>
  (await db.run(
    sql`update console_sessions set close_requested_at = coalesce(close_requested_at, now()) where id = ${id}`,
  )) === 1

export interface ConsoleRecord {
  direction: 'input' | 'output' | 'resize'
  atSeconds: number
  content: Buffer
}

/**
 * Appends to the record of an open session the part of the terminal's own recording between two
 * offsets. The end of a session proves its record, so nothing is added after it. The contents are
 * parameters of their own: as an array, pg would send them as hexadecimal text.
 * @returns false where the session is over, or its record does not end at `from`
 */
export const appendRecords = async (
  db: Db,
  id: string,
  records: readonly ConsoleRecord[],
  { from, to }: { from: number; to: number },
): Promise<boolean> => {
  const rows = records.map(
    ({ direction, atSeconds, content }, place) =>
      sql`(${place + 1}::bigint, ${direction}::text, ${atSeconds}::double precision, ${content}::bytea)`,
  )
  const taken = sql`update console_sessions set taken_bytes = ${to}
    where id = ${id} and status in ('starting', 'connected') and taken_bytes = ${from}`
  if (rows.length === 0) return (await db.run(taken)) > 0
  const added = await db.run(sql`with open as (${taken} returning id)
      insert into console_records (session_id, sequence, direction, at_seconds, content)
      select open.id, given.place + (select coalesce(max(sequence), 0) from console_records where session_id = ${id}),
        given.direction, given.at_seconds, given.content
      from open, (values ${join(rows)}) given (place, direction, at_seconds, content)`)
  return added > 0
}

const RecordRow = z.object({
  sequence: z.number(),
  direction: z.enum(['input', 'output', 'resize']),
  atSeconds: z.number(),
  content: z.instanceof(Buffer),
})

/** The record in order, a hundred rows at a time, so that 64 MiB are never in memory at once. */
export async function* recordsOf(db: Db, id: string): AsyncGenerator<z.output<typeof RecordRow>> {
  for (let after = 0; ;) {
    const rows = await db.many(
      RecordRow,
      sql`select sequence, direction, at_seconds, content from console_records where session_id = ${id}
        and sequence > ${after} order by sequence limit 100`,
    )
    yield* rows
    const last = rows.at(-1)
    if (last === undefined) return
    after = last.sequence
  }
}

const TailRow = z.object({ content: z.instanceof(Buffer), taken: z.number() })

/** The last bytes of recorded output, and the offset to which the recording is stored. */
export const outputTail = async (
  db: Pick<Db, 'many'>,
  id: string,
  most: number,
): Promise<{ bytes: Buffer; taken: number }> => {
  const rows = await db.many(
    TailRow,
    sql`select r.content, s.taken_bytes as taken from console_sessions s
      join lateral (select *, sum(octet_length(content)) over (order by sequence desc) as total
          from console_records where session_id = s.id and direction = 'output') r on true
        where s.id = ${id} and r.total - octet_length(r.content) < ${most} order by r.sequence`,
  )
  const all = Buffer.concat(rows.map(({ content }) => content))
  return { bytes: all.subarray(Math.max(0, all.length - most)), taken: rows[0]?.taken ?? 0 }
}

/**
 * Selects sessions or commands that ended this many days ago. Those that may have left something at
 * their resource stay as long as it is looked for: without them nothing would remove it.
 */
export const keptLongEnough = (days: number): Sql =>
  sql`finished_at < now() - make_interval(days =>
    case when cleared_at is null then greatest(${days}::int, 30) else ${days}::int end)`

/** Deletes sessions, with their records, that ended this many days ago. */
export const removeOldSessions = (db: Db, days: number): Promise<number> =>
  db.run(sql`delete from console_sessions where ${keptLongEnough(days)}`)
