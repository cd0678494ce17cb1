import leven from 'leven'
import type { z } from 'zod'

/** The facts of a schema about its members, without its wrappers. */
interface Def {
  type: string
  shape?: Record<string, z.ZodType>
  element?: z.ZodType
  innerType?: z.ZodType
  valueType?: z.ZodType
  in?: z.ZodType
  options?: readonly z.ZodType[]
  left?: z.ZodType
  right?: z.ZodType
}
const defOf = (schema: z.ZodType): Def => schema._zod.def

/** Schemas inside mere wrappers: optional, default, nullable, pipes, alternatives. */
const within = (schema: z.ZodType, depth = 0): z.ZodType[] => {
  if (depth > 20) return []
  const { innerType, in: input, options, left, right } = defOf(schema)
  const inner = [innerType, input, ...(options ?? []), left, right].filter((one) => one !== undefined)
  return inner.length === 0 ? [schema] : inner.flatMap((one) => within(one, depth + 1))
}

/** Schemas of the value at a path. */
const schemasAt = (schema: z.ZodType, path: readonly PropertyKey[]): z.ZodType[] => {
  const [first, ...rest] = path
  const here = within(schema)
  if (first === undefined) return here
  return here.flatMap((one) => {
    const { shape, element, valueType } = defOf(one)
    const name = String(first)
    const named = shape !== undefined && Object.hasOwn(shape, name) ? shape[name] : undefined
    const next = shape === undefined ? (element ?? valueType) : named
    return next === undefined ? [] : schemasAt(next, rest)
  })
}

const keysOf = (schemas: readonly z.ZodType[]): string[] => [
  ...new Set(schemas.flatMap((one) => Object.keys(defOf(one).shape ?? {}))),
]

/** Members of a document are looked for down to this depth. */
const deepest = 6

/** Paths of a document that have a key, the shortest first; members of lists and maps as `[]`. */
const placesOf = (schema: z.ZodType, key: string): string[] => {
  const found: string[] = []
  const seen = new Set<z.ZodType>()
  const walk = (at: z.ZodType, path: readonly string[]): void => {
    if (path.length >= deepest) return
    for (const one of within(at)) {
      const { shape, element, valueType } = defOf(one)
      if (shape === undefined) {
        const member = element ?? valueType
        if (member !== undefined) walk(member, [...path.slice(0, -1), `${path.at(-1) ?? ''}[]`])
        continue
      }
      if (seen.has(one)) continue
      seen.add(one)
      if (Object.hasOwn(shape, key)) found.push([...path, key].join('.'))
      for (const [name, member] of Object.entries(shape)) walk(member, [...path, name])
    }
  }
  walk(schema, [])
  return found.sort((a, b) => a.split('.').length - b.split('.').length || (a < b ? -1 : 1))
}

/** Longer keys are not compared: no typing error produces them. */
const longest = 64

/**
 * A hint for an unknown key: the known key with the most similar spelling, or the place where the
 * document has this key. Undefined where neither is close.
 */
export const keyHint = (schema: z.ZodType, path: readonly PropertyKey[], key: string): string | undefined => {
  if (key.length > longest) return undefined
  const [near] = keysOf(schemasAt(schema, path))
    .map((known) => ({ known, distance: leven(known.toLowerCase(), key.toLowerCase()) }))
    .filter(
      ({ known, distance }) => distance <= Math.max(1, Math.floor(Math.min(known.length, key.length) / 3)),
    )
    .sort((a, b) => a.distance - b.distance || (a.known < b.known ? -1 : 1))
  if (near !== undefined) return `did you mean ${JSON.stringify(near.known)}?`
  const [place] = placesOf(schema, key)
  if (place === undefined) return undefined
  return place.includes('.')
    ? `it belongs to ${JSON.stringify(place.slice(0, place.lastIndexOf('.')))}`
    : 'it belongs to the top of the document'
}
