import { randomUUID } from 'node:crypto'
import { columnsOf } from '../../db/projection.ts'
import { countUpTo } from '../../db/rows.ts'
import { sql, where, type Db, type Sql } from '../../db/sql.ts'
import { countBound, type Page } from '../../http/paging.ts'
import { AuditEvent, type AuditQuery, type NewAuditEvent } from './schemas.ts'

/** Appends one event. Its time is the statement's, not the transaction's, so that events of one transaction keep their order. */
export const recordAudit = async (db: Db, event: NewAuditEvent): Promise<void> => {
  const { metadata } = event
  await db.run(
    sql`insert into audit_events (id, event_type, actor_id, actor_type, environment_id, resource_id, connection_id, runtime_id, session_id, execution_id, external_id,
          outcome, summary, metadata, occurred_at)
        values (${`audit-${randomUUID()}`}, ${event.eventType}, ${event.actorId}, ${event.actorType}, ${event.environmentId}, ${event.resourceId}, ${event.connectionId},
          ${event.runtimeId}, ${event.sessionId}, ${event.executionId}, ${event.externalId}, ${event.outcome}, ${event.summary},
          ${metadata === undefined ? null : JSON.stringify(metadata)}, clock_timestamp())`,
  )
}

/** Events that match every filter given, newest first; `total` is counted to one above `countBound`. */
export const listAuditEvents = async (db: Db, filters: AuditQuery, page: Page): Promise<{ rows: AuditEvent[]; total: number }> => {
  const equal = (column: Sql, value: string | undefined): Sql | undefined => (value === undefined ? undefined : sql`${column} = ${value}`)
  const matching = where(
    equal(sql`event_type`, filters.eventType),
    equal(sql`environment_id`, filters.environmentId),
    equal(sql`resource_id`, filters.resourceId),
    equal(sql`connection_id`, filters.connectionId),
    equal(sql`session_id`, filters.sessionId),
    equal(sql`execution_id`, filters.executionId),
    equal(sql`metadata ->> 'credentialRef'`, filters.credentialRef),
    equal(sql`outcome`, filters.outcome),
  )
  const rows = await db.many(
    AuditEvent,
    sql`select ${columnsOf(AuditEvent, 'audit_events')} from audit_events ${matching} order by occurred_at desc, id desc limit ${page.limit} offset ${page.offset}`,
  )
  const total = await countUpTo(db, sql`audit_events ${matching}`, countBound)
  return { rows, total }
}
