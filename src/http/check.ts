import type { z } from 'zod'
import { outsideText } from '../outside-text.ts'
import { append } from '../lists.ts'
import { firstProblems, Refusal, unacceptable, type Problem } from '../refusal.ts'
import type { Shape } from './keys.ts'
import { keyHint } from './known-keys.ts'
import { loneSurrogate } from './schema.ts'

/** The limit of nested levels in a document, JSON or YAML. */
export const depthBound = 100
/**
 * The limit of findings in one answer. For a document of a million wrong values the answer counts
 * the rest.
 */
const detailBound = 1_000

/** A finding with its status: 400 for form, 422 for content. */
interface Finding extends Problem {
  status: 400 | 422
  /** A key that the schema does not define at its place. */
  unknown?: { path: readonly PropertyKey[]; key: string }
}

const joined = (path: readonly PropertyKey[]): string => path.map(String).join('.')

const typeName = (value: unknown): string => {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'an array'
  return (
    { string: 'a string', number: 'a number', bigint: 'a number', boolean: 'a boolean', object: 'an object' }[
      typeof value as string
    ] ?? typeof value
  )
}

const expectedName: Record<string, string> = {
  string: 'a string',
  number: 'a number',
  int: 'a whole number',
  boolean: 'a boolean',
  object: 'an object',
  record: 'an object',
  array: 'an array',
  tuple: 'an array',
  null: 'null',
  date: 'a date',
}

/** The digits that decide a number, without sign, point, exponent and zeros behind them. */
const decidingDigits = (text: string): string =>
  text.replace(/e.*$/, '').replace(/[-.]/g, '').replace(/0+$/, '')

/** A value for a message: short, and only where it is a scalar. */
const shown = (value: unknown): string => {
  if (typeof value === 'number' || typeof value === 'boolean') return ` (got ${String(value)})`
  if (typeof value === 'string' && value.length <= 80 && !loneSurrogate.test(value))
    return ` (got ${JSON.stringify(value)})`
  return ''
}

/** Keys of a document under which a client chooses the id of a record. */
const chosenIds = new Set<string | undefined>(['id', 'instanceId'])

/**
 * Converts a parsed document to the form that its schema reads, in place. A key that differs from a
 * declared one only in case gets the declared spelling; a null or a blank text of an optional key
 * removes the key. Reports values that no schema sees: hostile keys, depth, NUL, lone surrogates,
 * numbers that JSON cannot hold, ids that no path can hold. The schemas of ids take these, because a
 * record of an earlier version may have one.
 */
export const normalise = (document: unknown, shape: Shape | undefined, findings: Finding[]): unknown => {
  const path: (string | number)[] = []
  const report = (status: 400 | 422, message: string): void =>
    void findings.push({ status, path: joined(path), message })

  /**
   * Returns the text without characters that cannot be stored, after they are reported, so that a
   * later query with the text does not fail.
   */
  const text = (value: string, noun: string): string => {
    if (loneSurrogate.test(value)) report(422, `${noun} holds a lone surrogate; send valid Unicode`)
    else if (value.includes('\0')) report(422, `${noun} holds the character NUL, which cannot be stored`)
    else return value
    return outsideText(value)
  }

  const rename = (
    object: Record<string, unknown>,
    keys: ReadonlyMap<string, Shape['keys'] extends ReadonlyMap<string, infer K> | undefined ? K : never>,
  ): void => {
    for (const name of Object.keys(object)) {
      const declared = keys.get(name.toLowerCase())
      if (declared === undefined || declared.name === name) continue
      if (Object.hasOwn(object, declared.name)) {
        path.push(name)
        report(
          400,
          `keys ${JSON.stringify(declared.name)} and ${JSON.stringify(name)} differ only in case; send one of them`,
        )
        path.pop()
      } else object[declared.name] = object[name]
      delete object[name]
    }
  }

  const walk = (value: unknown, at: Shape | undefined, depth: number): unknown => {
    if (typeof value === 'string') return text(value, 'the text')
    if (typeof value === 'number') {
      if (!Number.isFinite(value)) {
        report(422, 'the number is not finite')
        return 0
      }
    } else if (typeof value === 'bigint') {
      if (at?.deferred === true) return value
      const number = Number(value)
      const digits = String(value)
      // A double is written with the fewest digits that give it again, and zeros to its size.
      if (
        Number.isFinite(number) &&
        (at?.measure === true || decidingDigits(digits) === decidingDigits(number.toExponential()))
      )
        return number
      report(
        422,
        `the integer ${digits.length > 40 ? `${digits.slice(0, 40)}…` : digits} is beyond 2^53-1 and would lose digits`,
      )
      // Further checks of the refused document see a large number too; otherwise they would report
      // it as too small.
      return value < 0n ? Number.MIN_SAFE_INTEGER : Number.MAX_SAFE_INTEGER
    } else if (Array.isArray(value)) {
      if (depth >= depthBound) return tooDeep([])
      const element = at?.element?.()
      for (let i = 0; i < value.length; i++) {
        path.push(i)
        const item: unknown = value[i]
        const next = walk(item, element, depth + 1)
        if (next !== item) value[i] = next
        path.pop()
      }
    } else if (typeof value === 'object' && value !== null) {
      if (depth >= depthBound) return tooDeep({})
      fields(value as Record<string, unknown>, at, depth)
    }
    return value
  }

  /** Further checks of the refused document see `rest` there: some go down by recursion. */
  const tooDeep = (rest: unknown): unknown => {
    report(400, `the document is nested deeper than ${depthBound} levels`)
    return rest
  }

  const fields = (object: Record<string, unknown>, at: Shape | undefined, depth: number): void => {
    const keys = at?.keys
    if (keys !== undefined) rename(object, keys)
    const others = at?.values?.()
    for (const name of Object.keys(object)) {
      path.push(name)
      const value = object[name]
      const declared = keys?.get(name.toLowerCase())
      const known = declared?.name === name ? declared : undefined
      // JavaScript would take it for the object's prototype in places; all other names are only keys.
      if (name === '__proto__') {
        report(422, 'the key "__proto__" cannot be kept; choose another name')
        delete object[name]
      } else if (known?.optional === true && saysNothing(value, known.shape())) delete object[name]
      else {
        text(name, 'the key')
        if (chosenIds.has(known?.name) && (value === '.' || value === '..'))
          report(
            422,
            `must not be ${JSON.stringify(value)}, which no client can send in a path; choose another id`,
          )
        const next = walk(value, known === undefined ? others : known.shape(), depth + 1)
        if (next !== value) object[name] = next
      }
      path.pop()
    }
  }

  return walk(document, shape, 0)
}

/** Whether the value of a key that may be left out counts as left out. */
const saysNothing = (value: unknown, { acceptsNull, isText }: Shape): boolean =>
  value === null ? !acceptsNull : value === '' && isText

type Issue = z.core.$ZodIssue

const valueAt = (root: unknown, path: readonly PropertyKey[]): unknown => {
  let at: unknown = root
  for (const key of path) {
    if (typeof at !== 'object' || at === null) return undefined
    at = (at as Record<PropertyKey, unknown>)[key]
  }
  return at
}

/**
 * The alternative of a union that the value most likely means: one whose own type fits, with the
 * fewest findings.
 */
const likeliest = (alternatives: readonly (readonly Issue[])[]): readonly Issue[] | undefined => {
  const fitting = alternatives.filter(
    (issues) => !issues.some((issue) => issue.path.length === 0 && issue.code === 'invalid_type'),
  )
  return fitting.toSorted((a, b) => a.length - b.length)[0]
}

const jsonType = (value: unknown): string =>
  value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value

/**
 * The requirement of a schema without a text of its own on a value of the right type. Without it
 * users would read the library's texts.
 */
const boundOf = (issue: z.core.$ZodRawIssue): string => {
  switch (issue.code) {
    case 'too_small':
      if (issue.origin === 'string') return `must have at least ${counted(issue.minimum, 'character')}`
      if (issue.origin === 'array' || issue.origin === 'set')
        return `must have at least ${counted(issue.minimum, 'item')}`
      return `must be ${issue.inclusive === false ? 'greater than' : 'at least'} ${String(issue.minimum)}`
    case 'too_big':
      if (issue.origin === 'string') return `must have at most ${counted(issue.maximum, 'character')}`
      if (issue.origin === 'array' || issue.origin === 'set')
        return `must have at most ${counted(issue.maximum, 'item')}`
      return `must be ${issue.inclusive === false ? 'less than' : 'at most'} ${String(issue.maximum)}`
    case 'not_multiple_of':
      return `must be a multiple of ${String(issue.divisor)}`
    case 'invalid_format':
      return issue.format === 'datetime'
        ? 'must be a time with date and zone in the form of RFC 3339, like 2026-01-31T12:00:00Z'
        : issue.format === 'regex'
          ? `must match ${issue.pattern ?? 'the pattern of its schema'}`
          : `must be a valid ${issue.format}`
    case 'invalid_union':
      return Array.isArray(issue['options'])
        ? `must be one of ${issue['options'].join(', ')}`
        : 'fits none of the forms that are possible here'
    default:
      return 'is not acceptable here'
  }
}

const counted = (number: number | bigint, noun: string): string =>
  `${String(number)} ${noun}${Number(number) === 1 ? '' : 's'}`

const findingsOf = (issue: Issue, before: readonly PropertyKey[], root: unknown): Finding[] => {
  const full = [...before, ...issue.path]
  const path = joined(full)
  const value = valueAt(root, full)
  const at = (status: 400 | 422, message: string): Finding[] => [{ status, path, message }]
  if (issue.code === 'unrecognized_keys')
    return issue.keys.map((key) => ({
      status: 400,
      path: joined([...full, key]),
      message: 'is not a known key here; remove it or correct its spelling',
      unknown: { path: full, key },
    }))
  if (value === undefined && issue.code !== 'custom') return at(422, 'is required')
  if (value === null && issue.code !== 'custom') return at(422, 'must not be null')
  switch (issue.code) {
    case 'invalid_type': {
      const wanted = expectedName[issue.expected] ?? issue.expected
      const number = typeof value === 'number' && (issue.expected === 'int' || issue.expected === 'number')
      return at(
        number ? 422 : 400,
        number ? `must be ${wanted}${shown(value)}` : `must be ${wanted}, not ${typeName(value)}`,
      )
    }
    case 'invalid_value': {
      const types = new Set(issue.values.map(jsonType))
      if (!types.has(jsonType(value)))
        return at(
          400,
          `must be ${[...types].map((type) => expectedName[type] ?? type).join(' or ')}, not ${typeName(value)}`,
        )
      const values = issue.values.join(', ')
      return at(422, `must be ${issue.values.length === 1 ? '' : 'one of '}${values}${shown(value)}`)
    }
    case 'invalid_union': {
      if (issue.errors.length === 0) {
        // A discriminated union whose discriminator names no alternative; its path is the
        // discriminator's.
        return at(422, `${issue.message}${shown(value)}`)
      }
      const meant = likeliest(issue.errors)
      if (meant !== undefined) return meant.flatMap((inner) => findingsOf(inner, full, root))
      const wanted = new Set(
        issue.errors
          .flat()
          .flatMap((inner) =>
            inner.code === 'invalid_type' && inner.path.length === 0
              ? [expectedName[inner.expected] ?? inner.expected]
              : [],
          ),
      )
      return at(400, `must be ${[...wanted].join(' or ')}, not ${typeName(value)}`)
    }
    case 'invalid_key':
    case 'invalid_element':
      return issue.issues.flatMap((inner) =>
        findingsOf({ ...inner, path: [] }, full, root).map((found) => ({
          ...found,
          message: issue.code === 'invalid_key' ? `the key ${found.message}` : found.message,
          status: issue.code === 'invalid_key' ? 422 : found.status,
        })),
      )
    case 'custom':
      return at(422, issue.message)
    default:
      return at(422, `${issue.message}${shown(value)}`)
  }
}

/** The limit of unknown keys with a hint in one document: each hint searches the schema. */
const mostHints = 20

const hinted = (shape: Shape, findings: readonly Finding[]): Finding[] =>
  findings.map((finding, k) => {
    if (finding.unknown === undefined || k >= mostHints) return finding
    const hint = keyHint(shape, finding.unknown.path, finding.unknown.key)
    return hint === undefined ? finding : { ...finding, message: `is not a known key here; ${hint}` }
  })

const refusalOf = (findings: readonly Finding[]): Refusal => {
  const details = firstProblems(
    findings.map(({ path, message }) => ({ path, message })),
    detailBound,
  )
  const refusal = unacceptable(details)
  return findings.some((finding) => finding.status === 400)
    ? new Refusal('invalid', refusal.message, { details })
    : refusal
}

/**
 * The document in the form of its schema.
 * @throws Unfit with one refusal of every finding: 400 where one of them concerns form (wrong JSON
 *   type, unknown key), else 422 (missing, blank, null, enum, range)
 */
export const checkDocument = (schema: z.ZodType, shape: Shape, document: unknown): unknown => {
  const findings: Finding[] = []
  const normalised = document === undefined ? undefined : normalise(document, shape, findings)
  const result = schema.safeParse(normalised, { error: boundOf })
  if (result.success && findings.length === 0) return result.data
  if (!result.success) {
    if (normalised === undefined)
      throw new Unfit(
        new Refusal('invalid', 'the request has no body; a document is required, as JSON or YAML'),
        undefined,
      )
    const reported = new Set(findings.map((finding) => finding.path))
    for (const issue of result.error.issues)
      append(
        findings,
        hinted(
          shape,
          findingsOf(issue, [], normalised).filter((found) => !reported.has(found.path)),
        ),
      )
  }
  throw new Unfit(refusalOf(findings), normalised)
}

/**
 * The refusal by a schema, with the document as far as it is readable, so that the route may add
 * the problems that only the store finds.
 */
export class Unfit extends Refusal {
  readonly document: unknown
  constructor({ code, message, details }: Refusal, document: unknown) {
    super(code, message, { details })
    this.document = document
  }
}

/** The query's values in the form of their schema. All problems are reported at once, as 400. */
export const checkQuery = (schema: z.ZodType, query: Record<string, string>): unknown => {
  const result = schema.safeParse(query, { error: boundOf })
  if (result.success) return result.data
  const details = result.error.issues
    .flatMap((issue) => findingsOf(issue, [], query))
    .map(({ path, message }) => ({
      path,
      message: message.replace('known key here', 'known query parameter here'),
    }))
  throw new Refusal('invalid', `query: ${unacceptable(details).message}`, { details })
}
