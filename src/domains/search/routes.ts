import type { Db } from '../../db/sql.ts'
import { countBound } from '../../lists.ts'
import { route, type Route } from '../../http/route.ts'
import { searchKinds } from './kinds.ts'
import { SearchAnswer, SearchQuery } from './schemas.ts'
import { search } from './store.ts'

const usual = 30
const most = 100

export const searchRoutes = ({ db }: { db: Db }): Route[] => [
  route('search', 'GET /search/', {
    summary: 'Records that have a text, the best matches first',
    query: SearchQuery,
    response: SearchAnswer,
    handle: async ({ query }) => {
      // Searched texts have one line each, so control characters in the query become spaces.
      const text = (query.q ?? '').replace(/\p{Cc}+/gu, ' ').trim()
      if (text === '') return { query: query.q ?? '', results: [], total: 0 }
      const wanted = query.types?.split(',').map((type) => type.trim())
      const limit = query.limit === undefined || query.limit < 1 ? usual : Math.min(query.limit, most)
      const { total, hits } = await search(
        db,
        text,
        searchKinds.filter(({ type }) => wanted?.includes(type) ?? true),
        limit,
      )
      return {
        query: query.q ?? '',
        results: hits,
        total: Math.min(total, countBound),
        ...(total > countBound ? { totalIsLowerBound: true as const } : {}),
      }
    },
  }),
]
