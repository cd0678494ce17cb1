import { z } from 'zod'
import { join, raw, sql, type Db, type Sql } from '../../db/sql.ts'
import { countBound } from '../../lists.ts'
import { indexedTexts, lineMark, textsOf, type Kind } from './kinds.ts'

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

/** One match of a kind, with its score. */
const matches = (
  kind: Kind,
  place: number,
  { patterns, condition, limit }: { patterns: Patterns; condition: Sql; limit: number },
): Sql => sql`select ${raw(`'${kind.type}'`)} as type, ${raw(String(place))} as place, id, at, title, subtitle,
      status, case when texts like ${patterns.whole} then 1.0 when texts like ${patterns.beginning} then 0.9
        else 0.7 end as score
    from (select ${raw(kind.id ?? 'id')}::text as id, ${raw(kind.at ?? 'id')}::text as at,
        ${raw(kind.title)} as title, ${raw(kind.subtitle)} as subtitle, ${raw(kind.status)} as status,
        ${raw(indexedTexts(kind.columns))} as texts
      from ${raw(kind.table)} where ${condition} limit ${raw(String(limit))}) found`

type Patterns = Record<'whole' | 'beginning' | 'part', Sql>

/**
 * Matches of one kind, as two named queries. Where there are too many to look at, whole texts and
 * beginnings have queries of their own, so that common substrings do not displace them.
 */
const namedQueries = (kind: Kind, place: number, patterns: Patterns, short: boolean): Sql[] => {
  const texts = raw(indexedTexts(kind.columns))
  const [all, better] = [raw(`all_${kind.type}`), raw(`better_${kind.type}`)]
  const condition = short
    ? sql`${texts} like ${patterns.beginning}`
    : // The mark of a line is no part of its text.
      sql`${texts} like ${patterns.part} and ${raw(textsOf(kind.columns))} like ${patterns.part}`
  const tooMany = sql`(select count(*) from ${all}) > ${raw(String(countBound))}`
  const ofBetter = (pattern: Sql): Sql =>
    sql`(${matches(kind, place, { patterns, condition: sql`${texts} like ${pattern} and ${tooMany}`, limit: best })})`
  const patternsOfBetter = short ? [patterns.whole] : [patterns.whole, patterns.beginning]
  return [
    sql`${all} as materialized (${matches(kind, place, { patterns, condition, limit: countBound + 1 })})`,
    sql`${better} as materialized (${join(patternsOfBetter.map(ofBetter), ' union all ')})`,
  ]
}

/**
 * The best matches of `text` (not blank) among records of `kinds`, and the number of all that
 * match, counted to one above `countBound`. One or two letters match beginnings of texts only.
 */
export const search = async (db: Db, text: string, kinds: readonly Kind[], limit: number) => {
  if (kinds.length === 0) return { total: 0, hits: [] }
  const wanted = escaped(text)
  const line = raw(`chr(10) || '${lineMark}'`)
  const patterns = {
    whole: sql`'%' || ${line} || lower(${wanted}::text) || chr(10) || '%'`,
    beginning: sql`'%' || ${line} || lower(${wanted}::text) || '%'`,
    part: sql`'%' || lower(${wanted}::text) || '%'`,
  }
  const short = [...text].length < 3
  const queries = kinds.flatMap((kind, place) => namedQueries(kind, place, patterns, short))
  const found = kinds.flatMap(({ type }) => [`all_${type}`, `better_${type}`])
  const { total, hits } = await db.one(
    Answer,
    sql`with ${join(queries, ', ')}, hits as materialized (select distinct on (place, id) * from (
        ${raw(found.map((name) => `select * from ${name}`).join(' union all '))}) found
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
