import { z } from 'zod'
import { secretPaths } from '../environments/secrets.ts'

/** Keywords that make a schema take unbounded time, or refer outside of itself. */
const refused = new Set(['pattern', 'patternProperties', '$ref', '$dynamicRef', '$id', '$anchor'])

const refusedKeyword = (value: unknown): string | undefined => {
  if (typeof value !== 'object' || value === null) return undefined
  for (const [key, item] of Object.entries(value)) {
    if (!Array.isArray(value) && refused.has(key)) return key
    const found = refusedKeyword(item)
    if (found !== undefined) return found
  }
  return undefined
}

/** The problem of a JSON schema for a playbook's variables; undefined where it can be used. */
export const variablesSchemaProblem = (schema: Record<string, unknown>): string | undefined => {
  const keyword = refusedKeyword(schema)
  if (keyword !== undefined)
    return `the keyword ${JSON.stringify(keyword)} is not taken; describe the variables without it`
  if (schema['type'] !== 'object') return 'must have "type": "object", because variables are an object'
  const properties = Object.entries((schema['properties'] ?? {}) as Record<string, { default?: unknown }>)
  const [secret] = properties.filter(
    ([name, one]) => one?.default !== undefined && secretPaths({ [name]: one.default }).length > 0,
  )
  if (secret !== undefined)
    return `the default of ${JSON.stringify(secret[0])} is a secret in clear text; give it in each target`
  try {
    z.fromJSONSchema(schema)
    return undefined
  } catch (error) {
    return `is no JSON schema that can be used: ${error instanceof Error ? error.message : String(error)}`
  }
}
