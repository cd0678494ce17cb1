import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
  for (const id of ['in', 'out']) {
    const resources = ['1', '2', '3'].map((n) => ({ id: `${id}${n}`, name: n, providerId: n }))
    expect(
      (
        await app.call('POST', '/environments/', {
          environment: { id, name: id },
          version: { id: `${id}-v1`, version: 1 },
          resources,
        })
      ).status,
    ).toBe(201)
  }
  expect(
    (
      await app.call('POST', '/execution-scopes/', {
        id: 'scope',
        name: 'scope',
        environmentVersionIds: ['in-v1'],
      })
    ).status,
  ).toBe(201)
})
afterAll(() => app.close())

const link = (id: string, sourceResourceId: string, targetResourceId: string, more: object = {}) => ({
  id,
  sourceResourceId,
  targetResourceId,
  bandwidthBitsPerSecond: 1e9,
  ...more,
})
const topology = (id: string, links: unknown[], more: object = {}) => ({
  id,
  name: id,
  version: 1,
  executionScopeId: 'scope',
  links,
  ...more,
})
const post = (document: unknown) => app.call('POST', '/network-topologies/', document)
const paths = (body: { details: { path: string }[] }): string[] =>
  body.details.map((detail) => detail.path).toSorted()

test('a topology keeps its links as they were sent, with defaults', async () => {
  const links = [
    link('l/1', 'in1', 'in2', {
      latencySeconds: 0.05,
      pricePerByte: 1e-10,
      bidirectional: true,
      sharingPolicy: 'shared',
      maxConcurrentTransfers: 1,
      metadata: { duplex: 'split' },
    }),
    link('__proto__', 'in2', 'in1', { sharingPolicy: '', metadata: { a: [null] } }),
    link('l3', 'in2', 'in3'),
  ]
  const answer = await post(topology('t/1', links, { metadata: { measured: true } }))
  expect([answer.status, answer.headers.get('location')]).toEqual([201, '/api/network-topologies/t%2F1/'])
  const read = await app.call('GET', '/network-topologies/t%2F1/')
  const defaults = {
    topologyId: 't/1',
    latencySeconds: 0,
    pricePerByte: 0,
    bidirectional: false,
    maxConcurrentTransfers: 0,
  }
  const { sharingPolicy: _, ...second } = links[1] as Record<string, unknown>
  expect(read.body).toEqual(
    topology(
      't/1',
      [
        { ...defaults, ...links[0] },
        { ...defaults, ...second },
        { ...defaults, ...links[2] },
      ],
      { metadata: { measured: true } },
    ),
  )
})

test('topologies are listed by name, newest version first', async () => {
  for (const [id, name, version] of [
    ['n1', 'A net', 1],
    ['n3', 'A net', 3],
    ['n2', 'A net', 2],
    ['m', 'B net', 1],
  ])
    expect((await post(topology(String(id), [], { name, version }))).status).toBe(201)
  const { body } = await app.call('GET', '/network-topologies/')
  expect(
    body.filter(({ name }: { name: string }) => name.endsWith('net')).map(({ id }: { id: string }) => id),
  ).toEqual(['n3', 'n2', 'n1', 'm'])
})

test.each([
  ['a version below 1', topology('w', [], { version: 0 }), ['version']],
  ['no scope', topology('w', [], { executionScopeId: undefined }), ['executionScopeId']],
  ['an unknown scope', topology('w', [], { executionScopeId: 'nowhere' }), ['executionScopeId']],
  ['a link to itself', topology('w', [link('w1', 'in1', 'in1')]), ['links.0.targetResourceId']],
  ['a pair twice', topology('w', [link('w1', 'in1', 'in2'), link('w2', 'in1', 'in2')]), ['links.1']],
  ['a link id twice', topology('w', [link('w1', 'in1', 'in2'), link('w1', 'in2', 'in1')]), ['links.1.id']],
  [
    'no bandwidth',
    topology('w', [link('w1', 'in1', 'in2', { bandwidthBitsPerSecond: 0 })]),
    ['links.0.bandwidthBitsPerSecond'],
  ],
  [
    'bandwidth left out',
    topology('w', [link('w1', 'in1', 'in2', { bandwidthBitsPerSecond: undefined })]),
    ['links.0.bandwidthBitsPerSecond'],
  ],
  [
    'negative latency, price and limit',
    topology('w', [
      link('w1', 'in1', 'in2', { latencySeconds: -1, pricePerByte: -1, maxConcurrentTransfers: -1 }),
    ]),
    ['links.0.latencySeconds', 'links.0.maxConcurrentTransfers', 'links.0.pricePerByte'],
  ],
  [
    'ends that do not exist',
    topology('w', [link('w1', 'no1', 'no2')]),
    ['links.0.sourceResourceId', 'links.0.targetResourceId'],
  ],
  ['an end outside the scope', topology('w', [link('w1', 'in1', 'out2')]), ['links.0.targetResourceId']],
  ['taken ids', topology('t/1', [link('l/1', 'in1', 'in3')]), ['id', 'links.0.id']],
  [
    'everything that the document shows',
    topology(
      'w',
      [
        link('', 'in1', 'in1', { bandwidthBitsPerSecond: -1 }),
        link('w2', 'in1', 'in2'),
        link('w2', 'in1', 'in2'),
      ],
      {
        name: '',
        version: 0.5,
      },
    ),
    [
      'links.0.bandwidthBitsPerSecond',
      'links.0.id',
      'links.0.targetResourceId',
      'links.2',
      'links.2.id',
      'name',
      'version',
    ],
  ],
])('a topology with %s is refused and not stored', async (_, document, expected) => {
  const before = await app.counts()
  const answer = await post(document)
  expect([answer.status, paths(answer.body)]).toEqual([422, expected])
  expect(await app.counts()).toEqual(before)
})

test('numbers that JSON cannot hold are refused in YAML too', async () => {
  const answer = await app.call(
    'POST',
    '/network-topologies/',
    'id: w\nname: w\nversion: 1\nexecutionScopeId: scope\nlinks: [{id: a, sourceResourceId: in1, ' +
      'targetResourceId: in2, bandwidthBitsPerSecond: .inf, latencySeconds: .nan}]\n',
    { 'content-type': 'application/yaml' },
  )
  expect([answer.status, paths(answer.body)]).toEqual([
    422,
    ['links.0.bandwidthBitsPerSecond', 'links.0.latencySeconds'],
  ])
})

test('64 equal creates make one, with its links once', async () => {
  const answers = await Promise.all(
    Array.from({ length: 64 }, () =>
      post(topology('once', [link('o1', 'in1', 'in2'), link('o2', 'in2', 'in3')])),
    ),
  )
  expect(answers.filter(({ status }) => status === 201)).toHaveLength(1)
  expect(answers.filter(({ status }) => status === 422)).toHaveLength(63)
  expect((await app.call('GET', '/network-topologies/once/')).body.links).toHaveLength(2)
})

test('an unknown topology is 404', async () => {
  expect((await app.call('GET', '/network-topologies/nowhere/')).status).toBe(404)
})

test.each([
  ['bandwidthBitsPerSecond', [0, 0.5, 1e19, 1e308, 5e-324]],
  ['latencySeconds', [-1, 1e-10, 1e-310, 1e10, 1e100]],
  ['pricePerByte', [-1, 1e-20, 1e16, 1e308]],
])('a link whose %s is beyond its bounds is 422 with the bound', async (key, values) => {
  for (const value of values) {
    const answer = await post(topology('beyond', [link('l', 'in1', 'in2', { [key]: value })]))
    expect([value, answer.status, paths(answer.body)]).toEqual([value, 422, [`links.0.${key}`]])
    expect(answer.body.details[0].message).toMatch(/must be .*\d.*\(got /)
  }
})

test('three ids of 255 characters of four bytes each make a link, once', async () => {
  let seed = 1
  const longId = (): string =>
    Array.from({ length: 255 }, () => {
      seed = (seed * 48_271) % 2_147_483_647
      return String.fromCodePoint(0x10000 + (seed % 60_000))
    }).join('')
  const [from, to] = [longId(), longId()]
  const [first] = (await app.call<{ resources: object[] }[]>('GET', '/environments/')).body
  for (const id of [from, to]) {
    const resource = { ...first?.resources[0], id, providerId: id }
    expect((await app.call('POST', '/resources/', resource)).status).toBe(201)
  }
  const id = longId()
  expect((await post(topology(id, [link('long', from, to)]))).status).toBe(201)
  const twice = await post(topology(longId(), [link('l1', from, to), link('l2', from, to)]))
  expect([twice.status, paths(twice.body)]).toEqual([422, ['links.1']])
})
