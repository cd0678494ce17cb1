// JSON documents as SQL expressions of type text, so that a whole document is one statement whose answer is sent as it is. The names and
// expressions are ours, never a caller's.

/** An object: `members` are SQL values, left out where null; `copied` are expressions that are JSON text already, such as stored free-form objects. */
export const object = (members: Record<string, string>, copied: Record<string, string> = {}): string => {
  const fixed = Object.entries(members).map(([name, expression]) => `'${name}', ${expression}`)
  const tail = Object.entries(copied).map(([name, text]) => ` || coalesce(',"${name}":' || ${text}, '')`)
  return `(left(json_strip_nulls(json_build_object(${fixed.join(', ')}))::text, -1)${tail.join('')} || '}')`
}

/** An object of members that are JSON text already. */
export const join = (members: Record<string, string>): string => {
  const parts = Object.entries(members).map(([name, text], i) => `'${i === 0 ? '{' : ','}"${name}":' || ${text}`)
  return `(${parts.join(' || ')} || '}')`
}

/** An array of `element` (JSON text) over the rows of `from`; empty without rows. */
export const array = (element: string, from: string, order: string): string =>
  `(select coalesce('[' || string_agg(${element}, ',' order by ${order}) || ']', '[]') from ${from})`

/** RFC 3339, UTC, milliseconds: what `Date.toISOString` gives. */
export const time = (column: string): string => `to_char(${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`
