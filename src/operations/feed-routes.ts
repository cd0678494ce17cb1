import { z } from 'zod'
import { sql, raw, type Db } from '../db/sql.ts'
import { wholeNumber } from '../http/paging.ts'
import { Reply, route, type Route } from '../http/route.ts'
import { sharedReads } from '../http/shared-reads.ts'
import { Refusal } from '../refusal.ts'
import { eventJson, OperationEvent } from './events.ts'
import { feedEvents, type Feed } from './feed.ts'
import { batchOf, batchSize, streamEvents } from './streams.ts'

/** The sequence of a place behind all events of its position. Its text leaves it out. */
const wholePosition = Number.MAX_SAFE_INTEGER

/** A place in the order of all events: after the event `sequence` of the feed's `position`. */
interface Cursor {
  position: number
  sequence: number
}

const cursorForm = /^(\d{1,15})(?:\.(\d{1,15}))?$/
const cursorOf = (text: string): Cursor | undefined => {
  const [, position, sequence] = cursorForm.exec(text) ?? []
  return position === undefined
    ? undefined
    : { position: Number(position), sequence: Number(sequence ?? wholePosition) }
}
const textOf = ({ position, sequence }: Cursor): string =>
  sequence === wholePosition ? String(position) : `${String(position)}.${String(sequence)}`

const FeedEvent = z.strictObject({
  cursor: z.string().describe('place in the order of all events; the id of a server-sent event'),
  kind: z
    .string()
    .describe(
      'of the operation: `execution-run`, `planning-session`, `connection-discovery`, `connection`, …',
    ),
  operationId: z.string(),
  event: OperationEvent,
})
const FeedPage = z.strictObject({
  items: z.array(FeedEvent),
  last: z
    .string()
    .describe('give it as `after` to read on: the last event here, or the end of the feed of other topics'),
})

const FeedRow = z.object({
  position: z.number(),
  kind: z.string(),
  operationId: z.string(),
  event: OperationEvent,
})

const readFeed = async (
  db: Db,
  { position, sequence }: Cursor,
  topics: readonly string[] | undefined,
  limit: number,
): Promise<z.output<typeof FeedEvent>[]> => {
  const rows = await db.many(
    FeedRow,
    sql`select f.position, f.kind, f.operation_id, ${raw(eventJson)} as event from event_feed f
        join operation_events e on e.kind = f.kind and e.operation_id = f.operation_id
          and e.sequence between f.first_sequence and f.last_sequence
        where f.position >= ${position} and (f.position > ${position} or e.sequence > ${sequence})
          ${topics === undefined ? raw('') : sql`and f.kind = any(${topics}::text[])`}
        order by f.position, e.sequence limit ${limit}`,
  )
  return rows.map(({ position: at, event, ...of }) => ({
    cursor: textOf({ position: at, sequence: event.sequence }),
    ...of,
    event,
  }))
}

const lastPosition = async (db: Db): Promise<Cursor> => {
  const position = await db.only(
    z.number(),
    sql`select coalesce(max(position), 0) as position from event_feed`,
  )
  return { position, sequence: wholePosition }
}

/**
 * Events after a cursor, `limit` at most. `last` is the cursor behind which the next read goes on:
 * events of other topics are not read again.
 */
export const feedBehind = async (
  db: Db,
  cursor: Cursor,
  topics: readonly string[] | undefined,
  limit = batchSize,
) => {
  // Positions are given under a lock that ends with their commit, so the later statement sees all of
  // them up to this one.
  const head = topics === undefined ? cursor : await lastPosition(db)
  const items = await readFeed(db, cursor, topics, limit)
  const seen = cursorOf(items.at(-1)?.cursor ?? '') ?? cursor
  return { items, last: items.length < limit && head.position > seen.position ? head : seen }
}

export interface FeedRouteParts {
  db: Db
  feed: Feed
  topics: readonly string[]
}

/** Events of all operations in one order. */
export const feedRoutes = ({ db, feed, topics: known }: FeedRouteParts): Route[] => {
  // Streams at the same cursor share one read.
  const behind = sharedReads(db, async (key) => {
    const [cursor, topics] = JSON.parse(key) as [Cursor, string[] | null]
    const { items, last } = await feedBehind(db, cursor, topics ?? undefined)
    return batchOf(
      items.map((item) => ({ id: item.cursor, type: item.event.eventType, data: item })),
      last,
    )
  })
  return [
    route('listEvents', 'GET /events/', {
      summary:
        'Events of runs, sessions, connections and all other operations in one order; as ' +
        'server-sent events with `Accept: text/event-stream`, from `Last-Event-ID` on, else from now on',
      query: z.strictObject({
        topic: z
          .string()
          .optional()
          .describe(`kinds to read, apart by commas: ${known.join(', ')}`),
        after: z
          .string()
          .regex(cursorForm, 'must be a cursor of this feed')
          .optional()
          .describe('read on behind this cursor; `0` is the first event'),
        limit: wholeNumber
          .optional()
          .describe(`events of a page, 1 to ${String(batchSize)}, which is the default`),
      }),
      response: FeedPage,
      raw: ['text/event-stream'],
      handle: async ({ query, headers }) => {
        const topics = query.topic?.split(',').map((topic) => topic.trim())
        const strange = topics?.filter((topic) => !known.includes(topic)) ?? []
        if (strange.length > 0)
          throw new Refusal(
            'invalid',
            `query: topic ${JSON.stringify(strange[0])} is none of ${known.join(', ')}`,
            {
              details: [{ path: 'topic', message: `is none of ${known.join(', ')}` }],
            },
          )
        await feedEvents(db)
        const given = cursorOf(headers['last-event-id'] ?? query.after ?? '')
        if (!/\btext\/event-stream\b/.test(headers['accept'] ?? '')) {
          const from = given ?? { position: 0, sequence: 0 }
          const limit = Math.min(Math.max(1, query.limit ?? batchSize), batchSize)
          const { items, last } = await feedBehind(db, from, topics, limit)
          return { items, last: textOf(last) }
        }
        const from = given ?? (await lastPosition(db))
        const read = (after: Cursor) => behind(JSON.stringify([after, topics ?? null]))
        return new Reply({
          stream: streamEvents(feed, { of: undefined, from, read }),
          headers: { 'content-type': 'text/event-stream', 'cache-control': 'no-store' },
        })
      },
    }),
  ]
}
