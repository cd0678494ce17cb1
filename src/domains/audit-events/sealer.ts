import { z } from 'zod'
import { raw, sql, type Db } from '../../db/sql.ts'
import type { Log } from '../../observability/log.ts'
import { everyRound } from '../../pacing/every-round.ts'
import type { VaultKeys } from '../../vault/keys.ts'
import { JsonObject } from '../../http/schema.ts'
import { digestOf, headText, macOf, noKey, sealOf } from './seal.ts'

/** A record is sealed within a second of its commit. */
const pauseMs = 400
const batch = 1_000
/** An arbitrary number. Every version of the service has to use the same one. */
const lock = 7_355_608_153

/** Columns of `SealedMembers`. The time has the stored microseconds. */
export const sealedColumns =
  raw(`id, event_type, actor_id, actor_type, environment_id, resource_id, connection_id, runtime_id, session_id,
    execution_id, external_id, outcome, summary, metadata,
  to_char(occurred_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US') as occurred_at`)

export const SealedMembers = z.object({
  id: z.string(),
  eventType: z.string(),
  actorId: z.string().optional(),
  actorType: z.string().optional(),
  environmentId: z.string().optional(),
  resourceId: z.string().optional(),
  connectionId: z.string().optional(),
  runtimeId: z.string().optional(),
  sessionId: z.string().optional(),
  executionId: z.string().optional(),
  externalId: z.string().optional(),
  outcome: z.string(),
  summary: z.string(),
  metadata: JsonObject.optional(),
  occurredAt: z.string(),
})
const Held = z.object({ held: z.boolean() })
const Head = z.object({ number: z.number(), seal: z.string() })

/**
 * Numbers and chains up to `batch` committed records without a seal, in one transaction: a kill
 * leaves all of them sealed or none. Of several daemons one seals at a time.
 * @returns how many were sealed
 */
export const sealRecords = (db: Db, keys: VaultKeys | undefined): Promise<number> =>
  db.transaction(async (tx) => {
    const { held } = await tx.one(Held, sql`select pg_try_advisory_xact_lock(${lock}) as held`)
    if (!held) return 0
    const records = await tx.many(
      SealedMembers,
      sql`select ${sealedColumns} from audit_events where seal_number is null order by sequence limit ${batch}`,
    )
    const last = records.at(-1)
    if (last === undefined) return 0
    const head = await tx.maybe(Head, sql`select number, seal from audit_head for update`)
    const key = await keys?.primary()
    const keyId = key?.id ?? noKey
    let number = head?.number ?? 0
    let seal = head?.seal ?? ''
    const links = records.map(({ occurredAt, ...record }) => {
      const digest = digestOf(key, record, occurredAt)
      seal = sealOf(key, seal, ++number, record.id, digest)
      return { id: record.id, number, digest, seal }
    })
    await tx.run(sql`update audit_events e set seal_number = g.number, digest = g.digest, seal = g.seal,
      seal_key = ${keyId}
      from unnest(${links.map((link) => link.id)}::text[], ${links.map((link) => link.number)}::bigint[],
        ${links.map((link) => link.digest)}::text[],
        ${links.map((link) => link.seal)}::text[]) as g (id, number, digest, seal)
      where e.id = g.id`)
    const signature = macOf(key, 'head', headText(number, last.id, seal))
    await tx.run(sql`insert into audit_head (number, event_id, seal, signature, signature_key)
      values (${number}, ${last.id}, ${seal}, ${signature}, ${keyId})
      on conflict (singleton) do update set number = excluded.number, event_id = excluded.event_id, seal =
        excluded.seal, signature = excluded.signature,
        signature_key = excluded.signature_key`)
    return links.length
  })

/**
 * Seals until it is stopped. While PostgreSQL or the key is unavailable it seals nothing;
 * afterwards it seals the whole backlog.
 */
export const openSealer = (
  { db, vaultKeys }: { db: Db; vaultKeys: VaultKeys | undefined },
  log: Pick<Log, 'warn'>,
) => {
  let failing = false
  const round = async (signal: AbortSignal): Promise<void> => {
    let sealed: number
    do {
      sealed = await sealRecords(db, vaultKeys)
      failing = false
    } while (sealed === batch && !signal.aborted)
  }
  return everyRound(pauseMs, round, (error) => {
    if (!failing) log.warn({ err: error }, 'audit records cannot be sealed now; they are later')
    failing = true
  })
}
