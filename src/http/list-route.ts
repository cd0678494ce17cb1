import { z } from 'zod'
import { arraySizes, pagedArray, pageOf, pageQueryOf, type Page } from './paging.ts'
import { route, type Call, type Route, type RouteSpec } from './route.ts'

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
