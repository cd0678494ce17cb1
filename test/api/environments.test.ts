import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import type { Answer } from '../support/client.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { proved } from '../support/share.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
})
afterAll(() => app.close())

let serial = 0
/** A small environment whose ids are its own. */
const definition = (name = `env-${String(++serial)}`) => ({
  environment: { id: name, name },
  version: { id: `${name}-v1`, version: 1, status: 'published' },
  runtimes: [{ id: `${name}-local`, name: 'Local', driver: 'local', mode: 'execution' }],
  resources: [
    {
      id: `${name}-host`,
      name: 'Host',
      providerId: 'host',
      cpuCores: 2,
      cpuCapacity: 2,
      memoryBytes: 1024,
      computeSpeedup: 1,
      schedulable: true,
    },
    { id: `${name}-disk`, name: 'Disk', providerId: 'disk', parentResourceId: `${name}-host` },
  ],
  resourceRuntimeBindings: [{ resourceId: `${name}-host`, runtimeId: `${name}-local`, enabled: true }],
  resourceRelations: [
    { sourceResourceId: `${name}-host`, targetResourceId: `${name}-disk`, type: 'contains' },
  ],
  storages: [
    {
      id: `${name}-data`,
      name: 'data',
      type: 'local',
      runtimeBindings: [{ runtimeId: `${name}-local`, default: true }],
    },
  ],
  connections: [{ id: `${name}-ssh`, name: 'login', type: 'ssh', credentialRef: 'file:key' }],
})
type Definition = ReturnType<typeof definition>
const post = (document: unknown) => app.call('POST', '/environments/', document)
const created = async (document: Definition = definition()): Promise<Definition> => {
  const answer = await post(document)
  expect([answer.status, answer.text]).toEqual([201, expect.any(String)])
  return document
}
const path = (id: string): string => `/environments/${encodeURIComponent(id)}/`
const details = (body: { details: { path: string; message: string }[] }): string[] =>
  body.details.map((detail) => detail.path).toSorted()

describe('storages', () => {
  const everything = { browse: true, read: true, write: true, download: true, upload: true, checksum: true }
  const nothing = {
    browse: false,
    read: false,
    write: false,
    download: false,
    upload: false,
    checksum: false,
    presignedDownload: false,
  }

  const policy = { enabled: true, maxDepth: 5, maxEntries: 10_000, timeoutSeconds: 3_600 }

  test('reads carry the five fields of the service, and a client’s own values of them are not shown back', async () => {
    const sent = definition()
    const { id } = sent.environment
    const claimed = {
      browseRoots: [{ path: '/etc' }],
      capabilities: { browse: true },
      health: { status: 'healthy' },
      indexPolicy: { enabled: true },
      indexStatus: { status: 'completed', indexedEntries: 7 },
    }
    Object.assign(sent.storages[0] ?? {}, claimed)
    sent.storages.push({ id: `${id}-bare`, name: 'bare', type: 'nfs', runtimeBindings: [] })
    const answer = await post(sent)
    expect(answer.status).toBe(201)
    expect(Object.keys(answer.body.storages[0])).not.toEqual(expect.arrayContaining(['health']))
    expect(Object.keys(answer.body.storages[0]).filter((key) => key in claimed)).toEqual([])

    const view = {
      browseRoots: [],
      health: { status: 'healthy' },
      indexPolicy: policy,
      indexStatus: { status: 'not_indexed' },
    }
    const read = await app.call('GET', path(id))
    expect(read.body.storages).toMatchObject([
      { ...view, capabilities: { ...nothing, computeNodeVisible: true } },
      { ...view, capabilities: { ...nothing, computeNodeVisible: false } },
    ])
    for (const storage of read.body.storages) expect(storage).toEqual(expect.objectContaining(view))
    const listed = (await app.call('GET', '/environments/')).body.find(
      (one: { environment: { id: string } }) => one.environment.id === id,
    )
    expect(listed.storages).toEqual(read.body.storages)
    const replaced = await app.call('PUT', path(id), read.body)
    expect([replaced.status, replaced.body.storages]).toEqual([200, read.body.storages])
  })

  test('roots and index policy are the configuration’s, as far as they have their shape', async () => {
    const sent = definition()
    const { id } = sent.environment
    const bad = [null, 5, 'x', {}, [1], { path: 5 }, { label: 'no path' }]
    Object.assign(sent.storages[0] ?? {}, {
      shared: true,
      configuration: {
        browseRoots: [
          { path: '/b', label: 'B', readOnly: true, other: 1 },
          ...bad,
          { path: '/a', label: 5, readOnly: 'no' },
        ],
        indexPolicy: {
          enabled: true,
          roots: ['/b'],
          maxDepth: 3,
          maxEntries: '9',
          include: ['*', 5],
          exclude: ['tmp'],
          other: 1,
        },
      },
    })
    sent.storages.push(
      ...bad.map((value, i) => ({
        ...{ id: `${id}-${String(i)}`, name: String(i), type: 'local', runtimeBindings: [] },
        configuration: { browseRoots: value, indexPolicy: value },
      })),
    )
    expect((await post(sent)).status).toBe(201)
    const { storages } = (await app.call('GET', path(id))).body
    expect(storages[0].capabilities).toEqual({
      ...everything,
      presignedDownload: false,
      computeNodeVisible: true,
    })
    expect([storages[0].browseRoots, storages[0].indexPolicy]).toEqual([
      [{ path: '/b', label: 'B', readOnly: true }, { path: '/a' }],
      { ...policy, roots: ['/b'], maxDepth: 3, exclude: ['tmp'] },
    ])
    for (const storage of storages.slice(1))
      expect([storage.browseRoots, storage.indexPolicy]).toEqual([[], policy])
  })
})

describe('registering an environment', () => {
  test('answers the document as understood, and reads return the ids that were saved', async () => {
    const sent = definition()
    const { id } = sent.environment
    const answer = await post(sent)
    expect(answer.status).toBe(201)
    expect(answer.headers.get('location')).toBe(`/api/environments/${id}/`)
    expect(answer.body).toMatchObject(sent)
    expect(answer.body.version.environmentId).toBe('')
    expect(answer.body.runtimes[0].environmentVersionId).toBe('')

    const read = await app.call('GET', path(id))
    expect(read.status).toBe(200)
    expect(read.headers.get('content-type')).toBe('application/json')
    expect(read.headers.get('etag')).toMatch(/^"/)
    expect(read.body).toMatchObject(sent)
    expect(read.body.environment).toEqual({
      id,
      name: id,
      description: '',
      status: 'defined',
      createdAt: expect.stringMatching(/^\d{4}-.*Z$/),
    })
    expect(read.body.version).toMatchObject({ environmentId: id, networkModel: '', configurationHash: '' })
    expect(read.body.runtimes[0]).toEqual({
      ...sent.runtimes[0],
      environmentVersionId: `${id}-v1`,
      role: '',
      capabilities: Object.fromEntries(
        [
          'batch',
          'interactive',
          'container',
          'serverless',
          'gpu',
          'mpi',
          'sharedStorage',
          'dataStaging',
          'cancellation',
          'logStreaming',
          'simulation',
        ].map((name) => [name, false]),
      ),
    })
    expect(read.body.resources[1]).toEqual({
      id: `${id}-disk`,
      environmentVersionId: `${id}-v1`,
      type: '',
      name: 'Disk',
      providerId: 'disk',
      executionTarget: 'batch',
      parentResourceId: `${id}-host`,
      tier: '',
      region: '',
      zone: '',
      architecture: '',
      cpuCores: 0,
      cpuCapacity: 0,
      memoryBytes: 0,
      storageBytes: 0,
      computeSpeedup: 0,
      pricePerSecond: 0,
      bootOverheadSeconds: 0,
      containerOverheadSeconds: 0,
      schedulable: false,
    })
    expect(read.body.resourceRelations[0].environmentVersionId).toBe(`${id}-v1`)
    expect(read.body.storages[0]).toMatchObject({
      environmentVersionId: `${id}-v1`,
      capacityBytes: 0,
      shared: false,
      readOnly: false,
      credentialReference: '',
    })
    expect(read.body.storages[0].runtimeBindings).toEqual([
      {
        runtimeId: `${id}-local`,
        containerPath: '/akoflow/data',
        default: true,
        readOnly: false,
        hostPath: '',
      },
    ])
    expect(read.body.connections[0]).toEqual({
      ...sent.connections[0],
      environmentId: id,
      endpoint: '',
      username: '',
      createdAt: expect.stringMatching(/Z$/),
    })
    expect(read.body).toMatchObject({ activityResourceProfiles: [], connectionChecks: [] })
  })

  test('blank texts are the defaults, and a connection needs no type', async () => {
    const sent = definition()
    const { id } = sent.environment
    const [storage] = sent.storages
    const answer = await post({
      ...sent,
      environment: { ...sent.environment, status: '' },
      storages: [{ ...storage, runtimeBindings: [{ ...storage!.runtimeBindings[0], containerPath: '' }] }],
      connections: [{ id: `${id}-door`, name: 'door' }],
    })
    expect(answer.status).toBe(201)
    const { body } = await app.call('GET', path(id))
    expect(body.environment.status).toBe('defined')
    expect(body.storages[0].runtimeBindings[0].containerPath).toBe('/akoflow/data')
    expect(body.connections[0]).toMatchObject({ id: `${id}-door`, type: '' })
  })

  test('takes YAML, keys in any case and null for what may be omitted', async () => {
    const answer = await app.call(
      'POST',
      '/environments/',
      'Environment: {ID: y, Name: Y, description: null}\nversion: {id: y-v1, version: 3, ' +
        'environmentID: elsewhere}\nresources: null\n',
      {
        'content-type': 'application/yaml',
      },
    )
    expect(answer.status).toBe(201)
    expect((await app.call('GET', path('y'))).body).toMatchObject({
      environment: { name: 'Y' },
      version: { version: 3, environmentId: 'y' },
      resources: [],
    })
  })

  test('does not save connector bindings and connection checks', async () => {
    const sent = {
      ...definition(),
      connectorBindings: [{ id: 'c' }],
      connectionChecks: [{ id: 'k', status: 'online' }],
    }
    expect((await post(sent)).status).toBe(201)
    const { body } = await app.call('GET', path(sent.environment.id))
    expect(body.connectionChecks).toEqual([])
    expect(body).not.toHaveProperty('connectorBindings')
  })

  test('keeps ids with slashes, spaces, unicode and percent signs', async () => {
    for (const id of [
      'a/b/c',
      'Ökosystem 漢字 🪐',
      '100%',
      '../etc',
      'constructor',
      '-- drop table environments',
      "it's",
    ]) {
      await created(definition(id))
      const read = await app.call('GET', path(id))
      expect([id, read.status, read.body?.environment.id]).toEqual([id, 200, id])
      expect((await app.call('DELETE', path(id))).status).toBe(204)
    }
  })

  test('keeps free-form objects as they are, nulls and deep values included', async () => {
    const sent = definition()
    const free = { a: null, b: [1, 'x', { c: [null, 1e-10, 1e300, 0.1] }], 'quote"': '\\ \n ,"x":', 漢: true }
    Object.assign(sent.resources[0] ?? {}, { metadata: free })
    Object.assign(sent.runtimes[0] ?? {}, { configuration: free })
    Object.assign(sent.storages[0] ?? {}, { configuration: free, metadata: {} })
    Object.assign(sent.connections[0] ?? {}, { configuration: free })
    await created(sent)
    const { body } = await app.call('GET', path(sent.environment.id))
    expect(body.resources[0].metadata).toEqual(free)
    expect(body.runtimes[0].configuration).toEqual(free)
    expect(body.storages[0].configuration).toEqual(free)
    expect(body.storages[0].metadata).toEqual({})
    expect(body.connections[0].configuration).toEqual(free)
  })

  test('binds resources of other environments, and knows who does so when they are to go', async () => {
    const other = await created()
    const sent = definition()
    sent.resourceRuntimeBindings.push({
      resourceId: other.resources[0]?.id ?? '',
      runtimeId: sent.runtimes[0]?.id ?? '',
      enabled: false,
    })
    await created(sent)
    const refused = await app.call('DELETE', path(other.environment.id))
    expect(refused.status).toBe(422)
    expect(refused.body.error).toContain(`resource-runtime binding of the version "${sent.version.id}"`)
  })
})

describe('a definition with a mistake is refused', () => {
  const one = <T>(list: T[]): T => list[0] as T
  const cases: [string, (d: Definition) => unknown, string[]][] = [
    [
      'runtime driver outside the enum',
      (d) => Object.assign(one(d.runtimes), { driver: 'telepathy' }),
      ['runtimes.0.driver'],
    ],
    [
      'runtime mode outside the enum',
      (d) => Object.assign(one(d.runtimes), { mode: 'real' }),
      ['runtimes.0.mode'],
    ],
    [
      'executionTarget outside the enum',
      (d) => Object.assign(one(d.resources), { executionTarget: 'slurm' }),
      ['resources.0.executionTarget'],
    ],
    [
      'storage type outside the enum',
      (d) => Object.assign(one(d.storages), { type: 'tape' }),
      ['storages.0.type'],
    ],
    [
      'relation type outside the enum',
      (d) => Object.assign(one(d.resourceRelations), { type: 'loves' }),
      ['resourceRelations.0.type'],
    ],
    [
      'duplicate runtime id',
      (d) => d.runtimes.push({ ...one(d.runtimes), name: 'other' }),
      ['runtimes.1.id'],
    ],
    [
      'duplicate runtime name',
      (d) => d.runtimes.push({ ...one(d.runtimes), id: 'other' }),
      ['runtimes.1.name'],
    ],
    [
      'duplicate resource id',
      (d) => d.resources.push({ ...one(d.resources), providerId: 'other' }),
      ['resources.2.id'],
    ],
    [
      'duplicate provider id',
      (d) => Object.assign(d.resources[1] ?? {}, { providerId: 'host' }),
      ['resources.1.providerId'],
    ],
    [
      'duplicate connection name',
      (d) => d.connections.push({ ...one(d.connections), id: 'other' }),
      ['connections.1.name'],
    ],
    [
      'duplicate connection id',
      (d) => d.connections.push({ ...one(d.connections), name: 'other' }),
      ['connections.1.id'],
    ],
    [
      'duplicate binding pair',
      (d) => d.resourceRuntimeBindings.push(one(d.resourceRuntimeBindings)),
      ['resourceRuntimeBindings.1'],
    ],
    [
      'duplicate relation',
      (d) => d.resourceRelations.push(one(d.resourceRelations)),
      ['resourceRelations.1'],
    ],
    [
      'duplicate storage name',
      (d) => d.storages.push({ ...one(d.storages), id: 'other', runtimeBindings: [] }),
      ['storages.1.name'],
    ],
    [
      'a storage bound twice to a runtime',
      (d) =>
        one(d.storages).runtimeBindings.push({ ...one(one(d.storages).runtimeBindings), default: false }),
      ['storages.0.runtimeBindings.1'],
    ],
    [
      'two default storages bound to one runtime',
      (d) => d.storages.push({ ...one(d.storages), id: 'other', name: 'other' }),
      ['storages.1.runtimeBindings.0.default'],
    ],
    [
      'negative storage capacityBytes',
      (d) => Object.assign(one(d.storages), { capacityBytes: -1 }),
      ['storages.0.capacityBytes'],
    ],
    [
      'negative numbers of a resource',
      (d) => Object.assign(one(d.resources), { cpuCores: -1, cpuCapacity: -0.5, pricePerSecond: -1 }),
      ['resources.0.cpuCapacity', 'resources.0.cpuCores', 'resources.0.pricePerSecond'],
    ],
    [
      'a fraction of a byte',
      (d) => Object.assign(one(d.resources), { memoryBytes: 0.5 }),
      ['resources.0.memoryBytes'],
    ],
    [
      'a relation from a resource to itself',
      (d) => Object.assign(one(d.resourceRelations), { targetResourceId: one(d.resources).id }),
      ['resourceRelations.0.targetResourceId'],
    ],
    [
      'a resource that is its own parent',
      (d) => Object.assign(d.resources[1] ?? {}, { parentResourceId: d.resources[1]?.id }),
      ['resources.1.parentResourceId'],
    ],
    [
      'parents in a circle',
      (d) => Object.assign(one(d.resources), { parentResourceId: d.resources[1]?.id }),
      [expect.stringMatching(/^resources\.[01]\.parentResourceId$/) as unknown as string],
    ],
    [
      'a parent that does not exist',
      (d) => Object.assign(one(d.resources), { parentResourceId: 'nobody' }),
      ['resources.0.parentResourceId'],
    ],
    [
      'bindings that lead nowhere',
      (d) =>
        d.resourceRuntimeBindings.push({ resourceId: 'no-resource', runtimeId: 'no-runtime', enabled: true }),
      ['resourceRuntimeBindings.1.resourceId', 'resourceRuntimeBindings.1.runtimeId'],
    ],
    [
      'relations that lead nowhere',
      (d) =>
        d.resourceRelations.push({ sourceResourceId: 'no-1', targetResourceId: 'no-2', type: 'member_of' }),
      ['resourceRelations.1.sourceResourceId', 'resourceRelations.1.targetResourceId'],
    ],
    [
      'a storage bound to a runtime of no or another version',
      (d) => one(d.storages).runtimeBindings.push({ runtimeId: 'elsewhere', default: false }),
      ['storages.0.runtimeBindings.1.runtimeId'],
    ],
    [
      'a profile of nothing',
      (d) =>
        Object.assign(d, {
          activityResourceProfiles: [{ id: 'p', activityTypeId: 'no-type', resourceId: 'no-resource' }],
        }),
      ['activityResourceProfiles.0.activityTypeId', 'activityResourceProfiles.0.resourceId'],
    ],
    [
      'a blank environment id and name',
      (d) => Object.assign(d.environment, { id: '', name: '  ' }),
      ['environment.id', 'environment.name'],
    ],
    ['an id of 256 characters', (d) => Object.assign(d.version, { id: 'v'.repeat(256) }), ['version.id']],
    ['no version number', (d) => Object.assign(d.version, { version: undefined }), ['version.version']],
    [
      'neither environment nor version',
      (d) => Object.assign(d, { environment: undefined, version: undefined }),
      ['environment', 'version'],
    ],
  ]
  test.each(cases)('%s', async (_, spoil, expected) => {
    const document = definition()
    spoil(document)
    const before = await app.counts()
    const answer = await post(document)
    expect([answer.status, answer.text]).toEqual([422, expect.stringContaining('"unacceptable"')])
    expect(details(answer.body)).toEqual(expected)
    expect(await app.counts()).toEqual(before)
  })

  test.each([
    ['unknown keys', (d: Definition) => Object.assign(one(d.resources), { cores: 4 }), ['resources.0.cores']],
    [
      'wrong types',
      (d: Definition) => Object.assign(one(d.resources), { cpuCores: '4', schedulable: 'yes' }),
      ['resources.0.cpuCores', 'resources.0.schedulable'],
    ],
    [
      'collections that are none',
      (d: Definition) => Object.assign(d, { runtimes: {}, resources: 'all' }),
      ['resources', 'runtimes'],
    ],
  ])('%s are 400', async (_, spoil, expected) => {
    const document = definition()
    spoil(document)
    const answer = await post(document)
    expect(answer.status).toBe(400)
    expect(details(answer.body)).toEqual(expect.arrayContaining(expected))
  })

  test('ids that other environments hold are all named, with their owner', async () => {
    const other = await created()
    const before = await app.counts()
    const again = definition()
    const stolen = {
      ...again,
      version: { ...again.version, id: other.version.id },
      runtimes: [{ ...one(again.runtimes), id: one(other.runtimes).id }],
      resources: other.resources,
      resourceRuntimeBindings: [],
      resourceRelations: [],
      storages: [{ ...one(again.storages), id: one(other.storages).id, runtimeBindings: [] }],
      connections: other.connections,
    }
    const answer = await post(stolen)
    expect(answer.status).toBe(422)
    expect(details(answer.body)).toEqual([
      'connections.0.id',
      'resources.0.id',
      'resources.1.id',
      'runtimes.0.id',
      'storages.0.id',
      'version.id',
    ])
    expect(
      answer.body.details.every((detail: { message: string }) =>
        detail.message.includes(JSON.stringify(other.environment.id)),
      ),
    ).toBe(true)
    expect(await app.counts()).toEqual(before)
  })

  test('one violation of each kind: all of them in one answer', async () => {
    const d = definition()
    one(d.runtimes).driver = 'telepathy'
    Object.assign(one(d.resources), { cpuCores: -1, memoryBytes: 1e300, storageBytes: 0.5 })
    d.resources.push({ ...(d.resources[1] as (typeof d.resources)[1]), name: '' })
    d.resourceRelations.push({ ...one(d.resourceRelations), targetResourceId: one(d.resources).id })
    one(d.storages).runtimeBindings.push({ runtimeId: 'elsewhere', default: true })
    Object.assign(d.version, { version: undefined })
    const before = await app.counts()
    const answer = await post(d)
    expect(answer.status).toBe(422)
    expect(details(answer.body)).toEqual([
      'resourceRelations.1.targetResourceId',
      'resources.0.cpuCores',
      'resources.0.memoryBytes',
      'resources.0.storageBytes',
      'resources.2.id',
      'resources.2.name',
      'resources.2.providerId',
      'runtimes.0.driver',
      'storages.0.runtimeBindings.1.runtimeId',
      'version.version',
    ])
    expect(await app.counts()).toEqual(before)
  })
})

describe('many at once', () => {
  test('64 equal creates make one environment', async () => {
    const document = definition()
    const answers = await Promise.all(Array.from({ length: 64 }, () => post(document)))
    expect(answers.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([
      201,
      ...Array.from({ length: 63 }, () => 422),
    ])
    for (const { status, body } of answers)
      if (status === 422) expect(body.details[0].path).toBe('environment.id')
  })

  test('different environments that fight for one resource id: one wins, whole', async () => {
    const shared = 'contested-resource'
    const documents = Array.from({ length: 12 }, () => {
      const document = definition()
      return {
        ...document,
        resources: [...document.resources, { id: shared, name: 'x', providerId: 'contested' }],
      }
    })
    const answers = await Promise.all(documents.map(post))
    expect(answers.filter(({ status }) => status === 201)).toHaveLength(1)
    const reads = await Promise.all(documents.map(({ environment }) => app.call('GET', path(environment.id))))
    expect(reads.filter(({ status }) => status === 200)).toHaveLength(1)
    expect(reads.find(({ status }) => status === 200)?.body.resources).toHaveLength(3)
  })

  proved('10,000 resources in one document are stored and read', async () => {
    const document = definition()
    const { id } = document.environment
    const resources = Array.from({ length: 10_000 }, (_, i) => ({
      id: `${id}-${String(i)}`,
      name: `node ${String(i)}`,
      providerId: String(i),
      cpuCores: 4,
      metadata: { rack: i % 40 },
    }))
    const bindings = resources.map((resource) => ({
      resourceId: resource.id,
      runtimeId: document.runtimes[0]?.id,
      enabled: true,
    }))
    const answer = await post({
      ...document,
      resources: [...document.resources, ...resources],
      resourceRuntimeBindings: bindings,
    })
    expect([answer.status, answer.body.error]).toEqual([201, undefined])
    const read = await app.call('GET', path(id))
    expect(read.body.resources.slice(2)).toMatchObject(resources)
    expect(read.body.resourceRuntimeBindings).toEqual(bindings)
    expect((await app.call('DELETE', path(id))).status).toBe(204)
  })
})

describe('replacing', () => {
  test('an unused environment is replaced completely; its creation time and the checks of connections that stay are kept', async () => {
    const first = await created()
    const { id } = first.environment
    const before = (await app.call('GET', path(id))).body
    const client = await app.db.client()
    await client.query(
      'insert into connection_checks (id, connection_id, status, latency_ms, checked_at) select $1 ' +
        `|| i, $2, 'online', i, now() - i * interval '1 minute' from generate_series(0, 24) i`,
      [`${id}-check-`, `${id}-ssh`],
    )
    client.release()

    const second = {
      environment: { id, name: 'renamed', status: 'ready' },
      version: { id: `${id}-v2`, version: 2 },
      runtimes: [{ id: `${id}-local`, name: 'Local again', driver: 'ssh', mode: 'execution' }],
      connections: [
        { id: `${id}-new`, name: 'login', type: 'ssh' },
        { id: `${id}-ssh`, name: 'moved', type: 'ssh', endpoint: 'login.example.org' },
      ],
    }
    const answer = await app.call('PUT', path(id), second)
    expect([answer.status, answer.body.error]).toEqual([200, undefined])
    const after = (await app.call('GET', path(id))).body
    expect(answer.body).toEqual(after)
    expect(after).toMatchObject(second)
    expect(after).toMatchObject({
      resources: [],
      resourceRuntimeBindings: [],
      resourceRelations: [],
      storages: [],
    })
    expect(after.environment.createdAt).toBe(before.environment.createdAt)
    expect(after.connectionChecks.map((check: { latencyMs: number }) => check.latencyMs)).toEqual(
      Array.from({ length: 20 }, (_, i) => i),
    )
  })

  test('a retired version keeps the time at which it was published; a draft has none', async () => {
    const definition = await created()
    const { id } = definition.environment
    const published = async (status: string): Promise<string | undefined> => {
      const sent = { ...definition, version: { ...definition.version, status } }
      const answer = await app.call('PUT', path(id), sent)
      expect([answer.status, answer.body.error]).toEqual([200, undefined])
      return answer.body.version.publishedAt
    }
    const at = await published('published')
    expect(at).toMatch(/Z$/)
    expect(await published('retired')).toBe(at)
    expect(await published('draft')).toBeUndefined()
    expect(await published('retired')).toBeUndefined()
  })

  test('what GET returns can be sent back', async () => {
    const { environment } = await created()
    const read = (await app.call('GET', path(environment.id))).body
    const answer = await app.call('PUT', path(environment.id), read)
    expect([answer.status, answer.body.error]).toEqual([200, undefined])
    expect(answer.body).toEqual(read)
  })

  test('what belongs to resources and storages that stay is kept, also in another version and under exchanged names', async () => {
    const document = await created()
    const { id } = document.environment
    const client = await app.db.client()
    await client.query('insert into resource_snapshots (id, resource_id, available) values ($1, $1, true)', [
      `${id}-host`,
    ])
    await client.query(
      `insert into storages (id, environment_version_id, position, name, type, endpoint, probe) values ($1, $2, 1, 'other', 'nfs', '/mnt', '{"status":"healthy","checkedAt":"2026-01-01T00:00:00Z","latencyMs":1}')`,
      [`${id}-other`, document.version.id],
    )
    for (const storage of [`${id}-data`, `${id}-other`]) {
      await client.query(
        `insert into storage_index_entries (storage_id, parent, name, is_directory, type) values ($1, '', 'a', false, 'file')`,
        [storage],
      )
      await client.query(
        `insert into storage_index_runs (id, storage_id, status, policy) values ($1, $1, 'completed', '{}')`,
        [storage],
      )
      await client.query(
        `insert into storage_downloads (id, storage_id, path, strategy, status) values ($1, $1, 'a', 'stream', 'ready')`,
        [storage],
      )
    }
    client.release()
    const before = await app.counts()
    const read = (await app.call('GET', path(id))).body
    const same = await app.call('PUT', path(id), read)
    expect([same.status, same.body]).toEqual([200, read])
    expect(await app.counts()).toEqual(before)

    const [host, disk] = read.resources
    const [data, other] = read.storages
    const next = {
      ...read,
      version: { ...read.version, id: `${id}-v2` },
      resources: [
        { ...disk, providerId: 'host' },
        { ...host, providerId: 'disk' },
      ],
      storages: [
        { ...other, name: 'data', credentialReference: 'file:other' },
        { ...data, name: 'other' },
      ],
    }
    const exchanged = await app.call('PUT', path(id), next)
    expect([exchanged.status, exchanged.body.resources, exchanged.body.storages]).toMatchObject([
      200,
      next.resources.map(({ id, providerId }: { id: string; providerId: string }) => ({
        id,
        providerId,
        environmentVersionId: next.version.id,
      })),
      [
        { name: 'data', health: { status: 'healthy' } },
        { name: 'other', indexStatus: data.indexStatus },
      ],
    ])
    expect(exchanged.body.storages[0].health).not.toHaveProperty('probe')
    expect(await app.counts()).toEqual(before)

    // What lies elsewhere, or is gone, has no index; what is shown of a place is no other place.
    const [shownStorage, ...others] = next.storages
    const shown = { ...shownStorage, configuration: { browseRoots: [{ path: '/mnt' }] } }
    expect((await app.call('PUT', path(id), { ...next, storages: [shown, ...others] })).status).toBe(200)
    expect(await app.counts()).toEqual(before)
    const moved = await app.call('PUT', path(id), {
      ...next,
      resources: [],
      resourceRuntimeBindings: [],
      resourceRelations: [],
      storages: [
        { ...next.storages[0], endpoint: '/elsewhere' },
        {
          ...next.storages[1],
          configuration: { ...next.storages[1].configuration, connectionId: 'elsewhere' },
        },
      ],
    })
    expect([moved.status, moved.body.error]).toEqual([200, undefined])
    const after = await app.counts()
    const lost = (table: string): number => (before[table] ?? 0) - (after[table] ?? 0)
    expect(lost('resource_snapshots')).toBe(1)
    for (const table of ['storage_index_entries', 'storage_index_runs', 'storage_downloads'])
      expect([table, lost(table)]).toEqual([table, 2])

    const query = async (text: string): Promise<unknown[]> => {
      const connected = await app.db.client()
      try {
        return (await connected.query(text, [`${id}-data`])).rows
      } finally {
        connected.release()
      }
    }
    const entries = () => query('select name from storage_index_entries where storage_id = $1')
    await query(
      `insert into storage_index_entries (storage_id, parent, name, is_directory, type) values ($1, '', 'a', false, 'file')`,
    )
    const again = moved.body
    expect((await app.call('PUT', path(id), again)).status).toBe(200)
    expect(await entries()).toHaveLength(1)
    const [first, second] = again.storages
    const binding = { ...second.runtimeBindings[0], hostPath: '/another' }
    await app.call('PUT', path(id), {
      ...again,
      storages: [first, { ...second, runtimeBindings: [binding] }],
    })
    expect(await entries()).toHaveLength(0)
  })

  test('is refused for an unknown environment, another id and ids of others; nothing changes', async () => {
    const other = await created()
    const mine = await created()
    const before = (await app.call('GET', path(mine.environment.id))).body
    expect((await app.call('PUT', path('unknown'), definition('unknown'))).status).toBe(404)
    const renamed = await app.call('PUT', path(mine.environment.id), definition('renamed'))
    expect([renamed.status, details(renamed.body)]).toEqual([422, ['environment.id']])
    const stolen = await app.call('PUT', path(mine.environment.id), {
      ...mine,
      resources: [...mine.resources, { id: other.resources[0]?.id, name: 'x', providerId: 'x' }],
    })
    expect([stolen.status, details(stolen.body)]).toEqual([422, ['resources.2.id']])
    // Its own earlier records do not count as existing any more.
    const dangling = await app.call('PUT', path(mine.environment.id), {
      ...mine,
      resources: mine.resources.slice(0, 1),
    })
    expect([dangling.status, details(dangling.body)]).toEqual([422, ['resourceRelations.0.targetResourceId']])
    expect((await app.call('GET', path(mine.environment.id))).body).toEqual(before)
  })
})

describe('an environment in use', () => {
  test('is neither replaced nor deleted; every kind of user is named', async () => {
    const document = await created()
    const { id } = document.environment
    const scope = { id: `${id}-scope`, name: 'scope', environmentVersionIds: [document.version.id] }
    expect((await app.call('POST', '/execution-scopes/', scope)).status).toBe(201)
    const topology = {
      id: `${id}-net`,
      name: 'net',
      version: 1,
      executionScopeId: scope.id,
      links: [
        {
          id: `${id}-link`,
          sourceResourceId: `${id}-host`,
          targetResourceId: `${id}-disk`,
          bandwidthBitsPerSecond: 1,
        },
      ],
    }
    expect((await app.call('POST', '/network-topologies/', topology)).status).toBe(201)
    const client = await app.db.client()
    await client.query(
      'insert into workflow_versions (id, workflow_id, version, definition_hash, activity_count, ' +
        `dependency_count) values ($1, $1, 1, '', 1, 0)`,
      [`${id}-wf`],
    )
    await client.query(
      'insert into schedule_plans (id, workflow_version_id, content_version_id, execution_scope_id, ' +
        `source, assignment_count) values ($1, $2, $2, $3, 'manual', 1)`,
      [`${id}-plan`, `${id}-wf`, scope.id],
    )
    await client.query(
      'insert into schedule_plan_assignments (schedule_plan_id, activity_position, id, activity_id, ' +
        `resource_id, order_on_resource) values ($1, 0, 'a', 'a', $2, 1)`,
      [`${id}-plan`, `${id}-host`],
    )
    await client.query(
      'insert into execution_runs (id, schedule_plan_id, content_version_id, mode, activity_count) ' +
        `values ($1, $2, $3, 'real', 1)`,
      [`${id}-run`, `${id}-plan`, `${id}-wf`],
    )
    client.release()

    const before = await app.counts()
    for (const refused of [await app.call('DELETE', path(id)), await app.call('PUT', path(id), document)]) {
      expect(refused.status).toBe(422)
      const texts = refused.body.details.map((detail: { message: string }) => detail.message).join('\n')
      for (const kind of ['execution scope', 'network link', 'assignment of the plan', 'execution run'])
        expect(texts).toContain(`used by ${kind} "${id}-`)
    }
    expect(await app.counts()).toEqual(before)
  })

  test('scope created and environment deleted at the same moment: one of them is refused', async () => {
    for (let round = 0; round < 8; round++) {
      const document = await created()
      const [scope, deleted] = await Promise.all([
        app.call('POST', '/execution-scopes/', {
          id: `race-${String(round)}`,
          name: 'r',
          environmentVersionIds: [document.version.id],
        }),
        app.call('DELETE', path(document.environment.id)),
      ])
      expect([
        [201, 422],
        [422, 204],
      ]).toContainEqual([scope.status, deleted.status])
    }
  })
})

describe('deleting', () => {
  test('removes everything below, and only that', async () => {
    const before = await app.counts()
    const document = await created()
    const between = await app.counts()
    for (const [table, more] of Object.entries({
      environments: 1,
      resources: 2,
      runtimes: 1,
      resource_runtime_bindings: 1,
      storage_runtime_bindings: 1,
      connections: 1,
    })) {
      expect([table, between[table]]).toEqual([table, (before[table] ?? NaN) + more])
    }
    expect((await app.call('DELETE', path(document.environment.id))).status).toBe(204)
    expect(await app.counts()).toEqual(before)
    expect((await app.call('GET', path(document.environment.id))).status).toBe(404)
    const again = await app.call('DELETE', path(document.environment.id))
    expect([again.status, again.body.error]).toEqual([
      404,
      `environment "${document.environment.id}" does not exist`,
    ])
  })
})

describe('the list', () => {
  test('is ordered by name, then id, and paged by Link headers', async () => {
    const { body } = await app.call('GET', '/environments/')
    const keys = body.map(({ environment }: Definition) => `${environment.name}\0${environment.id}`)
    expect(keys).toEqual(keys.toSorted())
    expect(body.length).toBeGreaterThan(3)
    const collected: string[] = []
    let next: string | undefined = '/environments/?pageSize=3'
    while (next !== undefined) {
      const page: Answer = await app.call('GET', next)
      expect(page.headers.get('x-total-count')).toBe(String(body.length))
      expect(page.body.length).toBeLessThanOrEqual(3)
      collected.push(
        ...page.body.map(({ environment }: Definition) => `${environment.name}\0${environment.id}`),
      )
      next = /<\/api([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '')?.[1]
    }
    expect(collected).toEqual(keys)
  })

  proved('of more than 16 MiB comes as a stream, whole and in its order', async () => {
    const names = Array.from({ length: 9 }, (_, i) => `long-${String(i)}`)
    for (const name of names) await created(definition(name))
    const { body: short } = await app.call('GET', '/environments/')
    const client = await app.db.client()
    await client.query(
      `update resources set metadata = jsonb_build_object('é', repeat('x', $1)) where id ~ '^long-.-host$'`,
      [3 * 2 ** 20],
    )
    client.release()
    const long = await app.call('GET', '/environments/')
    expect([long.status, long.headers.get('etag'), long.headers.get('content-type')]).toEqual([
      200,
      null,
      'application/json',
    ])
    expect(long.text.length).toBeGreaterThan(9 * 3 * 2 ** 20)
    for (const { resources } of long.body)
      for (const resource of resources) if (resource.metadata?.['é'] !== undefined) delete resource.metadata
    expect(long.body).toEqual(short)
    const part = await app.call('GET', '/environments/?pageSize=3')
    expect([part.body.length, part.headers.get('x-total-count')]).toEqual([3, String(short.length)])
    expect(part.headers.get('etag')).not.toBeNull()
    const head = await app.call('HEAD', '/environments/')
    expect([head.status, head.text]).toEqual([200, ''])
    for (const name of names) expect((await app.call('DELETE', path(name))).status).toBe(204)
  })
})
