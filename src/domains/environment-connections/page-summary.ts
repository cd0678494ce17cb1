import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { PageSummary } from '../../operations/kind.ts'

const NamedRow = z.object({ name: z.string(), type: z.string(), environment: z.string() })

/**
 * The summary of a connection's work on Temporal's page: "watch connection login (ssh) of lab".
 * `deed` is its beginning.
 */
export const connectionPageSummary = async (
  db: Db,
  id: string,
  deed: string,
): Promise<PageSummary | undefined> => {
  const row = await db.maybe(
    NamedRow,
    sql`select c.name, c.type, e.name as environment from connections c join environments e
      on e.id = c.environment_id where c.id = ${id}`,
  )
  return (
    row && {
      line: `${deed} connection ${row.name} (${row.type}) of ${row.environment}`,
      path: `/environment-connections/${encodeURIComponent(id)}/`,
    }
  )
}
