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

/**
 * An identifier for each text, all different: its slug, or where another text has that already, the
 * slug with the first free number from 2 on. A text that is its own slug keeps it.
 */
export const distinctSlugs = (texts: readonly string[]): string[] => {
  const slugs = texts.map((text) => slug(text) || 'task')
  const owners = new Map<string, number>()
  const own = (of: (text: string, i: number) => boolean): void =>
    texts.forEach((text, i) => {
      const wanted = slugs[i] ?? ''
      if (of(text, i) && !owners.has(wanted)) owners.set(wanted, i)
    })
  own((text, i) => text === slugs[i])
  own(() => true)
  const numbers = new Map<string, number>()
  return slugs.map((wanted, i) => {
    if (owners.get(wanted) === i) return wanted
    let number = numbers.get(wanted) ?? 2
    while (owners.has(`${wanted}-${number}`)) number++
    numbers.set(wanted, number + 1)
    return `${wanted}-${number}`
  })
}

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

/** The environment variable of an input without the prefix of the installation: `INPUT_A_TXT`. */
export const variableOfInput = (logicalName: string): string =>
  `INPUT_${logicalName.toUpperCase().replace(/[^A-Z0-9]+/g, '_')}`
