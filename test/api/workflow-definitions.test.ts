import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { activityResolver, loadGraph } from '../../src/domains/workflow-definitions/graph.ts'
import { workflowDefinitionRoutes } from '../../src/domains/workflow-definitions/routes.ts'
import type {
  WfFormatDocument,
  WorkflowVersionDocument,
} from '../../src/domains/workflow-definitions/schemas.ts'
import { startable } from '../../src/domains/workflow-definitions/script.ts'
import { embedWorkflow, loadCommands } from '../../src/domains/workflow-definitions/store.ts'
import { readWfFormat } from '../../src/domains/workflow-definitions/wfformat.ts'
import { sql } from '../../src/db/sql.ts'
import { inputVariables } from '../../src/domains/workflow-definitions/names.ts'
import { uses } from '../../src/uses.ts'
import { growth } from '../support/growth.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { proved } from '../support/share.ts'

const seed = 20_260

let service: OpenedRoutes
beforeAll(async () => {
  service = await openRoutes((db) => workflowDefinitionRoutes({ db, uses }))
})
afterAll(() => service.close())
beforeEach(async () => {
  await service.db.run(sql`truncate workflow_definitions, workflow_versions cascade`)
})

interface Detail {
  path: string
  message: string
}
interface Definition {
  id: string
  name: string
  namespace: string
  version: WorkflowVersionDocument & { definitionHash: string; createdAt: string; activityCount: number }
  activityTypes: { id: string; name: string }[]
  warnings: Detail[]
}
interface Refused {
  error: string
  code: string
  details: Detail[]
}

const create = (document: unknown) =>
  service.call<Definition & Refused>('POST', '/workflow-definitions/', document)
/** Rows of each table of workflows. */
const workflowCounts = async (): Promise<unknown[]> => {
  const all = await service.counts()
  return [
    ...['workflow_definitions', 'workflow_versions', 'activity_types'],
    ...['activity_definitions', 'activity_dependencies', 'workflow_data_dependencies'],
  ].map((table) => all[table])
}
const paths = (details: Detail[]): string[] => details.map(({ path }) => path)
const simulated = (name: string, dependsOn: string[] = []) => ({
  name,
  dependsOn,
  simulation: { durationSeconds: 1 },
})
const workflow = (name: string, activities: unknown[], spec: object = {}) => ({
  name,
  spec: { namespace: 'tests', activities, ...spec },
})

describe('create and read', () => {
  test('what is created is what is read, listed and paged', async () => {
    const created = await create(
      workflow(
        'Image  Mosaic',
        [
          {
            name: 'Project A',
            run: 'project a.fits',
            image: 'tools:1',
            cpuLimit: '250m',
            memoryLimit: '2Gi',
            activityType: 'project',
            runtime: 'local',
            resourceSelector: 'host-1',
            policy: { maxAttempts: 3 },
          },
          {
            name: 'fit',
            run: 'fit',
            image: 'tools:1',
            dependsOn: ['Project A'],
            expectedOutputs: ['fit.txt'],
            stage: 'declared',
            workspaceSeedPath: 'mosaic/bin',
            metadata: { baseRuntimeSeconds: 2.5 },
          },
        ],
        {
          dataDependencies: [
            { producerActivity: 'Project A', consumerActivity: 'fit', logicalName: 'a.fits', sizeBytes: 10 },
            { producerActivity: 'Project A', consumerActivity: 'fit', logicalName: 'b.fits', sizeBytes: 5 },
          ],
        },
      ),
    )
    expect(created.status).toBe(201)
    expect(created.headers.get('location')).toBe('/api/workflow-definitions/image--mosaic/')
    expect(created.body).toMatchObject({
      id: 'image--mosaic',
      externalId: 'image--mosaic',
      name: 'Image  Mosaic',
      namespace: 'tests',
      warnings: [],
      activityTypes: [
        { id: 'image--mosaic-project', name: 'project' },
        { id: 'image--mosaic-activity', name: 'Image  Mosaic activity' },
      ],
      version: {
        id: 'image--mosaic-v1',
        definitionHash: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
        activities: [
          {
            id: 'image--mosaic-project-a',
            externalId: 'project-a',
            name: 'Project A',
            activityTypeId: 'image--mosaic-project',
            kind: 'task',
            capabilities: ['real'],
            resources: { cpu: 0.25, memoryBytes: 2 ** 31, storageBytes: 0 },
            policy: { timeoutSeconds: 3600, maxAttempts: 3, retryDelaySeconds: 0 },
            priority: 0,
            command: { entrypoint: 'sh', arguments: ['-c', 'project a.fits'], image: 'tools:1' },
          },
          {
            id: 'image--mosaic-fit',
            activityTypeId: 'image--mosaic-activity',
            resources: { cpu: 0.1, memoryBytes: 16 * 2 ** 20 },
            priority: 2,
            metadata: {
              baseRuntimeSeconds: 2.5,
              expectedOutputs: ['fit.txt'],
              stage: 'declared',
              workspaceSeedPath: 'mosaic/bin',
            },
          },
        ],
        dependencies: [
          {
            activityId: 'image--mosaic-fit',
            dependsOnActivityId: 'image--mosaic-project-a',
            type: 'control',
          },
        ],
        dataDependencies: [
          { logicalName: 'a.fits', sizeBytes: 10 },
          { logicalName: 'b.fits', sizeBytes: 5 },
        ],
      },
    })
    const { warnings: _, ...definition } = created.body
    expect((await service.call('GET', '/workflow-definitions/image--mosaic/')).body).toEqual(definition)
    expect((await service.call('GET', '/workflow-definitions/')).body).toEqual([definition])
    const page = await service.call(
      'GET',
      '/workflow-definitions/image--mosaic/activities/?page=2&pageSize=1',
    )
    expect(page.body).toEqual({
      items: [definition.version.activities[1]],
      page: 2,
      pageSize: 1,
      total: 2,
      hasNext: false,
    })
    const beyond = await service.call(
      'GET',
      '/workflow-definitions/image--mosaic/activities/?page=9999999999999999&pageSize=100',
    )
    expect(beyond.body).toMatchObject({ items: [], total: 2, hasNext: false })

    const graph = await loadGraph(service.db, 'image--mosaic-v1')
    expect(graph).toMatchObject({
      workflowId: 'image--mosaic',
      activities: [
        {
          position: 0,
          cpu: 0.25,
          memoryBytes: 2 ** 31,
          resourceSelector: 'host-1',
          runtimeHint: 'local',
          priority: 0,
        },
        { position: 1, baseRuntimeSeconds: 2.5 },
      ],
      edges: [{ from: 0, to: 1, bytes: 15 }],
    })
    expect(await loadCommands(service.db, 'image--mosaic-v1', [1])).toMatchObject([
      {
        position: 1,
        expectedOutputs: ['fit.txt'],
        stage: 'declared',
        workspaceSeedPath: 'mosaic/bin',
        inputs: [
          { producerPosition: 0, logicalName: 'a.fits', sizeBytes: 10 },
          { producerPosition: 0, logicalName: 'b.fits', sizeBytes: 5 },
        ],
      },
    ])
  })

  test('lists are ordered by namespace and name, paged, and leave the arrays of big workflows out', async () => {
    for (const [name, namespace] of [
      ['b', 'z'],
      ['c', 'a'],
      ['a', 'z'],
    ] as const)
      await create({ name, spec: { namespace, activities: [simulated('t')] } })
    await create({
      name: 'big',
      spec: { namespace: 'a', activities: Array.from({ length: 1_001 }, (_, i) => simulated(`t${i}`)) },
    })
    const all = await service.call<Definition[]>('GET', '/workflow-definitions/')
    expect(all.body.map(({ id }) => id)).toEqual(['big', 'c', 'a', 'b'])
    expect(
      all.body.map(({ version }) => [
        version.activityCount,
        (version as Partial<Definition['version']>).activities?.length,
      ]),
    ).toEqual([
      [1_001, undefined],
      [1, 1],
      [1, 1],
      [1, 1],
    ])
    const second = await service.call<Definition[]>('GET', '/workflow-definitions/?page=2&pageSize=3')
    expect(second.body.map(({ id }) => id)).toEqual(['b'])
    expect(second.headers.get('x-total-count')).toBe('4')
    expect(
      (await service.call<Definition>('GET', '/workflow-definitions/big/')).body.version.activities,
    ).toHaveLength(1_001)
  })

  test('above 10,000 activities the detail carries counts, and pages and export carry everything', async () => {
    const count = 10_001
    const created = await create(
      workflow(
        'huge',
        Array.from({ length: count }, (_, i) => simulated(`t${i}`, i === 0 ? [] : [`t${i - 1}`])),
      ),
    )
    expect([created.status, created.body.version.activities, created.body.version.activityCount]).toEqual([
      201,
      undefined,
      count,
    ])
    const read = await service.call<Definition>('GET', '/workflow-definitions/huge/')
    expect([
      read.body.version.activities,
      read.body.version.activityCount,
      read.body.version.dependencyCount,
    ]).toEqual([undefined, count, count - 1])
    const last = await service.call<{ items: { id: string }[]; hasNext: boolean }>(
      'GET',
      `/workflow-definitions/huge/activities/?page=11&pageSize=1000`,
    )
    expect(last.body).toMatchObject({ items: [{ id: 'huge-t10000' }], hasNext: false })
    const graph = await loadGraph(service.db, 'huge-v1')
    expect([graph?.activities[10_000]?.externalId, graph?.edges.length]).toEqual(['t10000', count - 1])
    expect(
      (await service.call('GET', '/workflow-definitions/huge/export/')).text.match(/^ {4}- name: t\d+$/gm),
    ).toHaveLength(count)
  })

  test('unknown ids are 404 on every route', async () => {
    for (const [method, path, body] of [
      ['GET', '/workflow-definitions/x/'],
      ['DELETE', '/workflow-definitions/x/'],
      ['GET', '/workflow-definitions/x/export/'],
      ['GET', '/workflow-definitions/x/activities/'],
      ['POST', '/workflow-definition-actions/duplicate/x/', { name: 'y' }],
    ] as const)
      expect((await service.call(method, path, body)).status).toBe(404)
  })

  test('a runtime that nobody knows is a warning, and so is data without an edge', async () => {
    const created = await create(
      workflow(
        'hints',
        [
          { ...simulated('a'), runtime: 'nowhere' },
          { ...simulated('b'), runtime: 'simgrid' },
        ],
        {
          dataDependencies: [
            { producerActivity: 'a', consumerActivity: 'b', logicalName: 'f', sizeBytes: 1 },
          ],
        },
      ),
    )
    expect(paths(created.body.warnings)).toEqual(['spec.dataDependencies.0', 'spec.activities.0.runtime'])
  })

  test('what an activity can do follows from what it has', async () => {
    const created = await create(
      workflow('capabilities', [
        { name: 'real', run: 'x', image: 'i' },
        { name: 'both', run: 'x', image: 'i', simulation: {} },
        { name: 'simulation', simulation: { flops: 1e9 } },
        { name: 'no-executable', run: 'x', simulation: {} },
      ]),
    )
    expect(created.body.version.activities.map(({ capabilities }) => capabilities)).toEqual([
      ['real'],
      ['real', 'simulation'],
      ['simulation'],
      ['simulation'],
    ])
  })

  test('a blank member of an activity counts as left out, in every form of the document', async () => {
    const blank = { runtime: '', resourceSelector: '', workspaceSeedPath: '', mountPath: ' ' }
    const activities = [
      { ...simulated('a'), ...blank, activityType: '', cpuLimit: '', memoryLimit: ' ' },
      simulated('b'),
    ]
    const made = await create(workflow('blanks', activities))
    expect([made.status, made.body.warnings]).toEqual([201, []])
    const [a, b] = made.body.version.activities
    expect([a?.metadata, a?.resources, a?.activityTypeId]).toEqual([
      undefined,
      b?.resources,
      b?.activityTypeId,
    ])

    const { activities: stored, ...version } = made.body.version
    const embedded = {
      ...version,
      activities: stored.map((activity) => ({ ...activity, metadata: { ...blank, note: '' } })),
    }
    const id = await service.db.transaction((tx) => embedWorkflow(tx, embedded))
    const graph = await loadGraph(service.db, id)
    expect(
      graph?.activities.map(({ resourceSelector, runtimeHint }) => [resourceSelector, runtimeHint]),
    ).toEqual([
      [undefined, undefined],
      [undefined, undefined],
    ])
    expect((await loadCommands(service.db, id, [0, 1])).map((command) => command.workspaceSeedPath)).toEqual([
      undefined,
      undefined,
    ])

    const sent = { ...made.body, version: embedded }
    const again = await service.call<Definition & Refused>(
      'POST',
      '/workflow-definitions/import/?name=again',
      sent,
    )
    expect([again.status, again.body.version.activities[0]?.metadata]).toEqual([201, { note: '' }])
  })

  test('blank texts of an executable and zeros of a policy count as left out, in every form', async () => {
    const reference = 'tools:1'
    const executable = {
      source: { type: 'oci', reference, expectedDigest: '', format: '', environmentRef: '' },
      delivery: { strategy: '', targetFormat: '' },
      ...{ expectedDigest: '', format: null, credentialRef: '' },
    }
    const activity = (source: object = {}) => ({
      ...{ name: 'a', command: { entrypoint: 'x', executable: { ...executable, ...source } } },
      policy: { timeoutSeconds: 0, maxAttempts: 0 },
    })
    const kept = { source: { type: 'oci', reference }, delivery: {} }
    const made = await create(workflow('zeros', [activity()]))
    const [stored] = made.body.version.activities
    expect([made.status, stored?.command?.executable, stored?.policy]).toEqual([
      201,
      kept,
      { timeoutSeconds: 3600, maxAttempts: 1, retryDelaySeconds: 0 },
    ])
    const embedded = {
      ...made.body.version,
      activities: [{ ...stored!, command: { ...stored!.command, executable }, policy: { maxAttempts: 0 } }],
    }
    expect(await service.db.transaction((tx) => embedWorkflow(tx, embedded))).toBe('zeros-v1')
    const wrong = { source: { type: 'oci', reference: '' }, delivery: { strategi: '' } }
    const refused = await create(workflow('wrong', [activity(wrong)]))
    const at = 'spec.activities.0.command.executable.'
    expect([refused.status, paths(refused.body.details).toSorted()]).toEqual([
      422,
      [`${at}delivery.strategi`, `${at}source.reference`],
    ])
  })

  test('a measure with more digits than a double has is rounded, in every form; other such integers are refused', async () => {
    const long = '12345678901234567'
    const send = async (path: string, document: object) => {
      const text = JSON.stringify(document).replaceAll('"LONG"', long)
      return service.request<Definition & Refused>(`/api/workflow-definitions/${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: text,
      })
    }
    const author = (name: string, more: object = {}) =>
      workflow(name, [{ name: 'a', simulation: { flops: 'LONG' }, ...more }])
    const answers = [await send('', author('created')), await send('import/', author('imported'))]
    const [{ body: created }] = answers as [(typeof answers)[0]]
    const { version, ...answered } = created
    const activities = [{ ...version.activities[0], simulation: { flops: 'LONG' } }]
    answers.push(
      await send('import/?name=sent-back', {
        ...answered,
        version: { ...version, activities },
      }),
      await service.call(
        'POST',
        '/workflow-definitions/',
        `
name: yaml
spec: {namespace: tests, activities: [{name: a, simulation: {flops: ${long}}}]}
`,
      ),
    )
    for (const { status, body } of answers)
      expect([status, body.error, body.version.activities[0]?.simulation]).toEqual([
        201,
        undefined,
        { flops: Number(long) },
      ])
    const refused = await send(
      '',
      author('refused', { policy: { maxAttempts: 'LONG' }, metadata: { n: ['LONG'] } }),
    )
    expect([refused.status, paths(refused.body.details).toSorted()]).toEqual([
      422,
      ['spec.activities.0.metadata.n.0', 'spec.activities.0.policy.maxAttempts'],
    ])
    expect((await send('', ['LONG'])).status).toBe(400)
  })

  test('keys in another case and nulls are read, unicode names too', async () => {
    const created = await create({
      Name: 'Größe 東京',
      SPEC: {
        Namespace: 'tests',
        image: null,
        ACTIVITIES: [{ Name: 'é', Simulation: { DurationSeconds: 3 } }],
      },
    })
    expect(created.status).toBe(201)
    expect(created.body).toMatchObject({
      id: 'größe-東京',
      version: { activities: [{ externalId: 'é', simulation: { durationSeconds: 3 } }] },
    })
    const exported = await service.call(
      'GET',
      `/workflow-definitions/${encodeURIComponent('größe-東京')}/export/`,
    )
    expect(exported.headers.get('content-disposition')).toBe(
      `attachment; filename="gr__e-__.yaml"; filename*=UTF-8''gr%C3%B6%C3%9Fe-%E6%9D%B1%E4%BA%AC.yaml`,
    )
    expect(exported.headers.get('content-type')).toMatch(/^application\/yaml/)
  })
})

describe('a definition that is sent back as it was answered', () => {
  const answered = async (name: string): Promise<Definition> => {
    const made = await create(
      workflow(
        name,
        [
          {
            name: 'Fit A',
            run: 'fit',
            image: 'tools:1',
            activityType: 'fit',
            simulation: { durationSeconds: 2 },
          },
          { name: 'b', dependsOn: ['Fit A'], simulation: { durationSeconds: 1 }, metadata: { note: 1 } },
        ],
        {
          dataDependencies: [
            { producerActivity: 'Fit A', consumerActivity: 'b', logicalName: 'x', sizeBytes: 5 },
          ],
        },
      ),
    )
    expect(made.status).toBe(201)
    expect((await service.call('DELETE', `/workflow-definitions/${made.body.id}/`)).status).toBe(204)
    return made.body
  }
  // The tests change documents of every shape.
  type Loose = ReturnType<typeof JSON.parse>

  test('is taken without a warning, also under another name', async () => {
    const sent = await answered('echoed')
    const again = await create(sent)
    expect([again.status, again.body.warnings, again.body.version.definitionHash]).toEqual([
      201,
      [],
      sent.version.definitionHash,
    ])
    const other = await service.call<Definition & Refused>(
      'POST',
      '/workflow-definitions/import/?name=Other',
      sent,
    )
    expect([other.status, other.body.warnings, other.body.version.id]).toEqual([201, [], 'other-v1'])
  })

  test('may leave out ids, intensities and words, or have them blank', async () => {
    const sent: Loose = await answered('sparse')
    for (const type of sent.activityTypes)
      for (const key of ['cpuIntensity', 'memoryIntensity', 'ioIntensity', 'networkIntensity'])
        delete type[key]
    for (const activity of sent.version.activities)
      Object.assign(activity, { workflowVersionId: '', externalId: '', kind: '' })
    Object.assign(sent.version, { workflowId: '', definitionHash: '', status: '' })
    Object.assign(sent.version.dependencies[0], { type: '' })
    const again = await create({ ...sent, id: '', externalId: '', createdAt: '' })
    expect([again.status, again.body.warnings, again.body.id]).toEqual([201, [], 'sparse'])
  })

  test('has limits in an older notation only where they are those of resources', async () => {
    const older = [
      { ...simulated('a'), cpuLimit: 2, memoryLimit: '64M' },
      { ...simulated('b'), cpuLimit: 3 },
    ]
    const made = await create(workflow('older', older))
    const again = await service.call<Definition>(
      'POST',
      '/workflow-definitions/import/?name=again',
      made.body,
    )
    expect([again.status, again.body.warnings]).toEqual([201, []])
    expect(again.body.version.activities[0]?.metadata).toEqual({
      legacy: { cpuLimit: 2, memoryLimit: '64M' },
    })
    const wrong: unknown[] = [
      ...[{ cpuLimit: {} }, { name: 7 }, { cpuLimit: 4 }, { cpuLimit: '2' }, { memoryLimit: [] }],
      ...[{ memoryLimit: '1G' }, { memoryLimit: 'much' }, { run: 'false' }, 'text', 7, null, []],
    ]
    for (const [i, legacy] of wrong.entries()) {
      const sent = structuredClone(made.body) as Loose
      sent.version.activities[0].metadata.legacy = legacy
      const answer = await service.call<Definition & Refused>(
        'POST',
        `/workflow-definitions/import/?name=wrong-${i}`,
        sent,
      )
      expect([legacy, answer.status, answer.body.version.activities[0]]).toEqual([
        legacy,
        201,
        expect.objectContaining({
          name: 'a',
          resources: { cpu: 2, memoryBytes: 64_000_000, storageBytes: 0 },
          command: { entrypoint: '' },
        }),
      ])
      expect(paths(answer.body.warnings)).toEqual(['version.activities.0.metadata.legacy'])
      expect((await service.call('GET', `/workflow-definitions/wrong-${i}/export/`)).status).toBe(200)
    }
  })

  test('is refused where no author could have written it, as its export would be', async () => {
    const sent = await answered('unwritten')
    const wrong: [string, (d: Loose) => unknown][] = [
      ['metadata.runtime', (d) => (d.version.activities[0].metadata = { runtime: 7 })],
      ['metadata.keepDisk', (d) => (d.version.activities[0].metadata = { keepDisk: 'no' })],
      ['metadata.stage', (d) => (d.version.activities[0].metadata = { stage: 'some' })],
      ['metadata.resourceSelector', (d) => (d.version.activities[0].metadata = { resourceSelector: {} })],
      ['activityTypeId', (d) => (d.activityTypes[0].name = 'fit'.padEnd(300, ' .'))],
      ['name', (d) => (d.version.activities[0].name = 'fit\ta')],
    ]
    for (const [member, change] of wrong) {
      const document = structuredClone(sent) as Loose
      change(document)
      const answer = await create(document)
      expect([member, answer.status, paths(answer.body.details)]).toEqual([
        ...[member, 422],
        [`version.activities.0.${member}`],
      ])
    }
  })

  const changes: [string, (d: Loose) => unknown, string][] = [
    ['the version number', (d) => (d.version.version = 3), 'version.version'],
    [
      'the version id',
      (d) => {
        d.version.id = 'altered-v3'
        for (const activity of d.version.activities) delete activity.workflowVersionId
      },
      'version.id',
    ],
    ['the workflow id', (d) => (d.version.workflowId = 'another'), 'version.workflowId'],
    ['the status', (d) => (d.version.status = 'draft'), 'version.status'],
    ['the hash', (d) => (d.version.definitionHash = 'sha256:0'), 'version.definitionHash'],
    ['the external id', (d) => (d.externalId = 'x'), 'externalId'],
    ['a count', (d) => (d.version.activityCount = 9), 'version.activityCount'],
    ['reserved metadata', (d) => (d.version.metadata = { legacy: 1 }), 'version.metadata.legacy'],
    [
      'a dependency of 0 bytes',
      (d) => (d.version.dataDependencies[0].sizeBytes = 0),
      'version.dataDependencies.0',
    ],
    [
      'an activity id',
      (d) => (d.version.activities[0].externalId = d.version.activities[0].name = 'c'),
      'version.activities.0.id',
    ],
    [
      'an activity name',
      (d) => (d.version.activities[0].name = 'Something else'),
      'version.activities.0.name',
    ],
    [
      'an activity type',
      (d) => (d.version.activities[0].activityTypeId = 'montage'),
      'version.activities.0.activityTypeId',
    ],
    [
      'fewer capabilities',
      (d) => (d.version.activities[0].capabilities = ['simulation']),
      'version.activities.0.capabilities',
    ],
    ['a service', (d) => (d.version.activities[0].service = { ports: [80] }), 'version.activities.0.service'],
    ['resources', (d) => (d.version.activities[1].resources.gpu = 1), 'version.activities.1.resources'],
    [
      'a resolved executable',
      (d) => (d.version.activities[0].command.resolvedExecutable = {}),
      'version.activities.0.command.resolvedExecutable',
    ],
    [
      "a type's application",
      (d) => (d.activityTypes[0].application = 'montage'),
      'activityTypes.0.application',
    ],
    ["a type's intensity", (d) => (d.activityTypes[0].cpuIntensity = 0.5), 'activityTypes.0.cpuIntensity'],
    ["a type's id", (d) => (d.activityTypes[0].id = 'other'), 'activityTypes.0'],
  ]
  test.each(changes)('%s that is not kept is a warning', async (what, change, at) => {
    const sent = await answered(`altered`)
    change(sent)
    const again = await create(sent)
    expect([what, again.status, again.body.details]).toEqual([what, 201, undefined])
    expect(again.body.warnings.map((warning: { path: string }) => warning.path)).toContain(at)
    expect((await service.call('DELETE', '/workflow-definitions/altered/')).status).toBe(204)
  })

  const impossible: [string, (d: Loose) => unknown, string][] = [
    [
      'interactive',
      (d) => (d.version.activities[0].capabilities = ['real', 'interactive']),
      'version.activities.0.capabilities.1',
    ],
    [
      'real without an executable',
      (d) =>
        Object.assign(d.version.activities[1], {
          capabilities: ['simulation', 'real'],
          command: { entrypoint: 'x' },
        }),
      'version.activities.1.capabilities.1',
    ],
  ]
  test.each(impossible)(
    'the capability %s that an activity cannot have is 422',
    async (_what, change, at) => {
      const sent = await answered('claimed')
      change(sent)
      const before = await service.counts()
      const refused = await create(sent)
      expect([refused.status, refused.body.details.map(({ path }) => path)]).toEqual([422, [at]])
      expect(await service.counts()).toEqual(before)
    },
  )
})

describe('the export', () => {
  test('is JSON for a client that accepts that rather, and imports to the same content as the YAML', async () => {
    const made = await create(
      workflow('shown', [simulated('a'), simulated('b', ['a'])], { storageSize: '2Gi' }),
    )
    expect(made.status).toBe(201)
    const path = '/workflow-definitions/shown/export/'
    const yaml = await service.call('GET', path)
    for (const accept of [
      'application/json',
      'application/json, application/yaml;q=0.5',
      'application/*;q=0.1, application/json',
    ]) {
      const exported = await service.call('GET', path, undefined, { accept })
      expect([accept, exported.status, exported.headers.get('content-type')]).toEqual([
        accept,
        200,
        'application/json',
      ])
      expect(exported.headers.get('content-disposition')).toMatch(/^attachment; filename="shown\.json"/)
      expect(exported.headers.get('vary')).toContain('Accept')
      expect(exported.headers.get('etag')).not.toBe(yaml.headers.get('etag'))
    }
    for (const accept of ['*/*', 'application/yaml', 'application/json, */*', 'application/problem+json'])
      expect([accept, (await service.call('GET', path, undefined, { accept })).text]).toEqual([
        accept,
        yaml.text,
      ])
    const refused = await service.call('GET', path, undefined, { accept: 'text/html' })
    expect([refused.status, refused.body['error']]).toEqual([
      406,
      'this route answers application/yaml, application/json; the Accept header excludes that',
    ])
    const { body } = await service.call('GET', path, undefined, { accept: 'application/json' })
    for (const document of [body, yaml.text]) {
      expect((await service.call('DELETE', '/workflow-definitions/shown/')).status).toBe(204)
      const again = await service.call<Definition & Refused>('POST', '/workflow-definitions/', document)
      expect([again.status, again.body.version.definitionHash]).toEqual([
        201,
        made.body.version.definitionHash,
      ])
    }
  })
})

describe('duplicate and delete', () => {
  test('a copy has the same content under its own ids', async () => {
    await create(
      workflow('first', [simulated('a'), simulated('b', ['a'])], { storageSize: '2Gi', runtime: 'k8s' }),
    )
    const copy = await service.call<Definition>('POST', '/workflow-definition-actions/duplicate/first/', {
      name: 'Second',
    })
    expect(copy.status).toBe(201)
    expect(copy.body).toMatchObject({
      id: 'second',
      name: 'Second',
      namespace: 'tests',
      version: {
        metadata: { legacy: { runtime: 'k8s' } },
        activities: [{ id: 'second-a' }, { id: 'second-b' }],
      },
    })
    const moved = await service.call<Definition>('POST', '/workflow-definition-actions/duplicate/first/', {
      name: 'third',
      namespace: 'elsewhere',
    })
    expect(moved.body.namespace).toBe('elsewhere')
    for (const body of [{ name: 'first' }, { name: ' ' }, { name: '!!' }, {}]) {
      const refused = await service.call<Refused>(
        'POST',
        '/workflow-definition-actions/duplicate/first/',
        body,
      )
      expect([refused.status, paths(refused.body.details)]).toEqual([422, ['name']])
    }
    expect(service.audits.map(({ eventType }) => eventType)).toEqual(
      expect.arrayContaining(['workflow.created', 'workflow.duplicated']),
    )
  })

  test('a workflow that a plan uses stays', async () => {
    await create(workflow('kept', [simulated('a')]))
    await service.db.run(sql`insert into execution_scopes (id, name) values ('scope-of-kept', 's')`)
    await service.db.run(
      sql`insert into schedule_plans (id, workflow_version_id, content_version_id, execution_scope_id, source,
        assignment_count) values ('p', 'kept-v1', 'kept-v1', 'scope-of-kept', 'manual', 0)`,
    )
    const before = await service.counts()
    const refused = await service.call<Refused>('DELETE', '/workflow-definitions/kept/')
    expect([refused.status, refused.body.error]).toEqual([422, expect.stringContaining('used by a plan')])
    expect(await service.counts()).toEqual(before)
    await service.db.run(sql`delete from schedule_plans`)
    expect((await service.call('DELETE', '/workflow-definitions/kept/')).status).toBe(204)
    expect(await workflowCounts()).toEqual([0, 0, 0, 0, 0, 0])
  })
})

describe('bad input', () => {
  test('data dependencies that are too large together are refused', async () => {
    const sizes = Array.from({ length: 1_000 }, (_, i) => ({ logicalName: `f${i}`, sizeBytes: 2 ** 53 - 1 }))
    const activities = ['a', 'b'].map((name) => ({
      ...{ name, cpuLimit: '1', memoryLimit: '1Ki', simulation: { durationSeconds: 1 } },
      dependsOn: name === 'b' ? ['a'] : [],
    }))
    const spec = (count: number) => ({
      namespace: 'n',
      activities,
      dataDependencies: sizes
        .slice(0, count)
        .map((size) => ({ producerActivity: 'a', consumerActivity: 'b', ...size })),
    })
    expect(
      await service.call('POST', '/workflow-definitions/', { name: 'vast', spec: spec(1_000) }),
    ).toMatchObject({
      status: 422,
      body: { details: [{ path: 'spec.dataDependencies', message: expect.stringMatching(/^have 9007/) }] },
    })
    expect(
      (await service.call('POST', '/workflow-definitions/', { name: 'vast', spec: spec(999) })).status,
    ).toBe(201)
  })

  test('one document with one violation of each kind gets all of them, and nothing is stored', async () => {
    const executable = (source: object, delivery?: object) => ({
      name: `e-${JSON.stringify(source).length}`,
      command: { entrypoint: 'x', executable: { source, ...(delivery === undefined ? {} : { delivery }) } },
    })
    const before = await service.counts()
    const { status, body } = await create({
      name: '???',
      surprise: 1,
      spec: {
        storageSize: 7,
        metadata: { legacy: {} },
        activities: [
          { name: 'twin', simulation: {} },
          { name: 'twin', simulation: {}, dependsOn: ['ghost', 'phantom'] },
          { name: 'TWIN', simulation: {} },
          { simulation: {} },
          { name: '***', simulation: {} },
          { name: 'bare' },
          { name: 'a', simulation: {}, dependsOn: ['b'] },
          { name: 'b', simulation: {}, dependsOn: ['a'] },
          { name: 'self', simulation: {}, dependsOn: ['self'] },
          {
            name: 'q',
            simulation: { durationSeconds: -1, flops: 'many' },
            cpuLimit: '0',
            memoryLimit: '1.5Gi',
            expectedOutputs: ['/etc/passwd', 'a/../b'],
            policy: { maxAttempts: -1 },
            stage: 'some',
            metadata: { runtime: 'x' },
          },
          {
            name: 'c',
            simulation: {},
            cpuLimit: 'lots',
            memoryLimit: '99999999999999Gi',
            activityType: '++',
            command: { environment: { 'A=B': 'c' } },
          },
          executable({ type: 'magic' }),
          executable({ type: 'oci' }, { strategy: 'pigeon' }),
          executable({ type: 'remote-file', path: '/x' }),
          { name: 'long'.repeat(300), simulation: {} },
        ],
        dataDependencies: [
          { producerActivity: 'nobody', consumerActivity: 'a', logicalName: ' ', sizeBytes: 0 },
          { producerActivity: 'a', consumerActivity: 'a', logicalName: 'f', sizeBytes: 1 },
          { producerActivity: 'a', consumerActivity: 'b', logicalName: 'f', sizeBytes: 1 },
          { producerActivity: 'a', consumerActivity: 'b', logicalName: 'f', sizeBytes: 2 },
          { producerActivity: 'a', consumerActivity: 'b', logicalName: 'g', sizeBytes: 1.5 },
        ],
      },
    })
    expect([status, body.code]).toEqual([400, 'invalid'])
    const found = new Map(body.details.map(({ path, message }) => [path, message]))
    const expected: [string, RegExp][] = [
      ['name', /letter or digit/],
      ['surprise', /not a known key/],
      ['spec.namespace', /required/],
      ['spec.storageSize', /must be a string/],
      ['spec.metadata.legacy', /reserved/],
      ['spec.activities.1.name', /"twin" is already that of spec\.activities\.0\.name/],
      ['spec.activities.1.dependsOn.0', /"ghost"/],
      ['spec.activities.1.dependsOn.1', /"phantom"/],
      ['spec.activities.2.name', /identifier "twin"/],
      ['spec.activities.3.name', /required/],
      ['spec.activities.4.name', /letter or digit/],
      ['spec.activities.5.command.entrypoint', /without simulation/],
      ['spec.activities.5.image', /executable/],
      ['spec.activities', /cycle: a -> b -> a/],
      ['spec.activities.9.simulation.durationSeconds', /./],
      ['spec.activities.9.simulation.flops', /must be a number/],
      ['spec.activities.9.cpuLimit', /between 1m/],
      ['spec.activities.9.memoryLimit', /whole number/],
      ['spec.activities.9.expectedOutputs.0', /work directory/],
      ['spec.activities.9.expectedOutputs.1', /work directory/],
      ['spec.activities.9.policy.maxAttempts', /./],
      ['spec.activities.9.stage', /./],
      ['spec.activities.9.metadata.runtime', /beside metadata/],
      ['spec.activities.10.cpuLimit', /cores/],
      ['spec.activities.10.memoryLimit', /2\^53/],
      ['spec.activities.10.activityType', /letter or digit/],
      ['spec.activities.10.command.environment.A=B', /without "="/],
      ['spec.activities.11.command.executable.source.type', /one of catalog/],
      ['spec.activities.12.command.executable.source.reference', /required/],
      ['spec.activities.12.command.executable.delivery.strategy', /one of auto/],
      ['spec.activities.13.command.executable.source', /environmentRef or resourceRef/],
      ['spec.activities.14.name', /255/],
      ['spec.dataDependencies.0.producerActivity', /"nobody"/],
      ['spec.dataDependencies.0.logicalName', /blank/],
      ['spec.dataDependencies.0.sizeBytes', /./],
      ['spec.dataDependencies.1', /same activity/],
      ['spec.dataDependencies.3', /already that of spec\.dataDependencies\.2/],
      ['spec.dataDependencies.4.sizeBytes', /whole number/],
    ]
    expect([...found.keys()].sort()).toEqual(expected.map(([path]) => path).sort())
    for (const [path, message] of expected) expect(`${path}: ${found.get(path) ?? ''}`).toMatch(message)
    expect(await service.counts()).toEqual(before)
  })

  test('a member of wrong form is told once: nothing is said to be missing because of it', async () => {
    const answer = await create(
      workflow(
        'x',
        [
          { name: 5, run: 'x' },
          { name: 'y'.repeat(300), run: ['x'], image: 'i', dependsOn: ['5', 7, {}] },
          {
            name: 'z',
            simulation: { durationSeconds: 'long' },
            dependsOn: ['y'.repeat(300)],
            command: { arguments: 'a b', entrypoint: true },
          },
        ],
        { image: 7 },
      ),
    )
    expect([answer.status, paths(answer.body.details).sort()]).toEqual([
      400,
      [
        'spec.activities.0.name',
        'spec.activities.1.dependsOn.1',
        'spec.activities.1.dependsOn.2',
        'spec.activities.1.name',
        'spec.activities.1.run',
        'spec.activities.2.command.arguments',
        'spec.activities.2.command.entrypoint',
        'spec.activities.2.simulation.durationSeconds',
        'spec.image',
      ],
    ])
  })

  test('what no site can run is refused, in either form of the document', async () => {
    const activity = (more: object) => ({ name: 'a', image: 'i', run: 'true', ...more })
    const cases: [object, string, RegExp][] = [
      [{ policy: { timeoutSeconds: 1e10 } }, 'policy.timeoutSeconds', /at most 1000000000 \(got 1/],
      [{ policy: { timeoutSeconds: 1e-9 } }, 'policy.timeoutSeconds', /0, or 0\.01/],
      [{ policy: { retryDelaySeconds: 1e300 } }, 'policy.retryDelaySeconds', /at most 1000000000/],
      [
        { run: '', command: { entrypoint: 'x', workingDirectory: '/data' } },
        'command.workingDirectory',
        /"\/data"/,
      ],
      [
        { run: '', command: { entrypoint: 'x', workingDirectory: 'a/../..' } },
        'command.workingDirectory',
        /below/,
      ],
      ...['.', './', './.', '/', '', '..', 'a/../b', '/etc/passwd'].map(
        (output): [object, string, RegExp] => [
          { expectedOutputs: ['fine', output] },
          'expectedOutputs.1',
          /work directory/,
        ],
      ),
      [{ simulation: { durationSeconds: 1e100 } }, 'simulation.durationSeconds', /at most/],
      [{ simulation: { flops: 1e40 } }, 'simulation.flops', /at most/],
      [{ priority: -1e300 }, 'priority', /at least/],
    ]
    for (const [more, path, message] of cases) {
      const answer = await create(workflow('unrunnable', [activity(more)]))
      expect([more, answer.status, paths(answer.body.details)]).toEqual([
        more,
        422,
        [`spec.activities.0.${path}`],
      ])
      expect(answer.body.details[0]!.message).toMatch(message)
    }
    const embedded = await create({
      ...{ name: 'x', namespace: 'n' },
      version: {
        id: 'x-v1',
        activities: [
          {
            id: 'a',
            capabilities: ['real'],
            command: { entrypoint: 'x', workingDirectory: '/data', image: 'i' },
            metadata: { expectedOutputs: ['.', 5] },
            resources: { cpu: 0, memoryBytes: 0, storageBytes: 0 },
          },
        ],
      },
    })
    expect([embedded.status, paths(embedded.body.details).sort()]).toEqual([
      422,
      [
        'version.activities.0.command.workingDirectory',
        'version.activities.0.metadata.expectedOutputs.0',
        'version.activities.0.metadata.expectedOutputs.1',
      ],
    ])
  })

  proved('a document of 130,000 equal names is 422', async () => {
    const answer = await create(
      workflow(
        'equal',
        Array.from({ length: 130_000 }, () => ({ name: 'a', simulation: {} })),
      ),
    )
    expect([answer.status, answer.body.details.length]).toEqual([422, expect.any(Number)])
    expect(answer.body.details[0]!.message).toMatch(/already that of/)
  })

  test.each<[string, unknown, number, RegExp]>([
    ['an array', [], 400, /an object/],
    ['no spec', { name: 'x' }, 422, /spec: is required/],
    ['no activities', workflow('x', []), 422, /at least one activity/],
    ['a cycle of one', workflow('x', [simulated('a', ['a'])]), 422, /a -> a/],
    ['a null name', workflow(null as unknown as string, [simulated('a')]), 422, /name: must not be null/],
    [
      'an image of 4,097 characters for all activities',
      workflow('x', [simulated('a')], { image: 'i'.repeat(4_097) }),
      ...([422, /spec\.image: must be at most/] as const),
    ],
    ['a name of 1,000 characters', workflow('x'.repeat(1_000), [simulated('a')]), 422, /name/],
    ['NUL', workflow('x\0y', [simulated('a')]), 422, /NUL/],
    [
      'an infinite duration',
      '{"name": "x", "spec": {"namespace": "n", "activities": [{"name": "a", "simulation": ' +
        '{"durationSeconds": 1e999}}]}}',
      422,
      /finite/,
    ],
    ['an unknown WfFormat version', { name: 'x', schemaVersion: '1.3', workflow: {} }, 422, /schemaVersion/],
    ['a Pegasus workflow', { pegasus: '5.0', name: 'm', jobs: [] }, 422, /pegasus.*Pegasus.*authoring form/],
    [
      'CWL',
      { cwlVersion: 'v1.2', class: 'Workflow', inputs: [], steps: [] },
      422,
      /cwlVersion: .*CWL.*authoring form/,
    ],
    ['packed CWL', { $graph: [{ class: 'Workflow', id: 'main' }] }, 422, /graph: .*CWL/],
    [
      'a tool of CWL without its version',
      { class: 'CommandLineTool', baseCommand: 'cat' },
      422,
      /class: .*CWL/,
    ],
    [
      'Argo',
      {
        apiVersion: 'argoproj.io/v1alpha1',
        kind: 'Workflow',
        metadata: { name: 'x' },
        spec: { entrypoint: 'x' },
      },
      422,
      /apiVersion: .*Argo.*WfFormat/,
    ],
    ['a manifest', { apiVersion: 'batch/v1', kind: 'Job', spec: {} }, 422, /apiVersion: .*Kubernetes/],
    ['a workflow of Galaxy', { a_galaxy_workflow: 'true', steps: {} }, 422, /Galaxy/],
    ['a state machine', { StartAt: 'a', States: {} }, 422, /Amazon/],
    [
      'a service',
      { name: 'x', namespace: 'n', version: { id: 'x-v1', activities: [{ id: 'a', kind: 'service' }] } },
      503,
      /not_built.*kind service|kind service.*not_built/,
    ],
  ])('%s', async (_, document, status, text) => {
    const before = await service.counts()
    const answer = await create(document)
    expect([answer.status, JSON.stringify(answer.body)]).toEqual([status, expect.stringMatching(text)])
    expect(await service.counts()).toEqual(before)
  })

  const snakefile =
    'rule all:\n    input:\n        "a.txt",\n        "b.txt"\n\nrule one:\n    output: "a.txt"\n'
  test.each([
    ['a Snakefile', snakefile, /a Snakefile.*authoring form/],
    ['a Snakefile that is YAML too', 'rule all:\n    input: "a.txt"\n', /a Snakefile/],
    ['Nextflow', '#!/usr/bin/env nextflow\nprocess one {\n  script:\n  "true"\n}\n', /Nextflow.*WfFormat/],
    ['the workflow of Nextflow', 'workflow {\n  one | view\n}\n', /Nextflow/],
    ['WDL', 'version 1.0\n\nworkflow one {\n  call two\n}\n', /WDL/],
    ['a program', 'from airflow import DAG\n\nwith DAG("x"):\n    pass\n', /Python/],
    ['other text', 'Dear service, please run this', /^((?!which is not read here).)*$/],
  ])('%s is refused by the name of its language', async (_, text, words) => {
    for (const type of ['application/yaml', 'application/json']) {
      const headers = { 'content-type': type }
      const answer = await service.request('/api/workflow-definitions/', {
        method: 'POST',
        headers,
        body: text,
      })
      expect([400, 422]).toContain(answer.status)
      expect(JSON.stringify(answer.body)).toMatch(words)
    }
  })

  test('a taken name is told together with everything else', async () => {
    await create(workflow('taken', [simulated('a')]))
    const answer = await create(workflow('Taken', [simulated('a', ['b'])]))
    expect([answer.status, paths(answer.body.details)]).toEqual([
      422,
      ['spec.activities.0.dependsOn.0', 'name'],
    ])
  })

  test('a WfFormat document with several errors gets all of them', async () => {
    const task = (id: string, more: object = {}) => ({ id, name: id, ...more })
    const answer = await create({
      name: 'trace',
      schemaVersion: '1.5',
      workflow: {
        specification: {
          tasks: [
            task('a', { children: ['zz'] }),
            task('a'),
            task('A_1'),
            task('a-1', { parents: ['yy'] }),
            task('c', { parents: ['d'] }),
            task('d', { parents: ['c'] }),
          ],
          files: [{ id: 'f', sizeInBytes: 1 }],
        },
        execution: {
          tasks: [
            { id: 'c', runtimeInSeconds: 1 },
            { id: 'c', runtimeInSeconds: 1 },
          ],
        },
      },
    })
    expect([answer.status, paths(answer.body.details).sort()]).toEqual([
      422,
      [
        'workflow.execution.tasks.1.id',
        'workflow.specification.tasks',
        'workflow.specification.tasks.0.children.0',
        'workflow.specification.tasks.1.id',
        'workflow.specification.tasks.3.parents.0',
      ],
    ])
  })

  test('of 64 equal creates at once one is stored', async () => {
    const answers = await Promise.all(
      Array.from({ length: 64 }, () => create(workflow('race', [simulated('a'), simulated('b', ['a'])]))),
    )
    expect(answers.map(({ status }) => status).sort()).toEqual([
      201,
      ...Array.from({ length: 63 }, () => 422),
    ])
    expect(
      answers.filter(({ status }) => status === 422).every(({ body }) => body.details[0]?.path === 'name'),
    ).toBe(true)
    expect(await workflowCounts()).toEqual([1, 1, 1, 2, 1, 0])
  })
})

proved('items of the list carry arrays of up to 32 Mi characters in all', async () => {
  const run = '#'.repeat(1_048_576)
  for (let i = 0; i < 33; i++)
    await create(workflow(`long-${String(i).padStart(2, '0')}`, [{ name: 'a', run, image: 'i' }]))
  const { body } = await service.call<Definition[]>('GET', '/workflow-definitions/')
  expect(body.map(({ version }) => Object.hasOwn(version, 'activities'))).toEqual([
    ...Array.from({ length: 31 }, () => true),
    ...[false, false],
  ])
  expect(body[32]?.version.activityCount).toBe(1)
})

describe('names that become the same', () => {
  test.each([
    ['sample.1', 'sample_1', 'sample-1'],
    ['a b', 'a-b', 'a-b'],
    ['count+', 'count-', 'count'],
    ['की', 'कि', 'क'],
    ['Fit', 'fit', 'fit'],
    [' x', 'x ', 'x'],
  ])('the activities %j and %j are refused with both names and the identifier %j', async (one, other, id) => {
    const answer = await create(workflow('w', [simulated(one), simulated(other)]))
    expect([answer.status, paths(answer.body.details)]).toEqual([422, ['spec.activities.1.name']])
    for (const text of [one, other, id])
      expect(answer.body.details[0]?.message).toContain(JSON.stringify(text))
  })

  const trace = (ids: readonly string[], more: object = {}, execution: object[] = []) => ({
    name: 'trace',
    schemaVersion: '1.5',
    workflow: {
      specification: { tasks: ids.map((id) => ({ id, name: id })), files: [], ...more },
      execution: { tasks: execution },
    },
  })

  test('the name and namespace of the query stand for those of the document, in every form of it', async () => {
    const made = await create(workflow('source', [simulated('a')]))
    const { name: _, namespace: __, ...definition } = made.body
    const trace = { schemaVersion: '1.5', workflow: { specification: { tasks: [{ id: 'a' }] } } }
    const { name: ___, ...authored } = workflow('x', [simulated('a')])
    let count = 0
    for (const form of [authored, trace, definition])
      for (const names of [{}, { name: '' }, { Name: 7 }, { NAME: 'x'.repeat(300) }, { name: 'fine' }]) {
        const name = `named-${count++}`
        const answer = await service.call<Definition>(
          'POST',
          `/workflow-definitions/import/?name=${name}&namespace=there`,
          { ...form, ...names },
        )
        expect([names, answer.status, answer.body.name, answer.body.namespace]).toEqual([
          names,
          201,
          name,
          'there',
        ])
      }
    const refused = await service.call<Refused>('POST', '/workflow-definitions/import/?namespace=there', {
      ...definition,
      NameSpace: 7,
    })
    expect([refused.status, paths(refused.body.details)]).toEqual([422, ['name']])
  })

  /** A chain of tasks that all read and write the same files. */
  const inPlace = (count: number, ids = ['db'], sizeInBytes = 10): WfFormatDocument => ({
    name: 'in place',
    schemaVersion: '1.5',
    workflow: {
      specification: {
        tasks: Array.from({ length: count }, (_, i) => ({
          id: `t${i}`,
          ...{ inputFiles: ids, outputFiles: ids, parents: i === 0 ? [] : [`t${i - 1}`] },
        })),
        files: ids.map((id) => ({ id, sizeInBytes })),
      },
    },
  })

  test('a file comes from each parent that writes it, and warnings name up to 100 other tasks', async () => {
    const { status, body } = await create(inPlace(3))
    expect([status, body.version.dataDependencies]).toEqual([
      201,
      [0, 1].map((i) => ({
        ...{ producerActivityId: `in-place-t${i}`, consumerActivityId: `in-place-t${i + 1}` },
        ...{ logicalName: 'db', sizeBytes: 10 },
      })),
    ])
    expect(
      body.warnings.map(({ path, message }) => [/\d/.exec(path)?.[0], /from "(\w+)"/.exec(message)?.[1]]),
    ).toEqual([
      ['0', 't1'],
      ['0', 't2'],
      ['1', 't2'],
      ['2', 't0'],
    ])
    const { warnings } = readWfFormat(inPlace(20), {})
    expect([warnings.length, warnings.at(-1)?.message]).toEqual([
      101,
      `${20 * 19 - 19 - 100} more files are shared without an edge`,
    ])
  })

  test('the time of an import does not grow with the square of the tasks that share files', async () => {
    const files = Array.from({ length: 50 }, (_, i) => `f${i}`)
    expect(await growth((count) => readWfFormat(inPlace(count, files, 0), {}), 300)).toBeLessThan(1.5)
  })

  proved('files that each of many tasks takes from each of many others are 422', async () => {
    const each = (name: string, make: (i: number) => object = () => ({})): { id: string }[] =>
      Array.from({ length: 130 }, (_, i) => ({ id: `${name}${i}`, ...make(i) }))
    const files = each('f')
    const ids = (items: { id: string }[]): string[] => items.map(({ id }) => id)
    const writers = each('w', () => ({ outputFiles: ids(files) }))
    const readers = each('r', () => ({ inputFiles: ids(files), parents: ids(writers) }))
    const specification = {
      tasks: [...writers, ...readers],
      files: files.map(({ id }) => ({ id, sizeInBytes: 1 })),
    }
    const refused = await create({ name: 'many', schemaVersion: '1.5', workflow: { specification } })
    expect([refused.status, paths(refused.body.details)]).toEqual([422, ['workflow.specification.tasks']])
  })

  test('what is imported from a WfFormat document can be exported and duplicated', async () => {
    const ids = ['a', 'b', `c${'-'.repeat(1_100_000)}`, 'd', 'e', 'f']
    const program = (id: string, command: object) => ({ id, command })
    const deep = JSON.parse(`${'['.repeat(60)}${']'.repeat(60)}`) as unknown
    const made = await create({
      name: 'large',
      description: '\u{1f600}'.repeat(600_000),
      schemaVersion: '1.5',
      workflow: {
        specification: {
          tasks: ids.map((id, i) => ({
            id,
            name: ['tab\tbed', 'line\nend', `${' '.repeat(300)}late`][i] ?? id,
          })),
        },
        execution: {
          tasks: [
            program('a', { arguments: Array.from({ length: 20_000 }, () => 'x') }),
            program('b', { arguments: ['y'.repeat(1_100_000)] }),
            program('d', { program: 'bell\u0007', deep }),
            program('e', { program: '\u0007' }),
            program('f', { program: 'fit', arguments: ['z'] }),
          ],
        },
      },
    })
    expect([made.status, paths(made.body.warnings)]).toEqual([
      201,
      expect.arrayContaining([
        'description',
        ...[0, 1, 2, 3].map((i) => `workflow.specification.tasks.${i}.id`),
      ]),
    ])
    expect(made.body.activityTypes.map(({ name }) => name)).toEqual(
      expect.arrayContaining(['tab bed', 'line end', 'late', 'bell', 'fit']),
    )
    expect(made.body.version.activities.at(-1)?.metadata).toEqual({
      taskId: 'f',
      command: { program: 'fit', arguments: ['z'] },
    })
    const exported = await service.call('GET', '/workflow-definitions/large/export/')
    expect(exported.status).toBe(200)
    const copy = await service.call('POST', '/workflow-definition-actions/duplicate/large/', { name: 'copy' })
    expect(copy.status).toBe(201)
    expect((await service.call('DELETE', '/workflow-definitions/large/')).status).toBe(204)
    const again = await service.call<Definition>('POST', '/workflow-definitions/', exported.text)
    expect([again.status, again.body.version.definitionHash]).toEqual([201, made.body.version.definitionHash])
  })

  test('tasks of a WfFormat document are told apart, with a warning, and keep their ids as metadata', async () => {
    const ids = [
      ...['count+', 'count-', 'sample.1', 'sample_1', 'की', 'कि', 'a b', 'a-b', 'a.b', 'a b-2', '++', '--'],
      ...['task', 'Task'],
    ]
    const document = trace(ids)
    const { status, body } = await create(document)
    expect(status).toBe(201)
    const { activities } = body.version
    expect(activities.map(({ externalId }) => externalId)).toEqual([
      ...['count', 'count-2', 'sample-1', 'sample-1-2', 'क', 'क-2', 'a-b-3', 'a-b', 'a-b-4', 'a-b-2'],
      ...['task-2', 'task-3', 'task', 'task-4'],
    ])
    expect(activities.map(({ metadata }) => metadata?.['taskId'])).toEqual(ids)
    const told = body.warnings.filter(({ path }) => path.endsWith('.id'))
    expect(told.map(({ path }) => path)).toEqual(
      [1, 3, 5, 6, 8, 10, 11, 13].map((i) => `workflow.specification.tasks.${String(i)}.id`),
    )
    expect(told[0]?.message).toMatch(/"count-" becomes "count-2", as another task is "count"/)
  })

  test('thousands of tasks of one name are told apart at once, and the warnings are bounded', async () => {
    const ids = Array.from(
      { length: 20_000 },
      (_, i) => `${'+'.repeat(1 + (i % 100))}x${'+'.repeat(i / 100)}`,
    )
    const { status, body } = await create(trace(ids))
    expect([status, body.version.activityCount]).toEqual([201, ids.length])
    const told = body.warnings.filter(({ path }) => path.startsWith('workflow.specification.tasks'))
    expect([told.length, told.at(-1)?.message]).toEqual([101, 'and 19899 more like it'])
  })

  test('edges and data of tasks that were told apart stay theirs', async () => {
    const { status, body } = await create({
      name: 'trace',
      schemaVersion: '1.5',
      workflow: {
        specification: {
          tasks: [
            { id: 's.1', name: 's', outputFiles: ['f.1'] },
            { id: 's_1', name: 's', outputFiles: ['f_1'] },
            { id: 'end', name: 'e', parents: ['s.1', 's_1'], inputFiles: ['f.1', 'f_1'] },
          ],
          files: [
            { id: 'f.1', sizeInBytes: 1 },
            { id: 'f_1', sizeInBytes: 2 },
          ],
        },
      },
    })
    expect(status).toBe(201)
    expect(body.version.dataDependencies).toEqual([
      ...[
        {
          producerActivityId: 'trace-s-1',
          consumerActivityId: 'trace-end',
          logicalName: 'f.1',
          sizeBytes: 1,
        },
        {
          ...{ producerActivityId: 'trace-s-1-2', consumerActivityId: 'trace-end' },
          ...{ logicalName: 'f_1', sizeBytes: 2 },
        },
      ],
    ])
  })

  test('findings about a WfFormat document name its own members', async () => {
    const ids = ['a', 'b', 'c', 'd', 'e']
    const answer = await create(
      trace(ids, {}, [
        { id: 'c', memoryInBytes: 1e22 },
        { id: 'a', coreCount: 1e9 },
        { id: 'b', coreCount: 1e-7, command: { program: '++' } },
      ]),
    )
    expect([answer.status, paths(answer.body.details)]).toEqual([
      422,
      [
        'workflow.execution.tasks.0.memoryInBytes',
        'workflow.execution.tasks.1.coreCount',
        'workflow.execution.tasks.2.coreCount',
      ],
    ])
    const long = 'x'.repeat(1_501)
    const files = await create({
      name: 'trace',
      schemaVersion: '1.5',
      workflow: {
        specification: {
          tasks: [
            { id: 'a', name: 'a', outputFiles: ['short', long] },
            { id: 'b', name: 'b', parents: ['a'], inputFiles: ['short', long] },
          ],
          files: [
            { id: 'short', sizeInBytes: 1 },
            { id: long, sizeInBytes: 1 },
          ],
        },
      },
    })
    expect([files.status, paths(files.body.details)]).toEqual([422, ['workflow.specification.files.1.id']])
  })

  test('measurements of no task and files of two sizes are warnings', async () => {
    const { status, body } = await create(
      trace(
        ['a'],
        {
          files: [
            { id: 'f', sizeInBytes: 1 },
            { id: 'g', sizeInBytes: 5 },
            { id: 'f', sizeInBytes: 2 },
            { id: 'g', sizeInBytes: 5 },
          ],
        },
        [{ id: 'ghost', runtimeInSeconds: 9 }, { id: 'a' }],
      ),
    )
    expect(status).toBe(201)
    expect(body.warnings.map(({ path, message }) => `${path}: ${message}`)).toEqual([
      'workflow.specification.files.2.sizeInBytes: "f" had 1 bytes before and has 2 here; the last size counts',
      'workflow.execution.tasks.0.id: "ghost" names no task of the specification; its measurements are not used',
    ])
  })

  test.each([
    ['x.1', 'x_1', 'INPUT_X_1'],
    ['A.txt', 'a.TXT', 'INPUT_A_TXT'],
    ['dir/f', 'dir f', 'INPUT_DIR_F'],
  ])(
    'the inputs %j and %j of a program are refused with both names and the variable %s',
    async (one, other, name) => {
      const document = (more: object) =>
        workflow(
          'w',
          [{ ...simulated('a') }, { ...simulated('c') }, { ...simulated('b', ['a', 'c']), ...more }],
          {
            dataDependencies: [
              { producerActivity: 'a', consumerActivity: 'b', logicalName: one, sizeBytes: 1 },
              { producerActivity: 'c', consumerActivity: 'b', logicalName: one, sizeBytes: 1 },
              { producerActivity: 'a', consumerActivity: 'b', logicalName: other, sizeBytes: 1 },
              { producerActivity: 'a', consumerActivity: 'c', logicalName: other, sizeBytes: 1 },
            ],
          },
        )
      const refused = await create(document({ run: 'x', image: 'i' }))
      expect([refused.status, paths(refused.body.details)]).toEqual([
        422,
        ['spec.dataDependencies.2.logicalName'],
      ])
      for (const text of [JSON.stringify(one), JSON.stringify(other), name])
        expect(refused.body.details[0]?.message).toContain(text)
      // Where nothing runs for real there is no variable.
      const { status, body } = await create(document({}))
      expect(status).toBe(201)
      const version = structuredClone(body.version)
      const consumer = version.activities[2]
      if (consumer === undefined) throw new Error('the document has three activities')
      Object.assign(consumer, { capabilities: ['real'], command: { entrypoint: 'x' } })
      await expect(service.db.transaction((tx) => embedWorkflow(tx, version))).rejects.toMatchObject({
        details: [{ message: expect.stringContaining(name) }],
      })
    },
  )

  test('inputs that differ in characters beyond ASCII have variables of their own, which warnings name', async () => {
    const names = ['Вход.csv', 'Выход.csv', '数据', '結果', '.csv']
    const { status, body } = await create(
      workflow('w', [simulated('a'), { ...simulated('b', ['a']), run: 'x', image: 'i' }], {
        dataDependencies: names.map((logicalName) => ({
          ...{ producerActivity: 'a', consumerActivity: 'b' },
          ...{ logicalName, sizeBytes: 1 },
        })),
      }),
    )
    expect(status).toBe(201)
    expect(body.warnings.map(({ path, message }) => [path, /variable (\S+) of/.exec(message)?.[1]])).toEqual(
      ['INPUT__CSV_5525AC29', 'INPUT__CSV_FFD33C20', 'INPUT___5440F742', 'INPUT___E3BF3A62'].map(
        (variable, i) => [`spec.dataDependencies.${String(i)}.logicalName`, variable],
      ),
    )
  })

  test('no two names have one variable, unless they differ in ASCII alone; a name alone has the plain one', () => {
    const name = fc
      .string({ unit: 'binary', minLength: 1, maxLength: 3 })
      .filter((text) => /[^\0-\x7f]/.test(text))
    fc.assert(
      fc.property(fc.uniqueArray(name, { maxLength: 8 }), (names) => {
        const variables = inputVariables([...names, 'data.bin'])
        expect(new Set(variables.values()).size).toBe(names.length + 1)
        expect(variables.get('data.bin')).toBe('INPUT_DATA_BIN')
        for (const one of names) expect(inputVariables([one]).get(one)).toMatch(/^INPUT_[A-Z0-9_]*$/)
      }),
      { seed },
    )
  })

  test('types that become one are a warning, once for each name', async () => {
    const typed = (name: string, activityType: string) => ({ ...simulated(name), activityType })
    const { body } = await create(
      workflow('w', [typed('a', 'count+'), typed('b', 'count-'), typed('c', 'count-'), typed('d', 'count+')]),
    )
    expect(body.warnings).toEqual([
      {
        path: 'spec.activities.1.activityType',
        message: expect.stringMatching(/"count-" and "count\+" become one/),
      },
    ])
  })
})

describe('commands', () => {
  const real = (fields: object) => ({ name: 'a', image: 'i', ...fields })
  const argumentsOf = (body: Definition) => body.version.activities[0]?.command?.arguments

  test.each([
    ['echo a\r\necho b\r\n', 'echo a\necho b\n'],
    ['echo a\r', 'echo a'],
    ['\uFEFFecho a', 'echo a'],
    ['cat <<X\r\n1\r\nX\r\n', 'cat <<X\n1\nX\n'],
  ])('the line ends of %j become those of sh, with a warning', async (run, script) => {
    const { status, body } = await create(workflow('w', [real({ run })]))
    expect([status, argumentsOf(body), paths(body.warnings)]).toEqual([
      201,
      ['-c', script],
      ['spec.activities.0.run'],
    ])
    expect((await create(workflow('x', [real({ run: script })]))).body.warnings).toEqual([])
  })

  test('line ends of Windows in an argument stay, with a warning, and are exported as they are', async () => {
    const args = ['-c', 'a\r\nb']
    const { body } = await create(workflow('w', [real({ command: { entrypoint: 'sh', arguments: args } })]))
    expect([argumentsOf(body), paths(body.warnings)]).toEqual([
      args,
      ['spec.activities.0.command.arguments.1'],
    ])
    const { text } = await service.call('GET', '/workflow-definitions/w/export/')
    const again = await service.call<Definition>('POST', '/workflow-definitions/import/?name=x', text, {
      'content-type': 'application/yaml',
    })
    expect([again.status, argumentsOf(again.body)]).toEqual([201, args])
  })

  test.each([
    [
      'an argument',
      { command: { entrypoint: 'x', arguments: ['a', 'y'.repeat(131_072)] } },
      'command.arguments.1',
    ],
    [
      'a variable',
      { run: 'x', command: { environment: { A: 'é'.repeat(65_535) } } },
      'command.environment.A',
    ],
    ['a program', { command: { entrypoint: `/${'x'.repeat(4_095)}` } }, 'command.entrypoint'],
    ['a script', { run: '東'.repeat(600_000) }, 'run'],
    [
      'all together',
      { command: { entrypoint: 'x', arguments: Array.from({ length: 16 }, () => 'y'.repeat(100_000)) } },
      'command',
    ],
  ])('%s that no site could start is refused', async (_, fields, path) => {
    const { status, body } = await create(workflow('w', [real(fields)]))
    expect([status, paths(body.details)]).toEqual([422, [`spec.activities.0.${path}`]])
    expect(body.details[0]?.message).toMatch(/\d+ bytes/)
  })

  test('what is just short enough is kept, and a long script as it was written', async () => {
    const run = `: ${'é'.repeat(100_000)}`
    const { status, body } = await create(
      workflow('w', [
        real({ run }),
        { ...real({ command: { entrypoint: 'x', arguments: ['y'.repeat(131_071)] } }), name: 'b' },
        { ...real({ run: 'x'.repeat(1_048_576) }), name: 'c' },
      ]),
    )
    expect([status, argumentsOf(body)]).toEqual([201, ['-c', run]])
    expect((await service.call('GET', '/workflow-definitions/w/export/')).text).toContain(run.slice(0, 60))
  })

  test('a long script is started in parts, which together are the script', () => {
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom('x', 'é', '東', '😀'), { maxLength: 4 }),
        fc.nat(90_000),
        (units, size) => {
          const script = `${units.join('')}${'😀東x'.repeat(size)}`
          const { arguments: args } = startable({ entrypoint: 'sh', arguments: ['-c', script] })
          expect(args.every((text) => Buffer.byteLength(text) < 131_072 && text.isWellFormed())).toBe(true)
          expect(args.length === 2 ? args[1] : args.slice(3).join('')).toBe(script)
        },
      ),
      { seed, numRuns: 30 },
    )
  })
})

describe('embedded versions', () => {
  const documentOf = async (id: string) =>
    (await service.call<Definition>('GET', `/workflow-definitions/${id}/`)).body.version

  test('what was read from the service is the stored version; anything else is stored once beside it', async () => {
    await create(workflow('origin', [simulated('a'), { ...simulated('b', ['a']), cpuLimit: '2' }]))
    const document = await documentOf('origin')
    expect(await service.db.transaction((tx) => embedWorkflow(tx, document))).toBe('origin-v1')
    const changed = {
      ...document,
      activities: document.activities.map((activity) => ({ ...activity, priority: 9 })),
    }
    const ids = await Promise.all(
      Array.from({ length: 8 }, () => service.db.transaction((tx) => embedWorkflow(tx, changed))),
    )
    expect(new Set(ids).size).toBe(1)
    expect(ids[0]).toMatch(/^origin-v1#[0-9a-f]{16}$/)
    expect((await loadGraph(service.db, ids[0] ?? ''))?.activities.map(({ priority }) => priority)).toEqual([
      9, 9,
    ])
    expect(await documentOf('origin')).toEqual(document)
    expect((await service.call<Definition[]>('GET', '/workflow-definitions/')).body).toHaveLength(1)
  })

  test('a sparse document of the older form keeps its ids and resolves in every form', async () => {
    const id = await service.db.transaction((tx) =>
      embedWorkflow(tx, {
        id: 'old-v1',
        workflowId: 'old',
        activities: [
          { id: 'prepare', simulation: { durationSeconds: 4 } },
          { id: 'old-analyze', externalId: 'analyze', command: { entrypoint: 'run' } },
          { id: 'both', simulation: {}, command: { entrypoint: 'run', image: 'i' } },
          { id: 'modelled', simulation: {}, command: { entrypoint: 'run' } },
        ],
        dependencies: [{ activityId: 'old-analyze', dependsOnActivityId: 'prepare' }],
        dataDependencies: [
          {
            producerActivityId: 'prepare',
            consumerActivityId: 'old-analyze',
            logicalName: 'f',
            sizeBytes: 0,
          },
        ],
      }),
    )
    const graph = await loadGraph(service.db, id)
    if (graph === undefined) throw new Error('not stored')
    expect(graph).toMatchObject({
      workflowId: 'old',
      activities: [
        {
          id: 'prepare',
          externalId: 'prepare',
          capabilities: ['simulation'],
          policy: { timeoutSeconds: 3600 },
        },
        { id: 'old-analyze', capabilities: ['real'] },
        { id: 'both', capabilities: ['real', 'simulation'] },
        { id: 'modelled', capabilities: ['simulation'] },
      ],
      edges: [{ from: 0, to: 1, bytes: 0 }],
    })
    const resolve = activityResolver(graph)
    expect(['prepare', 'old-analyze', 'analyze', 'nobody'].map((given) => resolve(given, 'p'))).toEqual([
      0,
      1,
      1,
      undefined,
    ])
    expect(() =>
      activityResolver({
        workflowId: 'w',
        activities: [
          { id: '1', externalId: 'x', position: 0 },
          { id: '2', externalId: 'x', position: 1 },
        ],
      })('x', 'plan.assignments.0.activityId'),
    ).toThrow(/several activities/)
  })

  test('all errors of a document come at once', async () => {
    const problem = await service.db
      .transaction((tx) =>
        embedWorkflow(
          tx,
          {
            id: 'w-v1',
            workflowId: 'w',
            activities: [
              { id: 'a', workflowVersionId: 'other', capabilities: ['simulation'] },
              { id: 'a', simulation: {} },
              { id: 'b', command: { environment: { '': 'x', 'A=B': 'y', FINE: 'z' } } },
              { id: 'c', capabilities: ['real'], simulation: {} },
            ],
            dependencies: [
              { activityId: 'a', dependsOnActivityId: 'ghost' },
              { activityId: 'b', dependsOnActivityId: 'c' },
              { activityId: 'c', dependsOnActivityId: 'b' },
            ],
            dataDependencies: [
              { producerActivityId: 'b', consumerActivityId: 'b', logicalName: 'f', sizeBytes: 1 },
            ],
          },
          'workflow',
        ),
      )
      .catch((error: unknown) => error as Refused)
    expect(paths((problem as Refused).details).sort()).toEqual([
      'workflow.activities.0.simulation',
      'workflow.activities.0.workflowVersionId',
      'workflow.activities.1.id',
      'workflow.activities.2.command.entrypoint',
      'workflow.activities.2.command.environment.',
      'workflow.activities.2.command.environment.A=B',
      'workflow.activities.3.command.entrypoint',
      'workflow.dataDependencies.0',
      'workflow.dependencies',
      'workflow.dependencies.0.dependsOnActivityId',
    ])
  })

  test('a definition sent back as it was read is a new workflow of the same content', async () => {
    const first = await create(
      workflow(
        'round',
        [{ name: 'One', run: 'x', image: 'i', activityType: 'kind' }, simulated('two', ['One'])],
        {
          dataDependencies: [
            { producerActivity: 'One', consumerActivity: 'two', logicalName: 'f', sizeBytes: 3 },
          ],
        },
      ),
    )
    const document = (await service.call('GET', '/workflow-definitions/round/')).body
    const again = await service.call<Definition>(
      'POST',
      '/workflow-definitions/import/?name=round-two',
      document,
    )
    expect(again.status).toBe(201)
    await service.call('DELETE', '/workflow-definitions/round/')
    const same = await create(document)
    expect(same.body.version.definitionHash).toBe(first.body.version.definitionHash)
    expect((await create({ ...document, name: 'other' })).body.details).toEqual([
      { path: 'id', message: expect.stringContaining('"other"') },
    ])
  })
})

describe('generated workflows', () => {
  const text = fc
    .oneof(
      fc.string({ unit: 'grapheme', maxLength: 30 }),
      fc.constantFrom(
        'a: b\n  - c\n',
        "it's\n\n  two\n",
        '  lead',
        'tail \n',
        'true',
        '- x',
        '#c',
        '\ttab\n',
        'x\r\ny',
        '\n',
        'a\n\n',
        '012',
        '1e5',
        '\u2028\u0085',
      ),
    )
    .filter((value) => !value.includes('\0'))
  const filled = text.filter((value) => value.trim() !== '')
  const json = fc.dictionary(
    fc.string({ maxLength: 12 }).filter((key) => !key.includes('\0') && key !== '__proto__'),
    fc.oneof(
      text,
      fc.integer(),
      fc.double({ noNaN: true, noDefaultInfinity: true }),
      fc.boolean(),
      fc.constant(null),
      fc.array(fc.integer(), { maxLength: 3 }),
    ),
    { maxKeys: 4 },
  )
  const optional = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined })
  const seconds = fc.oneof(fc.constant(0), fc.double({ min: 1e-9, max: 1e9, noNaN: true }))
  const free = json.filter(
    (value) =>
      ![
        'runtime',
        'resourceSelector',
        'keepDisk',
        'mountPath',
        'workspaceSeedPath',
        'expectedOutputs',
        'stage',
        'legacy',
      ].some((key) => key in value),
  )
  const id = fc.stringMatching(/^[a-z][a-zA-Z0-9 _.-]{0,12}$/)

  const activity = fc.record({
    run: filled,
    image: fc.stringMatching(/^[a-z]{1,8}:[0-9]$/),
    real: fc.boolean(),
    entrypoint: optional(filled),
    arguments: optional(fc.array(text, { maxLength: 3 })),
    environment: optional(fc.dictionary(fc.stringMatching(/^[A-Z_]{1,8}$/), text, { maxKeys: 3 })),
    executable: optional(
      fc.constantFrom(
        { source: { type: 'oci', reference: 'x' } },
        {
          source: { type: 'local-file', path: '/bin/x' },
          delivery: { strategy: 'managed' },
          expectedDigest: 'sha256:1',
        },
      ),
    ),
    cpuLimit: optional(
      fc.oneof(
        fc.constantFrom('250m', '1', '0.333', '1000m'),
        fc.double({ min: 0.001, max: 64, noNaN: true }),
      ),
    ),
    memoryLimit: optional(fc.constantFrom('256Mi', '1Gi', '12345', '0', '1G', '512M', '64Ki')),
    parents: fc.array(fc.nat(), { maxLength: 4 }),
    simulation: fc.record(
      { model: fc.constant('deterministic'), durationSeconds: seconds, parameters: free },
      { requiredKeys: [] },
    ),
    activityType: optional(id),
    priority: optional(fc.integer()),
    policy: optional(
      fc.record(
        {
          timeoutSeconds: fc.integer({ min: 1, max: 9_999 }),
          maxAttempts: fc.integer({ min: 1, max: 9 }),
          retryDelaySeconds: fc.integer({ min: 0, max: 9 }),
        },
        { requiredKeys: [] },
      ),
    ),
    keepDisk: optional(fc.boolean()),
    resourceSelector: optional(fc.constant('host/1')),
    expectedOutputs: optional(fc.array(fc.constantFrom('a.txt', 'd/b c.txt'), { maxLength: 2 })),
    stage: optional(fc.constantFrom('all', 'declared')),
    metadata: optional(free),
  })
  const documents = fc.record({
    name: fc.stringMatching(/^[A-Za-z][A-Za-z0-9 _]{0,20}$/),
    namespace: filled.filter((value) => !/\p{Cc}/u.test(value)),
    image: optional(fc.constantFrom('shared:1', 'shared:2')),
    storageSize: optional(fc.constant('2Gi')),
    storagePolicy: optional(fc.constant({ type: 'distributed' })),
    schedule: optional(text),
    metadata: optional(free.filter((value) => !('legacy' in value))),
    drawn: fc.array(activity, { minLength: 1, maxLength: 25 }),
    sizes: fc.array(fc.integer({ min: 1, max: 2 ** 40 }), { minLength: 1, maxLength: 5 }),
  })
  type Drawn = typeof documents extends fc.Arbitrary<infer T> ? T : never

  const document = ({
    name,
    namespace,
    image,
    storageSize,
    storagePolicy,
    schedule,
    metadata,
    drawn,
    sizes,
  }: Drawn) => {
    const nameOf = (i: number): string => `Task ${i}`
    const edges = drawn.flatMap(({ parents }, to) =>
      [...new Set(parents.map((parent) => parent % (to + 1)).filter((from) => from !== to))].map(
        (from) => [from, to] as const,
      ),
    )
    const activities = drawn.map(
      (
        {
          real,
          parents: _,
          run,
          entrypoint,
          arguments: args,
          environment,
          executable,
          image: own,
          simulation,
          ...rest
        },
        i,
      ) => ({
        name: nameOf(i),
        ...rest,
        ...(real
          ? {
              image: own,
              ...(i % 2 === 0
                ? { run }
                : { command: { entrypoint: entrypoint ?? 'x', arguments: args, environment, executable } }),
            }
          : { simulation }),
        dependsOn: edges.filter(([, to]) => to === i).map(([from]) => nameOf(from)),
      }),
    )
    return JSON.parse(
      JSON.stringify({
        name,
        spec: {
          namespace,
          image,
          storageSize,
          storagePolicy,
          schedule,
          metadata,
          activities,
          dataDependencies: edges.map(([from, to], i) => ({
            producerActivity: nameOf(from),
            consumerActivity: nameOf(to),
            logicalName: `file ${i}: "x"`,
            sizeBytes: sizes[i % sizes.length],
          })),
        },
      }),
    ) as {
      name: string
      spec: { activities: { dependsOn: string[] }[]; dataDependencies: { sizeBytes: number }[] }
    }
  }

  test('what goes in comes out: counts, edges, bytes, the exported document and the embedded one', async () => {
    await fc.assert(
      fc.asyncProperty(documents, async (drawn) => {
        const written = document(drawn)
        const created = await create(written)
        expect([created.status, created.body.details]).toEqual([201, undefined])
        const { id, version } = created.body
        const graph = await loadGraph(service.db, version.id)
        expect(graph?.edges.length).toBe(
          written.spec.activities.reduce((sum, { dependsOn }) => sum + dependsOn.length, 0),
        )
        expect(graph?.edges.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(
          written.spec.dataDependencies.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0),
        )
        expect(graph?.edges.every(({ from, to }) => from < to)).toBe(true)

        const read = (await service.call<Definition>('GET', `/workflow-definitions/${id}/`)).body
        expect(await service.db.transaction((tx) => embedWorkflow(tx, read.version))).toBe(version.id)

        const exported = await service.call('GET', `/workflow-definitions/${id}/export/`)
        expect((await service.call('DELETE', `/workflow-definitions/${id}/`)).status).toBe(204)
        const again = await service.call<Definition & Refused>(
          'POST',
          '/workflow-definitions/import/',
          exported.text,
        )
        expect([again.status, again.body.details]).toEqual([201, undefined])
        const still = (one: Definition) => ({
          ...one,
          createdAt: '',
          warnings: [],
          version: { ...one.version, createdAt: '' },
        })
        expect(still(again.body)).toEqual(still(created.body))
        expect((await service.call('DELETE', `/workflow-definitions/${id}/`)).status).toBe(204)
      }),
      { seed, numRuns: 60 },
    )
    expect(await workflowCounts()).toEqual([0, 0, 0, 0, 0, 0])
  })

  test('a back edge anywhere is found, and the cycle that is named is one', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 2, max: 40 }), fc.nat(), fc.nat(), async (length, a, b) => {
        const [low, high] = [Math.min(a % length, b % length), Math.max(a % length, b % length)]
        const activities = Array.from({ length }, (_, i) =>
          simulated(`t${i}`, [...(i > 0 ? [`t${i - 1}`] : []), ...(i === low ? [`t${high}`] : [])]),
        )
        const answer = await create(workflow('looped', activities))
        expect(answer.status).toBe(422)
        const named = /cycle: (.*);/.exec(answer.body.details[0]?.message ?? '')?.[1]?.split(' -> ') ?? []
        expect(named[0]).toBe(named.at(-1))
        if (high - low < 19) expect(named.length).toBe(high - low + 2)
      }),
      { seed, numRuns: 30 },
    )
  })
})
