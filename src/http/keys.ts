import type { z } from 'zod'

/** A key of a document's object as its schema declares it. */
export interface KeyShape {
  name: string
  /** The key may be left out, so null counts as absent, and so does a blank text. */
  optional: boolean
  shape: () => Shape
}

/** The facts of a schema about the keys of a value, apart from its other demands. */
export interface Shape {
  /**
   * By lower-case name; absent where the schema declares no object. Keys of the schema that differ
   * only in case are not in it.
   */
  keys: ReadonlyMap<string, KeyShape> | undefined
  element: (() => Shape) | undefined
  /** Values of a map with free keys. */
  values: (() => Shape) | undefined
  acceptsNull: boolean
  /** A text whose blank form says nothing. */
  isText: boolean
  /**
   * A measure: a number that need not be an integer, so one with more digits than a double holds is
   * rounded like any other.
   */
  measure: boolean
  /** Another schema decides later what the value is: its integers stay as they are. */
  deferred: boolean
}

const free: Shape = {
  keys: undefined,
  element: undefined,
  values: undefined,
  acceptsNull: true,
  isText: false,
  measure: false,
  deferred: false,
}
const leaf: Shape = { ...free, acceptsNull: false }
const text: Shape = { ...leaf, isText: true }

/** Shapes of schemas that do not follow from the schema itself. */
const marked = new WeakMap<z.core.$ZodType, Shape>()
const markedAs = <Schema extends z.ZodType>(schema: Schema, shape: Shape): Schema => {
  marked.set(schema, shape)
  return schema
}

/**
 * The same schema of a text, whose blank form is a value of its own. Wrappers such as `optional()`
 * keep that; checks and descriptions of the text come before it.
 */
export const withBlank = <Text extends z.ZodString>(schema: Text): Text => markedAs(schema, leaf)

/** The same schema of a number that is no measure: an integer that would lose digits is refused. */
export const exact = (schema: z.ZodNumber): z.ZodNumber => markedAs(schema, leaf)

const later: Shape = { ...free, deferred: true, element: () => later, values: () => later }
/** The same schema of a document that its route judges by a further schema. */
export const judgedLater = <Schema extends z.ZodType>(schema: Schema): Schema => markedAs(schema, later)

type Def = z.core.$ZodTypes['_zod']['def']

const both = (
  a: (() => Shape) | undefined,
  b: (() => Shape) | undefined,
  merge: (shapes: Shape[]) => Shape,
): (() => Shape) | undefined => (a === undefined ? b : b === undefined ? a : () => merge([a(), b()]))

/**
 * Any of several shapes. The union permits what one alternative permits, and the schema itself
 * decides afterwards.
 */
const merge = (shapes: readonly Shape[]): Shape =>
  shapes.reduce((left, right) => {
    const keys = new Map(left.keys ?? [])
    for (const [lower, key] of right.keys ?? []) {
      const other = keys.get(lower)
      keys.set(
        lower,
        other === undefined
          ? key
          : {
              name: other.name,
              optional: other.optional || key.optional,
              shape: both(other.shape, key.shape, merge) ?? key.shape,
            },
      )
    }
    return {
      keys: left.keys === undefined && right.keys === undefined ? undefined : keys,
      element: both(left.element, right.element, merge),
      values: both(left.values, right.values, merge),
      acceptsNull: left.acceptsNull || right.acceptsNull,
      isText: left.isText || right.isText,
      measure: left.measure || right.measure,
      deferred: left.deferred || right.deferred,
    }
  })

const objectKeys = (
  shape: Readonly<Record<string, z.core.$ZodType>>,
  shapeOf: (schema: z.core.$ZodType) => Shape,
): Map<string, KeyShape> => {
  const keys = new Map<string, KeyShape>()
  const colliding = new Set<string>()
  for (const [name, schema] of Object.entries(shape)) {
    const lower = name.toLowerCase()
    if (keys.has(lower)) colliding.add(lower)
    keys.set(lower, { name, optional: schema._zod.optin !== undefined, shape: () => shapeOf(schema) })
  }
  for (const lower of colliding) keys.delete(lower)
  return keys
}

const isWhole = (def: z.core.$ZodNumberDef): boolean =>
  ('format' in def && def.format !== undefined) ||
  (def.checks ?? []).some((check) => check._zod.def.check === 'number_format')

/**
 * Reads shapes from zod schemas, each once. Recursive schemas are followed only as deep as a
 * document goes.
 */
export const createShapes = (): ((schema: z.core.$ZodType) => Shape) => {
  const known = new WeakMap<z.core.$ZodType, Shape>()
  const shapeOf = (schema: z.core.$ZodType): Shape => {
    const seen = known.get(schema)
    if (seen !== undefined) return seen
    const shape = marked.get(schema) ?? read((schema as z.core.$ZodTypes)._zod.def)
    known.set(schema, shape)
    return shape
  }
  const read = (def: Def): Shape => {
    switch (def.type) {
      case 'object':
        return {
          ...leaf,
          keys: objectKeys(def.shape, shapeOf),
          values: def.catchall === undefined ? undefined : () => shapeOf(def.catchall as z.core.$ZodType),
        }
      case 'array':
        return { ...leaf, element: () => shapeOf(def.element) }
      case 'tuple':
        return {
          ...leaf,
          element: () => merge([...def.items, ...(def.rest === null ? [] : [def.rest])].map(shapeOf)),
        }
      case 'record':
      case 'map':
        return { ...leaf, values: () => shapeOf(def.valueType) }
      case 'nullable':
        return { ...shapeOf(def.innerType), acceptsNull: true }
      case 'optional':
      case 'nonoptional':
      case 'default':
      case 'prefault':
      case 'readonly':
      case 'catch':
        return shapeOf(def.innerType)
      case 'pipe':
        return shapeOf((def.in as z.core.$ZodTypes)._zod.def.type === 'transform' ? def.out : def.in)
      case 'lazy':
        return shapeOf(def.getter())
      case 'union':
        return merge(def.options.map(shapeOf))
      case 'intersection':
        return merge([shapeOf(def.left), shapeOf(def.right)])
      case 'any':
      case 'unknown':
      case 'null':
      case 'custom':
        return free
      case 'number':
        return { ...leaf, measure: !isWhole(def) }
      case 'literal':
        return {
          ...leaf,
          acceptsNull: def.values.includes(null),
          isText: def.values.some((value) => typeof value === 'string'),
        }
      case 'enum':
      case 'string':
      case 'template_literal':
        return text
      default:
        return leaf
    }
  }
  return shapeOf
}
