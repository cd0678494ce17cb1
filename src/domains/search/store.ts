import { z } from 'zod'
import { join, raw, sql, type Db, type Sql } from '../../db/sql.ts'
import { countBound } from '../../http/paging.ts'
import { textsOf, type Kind } from './kinds.ts'

/** The number of candidates, however many records match. The best matches are among them. */
const best = 101

const Hit = z.object({
  type: z.string(),
  id: z.string(),
  title: z.string(),
  subtitle: z.string().optional(),
  status: z.string().optional(),
  at: z.string(),
  score: z.number(),
})
const Answer = z.object({ total: z.number(), hits: z.array(z.custom<z.input<typeof Hit>>()) })

const escaped = (text: string): string => text.replace(/[\\%_]/g, '\\$&')

/**
 * Matches of one kind. Whole texts and prefixes have their own branches, so that common substrings
 * of other texts do not displace them.
 */
const branches = (
  kind: Kind,
  place: number,
  patterns: { whole: Sql; beginning: Sql; part: Sql },
  short: boolean,
): Sql => {
  const texts = raw(textsOf(kind.columns))
  const found = (
    pattern: Sql,
    limit: number,
  ): Sql => sql`(select ${raw(`'${kind.type}'`)} as type, ${raw(String(place))} as place,
      ${raw(kind.id ?? 'id')}::text as id, ${raw(kind.at ?? 'id')}::text as at,
      ${raw(kind.title)} as title, ${raw(kind.subtitle)} as subtitle, ${raw(kind.status)} as status,
      case when ${texts} like ${patterns.whole} then 1.0 when ${texts} like ${patterns.beginning} then 0.9
        else 0.7 end as score
    from ${raw(kind.table)} where ${texts} like ${pattern} limit ${raw(String(limit))})`
  const most = short ? patterns.beginning : patterns.part
  const exact = found(patterns.whole, best)
  return short
    ? join([exact, found(most, countBound + 1)], ' union all ')
    : join([exact, found(patterns.beginning, best), found(most, countBound + 1)], ' union all ')
}

/**
 * The best matches of `text` (not blank) among records of `kinds`, and the number of all that
 * match, counted to one above `countBound`. One or two letters match beginnings of texts only.
 */
export const search = async (db: Db, text: string, kinds: readonly Kind[], limit: number) => {
  if (kinds.length === 0) return { total: 0, hits: [] }
  const wanted = escaped(text)
  const patterns = {
    whole: sql`'%' || chr(10) || lower(${wanted}::text) || chr(10) || '%'`,
    beginning: sql`'%' || chr(10) || lower(${wanted}::text) || '%'`,
    part: sql`'%' || lower(${wanted}::text) || '%'`,
  }
  const short = [...text].length < 3
  const { total, hits } = await db.one(
    Answer,
    sql`with found as materialized (${join(
      kinds.map((kind, place) => branches(kind, place, patterns, short)),
      ' union all ',
    )}), hits as materialized (select distinct on (place, id) * from found
      order by place, id, score desc)
    select (select count(*) from hits) as total, coalesce((select
      json_agg(json_strip_nulls(json_build_object('type', b.type, 'id', b.id, 'at', b.at,
        'title', b.title, 'subtitle', b.subtitle,
        'status', b.status, 'score', b.score)) order by b.score desc, b.place, b.id collate "C")
      from (select * from hits order by score desc, place, id collate "C" limit ${limit}) b), '[]') as hits`,
  )
  const paths = new Map(kinds.map(({ type, path }) => [type, path]))
  return {
    total,
    hits: hits.map((hit) => {
      const { at, ...shown } = Hit.parse(hit)
      return { ...shown, path: (paths.get(hit.type) ?? '') + encodeURIComponent(at) }
    }),
  }
}
