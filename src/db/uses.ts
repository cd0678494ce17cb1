import { z } from 'zod'
import { empty, join, sql, type Db, type Sql } from './sql.ts'

/**
 * Records of another domain that use a record of this domain and prevent its deletion. The using
 * domain registers the use in `src/uses.ts`; the used domain imports none of its users.
 */
export interface Use<Target> {
  /** The noun for such a record in a sentence: `execution scope`. */
  kind: string
  /** Selects the ids of the records that use the target, as text. */
  ids: (target: Target) => Sql
}

const UserRow = z.object({ kind: z.string(), id: z.string(), more: z.number() })
/** One text per kind of use: the first id, and how many others there are. */
export type UserRow = z.output<typeof UserRow>

/**
 * The users of a record, by kind in the order of `uses`, in one round trip. `first` is a `with`
 * clause that the uses refer to.
 */
export const findUsers = async <Target>(
  db: Db,
  uses: readonly Use<Target>[],
  target: Target,
  first: Sql = empty,
): Promise<UserRow[]> => {
  if (uses.length === 0) return []
  const each = uses.map(
    ({ kind, ids }, place) =>
      sql`select ${place}::int as place, ${kind}::text as kind, used.id from (${ids(target)}) as used (id)`,
  )
  return db.many(
    UserRow,
    sql`${first} select kind, min(id collate "C") as id, count(*) - 1 as more from (${join(each, ' union ')}) users
        group by place, kind order by place`,
  )
}

/** `execution scope "s" (and 2 more)`. */
export const userText = ({ kind, id, more }: UserRow): string =>
  `${kind} ${JSON.stringify(id)}${more === 0 ? '' : ` (and ${String(more)} more)`}`
