import { z } from 'zod'
import { ranges, type Range } from '../ranges.ts'

const controls = /\p{Cc}/u
/** Half of a surrogate pair: not Unicode text, and not storable. */
export const loneSurrogate = /\p{Cs}/u

/**
 * Whether a text has 1 to `most` characters, as PostgreSQL's char_length counts them, no control
 * characters and no lone surrogates. Slashes and any script are allowed.
 */
export const isPlainText = (text: string, most: number): boolean =>
  text.length > 0 &&
  text.length <= 2 * most &&
  (text.length <= most || [...text].length <= most) &&
  !controls.test(text) &&
  !loneSurrogate.test(text)

/**
 * Characters of an id that a client chooses, of a lane (a planner makes it of a resource's id, and
 * the index of the leased ones takes 2,704 bytes), and of the longest that the service makes of ids.
 */
export const idLengths = { chosen: 255, lane: 512, made: 1_024 } as const

const idOf = (most: number) =>
  z
    .string()
    .refine((text) => /\S/u.test(text), 'must not be blank')
    .refine(
      (text) => !/\S/u.test(text) || isPlainText(text, most),
      `must be 1 to ${most} characters without control characters`,
    )
    .meta({ minLength: 1, maxLength: most })

/** An identifier as clients choose it, 1–255 characters; opaque, compared byte by byte. */
export const Id = idOf(idLengths.chosen)
/** An identifier that a client chose, or that the service made of others: 1–1,024 characters. */
export const MadeId = idOf(idLengths.made)

const optionalIdOf = (most: number) =>
  z
    .string()
    .refine(
      (text) => text === '' || isPlainText(text, most),
      `must be at most ${most} characters without control characters`,
    )
    .meta({ maxLength: most })

/** A reference or parent id that may be left blank (the empty string). */
export const OptionalId = optionalIdOf(idLengths.chosen)
/** The same of a lane: a core or a slot. */
export const OptionalLaneId = optionalIdOf(idLengths.lane)
/** The same, which the service may have made of other ids. */
export const OptionalMadeId = optionalIdOf(idLengths.made)

/** A display name: 1–255 characters, not only white space. */
export const Name = idOf(255)

/** Free text of at most 64 KiB; may be empty. */
export const Text = z.string().max(65_536)

const rangeText = ({ least, most, unit }: Range, zero: string): string =>
  `${zero}${least === 0 ? '0' : String(least)} to ${String(most)}${unit === '' ? '' : ` ${unit}`}`

/** A number above 0 within the bounds of its kind. */
export const positive = (kind: Range) =>
  z
    .number()
    .min(kind.least)
    .max(kind.most)
    .meta({ description: rangeText(kind, '') })
/** 0, or a number within the bounds of its kind. */
export const amount = (kind: Range) =>
  z
    .number()
    .min(0)
    .max(kind.most)
    .refine((value) => value <= 0 || value >= kind.least, {
      error: ({ input }) =>
        `must be ${rangeText(kind, kind.least === 0 ? '' : '0, or ')} (got ${String(input)})`,
    })
    .meta({ description: rangeText(kind, kind.least === 0 ? '' : '0, or ') })
/** A number that only orders things, of either sign. */
export const Rank = z
  .number()
  .min(-ranges.rank.most)
  .max(ranges.rank.most)
  .describe(`${String(-ranges.rank.most)} to ${String(ranges.rank.most)}; only the order counts`)

/** Kinds of `ranges`, each with 0. */
export const Seconds = amount(ranges.seconds)
export const PlanSeconds = amount(ranges.planSeconds)
export const Money = amount(ranges.money)
export const Cost = amount(ranges.cost)
export const Cores = amount(ranges.cores)
/** Numbers of answers by what they measure; their bounds follow from what they are computed of. */
export const Paid = z.number().describe('units of currency')
export const PlanTime = z.number().describe('seconds from the start of the plan')
export const EpochTime = z.number().describe('seconds since the epoch')

/** An integer ≥ 0, at most 2^53-1 (bytes, counts). */
export const Count = z.int().min(0)

/**
 * RFC 3339 with a zone, as the service writes it (UTC, `Z`). PostgreSQL has no year 0 and no zone of
 * 16 hours or more.
 */
export const Timestamp = z.iso
  .datetime({
    offset: true,
    // A query's `+` arrives as a blank.
    error: ({ input }) =>
      typeof input === 'string' && /T.* \d\d:?\d\d$/.test(input)
        ? 'must be a time with its zone, such as 2026-01-31T12:00:00+02:00; in a query write its + as %2B'
        : undefined,
  })
  // PostgreSQL does not read one with 200 digits of a second (22007).
  .max(40, 'must be at most 40 characters; give fewer digits of a second')
  .refine(
    (text) => !text.startsWith('0000-') && !/[+-](1[6-9]|2\d):\d\d$/.test(text),
    'must be a time from the year 1 on, with a zone of less than 16 hours, like 2026-01-31T12:00:00Z',
  )
/** Bounds of one free-form object (metadata, configuration). */
export const jsonObjectBounds = { depth: 32, values: 10_000, characters: 1_048_576 } as const

/** The problem of a free-form value's size, or undefined. */
const oversize = (root: unknown): string | undefined => {
  let values = 0
  let length = 0
  const walk = (value: unknown, depth: number): string | undefined => {
    if (++values > jsonObjectBounds.values) return `must hold at most ${jsonObjectBounds.values} values`
    if (typeof value === 'string' && (length += value.length) > jsonObjectBounds.characters)
      return `must hold at most ${jsonObjectBounds.characters} characters`
    if (typeof value !== 'object' || value === null) return undefined
    if (depth >= jsonObjectBounds.depth)
      return `must not be nested deeper than ${jsonObjectBounds.depth} levels`
    for (const [key, item] of Object.entries(value)) {
      if ((length += key.length) > jsonObjectBounds.characters)
        return `must hold at most ${jsonObjectBounds.characters} characters`
      const found = walk(item, depth + 1)
      if (found !== undefined) return found
    }
    return undefined
  }
  return walk(root, 0)
}

/** The schema of a member that may be left out; its description names the default too. */
export const withDefault = <Schema extends z.ZodType>(schema: Schema, usual: string) =>
  schema
    .optional()
    .describe(`${schema.description === undefined ? '' : `${schema.description}; `}default: ${usual}`)

const isTexts = (value: unknown): boolean =>
  Array.isArray(value) && value.every((item) => typeof item === 'string')

/** Reports a value beyond `jsonObjectBounds`. */
export const withinObjectBounds = (value: unknown, context: z.RefinementCtx): void => {
  const message = oversize(value)
  if (message !== undefined) context.addIssue({ code: 'custom', message })
}

/**
 * A free-form object: any JSON below string keys, within `jsonObjectBounds`. A list of texts at the
 * key `uncounted` does not count.
 */
export const freeObject = (uncounted?: string) =>
  z.record(z.string(), z.unknown()).superRefine((value, context) => {
    const counted = Object.entries(value).filter(([key, item]) => key !== uncounted || !isTexts(item))
    withinObjectBounds(Object.fromEntries(counted), context)
  })
export const JsonObject = freeObject()
/** Facts of the client's own about a record. */
export const Metadata = JsonObject.optional().describe("the client's own facts; the service keeps them")
/** The description of a member that a document may hold because answers do. */
export const ofAnswer = 'of an answer; ignored'
export type JsonObject = z.output<typeof JsonObject>

/**
 * A member that the service sets itself. A document may hold it, so that an answer can be sent back;
 * it is never read.
 */
export const ServerManaged = z.unknown().optional().describe(ofAnswer)
