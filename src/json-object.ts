/** Members of a JSON object of any shape. */
export type Fields = Record<string, unknown>

/** Whether a value is a JSON object: neither null nor a list. */
export const isFields = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** A member as text; blank where it is missing or of another type. */
export const memberText = (value: unknown): string => (typeof value === 'string' ? value : '')

/** An object without its undefined members. */
export type Present<T> = { [K in keyof T as undefined extends T[K] ? never : K]: T[K] } & {
  [K in keyof T as undefined extends T[K] ? K : never]?: Exclude<T[K], undefined>
}

/** The members that are not undefined: an optional member is missing, never undefined. */
export const present = <T extends object>(members: T): Present<T> =>
  Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)) as Present<T>

/**
 * The value with the keys of its objects sorted and members that are undefined left out, so that
 * equal values yield equal JSON for any order of their keys.
 */
export const withSortedKeys = (value: unknown): unknown => {
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) return value.map(withSortedKeys)
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, member]) => member !== undefined)
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, member]) => [key, withSortedKeys(member)]),
  )
}
