import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { z } from 'zod'
import { sql } from '../../src/db/sql.ts'
import { lockInventory } from '../../src/domains/environments/store.ts'
import { sessionKind } from '../../src/domains/planning-sessions/operation.ts'
import { dispatchedOperations, undispatchedOperations } from '../../src/operations/records.ts'
import { until } from '../failures/programs.ts'
import { startPlanning, type PlanningApp } from '../support/planning-app.ts'

type Json = ReturnType<typeof JSON.parse>

// The engine is away here: what a session's record does by itself. The workflow has tests of its
// own.
let app: PlanningApp
beforeAll(async () => {
  app = await startPlanning()
  await send('POST', '/workflow-definitions/', {
    name: 'flow',
    spec: {
      namespace: 'n',
      activities: [
        { name: 'a', simulation: { durationSeconds: 1 } },
        { name: 'b', simulation: { durationSeconds: 1 }, dependsOn: ['a'] },
      ],
    },
  })
  await send('POST', '/environments/', environment('env', true))
  await send('POST', '/environments/', environment('shelf', false))
  for (const [id, version, net] of [
    ['scope', 'env-v1', 'net'],
    ['bare', 'env-v1', ''],
    ['idle', 'shelf-v1', ''],
    ['lost', 'env-v1', 'nowhere'],
    ['strange', 'env-v1', 'net'],
  ])
    await send('POST', '/execution-scopes/', {
      id,
      name: id,
      environmentVersionIds: [version],
      networkTopologyId: net,
    })
  for (const [id, executionScopeId] of [
    ['net', 'scope'],
    ['foreign', 'idle'],
  ])
    await send('POST', '/network-topologies/', { id, name: id, version: 1, executionScopeId, links: [] })
})
afterAll(() => app.close())

const environment = (id: string, schedulable: boolean): object => ({
  environment: { id, name: id },
  version: { id: `${id}-v1`, version: 1 },
  resources: [1, 2].map((k) => ({
    id: `${id}-${k}`,
    name: `${id}-${k}`,
    providerId: `${id}-${k}`,
    executionTarget: 'direct',
    cpuCores: 1,
    cpuCapacity: 1,
    memoryBytes: 2 ** 30,
    computeSpeedup: 1,
    schedulable,
  })),
})
const send = async (method: string, path: string, body?: unknown): Promise<Json> => {
  const answer = await app.call(method, path, body)
  if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${answer.text}`)
  return answer.body
}
const session = (id: string, more: object = {}): Json => ({
  id,
  workflowVersionId: 'flow-v1',
  executionScopeId: 'scope',
  networkTopologyId: 'net',
  algorithms: [{ id: 'heft' }],
  ...more,
})
const refused = async (body: unknown, status = 422): Promise<string[]> => {
  const before = await app.counts()
  const answer = await app.call('POST', '/planning-sessions/', body)
  expect([answer.status, answer.text]).toEqual([status, expect.any(String)])
  expect(await app.counts()).toEqual(before)
  return [...new Set<string>(answer.body.details.map(({ path }: Json) => path))].sort()
}

const RefRow = z.object({ id: z.string(), generation: z.number() })

describe('planning sessions without an engine', () => {
  test('a session is accepted, readable at once, and kept for the dispatcher in order of acceptance', async () => {
    const made = await app.call(
      'POST',
      '/planning-sessions/',
      session('s1', { deadlineSeconds: 5, budget: 2 }),
    )
    expect([made.status, made.headers.get('location')]).toEqual([202, '/api/planning-sessions/s1/'])
    expect(made.body).toMatchObject({
      id: 's1',
      status: 'queued',
      progress: 0,
      candidateCount: 0,
      algorithms: [{ id: 'heft' }],
      deadlineSeconds: 5,
      budget: 2,
      networkTopologyId: 'net',
    })
    await send('POST', '/planning-sessions/', session('s2'))
    expect(await send('GET', '/planning-sessions/s1/')).toEqual({
      session: made.body,
      algorithmRuns: [
        {
          id: 's1-heft',
          planningSessionId: 's1',
          algorithm: 'heft',
          objective: 'time',
          status: 'queued',
          progress: 0,
          candidateCount: 0,
          estimate: {
            durationSeconds: 0.1,
            activityCount: 2,
            dependencyCount: 1,
            compatibleResources: 2,
            expandedStates: 4,
            confidence: 'calibrated',
          },
        },
      ],
    })
    expect((await send('GET', '/planning-sessions/')).map(({ id }: Json) => id)).toEqual(['s2', 's1'])
    expect(await app.db.many(RefRow, undispatchedOperations(sessionKind, 10))).toMatchObject([
      { id: 's1', generation: 1 },
      { id: 's2', generation: 1 },
    ])
    expect(await send('GET', '/planning-sessions/s1/candidates/')).toEqual([])
  })

  test('a blank topology is the one that the scope names, else none', async () => {
    expect(
      (await send('POST', '/planning-sessions/', session('named', { networkTopologyId: undefined })))
        .networkTopologyId,
    ).toBe('net')
    expect(
      (
        await send(
          'POST',
          '/planning-sessions/',
          session('none', { networkTopologyId: undefined, executionScopeId: 'bare' }),
        )
      ).networkTopologyId,
    ).toBe('')
  })

  test('a topology of the scope that is none of its own is left out with a warning', async () => {
    for (const [executionScopeId, message] of [
      ['lost', 'no transfer takes time: the scope\'s networkTopologyId "nowhere" names no network topology'],
      ['strange', 'the scope\'s networkTopologyId "net" belongs to scope "scope", not to "strange"'],
    ]) {
      const made = await send(
        'POST',
        '/planning-sessions/',
        session(`of-${executionScopeId}`, { networkTopologyId: undefined, executionScopeId }),
      )
      expect([made.networkTopologyId, made.warnings]).toEqual([
        '',
        [{ path: 'networkTopologyId', message: expect.stringContaining(message!) }],
      ])
    }
  })

  test('what was read can be sent again under another id', async () => {
    const read = (await send('GET', '/planning-sessions/s1/')).session
    expect(await send('POST', '/planning-sessions/', { ...read, id: 's3' })).toMatchObject({
      id: 's3',
      status: 'queued',
    })
  })

  test('a cancelled session is not started, and cancelling it again is harmless', async () => {
    await send('POST', '/planning-sessions/', session('stopped'))
    const open = await app.call('DELETE', '/planning-sessions/stopped/')
    expect([open.status, (open.body as Json).state]).toEqual([409, 'queued'])
    for (let k = 0; k < 2; k++)
      expect((await app.call('POST', '/planning-sessions/stopped/cancel/')).status).toBe(204)
    const { session: stopped, algorithmRuns } = await send('GET', '/planning-sessions/stopped/')
    expect([stopped.status, algorithmRuns[0].status, typeof stopped.completedAt]).toEqual([
      'cancelled',
      'cancelled',
      'string',
    ])
    for (const list of [
      await app.db.many(RefRow, undispatchedOperations(sessionKind, 100)),
      await dispatchedOperations(app.db, sessionKind, '', 100),
    ])
      expect(list.map(({ id }) => id)).not.toContain('stopped')
    const { items } = await send('GET', '/planning-sessions/stopped/events/')
    expect(items.map(({ sequence, eventType }: Json) => [sequence, eventType])).toEqual([
      [1, 'planning.session.cancelled'],
    ])
    for (const status of [204, 404])
      expect((await app.call('DELETE', '/planning-sessions/stopped/')).status).toBe(status)
    expect((await app.call('GET', '/planning-sessions/stopped/events/')).status).toBe(404)
  })

  test('a resource that a session may still plan with stays as it is', async () => {
    await send('POST', '/environments/', environment('held', true))
    await send('POST', '/execution-scopes/', {
      ...{ id: 'held', name: 'held', environmentVersionIds: ['held-v1'], networkTopologyId: '' },
    })
    const held = session('holds', { executionScopeId: 'held', networkTopologyId: '' })
    await send('POST', '/planning-sessions/', held)
    const stored = await send('GET', '/resources/held-1/')
    const change = () => app.call('POST', '/resources/', { ...stored, pricePerSecond: 7 })
    const refusal = await change()
    expect([refusal.status, refusal.body.details]).toEqual([
      422,
      [{ path: 'id', message: expect.stringMatching(/"held-1" .*planning session "holds"; delete that/) }],
    ])
    expect((await app.call('POST', '/resources/', stored)).status).toBe(201)
    expect(await send('GET', '/resources/held-1/')).toEqual(stored)
    await send('POST', '/planning-sessions/holds/cancel/')
    expect((await change()).status).toBe(201)
  })

  test('a session is accepted once a change of the inventory that is under way has ended', async () => {
    let posted: Promise<Json> | undefined
    await app.db.transaction(async (tx) => {
      await lockInventory(tx)
      posted = send('POST', '/planning-sessions/', session('behind'))
      await until('the session waits', 120, async () => {
        const waiting = sql`select from pg_locks l join pg_database d on d.oid = l.database
          where d.datname = current_database() and l.locktype = 'advisory' and not l.granted`
        return (await app.db.run(waiting)) > 0
      })
      expect((await app.call('GET', '/planning-sessions/behind/')).status).toBe(404)
    })
    expect(await posted).toMatchObject({ id: 'behind', status: 'queued' })
  })

  test('an unknown session is 404 everywhere', async () => {
    for (const [method, path] of [
      ['GET', ''],
      ['POST', 'cancel/'],
      ['GET', 'candidates/'],
      ['GET', 'candidates/c/'],
      ['POST', 'candidates/c/select/'],
    ] as const)
      expect((await app.call(method, `/planning-sessions/nobody/${path}`)).status).toBe(404)
  })

  test('everything that is wrong with a session is said at once, and nothing is stored', async () => {
    expect(
      await refused(
        session('s1', {
          workflowVersionId: 'none-v1',
          executionScopeId: 'none',
          networkTopologyId: 'gone',
          algorithms: [{ id: 'heft' }, { id: 'heft' }, { id: 'magic' }],
        }),
      ),
    ).toEqual([
      'algorithms.1.id',
      'algorithms.2.id',
      'executionScopeId',
      'id',
      'networkTopologyId',
      'workflowVersionId',
    ])
    expect(await refused(session('x', { networkTopologyId: 'foreign' }))).toEqual(['networkTopologyId'])
    expect(await refused(session('x', { executionScopeId: 'idle', networkTopologyId: '' }))).toEqual([
      'executionScopeId',
    ])
    expect(
      await refused({
        ...session('', { deadlineSeconds: -1, budget: -0.5 }),
        algorithms: [
          { id: 'heft', configuration: { beamWidth: 0, optionCount: 1001, readyBranchLimit: 17 } },
        ],
        configuration: {
          interferenceMatrix: {
            schemaVersion: '9',
            model: 'guess',
            rules: [{ affectedActivityTypeId: 'a', interferingActivityTypeId: 'b', slowdownFactor: 0.5 }],
          },
        },
      }),
    ).toEqual([
      'algorithms.0.configuration.beamWidth',
      'algorithms.0.configuration.optionCount',
      'algorithms.0.configuration.readyBranchLimit',
      'budget',
      'configuration.interferenceMatrix.model',
      'configuration.interferenceMatrix.rules.0.slowdownFactor',
      'configuration.interferenceMatrix.schemaVersion',
      'deadlineSeconds',
      'id',
    ])
    expect(
      await refused(session('s1', { budget: -1, executionScopeId: 'none', networkTopologyId: '' })),
    ).toEqual(['budget', 'executionScopeId', 'id'])
    expect(await refused(session('x', { algorithms: [] }))).toEqual(['algorithms'])
    expect(await refused({ ...session('x'), workflowVersionId: undefined })).toEqual(['workflowVersionId'])
    expect(await refused({ ...session('x'), speed: 1 }, 400)).toEqual(['speed'])
  })

  test('options at the ends of their ranges and an interference matrix are accepted and kept', async () => {
    const configuration = {
      interferenceMatrix: {
        schemaVersion: '4',
        model: 'pairwise-slowdown',
        aggregation: 'maximum',
        rules: [{ affectedActivityTypeId: 'a', interferingActivityTypeId: 'b', slowdownFactor: 1.5 }],
      },
    }
    const sent = session('options', {
      configuration,
      algorithms: [
        { id: 'heft', configuration: { beamWidth: 10_000, optionCount: 1_000, readyBranchLimit: 16 } },
      ],
    })
    expect(await send('POST', '/planning-sessions/', sent)).toMatchObject({
      configuration,
      algorithms: sent.algorithms,
    })
  })

  test('a large configuration stands in the session and not in the list, and options have bounds', async () => {
    const entries = Array.from({ length: 1_000 }, (_, i) => ({
      ...{ affectedActivityId: `a-${i}`, interferingActivityId: `b-${i}`, slowdownFactor: 2 },
    }))
    const configuration = { interferenceMatrix: { schemaVersion: '1', model: 'pairwise-slowdown', entries } }
    await send('POST', '/planning-sessions/', session('large', { configuration }))
    expect((await send('GET', '/planning-sessions/large/')).session.configuration).toEqual(configuration)
    const item = (await send('GET', '/planning-sessions/')).find(({ id }: Json) => id === 'large')
    expect([item.configuration, item.warnings]).toEqual([
      undefined,
      [{ path: 'configuration', message: expect.stringContaining('left out of lists') }],
    ])
    const many = Object.fromEntries(Array.from({ length: 10_000 }, (_, i) => [`o${i}`, i]))
    expect(await refused(session('x', { algorithms: [{ id: 'heft', configuration: many }] }))).toEqual([
      'algorithms.0.configuration',
    ])
  })

  test('keys that nothing reads are kept and named in warnings, and the answer can be sent again', async () => {
    const configuration = {
      interferenceMatrix: { schemaVersion: '1', model: 'pairwise-slowdown', author: 'ada' },
      interferenceKnowledgeMatrix: {},
      colour: { of: ['the', 'plan'] },
    }
    const algorithms = [{ id: 'heft', configuration: { beamWidth: 3, depthLimit: 9 } }]
    const made = await send('POST', '/planning-sessions/', session('warned', { configuration, algorithms }))
    expect(made).toMatchObject({ configuration, algorithms })
    expect(made.warnings).toEqual([
      { path: 'configuration.colour', message: expect.stringContaining('does not know this key') },
      { path: 'configuration.interferenceMatrix', message: expect.stringContaining('not read yet') },
      { path: 'configuration.interferenceKnowledgeMatrix', message: expect.stringContaining('not read yet') },
      {
        path: 'algorithms.0.configuration.beamWidth',
        message: expect.stringContaining('heft has no such option'),
      },
      {
        path: 'algorithms.0.configuration.depthLimit',
        message: expect.stringContaining('does not know this key'),
      },
    ])
    const read = (await send('GET', '/planning-sessions/warned/')).session
    expect(read.warnings).toEqual(made.warnings)
    expect((await send('POST', '/planning-sessions/', { ...read, id: 'warned-again' })).warnings).toEqual(
      made.warnings,
    )
    expect((await send('POST', '/planning-sessions/', session('unwarned'))).warnings).toEqual([])
  })

  test('an unknown algorithm and options outside of their ranges are 422 by name', async () => {
    expect(
      await refused(session('later', { algorithms: [{ id: 'prism-cost' }, { id: 'prism-beauty' }] })),
    ).toEqual(['algorithms.1.id'])
    const bad = { beamWidth: 0, optionCount: 1001, readyBranchLimit: 17 }
    expect(
      await refused(session('later', { algorithms: [{ id: 'prism-time', configuration: bad }] })),
    ).toEqual(
      ['beamWidth', 'optionCount', 'readyBranchLimit'].map((name) => `algorithms.0.configuration.${name}`),
    )
  })

  test('the estimate of a search names its options, and none of them is warned of', async () => {
    const made = await send(
      'POST',
      '/planning-sessions/',
      session('searched', { algorithms: [{ id: 'prism-cost', configuration: { beamWidth: 7 } }] }),
    )
    expect(made.warnings).toEqual([])
    const [run] = (await send('GET', '/planning-sessions/searched/')).algorithmRuns
    expect(run).toMatchObject({
      id: 'searched-prism-cost',
      objective: 'cost',
      estimate: { beamWidth: 7, readyBranchLimit: 3, confidence: 'calibrated' },
    })
  })

  test('64 equal creates make one session', async () => {
    const answers = await Promise.all(
      Array.from({ length: 64 }, () => app.call('POST', '/planning-sessions/', session('once'))),
    )
    expect(answers.map(({ status }) => status).sort()).toEqual([202, ...Array(63).fill(422)])
    expect((await send('GET', '/planning-sessions/')).filter(({ id }: Json) => id === 'once')).toHaveLength(1)
  })
})
