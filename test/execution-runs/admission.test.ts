import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, worldDocuments, type World } from '../support/worlds.ts'
import { checked, runToEnd } from './checked.ts'

let service: TestService
let world: World
beforeAll(async () => {
  service = await openService()
  world = await makeWorld(service, {
    name: 'plain',
    launch: 'none',
    tasks: [{ name: 'a' }, { name: 'b', after: ['a'] }],
  })
})
afterAll(() => service[Symbol.asyncDispose]())

const create = (body: object, headers?: Record<string, string>) =>
  service.call('POST', '/execution-runs/', body, headers)
const nothing = async (id: string): Promise<void> => {
  expect((await service.call('GET', `/execution-runs/${encodeURIComponent(id)}/`)).status).toBe(404)
}
const reasons = (answer: { body: any }): string[] =>
  answer.body.details.map((detail: any) => `${String(detail.path)}: ${String(detail.message)}`)

describe('creating a run', () => {
  test('64 equal requests at once make one run', async () => {
    const answers = await Promise.all(
      Array.from({ length: 64 }, () => create({ id: 'once', schedulePlanId: world.planId, mode: 'real' })),
    )
    expect(answers.filter(({ status }) => status === 202)).toHaveLength(1)
    expect(answers.filter(({ status }) => status === 409)).toHaveLength(63)
    expect((await service.finished('once')).run.status).toBe('completed')
    await checked(service, world, 'once')
  })

  test('64 equal requests with one Idempotency-Key make one run, and a repeated one gets the stored answer', async () => {
    const key = { 'idempotency-key': 'one-key' }
    const body = { id: 'keyed', schedulePlanId: world.planId, mode: 'real' }
    const answers = await Promise.all(Array.from({ length: 64 }, () => create(body, key)))
    expect(answers.every(({ status }) => status === 202 || status === 409)).toBe(true)
    expect(
      answers.filter(({ status, headers }) => status === 202 && headers.get('idempotency-replayed') === null),
    ).toHaveLength(1)
    const again = await create(body, key)
    expect([
      again.status,
      again.headers.get('idempotency-replayed'),
      again.body.id,
      again.headers.get('location'),
    ]).toEqual([202, 'true', 'keyed', '/api/execution-runs/keyed/'])
    expect((await create({ ...body, id: 'another' }, key)).status).toBe(422)
    await nothing('another')
    await service.finished('keyed')
    await checked(service, world, 'keyed')
  })

  test('answers 202 with the run and its place; the members may stand in `run` or at the top, and a sent status is ignored', async () => {
    const answer = await create({
      run: {
        id: 'enveloped',
        schedulePlanId: world.planId,
        mode: 'real',
        status: 'completed',
        seed: 7,
        title: 'With a title',
      },
    })
    expect(answer.status).toBe(202)
    expect(answer.headers.get('location')).toBe('/api/execution-runs/enveloped/')
    expect(answer.body).toMatchObject({
      id: 'enveloped',
      seed: 7,
      title: 'With a title',
      kind: 'workflow',
      activityCount: 2,
      generation: 1,
    })
    expect(['created', 'running', 'completed']).toContain(answer.body.status)
    expect((await service.finished('enveloped')).run.status).toBe('completed')
    expect(
      (await create({ run: { id: 'x', schedulePlanId: world.planId, mode: 'real' }, id: 'y' })).status,
    ).toBeGreaterThanOrEqual(400)
  })

  test('takes ids of any shape: slashes, unicode, 255 characters', async () => {
    const longest = ['x'.repeat(255), `a${'😀'.repeat(254)}`]
    for (const id of ['with/slash and space', 'ünïcode-✓-名', ...longest, '...', '%2F', 'quote\'"<b>']) {
      const answer = await create({ id, schedulePlanId: world.planId, mode: 'real' })
      expect([id, answer.status, answer.text.slice(0, 200)]).toEqual([id, 202, expect.any(String)])
      expect((await service.finished(id)).run).toMatchObject({ id, status: 'completed' })
      if (id !== longest[1]) await checked(service, world, id)
      // Ids that the service makes of it are longer than any that a client may choose.
      const { activities } = await service.get(`/execution-runs/${encodeURIComponent(id)}/`)
      for (const { id: attempt } of activities) {
        const lineage = `/provenance/lineage/task_executions/${encodeURIComponent(attempt)}/`
        expect([attempt, (await service.call('GET', lineage)).status]).toEqual([attempt, 200])
      }
    }
    for (const id of ['', 'x'.repeat(256), 'x'.repeat(1_000), 'line\nbreak', 'nul\0', '.', '..'])
      expect([id, (await create({ id, schedulePlanId: world.planId, mode: 'real' })).status]).toEqual([
        id,
        422,
      ])
  })

  test('refuses what is missing, unknown, null or of the wrong type, each with its path', async () => {
    const cases: [object, number, string][] = [
      [{ schedulePlanId: world.planId, mode: 'real' }, 422, 'id'],
      [{ id: 'bad', mode: 'real' }, 422, 'schedulePlanId'],
      [{ id: 'bad', schedulePlanId: world.planId }, 422, 'mode'],
      [{ id: 'bad', schedulePlanId: world.planId, mode: null }, 422, 'mode'],
      [{ id: 'bad', schedulePlanId: world.planId, mode: 'imaginary' }, 422, 'mode'],
      [{ id: 5, schedulePlanId: world.planId, mode: 'real' }, 400, 'id'],
      [{ id: 'bad', schedulePlanId: world.planId, mode: 'real', surprise: 1 }, 400, 'surprise'],
      [{ id: 'bad', schedulePlanId: world.planId, mode: 'real', seed: 1.5 }, 422, 'seed'],
      [{ id: 'bad', schedulePlanId: 'no-such-plan', mode: 'real' }, 422, 'run.schedulePlanId'],
      [{ id: 'bad', schedulePlanId: world.planId, mode: 'real', onFailure: 'perhaps' }, 422, 'onFailure'],
      [{ id: 'bad', schedulePlanId: world.planId, mode: 'real', onBudget: 'ask' }, 422, 'budget'],
      [
        { run: { id: 'bad', schedulePlanId: world.planId, mode: 'real', onBudget: 'stop' } },
        422,
        'run.budget',
      ],
      [{ run: { id: '..', schedulePlanId: world.planId, mode: 'real' } }, 422, 'run.id'],
    ]
    for (const [body, status, path] of cases) {
      const answer = await create(body)
      expect([body, answer.status]).toEqual([body, status])
      expect(answer.body.details.map((detail: any) => detail.path)).toContain(path)
    }
    await nothing('bad')
  })
})

describe('admission', () => {
  test('names every resource that is not bound to a runtime of the mode', async () => {
    const unbound = await makeWorld(service, {
      name: 'unbound',
      cores: [1, 1, 1],
      unbound: true,
      tasks: [{ name: 'a' }, { name: 'b' }, { name: 'c' }],
    })
    const answer = await create({ id: 'unbound-run', schedulePlanId: unbound.planId, mode: 'real' })
    expect([answer.status, answer.body.code]).toEqual([422, 'unacceptable'])
    for (const resource of unbound.resourceIds)
      expect(reasons(answer).some((reason) => reason.includes(resource))).toBe(true)
    await nothing('unbound-run')
    // The same plan can be simulated: the bindings to that runtime are there.
    expect((await runToEnd(service, unbound, { id: 'unbound-sim', mode: 'simulation' })).run.status).toBe(
      'completed',
    )
  })

  test('tells all reasons at once: several places of difference from the stored plan', async () => {
    const { plan } = worldDocuments({
      name: 'plain',
      launch: 'none',
      tasks: [{ name: 'a' }, { name: 'b', after: ['a'] }],
    })
    const [first, second] = plan.assignments
    const differing = [
      { ...first, coreId: 'core-7', orderOnResource: 12 },
      { ...second, resourceId: 'elsewhere', metadata: { coreIds: ['', 'core-9'], runtimeId: 'another' } },
    ]
    const answer = await create({
      run: { id: 'differing', schedulePlanId: world.planId, mode: 'real' },
      plan: { ...plan, assignments: differing },
    })
    expect(answer.status).toBe(422)
    expect(answer.body.details.map((detail: any) => detail.path).sort()).toEqual([
      'plan.assignments.0.coreId',
      'plan.assignments.0.orderOnResource',
      'plan.assignments.1.metadata.coreIds',
      'plan.assignments.1.metadata.runtimeId',
      'plan.assignments.1.resourceId',
    ])
    const foreign = await create({
      run: { id: 'differing', schedulePlanId: world.planId, mode: 'real' },
      plan: { ...plan, assignments: [{ ...first, activityId: 'nobody' }] },
    })
    expect(foreign.status).toBe(422)
    expect(foreign.body.details.map((detail: any) => detail.path).sort()).toEqual([
      'plan.assignments',
      'plan.assignments.0.activityId',
    ])
    const twice = await create({
      run: { id: 'differing', schedulePlanId: world.planId, mode: 'real' },
      plan: { ...plan, assignments: [first, first] },
    })
    expect([twice.status, twice.body.details]).toEqual([
      422,
      [{ path: 'plan.assignments.1.activityId', message: expect.stringMatching(/placed already/) }],
    ])
    await nothing('differing')
    // The same assignments as stored are accepted, in either form of the activity's id.
    expect(
      (
        await create({
          run: { id: 'agreeing', schedulePlanId: world.planId, mode: 'real' },
          plan: {
            ...plan,
            assignments: plan.assignments.map((assignment) => ({
              ...assignment,
              activityId: assignment.activityId.replace('plain-', ''),
            })),
          },
        })
      ).status,
    ).toBe(202)
    await service.finished('agreeing')
  })

  test("refuses a workflow of its own whose dependencies contradict the orders on the plan's lanes", async () => {
    const turned = await makeWorld(service, {
      ...{ name: 'turned', launch: 'none', cores: [1, 1] },
      tasks: ['a', 'b', 'c', 'd'].map((name, i) => ({ name, lane: [i < 2 ? 0 : 1, 0] as const })),
    })
    const { version } = await service.get('/workflow-definitions/turned/')
    const run = (id: string, dependencies: readonly (readonly [string, string])[]) =>
      create({
        run: { id, schedulePlanId: turned.planId, mode: 'real' },
        workflow: {
          ...version,
          dependencies: dependencies.map(([activity, before]) => ({
            ...{ activityId: `turned-${activity}`, dependsOnActivityId: `turned-${before}` },
          })),
        },
      })
    for (const [id, ...dependencies] of [
      ['one-lane', ['a', 'b']],
      ['two-lanes', ['a', 'd'], ['c', 'b']],
    ] as const) {
      const answer = await run(id, dependencies)
      expect([answer.status, answer.body.details]).toEqual([
        422,
        [
          {
            path: 'workflow.dependencies',
            message: expect.stringMatching(
              /^on lane \(resource "turned-host-1", core "core-0", .*"turned-b" comes after "turned-a", against/,
            ),
          },
        ],
      ])
      await nothing(id)
    }
    expect((await run('in-order', [['b', 'a'], ['c', 'b']])).status).toBe(202) // oxfmt-ignore
    expect((await service.finished('in-order')).run.status).toBe('completed')
  })

  test('takes a stored plan back as it was read, also where a task begins on another of its lanes', async () => {
    const { plan } = worldDocuments({
      name: 'plain',
      launch: 'none',
      tasks: [{ name: 'a' }, { name: 'b', after: ['a'] }],
    })
    const [first, second] = plan.assignments
    const lanes = { ...first?.metadata, coreIds: ['k', 'l'] }
    const assignments = [{ ...first, coreId: 'l', metadata: lanes }, second]
    await service.post('/schedule-plans/import/', { plan: { ...plan, id: 'lanes-plan', assignments } })
    const answer = await create({
      run: { id: 'lanes', schedulePlanId: 'lanes-plan', mode: 'simulation' },
      plan: await service.get('/schedule-plans/lanes-plan/'),
    })
    expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
    expect((await service.finished('lanes')).run.status).toBe('completed')
  })

  test('refuses activities for simulation only in mode real, each by name', async () => {
    const document = {
      name: 'thought',
      spec: {
        namespace: 'tests',
        activities: ['x', 'y'].map((name) => ({
          name,
          simulation: { model: 'deterministic', durationSeconds: 1 },
        })),
      },
    }
    const documents = worldDocuments({ name: 'thought', tasks: [{ name: 'x' }, { name: 'y' }] })
    await service.post('/environments/', documents.environment)
    await service.post('/execution-scopes/', documents.scope)
    await service.post('/network-topologies/', documents.topology)
    await service.post('/workflow-definitions/', document)
    await service.post('/schedule-plans/import/', { plan: documents.plan })
    const answer = await create({ id: 'thought-run', schedulePlanId: 'thought-plan', mode: 'real' })
    expect(answer.status).toBe(422)
    for (const name of ['thought-x', 'thought-y'])
      expect(reasons(answer).some((reason) => reason.includes(name))).toBe(true)
    await nothing('thought-run')
    expect(
      (await runToEnd(service, documents.world, { id: 'thought-sim', mode: 'simulation' })).run,
    ).toMatchObject({
      status: 'completed',
      makespanSeconds: 1,
    })
  })

  test('answers 503 not_built before anything is stored for what is not built', async () => {
    for (const body of [
      { id: 'later', schedulePlanId: world.planId, mode: 'interactive' },
      { id: 'later', schedulePlanId: world.planId, mode: 'simulation', simulator: 'simgrid' },
    ]) {
      const answer = await create(body)
      expect([body, answer.status, answer.body.code, answer.headers.get('retry-after')]).toEqual([
        body,
        503,
        'not_built',
        null,
      ])
    }
    await nothing('later')
  })

  test('answers 422 for a cloud runtime with a resource that no capacity target stands for', async () => {
    const remote = await makeWorld(service, { name: 'remote', driver: 'cloud', tasks: [{ name: 'a' }] })
    const answer = await create({ id: 'later', schedulePlanId: remote.planId, mode: 'real' })
    expect([answer.status, reasons(answer).some((reason) => reason.includes('capacity target'))]).toEqual([
      422,
      true,
    ])
    await nothing('later')
  })

  describe('a runtime that names no connection', () => {
    const connection = (id: string, type: string): Record<string, unknown> => ({
      ...{ id, name: id, type, endpoint: 'host.invalid', username: 'u' },
      ...(type === 'kubernetes' ? { configuration: { namespace: 'lab' } } : {}),
    })
    const plan = async (
      name: string,
      driver: 'ssh' | 'slurm' | 'kubernetes',
      types: readonly string[],
      configuration = {},
    ) =>
      makeWorld(service, {
        name,
        tasks: [{ name: 'a', ...(driver === 'kubernetes' ? { image: 'busybox:1.36' } : {}) }],
        places: [{ driver, configuration, capabilities: { container: true } }],
        connections: types.map((type, i) => connection(`${name}-${type}-${String(i)}`, type)),
      })

    test.each([
      ['ssh', 'ssh'],
      ['slurm', 'ssh'],
      ['kubernetes', 'kubernetes'],
    ] as const)('of driver %s means the only one of type %s of its environment', async (driver, type) => {
      const name = `only-${driver}`
      const world = await plan(name, driver, ['cloud', type, type === 'ssh' ? 'kubernetes' : 'ssh'])
      const answer = await create({ id: `${name}-run`, schedulePlanId: world.planId, mode: 'real' })
      expect([answer.status, answer.body.details]).toEqual([202, undefined])
      const [snapshot] = await service.db.prepared<{ configuration: Record<string, unknown> }>(
        'only-connection',
        `select runtime -> 'configuration' as configuration from run_snapshots, jsonb_array_elements(runtimes) runtime
          where execution_run_id = $1`,
        [`${name}-run`],
      )
      expect(snapshot?.configuration).toMatchObject({
        connectionId: `${name}-${type}-1`,
        ...(driver === 'kubernetes' ? { namespace: 'lab', helperImage: 'debian:12-slim' } : {}),
      })
      await service.post(`/execution-runs/${name}-run/cancel/`)
    })

    test('of driver kubernetes is refused where imagePullSecrets name no secrets as Pods do', async () => {
      const configuration = { imagePullSecrets: ['regcred'] }
      const world = await plan('pulls', 'kubernetes', ['kubernetes'], configuration)
      const answer = await create({ id: 'pulls-run', schedulePlanId: world.planId, mode: 'real' })
      expect([answer.status, answer.body.details]).toEqual([
        422,
        [
          {
            path: 'runtimes.pulls-place-1.configuration',
            message: expect.stringMatching(/imagePullSecrets \["regcred"\] .* each as \{name: NAME\}/),
          },
        ],
      ])
      await nothing('pulls-run')
    })

    test.each([
      ['ssh', [], /has no connection of type ssh/],
      ['kubernetes', ['ssh'], /has no connection of type kubernetes/],
      ['ssh', ['ssh', 'ssh'], /"several-2-ssh-0", "several-2-ssh-1"/],
      ['slurm', ['ssh', 'ssh'], /"several-3-ssh-0", "several-3-ssh-1"/],
      ['kubernetes', ['kubernetes', 'kubernetes'], /"several-4-kubernetes-0", "several-4-kubernetes-1"/],
    ] as const)('of driver %s is refused where the environment has %j', async (driver, types, text) => {
      const name = `several-${String(++several)}`
      const world = await plan(name, driver, types)
      const answer = await create({ id: `${name}-run`, schedulePlanId: world.planId, mode: 'real' })
      expect([answer.status, answer.body.details]).toEqual([
        422,
        [
          {
            path: `runtimes.${name}-place-1.configuration.connectionId`,
            message: expect.stringMatching(text),
          },
        ],
      ])
      await nothing(`${name}-run`)
    })
    let several = -1
  })
})
