/** Members of a JSON object of any shape. */
export type Fields = Record<string, unknown>

/** Whether a value is a JSON object: neither null nor a list. */
export const isFields = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** A member as text; blank where it is missing or of another type. */
export const memberText = (value: unknown): string => (typeof value === 'string' ? value : '')
