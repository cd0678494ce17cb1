import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { migrate } from '../../src/db/migrate.ts'
import { sql, type Db } from '../../src/db/sql.ts'
import { sealRecords } from '../../src/domains/audit-events/sealer.ts'
import {
  lastSealNumber,
  listAuditEvents,
  listSealedEvents,
  recordAudit,
} from '../../src/domains/audit-events/store.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
})
afterAll(() => app.close())

interface Event {
  id: string
  eventType: string
  outcome: string
  environmentId?: string
  summary: string
}
const list = async (query = ''): Promise<Event[]> => {
  const answer = await app.call('GET', `/audit-events/${query}`)
  expect([answer.status, answer.body.error]).toEqual([200, undefined])
  return answer.body
}

test('what is done over the API is on record, refusals included, reads not', async () => {
  const document = { environment: { id: 'e/1', name: 'e' }, version: { id: 'v', version: 1 } }
  await app.call('POST', '/environments/', document)
  await app.call('POST', '/environments/', document)
  await app.call('GET', '/environments/')
  await app.call('DELETE', '/environments/e%2F1/')
  const events = await list('?environmentId=e%2F1')
  expect(events.map(({ eventType, outcome }) => [eventType, outcome])).toEqual([
    ['environment.deleted', 'succeeded'],
    ['environment.created', 'failed'],
    ['environment.created', 'succeeded'],
  ])
  expect(events[0]).toMatchObject({
    actorType: 'local',
    summary: 'environment e/1 deleted',
    occurredAt: expect.stringMatching(/Z$/),
    metadata: { status: 204 },
  })
})

/** The ids and types of a stream's records after `last`. Its reader leaves after `count` of them. */
const streamed = async (last: number, count: number): Promise<[id: number, type: string][]> => {
  const leaving = new AbortController()
  const { body } = await fetch(`${app.baseUrl}/audit-events/`, {
    headers: { accept: 'text/event-stream', 'last-event-id': String(last) },
    signal: leaving.signal,
  })
  let text = ''
  const decoder = new TextDecoder()
  const records = (): [number, string][] =>
    [...text.matchAll(/^id: (\d+)\nevent: (.*)\ndata: .*$/gm)].map(([, id, type = '']) => [Number(id), type])
  for await (const bytes of body!) {
    text += decoder.decode(bytes, { stream: true })
    if (records().length >= count) break
  }
  leaving.abort()
  return records().slice(0, count)
}

test('a stream after a number that the chain does not have begins with the first record', async () => {
  await sealRecords(app.db, undefined)
  expect(await streamed(123_456, 1)).toEqual([[1, 'environment.created']])
})

test('a read goes on behind the records that it has seen and that do not match', async () => {
  const head = await lastSealNumber(app.db)
  const read = (eventType: string, limit: number) => listSealedEvents(app.db, { eventType }, 0, limit)
  expect(await read('nothing.done', 10)).toEqual({ found: [], last: head })
  const all = await read('environment.created', 10)
  expect([all.found.length > 1, all.last]).toEqual([true, head])
  const [first] = all.found
  expect(await read('environment.created', 1)).toEqual({ found: [first], last: first?.sealNumber })
})

test('a stream that is cut and resumed has every record once, though transactions commit in another order', async () => {
  await sealRecords(app.db, undefined)
  const before = await lastSealNumber(app.db)
  const record = (tx: Db, n: number) =>
    recordAudit(tx, { eventType: `order.${String(n)}`, outcome: 'succeeded', summary: 's' })
  const [first, second] = [Promise.withResolvers<true>(), Promise.withResolvers<true>()]
  const written = Promise.withResolvers<true>()
  // The one that writes first commits last.
  const late = app.db.transaction(async (tx) => {
    await record(tx, 1)
    written.resolve(true)
    await first.promise
  })
  await written.promise
  const early = app.db.transaction(async (tx) => {
    await record(tx, 2)
    await second.promise
    await record(tx, 3)
  })
  try {
    await record(app.db, 4)
    await sealRecords(app.db, undefined)
    const all = [4, 2, 3, 1].map((n, at) => [before + 1 + at, `order.${String(n)}`])
    expect(await streamed(before, 1)).toEqual(all.slice(0, 1))
    second.resolve(true)
    await early
    await sealRecords(app.db, undefined)
    expect(await streamed(before + 1, 2)).toEqual(all.slice(1, 3))
    first.resolve(true)
    await late
    await sealRecords(app.db, undefined)
    expect(await streamed(before + 3, 1)).toEqual(all.slice(3))
    expect(await streamed(before, 4)).toEqual(all)
  } finally {
    // A transaction that stays open keeps the database open.
    first.resolve(true)
    second.resolve(true)
    await Promise.all([late, early])
  }
})

test('records by time and by actor are read from an index, in their order', async () => {
  const plans: string[] = []
  const client = await app.db.client()
  const many: Db['many'] = async (schema, query) => {
    const { text, values } = query.toQuery()
    const { rows } = await client.query<{ 'QUERY PLAN': string }>(`explain ${text}`, values)
    plans.push(rows.map((row) => row['QUERY PLAN']).join('\n'))
    return app.db.many(schema, query)
  }
  const only: Db['only'] = (type, query) => app.db.only(type, query)
  const explained: Db = Object.assign(Object.create(app.db) as Db, { many, only })
  try {
    await client.query('begin; set local enable_seqscan = off; set local enable_bitmapscan = off')
    for (const [filter, index] of [
      [{ since: '2026-01-01T00:00:00Z' }, 'audit_events_newest'],
      [{ until: '2026-01-01T00:00:00Z' }, 'audit_events_newest'],
      [{ actorId: 'a' }, 'audit_events_of_actor'],
    ] as const) {
      plans.length = 0
      await listAuditEvents(explained, filter, { page: 1, pageSize: 200, limit: 200, offset: 0 })
      expect([filter, plans[0]]).toEqual([filter, expect.stringContaining(index)])
      expect([filter, plans[0]]).toEqual([filter, expect.not.stringMatching(/Sort|Seq Scan/)])
    }
  } finally {
    await client.query('rollback')
    client.release()
  }
})

test('each filter selects, several must all match, and the newest come first', async () => {
  const base = { outcome: 'started', summary: 's' } as const
  for (const n of [1, 2, 3])
    await recordAudit(app.db, {
      ...base,
      eventType: `t${String(n)}`,
      resourceId: 'r',
      connectionId: `c${String(n)}`,
      sessionId: 's',
      executionId: `x${String(n % 2)}`,
      metadata: { n },
    })
  expect((await list('?resourceId=r')).map(({ eventType }) => eventType)).toEqual(['t3', 't2', 't1'])
  expect((await list('?eventType=t2')).map(({ eventType }) => eventType)).toEqual(['t2'])
  expect((await list('?connectionId=c1')).map(({ eventType }) => eventType)).toEqual(['t1'])
  expect(await list('?sessionId=s')).toHaveLength(3)
  expect((await list('?executionId=x1&outcome=started')).map(({ eventType }) => eventType)).toEqual([
    't3',
    't1',
  ])
  expect(await list('?executionId=x1&outcome=failed')).toEqual([])
  // A blank filter is none.
  expect(
    (await list('?executionId=x1&outcome=&eventType=&limit=&page=')).map(({ eventType }) => eventType),
  ).toEqual((await list('?executionId=x1')).map(({ eventType }) => eventType))
})

test('200 events unless 1 to 1000 are asked for', async () => {
  const client = await app.db.client()
  await client.query(
    `insert into audit_events (id, event_type, outcome, summary, occurred_at) select 'bulk' || i, ` +
      `'bulk', 'started', '', now() - interval '1 day' from generate_series(1, 1100) i`,
  )
  client.release()
  for (const [limit, expected] of [
    ['', 200],
    ['&limit=3', 3],
    ['&limit=1000', 1000],
    ['&limit=1001', 200],
    ['&limit=0', 200],
    ['&limit=-1', 200],
  ] as const) {
    expect([limit, (await list(`?eventType=bulk${limit}`)).length]).toEqual([limit, expected])
  }
  // Equal times: by id, descending, so that pages neither repeat nor lose one.
  const ids = [
    ...(await list('?eventType=bulk&pageSize=600')),
    ...(await list('?eventType=bulk&pageSize=600&page=2')),
  ].map(({ id }) => id)
  expect(ids).toEqual(ids.toSorted().reverse())
  expect(new Set(ids).size).toBe(1100)
})

test.each(['?limit=many', '?limit=1.5', '?outcome=perhaps', '?colour=red', '?limit=1&limit=2'])(
  'the query %s is 400',
  async (query) => {
    expect((await app.call('GET', `/audit-events/${query}`)).status).toBe(400)
  },
)

test('the upgrade of a database of the version before renames its events', async () => {
  const old: [eventType: string, outcome: 'succeeded' | 'failed', renamed: string, status?: number][] = [
    ['connection.checked', 'succeeded', 'connection.health.checked'],
    ['connection.online', 'succeeded', 'connection.health.checked'],
    ['connection.offline', 'failed', 'connection.health.checked'],
    ['connection.discovered', 'succeeded', 'resource.discovery.completed', 200],
    ['connection.discovered', 'succeeded', 'resource.discovery.requested', 202],
    ['connection.discovered', 'failed', 'resource.discovery.failed', 422],
    ['schedule-plan.created', 'succeeded', 'plan.created'],
    ['schedule-plan.imported', 'failed', 'plan.imported'],
    ['schedule-plan.deleted', 'succeeded', 'plan.deleted'],
    ['environment.created', 'succeeded', 'environment.created'],
  ]
  for (const [eventType, outcome, , status] of old)
    await recordAudit(app.db, {
      eventType,
      outcome,
      summary: 's',
      sessionId: 'old',
      ...(status === undefined ? {} : { metadata: { status } }),
    })
  await app.db.run(sql`delete from schema_migrations where number >= 14`)
  await migrate(app.db)
  const events = (await list('?sessionId=old')).toReversed()
  expect(events.map(({ eventType, outcome }) => [eventType, outcome])).toEqual(
    old.map(([, outcome, renamed]) => [renamed, outcome]),
  )
})
