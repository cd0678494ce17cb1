import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { sql } from '../../src/db/sql.ts'
import { openService, type TestService } from '../support/service.ts'

type Json = ReturnType<typeof JSON.parse>

let service: TestService
beforeAll(async () => {
  service = await openService()
  await service.post('/environments/', environment)
  await service.post('/execution-scopes/', { id: 'scope', name: 'scope', environmentVersionIds: ['env-v1'] })
  await service.post('/workflow-definitions/', {
    name: 'flow',
    spec: {
      namespace: 'n',
      image: 'debian:12-slim',
      activities: [
        { name: 'plain', run: 'true' },
        { name: 'hinted', run: 'true', runtime: 'second' },
        { name: 'lost', run: 'true', runtime: 'kubernetes' },
      ],
    },
  })
})
afterAll(() => service[Symbol.asyncDispose]())

const runtime = (id: string, mode: string, more: object = {}): Json => ({
  id,
  name: id,
  driver: mode === 'simulation' ? 'simgrid' : 'local',
  mode,
  ...(mode === 'simulation' ? {} : { configuration: { launch: 'none' } }),
  ...more,
})
const environment = {
  environment: { id: 'env', name: 'env' },
  version: { id: 'env-v1', version: 1 },
  runtimes: [
    runtime('first', 'execution'),
    runtime('second', 'execution'),
    runtime('off', 'execution'),
    runtime('elsewhere', 'execution'),
    runtime('process', 'execution', { configuration: {} }),
    runtime('sim-a', 'simulation'),
    runtime('sim-b', 'simulation'),
    runtime('real-simgrid', 'simulation', { configuration: { engine: 'simgrid' } }),
  ],
  resources: ['one', 'two', 'three'].map((id) => ({
    id,
    name: id,
    providerId: id,
    executionTarget: 'direct',
    cpuCores: 4,
    cpuCapacity: 4,
    memoryBytes: 2 ** 30,
    computeSpeedup: 1,
    schedulable: true,
  })),
  resourceRuntimeBindings: [
    ...['first', 'second', 'sim-a', 'sim-b'].map((runtimeId) => ({
      resourceId: 'one',
      runtimeId,
      enabled: true,
    })),
    { resourceId: 'one', runtimeId: 'off' },
    ...['elsewhere', 'process', 'sim-a'].map((runtimeId) => ({
      resourceId: 'two',
      runtimeId,
      enabled: true,
    })),
    { resourceId: 'three', runtimeId: 'real-simgrid', enabled: true },
  ],
}
/** As a replaced environment would leave the binding. */
const disable = sql`update resource_runtime_bindings set enabled = false where runtime_id = 'second'`
const enable = sql`update resource_runtime_bindings set enabled = true where runtime_id = 'second'`
const activities = ['plain', 'hinted', 'lost']
const plan = (id: string, runtimeIds: (string | undefined)[], resourceId = 'one'): Json => ({
  id,
  workflowVersionId: 'flow-v1',
  executionScopeId: 'scope',
  assignments: activities.map((activityId, k) => ({
    activityId,
    resourceId,
    orderOnResource: k,
    ...(runtimeIds[k] === undefined ? {} : { metadata: { runtimeId: runtimeIds[k] } }),
  })),
})
const run = async (id: string, schedulePlanId: string, mode: string): Promise<Json[]> => {
  await service.post('/execution-runs/', { id, schedulePlanId, mode })
  const detail = await service.finished(id)
  expect(detail.run.status).toBe('completed')
  return detail.activities.map((each: Json) => [each.runtimeId, each.runtimeReason])
}

describe('the runtime that an assignment names', () => {
  test('is 422 at import and at creation when it is unknown, disabled or not bound to the resource, each at its place', async () => {
    const { version } = await service.get('/workflow-definitions/flow/')
    const bad = plan('bad', ['nobody', 'off', 'elsewhere'])
    const envelope = {
      plan: bad,
      workflow: version,
      resources: environment.resources,
      executionScope: { id: 'scope', name: 'scope', environmentVersionIds: ['env-v1'] },
    }
    for (const [path, body] of [
      ['/schedule-plans/import/', { plan: bad }],
      ['/schedule-plans/', envelope],
    ] as const) {
      const answer = await service.call('POST', path, body)
      expect(answer.status).toBe(422)
      expect(answer.body.details).toEqual([
        {
          path: 'plan.assignments.0.metadata.runtimeId',
          message: expect.stringMatching(/^"nobody" names no runtime; name one that is bound/),
        },
        {
          path: 'plan.assignments.1.metadata.runtimeId',
          message: expect.stringMatching(/^the binding of runtime "off" for resource "one" is disabled/),
        },
        {
          path: 'plan.assignments.2.metadata.runtimeId',
          message: expect.stringMatching(/^there is no binding of runtime "elsewhere" for resource "one"/),
        },
      ])
    }
    expect((await service.call('GET', '/schedule-plans/bad/')).status).toBe(404)
  })

  test('is 422 at a run when its binding is gone since, or not among those that were sent', async () => {
    await service.post('/schedule-plans/import/', { plan: plan('changed', ['second', 'second', 'second']) })
    const bindings = [
      { resourceId: 'one', runtimeId: 'second', enabled: false },
      ...environment.resourceRuntimeBindings.slice(0, 1),
    ]
    const sent = await service.call('POST', '/execution-runs/', {
      run: { id: 'changed-sent', schedulePlanId: 'changed', mode: 'real' },
      runtimeBindings: bindings,
    })
    expect([sent.status, sent.body.details.map(({ path }: Json) => path)]).toEqual([
      422,
      [0, 1, 2].map((k) => `plan.assignments.${k}.metadata.runtimeId`),
    ])
    await service.db.run(disable)
    const stored = await service.call('POST', '/execution-runs/', {
      id: 'changed-stored',
      schedulePlanId: 'changed',
      mode: 'real',
    })
    await service.db.run(enable)
    expect([stored.status, stored.body.details[0].message]).toEqual([
      422,
      expect.stringContaining('is disabled'),
    ])
    for (const id of ['changed-sent', 'changed-stored'])
      expect((await service.call('GET', `/execution-runs/${id}/`)).status).toBe(404)
  })

  test('yields to the hint in a run of the other mode, and the attempt records what was taken and why', async () => {
    await service.post('/schedule-plans/import/', { plan: plan('both', ['second', 'sim-b', undefined]) })
    expect(await run('both-real', 'both', 'real')).toEqual([
      ['second', undefined],
      [
        'second',
        expect.stringMatching(
          new RegExp(
            '^runtime "sim-b" of the assignment has mode simulation, the run needs mode execution: ' +
              `taken is "second", the activity's hint "second"`,
          ),
        ),
      ],
      [
        'first',
        `no bound runtime of mode execution is the activity's "kubernetes": taken is "first", the ` +
          'first by id of those bound',
      ],
    ])
    expect(await run('both-simulation', 'both', 'simulation')).toEqual([
      [
        'sim-a',
        'runtime "second" of the assignment has mode execution, the run needs mode simulation: ' +
          'taken is "sim-a", the first by id of those bound',
      ],
      ['sim-b', undefined],
      ['sim-a', expect.stringContaining('"kubernetes"')],
    ])
    // An envelope of one mode sends no runtimes of the other.
    const sent = await service.call('POST', '/execution-runs/', {
      run: { id: 'both-sent', schedulePlanId: 'both', mode: 'simulation' },
      runtimes: environment.runtimes.filter(({ mode }) => mode === 'simulation'),
      runtimeBindings: environment.resourceRuntimeBindings.filter(({ runtimeId }) =>
        runtimeId.startsWith('sim'),
      ),
    })
    expect([sent.status, sent.text]).toEqual([202, expect.any(String)])
    expect((await service.finished('both-sent')).activities[0].runtimeReason).toContain('has mode execution')
  })

  test('is recorded with every attempt', async () => {
    await service.post('/workflow-definitions/', {
      name: 'failing',
      spec: {
        namespace: 'n',
        image: 'debian:12-slim',
        activities: [{ name: 'fails', run: 'exit 1', runtime: 'process', policy: { maxAttempts: 2 } }],
      },
    })
    const assignments = [
      { activityId: 'fails', resourceId: 'two', orderOnResource: 0, metadata: { runtimeId: 'sim-a' } },
    ]
    await service.post('/schedule-plans/import/', {
      plan: { id: 'failing', workflowVersionId: 'failing-v1', executionScopeId: 'scope', assignments },
    })
    await service.post('/execution-runs/', { id: 'failing', schedulePlanId: 'failing', mode: 'real' })
    expect((await service.finished('failing')).run.status).toBe('failed')
    const { activities: attempts } = await service.get('/execution-runs/failing/?attempts=all')
    expect(attempts.map(({ runtimeId, attempt }: Json) => [runtimeId, attempt])).toEqual([
      ['process', 1],
      ['process', 2],
    ])
    expect(attempts[1].runtimeReason).toBe(attempts[0].runtimeReason)
    expect(attempts[0].runtimeReason).toContain('"sim-a" of the assignment has mode simulation')
  })
})

test('a runtime whose engine is SimGrid is 503 in a simulation, before anything is stored', async () => {
  await service.post('/schedule-plans/import/', {
    plan: plan('grid', ['real-simgrid', undefined, undefined], 'three'),
  })
  const before = await service.get('/execution-runs/')
  const answer = await service.call('POST', '/execution-runs/', {
    id: 'grid',
    schedulePlanId: 'grid',
    mode: 'simulation',
  })
  expect([answer.status, answer.headers.get('retry-after')]).toEqual([503, null])
  expect(answer.body.error).toContain('engine simgrid of runtime real-simgrid')
  expect(await service.get('/execution-runs/')).toEqual(before)
})
