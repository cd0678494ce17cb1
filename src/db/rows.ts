import { z } from 'zod'
import { sql, type Db, type Sql } from './sql.ts'

/**
 * `select count(*) as total`. A schema is made once, not per query: zod compiles each at its first
 * use, 0.3 ms.
 */
const TotalRow = z.object({ total: z.number() })

/**
 * The number of rows of `from` (tables, joins and conditions, without the keyword), counted to at
 * most `most` + 1.
 */
export const countUpTo = async (db: Db, from: Sql, most: number): Promise<number> =>
  (
    await db.one(
      TotalRow,
      sql`select count(*) as total from (select 1 from ${from} limit ${most + 1}) counted`,
    )
  ).total
