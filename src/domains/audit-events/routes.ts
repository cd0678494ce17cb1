import { z } from 'zod'
import { readsArchive, type Db } from '../../db/sql.ts'
import { preferred } from '../../http/accept.ts'
import { pagedArray, pageOf } from '../../http/paging.ts'
import { atInterval, follow, type Followed, type FollowedPiece } from '../../http/followed-stream.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { sharedReads } from '../../http/shared-reads.ts'
import { batchOf, batchSize, stillHere } from '../../operations/streams.ts'
import { invalid } from '../../refusal.ts'
import type { VaultKeys } from '../../vault/keys.ts'
import { AuditEvent, AuditQuery, auditSizes, AuditVerdict } from './schemas.ts'
import { lastSealNumber, listAuditEvents, listSealedEvents } from './store.ts'
import { verifyAudit, type Proof } from './verify.ts'
import type { Witness } from './witness.ts'

const stream = 'text/event-stream'
/** Seals are announced nowhere. */
const everyMs = 500

/**
 * Sealed records after a number as server-sent events, until the reader leaves. The id is the
 * number in the chain, so `Last-Event-ID` loses no record: no new record gets a number below one
 * that was sent. Streams at the same number share one read.
 */
const openAuditStreams = (db: Db): ((filters: AuditQuery, from: number) => Followed) => {
  const behind = sharedReads(db, async (key): Promise<FollowedPiece<number>> => {
    const [filters, after] = JSON.parse(key) as [AuditQuery, number]
    const { found, last } = await listSealedEvents(db, filters, after, batchSize)
    return batchOf(
      found.map(({ sealNumber, event }) => ({ id: String(sealNumber), type: event.eventType, data: event })),
      last,
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

/**
 * The last number that a reader has seen. A reader without one sees the records from now on; one with
 * a number that this chain does not have yet sees all of them.
 */
const seenBefore = async (db: Db, given: string | undefined): Promise<number> => {
  const last = await lastSealNumber(db)
  if (given === undefined || given === '') return last
  if (!/^\d{1,15}$/.test(given)) throw invalid('Last-Event-ID: must be the id of an event of this stream')
  return Number(given) > last ? 0 : Number(given)
}

export const auditEventRoutes = ({
  db,
  vaultKeys,
  auditWitness: witness,
  proofs = [],
}: {
  db: Db
  vaultKeys?: VaultKeys | undefined
  auditWitness?: Witness | undefined
  proofs?: readonly Proof[]
}): Route[] => {
  const streamOf = openAuditStreams(db)
  return [
    route('listAuditEvents', 'GET /audit-events/', {
      summary:
        'What was done to the service, newest first; as server-sent events what is recorded from now ' +
        'on, or after Last-Event-ID',
      query: AuditQuery,
      response: z.array(AuditEvent),
      raw: [stream],
      handle: async ({ query, target, headers }) => {
        if (preferred(headers['accept'], ['application/json', stream]) === stream)
          return new Reply<never>({
            stream: streamOf(query, await seenBefore(db, headers['last-event-id'])),
            headers: { 'content-type': stream, 'cache-control': 'no-store' },
          })
        const page = pageOf({ page: query.page, pageSize: query.pageSize ?? query.limit }, auditSizes)
        const { rows, total } = await listAuditEvents(db, query, page)
        return pagedArray(rows, { page, total, target })
      },
    }),
    route('verifyAuditEvents', 'GET /audit-events/verify/', {
      summary: 'Whether every audit record is as it was sealed; if not, which one is the first that is not',
      response: AuditVerdict,
      // The records of an archive have another chain.
      handle: () => verifyAudit(db, vaultKeys, { proofs, witness: readsArchive(db) ? undefined : witness }),
    }),
  ]
}
