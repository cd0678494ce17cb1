import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { sql, type Db } from '../../src/db/sql.ts'
import { readGauges } from '../../src/gauges.ts'
import { dispatchedKinds } from '../../src/kinds.ts'
import { appendEvent } from '../../src/operations/events.ts'
import { feedBehind } from '../../src/operations/feed-routes.ts'
import { feedEvents, openFeed } from '../../src/operations/feed.ts'
import { batchOf, streamEvents } from '../../src/operations/streams.ts'
import { until } from '../failures/programs.ts'
import { openService, type TestService } from '../support/service.ts'
import { cutStreams, eventIds, listenTo, openSleeping } from '../support/stream-readers.ts'
import { makeWorld, type World } from '../support/worlds.ts'

let service: TestService
let world: World
beforeAll(async () => {
  service = await openService()
  world = await makeWorld(service, {
    name: 'fed',
    cores: [2],
    tasks: Array.from({ length: 20 }, (_, i) => ({ name: `t${String(i)}`, run: 'sleep 0.05' })),
  })
})
afterAll(() => service[Symbol.asyncDispose]())

interface Item {
  cursor: string
  kind: string
  operationId: string
  event: { sequence: number; eventType: string; occurredAt: string }
}

const listen = (path: string, headers: Record<string, string> = {}) =>
  listenTo(service.baseUrl + path, headers)
const run = async (id: string): Promise<void> => {
  await service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
}

test('every event of every run comes once and in order, over streams that are cut and resumed', async () => {
  const whole = listen('/events/?topic=execution-run')
  await run('first')
  const cut = listen('/events/?topic=execution-run', { 'last-event-id': '0' })
  await run('second')
  await until('ten events', 30, () => cut.events.length >= 10)
  await cut.stop()
  await Promise.all([service.finished('first'), service.finished('second')])
  await run('third')
  await service.finished('third')
  const resumed = listen('/events/?topic=execution-run', { 'last-event-id': cut.events.at(-1)?.id ?? '' })
  const over = (events: readonly { type: string }[]): number =>
    events.filter(({ type }) => type === 'execution.run.completed').length
  await until(
    'the ends of all',
    30,
    () => over([...cut.events, ...resumed.events]) === 3 && over(whole.events) === 3,
  )
  await Promise.all([whole.stop(), resumed.stop()])
  const both = [...cut.events, ...resumed.events]
  for (const id of ['first', 'second', 'third']) {
    const recorded = await service.db.prepared<{ sequence: string }>(
      'recorded',
      "select sequence from operation_events where kind = 'execution-run' and operation_id = $1 order by sequence",
      [id],
    )
    const sequences = both
      .filter(({ data }) => data.operationId === id)
      .map(({ data }) => data.event.sequence)
    expect(sequences).toEqual(recorded.map(({ sequence }) => Number(sequence)))
  }
  expect(whole.events.map(({ id }) => id)).toEqual(
    [...new Set(both.map(({ id }) => id))].filter((id) => whole.events.some((event) => event.id === id)),
  )
})

test('without a stream the same events are pages; topics are known kinds', async () => {
  const all: Item[] = []
  for (let after = '0'; ;) {
    const page = await service.get(`/events/?after=${after}&limit=7`)
    if (page.items.length === 0) {
      expect(page.last).toBe(after)
      break
    }
    expect(page.items.length).toBeLessThanOrEqual(7)
    all.push(...page.items)
    after = page.last
  }
  expect(new Set(all.map(({ cursor }) => cursor)).size).toBe(all.length)
  const [counted] = await service.db.prepared<{ count: string }>(
    'counted',
    'select count(*) from operation_events',
    [],
  )
  expect(all.length).toBe(Number(counted?.count))
  expect((await service.get('/events/?after=0&topic=planning-session')).items).toEqual([])
  for (const wrong of ['topic=nothing', 'after=x', 'after=1.x', 'limit=x'])
    expect([wrong, (await service.call('GET', `/events/?${wrong}`)).status]).toEqual([wrong, 400])
})

test('a read goes on behind the events of other topics', async () => {
  const from = { position: 0, sequence: 0 }
  await feedEvents(service.db)
  const none = await feedBehind(service.db, from, ['build-run'])
  const [head] = await service.db.prepared<{ position: string }>(
    'head',
    'select max(position) as position from event_feed',
    [],
  )
  expect(Number(head?.position)).toBeGreaterThan(0)
  expect([none.items, none.last.position]).toEqual([[], Number(head?.position)])
  expect((await feedBehind(service.db, none.last, undefined)).items).toEqual([])
})

test('what a page gives as last reads on, from any place and behind the events of other topics', async () => {
  const { items } = await service.get('/events/?after=0&limit=500')
  const head = items.at(-1).cursor.split('.')[0]
  const none = await service.get('/events/?topic=build-run')
  expect(none).toEqual({ items: [], last: head })
  expect(await service.get(`/events/?topic=build-run&after=${none.last}`)).toEqual(none)
  for (const place of ['0', '1', '1.1', head, '999999999999999', '1.999999999999999'])
    for (const topic of ['', '&topic=build-run', '&topic=execution-run'])
      for (const limit of ['1', '500']) {
        const answer = await service.call('GET', `/events/?limit=${limit}${topic}`, undefined, {
          'last-event-id': place,
        })
        expect([place, answer.status]).toEqual([place, 200])
        const next = await service.call('GET', `/events/?after=${answer.body.last}`)
        expect([place, topic, answer.body.last, next.status]).toEqual([place, topic, answer.body.last, 200])
      }
})

test('metrics know every kind of operation', async () => {
  const kindsOf = async (gauge: string) =>
    (await readGauges(service.db)).filter(({ name }) => name === gauge).map(({ labels }) => labels['kind'])
  const dispatched = dispatchedKinds.map(({ kind }) => kind.name).sort()
  for (const gauge of ['orrery_dispatch_backlog', 'orrery_dispatch_oldest_seconds'])
    expect((await kindsOf(gauge)).sort()).toEqual(dispatched)
  const counts = await service.metrics.registry.getSingleMetricAsString('orrery_workflows_restarted_total')
  for (const name of dispatched) expect(counts).toContain(`kind="${name}"} 0`)
})

/** The gauges after a change of the record, which is taken back. */
const gaugesAfter = async (change: (tx: Db) => Promise<unknown>) => {
  const seen = new Error('seen')
  let gauges: Awaited<ReturnType<typeof readGauges>> = []
  const looked = service.db.transaction(async (tx) => {
    await change(tx)
    gauges = await readGauges(tx)
    throw seen
  })
  await expect(looked).rejects.toBe(seen)
  return gauges
}

test('the silence of a site and what is left there are gauges by site', async () => {
  const gauges = await gaugesAfter(async (tx) => {
    await tx.run(sql`update execution_runs set status = 'running' where id in ('first', 'second')`)
    await tx.run(sql`update task_executions set site = case execution_run_id when 'first' then 'far' else 'near' end,
      metadata = case execution_run_id when 'first'
        then jsonb_build_object('silentSince', extract(epoch from clock_timestamp()) - 60) end`)
    await tx.run(sql`insert into site_leftovers (site, name, execution_run_id, since, last_error)
      select 'far', 'left' || at, 'first', now() - interval '1 hour' * at, 'none' from generate_series(1, 2) at`)
  })
  const valueOf = (gauge: string, site: string) =>
    gauges.find(({ name, labels }) => name === gauge && labels['site'] === site)?.value
  expect(valueOf('orrery_site_silent_seconds', 'far')).toBeGreaterThanOrEqual(60)
  expect(valueOf('orrery_site_silent_seconds', 'near')).toBe(0)
  expect(valueOf('orrery_site_leftovers', 'far')).toBe(2)
  expect(valueOf('orrery_site_leftovers', 'near')).toBeUndefined()
  expect(valueOf('orrery_site_leftovers_oldest_seconds', 'far')).toBeGreaterThanOrEqual(7_200)
})

test('the backlog counts connections without a monitor, but for those that cannot be checked', async () => {
  const gauges = await gaugesAfter((tx) =>
    tx.run(sql`insert into connections (id, environment_id, name, type, endpoint, created_at)
      select 'unmonitored' || at, (select min(id) from environments), 'unmonitored' || at, 'ssh',
        case at when 1 then '' else 'far.example:22' end, now() - interval '1 hour' from generate_series(1, 3) at`),
  )
  const valueOf = (gauge: string) =>
    gauges.find(({ name, labels }) => name === gauge && labels['kind'] === 'connection-monitor')?.value
  expect(valueOf('orrery_dispatch_backlog')).toBe(2)
  expect(valueOf('orrery_dispatch_oldest_seconds')).toBeGreaterThanOrEqual(3_600)
})

test('readers hear on after the connection that listens was ended in the database', async () => {
  const go = join(service.dataDir, 'listened-go')
  const slow = await makeWorld(service, {
    name: 'listened',
    cores: [1],
    tasks: [
      { name: 'a', run: `until [ -e ${go} ]; do sleep 0.05; done` },
      { name: 'b', run: 'true', after: ['a'] },
    ],
  })
  await service.post('/execution-runs/', { id: 'heard', schedulePlanId: slow.planId, mode: 'real' })
  const heard = listen('/execution-runs/heard/events/')
  await until('its start', 30, () => heard.events.length >= 2)
  await service.db.run(
    sql`select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen %'
      and datname = current_database()`,
  )
  writeFileSync(go, '')
  await service.finished('heard')
  await until('its end', 45, () => heard.events.at(-1)?.type === 'execution.run.completed')
  expect(heard.events.map(({ id }) => Number(id))).toEqual(heard.events.map((_event, k) => k + 1))
  await heard.stop()
})

test('commits of many operations at once lose no event and give none twice', async () => {
  const source = { name: 'execution-run', table: 'execution_runs' }
  const ids = ['first', 'second', 'third']
  const before = (await service.get('/events/?after=0&limit=500')).items.length
  let feeding = true
  const feeders = Array.from({ length: 3 }, async () => {
    while (feeding) await feedEvents(service.db)
  })
  await Promise.all(
    Array.from({ length: 12 }, async (_, k) => {
      for (let i = 0; i < 10; i++)
        await service.db.transaction(async (tx) => {
          await appendEvent(tx, source, { id: ids[(k + i) % 3]!, generation: 1 }, 'test.event', { k, i })
          if (i % 3 === 0) await new Promise((resolve) => setTimeout(resolve, 5))
        })
    }),
  )
  feeding = false
  await Promise.all(feeders)
  const after: Item[] = []
  for (let cursor = '0'; ;) {
    const page = await service.get(`/events/?after=${cursor}&limit=500`)
    if (page.items.length === 0) break
    after.push(...page.items)
    cursor = page.last
  }
  expect(after.length - before).toBe(120)
  for (const id of ids) {
    const sequences = after.filter(({ operationId }) => operationId === id).map(({ event }) => event.sequence)
    expect(sequences).toEqual([...sequences.keys()].map((k) => k + 1))
  }
})

test('a reader 1 MiB behind is cut and goes on where it was; one that keeps up is not', async () => {
  await run('watched')
  await service.finished('watched')
  const source = { name: 'execution-run', table: 'execution_runs' }
  const path = '/events/?topic=execution-run'
  let from = '0'
  for (let more = true; more;) {
    const { items, last } = await service.get(`/events/?after=${from}`)
    more = items.length > 0
    from = last
  }
  const keepsUp = listen(path, { 'last-event-id': from })
  const slow = await openSleeping(service.baseUrl + path, {
    Accept: 'text/event-stream',
    'Last-Event-ID': from,
  })
  const cuts = () => cutStreams(service)
  const before = await cuts()
  // The kernel holds up to 10 MiB of a connection whose reader takes nothing.
  let written = 0
  const write = async (): Promise<void> => {
    await service.db.transaction(async (tx) => {
      for (let i = 0; i < 25; i++, written++)
        await appendEvent(tx, source, { id: 'watched', generation: 1 }, 'test.event', {
          x: 'x'.repeat(40_000),
        })
    })
    await until('the other has them', 45, () => keepsUp.events.length === written)
  }
  while ((await cuts()) === before && written < 1_000) await write()
  expect(await cuts()).toBe(before + 1)
  await write()
  const { body, whole } = await slow.wake()
  expect(whole).toBe(false)
  const had = eventIds(body)
  expect(had.length).toBeLessThan(written)
  const resumed = listen(path, { 'last-event-id': had.at(-1) ?? from })
  await until('it has the rest', 45, () => had.length + resumed.events.length === written)
  expect([...had, ...resumed.events.map(({ id }) => id)]).toEqual(keepsUp.events.map(({ id }) => id))
  await Promise.all([keepsUp.stop(), resumed.stop()])
})

test('a reader that takes nothing is cut while events wait for it; a slow one that catches up is not', async () => {
  const feed = openFeed({ db: service.db, log: { warn: () => undefined } })
  try {
    const cut: string[] = []
    const open = (name: string) =>
      streamEvents(feed, {
        of: undefined,
        from: 0,
        // Each read finds a whole batch: what is old does not count as being behind.
        read: async (after: number) => ({ ...batchOf([event], after + 1), full: true }),
      })({ stallMs: 1_500, mostBehind: 1_000, opened: () => (wasCut) => void (wasCut && cut.push(name)) })
    const event = { id: '1', type: 'one', data: 'x'.repeat(100_000) }
    const [deaf, slow] = [open('deaf'), open('slow')]
    const closed = once(deaf, 'close')
    deaf.once('readable', () => undefined)
    let took = 0
    for await (const chunk of slow) {
      expect(chunk).toBeDefined()
      if (++took === 4) break
      await new Promise((resolve) => setTimeout(resolve, 700))
    }
    await closed
    expect(cut).toEqual(['deaf'])
  } finally {
    await feed[Symbol.asyncDispose]()
  }
})

test('events of a planning session come under their topic', async () => {
  await service.post('/planning-sessions/', {
    ...{ id: 'session', workflowVersionId: world.workflowVersionId, executionScopeId: 'fed-scope' },
    algorithms: [{ id: 'heft' }],
  })
  const items = await until<Item[] | undefined>('its end', 120, async () => {
    const found: Item[] = (await service.get('/events/?after=0&topic=planning-session')).items
    return found.some(({ event }) => event.eventType === 'planning.session.completed') ? found : undefined
  })
  expect(new Set(items.map(({ kind, operationId }) => `${kind} ${operationId}`))).toEqual(
    new Set(['planning-session session']),
  )
  expect(items.map(({ event }) => event.sequence)).toEqual(items.map((_, i) => i + 1))
})
