import type { Db } from '../db/sql.ts'
import { follow, type Followed, type FollowedPiece } from '../http/followed-stream.ts'
import { sharedReads } from '../http/shared-reads.ts'
import { listEvents, type OperationEvent } from './events.ts'
import { watchFeed, type Feed } from './feed.ts'
import type { OperationKind } from './kind.ts'

/** The most events of one read. */
export const batchSize = 500
/** A comment of a stream of events. */
export const stillHere = Buffer.from(': still here\n\n')

/** Events as server-sent events; `last` is the cursor behind them. */
export const batchOf = <Cursor>(
  events: readonly { id: string; type: string; data: unknown }[],
  last: Cursor,
): FollowedPiece<Cursor> => ({
  bytes: Buffer.from(
    events
      .map(({ id, type, data }) => `id: ${id}\nevent: ${type}\ndata: ${JSON.stringify(data)}\n\n`)
      .join(''),
  ),
  last,
  full: events.length >= batchSize,
})

/** What a stream shows. */
export interface Source<Cursor> {
  /** The operation that has the events; undefined where they are of all operations. */
  of: { kind: string; id: string } | undefined
  /** The reader has the events up to here. */
  from: Cursor
  /** The events after a cursor, `batchSize` at most; undefined where no further one will follow. */
  read: (after: Cursor) => Promise<FollowedPiece<Cursor> | undefined>
}

/** Server-sent events as they are committed. A reader that was cut goes on with `Last-Event-ID`. */
export const streamEvents = <Cursor>(feed: Feed, { of, from, read }: Source<Cursor>): Followed =>
  follow({ from, read, keepAlive: stillHere, watch: () => watchFeed(feed, of) })

/** The reads for streams of one kind's operations. Equal reads of many streams share one. */
export interface EventReads {
  isOver: (id: string) => Promise<boolean>
  behind: (id: string, after: number) => Promise<FollowedPiece<number>>
}

/** `isOver` returns whether an operation has ended, or is gone; `as` makes the data of an event. */
export const openEventReads = (
  db: Db,
  kind: OperationKind,
  isOver: (id: string) => Promise<boolean>,
  as: (event: OperationEvent) => unknown = (event) => event,
): EventReads => {
  const behind = sharedReads(db, async (key) => {
    const [id, after] = JSON.parse(key) as [string, number]
    const events = await listEvents(db, kind, id, { limit: batchSize, after })
    return batchOf(
      events.map((event) => ({ id: String(event.sequence), type: event.eventType, data: as(event) })),
      events.at(-1)?.sequence ?? after,
    )
  })
  return { isOver: sharedReads(db, isOver), behind: (id, after) => behind(JSON.stringify([id, after])) }
}

/**
 * The events of one operation as server-sent events after the sequence `from`. The id is the
 * sequence within the operation, so `Last-Event-ID` loses no event. The stream ends after the last
 * event of an operation that is over.
 */
export const eventStream = (
  { kind, feed, reads }: { kind: OperationKind; feed: Feed; reads: EventReads },
  id: string,
  from: number,
): Followed => {
  const read = async (after: number): Promise<FollowedPiece<number> | undefined> => {
    // The state is read before the events: an operation that is over at that time has no later
    // ones.
    const over = await reads.isOver(id)
    const batch = await reads.behind(id, after)
    return over && batch.bytes.length === 0 ? undefined : batch
  }
  return streamEvents(feed, { of: { kind: kind.name, id }, from, read })
}
