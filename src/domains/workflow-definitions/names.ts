import { hash } from 'node:crypto'

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

/** The text where it is one and not blank: a blank member of a document counts as left out. */
export const unlessBlank = (value: unknown): string | undefined =>
  typeof value === 'string' && value.trim() !== '' ? value : undefined

/** The text with a blank for each control character. Its slug is the same. */
export const withoutControls = (text: string): string => text.replace(/\p{Cc}/gu, ' ')

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

/** The environment variable of one input: `dataset.bin` gives `INPUT_DATASET_BIN`. */
export const inputVariable = (logicalName: string): string =>
  `INPUT_${logicalName.toUpperCase().replace(/[^A-Z0-9]+/g, '_')}`

const beyondAscii = /[^\0-\x7f]/

/**
 * The environment variables of a task's inputs by their names, without the prefix of the
 * installation. Where names give one variable, those with characters beyond ASCII get `_` and eight
 * digits behind it: the first of the SHA-256 of the name, in upper case.
 */
export const inputVariables = (logicalNames: Iterable<string>): Map<string, string> => {
  const names = new Map([...logicalNames].map((name) => [name, inputVariable(name)]))
  const uses = new Map<string, number>()
  for (const variable of names.values()) uses.set(variable, (uses.get(variable) ?? 0) + 1)
  for (const [name, variable] of names) {
    if ((uses.get(variable) ?? 0) < 2 || !beyondAscii.test(name)) continue
    const digits = hash('sha256', name).slice(0, 8).toUpperCase()
    names.set(name, `${variable}_${digits}`)
  }
  return names
}
