import { z } from 'zod'
import { fields, jsonObject, time } from '../db/projection.ts'
import { countUpTo } from '../db/rows.ts'
import { raw, sql, type Db } from '../db/sql.ts'
import { storableJson } from '../outside-text.ts'
import type { OperationKind, OperationRef } from './kind.ts'

/** An event of an operation; `sequence` counts from 1 within it. */
export const OperationEvent = z.strictObject({
  id: z.string(),
  sequence: z.number().describe('place in the events of the operation, from 1'),
  eventType: z.string(),
  aggregateType: z.string(),
  aggregateId: z.string(),
  payload: z.unknown().optional(),
  occurredAt: z.string(),
})
export type OperationEvent = z.output<typeof OperationEvent>

/** The document of a row `e` of `operation_events`. */
export const eventJson = jsonObject({
  id: 'e.sequence::text',
  ...fields('e', 'sequence eventType aggregateType aggregateId payload'),
  occurredAt: time('e.occurred_at'),
})

/**
 * The owner of events, which are numbered in its own table: every kind of operation, and
 * connections.
 */
export type EventSource = Pick<OperationKind, 'name' | 'table' | 'columns'>

/**
 * Appends the next event of an operation, numbered under the lock of its row. The event's aggregate
 * is the operation itself. A record that went with its environment has left its events: the first
 * event of the next record of its id removes them.
 */
export const appendEvent = async (
  tx: Db,
  kind: EventSource,
  { id, generation }: OperationRef,
  type: string,
  payload: Record<string, unknown>,
): Promise<void> => {
  const sequence = await tx.value(
    z.number(),
    sql`with numbered as (
      update ${raw(kind.table)} set last_event_sequence = last_event_sequence + 1
      where ${raw(kind.columns?.id ?? 'id')} =
        ${id}${
          kind.columns?.generation === undefined
            ? raw('')
            : sql`
          and ${raw(kind.columns.generation)} = ${generation}`
        }
      returning last_event_sequence
    ), unfed as (
      insert into event_feed_open as o (kind, operation_id) values (${kind.name}, ${id})
      on conflict on constraint event_feed_open_pkey do update set since = o.since
    ), removed as (
      delete from operation_events where kind = ${kind.name} and operation_id = ${id}
        and (select last_event_sequence from numbered) = 1 returning 1
    )
    insert into operation_events (kind, operation_id, sequence, event_type, aggregate_type, aggregate_id, payload)
    select ${kind.name}, ${id}, last_event_sequence, ${type}, ${kind.name.replaceAll('-', '_')}, ${id},
      ${storableJson(payload)}::jsonb from numbered where (select count(*) from removed) >= 0
    returning sequence`,
  )
  // A statement of its own: it sees what a reader of all events has put there until the mark above.
  if (sequence === 1)
    await tx.run(sql`delete from event_feed where kind = ${kind.name} and operation_id = ${id}`)
}

/**
 * Events of an operation in order: those after `after`, or a page. For a page the caller's `limit`
 * includes one extra row.
 */
export const listEvents = async (
  db: Db,
  kind: OperationKind,
  id: string,
  { limit, offset = 0, after = 0 }: { limit: number; offset?: number; after?: number },
): Promise<OperationEvent[]> => {
  return db.values(
    OperationEvent,
    sql`select ${raw(eventJson)} as body from operation_events e where e.kind = ${kind.name}
      and e.operation_id = ${id} and e.sequence > ${after}
        order by e.sequence limit ${limit} offset ${offset}`,
  )
}

/** The number of an operation's events, counted to 10,001. */
export const countEvents = (db: Db, kind: OperationKind, id: string): Promise<number> =>
  countUpTo(db, sql`operation_events e where e.kind = ${kind.name} and e.operation_id = ${id}`)
