import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import { columnsOf } from '../../db/projection.ts'
import { readPage } from '../../db/rows.ts'
import { raw, sql, where, type Db, type Sql } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { storableJson } from '../../outside-text.ts'
import { AuditEvent, type AuditQuery, type NewAuditEvent } from './schemas.ts'
import { noKey, signedText } from './seal.ts'

/**
 * Appends one event. Its time is the statement's, not the transaction's, so that events of one
 * transaction keep their order.
 */
export const recordAudit = async (db: Db, given: NewAuditEvent): Promise<void> => {
  // The text that is signed is the one that is stored.
  const event = JSON.parse(storableJson(given)) as NewAuditEvent
  const { metadata } = event
  const id = `audit-${randomUUID()}`
  const signed = await db.sign?.(signedText({ id, ...event }))
  await db.run(
    sql`insert into audit_events (id, event_type, actor_id, actor_type, environment_id, resource_id,
      connection_id, runtime_id, session_id, execution_id, external_id,
          outcome, summary, metadata, occurred_at, signature, signature_key)
        values (${id}, ${event.eventType}, ${event.actorId}, ${event.actorType}, ${event.environmentId},
          ${event.resourceId}, ${event.connectionId},
          ${event.runtimeId}, ${event.sessionId}, ${event.executionId}, ${event.externalId}, ${event.outcome},
            ${event.summary},
          ${metadata === undefined ? null : JSON.stringify(metadata)}, clock_timestamp(),
            ${signed?.signature}, ${signed?.keyId})`,
  )
}

const KeyUse = z.object({ keyId: z.string(), records: z.number() })

/** Number of records by the id of the vault's key that signed or sealed them: without it none is proved. */
export const auditKeyUse = async (db: Db): Promise<ReadonlyMap<string, number>> => {
  const rows = await db.many(
    KeyUse,
    sql`select used.key_id, count(*) as records from audit_events e cross join lateral
        (select e.seal_key as key_id union select e.signature_key) used
      where used.key_id <> ${noKey} group by used.key_id order by used.key_id`,
  )
  return new Map(rows.map(({ keyId, records }) => [keyId, records]))
}

const matchingOf = (filters: AuditQuery): (Sql | undefined)[] => {
  const when = (value: string | undefined, condition: string): Sql | undefined =>
    value === undefined ? undefined : sql`${raw(condition)} ${value}`
  return [
    when(filters.eventType, 'event_type ='),
    when(filters.actorId, 'actor_id ='),
    when(filters.environmentId, 'environment_id ='),
    when(filters.resourceId, 'resource_id ='),
    when(filters.connectionId, 'connection_id ='),
    when(filters.sessionId, 'session_id ='),
    when(filters.executionId, 'execution_id ='),
    when(filters.credentialRef, "metadata ->> 'credentialRef' ="),
    when(filters.outcome, 'outcome ='),
    when(filters.since, 'occurred_at >='),
    when(filters.until, 'occurred_at <'),
  ]
}

const Numbered = AuditEvent.extend({ sealNumber: z.number() })

/**
 * Sealed events after a number, in their order. A later seal never has a lower number.
 * @returns `last`, the number behind which the next read goes on: records that do not match are behind it
 */
export const listSealedEvents = async (db: Db, filters: AuditQuery, after: number, limit: number) => {
  // The number and the records up to it are committed at once, so the later statement sees them all.
  const head = await lastSealNumber(db)
  if (head <= after) return { found: [], last: after }
  const rows = await db.many(
    Numbered,
    sql`select ${columnsOf(Numbered, 'audit_events')} from audit_events
      ${where(sql`seal_number > ${after}`, ...matchingOf(filters))} order by seal_number limit ${limit}`,
  )
  const seen = rows.at(-1)?.sealNumber ?? after
  return {
    found: rows.map(({ sealNumber, ...event }) => ({ sealNumber, event })),
    last: rows.length < limit ? Math.max(head, seen) : seen,
  }
}

export const lastSealNumber = async (db: Db): Promise<number> =>
  (await db.value(z.number(), sql`select number from audit_head`)) ?? 0

/** The key of the vault that sealed the newest record; undefined where there is none, or no key did. */
export const headKey = (db: Db): Promise<string | undefined> =>
  db.value(z.string(), sql`select signature_key from audit_head where signature_key <> ${noKey}`)

/**
 * Events that match every filter given, newest first; `total` is counted to one above `countBound`.
 */
export const listAuditEvents = (db: Db, filters: AuditQuery, page: Page) =>
  readPage(db, AuditEvent, {
    select: columnsOf(AuditEvent, 'audit_events'),
    from: sql`audit_events ${where(...matchingOf(filters))}`,
    order: sql`occurred_at desc, id desc`,
    page,
  })
