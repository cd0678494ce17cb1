import { keyLifeMs, type IdempotencyStore } from '../http/idempotency.ts'
import type { Db } from './sql.ts'

interface Kept {
  fingerprint: string
  status: number | null
  headers: Record<string, string> | null
  body: string | null
}

/**
 * A key expires after `keyLifeMs`. The process of a request renews its key; a key without an answer
 * and without a renewal for a minute can be taken again. The next begin deletes expired keys.
 */
const beginText = `with gone as (delete from idempotency_keys where created_at < now() - make_interval(secs => $3)
  or (key = $1 and status is null and created_at < now() - interval '1 minute') returning key),
  mine as (insert into idempotency_keys (key, fingerprint) select $1, $2 where (select count(*)
    from gone) >= 0 on conflict (key) do nothing returning key)
  select exists (select from mine) as fresh, k.fingerprint, k.status, k.headers, k.body from (select 1) one
    left join idempotency_keys k on k.key = $1`

/**
 * Idempotency keys in PostgreSQL, so that a repeated create is recognised after a restart and by
 * every process.
 */
export const openIdempotency = (db: Db): IdempotencyStore => ({
  async begin(key, fingerprint) {
    const [row] = await db.prepared<Partial<Kept> & { fresh: boolean }>('idempotency_begin', beginText, [
      key,
      fingerprint,
      keyLifeMs / 1_000,
    ])
    if (row === undefined || row.fresh) return 'fresh'
    // The snapshot of this statement does not hold the key: another request began it at this
    // moment.
    if (row.fingerprint === undefined || row.fingerprint === null) return 'in-flight'
    if (row.fingerprint !== fingerprint) return 'mismatch'
    if (row.status === undefined || row.status === null) return 'in-flight'
    return { status: row.status, headers: row.headers ?? {}, body: row.body ?? '' }
  },
  async complete(key, answer) {
    await db.prepared(
      'idempotency_complete',
      'update idempotency_keys set status = $2, headers = $3, body = $4 where key = $1',
      [key, answer.status, JSON.stringify(answer.headers), answer.body],
    )
  },
  async renew(key) {
    await db.prepared(
      'idempotency_renew',
      'update idempotency_keys set created_at = now() where key = $1 and status is null',
      [key],
    )
  },
  async abandon(key) {
    await db.prepared(
      'idempotency_abandon',
      'delete from idempotency_keys where key = $1 and status is null',
      [key],
    )
  },
})
