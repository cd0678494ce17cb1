import { z } from 'zod'
import { countBound } from '../lists.ts'
import { Reply } from './route.ts'

/** The number of items in a list that is requested without `page`. */
export const unpagedSize = 1_000

/** A whole number in a query, of any size: each list says what it does with one out of its range. */
export const wholeNumber = z
  .string()
  .regex(/^[+-]?\d{1,16}$/, 'must be a whole number')
  .transform(Number)

/** A whole number of bytes in a query. */
export const wholeBytes = z
  .string()
  .regex(/^\d{1,15}$/, 'must be a whole number of bytes')
  .transform(Number)

/** The most bytes of a log in one answer. */
export const logLimitBytes = 1_048_576

/** The part of a log that a request asks for. */
export const logRangeQuery = {
  offset: wholeBytes.optional().describe('bytes from the start of the log; 0 by default'),
  limit: wholeBytes
    .optional()
    .describe(`bytes of the answer at most, up to ${String(logLimitBytes)}, which is the default`),
  tail: wholeBytes
    .optional()
    .describe(
      `bytes from the end of the log, up to ${String(logLimitBytes)}; by default the part of offset and limit`,
    ),
  follow: z
    .enum(['true', 'false'])
    .optional()
    .describe('true: the answer goes on until the end; false by default'),
}

/**
 * The rows to read: `limit` rows from `offset` on. `limit` is one more than the page, because the
 * extra row shows that a next page exists.
 */
export interface Page {
  page: number
  pageSize: number
  limit: number
  offset: number
}

export interface Sizes {
  /** The size without `pageSize`, and in place of one that is out of range. */
  usual: number
  largest: number
  /** For a larger one: the largest instead of the usual size. */
  beyond?: 'largest'
}

/** Sizes of `{items, …}` envelopes: 20, and 20 again for anything above 100. */
export const envelopeSizes: Sizes = { usual: 20, largest: 100 }
/** Sizes of plain arrays: 1,000 at most, and 1,000 by default. */
export const arraySizes: Sizes = { usual: unpagedSize, largest: unpagedSize }

/**
 * Spread into a route's strict query object: `z.strictObject({ ...pageQueryOf(arraySizes), status:
 * z.string().optional() })`.
 */
export const pageQueryOf = ({ usual, largest, beyond }: Sizes) => ({
  page: wholeNumber.optional().describe('Page, from 1; 1 by default and instead of one below it'),
  pageSize: wholeNumber
    .optional()
    .describe(
      beyond === 'largest'
        ? `Items of a page, ${String(largest)} at most; ${String(usual)} by default and below 1`
        : `Items of a page, 1 to ${String(largest)}; ${String(usual)} by default and instead of another number`,
    ),
})
/** The query values of a list in an envelope. */
export const pageQuery = pageQueryOf(envelopeSizes)

/**
 * The rows that a query selects. It never refuses: a page below 1 becomes 1, and a size out of
 * range becomes a usual one.
 */
export const pageOf = (
  query: { page?: number | undefined; pageSize?: number | undefined },
  sizes: Sizes = envelopeSizes,
): Page => {
  const page = Math.min(Math.max(1, query.page ?? 1), 2 ** 31 - 1)
  const asked = query.pageSize ?? sizes.usual
  const large = sizes.beyond === 'largest' ? sizes.largest : sizes.usual
  const pageSize = asked < 1 ? sizes.usual : asked > sizes.largest ? large : asked
  return { page, pageSize, limit: pageSize + 1, offset: (page - 1) * pageSize }
}

const linkTo = (target: string, page: number, pageSize: number, relation: string): string => {
  const at = target.indexOf('?')
  const path = at === -1 ? target : target.slice(0, at)
  const query = new URLSearchParams(at === -1 ? '' : target.slice(at + 1))
  query.set('page', String(page))
  query.set('pageSize', String(pageSize))
  return `<${path}?${query.toString()}>; rel="${relation}"`
}

const totalText = (total: number): string => (total > countBound ? `${countBound}+` : String(total))

/**
 * A list that stays a plain array: `rows` as read with `page.limit`, `total` counted to `countBound
 * + 1`, `target` from the call. The header `Link` holds the neighbouring pages, `X-Total-Count` the
 * total (`10000+` for a lower bound).
 */
export const pagedArray = <Row>(
  rows: readonly Row[],
  options: { page: Page; total: number; target: string },
): Reply<Row[]> => {
  const { page, pageSize } = options.page
  const links = [
    ...(page > 1 ? [linkTo(options.target, page - 1, pageSize, 'prev')] : []),
    ...(rows.length > pageSize ? [linkTo(options.target, page + 1, pageSize, 'next')] : []),
  ]
  const headers: Record<string, string> = { 'X-Total-Count': totalText(options.total) }
  if (links.length > 0) headers['Link'] = links.join(', ')
  return new Reply({ body: rows.slice(0, pageSize), headers })
}

/** The envelope of a paged list; `totalIsLowerBound` is present only where it is true. */
export interface Envelope<Row> {
  items: Row[]
  page: number
  pageSize: number
  total: number
  hasNext: boolean
  totalIsLowerBound?: true
}

/**
 * A page in its envelope: `rows` as read with `page.limit`, `total` counted to `countBound + 1`.
 */
export const envelope = <Row>(
  rows: readonly Row[],
  options: { page: Page; total: number },
): Envelope<Row> => ({
  items: rows.slice(0, options.page.pageSize),
  page: options.page.page,
  pageSize: options.page.pageSize,
  total: Math.min(options.total, countBound),
  hasNext: rows.length > options.page.pageSize,
  ...(options.total > countBound ? { totalIsLowerBound: true as const } : {}),
})

/** The response schema of `envelope`. */
export const envelopeOf = <Item extends z.ZodType>(item: Item) =>
  z.strictObject({
    items: z.array(item),
    page: z.int().min(1),
    pageSize: z.int().min(1).describe('most items of a page'),
    total: z
      .int()
      .min(0)
      .describe(`items of all pages, counted up to ${String(countBound)}`),
    hasNext: z.boolean(),
    totalIsLowerBound: z.literal(true).optional().describe('there are more than total'),
  })
