import { z } from 'zod'
import { readsArchive, type Db } from '../../db/sql.ts'
import { preferred } from '../../http/accept.ts'
import { pagedArray, pageOf } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { invalid } from '../../refusal.ts'
import type { VaultKeys } from '../../vault/keys.ts'
import { openAuditStreams } from './event-stream.ts'
import { AuditEvent, AuditQuery, auditSizes, AuditVerdict } from './schemas.ts'
import { lastSealNumber, listAuditEvents } from './store.ts'
import { verifyAudit, type Proof } from './verify.ts'
import type { Witness } from './witness.ts'

const stream = 'text/event-stream'

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
