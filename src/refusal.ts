import { firstItems } from './lists.ts'

/**
 * The ways in which the service refuses a request. `http/errors.ts` maps them to statuses;
 * docs/errors.md describes the reaction of a caller to each.
 */
export type RefusalCode =
  | 'invalid'
  | 'unauthenticated'
  | 'forbidden'
  | 'missing'
  | 'conflict'
  | 'too_large'
  | 'unacceptable'
  | 'locked'
  | 'unavailable'
  | 'not_built'

/**
 * One finding about a document: `path` is dotted from the document's root
 * (`plan.assignments.3.resourceId`, empty for the whole).
 */
export interface Problem {
  path: string
  message: string
}

/**
 * An answer that is not a fault of the service. The caller gets its text and details, so they name
 * field, value and remedy and never hold secrets, SQL or host names. Any other error is a 500 whose
 * cause is only logged.
 */
export class Refusal extends Error {
  readonly code: RefusalCode
  readonly details: Problem[]
  /** Additive members of the error body, e.g. `{ state: 'completed' }` on an impossible cancel. */
  readonly extra: Record<string, unknown>
  /** Seconds for `Retry-After`; given on `unavailable` and on conflicts that end by themselves. */
  readonly retryAfterSeconds: number | undefined

  constructor(
    code: RefusalCode,
    message: string,
    options: {
      details?: Problem[]
      extra?: Record<string, unknown>
      retryAfterSeconds?: number
      cause?: unknown
    } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = 'Refusal'
    this.code = code
    this.details = options.details ?? []
    this.extra = options.extra ?? {}
    this.retryAfterSeconds = options.retryAfterSeconds
  }
}

export const invalid = (message: string, details: Problem[] = []): Refusal =>
  new Refusal('invalid', message, { details })
export const missing = (noun: string, id: string): Refusal =>
  new Refusal('missing', `${noun} ${JSON.stringify(id)} does not exist`)

/** The record of an id, as found. @throws Refusal `missing` where it is undefined */
export const existing = <T>(record: T | undefined, noun: string, id: string): T => {
  if (record === undefined) throw missing(noun, id)
  return record
}

/** The first of the problems, and the number of the others. */
export const firstProblems = (problems: readonly Problem[], most: number): Problem[] =>
  firstItems(problems, most, (more) => ({ path: '', message: `and ${more} more` }))

/** The problem of a member that repeats the id in the path, and has another; it may be left out. */
export const pathIdProblems = (path: string, given: string | undefined, id: string): Problem[] =>
  given === undefined || given === id
    ? []
    : [{ path, message: `must be ${JSON.stringify(id)} as in the path, or be left out` }]

/**
 * 422 with every problem at once. The text of the error is the first problem plus the number of the
 * others.
 */
export const unacceptable = (details: Problem[]): Refusal => {
  const [first, ...rest] = details
  const text =
    first === undefined
      ? 'the document is not acceptable'
      : first.path === ''
        ? first.message
        : `${first.path}: ${first.message}`
  return new Refusal(
    'unacceptable',
    rest.length === 0 ? text : `${text} (and ${rest.length} more, see details)`,
    { details },
  )
}

/** 422 with one problem. */
export const unacceptableAt = (path: string, message: string): Refusal => unacceptable([{ path, message }])
