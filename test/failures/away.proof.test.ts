import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { checked } from '../execution-runs/checked.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { openProxy, type TcpProxy } from '../support/tcp-proxy.ts'
import { makeWorld, type World } from '../support/worlds.ts'

let database: TcpProxy
let temporal: TcpProxy
let service: TestService
let world: World
beforeAll(async () => {
  database = await openProxy(Number(new URL(process.env['ORRERY_TEST_DATABASE'] ?? '').port))
  temporal = await openProxy(Number(temporalAddress().split(':')[1]))
  service = await openService({
    temporalAddress: `127.0.0.1:${String(temporal.port)}`,
    databaseUrl: (url) => {
      const through = new URL(url)
      through.port = String(database.port)
      return through.href
    },
  })
  world = await makeWorld(service, {
    name: 'away',
    launch: 'none',
    tasks: [{ name: 'a' }, { name: 'b', after: ['a'] }],
  })
}, 120_000)
afterAll(async () => {
  await Promise.all([database.restore().catch(() => undefined), temporal.restore().catch(() => undefined)])
  await service[Symbol.asyncDispose]()
  await Promise.all([database.close(), temporal.close()])
})

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

test('with Temporal away 50 runs are accepted, and when it returns they are started in order of acceptance and completed', async () => {
  await temporal.cut()
  const ids = Array.from({ length: 50 }, (_, i) => `waiting-${String(i)}`)
  let slowestMs = 0
  for (const id of ids) {
    const began = performance.now()
    const answer = await service.call('POST', '/execution-runs/', {
      id,
      schedulePlanId: world.planId,
      mode: 'real',
    })
    slowestMs = Math.max(slowestMs, performance.now() - began)
    expect([id, answer.status, answer.body.status]).toEqual([id, 202, 'created'])
  }
  const list = await service.get('/execution-runs/?status=created&pageSize=100')
  expect(list.items.filter((item: any) => item.run.id.startsWith('waiting-'))).toHaveLength(50)
  await temporal.restore()
  const details = []
  for (const id of ids) details.push(await service.finished(id, 120))
  expect(details.map(({ run }) => run.status)).toEqual(ids.map(() => 'completed'))
  const dispatched = await service.db.prepared<{ id: string }>(
    'order',
    "select id from execution_runs where id like 'waiting-%' order by dispatched_at, id",
    [],
  )
  const places = new Map(dispatched.map(({ id }, place) => [id, place]))
  // Started one after the other in order; a workflow may mark its own start a moment before its
  // dispatcher does.
  for (const [i, id] of ids.entries()) expect(Math.abs((places.get(id) as number) - i)).toBeLessThanOrEqual(5)
  for (const id of ids.slice(0, 5)) await checked(service, world, id)
  // None of these waited for Temporal, which has five seconds for an answer.
  expect(slowestMs).toBeLessThan(5_000)
}, 240_000)

test('with PostgreSQL away the API says 503 and when to come again, and recovers by itself; a run under way is completed', async () => {
  const long = await makeWorld(service, {
    name: 'outage',
    tasks: Array.from({ length: 12 }, (_, i) => ({ name: `t${String(i)}`, run: 'sleep 0.3' })),
  })
  await service.post('/execution-runs/', { id: 'outage-run', schedulePlanId: long.planId, mode: 'real' })
  await pause(700)
  await database.cut()
  for (let k = 0; k < 5; k++) {
    for (const [method, path, body] of [
      ['GET', '/execution-runs/outage-run/', undefined],
      ['GET', '/environments/', undefined],
      ['POST', '/execution-runs/', { id: 'refused', schedulePlanId: world.planId, mode: 'real' }],
      ['POST', '/execution-runs/outage-run/cancel/', undefined],
    ] as const) {
      const answer = await service.call(method, path, body)
      expect([path, answer.status, answer.body.code, Number(answer.headers.get('retry-after')) > 0]).toEqual([
        path,
        503,
        'unavailable',
        true,
      ])
      expect(answer.text).not.toMatch(/127\.0\.0\.1|ECONN|postgres/i)
    }
    await pause(200)
  }
  await database.restore()
  expect((await service.finished('outage-run', 60)).run).toMatchObject({
    status: 'completed',
    completedActivityCount: 12,
  })
  await checked(service, long, 'outage-run')
  expect((await service.call('GET', '/execution-runs/refused/')).status).toBe(404)
}, 240_000)

test('outages of both, over and over, while runs are accepted and executed, lose nothing', async () => {
  const given = await makeWorld(service, {
    name: 'failures',
    tasks: Array.from({ length: 20 }, (_, i) => ({
      name: `t${String(i)}`,
      run: 'sleep 0.1',
      after: i < 3 ? [] : [`t${String(i - 3)}`],
    })),
  })
  const accepted: string[] = []
  for (let k = 0; k < 6; k++) {
    const id = `failures-${String(k)}`
    const answer = await service.call('POST', '/execution-runs/', {
      id,
      schedulePlanId: given.planId,
      mode: 'real',
    })
    if (answer.status === 202) accepted.push(id)
    else expect(answer.status).toBe(503)
    await pause(300)
    const server = k % 2 === 0 ? database : temporal
    await server.cut()
    await pause(k % 3 === 0 ? 1_500 : 400)
    await server.restore()
  }
  expect(accepted.length).toBeGreaterThan(2)
  for (const id of accepted) {
    expect((await service.finished(id, 120)).run.status).toBe('completed')
    await checked(service, given, id)
  }
}, 240_000)

test('200 readers of events, some of them slow, lose none and get none twice while PostgreSQL is away and back', async () => {
  interface Reader {
    ids: string[]
    cut: () => void
  }
  const stopped = new AbortController()
  /** Reads until stopped; a stream that ends is opened again behind its last event. */
  const read = (slow: boolean): Reader => {
    const ids: string[] = []
    let now = new AbortController()
    void (async () => {
      while (!stopped.signal.aborted) {
        now = new AbortController()
        const last = ids.at(-1)
        await fetch(`${service.baseUrl}/events/?topic=execution-run`, {
          headers: { accept: 'text/event-stream', 'last-event-id': last ?? from },
          signal: AbortSignal.any([stopped.signal, now.signal]),
        })
          .then(async ({ status, body }) => {
            if (status !== 200) throw new Error(String(status))
            let text = ''
            for await (const chunk of body!.pipeThrough(new TextDecoderStream())) {
              text += chunk
              const blocks = text.split('\n\n')
              text = blocks.pop() ?? ''
              for (const block of blocks) {
                const id = /^id: (.*)$/m.exec(block)?.[1]
                if (id !== undefined) ids.push(id)
              }
              if (slow) await pause(300)
            }
          })
          .catch(() => undefined)
        await pause(200)
      }
    })()
    return { ids, cut: () => now.abort() }
  }
  const all = async (since: string): Promise<string[]> => {
    const found: string[] = []
    for (let after = since; ;) {
      const { items, last } = await service.get(`/events/?topic=execution-run&limit=500&after=${after}`)
      if (items.length === 0) return found
      found.push(...items.map(({ cursor }: { cursor: string }) => cursor))
      after = last
    }
  }
  const from = (await all('0')).at(-1) ?? '0'
  const readers = Array.from({ length: 200 }, (_, i) => read(i % 10 === 0))
  try {
    for (let round = 0; round < 2; round++) {
      const ids = Array.from({ length: 5 }, (_, i) => `streamed-${String(round)}-${String(i)}`)
      for (const id of ids)
        await service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
      await database.cut()
      await pause(2_000)
      await database.restore()
      for (const id of ids) expect((await service.finished(id, 120)).run.status).toBe('completed')
      // Some go away, too.
      for (const reader of readers.filter((_, i) => i % 7 === 0)) reader.cut()
    }
    const expected = await all(from)
    expect(expected.length).toBeGreaterThan(20)
    for (const until = Date.now() + 60_000; readers.some(({ ids }) => ids.length < expected.length);) {
      if (Date.now() > until) break
      await pause(200)
    }
    for (const { ids } of readers) expect(ids).toEqual(expected)
  } finally {
    stopped.abort()
  }
}, 300_000)
