import type { Db } from '../../db/sql.ts'
import { atInterval, follow, type Followed, type FollowedPiece } from '../../http/followed-stream.ts'
import { sharedReads } from '../../http/shared-reads.ts'
import { batchOf, batchSize, stillHere } from '../../operations/streams.ts'
import type { AuditQuery } from './schemas.ts'
import { listSealedEvents } from './store.ts'

/** Seals are announced nowhere. */
const everyMs = 500

/**
 * Sealed records after a number as server-sent events, until the reader leaves. The id is the
 * number in the chain, so `Last-Event-ID` loses no record: no new record gets a number below one
 * that was sent. Streams at the same number share one read.
 */
export const openAuditStreams = (db: Db): ((filters: AuditQuery, from: number) => Followed) => {
  const behind = sharedReads(db, async (key): Promise<FollowedPiece<number>> => {
    const [filters, after] = JSON.parse(key) as [AuditQuery, number]
    const found = await listSealedEvents(db, filters, after, batchSize)
    return batchOf(
      found.map(({ sealNumber, event }) => ({ id: String(sealNumber), type: event.eventType, data: event })),
      found.at(-1)?.sealNumber ?? after,
    )
  })
  return (filters, from) =>
    follow({
      from,
      read: (after) => behind(JSON.stringify([filters, after])),
      keepAlive: stillHere,
      watch: () => atInterval(everyMs),
    })
}
