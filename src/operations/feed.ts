import { z } from 'zod'
import { greatest, smallest } from '../lists.ts'
import type { Database } from '../db/pool.ts'
import { raw, sql, type Db } from '../db/sql.ts'
import type { Change, ChangeWatch } from '../http/followed-stream.ts'
import type { Log } from '../observability/log.ts'
import { everyRound } from '../pacing/every-round.ts'

/** A reader of events, until `leave`. */
export interface FeedReader {
  /** Waits for events of one operation, or of any; `leave` ends the wait. */
  wait(
    of: { kind: string; id: string } | undefined,
    ms: number,
    signal: AbortSignal,
  ): { over: Promise<Change>; leave(): void }
  leave(): void
}

/** The part of a process that receives changes of operations. */
export interface Feed {
  join(): FeedReader
  [Symbol.asyncDispose](): Promise<void>
}

/** The changes of one operation, or of any, for a stream. */
export const watchFeed = (feed: Feed, of: { kind: string; id: string } | undefined): ChangeWatch => {
  const reader = feed.join()
  return { wait: (ms, signal) => reader.wait(of, ms, signal), leave: () => reader.leave() }
}

const channel = 'operation_events'
/**
 * While any process has readers, events get their positions at this interval. Half of it is their
 * usual delay.
 */
const feedEveryMs = 100
/** While notifications do not arrive, readers read at this interval. */
const deafMs = 250
/** Key of the advisory lock that one feeder at a time holds. */
const feederLock = 7_304_518_821
const mostAtOnce = 1_000

const TakenRow = z.object({ kind: z.string(), operationId: z.string() })

/**
 * Gives positions to the events that were committed since the last time, and notifies every
 * process. Only one process at a time does so, and only its own commit waits for others: commits of
 * events take no lock.
 * @returns how many operations had new events
 */
export const feedEvents = async (db: Db): Promise<number> => {
  const any = await db.only(z.boolean(), sql`select exists (select from event_feed_open) as any`)
  if (!any) return 0
  return db.transaction(async (tx) => {
    const locked = await tx.only(z.boolean(), sql`select pg_try_advisory_xact_lock(${feederLock}) as locked`)
    if (!locked) return 0
    const taken = await tx.many(
      TakenRow,
      sql`delete from event_feed_open where (kind, operation_id) in (
          select kind, operation_id from event_feed_open order by since limit ${mostAtOnce}
            for update skip locked) returning kind, operation_id`,
    )
    // This is a separate statement: its snapshot is later than the locks, so it includes the events
    // of every mark taken.
    const positions = await tx.values(
      z.number(),
      sql`insert into event_feed (kind, operation_id, first_sequence, last_sequence)
          select t.kind, t.operation_id, min(e.sequence), max(e.sequence)
          from unnest(${taken.map(({ kind }) => kind)}::text[],
            ${taken.map(({ operationId }) => operationId)}::text[]) as t (kind, operation_id)
          join operation_events e on e.kind = t.kind and e.operation_id = t.operation_id and e.sequence >
            coalesce((select max(f.last_sequence) from event_feed f where f.kind = t.kind
              and f.operation_id = t.operation_id), 0)
          group by t.kind, t.operation_id order by min(e.occurred_at) returning position`,
    )
    if (positions.length > 0)
      await tx.run(
        sql`select pg_notify(${raw(`'${channel}'`)},
          ${`${String(smallest(positions))}-${String(greatest(positions))}`})`,
      )
    return positions.length
  })
}

const keyOf = (of: { kind: string; id: string } | undefined): string =>
  of === undefined ? '' : `${of.kind}/${of.id}`

/**
 * Waiting readers, by the operation that they wait for. The empty key holds those that wait for
 * any.
 */
const openWaiting = () => {
  const waiting = new Map<string, Set<(change: Change) => void>>()
  const wake = (key: string): void => {
    for (const resolve of waiting.get(key) ?? []) resolve('changed')
  }
  return {
    wait(key: string, ms: number, signal: AbortSignal): { over: Promise<Change>; leave(): void } {
      const { promise, resolve } = Promise.withResolvers<Change>()
      const timer = setTimeout(resolve, ms, 'quiet')
      const left = (): void => resolve('left')
      signal.addEventListener('abort', left, { once: true })
      const all = waiting.get(key) ?? new Set()
      waiting.set(key, all.add(resolve))
      const forget = (): void => {
        clearTimeout(timer)
        signal.removeEventListener('abort', left)
        all.delete(resolve)
        if (all.size === 0 && waiting.get(key) === all) waiting.delete(key)
      }
      void promise.then(forget)
      return { over: promise, leave: left }
    },
    happened(keys: readonly string[]): void {
      for (const key of new Set(keys)) wake(key)
      wake('')
    },
    all(): void {
      for (const key of [...waiting.keys()]) wake(key)
    },
  }
}

const ChangedRow = z.object({ kind: z.string(), operationId: z.string() })

/** Opens the feed of a process. It listens, and assigns positions, only while it has readers. */
export const openFeed = ({ db, log }: { db: Database; log: Pick<Log, 'warn'> }): Feed => {
  const waiting = openWaiting()
  let readers = 0

  const heard = async (payload: string | undefined): Promise<void> => {
    const [first = 0, last = 0] = (payload ?? '').split('-').map(Number)
    const rows = await db.many(
      ChangedRow,
      sql`select distinct kind, operation_id from event_feed where position between ${first} and ${last}
        limit ${mostAtOnce}`,
    )
    waiting.happened(rows.map(({ kind, operationId }) => keyOf({ kind, id: operationId })))
  }

  const start = (): { listening: () => boolean; stop(): Promise<void> } => {
    let listening = false
    const ended = new AbortController()
    /** Listens on its own connection until the connection is lost or the feed stops. */
    const listen = async (): Promise<void> => {
      const client = await db.client()
      const lost = new Promise<Error | undefined>((resolve) => {
        client.once('error', resolve)
        client.once('end', () => resolve(undefined))
        ended.signal.addEventListener('abort', () => resolve(undefined), { once: true })
        if (ended.signal.aborted) resolve(undefined)
      })
      try {
        client.on('notification', ({ payload }) => {
          heard(payload).catch(() => waiting.all())
        })
        await client.query(`listen ${channel}`)
        listening = true
        // Earlier notifications were missed.
        waiting.all()
        await lost
      } finally {
        listening = false
        client.release(true)
      }
    }
    const warn = (what: string) => (error: unknown) => {
      if (!ended.signal.aborted) log.warn({ err: error }, what)
    }
    const listener = everyRound(
      1_000,
      listen,
      warn('events are not heard of now; readers look for them by themselves'),
    )
    const feeder = everyRound(
      feedEveryMs,
      async () => {
        await feedEvents(db)
        if (!listening) waiting.all()
      },
      warn('events got no positions; it is tried again'),
    )
    return {
      listening: () => listening,
      async stop() {
        ended.abort()
        await Promise.all([listener.stop(), feeder.stop()])
      },
    }
  }
  let current: ReturnType<typeof start> | undefined
  let stopping: Promise<void> = Promise.resolve()
  const stop = (): void => {
    const ending = current
    current = undefined
    if (ending !== undefined) stopping = Promise.all([stopping, ending.stop()]).then(() => undefined)
  }

  return {
    join() {
      readers += 1
      current ??= start()
      let here = true
      return {
        wait: (of, ms, signal) =>
          waiting.wait(keyOf(of), current?.listening() === true ? ms : Math.min(ms, deafMs), signal),
        leave() {
          if (here && --readers === 0) stop()
          here = false
        },
      }
    },
    async [Symbol.asyncDispose]() {
      stop()
      waiting.all()
      await stopping
    },
  }
}
