import type { Database } from '../../src/db/pool.ts'

/** Rows of every table by name, without those that grow by themselves (checks of the monitor) or that refused requests may write too: who asked for what, under which key. */
export const tableCounts = async (db: Database): Promise<Record<string, number>> => {
  const client = await db.client()
  try {
    const { rows } = await client.query<{ name: string; rows: string }>(
      `select relname as name, (xpath('/row/c/text()', query_to_xml(format('select count(*) as c from %I', relname), false, true, '')))[1]::text as rows
       from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace and relname not in ('audit_events', 'idempotency_keys', 'connection_checks') order by 1`,
    )
    return Object.fromEntries(rows.map((row) => [row.name, Number(row.rows)]))
  } finally {
    client.release()
  }
}
