import { Ajv2020 } from 'ajv/dist/2020.js'
import type { ValidateFunction } from 'ajv'
import type { Example } from './whole-documents.ts'

type Json = Record<string, any>

/** One place of a document: its path, its value and what the API's document says of it. */
export interface Place {
  path: (string | number)[]
  value: unknown
  schema: Json
  required: boolean
}

/** Texts whose blank form is a value: a path of a storage, and the name that confirms a reset. */
const meaningfulBlanks = new Set(['path', 'confirm'])

/** Reads what the API's document says of the documents that routes take. */
export const openPlaces = (document: Json) => {
  const ajv = new Ajv2020({ strict: false, validateFormats: false, validateSchema: false })
  ajv.addSchema({ ...document, $id: 'api' })
  /** A choice takes ajv some milliseconds, and is asked about in every place. */
  const choices = new Map<Json, ValidateFunction>()
  const fits = (choice: Json, value: unknown): boolean => {
    const known = choices.get(choice)
    if (known !== undefined) return known(value) as boolean
    const made = ajv.compile({ $id: `choice-${String(choices.size)}`, ...absolute(choice) })
    choices.set(choice, made)
    return made(value) as boolean
  }

  const resolved = (schema: Json): Json => {
    if (typeof schema['$ref'] !== 'string') return schema
    const { $ref, ...rest } = schema
    const target = ($ref as string)
      .split('/')
      .slice(1)
      .reduce<any>((at, part) => at[part.replaceAll('~1', '/').replaceAll('~0', '~')], document)
    return { ...resolved(target), ...rest }
  }
  /** The alternative that a value is of; the schema itself where it has none. */
  const alternative = (given: Json, value: unknown): Json => {
    const schema = resolved(given)
    const forms = (schema['anyOf'] ?? schema['oneOf']) as Json[] | undefined
    if (forms === undefined) return schema
    const chosen = forms.find((form) => fits(form, value))
    if (chosen === undefined)
      throw new Error(`the example fits no alternative: ${JSON.stringify(value).slice(0, 200)}`)
    return alternative(chosen, value)
  }
  const absolute = (schema: Json): Json =>
    JSON.parse(JSON.stringify(schema).replaceAll('"$ref":"#/', '"$ref":"api#/')) as Json

  /** JSON types that a schema lets a value have; undefined where it may be anything. */
  const typesOf = (given: Json): Set<string> | undefined => {
    const schema = resolved(given)
    const forms = (schema['anyOf'] ?? schema['oneOf']) as Json[] | undefined
    if (forms !== undefined) {
      const each = forms.map(typesOf)
      return each.includes(undefined) ? undefined : new Set(each.flatMap((types) => [...(types ?? [])]))
    }
    if (Array.isArray(schema['type'])) return new Set(schema['type'] as string[])
    if (typeof schema['type'] === 'string') return new Set([schema['type']])
    const values =
      schema['const'] === undefined ? (schema['enum'] as unknown[] | undefined) : [schema['const']]
    return values === undefined ? undefined : new Set(values.map((value) => typeof value))
  }

  /** Every place of a document; of a list only the first item, the others are like it. */
  const placesOf = (value: unknown, given: Json): Place[] => {
    const places: Place[] = []
    const walk = (at: unknown, schema: Json, path: (string | number)[], required: boolean): void => {
      places.push({ path, value: at, schema, required })
      const own = alternative(schema, at)
      if (Array.isArray(at)) {
        if (at.length > 0 && own['items'] !== undefined)
          walk(at[0], own['items'] as Json, [...path, 0], false)
      } else if (typeof at === 'object' && at !== null)
        for (const [key, item] of Object.entries(at)) {
          const declared = own['properties']?.[key] as Json | undefined
          if (declared !== undefined)
            walk(item, declared, [...path, key], (own['required'] ?? []).includes(key))
        }
    }
    walk(value, given, [], true)
    return places
  }

  /** The texts of a document that may be left out, each with the path of its object. */
  const optionalTexts = (given: Json): { path: (string | number)[]; name: string }[] => {
    const found: { path: (string | number)[]; name: string }[] = []
    const walk = (schema: Json, path: (string | number)[]): void => {
      const own = resolved(schema)
      for (const form of (own['anyOf'] ?? own['oneOf'] ?? []) as Json[]) walk(form, path)
      if (own['items'] !== undefined) walk(own['items'] as Json, [...path, 0])
      for (const [name, member] of Object.entries<Json>(own['properties'] ?? {}))
        if (mayBeBlank(own, name)) found.push({ path, name })
        else walk(member, [...path, name])
    }
    walk(given, [])
    return found
  }
  /** Whether a member of an object is a text that may be left out. */
  const mayBeBlank = (own: Json, name: string): boolean => {
    const types = typesOf(own['properties'][name] as Json)
    // A member of any type may hold a blank as well.
    const isText = types?.has('string') === true && !types.has('object')
    return isText && !(own['required'] ?? []).includes(name) && !meaningfulBlanks.has(name)
  }

  /** A copy of the document in which each text that may be left out is blank, or is left out. */
  const withTexts = (value: unknown, given: Json, as: 'blank' | 'left out'): unknown => {
    const own = alternative(given, value)
    if (Array.isArray(value)) return value.map((item) => withTexts(item, (own['items'] ?? {}) as Json, as))
    if (typeof value !== 'object' || value === null) return value
    const members = Object.entries<Json>(own['properties'] ?? {})
    const texts = members.map(([name]) => name).filter((name) => mayBeBlank(own, name))
    const others = Object.entries(value).filter(([name]) => !texts.includes(name))
    return Object.fromEntries([
      ...others.map(([name, member]) => [
        name,
        own['properties']?.[name] === undefined
          ? member
          : withTexts(member, own['properties'][name] as Json, as),
      ]),
      ...(as === 'blank' ? texts.map((name) => [name, '']) : []),
    ])
  }

  return {
    optionalTexts,
    withTexts,
    schemaOf: ({ method, template }: Example): Json =>
      document['paths'][template][method.toLowerCase()].requestBody.content['application/json']
        .schema as Json,
    alternative,
    typesOf,
    placesOf,
  }
}

/** Stands in a document for text that `JSON.stringify` cannot write. */
export const raw = (text: string): string => `<raw ${text}>`
export const written = (value: unknown): string => JSON.stringify(value).replaceAll(/"<raw ([^>]*)>"/g, '$1')

/** A copy of the document with another value at the path; `undefined` removes it. */
export const changed = (root: unknown, path: readonly (string | number)[], value: unknown): unknown => {
  const [step, ...rest] = path
  if (step === undefined) return value
  const copy: any = Array.isArray(root) ? [...(root as unknown[])] : { ...(root as object) }
  const next = changed(copy[step], rest, value)
  if (next === undefined && !Array.isArray(copy)) delete copy[step]
  else copy[step] = next
  return copy
}
