import { Readable } from 'node:stream'
import type { Db } from '../../db/sql.ts'
import type { AuditQuery } from './schemas.ts'
import { listSealedEvents } from './store.ts'

/** A comment this often keeps proxies from closing a silent stream. */
const keepAliveMs = 15_000
const pollMs = 500
const batch = 500

/**
 * Sealed records after a number as server-sent events, for as long as the reader stays. The id is the number in the chain, so `Last-Event-ID` loses
 * nothing: no record comes to stand before one that was seen.
 */
export const auditStream = (db: Db, filters: AuditQuery, after: number, signal: AbortSignal): Readable => {
  const generate = async function* (): AsyncGenerator<string> {
    let number = after
    let quietSince = Date.now()
    while (!signal.aborted) {
      const found = await listSealedEvents(db, filters, number, batch)
      const last = found.at(-1)
      if (last !== undefined) {
        number = last.sealNumber
        quietSince = Date.now()
        yield found
          .map(({ sealNumber, event }) => `id: ${String(sealNumber)}\nevent: ${event.eventType}\ndata: ${JSON.stringify(event)}\n\n`)
          .join('')
        continue
      }
      if (Date.now() - quietSince >= keepAliveMs) {
        quietSince = Date.now()
        yield ': still here\n\n'
      }
      await new Promise((resolve) => setTimeout(resolve, pollMs))
    }
  }
  return Readable.from(generate(), { objectMode: false })
}
