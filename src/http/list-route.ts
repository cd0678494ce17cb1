import { z } from 'zod'
import { arraySizes, pagedArray, pageOf, pageQueryOf, type Page } from './paging.ts'
import { Reply, route, type Call, type PathOf, type RequestLine, type Route } from './route.ts'
import { textArray } from './text-array.ts'

/** The rows of a page as read with `page.limit`, and their total, counted to `countBound + 1`. */
export interface PageRows<Row> {
  rows: Row[]
  total: number
}

type ListCall<P extends string, F extends z.ZodRawShape> = Call<
  P,
  z.output<z.ZodObject<ReturnType<typeof pageQueryOf> & F>>,
  undefined
>

interface ListSpec<P extends string, Item extends z.ZodType, F extends z.ZodRawShape> {
  tag?: string
  summary: string
  /** Members of the query beside those of the page. */
  filters?: F
  item: Item
  read: (page: Page, call: ListCall<P, F>) => Promise<PageRows<z.output<Item>>>
}

/** A list that stays a plain array, page by page; `id` and `line` as for `route`. */
export function listRoute<
  const Line extends RequestLine,
  Item extends z.ZodType,
  F extends z.ZodRawShape = z.ZodRawShape,
>(id: string, line: Line, { filters, item, read, ...spec }: ListSpec<PathOf<Line>, Item, F>): Route {
  const query = z.strictObject({ ...pageQueryOf(arraySizes), ...filters })
  const handle = async (call: ListCall<string, z.ZodRawShape>) => {
    const page = pageOf(call.query, arraySizes)
    const { rows, total } = await read(page, call as unknown as ListCall<PathOf<Line>, F>)
    return pagedArray(rows, { page, total, target: call.target })
  }
  return route(id, line, { ...spec, query, response: z.array(item), handle })
}

/**
 * A list of documents of any size, which are never all in memory: `ids` reads a page of ids, and
 * `texts` the JSON texts of some of them in their order, without those that are gone.
 */
export const longListRoute = (
  id: string,
  line: RequestLine,
  {
    summary,
    item,
    ids,
    texts,
  }: {
    summary: string
    item: z.ZodType
    ids: (page: Page) => Promise<PageRows<string>>
    texts: (ids: readonly string[]) => Promise<string[]>
  },
): Route =>
  route(id, line, {
    summary,
    query: z.strictObject(pageQueryOf(arraySizes)),
    response: z.array(item),
    raw: ['application/json'],
    handle: async ({ query, target }) => {
      const page = pageOf(query, arraySizes)
      const { rows, total } = await ids(page)
      const { body = [], headers } = pagedArray(rows, { page, total, target })
      return new Reply({ ...(await textArray(body, texts)), headers })
    },
  })
