import { z } from 'zod'
import { countBound } from '../lists.ts'
import { storableJson } from '../outside-text.ts'
import { columnOf } from './projection.ts'
import { empty, raw, sql, type Db, type Sql } from './sql.ts'

/**
 * The number of rows of `from` (tables, joins and conditions, without the keyword), counted to at
 * most `most` + 1.
 */
export const countUpTo = (db: Db, from: Sql, most = countBound): Promise<number> =>
  db.only(z.number(), sql`select count(*) from (select 1 from ${from} limit ${most + 1}) counted`)

/**
 * A page of a list: `limit` rows from `offset` on of `from` (tables, joins and conditions), and the
 * number of all, counted to one above `countBound`. `counted`: another `from` of as many rows.
 */
export const readPage = async <T extends z.ZodType>(
  db: Db,
  schema: T,
  given: {
    select: Sql
    from: Sql
    order: Sql
    page: { limit: number; offset: number }
    counted?: Sql
  },
): Promise<{ rows: z.output<T>[]; total: number }> => {
  const { select, from, order, page, counted = from } = given
  const rows = await db.many(
    schema,
    sql`select ${select} from ${from} order by ${order} limit ${page.limit} offset ${page.offset}`,
  )
  return { rows, total: await countUpTo(db, counted) }
}

const IdRow = z.object({ id: z.string() }).transform(({ id }) => id)

/** A page of ids as `readPage` reads it. `from` has a table whose column `id` is the one. */
export const readIds = (
  db: Db,
  given: { from: Sql; order: Sql; page: { limit: number; offset: number } },
): Promise<{ rows: string[]; total: number }> =>
  readPage(db, IdRow, { ...given, select: sql`id::text as id` })

/**
 * The JSON texts of these ids, in their order; unknown ids are left out. `from` joins tables to the
 * rows `asked (id, place)`.
 */
export const readTexts = (
  db: Db,
  ids: readonly string[],
  { document, from }: { document: string; from: string },
): Promise<string[]> =>
  db.values(
    z.string(),
    sql`select ${raw(document)} from unnest(${[...ids]}::text[]) with ordinality asked (id, place) ${raw(from)}
      order by asked.place`,
  )

/** A row of one column `document`, as the document itself. */
export const documentRow = <T>(document: z.ZodType<T>): z.ZodType<T> =>
  z.object({ document }).transform((row) => row.document)

/**
 * The assignments of `on conflict … do update set` that take members from the row that was not
 * inserted; `members` as for `insertRows`.
 */
export const fromExcluded = (members: string): Sql =>
  raw(
    members
      .split(/\s+/)
      .map((member) => `${columnOf(member)} = excluded.${columnOf(member)}`)
      .join(', '),
  )

/**
 * Stores items as rows in one statement that begins with `into`: `insert into` and the table, as its
 * owner writes it. `members` are those of the items that have a
 * column (`createdAt` is in `created_at`), separated by spaces; one that an item lacks is null.
 * `after` is a clause for conflicts; the table's alias in it is `kept`.
 */
export const insertRows = async (
  tx: Db,
  into: Sql,
  members: string,
  items: readonly object[],
  after: Sql = empty,
): Promise<void> => {
  if (items.length === 0) return
  const columns = members.split(/\s+/).map((member) => [member, columnOf(member)] as const)
  const rows = items.map((item) =>
    Object.fromEntries(
      columns.map(([member, column]) => [column, (item as Record<string, unknown>)[member]]),
    ),
  )
  const table = raw(into.toQuery().text.split(' ').at(-1) ?? '')
  const names = raw(columns.map(([, column]) => column).join(', '))
  await tx.run(
    sql`${into} as kept (${names})
        select ${names} from json_populate_recordset(null::${table}, ${storableJson(rows)}::json) ${after}`,
  )
}
