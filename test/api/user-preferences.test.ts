import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
})
afterAll(() => app.close())

const path = (clientId: string): string => `/user-preferences/${encodeURIComponent(clientId)}/`

test('preferences are 404 until they are saved, then what was saved', async () => {
  expect((await app.call('GET', path('desktop/1'))).status).toBe(404)
  const saved = await app.call('PUT', path('desktop/1'), {
    clientId: 'somebody else',
    theme: 'dark',
    animationsEnabled: true,
  })
  expect([saved.status, saved.body]).toEqual([
    200,
    { clientId: 'desktop/1', theme: 'dark', animationsEnabled: true, updatedAt: expect.stringMatching(/Z$/) },
  ])
  expect((await app.call('GET', path('desktop/1'))).body).toEqual(saved.body)
  expect((await app.call('PUT', path('desktop/1'), {})).body).toMatchObject({
    theme: 'light',
    animationsEnabled: false,
  })
})

test.each([
  ['x'.repeat(7), {}, 422, 'clientId'],
  ['x'.repeat(129), {}, 422, 'clientId'],
  ['x'.repeat(8), { theme: 'blue' }, 422, 'theme'],
  ['x'.repeat(8), { animationsEnabled: 'yes' }, 400, 'animationsEnabled'],
  ['x'.repeat(8), { colour: 'red' }, 400, 'colour'],
])('of client %j, %j are refused', async (clientId, document, status, at) => {
  const answer = await app.call('PUT', path(clientId), document)
  expect([answer.status, answer.body.details[0].path]).toEqual([status, at])
})

test.each([8, 128])('client ids of %d characters are taken, in any script', async (length) => {
  expect((await app.call('PUT', path('🪐'.repeat(length)), {})).status).toBe(200)
})
