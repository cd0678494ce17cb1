import { z } from 'zod'
import { arraySizes, pagedArray, pageOf, pageQueryOf, type Page } from './paging.ts'
import { Reply, route, type Call, type Route, type RouteSpec } from './route.ts'
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

/**
 * A list that stays a plain array, page by page. `filters` are the query's members beside those of
 * the page.
 */
export const listRoute = <
  const P extends string,
  Item extends z.ZodType,
  F extends z.ZodRawShape = z.ZodRawShape,
>({
  filters,
  item,
  read,
  ...spec
}: Pick<RouteSpec<P, undefined, undefined, undefined>, 'path' | 'tag' | 'summary'> & {
  filters?: F
  item: Item
  read: (page: Page, call: ListCall<P, F>) => Promise<PageRows<z.output<Item>>>
}): Route =>
  route({
    ...spec,
    method: 'GET',
    query: z.strictObject({ ...pageQueryOf(arraySizes), ...filters }),
    response: z.array(item),
    handle: async (call) => {
      const page = pageOf(call.query, arraySizes)
      const { rows, total } = await read(page, call as unknown as ListCall<P, F>)
      return pagedArray(rows, { page, total, target: call.target })
    },
  })

/**
 * A list of documents of any size, which are never all in memory: `ids` reads a page of ids, and
 * `texts` the JSON texts of some of them in their order, without those that are gone.
 */
export const longListRoute = ({
  item,
  ids,
  texts,
  ...spec
}: Pick<RouteSpec<string, undefined, undefined, undefined>, 'path' | 'summary'> & {
  item: z.ZodType
  ids: (page: Page) => Promise<PageRows<string>>
  texts: (ids: readonly string[]) => Promise<string[]>
}): Route =>
  route({
    ...spec,
    method: 'GET',
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
