import type { Database } from '../../src/db/pool.ts'

/**
 * Rows of every table by name, without tables that grow by themselves (the monitor's checks and its
 * events of connections) or that refused requests may write too: the audit records with
 * their head, which the sealer writes within a second, and the idempotency keys.
 */
export const tableCounts = async (db: Database): Promise<Record<string, number>> => {
  const client = await db.client()
  try {
    const { rows } = await client.query<{ name: string; rows: string }>(
      `select relname as name, (xpath('/row/c/text()', query_to_xml(format('select count(*) as c from %I t
        where to_jsonb(t) ->> ''kind'' is distinct from ''connection''', relname), false, true, '')))[1]::text as rows
       from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace
         and relname not in ('audit_events', 'audit_head', 'idempotency_keys', 'connection_checks',
           'event_feed', 'event_feed_open') order by 1`,
    )
    return Object.fromEntries(rows.map((row) => [row.name, Number(row.rows)]))
  } finally {
    client.release()
  }
}
