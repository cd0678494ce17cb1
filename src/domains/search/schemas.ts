import { z } from 'zod'
import { wholeNumber } from '../../http/paging.ts'

export const SearchQuery = z.strictObject({
  q: z
    .string()
    .max(1_000)
    .optional()
    .describe('text to look for, in any case; one or two letters are looked for at the beginning of a text'),
  limit: wholeNumber.optional().meta({ description: 'Results to return: 30 unless given, at most 100' }),
  types: z
    .string()
    .optional()
    .describe(
      'kinds to look through, separated by commas: workflow, execution, artifact, environment, ' +
        'resource, plan, scope, materialization',
    ),
})
export type SearchQuery = z.output<typeof SearchQuery>

export const SearchResult = z
  .strictObject({
    type: z.string(),
    id: z.string(),
    title: z.string(),
    subtitle: z.string().optional(),
    path: z.string().describe('where a client shows it'),
    status: z.string().optional(),
    score: z.number().describe('1 for the whole of a text, 0.9 for its beginning, 0.7 for a part'),
  })
  .meta({ id: 'SearchResult' })

export const SearchAnswer = z.strictObject({
  query: z.string(),
  results: z.array(SearchResult),
  total: z.int().min(0).describe('records that match, counted to 10,000'),
  totalIsLowerBound: z.literal(true).optional(),
})
