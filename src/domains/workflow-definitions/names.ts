/**
 * Trimmed, lower case, every character that is not a letter, a digit or `-` replaced by `-`, then
 * `-` trimmed at both ends.
 */
export const slug = (name: string): string =>
  name
    .trim()
    .toLowerCase()
    .replace(/[^\p{L}\p{Nd}-]/gu, '-')
    .replace(/^-+|-+$/g, '')

export const firstVersionIdOf = (workflowId: string): string => `${workflowId}-v1`
export const activityIdOf = (workflowId: string, externalId: string): string => `${workflowId}-${externalId}`
/** The type of every activity without a type of its own. */
export const defaultTypeIdOf = (workflowId: string): string => `${workflowId}-activity`
export const typeIdOf = (workflowId: string, typeSlug: string): string => `${workflowId}-${typeSlug}`

/**
 * The problem of a text that becomes (part of) an identifier, or undefined. With 600 bytes each,
 * three of them fit one index entry of PostgreSQL (2,704 bytes).
 */
export const identifierTrouble = (text: string): string | undefined => {
  if (text.length > 255 || Buffer.byteLength(text) > 600)
    return `is too long (${text.length} characters); an identifier has at most 255 characters`
  if (/\p{Cc}/u.test(text)) return 'holds a control character'
  return undefined
}
