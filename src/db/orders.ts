import { raw, type Sql } from './sql.ts'

/**
 * The orders of a list: the name of each in the API, and the SQL expression of its values. An
 * expression is never null, and has an index over it and the id, so that a page costs its rows.
 */
export type Orders<Name extends string = string> = Readonly<Record<Name, string>>

/** The `order by` of a list whose rows are `alias`; every order ends with the id. */
export const orderOf = (orders: Orders, sort: string, alias: string): Sql => {
  const descending = sort.startsWith('-')
  const expression = orders[descending ? sort.slice(1) : sort]
  if (expression === undefined) throw new Error(`a list has no order ${sort}`)
  const way = descending ? ' desc' : ''
  return raw(`${expression}${way}, ${alias}.id${way}`)
}
