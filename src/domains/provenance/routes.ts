import type { Reader } from '../../db/reader.ts'
import type { Db } from '../../db/sql.ts'
import { preferred } from '../../http/accept.ts'
import { envelope, pageOf } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { catalogue } from './catalogue.ts'
import { closureStream } from './closure.ts'
import { knownEntity, lineageOf } from './lineage.ts'
import { openRunGraphs } from './run-graphs.ts'
import {
  ClosureQuery,
  EntityList,
  EntityPage,
  EntityQuery,
  entitySizes,
  Explained,
  Lineage,
  LineageQuery,
  Rows,
  SqlSchema,
  Statement,
} from './schemas.ts'
import { openStatements } from './sql.ts'
import { listColumns, listEntity } from './store.ts'

export interface ProvenanceParts {
  db: Db
  reader: Reader
}

export const provenanceRoutes = ({ db, reader }: ProvenanceParts): Route[] => {
  const statements = openStatements(reader)
  const graphs = openRunGraphs()
  return [
    route('listProvenanceEntities', 'GET /provenance/entities/', {
      summary: 'The kinds of records that can be asked about, with their fields and links',
      response: EntityList,
      handle: () => ({ items: [...catalogue] }),
    }),
    route('listProvenanceRecords', 'GET /provenance/entities/{entity}/', {
      summary: 'Search, filter, sort and page the records of an entity',
      query: EntityQuery,
      response: EntityPage,
      handle: async ({ params, query }) => {
        const entity = knownEntity(params.entity)
        const page = pageOf(query, entitySizes)
        const { rows, total } = await listEntity(db, entity, query, page)
        return { entity, ...envelope(rows, { page, total }) }
      },
    }),
    route('getProvenanceSchema', 'GET /provenance/sql/schema/', {
      summary: 'Names and columns that a statement may read',
      response: SqlSchema,
      handle: async () => ({ items: await listColumns(db) }),
    }),
    route('queryProvenance', 'POST /provenance/sql/', {
      summary: 'Run one SELECT on one entity',
      body: Statement,
      response: Rows,
      raw: ['text/csv'],
      streams: true,
      refuses: [503],
      reads: true,
      audit: false,
      handle: async ({ body, headers, signal }) => {
        if (preferred(headers['accept'], ['application/json', 'text/csv']) === 'text/csv')
          return new Reply({
            stream: await statements.csv(body, signal),
            headers: { 'content-type': 'text/csv; charset=utf-8' },
          })
        const answer = await statements.rows(body, signal)
        return new Reply<unknown>({
          body: answer.body,
          headers: {
            'content-type': 'application/json',
            ...(answer.truncated === undefined ? {} : { 'X-Truncated': answer.truncated }),
          },
        })
      },
    }),
    route('explainProvenanceQuery', 'POST /provenance/sql/explain/', {
      summary: "PostgreSQL's plan of a statement, which is not run",
      body: Statement,
      response: Explained,
      refuses: [503],
      reads: true,
      audit: false,
      handle: ({ body }) => statements.explain(body),
    }),
    route('getLineage', 'GET /provenance/lineage/{entity}/{id}/', {
      summary: 'What a record came of and what came of it, a few steps around it',
      query: LineageQuery,
      response: Lineage,
      refuses: [422],
      handle: ({ params, query }) => lineageOf(db, graphs, knownEntity(params.entity), params.id, query),
    }),
    route('getLineageClosure', 'GET /provenance/lineage/{entity}/{id}/closure/', {
      summary: 'Every ancestor or descendant of a record, one JSON object a line',
      query: ClosureQuery,
      raw: ['application/x-ndjson'],
      streams: true,
      refuses: [422],
      handle: async ({ params, query }) =>
        new Reply({ stream: await closureStream(db, graphs, knownEntity(params.entity), params.id, query) }),
    }),
  ]
}
