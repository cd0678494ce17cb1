import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import { fitSummary, preferredWait, summaryBytes } from '../../src/domains/execution-runs/summary.ts'
import { taskStates } from '../../src/domains/execution-runs/schemas.ts'
import { until } from '../failures/programs.ts'
import { openService, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { makeWorld, type World } from '../support/worlds.ts'

let service: TestService
let world: World
beforeAll(async () => {
  service = await openService()
  world = await makeWorld(service, {
    name: 'summed',
    cores: [2],
    tasks: [
      { name: 'a', run: 'echo made > a.txt', outputs: ['a.txt'] },
      { name: 'b', run: 'echo no >&2; exit 7', after: ['a'] },
      { name: 'c', run: 'true', after: ['b'] },
    ],
  })
})
afterAll(() => service[Symbol.asyncDispose]())

const summaryOf = (run: string, headers: Record<string, string> = {}) =>
  fetch(`${service.baseUrl}/execution-runs/${run}/summary/`, { headers })

test('the summary of a failed run counts by state and type, and names the failure', async () => {
  await service.post('/execution-runs/', {
    id: 'failed',
    schedulePlanId: world.planId,
    mode: 'real',
    onFailure: 'finish-independent',
  })
  await service.finished('failed')
  const summary = await service.get('/execution-runs/failed/summary/')
  expect(summary.run).toMatchObject({
    id: 'failed',
    status: 'failed',
    activityCount: 3,
    completedActivityCount: 1,
    failedActivityCount: 1,
  })
  expect(summary.states).toEqual({ completed: 1, failed: 1, cancelled: 1 })
  const counted = summary.types.flatMap(({ states }: { states: Record<string, number> }) =>
    Object.values(states),
  )
  expect(counted.reduce((sum: number, one: number) => sum + one, 0)).toBe(3)
  expect(summary.failures).toEqual([
    {
      activityId: world.activityId('b'),
      attempt: 1,
      failureClass: expect.any(String),
      exitCode: 7,
      reason: expect.any(String),
    },
  ])
  expect(summary.waitsFor).toEqual([])
  expect(summary.expectedEnd).toBeUndefined()
  const { activities } = await service.get('/execution-runs/failed/')
  expect(activities.find(({ externalId }: { externalId: string }) => externalId === 'c')).toMatchObject({
    status: 'cancelled',
    failureReason: 'not run: the run failed before',
  })
  expect((await service.call('GET', '/execution-runs/nothing/summary/')).status).toBe(404)
})

test('the costs that are settled after the end of a run are in its summary', async () => {
  const costOf = async (): Promise<number> => (await service.get('/execution-runs/failed/summary/')).run.cost
  const before = await costOf()
  await service.db.prepared(
    'settled',
    'update execution_runs set cost = cost + 1.5, cloud_cost = 1.5 where id = $1',
    ['failed'],
  )
  expect(await costOf()).toBe(before + 1.5)
})

test('a simulation that runs has no expected end on the clock', async () => {
  const body = { id: 'imagined', schedulePlanId: world.planId, mode: 'simulation' }
  await service.post('/execution-runs/', body)
  await service.finished('imagined')
  await service.db.prepared(
    'open-again',
    `update execution_runs set status = 'running', finished_at = null, started_at = now() where id = $1`,
    ['imagined'],
  )
  const { run, plannedMakespanSeconds, expectedEnd } = await service.get('/execution-runs/imagined/summary/')
  expect([run.status, plannedMakespanSeconds > 0, expectedEnd]).toEqual(['running', true, undefined])
  await service.db.prepared(
    'ended-again',
    `update execution_runs set status = 'completed', finished_at = now() where id = $1`,
    ['imagined'],
  )
  expect((await service.call('DELETE', '/execution-runs/imagined/')).status).toBe(204)
})

proved(
  'a client that waits is answered when the summary changes, not before two seconds, and unchanged at the end of its wait',
  async () => {
    const go = join(service.dataDir, 'slow-go')
    const slow = await makeWorld(service, {
      name: 'slow',
      cores: [1],
      tasks: [
        { name: 'a', run: `until [ -e ${go} ]; do sleep 0.05; done` },
        { name: 'b', run: 'sleep 86400', after: ['a'] },
      ],
    })
    // As where its machine is made first.
    await service.db.prepared(
      'later-tasks',
      `with made as (update schedule_plans set lifecycle_actions = '[]' where id = $1)
      update schedule_plan_assignments set predicted_start_at = predicted_start_at + 95,
        predicted_finish_at = predicted_finish_at + 95 where schedule_plan_id = $1`,
      [slow.planId],
    )
    await service.post('/execution-runs/', { id: 'slow', schedulePlanId: slow.planId, mode: 'real' })
    const started = await until('its first task', 30, async () => {
      const summary = await service.get('/execution-runs/slow/summary/')
      return summary.states.running === 1 && summary
    })
    const { startedAt } = started.run
    expect(Date.parse(started.expectedEnd)).toBeCloseTo(
      Date.parse(startedAt) + (95 + started.plannedMakespanSeconds) * 1_000,
      -1,
    )
    const first = await summaryOf('slow')
    const tag = first.headers.get('etag') ?? ''
    await first.text()
    const changed = summaryOf('slow', { 'if-none-match': tag, prefer: 'wait=60' })
    writeFileSync(go, '')
    const next = await changed
    expect([next.status, next.headers.get('preference-applied')]).toEqual([200, 'wait=60'])
    await next.text()
    const asked = performance.now()
    expect((await summaryOf('slow', { 'if-none-match': '"another"', prefer: 'wait=30' })).status).toBe(200)
    expect(performance.now() - asked).toBeGreaterThan(1_900)
    await until('its second task', 30, async () => {
      const { states, expectedEnd } = await service.get('/execution-runs/slow/summary/')
      return states.completed === 1 && states.running === 1 && expectedEnd !== undefined
    })
    const held = await summaryOf('slow')
    const from = performance.now()
    const same = await summaryOf('slow', {
      'if-none-match': held.headers.get('etag') ?? '',
      prefer: 'wait=1',
    })
    expect(same.status).toBe(304)
    expect(performance.now() - from).toBeGreaterThan(900)
    for (const broken of [
      'wait=',
      'wait=-1',
      'wait=1e3',
      'wait=1.5',
      'wait=99999999999999999999',
      'respond-async',
    ])
      expect([
        broken,
        (await summaryOf('slow', { 'if-none-match': held.headers.get('etag') ?? '', prefer: broken })).status,
      ]).toEqual([broken, 304])
    // Its only lane is held.
    await service.post('/execution-runs/', { id: 'behind', schedulePlanId: slow.planId, mode: 'real' })
    const [wait] = await until('the other to wait', 30, async () => {
      const { waitsFor } = await service.get('/execution-runs/behind/summary/')
      return waitsFor.length > 0 && waitsFor
    })
    expect(wait).toEqual({
      site: expect.any(String),
      kind: 'lane',
      reason: expect.stringContaining('its lane'),
      activities: 1,
      since: expect.any(Number),
    })
    await service.post('/execution-runs/behind/cancel/')
    await service.finished('behind')
    await service.post('/execution-runs/slow/cancel/')
    await service.finished('slow')
  },
)

test('clients that wait and go away leave nothing behind: no listener of the database, and no delay for others', async () => {
  const { headers } = await summaryOf('failed')
  const tag = headers.get('etag') ?? ''
  const gone = new AbortController()
  const waiting = Array.from({ length: 100 }, () =>
    fetch(`${service.baseUrl}/execution-runs/failed/summary/`, {
      headers: { 'if-none-match': tag, prefer: 'wait=30' },
      signal: gone.signal,
    }).then(
      () => 'answered',
      () => 'gone',
    ),
  )
  const listeners = async (): Promise<number> =>
    Number(
      (
        await service.db.prepared<{ n: string }>(
          'listeners',
          "select count(*) as n from pg_stat_activity where datname = current_database() and query ilike 'listen %'",
          [],
        )
      )[0]?.n,
    )
  await until('a listener for those that wait', 30, async () => (await listeners()) > 0)
  gone.abort()
  expect(new Set(await Promise.all(waiting))).toEqual(new Set(['gone']))
  expect((await summaryOf('failed', { 'if-none-match': '"old"', prefer: 'wait=30' })).status).toBe(200)
  await until('the end of the listener', 30, async () => (await listeners()) === 0)
  for (const prefer of [
    'wait=',
    'wait=-1',
    'wait=x',
    'wait=99999999999999999999',
    'wait',
    ',,wait=;',
    'wait=1e9',
  ]) {
    const answer = await summaryOf('failed', { 'if-none-match': tag, prefer })
    expect([prefer, answer.status, answer.headers.get('preference-applied')]).toEqual([prefer, 304, null])
  }
})

test('one activity has its attempts, what was planned, its command, its inputs and its outputs', async () => {
  const activity = await service.get(`/execution-runs/failed/activities/${world.activityId('a')}/`)
  expect(activity).toMatchObject({
    executionRunId: 'failed',
    status: 'completed',
    dependsOn: [],
    outputCount: 1,
    planned: { orderOnResource: 1 },
  })
  expect(activity.attempts).toHaveLength(1)
  expect(activity.outputs).toMatchObject([{ relativePath: 'a.txt', sizeBytes: 5 }])
  expect(JSON.stringify(activity.command)).toContain('echo made')
  const failed = await service.get(`/execution-runs/failed/activities/${world.activityId('b')}/`)
  expect(failed.dependsOn).toEqual([world.activityId('a')])
  expect(failed.attempts.at(-1)).toMatchObject({ status: 'failed', exitCode: 7 })
  expect((await service.call('GET', '/execution-runs/failed/activities/nothing/')).status).toBe(404)
})

test('the list of runs filters by plan, workflow, environment, title and time', async () => {
  await service.post('/execution-runs/', {
    id: 'named',
    schedulePlanId: world.planId,
    mode: 'simulation',
    title: 'Night of 100% luck_',
  })
  await service.finished('named')
  const ids = async (query: string): Promise<string[]> =>
    (await service.get(`/execution-runs/?${query}`)).items.map(({ run }: { run: { id: string } }) => run.id)
  expect(await ids(`planId=${world.planId}`)).toEqual(['named', 'failed'])
  expect(await ids(`workflowId=${world.workflowId}&status=failed`)).toEqual(['failed'])
  expect(await ids('workflowId=nothing')).toEqual([])
  expect(await ids('title=NIGHT')).toEqual(['named'])
  expect(await ids('title=%25')).toEqual(['named'])
  expect(await ids('title=0_')).toEqual([])
  const { run } = await service.get('/execution-runs/named/')
  expect(await ids(`since=${encodeURIComponent(run.createdAt)}`)).toEqual(['named'])
  expect(await ids(`until=${encodeURIComponent(run.createdAt)}`)).not.toContain('named')
  expect((await service.call('GET', '/execution-runs/?since=yesterday')).status).toBe(400)
})

test('a log is followed until its attempt ends; a retry that waits does not hide what its predecessor wrote', async () => {
  const talking = await makeWorld(service, {
    name: 'talking',
    cores: [1],
    tasks: [{ name: 'a', run: 'for i in 1 2 3 4 5 6; do echo line $i; sleep 0.3; done' }],
  })
  await service.post('/execution-runs/', { id: 'talks', schedulePlanId: talking.planId, mode: 'real' })
  const path = `${service.baseUrl}/execution-runs/talks/activities/${talking.activityId('a')}/logs/`
  await until(
    'its first line',
    30,
    async () => (await fetch(path)).status === 200 && (await (await fetch(path)).text()).includes('line 1'),
  )
  const followed = await fetch(`${path}?follow=true`)
  expect([followed.status, followed.headers.get('orrery-attempt')]).toEqual([200, '1'])
  const chunks: string[] = []
  for await (const chunk of followed.body!.pipeThrough(new TextDecoderStream())) chunks.push(chunk)
  expect(chunks.join('')).toBe([1, 2, 3, 4, 5, 6].map((i) => `line ${String(i)}\n`).join(''))
  expect(chunks.length).toBeGreaterThan(1)
  expect(await (await fetch(`${path}?follow=true&tail=7`)).text()).toBe('line 6\n')
  await service.finished('talks')

  const failing = await makeWorld(service, {
    name: 'failing',
    cores: [1],
    tasks: [
      { name: 'a', run: 'echo first words; exit 1', policy: { maxAttempts: 2, retryDelaySeconds: 300 } },
    ],
  })
  await service.post('/execution-runs/', { id: 'fails', schedulePlanId: failing.planId, mode: 'real' })
  const activity = `/execution-runs/fails/activities/${failing.activityId('a')}/`
  await until(
    'its second attempt to wait',
    30,
    async () => (await service.get(activity)).attempts.length === 2,
  )
  const log = await fetch(`${service.baseUrl}${activity}logs/`)
  expect([log.status, log.headers.get('orrery-attempt'), await log.text()]).toEqual([
    200,
    '1',
    'first words\n',
  ])
  expect((await fetch(`${service.baseUrl}${activity}logs/?attempt=2`)).status).toBe(404)
  await service.post('/execution-runs/fails/cancel/')
  await service.finished('fails')
})

const text = fc.string({ maxLength: 600, unit: 'grapheme' })
const row = fc.record({
  run: fc.record({
    id: fc.string({ minLength: 1, maxLength: 255 }),
    schedulePlanId: fc.string({ minLength: 1, maxLength: 255 }),
    mode: fc.constantFrom('real' as const, 'simulation' as const),
    status: fc.constantFrom('running' as const, 'failed' as const),
    title: text,
    failureReason: text,
    generation: fc.nat(),
    paused: fc.boolean(),
    activityCount: fc.nat(),
    completedActivityCount: fc.nat(),
    failedActivityCount: fc.nat(),
    makespanSeconds: fc.double({ noNaN: true, noDefaultInfinity: true }),
    cost: fc.double({ noNaN: true, noDefaultInfinity: true }),
    createdAt: fc.constant('2026-11-23T00:00:00.000Z'),
  }),
  counts: fc.array(
    fc.record({
      type: fc.string({ minLength: 1, maxLength: 300 }),
      status: fc.constantFrom(...taskStates),
      activities: fc.nat(10_000),
    }),
    { maxLength: 200 },
  ),
  waits: fc.array(
    fc.record({
      site: fc.string({ maxLength: 300 }),
      reason: text,
      activities: fc.nat(),
      since: fc.double({ noNaN: true, noDefaultInfinity: true }),
    }),
    { maxLength: 20 },
  ),
  failures: fc.array(
    fc.record({
      activityId: fc.string({ maxLength: 1_100 }),
      attempt: fc.nat(),
      failureClass: fc.constant('exit'),
      exitCode: fc.nat(255),
      reason: text,
    }),
    { maxLength: 20 },
  ),
  planned: fc.option(fc.nat()),
  expected: fc.option(fc.nat(4_000_000_000)),
})

test('a summary never has more than 4,096 bytes and never loses a count, whatever stands in it', () => {
  fc.assert(
    fc.property(row, (given) => {
      const summary = fitSummary(given)
      expect(Buffer.byteLength(JSON.stringify(summary))).toBeLessThanOrEqual(summaryBytes)
      const all = given.counts.reduce((sum, { activities }) => sum + activities, 0)
      const total = (counts: Record<string, number>): number =>
        Object.values(counts).reduce((sum, one) => sum + one, 0)
      expect(total(summary.states)).toBe(all)
      expect(
        summary.types.reduce((sum, { states }) => sum + total(states), 0) +
          total(summary.otherTypes?.states ?? {}),
      ).toBe(all)
      expect(summary.run.id).toBe(given.run.id)
    }),
    { numRuns: 300 },
  )
})

test('only a whole number of seconds is a wait, 60 at most', async () => {
  expect(
    ['wait=5', 'respond-async, wait=10', 'wait="7"', 'wait=600', 'WAIT = 3; foo'].map(preferredWait),
  ).toEqual([5, 10, 7, 60, 3])
  const document = await (await fetch(`${service.rootUrl}/openapi.json`)).text()
  expect(document).toContain('`wait=30` holds the request up to 30 seconds (60 at most)')
  expect(
    [undefined, '', 'wait', 'wait=', 'wait=x', 'wait=-1', 'wait=1.5', 'await=5'].map(preferredWait),
  ).toEqual(Array(8).fill(undefined))
})
