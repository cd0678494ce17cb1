import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { sql } from '../../src/db/sql.ts'
import { networkModels } from '../../src/simulator/channel.ts'
import { planningDocuments, type PlanningDocuments } from '../support/planning-documents.ts'
import { openService, type TestService } from '../support/service.ts'
import { runsOf } from '../support/share.ts'
import { beforeNextLook } from '../support/pace.ts'

type Json = ReturnType<typeof JSON.parse>

let service: TestService
beforeAll(async () => {
  service = await openService()
})
afterAll(() => service[Symbol.asyncDispose]())

/** A runtime that simulates, bound to every machine. */
const simulated = (environment: Json): Json => ({
  ...environment,
  runtimes: [
    { id: `${environment.environment.id}-sim`, name: 'simulator', driver: 'simgrid', mode: 'simulation' },
  ],
  resourceRuntimeBindings: environment.resources.map(({ id }: Json) => ({
    resourceId: id,
    runtimeId: `${environment.environment.id}-sim`,
    enabled: true,
  })),
})

const post = async (documents: {
  workflow: object
  environment: Json
  scope: object
  topology: object | undefined
}): Promise<Json> => {
  const { version } = await service.post('/workflow-definitions/', documents.workflow)
  await service.post('/environments/', simulated(documents.environment))
  await service.post('/execution-scopes/', documents.scope)
  if (documents.topology !== undefined) await service.post('/network-topologies/', documents.topology)
  return version
}

const ended = async (sessionId: string): Promise<Json> => {
  const began = performance.now()
  for (;;) {
    const { session } = await service.get(`/planning-sessions/${sessionId}/`)
    if (session.status !== 'queued' && session.status !== 'running') return session
    if (performance.now() - began > 120_000)
      throw new Error(`session ${sessionId} is still ${session.status}`)
    await beforeNextLook(began)
  }
}

/** Plans with HEFT; the session and its one candidate. */
const planned = async (
  document: { id: string } & Record<string, unknown>,
): Promise<{ session: Json; candidate: Json }> => {
  await service.post('/planning-sessions/', { algorithms: [{ id: 'heft' }], ...document })
  const session = await ended(document.id)
  const [summary] = await service.get(`/planning-sessions/${document.id}/candidates/`)
  if (summary === undefined) return { session, candidate: undefined }
  return {
    session,
    candidate: await service.get(`/planning-sessions/${document.id}/candidates/${summary.id}/`),
  }
}
const select = (sessionId: string, candidateId: string): Promise<Json> =>
  service.post(`/planning-sessions/${sessionId}/candidates/${candidateId}/select/`)

/** A simulated run of a plan, with nothing but the plan's id. */
const simulate = async (planId: string, more: object = {}): Promise<Json> => {
  await service.post('/execution-runs/', {
    id: `${planId}-run`,
    schedulePlanId: planId,
    mode: 'simulation',
    ...more,
  })
  return service.finished(`${planId}-run`)
}

const ofPlan = (plan: Json): unknown => ({
  makespanSeconds: plan.predicted.makespanSeconds,
  cost: plan.predicted.cost,
  defaultedDurations: plan.defaultedDurations,
  tasks: plan.assignments.map((each: Json) => ({
    externalId: each.externalId,
    readyAt: each.predictedReadyAt,
    startAt: each.predictedStartAt,
    finishAt: each.predictedFinishAt,
    runtime: each.predictedRuntimeSeconds,
    transfer: each.predictedTransferSeconds,
    cost: each.predictedCost,
    source: each.durationSource === 'default' ? 'default' : 'given',
  })),
})
const ofRun = ({ run, activities }: Json): unknown => ({
  makespanSeconds: run.makespanSeconds,
  cost: run.cost,
  defaultedDurations: run.defaultedDurations,
  tasks: activities.map((each: Json) => ({
    externalId: each.externalId,
    readyAt: each.dataReadyAt,
    startAt: each.startedAt,
    finishAt: each.finishedAt,
    runtime: each.runtimeSeconds,
    transfer: each.transferSeconds,
    cost: each.cost,
    source: each.durationSource === 'default' ? 'default' : 'given',
  })),
})

const machine = (id: string, more: object = {}): Json => ({
  id,
  name: id,
  providerId: id,
  executionTarget: 'direct',
  cpuCores: 4,
  cpuCapacity: 4,
  memoryBytes: 2 ** 30,
  computeSpeedup: 1,
  schedulable: true,
  ...more,
})
const environmentOf = (key: string, resources: Json[], version: object = {}): Json => ({
  environment: { id: key, name: key },
  version: { id: `${key}-env-v1`, version: 1, ...version },
  resources,
})
const scopeOf = (key: string): Json => ({
  id: `${key}-scope`,
  name: key,
  environmentVersionIds: [`${key}-env-v1`],
})
const linkOf = (key: string, source: string, target: string, more: object = {}): Json => ({
  id: `${key}-${source}-${target}`,
  sourceResourceId: source,
  targetResourceId: target,
  bandwidthBitsPerSecond: 8e6,
  bidirectional: true,
  ...more,
})
const topologyOf = (key: string, links: Json[]): Json => ({
  id: `${key}-net`,
  name: key,
  version: 1,
  executionScopeId: `${key}-scope`,
  links,
})
const activity = (name: string, more: object = {}): Json => ({
  name,
  cpuLimit: '1',
  memoryLimit: '1Ki',
  simulation: { durationSeconds: 1 },
  ...more,
})

/**
 * One second at one machine, then 10 MB to each of three tasks of a second at the other, over one
 * link of 8 Mbit/s.
 */
const fan = async (key: string, link: object = {}, version: object = {}): Promise<Json> => {
  const [near, far] = [`${key}-near`, `${key}-far`]
  return post({
    workflow: {
      name: key,
      spec: {
        namespace: 'n',
        activities: [
          activity('a', { resourceSelector: near }),
          ...['b', 'c', 'd'].map((name) => activity(name, { resourceSelector: far, dependsOn: ['a'] })),
        ],
        dataDependencies: ['b', 'c', 'd'].map((name) => ({
          producerActivity: 'a',
          consumerActivity: name,
          logicalName: name,
          sizeBytes: 10_000_000,
        })),
      },
    },
    environment: environmentOf(key, [machine(near), machine(far)], version),
    scope: scopeOf(key),
    topology: topologyOf(key, [linkOf(key, near, far, link)]),
  })
}
const sessionOf = (key: string, more: object = {}): { id: string } & Record<string, unknown> => ({
  id: `${key}-session`,
  workflowVersionId: `${key}-v1`,
  executionScopeId: `${key}-scope`,
  networkTopologyId: `${key}-net`,
  ...more,
})
const fanPlan = (key: string, id: string, more: object = {}): Json => ({
  id,
  workflowVersionId: `${key}-v1`,
  executionScopeId: `${key}-scope`,
  networkTopologyId: `${key}-net`,
  assignments: ['a', 'b', 'c', 'd'].map((activityId, k) => ({
    activityId,
    resourceId: `${key}-${activityId === 'a' ? 'near' : 'far'}`,
    coreId: `core-${k}`,
    orderOnResource: k,
  })),
  ...more,
})

describe('what a plan is predicted to take and cost', () => {
  test('three flows share one link: 32 s and not the 12 s of a network without others, so a deadline of 15 s is missed', async () => {
    await fan('fan')
    const { session, candidate } = await planned(sessionOf('fan', { deadlineSeconds: 15 }))
    expect(session).toMatchObject({ status: 'completed', networkModel: 'by-policy' })
    expect(candidate).toMatchObject({
      feasible: false,
      contentionFreeMakespanSeconds: 12,
      predicted: {
        makespanSeconds: 32,
        feasible: false,
        reasons: ['its makespan 32 s is beyond the deadline 15 s'],
      },
    })
    const refused = await service.call(
      'POST',
      `/planning-sessions/fan-session/candidates/${candidate.id}/select/`,
    )
    expect([refused.status, refused.body.error]).toEqual([
      422,
      expect.stringContaining('beyond the deadline 15 s'),
    ])

    const patient = await planned(sessionOf('fan', { id: 'fan-patient', deadlineSeconds: 32 }))
    const plan = await select('fan-patient', patient.candidate.id)
    expect(plan).toMatchObject({
      networkModel: 'by-policy',
      contentionFreeMakespanSeconds: 12,
      predicted: { feasible: true },
    })
    const run = await simulate(plan.id)
    expect(ofRun(run)).toEqual(ofPlan(plan))
    expect(run.run).toMatchObject({ makespanSeconds: 32, networkModel: 'by-policy' })
  })

  test('an imported plan keeps what it predicted beside the answer, and is infeasible for what its figures miss', async () => {
    await fan('kept')
    const times = {
      predictedReadyAt: 0,
      predictedStartAt: 3,
      predictedFinishAt: 5,
      predictedRuntimeSeconds: 2,
      predictedTransferSeconds: 0,
      predictedCost: 0,
    }
    const document = fanPlan('kept', 'kept-plan', {
      deadlineSeconds: 15,
      predicted: { makespanSeconds: 12, cost: 1, feasible: true },
    })
    Object.assign(document.assignments[1], times)
    const plan = await service.post('/schedule-plans/import/', { plan: document })
    expect(plan).toMatchObject({
      predicted: {
        makespanSeconds: 32,
        cost: 0,
        feasible: false,
        reasons: ['its makespan 32 s is beyond the deadline 15 s'],
      },
      submittedPrediction: { makespanSeconds: 12, cost: 1, feasible: true },
    })
    expect(plan.assignments.map((each: Json) => each.submittedPrediction)).toEqual([
      undefined,
      times,
      undefined,
      undefined,
    ])
    expect(plan.assignments[1]).toMatchObject({
      predictedStartAt: 31,
      predictedFinishAt: 32,
      predictedRuntimeSeconds: 1,
    })
    expect(await service.get('/schedule-plans/kept-plan/')).toEqual(plan)
    // What was read can be sent again: the same answer, and its figures become what was submitted.
    const { id: _id, ...read } = plan
    const again = await service.post('/schedule-plans/import/', {
      plan: {
        ...read,
        id: 'kept-again',
        assignments: read.assignments.map((each: Json) => ({ ...each, id: '', planId: '' })),
      },
    })
    expect([again.predicted, again.submittedPrediction]).toEqual([
      plan.predicted,
      { makespanSeconds: 32, cost: 0, feasible: false },
    ])
    expect(ofRun(await simulate('kept-again'))).toEqual(ofPlan(plan))
  })

  test('a profile that comes, changes or goes counts for later plans, and changes no plan that is there', async () => {
    const version = await fan('measured')
    const profile = (key: string, runtimeSeconds: number): Json => ({
      ...{ id: `measured-${key}`, activityTypeId: version.activities[0].activityTypeId },
      ...{ resourceId: 'measured-far', runtimeSeconds, modelVersion: key },
    })
    const site = (...activityResourceProfiles: Json[]): Json => ({
      environment: { id: 'measured-site', name: 'measured-site' },
      version: { id: 'measured-site-v1', version: 1 },
      activityResourceProfiles,
    })
    const made = (id: string): Promise<Json> =>
      service.post('/schedule-plans/import/', { plan: fanPlan('measured', id) })
    const before = await made('measured-before')
    expect(before.predicted.makespanSeconds).toBe(32)
    await service.post('/environments/', site(profile('1', 5)))
    const after = await made('measured-after')
    expect([after.predicted.makespanSeconds, after.assignments[1].durationSource]).toEqual([36, 'profile'])
    const { session, candidate } = await planned(sessionOf('measured'))
    expect(ofRun(await simulate(before.id))).toEqual(ofPlan(before))

    await service.ok('PUT', '/environments/measured-site/', site(profile('1', 5), profile('2', 7)))
    expect(ofRun(await simulate(after.id))).toEqual(ofPlan(after))
    await service.ok('PUT', '/environments/measured-site/', site())
    const selected = await select(session.id, candidate.id)
    expect(ofRun(await simulate(selected.id))).toEqual(ofPlan(selected))
    // A run may bring profiles of its own.
    await service.post('/execution-runs/', {
      ...{ id: 'measured-own', schedulePlanId: before.id, mode: 'simulation' },
      activityProfiles: [profile('3', 11)],
    })
    expect((await service.finished('measured-own')).run.makespanSeconds).toBe(42)
  })

  test('a plan on machines of the longest ids can be sent again', async () => {
    const [wide, queue] = [`w${'😀'.repeat(254)}`, `q${'😀'.repeat(254)}`]
    await post({
      workflow: {
        name: 'names',
        spec: {
          namespace: 'n',
          activities: [
            activity('a', { cpuLimit: '2', resourceSelector: wide }),
            activity('b', { resourceSelector: queue }),
          ],
        },
      },
      environment: environmentOf('names', [
        machine(wide),
        machine(queue, { executionTarget: 'batch', type: 'batch_queue' }),
      ]),
      scope: scopeOf('names'),
      topology: undefined,
    })
    const { session, candidate } = await planned(sessionOf('names', { networkTopologyId: '' }))
    const { id: _id, ...read } = await select(session.id, candidate.id)
    const again = await service.post('/schedule-plans/import/', {
      plan: {
        ...read,
        id: 'names-again',
        assignments: read.assignments.map((each: Json) => ({ ...each, id: '', planId: '' })),
      },
    })
    const lanes = ({ assignments }: Json): unknown =>
      assignments.map(({ coreId, slotId, metadata }: Json) => [coreId, slotId, metadata.coreIds])
    expect(lanes(again)).toEqual(lanes(read))
    expect(ofRun(await simulate(again.id))).toEqual(ofPlan(again))
  })

  test('a plan whose data has no route is stored as infeasible, with the route that is missing', async () => {
    await fan('island', { bidirectional: false })
    const back = fanPlan('island', 'island-plan')
    for (const each of back.assignments)
      Object.assign(each, {
        resourceId: `island-${each.activityId === 'a' ? 'far' : 'near'}`,
        metadata: { resourceSelectorOverride: true },
      })
    const plan = await service.post('/schedule-plans/import/', { plan: back })
    expect(plan.predicted).toEqual({
      makespanSeconds: 0,
      cost: 0,
      feasible: false,
      reasons: [
        expect.stringMatching(
          /^no route for 10000000 bytes from "island-a" on "island-far" to "island-b" on "island-near"/,
        ),
      ],
    })
    const { run } = await simulate('island-plan')
    expect([run.status, run.failureReason]).toEqual(['failed', plan.predicted.reasons[0]])
    const dear = { id: 'dear', schedulePlanId: 'island-plan', mode: 'real', budget: 1_000_000 }
    const refused = await service.call('POST', '/execution-runs/', dear)
    expect([refused.status, refused.body.details]).toEqual([
      422,
      [{ path: 'run.budget', message: expect.stringMatching(/cannot be predicted \(no route for .*choose/) }],
    ])
  })

  test('a plan that takes longer than any may fails in its simulation for the reason that it was given', async () => {
    await post({
      workflow: {
        name: 'ages',
        spec: { namespace: 'n', activities: [activity('a', { simulation: { durationSeconds: 1e9 } })] },
      },
      environment: environmentOf('ages', [machine('ages-near', { computeSpeedup: 1e-6 })]),
      scope: scopeOf('ages'),
      topology: undefined,
    })
    const plan = await service.post('/schedule-plans/import/', {
      plan: {
        ...{ id: 'ages-plan', workflowVersionId: 'ages-v1', executionScopeId: 'ages-scope' },
        assignments: [{ activityId: 'a', resourceId: 'ages-near', coreId: 'core-0', orderOnResource: 0 }],
      },
    })
    expect(plan.predicted).toMatchObject({
      feasible: false,
      reasons: [expect.stringMatching(/^its makespan 1000000000000000 s is beyond/)],
    })
    const { run } = await simulate('ages-plan')
    expect([run.status, run.failureReason]).toEqual(['failed', plan.predicted.reasons[0]])
  })

  test.each([
    ['dear', { diskPricePerGiBMonth: 1e200, diskSizeGiB: 1e200 }],
    ['lasting', { lifecyclePolicy: 'keep', idleSeconds: 1e308 }],
    ['late', { terraformSeconds: 1e308, sshWaitSeconds: 1e308 }],
  ])('a figure of a machine’s metadata beyond all bounds does not count: %s', async (key, figures) => {
    const id = `${key}-vm`
    const metadata = { capacityTargetId: id, ...figures }
    await post({
      workflow: { name: key, spec: { namespace: 'n', activities: [activity('a')] } },
      environment: environmentOf(key, [
        machine(id, { executionTarget: 'provisioned', pricePerSecond: 10, metadata }),
      ]),
      scope: scopeOf(key),
      topology: undefined,
    })
    const { session, candidate } = await planned(sessionOf(key, { networkTopologyId: '' }))
    expect([session.status, session.failureReason]).toEqual(['completed', undefined])
    const document = (planId: string, more: object = {}): Json => ({
      ...{ id: planId, workflowVersionId: `${key}-v1`, executionScopeId: `${key}-scope` },
      assignments: [{ activityId: 'a', resourceId: id, orderOnResource: 1 }],
      ...more,
    })
    const plan = await service.post('/schedule-plans/import/', { plan: document(`${key}-plan`) })
    for (const { predicted } of [candidate, plan]) {
      expect([predicted.makespanSeconds, predicted.feasible]).toEqual([1, true])
      expect(predicted.cost).toBeLessThan(1e5)
    }
    expect(ofRun(await simulate(plan.id))).toEqual(ofPlan(plan))

    // Within the bounds of its member, and so late that the second of the task is lost in rounding.
    const action = { id: 'x', capacityTargetId: id, action: 'provision', earliestStart: 1e17 }
    const late = await service.post('/schedule-plans/import/', {
      plan: document(`${key}-late`, { lifecycleActions: [action] }),
    })
    expect(late.predicted).toMatchObject({
      feasible: false,
      reasons: [expect.stringMatching(/ends at 100000000000000000 s, beyond .*lifecycleActions/)],
    })
  })

  test('a run ends with data beyond what its count of bytes holds, as an older version stored it', async () => {
    await fan('heavy', { bandwidthBitsPerSecond: 1e18 })
    await service.post('/schedule-plans/import/', { plan: fanPlan('heavy', 'heavy-plan') })
    await service.db.prepared(
      'heavy',
      `update workflow_data_dependencies set size_bytes = 4000000000000000000 where workflow_version_id = 'heavy-v1'`,
      [],
    )
    const { run } = await simulate('heavy-plan')
    expect([run.status, run.transferredBytes]).toEqual(['completed', Number(2n ** 63n - 1n)])
  })

  test('the model is the session’s, else the first that a version names; a run of the plan has it too, and may name another', async () => {
    await fan('named', { sharingPolicy: 'fatpipe' }, { networkModel: 'by-policy' })
    await fan('wide', { sharingPolicy: 'fatpipe' }, { networkModel: 'max-min' })
    const free = await planned(sessionOf('named'))
    const shared = await planned(sessionOf('named', { id: 'named-max-min', networkModel: 'max-min' }))
    const version = await planned(sessionOf('wide'))
    // A fatpipe is shared by the model that is named max-min, and not by the default, which is by
    // policy.
    expect(
      [free, shared, version].map(({ session, candidate }) => [
        session.networkModel,
        candidate.predicted.makespanSeconds,
      ]),
    ).toEqual([
      ['by-policy', 12],
      ['max-min', 32],
      ['max-min', 32],
    ])
    const plan = await select('named-max-min', shared.candidate.id)
    expect((await simulate(plan.id)).run).toMatchObject({ makespanSeconds: 32, networkModel: 'max-min' })
    await service.post('/execution-runs/', {
      id: 'named-other',
      schedulePlanId: plan.id,
      mode: 'simulation',
      networkModel: 'by-policy',
    })
    expect((await service.finished('named-other')).run).toMatchObject({
      makespanSeconds: 12,
      networkModel: 'by-policy',
    })
  })

  const links = fc.array(
    fc.record({
      sharingPolicy: fc.constantFrom(undefined, 'shared', 'fatpipe', 'independent'),
      maxConcurrentTransfers: fc.constantFrom(0, 0, 1, 2),
      split: fc.boolean(),
    }),
    { minLength: 4, maxLength: 4 },
  )
  const cases = fc.record({
    // Two machines and a network at least, so that something is moved.
    documents: planningDocuments('case', 12).filter(
      ({ topology, workflow, environment }) =>
        topology !== undefined && workflow.spec.activities.length > 5 && environment.resources.length > 2,
    ),
    links,
    session: fc.option(fc.constantFrom(...networkModels), { nil: undefined }),
    version: fc.constantFrom('', 'static-links', 'by-policy', 'max-min', 'cm02'),
    places: fc.array(fc.nat(3), { minLength: 12, maxLength: 12 }),
    speedup: fc.constantFrom(1, 3),
  })

  /**
   * The documents under ids of their own, with these links, and some activities that have no
   * duration at all.
   */
  const worldOf = (given: Json, key: string): PlanningDocuments => {
    const documents = JSON.parse(JSON.stringify(given.documents).replaceAll('case', key))
    documents.environment.version.networkModel = given.version
    documents.topology?.links.forEach((link: Json, k: number) => {
      const { split, ...kind } = given.links[k]
      Object.assign(link, kind, split ? { metadata: { duplex: 'split' } } : {})
    })
    documents.workflow.spec.image = 'debian:12-slim'
    documents.workflow.spec.activities.forEach((each: Json, k: number) => {
      if (k % 5 !== 3) return
      delete each.simulation
      each.run = 'true'
    })
    return documents
  }

  /**
   * A plan by dice: each activity on a machine that takes it, two lanes each, in the order of the
   * document.
   */
  const anyPlan = (given: Json, world: PlanningDocuments, id: string, workflowVersionId: string): Json => {
    const machines = world.environment.resources.filter(({ schedulable }) => schedulable)
    const cpus: Record<string, number> = { '500m': 0.5, '1': 1, '2': 2 }
    return {
      id,
      workflowVersionId,
      executionScopeId: world.scope.id,
      networkTopologyId: world.topology?.id ?? '',
      ...(given.session === undefined ? {} : { networkModel: given.session }),
      assignments: world.workflow.spec.activities.map(
        ({ name, cpuLimit, memoryLimit, resourceSelector }, k) => {
          const wanted = machines[given.places[k] % machines.length]!
          const fits =
            wanted.executionTarget === 'batch' ||
            (cpus[cpuLimit]! <= wanted.cpuCapacity && Number(memoryLimit) <= wanted.memoryBytes)
          return {
            activityId: name,
            resourceId: fits && resourceSelector === undefined ? wanted.id : machines[0]!.id,
            coreId: `lane-${given.places[k] % 2}`,
            orderOnResource: k,
          }
        },
      ),
    }
  }

  test('any workflow on any network: predicted is simulated, to the last digit, of a candidate, an import and a plan with its own resources', async () => {
    let number = 0
    let contended = 0
    await fc.assert(
      fc.asyncProperty(cases, async (given) => {
        const key = `pred${++number}x`
        const world = worldOf(given, key)
        const version = await post(world)
        const { session, candidate } = await planned({
          id: `${key}-session`,
          workflowVersionId: version.id,
          executionScopeId: world.scope.id,
          networkTopologyId: world.topology?.id ?? '',
          ...(given.session === undefined ? {} : { networkModel: given.session }),
        })
        expect(session.status).toBe('completed')
        const selected = await select(session.id, candidate.id)
        expect(selected.predicted).toEqual(candidate.predicted)
        const imported = await service.post('/schedule-plans/import/', {
          plan: anyPlan(given, world, `${key}-import`, version.id),
        })
        const faster = world.environment.resources.map((each, k) =>
          k === 0 ? { ...each, computeSpeedup: given.speedup } : each,
        )
        const own = await service.post('/schedule-plans/', {
          plan: anyPlan(given, world, `${key}-own`, version.id),
          workflow: version,
          resources: faster,
          executionScope: world.scope,
          ...(world.topology === undefined ? {} : { networkTopology: world.topology }),
        })
        for (const plan of [selected, imported, own]) {
          const run = await simulate(plan.id)
          expect([run.run.status, run.run.networkModel]).toEqual(['completed', plan.networkModel])
          expect(ofRun(run)).toEqual(ofPlan(plan))
          if (run.run.breakdown.interferenceSeconds > 0) contended++
          expect(run.run.breakdown.interferenceSeconds).toBeLessThanOrEqual(
            run.run.breakdown.transferSeconds + 1e-9,
          )
        }
      }),
      { numRuns: runsOf(3, 20), seed: 16 },
    )
    // The cases are not all without contention.
    expect(contended).toBeGreaterThan(runsOf(0, 5))
  }, 600_000)
})

describe('durations that nothing gives', () => {
  test('count one second over speedup, and plan and run count as many', async () => {
    const key = 'silent'
    const version = await post({
      workflow: {
        name: key,
        spec: {
          namespace: 'n',
          image: 'debian:12-slim',
          activities: [
            { name: 'a', run: 'true', cpuLimit: '1', memoryLimit: '1Ki' },
            activity('b', { dependsOn: ['a'] }),
            { name: 'c', run: 'true', cpuLimit: '1', memoryLimit: '1Ki', dependsOn: ['b'] },
          ],
        },
      },
      environment: environmentOf(key, [
        machine('silent-slow'),
        machine('silent-fast', { computeSpeedup: 4 }),
      ]),
      scope: scopeOf(key),
      topology: undefined,
    })
    const { session, candidate } = await planned(sessionOf(key, { networkTopologyId: '' }))
    expect([
      session.defaultedDurations,
      candidate.plan.defaultedDurations,
      candidate.predicted.makespanSeconds,
    ]).toEqual([2, 2, 0.75])
    expect(candidate.plan.assignments.map((each: Json) => [each.resourceId, each.durationSource])).toEqual([
      ['silent-fast', 'default'],
      ['silent-fast', 'simulation'],
      ['silent-fast', 'default'],
    ])
    const selected = await select(session.id, candidate.id)
    const imported = await service.post('/schedule-plans/import/', {
      plan: {
        id: 'silent-import',
        workflowVersionId: version.id,
        executionScopeId: 'silent-scope',
        assignments: [
          { activityId: 'a', resourceId: 'silent-fast', orderOnResource: 1 },
          { activityId: 'b', resourceId: 'silent-fast', orderOnResource: 2 },
          { activityId: 'c', resourceId: 'silent-slow', orderOnResource: 1, predictedRuntimeSeconds: 7 },
        ],
      },
    })
    // The author of the plan gave one of them.
    expect([
      imported.defaultedDurations,
      imported.assignments[2].durationSource,
      imported.predicted.makespanSeconds,
    ]).toEqual([1, 'plan', 7.5])
    for (const plan of [selected, imported]) expect(ofRun(await simulate(plan.id))).toEqual(ofPlan(plan))
  })
})

describe('batch targets', () => {
  test('take tasks of any size, an omitted target is one, and a task with more cores than lanes takes all of them', async () => {
    const key = 'batch'
    const { executionTarget: _, ...small } = machine('batch-small', {
      cpuCores: 2,
      cpuCapacity: 2,
      memoryBytes: 1000,
    })
    const version = await post({
      workflow: {
        name: key,
        spec: {
          namespace: 'n',
          activities: [
            activity('wide', { cpuLimit: '8', memoryLimit: '1Gi' }),
            activity('a', { memoryLimit: '400' }),
            activity('b', { memoryLimit: '400' }),
          ],
        },
      },
      environment: environmentOf(key, [
        small,
        machine('batch-direct', { cpuCores: 2, cpuCapacity: 4, schedulable: false }),
      ]),
      scope: scopeOf(key),
      topology: undefined,
    })
    const { session, candidate } = await planned(sessionOf(key, { networkTopologyId: '' }))
    expect([session.status, session.failureReason]).toEqual(['completed', undefined])
    const held = Object.fromEntries(
      candidate.plan.assignments.map((each: Json) => [
        each.externalId,
        each.metadata.coreIds ?? [each.coreId],
      ]),
    )
    expect(held['wide']).toEqual(['batch-small-core-0', 'batch-small-core-1'])
    expect([held['a'], held['b']].map((cores) => cores.length)).toEqual([1, 1])
    // Alone for a second, then the two others side by side.
    expect(candidate.predicted.makespanSeconds).toBe(2)
    const plan = await select(session.id, candidate.id)
    expect(ofRun(await simulate(plan.id))).toEqual(ofPlan(plan))
    const imported = (resourceId: string, id: string) =>
      service.call('POST', '/schedule-plans/import/', {
        plan: {
          id,
          workflowVersionId: version.id,
          executionScopeId: 'batch-scope',
          assignments: ['wide', 'a', 'b'].map((activityId, k) => ({
            activityId,
            resourceId,
            orderOnResource: k,
          })),
        },
      })
    const taken = await imported('batch-small', 'batch-import')
    expect([taken.status, taken.text.slice(0, 300)]).toEqual([201, expect.any(String)])
    expect((await simulate('batch-import')).run.status).toBe('completed')
  })

  test('other targets are checked, and a task that fits their capacity takes all lanes where it wants more', async () => {
    const key = 'direct'
    await post({
      workflow: {
        name: key,
        spec: { namespace: 'n', activities: [activity('wide', { cpuLimit: '3' }), activity('a')] },
      },
      environment: environmentOf(key, [machine('direct-1', { cpuCores: 2, cpuCapacity: 4 })]),
      scope: scopeOf(key),
      topology: undefined,
    })
    const { candidate } = await planned(sessionOf(key, { networkTopologyId: '' }))
    const wide = candidate.plan.assignments.find((each: Json) => each.externalId === 'wide')
    expect(wide.metadata.coreIds).toEqual(['direct-1-core-0', 'direct-1-core-1'])
    await post({
      workflow: {
        name: 'toowide',
        spec: { namespace: 'n', activities: [activity('wide', { cpuLimit: '8' })] },
      },
      environment: environmentOf('toowide', [machine('toowide-1')]),
      scope: scopeOf('toowide'),
      topology: undefined,
    })
    const refused = await planned(sessionOf('toowide', { networkTopologyId: '' }))
    expect([refused.session.status, refused.candidate]).toEqual(['failed', undefined])
  })
})

describe('network models', () => {
  test('every model can be named by a session, a plan and a run; interference is a part of transfer', async () => {
    await fan('models')
    for (const networkModel of networkModels) {
      const plan = await service.post('/schedule-plans/import/', {
        plan: fanPlan('models', `models-${networkModel}`, { networkModel }),
      })
      expect(plan.networkModel).toBe(networkModel)
      const run = await simulate(plan.id, { networkModel })
      expect([run.run.status, run.run.networkModel]).toEqual(['completed', networkModel])
      expect(ofRun(run)).toEqual(ofPlan(plan))
    }
    const { activities } = await service.get('/execution-runs/models-by-policy-run/')
    expect(activities.map((each: Json) => [each.transferSeconds, each.interferenceSeconds])).toEqual([
      [0, 0],
      [30, 20],
      [30, 20],
      [30, 20],
    ])
    const refused = await service.call('POST', '/planning-sessions/', {
      algorithms: [{ id: 'heft' }],
      ...sessionOf('models', { networkModel: 'magic' }),
    })
    expect([refused.status, refused.body.details[0].path]).toEqual([422, 'networkModel'])
  })

  test('a topology that mixes links with and without latency starves flows, and is named in the warnings of session and run', async () => {
    const key = 'mixed'
    const [x, y, z] = ['mixed-x', 'mixed-y', 'mixed-z']
    await post({
      workflow: {
        name: key,
        spec: {
          namespace: 'n',
          activities: [
            activity('a', { resourceSelector: x }),
            activity('b', { resourceSelector: y, dependsOn: ['a'] }),
            activity('c', { resourceSelector: z, dependsOn: ['a'] }),
          ],
          dataDependencies: ['b', 'c'].map((name) => ({
            producerActivity: 'a',
            consumerActivity: name,
            logicalName: name,
            sizeBytes: 10_000_000,
          })),
        },
      },
      environment: environmentOf(key, [machine(x), machine(y), machine(z)]),
      scope: scopeOf(key),
      topology: topologyOf(key, [
        linkOf(key, x, y),
        linkOf(key, y, z, { latencySeconds: 0.001, bandwidthBitsPerSecond: 8e9 }),
      ]),
    })
    const { session, candidate } = await planned(sessionOf(key))
    expect(session.warnings).toEqual([
      {
        path: 'networkTopologyId',
        message: expect.stringMatching(
          /links of latency 0 \(such as "mixed-mixed-x-mixed-y"\) beside .*"mixed-mixed-y-mixed-z", 0.001 s/,
        ),
      },
    ])
    // Two equal flows over one link: the one whose route has a further hop of 1 ms takes nearly all
    // of it.
    expect(candidate.plan.assignments.map((each: Json) => Math.round(each.predictedTransferSeconds))).toEqual(
      [0, 20, 10],
    )
    const plan = await select(session.id, candidate.id)
    expect((await simulate(plan.id)).run.warnings).toEqual([
      { path: 'networkTopology', message: session.warnings[0].message },
    ])
    await service.post('/execution-runs/', {
      id: 'mixed-free',
      schedulePlanId: plan.id,
      mode: 'simulation',
      networkModel: 'contention-free',
    })
    expect((await service.finished('mixed-free')).run.warnings).toEqual([])
  })
})

test('a plan that an earlier version stored keeps what it says, and can be simulated', async () => {
  await fan('old')
  await service.post('/schedule-plans/import/', { plan: fanPlan('old', 'old-plan') })
  await service.db.run(
    sql`update schedule_plans set network_model = null, predicted_makespan_seconds = 12, predicted_feasible =
      false where id = 'old-plan'`,
  )
  await service.db.run(
    sql`update schedule_plan_assignments set duration_source = null where schedule_plan_id = 'old-plan'`,
  )
  const plan = await service.get('/schedule-plans/old-plan/')
  expect([plan.networkModel, plan.predicted]).toEqual([
    undefined,
    { makespanSeconds: 12, cost: 0, feasible: false },
  ])
  expect((await simulate('old-plan')).run).toMatchObject({
    status: 'completed',
    makespanSeconds: 32,
    networkModel: 'by-policy',
  })
})
