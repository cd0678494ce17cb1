import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { raw, sql } from '../../src/db/sql.ts'
import { openService, type TestService } from '../support/service.ts'
import { allOf, makeWorld, worldDocuments, type World } from '../support/worlds.ts'
import { activityOf, runToEnd } from './checked.ts'

let service: TestService
let small: World
beforeAll(async () => {
  service = await openService()
  small = await makeWorld(service, {
    name: 'small',
    cores: [1, 1],
    bandwidthBitsPerSecond: 8_000,
    tasks: [
      { name: 'a', run: 'echo 1 > x', seconds: 2, lane: [0, 0] },
      {
        name: 'b',
        run: 'cat x',
        seconds: 3,
        after: ['a'],
        inputs: [{ from: 'a', file: 'x', bytes: 1_000 }],
        lane: [1, 0],
      },
    ],
  })
})
afterAll(() => service[Symbol.asyncDispose]())

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Reads server-sent events until the stream ends or `enough` have come; then it hangs up. */
const stream = async (
  runId: string,
  headers: Record<string, string> = {},
  enough = Infinity,
): Promise<{ status: number; events: { id: number; event: string; data: any }[] }> => {
  const answer = await fetch(`${service.baseUrl}/execution-runs/${runId}/events/`, {
    headers: { accept: 'text/event-stream', ...headers },
  })
  const events: { id: number; event: string; data: any }[] = []
  if (answer.status !== 200 || answer.body === null) return { status: answer.status, events }
  let text = ''
  const body = answer.body as unknown as AsyncIterable<Uint8Array>
  for await (const chunk of body) {
    text += Buffer.from(chunk).toString()
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const fields = new Map(
        text
          .slice(0, end)
          .split('\n')
          .map(
            (line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()] as const,
          ),
      )
      text = text.slice(end + 2)
      if (fields.has('data'))
        events.push({
          id: Number(fields.get('id')),
          event: fields.get('event') as string,
          data: JSON.parse(fields.get('data') as string),
        })
    }
    if (events.length >= enough) break
  }
  return { status: 200, events }
}

describe('a simulated run', () => {
  test('is recorded in simulated seconds from 0, with its transfer', async () => {
    const record = await runToEnd(service, small, { id: 'sim', mode: 'simulation' })
    expect(record.run).toMatchObject({
      status: 'completed',
      makespanSeconds: 6,
      transferredBytes: 1_000,
      cost: expect.closeTo(0.005, 9),
    })
    expect(
      record.activities.map((task) => [
        task.externalId,
        task.startedAt,
        task.finishedAt,
        task.measuredBy,
        task.durationSource,
      ]),
    ).toEqual([
      ['a', 0, 2, 'simulated', expect.any(String)],
      ['b', 3, 6, 'simulated', expect.any(String)],
    ])
    const [transfer] = await allOf(service, '/execution-runs/sim/data-transfers/')
    expect(transfer).toMatchObject({
      producerActivityId: 'small-a',
      consumerActivityId: 'small-b',
      bytes: 1_000,
      startedAt: 2,
      finishedAt: 3,
      durationSeconds: 1,
    })
  })

  test('fails with the reason when data has no way', async () => {
    const apart = await makeWorld(service, {
      name: 'apart',
      cores: [1, 1],
      tasks: [
        { name: 'a', seconds: 1, lane: [0, 0] },
        {
          name: 'b',
          seconds: 1,
          after: ['a'],
          inputs: [{ from: 'a', file: 'x', bytes: 1_000 }],
          lane: [1, 0],
        },
      ],
    })
    const record = await runToEnd(service, apart, { id: 'apart-run', mode: 'simulation' })
    expect(record.run.status).toBe('failed')
    expect(record.run.failureReason).toMatch(/apart-host-1/)
    expect(record.run.failureReason).toMatch(/apart-host-2/)
    expect(record.events.map((event) => event.eventType)).toEqual([
      'execution.run.started',
      'execution.run.failed',
    ])
  })
})

describe('the detail of a large run', () => {
  test('says where a list is cut, begins with the first event and names the paged lists', async () => {
    await runToEnd(service, small, { id: 'long', mode: 'simulation' })
    const path = '/execution-runs/long/'
    const whole = await service.get(path)
    const marks = (detail: object) =>
      Object.keys(detail).filter((key) => /Total$|Truncated$|^links$/.test(key))
    expect(marks(whole)).toEqual([])
    const { sequence: last } = whole.events.at(-1)
    const fill = (table: string, rows: string) => service.db.run(sql`insert into ${raw(table)} ${raw(rows)}`)
    await fill(
      'operation_events',
      `select 'long', ${String(last)} + n, 'activity.completed', 'activity_execution', 'long', ` +
        `'{}', now() from generate_series(1, 1000 - ${String(last)}) n`,
    )
    const full = await service.get(path)
    expect([marks(full), full.events.length]).toEqual([[], 1_000])
    await fill(
      'operation_events',
      `select 'long', 1000 + n, 'activity.completed', 'activity_execution', 'long', '{}', now() ` +
        'from generate_series(1, 7) n',
    )
    const cut = await service.get(path)
    expect(marks(cut)).toEqual(['eventsTruncated', 'eventsTotal', 'links'])
    expect([cut.eventsTruncated, cut.eventsTotal, cut.events.length]).toEqual([true, 1_007, 1_000])
    expect([cut.events[0], cut.events.at(-1).sequence]).toEqual([whole.events[0], 1_000])
    const list = new URL(cut.links.events, service.baseUrl)
    expect(await (await fetch(`${list.href}?page=51&pageSize=20`)).json()).toMatchObject({
      total: 1_007,
      items: [{ sequence: 1_001 }, {}, {}, {}, {}, {}, { sequence: 1_007 }],
    })
  })

  test('holds the same lists where it is read in pieces', async () => {
    const tasks = Array.from({ length: 2_001 }, (_, i) => ({ name: `t${String(i)}`, seconds: 1 }))
    const world = await makeWorld(service, { name: 'many', tasks })
    await service.post('/execution-runs/', {
      id: 'many-run',
      schedulePlanId: world.planId,
      mode: 'simulation',
    })
    const detail = await service.finished('many-run', 120)
    expect(detail.run).toMatchObject({ id: 'many-run', status: 'completed', activityCount: 2_001 })
    expect(detail.activities.map(({ activityId }: any) => activityId)).toEqual(
      tasks.map(({ name }) => world.activityId(name)),
    )
    expect(detail.events.length).toBeGreaterThan(1)
    expect(detail.dataTransfers).toEqual([])
    const { items } = await service.get('/execution-runs/many-run/activities/?page=20&pageSize=100')
    expect(detail.activities.slice(1_900, 2_000)).toEqual(items)
    expect((await service.call('GET', '/execution-runs/nothing/')).status).toBe(404)
  })

  test('has counts instead of arrays above 10,000 activities', async () => {
    const world = await makeWorld(service, {
      name: 'wide',
      tasks: Array.from({ length: 10_001 }, (_, i) => ({ name: `t${String(i)}`, seconds: 1 })),
    })
    await service.post('/execution-runs/', {
      id: 'wide-run',
      schedulePlanId: world.planId,
      mode: 'simulation',
    })
    const detail = await service.finished('wide-run', 120)
    expect(detail.run).toMatchObject({ status: 'completed', activityCount: 10_001 })
    expect(detail).toMatchObject({ activitiesTotal: 10_001, dataTransfersTotal: 0, handlesTotal: 0 })
    for (const name of ['activities', 'dataTransfers', 'handles']) {
      expect(detail).not.toHaveProperty(name)
      const page = await (await fetch(new URL(detail.links[name], service.baseUrl))).json()
      expect(page).toMatchObject({ items: expect.any(Array), page: 1 })
    }
  })
})

describe('the events of a run', () => {
  test('arrive while it runs; a reader that hangs up and comes back with Last-Event-ID loses nothing, and after the end gets 204', async () => {
    const world = await makeWorld(service, {
      name: 'events',
      tasks: Array.from({ length: 12 }, (_, i) => ({ name: `t${String(i)}`, run: 'sleep 0.1' })),
    })
    await service.post('/execution-runs/', { id: 'events-run', schedulePlanId: world.planId, mode: 'real' })
    const read: { id: number; event: string; data: any }[] = []
    let reconnects = 0
    for (;;) {
      const part = await stream(
        'events-run',
        read.length === 0 ? {} : { 'last-event-id': String(read.at(-1)?.id) },
        3,
      )
      if (part.status === 204) break
      reconnects += 1
      read.push(...part.events)
    }
    expect(reconnects).toBeGreaterThan(1)
    expect(read.map(({ id }) => id)).toEqual(Array.from({ length: 26 }, (_, i) => i + 1))
    expect(read.at(-1)?.event).toBe('execution.run.completed')
    expect(read.map(({ data }) => data)).toEqual(await allOf(service, '/execution-runs/events-run/events/'))
    // One reader from the start gets all of them and the end of the stream.
    expect((await stream('events-run')).events).toEqual(read)
    expect((await stream('nobody')).status).toBe(404)
  })

  test('are listed by page', async () => {
    await runToEnd(service, small, { id: 'paged' })
    const first = await service.get('/execution-runs/paged/events/?page=1&pageSize=4')
    const second = await service.get('/execution-runs/paged/events/?page=2&pageSize=4')
    expect(first).toMatchObject({ page: 1, pageSize: 4, total: 6, hasNext: true })
    expect(second).toMatchObject({ page: 2, hasNext: false })
    expect([...first.items, ...second.items].map((event: any) => event.sequence)).toEqual([1, 2, 3, 4, 5, 6])
    expect((await service.call('GET', '/execution-runs/paged/events/?pageSize=many')).status).toBe(400)
  })
})

describe('the lists of runs and of their parts', () => {
  test('page through activities, by state and attempt', async () => {
    const world = await makeWorld(service, {
      name: 'parts',
      tasks: [
        { name: 'flaky', run: '[ $AKOFLOW_ATTEMPT -ge 2 ]', policy: { maxAttempts: 2 } },
        { name: 'fine' },
        { name: 'bad', run: 'exit 1', after: ['fine', 'flaky'] },
      ],
    })
    await runToEnd(service, world, { id: 'parts-run' })
    const states = async (query: string) =>
      (await allOf(service, `/execution-runs/parts-run/activities/${query}`)).map(
        (task) => `${String(task.externalId)} ${String(task.attempt)} ${String(task.status)}`,
      )
    expect(await states('')).toEqual(['flaky 2 completed', 'fine 1 completed', 'bad 1 failed'])
    expect(await states('?attempts=all')).toEqual([
      'flaky 1 failed',
      'flaky 2 completed',
      'fine 1 completed',
      'bad 1 failed',
    ])
    expect(await states('?status=completed')).toEqual(['flaky 2 completed', 'fine 1 completed'])
    expect(await states('?attempts=all&status=failed')).toEqual(['flaky 1 failed', 'bad 1 failed'])
    const page = await service.get('/execution-runs/parts-run/activities/?attempts=all&page=2&pageSize=3')
    expect(page).toMatchObject({ page: 2, pageSize: 3, total: 4, hasNext: false })
    expect(page.items).toHaveLength(1)
    expect((await service.call('GET', '/execution-runs/parts-run/activities/?status=odd')).status).toBe(400)
    expect((await service.call('GET', '/execution-runs/nobody/activities/')).status).toBe(404)
  })

  test('runs come newest first and by mode and state', async () => {
    await runToEnd(service, small, { id: 'list-sim', mode: 'simulation' })
    await runToEnd(service, small, { id: 'list-real' })
    const ids = async (query: string): Promise<string[]> =>
      (await service.get(`/execution-runs/${query}`)).items.map((item: any) => item.run.id)
    const all = await ids('')
    expect(all.indexOf('list-real')).toBeLessThan(all.indexOf('list-sim'))
    expect(await ids('?mode=simulation')).toContain('list-sim')
    expect(await ids('?mode=simulation')).not.toContain('list-real')
    expect(await ids('?status=cancelled')).toEqual([])
    expect((await ids('?status=completed&pageSize=1')).length).toBe(1)
  })
})

test('a poller sees a run move: at least ten different counts, states, and what the workflow says of itself', async () => {
  const world = await makeWorld(service, {
    name: 'moving',
    tasks: Array.from({ length: 20 }, (_, i) => ({ name: `t${String(i)}`, run: 'sleep 0.5' })),
  })
  await service.post('/execution-runs/', { id: 'moving-run', schedulePlanId: world.planId, mode: 'real' })
  const counts = new Set<number>()
  const states = new Set<string>()
  const lives: any[] = []
  for (;;) {
    const detail = await service.get('/execution-runs/moving-run/')
    counts.add(detail.run.completedActivityCount)
    for (const task of detail.activities) states.add(task.status)
    if (detail.live !== undefined) lives.push(detail.live)
    if (detail.run.status === 'completed') {
      expect(detail.live).toBeUndefined()
      break
    }
    await pause(50)
  }
  expect(counts.size).toBeGreaterThanOrEqual(10)
  expect([...states]).toEqual(expect.arrayContaining(['blocked', 'running', 'completed']))
  expect(lives.length).toBeGreaterThan(3)
  expect(lives.at(-1)).toMatchObject({ phase: expect.stringMatching(/running|closing/), total: 20 })
  const told = lives.map((live) => live.completed)
  expect(told).toEqual([...told].sort((a, b) => a - b))
  expect(told.at(-1)).toBeGreaterThan(0)
})

test('with the engine away the same answer comes without live', async () => {
  const away = await openService({ temporalAddress: '127.0.0.1:9' })
  try {
    const world = await makeWorld(away, { name: 'quiet', tasks: [{ name: 'a' }] })
    await away.post('/execution-runs/', { id: 'quiet-run', schedulePlanId: world.planId, mode: 'real' })
    const detail = await away.get('/execution-runs/quiet-run/')
    expect(detail.live).toBeUndefined()
    expect(detail.run.status).toBe('created')
    // What the plan predicts is no phase of a run that has not started.
    const timeline = await away.get('/execution-runs/quiet-run/timeline/')
    expect(timeline).toMatchObject({ wallSeconds: 0, phases: [], totals: { runtimeSeconds: 0 } })
    expect(timeline.startedAt).toBeCloseTo(Date.parse(detail.run.createdAt) / 1000, 2)
  } finally {
    await away[Symbol.asyncDispose]()
  }
})

test('the timeline of a run is data, or a page that needs nothing else', async () => {
  await runToEnd(service, small, { id: 'time-real' })
  await runToEnd(service, small, { id: 'time-sim', mode: 'simulation' })
  const data = await service.get('/execution-runs/time-real/timeline/?with=time-sim')
  expect(JSON.stringify(data)).toContain('small')
  const page = await service.call('GET', '/execution-runs/time-real/timeline/?with=time-sim', undefined, {
    accept: 'text/html',
  })
  expect([page.status, page.headers.get('content-type')]).toEqual([200, 'text/html; charset=utf-8'])
  expect(page.text).toMatch(/^<!doctype html>/i)
  expect(page.text).not.toMatch(/(src|href)=["']?https?:/i)
  expect((await service.call('GET', '/execution-runs/time-real/timeline/?with=nobody')).status).toBe(404)
  const weighed = { accept: 'application/json, text/html;q=0.1' }
  const preferred = await service.call(
    'GET',
    '/execution-runs/time-sim/timeline/?with=time-real',
    undefined,
    weighed,
  )
  // The times of a simulation count from its start, also beside a run of the real world.
  expect(preferred.body.phases.map((phase: { source: string }) => phase.source)).toEqual(
    preferred.body.phases.map(() => 'simulated'),
  )
  expect(preferred.body.phases.length).toBeGreaterThan(0)
  const other = await makeWorld(service, { name: 'elsewhere', tasks: [{ name: 'a' }] })
  await runToEnd(service, other, { id: 'time-other' })
  for (const [shown, id] of [
    ['time-sim', 'time-other'],
    ['time-real', 'time-other'],
  ])
    expect(await service.call('GET', `/execution-runs/${shown}/timeline/?with=${id}`)).toMatchObject({
      status: 400,
      body: { details: [{ path: 'with', message: expect.stringMatching(/is a run of plan/) }] },
    })
})

test('two runs of a workflow are compared by activity; runs of different ones are refused', async () => {
  const real = await runToEnd(service, small, { id: 'compare-real' })
  await runToEnd(service, small, { id: 'compare-sim', mode: 'simulation' })
  const compared = await service.get('/execution-runs/compare-sim/compare/compare-real/')
  expect(compared.totals.makespanSeconds).toEqual({
    a: 6,
    b: real.run.makespanSeconds,
    delta: real.run.makespanSeconds - 6,
    relative: (real.run.makespanSeconds - 6) / 6,
  })
  expect(
    compared.activities.items.map((item: any) => [
      item.externalId,
      item.a.startAt,
      item.a.finishAt,
      item.moved,
    ]),
  ).toEqual([
    ['a', 0, 2, false],
    ['b', 3, 6, false],
  ])
  expect(compared.activities.items[1].b.startAt).toBeCloseTo(
    activityOf(real, small, 'b').startedAt - activityOf(real, small, 'a').startedAt,
    5,
  )
  const other = await makeWorld(service, { name: 'other', tasks: [{ name: 'a' }] })
  await runToEnd(service, other, { id: 'compare-other' })
  const refused = await service.call('GET', '/execution-runs/compare-real/compare/compare-other/')
  expect([refused.status, refused.body.code]).toEqual([422, 'unacceptable'])
  expect((await service.call('GET', '/execution-runs/compare-real/compare/nobody/')).status).toBe(404)
})

test('runs of one version are compared by name where one has its own copy of the workflow', async () => {
  const { version } = await service.get('/workflow-definitions/small/')
  const { plan, environment, scope, topology } = worldDocuments({
    name: 'small',
    cores: [1, 1],
    tasks: small.tasks,
    bandwidthBitsPerSecond: 8_000,
  })
  const { id: copied } = await service.post('/schedule-plans/', {
    plan: { ...plan, id: 'small-copy' },
    ...{ resources: environment.resources, executionScope: scope, networkTopology: topology },
    workflow: {
      ...version,
      // Sent in another order, with other durations.
      activities: version.activities
        .toReversed()
        .map((each: any) => ({ ...each, metadata: { ...each.metadata, copied: true } })),
    },
  })
  await runToEnd(service, small, { id: 'copy-none', mode: 'simulation' })
  await service.post('/execution-runs/', { id: 'copy-own', schedulePlanId: copied, mode: 'simulation' })
  expect((await service.finished('copy-own')).run.status).toBe('completed')
  const { activities } = await service.get('/execution-runs/copy-none/compare/copy-own/')
  expect(activities.items.map((item: any) => [item.externalId, item.a.runtimeSeconds])).toEqual([
    ['a', 2],
    ['b', 3],
  ])
})

test('namesakes of a workflow are compared each with itself, also between copies in another order', async () => {
  const { version } = await service.get('/workflow-definitions/small/')
  const { plan, environment, scope, topology } = worldDocuments({
    name: 'small',
    cores: [1, 1],
    tasks: small.tasks,
    bandwidthBitsPerSecond: 8_000,
  })
  const named = version.activities.map((each: any) => ({ ...each, externalId: 'same' }))
  for (const [id, activities] of [
    ['namesakes', named],
    ['namesakes-turned', named.toReversed()],
  ]) {
    await service.post('/schedule-plans/', {
      plan: { ...plan, id },
      ...{ resources: environment.resources, executionScope: scope, networkTopology: topology },
      workflow: { ...version, activities },
    })
    await service.post('/execution-runs/', { id, schedulePlanId: id, mode: 'simulation' })
    expect((await service.finished(id)).run.status).toBe('completed')
  }
  for (const records of ['schedule-plans', 'execution-runs']) {
    for (const other of ['namesakes', 'namesakes-turned']) {
      const { activities } = await service.get(`/${records}/namesakes/compare/${other}/`)
      expect([
        records,
        activities.total,
        activities.items.map((item: any) => [item.externalId, item.a.runtimeSeconds, item.b.runtimeSeconds]),
      ]).toEqual([
        records,
        2,
        [
          ['same', 2, 2],
          ['same', 3, 3],
        ],
      ])
    }
  }
})

test('a simulation tells the end of a task before the start of those that waited for it', async () => {
  const chain = await makeWorld(service, {
    name: 'chained',
    cores: [1],
    tasks: [
      { name: 'a', seconds: 4 },
      { name: 'b', seconds: 4, after: ['a'] },
    ],
  })
  const { events } = await runToEnd(service, chain, { id: 'chained', mode: 'simulation' })
  expect(
    events
      .filter(({ eventType }: any) => eventType.startsWith('activity.'))
      .map(({ eventType, payload }: any) => [eventType, payload.activityId, payload.at]),
  ).toEqual([
    ['activity.started', 'chained-a', 0],
    ['activity.completed', 'chained-a', 4],
    ['activity.started', 'chained-b', 4],
    ['activity.completed', 'chained-b', 8],
  ])
})

describe('the files of an activity', () => {
  test('are read by path; a path or link that leaves the work directory is refused', async () => {
    writeFileSync(join(service.dataDir, 'secret'), 'secret')
    const world = await makeWorld(service, {
      name: 'files',
      tasks: [
        {
          name: 'make',
          run: 'mkdir -p sub; echo inside > sub/file; echo odd > "sub/ä %20 ?#.txt"; mkfifo pipe',
        },
      ],
    })
    const record = await runToEnd(service, world, { id: 'files-run' })
    const { root } = (record.handles[0] as any).artifacts
    symlinkSync(join(service.dataDir, 'secret'), join(root, 'link'))
    symlinkSync(service.dataDir, join(root, 'out'))
    mkdirSync(join(root, 'folder'))
    const get = (path: string) =>
      service.call('GET', `/execution-runs/files-run/activities/make/outputs/${path}`)
    expect((await get('sub%2Ffile')).text).toBe('inside\n')
    expect((await get(encodeURIComponent('sub/ä %20 ?#.txt'))).text).toBe('odd\n')
    for (const path of [
      '%2E%2E%2F%2E%2E%2Fsecret',
      'sub%2F..%2F..%2F..%2Fsecret',
      encodeURIComponent(join(service.dataDir, 'secret')),
      'link',
      'out%2Fsecret',
      'sub%2Ffile%00',
    ]) {
      const answer = await get(path)
      expect([path, answer.status]).toEqual([path, expect.any(Number)])
      expect([400, 404, 422]).toContain(answer.status)
      expect(answer.text).not.toContain('secret"')
      expect(answer.text === 'secret').toBe(false)
    }
    expect((await get('link')).status).toBe(422)
    expect((await get('sub%2F..%2F..%2Fx')).status).toBe(422)
    for (const path of ['nothing', 'folder', 'pipe']) expect((await get(path)).status).toBe(404)
  })

  test('of an activity that has not begun do not exist', async () => {
    const world = await makeWorld(service, {
      name: 'unbegun',
      tasks: [
        { name: 'bad', run: 'exit 1' },
        { name: 'behind', after: ['bad'] },
      ],
    })
    await runToEnd(service, world, { id: 'unbegun-run' })
    expect((await service.call('GET', '/execution-runs/unbegun-run/activities/behind/logs/')).status).toBe(
      404,
    )
    expect((await service.get('/execution-runs/unbegun-run/activities/behind/outputs/')).items).toEqual([])
  })
})
