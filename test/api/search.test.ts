import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { recordRun } from '../../bench/provenance/rows.ts'
import { sql } from '../../src/db/sql.ts'
import { indexedTexts, searchKinds } from '../../src/domains/search/kinds.ts'
import { searchRoutes } from '../../src/domains/search/routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes((db) => searchRoutes({ db }))
  await recordRun(app.db, { name: 'Mosaic', activities: 1, edges: [] })
  await app.db.run(
    sql`insert into environments (id, name, description) values ('e-1', 'Old mosaic', 'a place'), ('e-2',
      'mosaic', ''), ('e-3', '100% \\ _x', 'Ünïcode')`,
  )
  await app.db.run(
    sql`insert into artifact_versions (id, artifact_id, name, version, scope)
      values ('tool:1', 'tool', 'Sky tool', '1', 'system'), ('tool:2', 'tool', 'Sky tool', '2', 'system')`,
  )
  await app.db.run(
    sql`insert into artifact_variants (id, artifact_version_id, digest, format, size_bytes)
      values ('tool-sif', 'tool:1', 'sha256:feed', 'sif', 1)`,
  )
  await app.db.run(
    sql`insert into artifact_materializations (id, run_id, variant_id, digest, resource_id, destination_path, status)
      values ('m-1', 'a run', 'tool-sif', 'sha256:feed', 'far-node', '/images/tool.sif', 'planned')`,
  )
  await app.db.run(
    sql`update execution_scopes set searched_environments = 'other-v1' || chr(10) || 'lab-v7'
      where id = 'Mosaic-scope'`,
  )
  await app.db.run(
    sql`update execution_runs set searched_places = 'far-node' || chr(10) || 'far-runtime' where id = 'Mosaic-run'`,
  )
  await app.db.run(
    sql`update execution_runs set failure_reason = 'the disk of the mosaic is full' where id = 'Mosaic-run'`,
  )
})
afterAll(() => app.close())

const find = async (query: string) => {
  const { status, body } = await app.call('GET', `/search/${query}`)
  expect(status).toBe(200)
  return body as {
    query: string
    total: number
    results: { type: string; id: string; score: number; path: string; title: string }[]
  }
}
const shown = (results: { type: string; id: string; score: number }[]): string[] =>
  results.map(({ type, id, score }) => `${type} ${id} ${String(score)}`)

describe('search', () => {
  test('whole texts come before beginnings and these before parts, in any case', async () => {
    const { query, total, results } = await find('?q=MOSAIC')
    expect(query).toBe('MOSAIC')
    expect(shown(results)).toEqual(
      [
        ...['workflow Mosaic 1', 'environment Mosaic 1', 'environment e-2 1'],
        ...[
          'execution Mosaic-run 0.9',
          'resource Mosaic-host 0.9',
          'plan Mosaic-plan 0.9',
          'scope Mosaic-scope 0.9',
          'environment e-1 0.7',
        ],
      ].toSorted((a, b) => Number(b.split(' ')[2]) - Number(a.split(' ')[2])),
    )
    expect(total).toBe(8)
    expect(results[0]).toEqual({
      type: 'workflow',
      id: 'Mosaic',
      title: 'Workflow Mosaic',
      subtitle: 'bench',
      path: '/workflows/Mosaic',
      score: 1,
    })
  })

  test('total counts matches, not results; types and limit choose', async () => {
    const few = await find('?q=mosaic&limit=2')
    expect([few.results.length, few.total]).toEqual([2, 8])
    expect(shown((await find('?q=mosaic&types=environment,nothing')).results)).toEqual([
      'environment Mosaic 1',
      'environment e-2 1',
      'environment e-1 0.7',
    ])
    expect(await find('?q=mosaic&types=nothing')).toEqual({ query: 'mosaic', results: [], total: 0 })
    expect((await find('?q=mosaic&limit=0')).results).toHaveLength(8)
  })

  test('artifacts and what was brought of them are found, runs by places, scopes by environments', async () => {
    expect((await find('?q=sky+tool')).results).toEqual([
      {
        type: 'artifact',
        id: 'tool',
        title: 'Sky tool',
        subtitle: expect.any(String),
        path: '/artifacts/tool',
        score: 1,
      },
    ])
    expect((await find('?q=sha256:feed')).results).toEqual([
      {
        ...{ type: 'materialization', id: 'm-1', title: '/images/tool.sif', subtitle: 'far-node' },
        ...{ status: 'planned', path: '/materializations?runId=a%20run', score: 1 },
      },
    ])
    expect(shown((await find('?q=far-node')).results)).toEqual([
      'execution Mosaic-run 1',
      'materialization m-1 1',
    ])
    expect(shown((await find('?q=lab-v')).results)).toEqual(['scope Mosaic-scope 0.9'])
    expect((await find('?q=tool&types=artifact,materialization')).total).toBe(2)
  })

  test('nothing is found of a blank text; signs of patterns are signs', async () => {
    for (const query of ['', '?q=', '?q=%20%20']) expect((await find(query)).results).toEqual([])
    expect(shown((await find('?q=100%25%20%5C')).results)).toEqual(['environment e-3 0.9'])
    expect((await find('?q=Mos%25c')).total).toBe(0)
    expect(shown((await find('?q=%C3%9CN%C3%8FC')).results)).toEqual(['environment e-3 0.9'])
    expect((await find('?q=full%00'.replace('%00', '%0A'))).results).toHaveLength(1)
  })

  test('one or two letters match beginnings of texts only', async () => {
    expect((await find('?q=os')).total).toBe(0)
    expect((await find('?q=mo')).total).toBe(7)
    expect((await find('?q=m&types=workflow')).total).toBe(1)
  })

  test('bad values are 400', async () => {
    for (const query of ['?limit=many', '?colour=red', `?q=${'x'.repeat(1_001)}`])
      expect([query.slice(0, 20), (await app.call('GET', `/search/${query}`)).status]).toEqual([
        query.slice(0, 20),
        400,
      ])
  })

  test('each kind has an index of exactly the texts that are searched', async () => {
    for (const { table, columns } of searchKinds) {
      const client = await app.db.client()
      try {
        await client.query('begin; set local enable_seqscan = off')
        const { rows } = await client.query<{ 'QUERY PLAN': string }>(
          `explain select from ${table} where ${indexedTexts(columns)} like '%mosaic%'`,
        )
        expect(rows.map((row) => row['QUERY PLAN']).join('\n')).toContain(`${table}_texts`)
      } finally {
        await client.query('rollback')
        client.release()
      }
    }
  })
})
