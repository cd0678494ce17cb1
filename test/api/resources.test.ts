import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { raw, sql } from '../../src/db/sql.ts'
import { listResources } from '../../src/domains/resources/store.ts'
import { pageOf } from '../../src/http/paging.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
  const environment = {
    environment: { id: 'e', name: 'e' },
    version: { id: 'e-v1', version: 1 },
    resources: [
      { id: 'rack', name: 'rack', providerId: 'rack' },
      { id: 'top', name: 'top', providerId: 'top' },
      { id: 'middle', name: 'middle', providerId: 'middle', parentResourceId: 'top' },
      { id: 'below', name: 'below', providerId: 'below', parentResourceId: 'middle' },
    ],
  }
  const far = {
    environment: { id: 'f', name: 'f' },
    version: { id: 'f-v1', version: 1 },
    resources: [{ id: 'far', name: 'far', providerId: 'far' }],
  }
  for (const document of [environment, far])
    expect((await app.call('POST', '/environments/', document)).status).toBe(201)
})
afterAll(() => app.close())

const resource = (id: string, more: object = {}) => ({
  id,
  environmentVersionId: 'e-v1',
  name: `name of ${id}`,
  providerId: id,
  ...more,
})
const post = (document: unknown) => app.call('POST', '/resources/', document)
const paths = (body: { details: { path: string }[] }): string[] =>
  body.details.map((detail) => detail.path).toSorted()

describe('a resource added to a version', () => {
  test('is read alone, in the list and in its environment, with every default', async () => {
    const sent = resource('node/1 Ω', { parentResourceId: 'rack', cpuCores: 4, metadata: { slot: 3 } })
    const answer = await post(sent)
    expect([answer.status, answer.headers.get('location')]).toEqual([
      201,
      '/api/resources/node%2F1%20%CE%A9/',
    ])
    const read = await app.call('GET', '/resources/node%2F1%20%CE%A9/')
    expect(read.body).toEqual({
      ...sent,
      type: '',
      executionTarget: 'batch',
      tier: '',
      region: '',
      zone: '',
      architecture: '',
      cpuCapacity: 0,
      memoryBytes: 0,
      storageBytes: 0,
      computeSpeedup: 0,
      pricePerSecond: 0,
      bootOverheadSeconds: 0,
      containerOverheadSeconds: 0,
      schedulable: false,
    })
    expect(answer.body).toEqual(read.body)
    expect((await app.call('GET', '/resources/')).body).toContainEqual(read.body)
    expect((await app.call('GET', '/environments/e/')).body.resources).toContainEqual(read.body)
  })

  test.each([
    ['a version that does not exist', { environmentVersionId: 'nowhere' }, ['environmentVersionId']],
    ['no version', { environmentVersionId: undefined }, ['environmentVersionId']],
    ['a parent that does not exist', { parentResourceId: 'nobody' }, ['parentResourceId']],
    ['itself as parent', { id: 'self', parentResourceId: 'self' }, ['parentResourceId']],
    ['an id of another version', { id: 'far' }, ['id']],
    [
      'its own descendant as parent',
      { id: 'top', providerId: 'top', parentResourceId: 'below' },
      ['parentResourceId'],
    ],
    ['a taken providerId', { providerId: 'rack' }, ['providerId']],
    [
      'all of these',
      { id: 'far', providerId: 'rack', parentResourceId: 'nobody' },
      ['id', 'parentResourceId', 'providerId'],
    ],
    [
      'numbers out of range',
      { cpuCores: -1, pricePerSecond: -0.1, memoryBytes: 1e300 },
      ['cpuCores', 'memoryBytes', 'pricePerSecond'],
    ],
  ])('with %s is refused and not stored', async (_, wrong, expected) => {
    const before = await app.counts()
    const answer = await post(resource('spoiled', wrong))
    expect([answer.status, paths(answer.body)]).toEqual([422, expected])
    expect(await app.counts()).toEqual(before)
  })

  test('64 equal creates make one', async () => {
    const answers = await Promise.all(Array.from({ length: 64 }, () => post(resource('once'))))
    expect(answers.map(({ status }) => status)).toEqual(Array.from({ length: 64 }, () => 201))
    const all = (await app.call('GET', '/resources/')).body
    expect(all.filter(({ id }: { id: string }) => id === 'once')).toHaveLength(1)
  })

  test('takes the place of the one with its id, with its bindings; omitted members are the defaults again', async () => {
    const first = { cpuCores: 4, parentResourceId: 'rack', metadata: { slot: 1, list: [{ a: null }] } }
    expect((await post(resource('again', first))).status).toBe(201)
    const order = async () =>
      (await app.call('GET', '/environments/e/')).body.resources.map(({ id }: { id: string }) => id)
    const before = await order()
    const changed = await post(resource('again', { name: 'renamed', providerId: 'other', memoryBytes: 5 }))
    expect([changed.status, changed.body]).toMatchObject([
      201,
      { name: 'renamed', cpuCores: 0, memoryBytes: 5 },
    ])
    const read = (await app.call('GET', '/resources/again/')).body
    expect(read).toEqual(changed.body)
    expect(read).not.toHaveProperty('metadata')
    expect(await order()).toEqual(before)
    expect((await post(read)).status).toBe(201)
  })

  test('that a plan assigns activities to is taken as it is, and refused as another', async () => {
    expect((await post(resource('planned', { cpuCores: 2, metadata: { deep: [{ a: 1 }] } }))).status).toBe(
      201,
    )
    const read = (await app.call('GET', '/resources/planned/')).body
    await app.db.run(
      sql`alter table schedule_plan_assignments drop constraint schedule_plan_assignments_plan`,
    )
    await app.db
      .run(sql`insert into schedule_plan_assignments (id, schedule_plan_id, activity_position, activity_id,
        resource_id, order_on_resource) values ('p-a', 'p', 0, 'a', 'planned', 0)`)
    expect((await post(read)).status).toBe(201)
    const refused = await post({ ...read, cpuCores: 1 })
    expect([refused.status, refused.body.details]).toEqual([
      422,
      [{ path: 'id', message: expect.stringMatching(/"planned" .*the plan "p"; .*another id/) }],
    ])
    expect((await app.call('GET', '/resources/planned/')).body).toEqual(read)
  })
})

test('an unknown resource is 404', async () => {
  const answer = await app.call('GET', '/resources/nobody/')
  expect([answer.status, answer.body.error, answer.body.code]).toEqual([
    404,
    'resource "nobody" does not exist',
    'missing',
  ])
})

test('the snapshot of a resource is its newest, and 404 until there is one', async () => {
  expect((await app.call('GET', '/resources/rack/snapshot/')).status).toBe(404)
  const client = await app.db.client()
  await client.query(
    `insert into resource_snapshots (id, resource_id, captured_at, available, cpu_used, queue_length, metadata)
     values ('s1', 'rack', '2026-01-01T00:00:00Z', false, 9, 9, null), ('s2', 'rack', '2026-01-02T00:00:00Z',
       true, 1.5, 3, '{"connectionId": "c"}')`,
  )
  client.release()
  expect((await app.call('GET', '/resources/rack/snapshot/')).body).toEqual({
    id: 's2',
    resourceId: 'rack',
    capturedAt: '2026-01-02T00:00:00.000Z',
    available: true,
    cpuUsed: 1.5,
    memoryUsedBytes: 0,
    networkInBps: 0,
    networkOutBps: 0,
    diskReadBps: 0,
    diskWriteBps: 0,
    queueLength: 3,
    metadata: { connectionId: 'c' },
  })
})

test('the list is ordered by name and paged', async () => {
  const all = (await app.call('GET', '/resources/')).body as { id: string; name: string }[]
  expect(all.map(({ name }) => name)).toEqual(all.map(({ name }) => name).toSorted())
  const second = await app.call('GET', '/resources/?page=2&pageSize=1')
  expect(second.body).toEqual([all[1]])
  expect(second.headers.get('link')).toContain('</api/resources/?page=1&pageSize=1>; rel="prev"')
  expect((await app.call('GET', '/resources/?colour=red')).status).toBe(400)
})

test('a resource that was taken when numbers had other bounds is still read', async () => {
  expect((await post(resource('fast'))).status).toBe(201)
  await app.db.run(raw("update resources set compute_speedup = 2.4e9 where id = 'fast'"))
  const { rows } = await listResources(app.db, pageOf({}))
  expect(rows.find(({ id }) => id === 'fast')).toMatchObject({ computeSpeedup: 2.4e9 })
  await app.db.run(raw("delete from resources where id = 'fast'"))
})
