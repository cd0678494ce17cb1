import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { ensureInstance } from '../../src/domains/instance/store.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
})
afterAll(() => app.close())

test('the first start gives an identity from the host name, later starts keep what was saved', async () => {
  await Promise.all(Array.from({ length: 8 }, () => ensureInstance(app.db, 'Node 7.Example.org')))
  const first = (await app.call('GET', '/instance/')).body
  expect(first).toEqual({
    id: 'instance-node-7-example-org',
    name: 'Node 7.Example.org',
    transferBufferBytes: 8_388_608,
    createdAt: expect.stringMatching(/Z$/),
    updatedAt: expect.stringMatching(/Z$/),
  })
  const sent = {
    id: 'ours',
    name: 'Our installation',
    description: 'd',
    organization: 'o',
    location: 'l',
    transferBufferBytes: 5 * 1024 * 1024,
  }
  const saved = await app.call('PUT', '/instance/', { ...first, ...sent })
  expect([saved.status, saved.body]).toEqual([
    200,
    { ...sent, createdAt: first.createdAt, updatedAt: expect.any(String) },
  ])
  await ensureInstance(app.db, 'another')
  expect((await app.call('GET', '/instance/')).body).toEqual(saved.body)
})

test('what is left out of a saved identity is empty or the default', async () => {
  const answer = await app.call('PUT', '/instance/', { id: 'ours', name: 'Ours', transferBufferBytes: 0 })
  expect(answer.body).toEqual({
    id: 'ours',
    name: 'Ours',
    transferBufferBytes: 8_388_608,
    createdAt: expect.any(String),
    updatedAt: expect.any(String),
  })
})

test.each([
  [{ id: '', name: ' ' }, ['id', 'name']],
  [{}, ['id', 'name']],
  [{ id: 'a', name: 'b', transferBufferBytes: 5 * 1024 * 1024 - 1 }, ['transferBufferBytes']],
  [{ id: 'a', name: 'b', transferBufferBytes: 64 * 1024 * 1024 + 1 }, ['transferBufferBytes']],
  [{ id: 'a', name: 'b', transferBufferBytes: -1 }, ['transferBufferBytes']],
])('an identity like %j is refused', async (document, expected) => {
  const answer = await app.call('PUT', '/instance/', document)
  expect([
    answer.status,
    answer.body.details.map((detail: { path: string }) => detail.path).toSorted(),
  ]).toEqual([422, expected])
})

test('a host name without letters still gives an identity', async () => {
  const client = await app.db.client()
  await client.query('delete from system_instance')
  client.release()
  expect((await app.call('GET', '/instance/')).status).toBe(404)
  await ensureInstance(app.db, '漢')
  expect((await app.call('GET', '/instance/')).body).toMatchObject({ id: 'instance-local', name: '漢' })
})
