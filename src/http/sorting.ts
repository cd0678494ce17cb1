import { z } from 'zod'

/** The query value `sort` of a list: a name of its orders, descending with `-` before it. */
export const sortBy = (orders: Readonly<Record<string, unknown>>, usual: string) => {
  const names = Object.keys(orders).flatMap((name) => [name, `-${name}`])
  return z
    .enum(names as [string, ...string[]])
    .optional()
    .describe(`order of the items, descending with \`-\`; \`${usual}\` by default`)
}
