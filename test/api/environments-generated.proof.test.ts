import { afterAll, beforeAll, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'

let app: OpenedRoutes
beforeAll(async () => {
  app = await openRoutes(inventoryRoutes())
})
afterAll(() => app.close())

const text = fc
  .string({ unit: 'grapheme', maxLength: 12 })
  .map((value) => value.replace(/[\p{Cc}\p{Cs}]/gu, ''))
const name = text.filter((value) => value.trim() !== '')
/** Within the bounds of each kind. */
const amount = fc.oneof(fc.constant(0), fc.double({ min: 1e-3, max: 1e6, noNaN: true }))
const whole = fc.maxSafeNat()
const free = fc.dictionary(
  name.filter((key) => key !== '__proto__'),
  fc.oneof(fc.boolean(), amount, text, fc.constant(null), fc.array(text, { maxLength: 3 })),
  { maxKeys: 4, noNullPrototype: true },
)
/** Each member may be left out. */
const some = (members: Record<string, fc.Arbitrary<unknown>>) =>
  fc.record(members, { requiredKeys: [], noNullPrototype: true })
const flags = [
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
]
const drivers = ['slurm', 'kubernetes', 'ssh', 'local', 'serverless', 'simgrid', 'cloud']
const storageTypes = ['local', 'pvc', 'nfs', 's3', 'lustre', 'gcs', 's3-compatible', 'ssh-filesystem']

type Part = Record<string, unknown>
interface Draft {
  environment: Part
  version: Part
  runtimes: Part[]
  resources: Part[]
  resourceRuntimeBindings: Part[]
  resourceRelations: Part[]
  storages: (Part & { runtimeBindings?: Part[] })[]
  connections: Part[]
}

const parts = fc.record({
  key: name,
  environment: some({ description: text, status: text }),
  version: some({
    status: text,
    networkModel: text,
    interferenceModel: text,
    costModel: text,
    configurationHash: text,
  }),
  number: whole,
  runtimes: fc.array(
    fc.record({
      driver: fc.constantFrom(...drivers),
      mode: fc.constantFrom('execution', 'simulation'),
      rest: some({
        role: text,
        configuration: free,
        capabilities: some(Object.fromEntries(flags.map((flag) => [flag, fc.boolean()]))),
      }),
    }),
    { maxLength: 3 },
  ),
  resources: fc.array(
    fc.record({
      name,
      parent: fc.option(fc.nat()),
      bindings: fc.uniqueArray(
        fc.record({
          runtime: fc.nat({ max: 2 }),
          rest: some({ enabled: fc.boolean(), configuration: free }),
        }),
        {
          maxLength: 3,
          selector: (b) => b.runtime,
        },
      ),
      relation: fc.option(
        fc.record({
          to: fc.nat(),
          type: fc.constantFrom('contains', 'member_of', 'accessible_via'),
          rest: some({ metadata: free }),
        }),
      ),
      rest: some({
        type: text,
        executionTarget: fc.constantFrom('batch', 'direct', 'provisioned'),
        tier: text,
        region: text,
        zone: text,
        architecture: text,
        cpuCores: whole,
        cpuCapacity: amount,
        memoryBytes: whole,
        storageBytes: whole,
        computeSpeedup: amount,
        pricePerSecond: amount,
        bootOverheadSeconds: amount,
        containerOverheadSeconds: amount,
        schedulable: fc.boolean(),
        metadata: free,
      }),
    }),
    { maxLength: 5 },
  ),
  storages: fc.array(
    fc.record({
      type: fc.constantFrom(...storageTypes),
      bindings: fc.uniqueArray(
        fc.record({
          runtime: fc.nat({ max: 2 }),
          rest: some({ containerPath: text, readOnly: fc.boolean(), hostPath: text, configuration: free }),
        }),
        { maxLength: 2, selector: (b) => b.runtime },
      ),
      rest: some({
        endpoint: text,
        capacityBytes: whole,
        shared: fc.boolean(),
        readOnly: fc.boolean(),
        credentialReference: text,
        configuration: free,
        metadata: free,
      }),
    }),
    { maxLength: 3 },
  ),
  connections: fc.array(
    fc.record({
      type: name,
      rest: some({ endpoint: text, username: text, credentialRef: text, configuration: free }),
    }),
    { maxLength: 3 },
  ),
})

let serial = 0
/**
 * A valid document made of generated parts; ids hold the generated key, slashes and a serial
 * number.
 */
const assembled = (given: typeof parts extends fc.Arbitrary<infer T> ? T : never): Draft => {
  const id = (noun: string, i: number): string => `${given.key}/${noun}/${String(serial)}/${String(i)}`
  serial += 1
  const defaults = new Set<number>()
  return {
    environment: { id: id('environment', 0), name: given.key, ...given.environment },
    version: { id: id('version', 0), version: given.number, ...given.version },
    runtimes: given.runtimes.map(({ driver, mode, rest }, i) => ({
      id: id('runtime', i),
      name: `runtime ${String(i)}`,
      driver,
      mode,
      ...rest,
    })),
    resources: given.resources.map(({ name: given, parent, rest }, i) => ({
      id: id('resource', i),
      name: given,
      providerId: `p${String(i)}`,
      ...rest,
      ...(parent === null || i === 0 ? {} : { parentResourceId: id('resource', parent % i) }),
    })),
    resourceRuntimeBindings: given.resources.flatMap(({ bindings }, i) =>
      bindings
        .filter(({ runtime }) => runtime < given.runtimes.length)
        .map(({ runtime, rest }) => ({
          resourceId: id('resource', i),
          runtimeId: id('runtime', runtime),
          ...rest,
        })),
    ),
    resourceRelations: given.resources.flatMap(({ relation }, i) =>
      relation === null || i === 0
        ? []
        : [
            {
              sourceResourceId: id('resource', i),
              targetResourceId: id('resource', relation.to % i),
              type: relation.type,
              ...relation.rest,
            },
          ],
    ),
    storages: given.storages.map(({ type, bindings, rest }, i) => ({
      id: id('storage', i),
      name: `storage ${String(i)}`,
      type,
      ...rest,
      ...(bindings.length === 0
        ? {}
        : {
            runtimeBindings: bindings
              .filter(({ runtime }) => runtime < given.runtimes.length)
              .map(({ runtime, rest: binding }) => {
                const first = !defaults.has(runtime)
                defaults.add(runtime)
                return { runtimeId: id('runtime', runtime), ...(first ? { default: true } : {}), ...binding }
              }),
          }),
    })),
    connections: given.connections.map(({ type, rest }, i) => ({
      id: id('connection', i),
      name: `connection ${String(i)}`,
      type,
      ...rest,
    })),
  }
}

/** The members that say something: a blank text counts as left out. */
const said = (members: Part): Part =>
  Object.fromEntries(Object.entries(members).filter(([, value]) => value !== ''))

/**
 * What the specification's tables say a read returns for a document; written from them, not from
 * the code.
 */
const expected = (draft: Draft) => {
  const version = draft.version['id']
  const falsy = Object.fromEntries(flags.map((flag) => [flag, false]))
  return {
    environment: {
      ...{ description: '', status: 'defined', createdAt: expect.any(String) },
      ...said(draft.environment),
    },
    version: {
      environmentId: draft.environment['id'],
      status: '',
      networkModel: '',
      interferenceModel: '',
      costModel: '',
      configurationHash: '',
      createdAt: expect.any(String),
      ...draft.version,
      ...(draft.version['status'] === 'published' ? { publishedAt: expect.any(String) } : {}),
    },
    runtimes: draft.runtimes.map((runtime) => ({
      environmentVersionId: version,
      role: '',
      ...runtime,
      capabilities: { ...falsy, ...(runtime['capabilities'] as Part | undefined) },
    })),
    resources: draft.resources.map((resource) => ({
      environmentVersionId: version,
      type: '',
      executionTarget: 'batch',
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
      ...resource,
    })),
    resourceRuntimeBindings: draft.resourceRuntimeBindings.map((binding) => ({ enabled: false, ...binding })),
    resourceRelations: draft.resourceRelations.map((relation) => ({
      environmentVersionId: version,
      ...relation,
    })),
    storages: draft.storages.map((storage) => ({
      environmentVersionId: version,
      endpoint: '',
      capacityBytes: 0,
      shared: false,
      readOnly: false,
      credentialReference: '',
      browseRoots: [],
      capabilities: {
        ...{
          browse: false,
          read: false,
          write: false,
          download: false,
          upload: false,
          checksum: false,
          presignedDownload: false,
        },
        computeNodeVisible: storage['shared'] === true || (storage.runtimeBindings ?? []).length > 0,
      },
      // Health says whether there is a driver.
      health: { status: 'healthy' },
      indexPolicy: { enabled: true, maxDepth: 5, maxEntries: 10_000, timeoutSeconds: 3_600 },
      indexStatus: { status: 'not_indexed' },
      ...storage,
      runtimeBindings: (storage.runtimeBindings ?? []).map((binding) => ({
        containerPath: '/akoflow/data',
        default: false,
        readOnly: false,
        hostPath: '',
        ...said(binding),
      })),
    })),
    activityResourceProfiles: [],
    connections: draft.connections.map((connection) => ({
      environmentId: draft.environment['id'],
      endpoint: '',
      username: '',
      credentialRef: '',
      createdAt: expect.any(String),
      ...connection,
    })),
    connectionChecks: [],
  }
}

test('any valid environment is read back as the specification says, and its deletion leaves nothing', async () => {
  await fc.assert(
    fc.asyncProperty(parts, async (given) => {
      const draft = assembled(given)
      const path = `/environments/${encodeURIComponent(String(draft.environment['id']))}/`
      const before = await app.counts()
      const created = await app.call('POST', '/environments/', draft)
      expect([created.status, created.body.error, created.body.details]).toEqual([201, undefined, undefined])
      const read = await app.call('GET', path)
      expect(read.body).toEqual(expected(draft))
      // Replacing it by what it is changes nothing either.
      const replaced = await app.call('PUT', path, read.body)
      expect([replaced.status, replaced.body]).toEqual([200, read.body])
      expect((await app.call('DELETE', path)).status).toBe(204)
      expect(await app.counts()).toEqual(before)
    }),
    { seed: 20260101, numRuns: 40 },
  )
}, 300_000)

test('any JSON at all is answered with 400 or 422, never an internal error, and changes nothing', async () => {
  const before = await app.counts()
  const sections = [
    'environment',
    'version',
    'runtimes',
    'resources',
    'resourceRuntimeBindings',
    'resourceRelations',
    'storages',
    'activityResourceProfiles',
    'connections',
  ]
  const keys = [
    'id',
    'name',
    'driver',
    'resourceId',
    'runtimeId',
    'sourceResourceId',
    'targetResourceId',
    'parentResourceId',
    'runtimeBindings',
    'default',
    'type',
    'version',
    'activityTypeId',
  ]
  const leaf = fc.oneof(fc.jsonValue({ maxDepth: 2 }), fc.constantFrom('a', 'b', '', 0, -1, 1.5, null, true))
  const item = fc.dictionary(
    fc.constantFrom(...keys),
    fc.oneof(
      leaf,
      fc.array(fc.dictionary(fc.constantFrom(...keys), leaf, { noNullPrototype: true }), { maxLength: 2 }),
    ),
    { noNullPrototype: true },
  )
  const document = fc.dictionary(
    fc.constantFrom(...sections),
    fc.oneof(leaf, item, fc.array(fc.oneof(item, leaf), { maxLength: 3 })),
    {
      noNullPrototype: true,
    },
  )
  await fc.assert(
    fc.asyncProperty(document, async (given) => {
      const answer = await app.call('POST', '/environments/', given)
      expect([400, 422]).toContain(answer.status)
      expect(answer.body.details.length).toBeGreaterThan(0)
    }),
    { seed: 7, numRuns: 150 },
  )
  expect(await app.counts()).toEqual(before)
}, 300_000)
