import type { z } from 'zod'
import { raw, type Sql } from './sql.ts'

// The select lists of statements, by the names of members in documents: columns of rows, and JSON
// made by the server. So one statement yields a whole document, and its answer is sent unchanged.
// The names and expressions come from this program, never from a caller.

/** The column of a member: `createdAt` is `created_at`. */
export const columnOf = (member: string): string =>
  member.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)

/**
 * The columns of a row's schema, from the table or alias `from`: `columnsOf(Row, 's')` is `s.id,
 * s.created_at`. `others` are expressions for members that are not columns.
 */
export const columnsOf = (
  schema: z.ZodObject,
  from: string,
  others: Readonly<Record<string, string>> = {},
): Sql =>
  raw(
    Object.keys(schema.shape)
      .map((member) =>
        others[member] === undefined
          ? `${from}.${columnOf(member)}`
          : `${others[member]} as ${columnOf(member)}`,
      )
      .join(', '),
  )

/**
 * Members of an object that are columns of the alias `from`; `members` separates names by spaces.
 */
export const fields = (from: string, members: string): Record<string, string> =>
  Object.fromEntries(
    members
      .trim()
      .split(/\s+/)
      .map((member) => [member, `${from}.${columnOf(member)}`]),
  )

/** An object of type json: `members` are SQL values, left out where null. */
export const jsonObject = (members: Record<string, string>): string =>
  `json_strip_nulls(json_build_object(${Object.entries(members)
    .map(([name, expression]) => `'${name}', ${expression}`)
    .join(', ')}))`

/**
 * An object of type text: `members` are SQL values, left out where null; `copied` are expressions
 * that are JSON text already, such as stored free-form objects.
 */
export const object = (members: Record<string, string>, copied: Record<string, string> = {}): string => {
  const tail = Object.entries(copied).map(([name, text]) => ` || coalesce(',"${name}":' || ${text}, '')`)
  return `(left(${jsonObject(members)}::text, -1)${tail.join('')} || '}')`
}

/** An object of members that are JSON text already. */
export const joinMembers = (members: Record<string, string>): string => {
  const parts = Object.entries(members).map(
    ([name, text], i) => `'${i === 0 ? '{' : ','}"${name}":' || ${text}`,
  )
  return `(${parts.join(' || ')} || '}')`
}

/** An array of `element` (JSON text) over the rows of `from`; empty without rows. */
export const array = (element: string, from: string, order: string): string =>
  `(select coalesce('[' || string_agg(${element}, ',' order by ${order}) || ']', '[]') from ${from})`

/** RFC 3339, UTC, milliseconds: the format of `Date.toISOString`. */
export const time = (column: string): string =>
  `to_char(${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`
