import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { orderOf } from '../../src/db/orders.ts'
import { planOrders } from '../../src/domains/schedule-plans/store.ts'
import { sessionOrders } from '../../src/domains/planning-sessions/store.ts'
import { runOrders } from '../../src/domains/execution-runs/store.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, type World } from '../support/worlds.ts'

/** Lists of runs, plans and sessions: filters and orders. */

let service: TestService
let world: World
beforeAll(async () => {
  service = await openService()
  world = await makeWorld(service, {
    name: 'listed',
    tasks: [
      { name: 'a', seconds: 1 },
      { name: 'b', seconds: 2 },
    ],
  })
  for (const [id, title] of [
    ['r1', 'Beta 50% done'],
    ['r2', undefined],
    ['r3', 'alpha_x'],
  ] as const) {
    const run = {
      id,
      schedulePlanId: world.planId,
      mode: 'simulation',
      ...(title === undefined ? {} : { title }),
    }
    await service.post('/execution-runs/', run)
    await service.finished(id)
  }
  // Times and costs that differ, as of runs on different days.
  await service.db.prepared(
    'spread',
    `update execution_runs set created_at = '2020-01-01Z'::timestamptz + substr(id, 2)::int * interval '1 day',
      started_at = '2021-01-01Z'::timestamptz - substr(id, 2)::int * interval '1 day',
      finished_at = '2022-01-01Z'::timestamptz + mod(substr(id, 2)::int, 3) * interval '1 day',
      cost = 10 - substr(id, 2)::int, makespan_seconds = mod(substr(id, 2)::int * 2, 3)`,
    [],
  )
})
afterAll(() => service?.[Symbol.asyncDispose]())

const idsOf = async (query: string): Promise<string> => {
  const { items } = await service.get(`/execution-runs/?${query}`)
  return items.map(({ run }: { run: { id: string } }) => run.id).join()
}

test.each([
  ['', 'r1,r2,r3'],
  ['sort=startedAt', 'r3,r2,r1'],
  ['sort=createdAt', 'r1,r2,r3'],
  ['sort=-createdAt', 'r3,r2,r1'],
  ['sort=finishedAt', 'r3,r1,r2'],
  ['sort=cost', 'r3,r2,r1'],
  ['sort=-makespanSeconds', 'r1,r2,r3'],
  ['sort=title', 'r2,r1,r3'],
  ['sort=-title', 'r3,r1,r2'],
  ['title=50%25', 'r1'],
  ['title=A_X', 'r3'],
  ['title=a%25x', ''],
  ['since=2020-01-03T00:00:00Z&sort=createdAt', 'r2,r3'],
  ['until=2020-01-03T00:00:00Z', 'r1'],
  ['workflowId=listed&environmentId=listed&sort=cost&pageSize=2', 'r3,r2'],
  ['workflowId=listed&environmentId=listed&sort=cost&pageSize=2&page=2', 'r1'],
  ['workflowId=other', ''],
  ['environmentId=other', ''],
])('runs of %p are %p', async (query, ids) => {
  expect(await idsOf(query)).toBe(ids)
})

test('plans and sessions have filters and orders too; an unknown order is refused by name', async () => {
  for (const id of ['s1', 's2'])
    await service.post('/planning-sessions/', {
      ...{ id, workflowVersionId: world.workflowVersionId, executionScopeId: `${world.name}-scope` },
      algorithms: [{ id: 'heft' }],
    })
  const ids = async (path: string): Promise<string> =>
    (await service.get(path)).map(({ id }: { id: string }) => id).join()
  expect(await ids('/planning-sessions/?sort=createdAt')).toBe('s1,s2')
  expect(await ids('/planning-sessions/?workflowId=listed&environmentId=listed')).toBe('s2,s1')
  expect(await ids('/planning-sessions/?workflowId=other')).toBe('')
  expect(await ids('/planning-sessions/?until=2020-01-01T00:00:00Z')).toBe('')
  expect(await ids('/schedule-plans/?sort=-cost&workflowId=listed&environmentId=listed')).toBe(world.planId)
  expect(await ids('/schedule-plans/?environmentId=other')).toBe('')
  for (const path of ['/execution-runs/', '/planning-sessions/', '/schedule-plans/']) {
    const { status, body } = await service.call('GET', `${path}?sort=colour`)
    expect([status, body.details[0].path]).toEqual([400, 'sort'])
    expect(body.error).toMatch(/createdAt/)
  }
})

describe('each order and filter is read by an index', () => {
  let plans = 0
  const planOf = (query: string): Promise<string> =>
    service.db.transaction(async (tx) => {
      // Of a few rows a scan of the whole table is always cheapest; of many it is not.
      await tx.prepared('no scans', 'set local enable_seqscan = off', [])
      await tx.prepared('no sorts', 'set local enable_sort = off', [])
      return JSON.stringify(await tx.prepared(`plan ${String(plans++)}`, `explain (costs off) ${query}`, []))
    })

  test.each(
    [
      ['execution_runs r', runOrders, 'r'],
      ['schedule_plans p', planOrders, 'p'],
      ['planning_sessions s', sessionOrders, 's'],
    ].flatMap(([from, orders, alias]) =>
      Object.keys(orders as object).flatMap((name) => [
        [from, orders, alias, name],
        [from, orders, alias, `-${name}`],
      ]),
    ) as [string, Record<string, string>, string, string][],
  )('%s, %j, %s by %s', async (from, orders, alias, sort) => {
    const { text } = orderOf(orders, sort, alias).toQuery()
    const plan = await planOf(`select * from ${from} order by ${text} limit 20`)
    expect(plan).toMatch(/Index Scan/)
    expect(plan).not.toMatch(/Sort|Seq Scan/)
  })

  test('a part of a title', async () => {
    const plan = await planOf(
      `select * from execution_runs r where lower(r.title collate "default") like lower('%alpha%')`,
    )
    expect(plan).toMatch(/execution_runs_titles/)
  })
})
