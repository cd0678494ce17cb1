import { afterAll, beforeAll, expect, test } from '@jest/globals'
import {
  bindingsOfResources,
  profilesFor,
  resourcesOfVersions,
  runtimesByIds,
  runtimesOfVersions,
  versionsByIds,
} from '../../src/domains/environments/store.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
const definition = (id: string, profiles: object[] = []) => ({
  environment: { id, name: id },
  version: { id: `${id}-v1`, version: 1, networkModel: 'max-min', costModel: 'active-window' },
  runtimes: [
    { id: `${id}-run`, name: 'run', driver: 'local', mode: 'execution', configuration: { launch: 'none' } },
    {
      id: `${id}-sim`,
      name: 'sim',
      driver: 'simgrid',
      mode: 'simulation',
      capabilities: { simulation: true },
    },
  ],
  resources: [
    { id: `${id}-b`, name: 'first', providerId: 'b', cpuCores: 2, schedulable: true },
    { id: `${id}-a`, name: 'second', providerId: 'a' },
  ],
  resourceRuntimeBindings: [
    { resourceId: `${id}-b`, runtimeId: `${id}-run`, enabled: true, configuration: { partition: 'x' } },
    { resourceId: `${id}-a`, runtimeId: `${id}-sim` },
  ],
  activityResourceProfiles: profiles,
})
const post = (document: unknown) => app.call('POST', '/environments/', document)

beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
  const client = await app.db.client()
  await client.query(`insert into activity_types (id, name) values ('project', 'project'), ('fit', 'fit')`)
  client.release()
})
afterAll(() => app.close())

test('measured profiles of registered activity types are stored and read; they may be about resources of other environments', async () => {
  const profiles = [
    {
      id: 'p1',
      activityTypeId: 'project',
      resourceId: 'one-a',
      runtimeSeconds: 1.25,
      sampleSize: 5,
      source: 'measured',
      metadata: { host: 'h' },
    },
    { id: 'p2', activityTypeId: 'project', resourceId: 'one-a', modelVersion: '2' },
    { id: 'p3', activityTypeId: 'fit', resourceId: 'one-b', peakMemoryBytes: 1024, energyJoules: 0.5 },
  ]
  expect((await post(definition('one', profiles))).status).toBe(201)
  const zeros = {
    runtimeSeconds: 0,
    runtimeStdDevSeconds: 0,
    cpuUtilization: 0,
    peakMemoryBytes: 0,
    diskReadBytes: 0,
    diskWriteBytes: 0,
    energyJoules: 0,
    source: 'configured',
    sampleSize: 0,
    modelVersion: '',
  }
  expect((await app.call('GET', '/environments/one/')).body.activityResourceProfiles).toEqual(
    profiles.map((profile) => ({ ...zeros, ...profile })),
  )
  const elsewhere = { id: 'p4', activityTypeId: 'fit', resourceId: 'one-a' }
  expect((await post(definition('two', [elsewhere]))).status).toBe(201)
  const refused = await app.call('DELETE', '/environments/one/')
  expect([refused.status, refused.body.error]).toEqual([
    422,
    expect.stringContaining('activity resource profile "p4"'),
  ])

  expect((await profilesFor(app.db, ['project', 'fit'], ['one-a'])).map(({ id }) => id)).toEqual([
    'p4',
    'p1',
    'p2',
  ])
  expect(await profilesFor(app.db, [], ['one-a'])).toEqual([])
})

test('profiles that exist already, here or elsewhere, and profiles of nothing are all named', async () => {
  const taken = { id: 'p1', activityTypeId: 'project', resourceId: 'three-a' }
  const sameModel = { id: 'q2', activityTypeId: 'project', resourceId: 'one-a', modelVersion: '2' }
  const nothing = { id: 'q3', activityTypeId: 'unknown', resourceId: 'nobody', runtimeSeconds: 1 }
  const before = await app.counts()
  const answer = await post(definition('three', [taken, sameModel, nothing]))
  expect([answer.status, answer.body.details.map((detail: { path: string }) => detail.path)]).toEqual([
    422,
    [
      'activityResourceProfiles.0.id',
      'activityResourceProfiles.2.resourceId',
      'activityResourceProfiles.2.activityTypeId',
      'activityResourceProfiles.1',
    ],
  ])
  const twice = await post(
    definition('three', [
      { ...taken, id: 'q4' },
      { ...taken, id: 'q5' },
      { ...taken, id: 'q5', modelVersion: '2', runtimeSeconds: -1 },
    ]),
  )
  expect([
    twice.status,
    twice.body.details.map((detail: { path: string }) => detail.path).toSorted(),
  ]).toEqual([
    422,
    [
      'activityResourceProfiles.1',
      'activityResourceProfiles.2.id',
      'activityResourceProfiles.2.runtimeSeconds',
    ],
  ])
  expect(await app.counts()).toEqual(before)
})

test('a model version of any length is kept, once; a reference that no index holds is 422', async () => {
  const random = (length: number): string => {
    let seed = 7
    return Array.from({ length }, () => {
      seed = (seed * 48_271) % 2_147_483_647
      return (seed % 36).toString(36)
    }).join('')
  }
  const modelVersion = random(5_000)
  const profile = (id: string) => ({ id, activityTypeId: 'fit', resourceId: 'long-a', modelVersion })
  expect((await post(definition('long', [profile('long-1')]))).status).toBe(201)
  const { body } = await app.call('GET', '/environments/long/')
  expect(body.activityResourceProfiles).toEqual([expect.objectContaining({ modelVersion })])
  const twice = await post(definition('longer', [profile('long-2')]))
  expect([twice.status, twice.body.details[0].path]).toEqual([422, 'activityResourceProfiles.0'])

  const connection = { id: 'c', name: 'c', type: 'local', credentialRef: random(20_000) }
  const refused = await post({ ...definition('refused'), connections: [connection] })
  expect([refused.status, refused.body.error]).toEqual([
    422,
    'an id or a label is too long to be kept in an index; shorten it',
  ])
})

test('other parts of the service read the inventory as documents', async () => {
  expect((await post(definition('four'))).status).toBe(201)
  const { body } = await app.call('GET', '/environments/four/')
  expect(await versionsByIds(app.db, ['four-v1', 'nowhere'])).toEqual([body.version])
  expect(await resourcesOfVersions(app.db, ['four-v1'])).toEqual(body.resources)
  expect(await runtimesOfVersions(app.db, ['four-v1'])).toEqual(body.runtimes)
  expect(await runtimesByIds(app.db, ['four-sim', 'nobody'])).toEqual([body.runtimes[1]])
  expect(await bindingsOfResources(app.db, ['four-a', 'four-b'])).toEqual([
    body.resourceRuntimeBindings[1],
    body.resourceRuntimeBindings[0],
  ])
  expect(await resourcesOfVersions(app.db, [])).toEqual([])
})
