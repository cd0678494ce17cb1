import { z } from 'zod'
import { time } from '../../db/projection.ts'
import { countUpTo } from '../../db/rows.ts'
import { join, raw, sql, where, type Db, type Sql } from '../../db/sql.ts'
import type { Page } from '../../http/paging.ts'
import { Timestamp } from '../../http/schema.ts'
import { countBound } from '../../lists.ts'
import { invalid } from '../../refusal.ts'
import { readableNames, type Entity } from './catalogue.ts'
import { Item, type EntityQuery } from './schemas.ts'

const Found = z.object({ total: z.number(), bodies: z.array(Item) })

const column = (name: string): string => `r."${name}"`

/** A field as answers show it: times in UTC with milliseconds. */
const shown = ({ name, type }: Entity['fields'][number]): string =>
  type === 'datetime' ? time(column(name)) : column(name)

/** A record of an entity as JSON, unknown values as null. */
export const recordJson = ({ fields }: Pick<Entity, 'fields'>): string =>
  `json_build_object(${fields.flatMap((field) => [`'${field.name}'`, shown(field)]).join(', ')})`

const numeric = new Set(['number', 'bytes', 'duration', 'currency'])

/**
 * `field = value`, with the value read as the field's type, so that an index on the field applies.
 */
const equals = (entity: Entity, name: string, value: string): Sql => {
  const field = entity.fields.find((one) => one.name === name)
  if (field === undefined) throw unknownField('filterField', entity, name)
  const wrong = (what: string): Error =>
    invalid(`filterValue: ${JSON.stringify(value.slice(0, 80))} is not ${what}, as ${name} is`, [
      { path: 'filterValue', message: `must be ${what}` },
    ])
  if (field.type === 'boolean') {
    if (value !== 'true' && value !== 'false') throw wrong('true or false')
    return sql`${raw(column(name))} = ${value}`
  }
  if (numeric.has(field.type)) {
    const number = /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,3})?$/i.test(value) ? Number(value) : NaN
    // PostgreSQL takes no text whose number is beyond a double's range, or rounds to 0.
    if (!Number.isFinite(number)) throw wrong('a number between -1.7e308 and 1.7e308')
    return sql`${raw(column(name))} = ${number}::float8`
  }
  if (field.type === 'datetime') {
    const time = Timestamp.safeParse(value).success ? Date.parse(value) : NaN
    // Answers show milliseconds, and the stored times have microseconds.
    const from = Number.isNaN(time) ? '' : new Date(time).toISOString()
    if (!/^\d{4}-/.test(from) || from.startsWith('0000-'))
      throw wrong('a time of the years 1 to 9999 (RFC 3339)')
    return sql`${raw(column(name))} >= ${from}::timestamptz and ${raw(column(name))} < ${from}::timestamptz +
      interval '1 millisecond'`
  }
  // A use is found by the id of the file that its own id begins with.
  if (entity.name === 'data_uses' && name === 'id')
    return sql`${raw(column(name))} = ${value} and ${raw(column('data_object_instance_id'))} =
      ${value.slice(0, Math.max(0, value.indexOf(':')))}`
  return sql`${raw(column(name))} = ${value}`
}

const unknownField = (parameter: string, { name, fields }: Entity, given: string): Error =>
  invalid(
    `${parameter}: ${JSON.stringify(given.slice(0, 80))} is not a field of ${name}; it has ` +
      fields.map((one) => one.name).join(', '),
    [{ path: parameter, message: 'is not a field of this entity; name one of its fields' }],
  )

/** What a number, a time, true, false or a number's `Infinity` and `NaN` may have, in lower case. */
const inValues = /^[-+.:0-9aefilnrstuyz]*$/
const values = new Set([...numeric, 'boolean', 'datetime'])

/** Every field of a record that may have the text, as answers show it, in lower case. */
const searched = ({ fields }: Entity, text: string): Sql => {
  const mayHave = inValues.test(text.toLowerCase()) ? fields : fields.filter(({ type }) => !values.has(type))
  return sql`lower(concat_ws(chr(10), ${join(mayHave.map((field) => raw(`${shown(field)}::text`)))}))`
}

const pattern = (text: string): string => `%${text.toLowerCase().replace(/[\\%_]/g, '\\$&')}%`

/**
 * One more record than the page, and the number of all matches (counted to one above `countBound`).
 * @throws Refusal 400 for an unknown field
 */
export const listEntity = async (db: Db, entity: Entity, query: EntityQuery, page: Page) => {
  const { filterField, filterValue } = query
  if (filterValue !== undefined && filterValue !== '' && filterField === undefined)
    throw invalid('filterValue: names no field; give filterField beside it', [
      { path: 'filterField', message: 'is missing; name the field that filterValue is of' },
    ])
  if (filterField !== undefined && !entity.fields.some(({ name }) => name === filterField))
    throw unknownField('filterField', entity, filterField)
  if (filterField !== undefined && filterValue === undefined)
    throw invalid('filterValue: is missing; give the value of filterField, also where it is blank', [
      { path: 'filterValue', message: 'is missing; give the value that filterField must have' },
    ])
  const sorted = query.sortField ?? 'id'
  if (!entity.fields.some(({ name }) => name === sorted)) throw unknownField('sortField', entity, sorted)
  const matching = where(
    filterField !== undefined && filterValue !== undefined && equals(entity, filterField, filterValue),
    query.q !== undefined && sql`${searched(entity, query.q)} like ${pattern(query.q)}`,
  )
  const view = raw(`provenance.${entity.table} r`)
  // Null sorts last in both directions. Ids are never null, and their index has only one order of
  // nulls.
  const order = query.sortOrder === 'desc' ? 'desc' : 'asc'
  // Versions of a workflow share the ids of their activities.
  const last = `r.id ${order}${entity.name === 'activities' ? `, r.workflow_version_id ${order}` : ''}`
  const by = raw(sorted === 'id' ? last : `${column(sorted)} ${order} nulls last, ${last}`)
  const pageFrom = (records: Sql): Sql => sql`select ${raw(recordJson(entity))} as body from (
      select r.* from ${records} order by ${by} limit ${page.limit} offset ${page.offset}) r order by ${by}`
  let total: number | undefined
  if (query.q !== undefined) {
    // A text is looked for in every record: once, where it is rare.
    const found = await db.one(
      Found,
      sql`with found as materialized (select r.* from ${view} ${matching} limit ${countBound + 1})
        select (select count(*) from found) as total,
          array(select body from (${pageFrom(sql`found r`)}) shown) as bodies`,
    )
    if (found.total <= countBound) return { rows: found.bodies, total: found.total }
    total = found.total
  }
  const rows = await db.values(Item, pageFrom(sql`${view} ${matching}`))
  total ??= await countUpTo(db, sql`${view} ${matching}`)
  return { rows, total }
}

const NamedColumns = z.object({
  name: z.string(),
  columns: z.array(z.object({ name: z.string(), type: z.string() })),
})

/** Every name that a statement may read, with its columns, by name. */
export const listColumns = (db: Db) =>
  db.many(
    NamedColumns,
    sql`select c.relname as name, json_agg(json_build_object('name', a.attname, 'type',
      format_type(coalesce(nullif(t.typbasetype, 0), t.oid), null)) order by a.attnum) as columns
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 join pg_type t on t.oid = a.atttypid
        where c.relnamespace = 'provenance'::regnamespace and c.relkind = 'v'
          and c.relname = any(${[...readableNames.keys()]}::text[])
        group by c.relname order by c.relname collate "C"`,
  )
