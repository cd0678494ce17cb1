import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
  for (const id of ['a', 'b'])
    expect(
      (
        await app.call('POST', '/environments/', {
          environment: { id, name: id },
          version: { id: `${id}-v1`, version: 1 },
        })
      ).status,
    ).toBe(201)
})
afterAll(() => app.close())

const post = (document: unknown) => app.call('POST', '/execution-scopes/', document)
const paths = (body: { details: { path: string }[] }): string[] =>
  body.details.map((detail) => detail.path).toSorted()

test('a scope is created, read, listed by name and deleted', async () => {
  const sent = {
    id: 'scope/1 漢',
    name: 'Zwei',
    environmentVersionIds: ['b-v1', 'a-v1'],
    metadata: { purpose: 'test' },
  }
  const answer = await post(sent)
  expect([answer.status, answer.body]).toEqual([201, { ...sent, networkTopologyId: '' }])
  expect(answer.headers.get('location')).toBe('/api/execution-scopes/scope%2F1%20%E6%BC%A2/')
  expect(
    (
      await post({
        id: 's2',
        name: 'Eins',
        environmentVersionIds: ['a-v1'],
        networkTopologyId: 'not-there-yet',
      })
    ).status,
  ).toBe(201)
  expect((await app.call('GET', '/execution-scopes/scope%2F1%20%E6%BC%A2/')).body).toEqual(answer.body)
  expect(
    (await app.call('GET', '/execution-scopes/')).body.map(({ name }: { name: string }) => name),
  ).toEqual(['Eins', 'Zwei'])
  for (const expected of [204, 404])
    expect((await app.call('DELETE', '/execution-scopes/scope%2F1%20%E6%BC%A2/')).status).toBe(expected)
  expect((await app.call('GET', '/execution-scopes/scope%2F1%20%E6%BC%A2/')).status).toBe(404)
})

test.each([
  ['blank id and name', { id: '', name: ' ' }, ['id', 'name']],
  ['no versions', { environmentVersionIds: [] }, ['environmentVersionIds']],
  ['versions left out', { environmentVersionIds: undefined }, ['environmentVersionIds']],
  ['versions null', { environmentVersionIds: null }, ['environmentVersionIds']],
  ['a version twice', { environmentVersionIds: ['a-v1', 'b-v1', 'a-v1'] }, ['environmentVersionIds.2']],
  [
    'several unknown versions',
    { environmentVersionIds: ['x', 'a-v1', 'y'] },
    ['environmentVersionIds.0', 'environmentVersionIds.2'],
  ],
  [
    'an environment id instead of a version id',
    { environmentVersionIds: ['a'] },
    ['environmentVersionIds.0'],
  ],
])('a scope with %s is refused and not stored', async (_, wrong, expected) => {
  const before = await app.counts()
  const answer = await post({ id: 'wrong', name: 'wrong', environmentVersionIds: ['a-v1'], ...wrong })
  expect([answer.status, paths(answer.body)]).toEqual([422, expected])
  expect(await app.counts()).toEqual(before)
})

test('64 equal creates make one; an id is taken only once', async () => {
  const answers = await Promise.all(
    Array.from({ length: 64 }, () => post({ id: 'once', name: 'once', environmentVersionIds: ['a-v1'] })),
  )
  expect(answers.filter(({ status }) => status === 201)).toHaveLength(1)
  for (const { status, body } of answers)
    if (status !== 201) expect([status, paths(body)]).toEqual([422, ['id']])
})

test('a scope in use is not deleted; every kind of user is named', async () => {
  expect((await post({ id: 'used', name: 'used', environmentVersionIds: ['a-v1'] })).status).toBe(201)
  for (const id of ['t1', 't2'])
    expect(
      (await app.call('POST', '/network-topologies/', { id, name: id, version: 1, executionScopeId: 'used' }))
        .status,
    ).toBe(201)
  const client = await app.db.client()
  await client.query(
    'insert into workflow_versions (id, workflow_id, version, definition_hash, activity_count, ' +
      `dependency_count) values ('w', 'w', 1, '', 1, 0)`,
  )
  await client.query(
    'insert into schedule_plans (id, workflow_version_id, content_version_id, execution_scope_id, ' +
      `source, assignment_count) values ('p', 'w', 'w', 'used', 'manual', 0)`,
  )
  await client.query(
    'insert into planning_sessions (id, workflow_version_id, execution_scope_id, algorithms) ' +
      `values ('ps', 'w', 'used', '[]')`,
  )
  client.release()
  const refused = await app.call('DELETE', '/execution-scopes/used/')
  expect(refused.status).toBe(422)
  expect(
    refused.body.details.map(
      ({ message }: { message: string }) => /used by (.*); delete that first/.exec(message)?.[1],
    ),
  ).toEqual(['network topology "t1" (and 1 more)', 'plan "p"', 'planning session "ps"'])
  expect((await app.call('GET', '/execution-scopes/used/')).status).toBe(200)
})
