import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { sql } from '../../src/db/sql.ts'
import { storedVersion } from '../../src/domains/schedule-plans/load-problem.ts'
import { startPlanning, type PlanningApp } from '../support/planning-app.ts'

type Json = ReturnType<typeof JSON.parse>

let app: PlanningApp
/** What happens while a plan is simulated. */
let meanwhile: (() => Promise<unknown>) | undefined
beforeAll(async () => {
  app = await startPlanning(undefined, (compute) => ({
    ...compute,
    simulate: async (...given) => {
      await meanwhile?.()
      return compute.simulate(...given)
    },
  }))
  await send('POST', '/workflow-definitions/', workflow)
  await send('POST', '/workflow-definitions/', { ...workflow, name: 'other' })
  await send('POST', '/environments/', environment)
  await send('POST', '/environments/', {
    environment: { id: 'away', name: 'away' },
    version: { id: 'away-v1', version: 1 },
    resources: [machine('far')],
  })
  await send('POST', '/execution-scopes/', scope)
  await send('POST', '/execution-scopes/', {
    id: 'other-scope',
    name: 'other',
    environmentVersionIds: ['away-v1'],
  })
  await send('POST', '/network-topologies/', topology)
  await send('POST', '/network-topologies/', {
    id: 'other-net',
    name: 'n',
    version: 1,
    executionScopeId: 'other-scope',
    links: [],
  })
  stored = (await send('GET', '/workflow-definitions/chain/')).version
})
afterAll(() => app.close())

const send = async (method: string, path: string, body?: unknown): Promise<Json> => {
  const answer = await app.call(method, path, body)
  if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${answer.text}`)
  return answer.body
}

const activity = (name: string, more: object = {}): object => ({
  name,
  cpuLimit: '1',
  memoryLimit: '1Ki',
  simulation: { durationSeconds: 2 },
  ...more,
})
const workflow = {
  name: 'chain',
  spec: {
    namespace: 'n',
    activities: [
      activity('a'),
      activity('b', { dependsOn: ['a'] }),
      activity('c', { dependsOn: ['b'], resourceSelector: 'm1' }),
    ],
  },
}
const machine = (id: string, more: object = {}): Json => ({
  id,
  name: id,
  providerId: id,
  executionTarget: 'direct',
  cpuCores: 2,
  cpuCapacity: 2,
  memoryBytes: 4096,
  computeSpeedup: 1,
  schedulable: true,
  ...more,
})
const environment = {
  environment: { id: 'env', name: 'env' },
  version: { id: 'env-v1', version: 1 },
  resources: [
    machine('m1'),
    machine('m2', { computeSpeedup: 2, pricePerSecond: 1 }),
    machine('shelf', { schedulable: false }),
    machine('small', { cpuCapacity: 0.5, cpuCores: 1, memoryBytes: 100 }),
  ],
}
const scope = { id: 'scope', name: 'scope', environmentVersionIds: ['env-v1'] }
const topology = {
  id: 'net',
  name: 'net',
  version: 1,
  executionScopeId: 'scope',
  links: [{ id: 'l', sourceResourceId: 'm1', targetResourceId: 'm2', bandwidthBitsPerSecond: 1e6 }],
}
let stored: Json

const assignment = (
  activityId: string,
  resourceId: string,
  orderOnResource: number,
  more: object = {},
): Json => ({
  activityId,
  resourceId,
  orderOnResource,
  ...more,
})
const plan = (id: string, more: object = {}): Json => ({
  id,
  workflowVersionId: 'chain-v1',
  executionScopeId: 'scope',
  networkTopologyId: 'net',
  predicted: { makespanSeconds: 6, cost: 1, feasible: true },
  assignments: [
    assignment('a', 'm1', 1),
    assignment('chain-b', 'm2', 1, { predictedStartAt: 2, predictedFinishAt: 4 }),
    assignment('c', 'm1', 2),
  ],
  ...more,
})
const envelope = (id: string, more: object = {}): Json => ({
  plan: plan(id),
  workflow: stored,
  resources: environment.resources,
  executionScope: scope,
  networkTopology: topology,
  ...more,
})

const details = async (
  body: unknown,
  path = '/schedule-plans/import/',
  status = 422,
): Promise<{ path: string; message: string }[]> => {
  const before = await app.counts()
  const answer = await app.call('POST', path, body)
  expect([answer.status, answer.text.slice(0, 300)]).toEqual([status, expect.any(String)])
  expect(await app.counts()).toEqual(before)
  return answer.body.details
}
const paths = async (...args: Parameters<typeof details>): Promise<string[]> =>
  [...new Set((await details(...args)).map(({ path }) => path))].sort()

describe('plans', () => {
  test('a stored plan keeps the form of its ids, adds the short ones, and is listed without its assignments', async () => {
    const made = await app.call('POST', '/schedule-plans/import/', { plan: plan('p1') })
    expect([made.status, made.headers.get('location')]).toEqual([201, '/api/schedule-plans/p1/'])
    expect(made.body).toMatchObject({
      id: 'p1',
      source: 'imported',
      assignmentCount: 3,
      networkTopologyId: 'net',
      deadlineSeconds: 0,
      budget: 0,
    })
    expect(
      made.body.assignments.map(({ id, planId, activityId, externalId }: Json) => [
        id,
        planId,
        activityId,
        externalId,
      ]),
    ).toEqual([
      ['p1-a', 'p1', 'a', 'a'],
      ['p1-chain-b', 'p1', 'chain-b', 'b'],
      ['p1-c', 'p1', 'c', 'c'],
    ])
    expect(await send('GET', '/schedule-plans/p1/')).toEqual(made.body)
    const { assignments: _, ...summary } = made.body
    await send('POST', '/schedule-plans/import/', { plan: plan('p2') })
    const list = await app.call('GET', '/schedule-plans/?pageSize=1&page=2')
    expect(list.body).toEqual([summary])
    expect([list.headers.get('x-total-count'), list.headers.get('link')]).toEqual([
      '2',
      expect.stringContaining('rel="prev"'),
    ])
    const page = await send('GET', '/schedule-plans/p1/assignments/?page=2&pageSize=2')
    expect(page).toEqual({
      items: [made.body.assignments[2]],
      page: 2,
      pageSize: 2,
      total: 3,
      hasNext: false,
    })
  })

  test('what was read can be sent again under another id, alone and in its envelope', async () => {
    const read = await send('GET', '/schedule-plans/p1/')
    const copy = (id: string): Json => ({
      ...read,
      id,
      assignments: read.assignments.map((each: Json) => ({ ...each, planId: id })),
    })
    expect(
      (await send('POST', '/schedule-plans/import/', { plan: copy('p1-again') })).assignments[0].id,
    ).toBe('p1-a')
    const made = await send('POST', '/schedule-plans/', envelope('e1', { plan: copy('e1') }))
    expect(made.embedded).toBeUndefined()
    expect(made.source).toBe('imported')
    expect((await send('POST', '/schedule-plans/', envelope('e1b'))).source).toBe('manual')
  })

  test('documents in an envelope that differ from the store are kept with the plan and change nothing stored', async () => {
    const before = await app.counts()
    const faster = environment.resources.map((resource) => ({ ...resource, computeSpeedup: 3 }))
    const longer = {
      ...stored,
      activities: stored.activities.map((each: Json) => ({ ...each, simulation: { durationSeconds: 9 } })),
    }
    const made = await send(
      'POST',
      '/schedule-plans/',
      envelope('e2', { resources: faster, workflow: longer, executionScope: { ...scope, name: 'renamed' } }),
    )
    expect(made.embedded).toEqual(['workflow', 'resources', 'executionScope'])
    const listed = (await send('GET', '/schedule-plans/')).find(({ id }: Json) => id === 'e2')
    expect(listed.embedded).toEqual(made.embedded)
    expect(
      (await send('GET', '/resources/')).filter((resource: Json) => resource.computeSpeedup === 3),
    ).toEqual([])
    expect((await send('GET', '/execution-scopes/scope/')).name).toBe('scope')
    expect((await send('GET', '/workflow-definitions/chain/')).version).toEqual(stored)
    const after = await app.counts()
    // The same copy again is stored once.
    await send('POST', '/schedule-plans/', envelope('e3', { workflow: longer }))
    expect([
      after['workflow_versions']! - before['workflow_versions']!,
      (await app.counts())['workflow_versions'],
    ]).toEqual([1, after['workflow_versions']])
  })

  /** An envelope with a workflow of its own, whose activities take `seconds`. */
  const altered = (id: string, of: Json, seconds: number, more: object = {}): Json => ({
    ...envelope(id),
    plan: plan(id, {
      workflowVersionId: of.id,
      assignments: ['a', 'b', 'c'].map((each, at) => assignment(each, 'm1', at)),
    }),
    workflow: {
      ...of,
      ...more,
      activities: of.activities.map((each: Json) => ({ ...each, simulation: { durationSeconds: seconds } })),
    },
  })
  const versionOf = async (name: string): Promise<Json> => {
    await send('POST', '/workflow-definitions/', { ...workflow, name })
    return (await send('GET', `/workflow-definitions/${name}/`)).version
  }

  test('a copy of a workflow goes with its last plan, or with the workflow where nothing uses it', async () => {
    const counted = async () => (await app.counts())['workflow_versions']!
    const before = await counted()
    const [brief, kept] = [await versionOf('brief'), await versionOf('kept')]
    await send('POST', '/schedule-plans/', altered('unused', brief, 7))
    const used = await send('POST', '/schedule-plans/', altered('used', kept, 8, { workflowId: 'brief' }))
    await send('POST', '/schedule-plans/', altered('unused-too', brief, 7))
    expect([await counted(), used.embedded]).toEqual([before + 4, ['workflow']])
    await send('DELETE', '/schedule-plans/unused/')
    expect(await counted()).toBe(before + 4)
    await send('DELETE', '/schedule-plans/unused-too/')
    expect(await counted()).toBe(before + 3)
    await send('DELETE', '/workflow-definitions/brief/')
    // The copy that a plan of another workflow places is left.
    expect(await counted()).toBe(before + 2)
    expect(await send('GET', '/schedule-plans/used/')).toEqual(used)
  })

  test('a plan of a workflow that is deleted while it is simulated is refused', async () => {
    const gone = await versionOf('gone')
    meanwhile = async () => {
      meanwhile = undefined
      await send('DELETE', '/workflow-definitions/gone/')
    }
    const late = await app.call('POST', '/schedule-plans/', altered('late', gone, 9))
    expect([late.status, late.body.details]).toEqual([
      422,
      [{ path: 'plan.workflowVersionId', message: expect.stringMatching(/names no workflow version/) }],
    ])
    expect((await app.call('GET', '/schedule-plans/late/')).status).toBe(404)
  })

  test('a resource that changes while its plan is simulated is simulated again, checked again, or the answer is 503', async () => {
    const resource = machine('moving', { pricePerSecond: 1, environmentVersionId: 'moving-v1' })
    await send('POST', '/environments/', {
      environment: { id: 'moving', name: 'moving' },
      version: { id: 'moving-v1', version: 1 },
      resources: [resource],
    })
    await send('POST', '/execution-scopes/', {
      id: 'moving-scope',
      name: 'moving',
      environmentVersionIds: ['moving-v1'],
    })
    const activities = [activity('a'), activity('b', { dependsOn: ['a'] })]
    await send('POST', '/workflow-definitions/', { name: 'moving', spec: { namespace: 'n', activities } })
    const { id: workflowVersionId } = (await send('GET', '/workflow-definitions/moving/')).version
    const places = ['a', 'b'].map((name, at) => assignment(name, 'moving', at + 1))
    const given = {
      plan: plan('moved', {
        ...{ workflowVersionId, executionScopeId: 'moving-scope', networkTopologyId: '' },
        assignments: places,
      }),
    }
    const change = (more: object) => send('POST', '/resources/', { ...resource, ...more })
    const post = () => app.call('POST', '/schedule-plans/import/', given)

    let price = 1
    meanwhile = () => change({ pricePerSecond: ++price })
    const busy = await post()
    expect([busy.status, busy.headers.get('retry-after'), price]).toEqual([503, '1', 3])
    meanwhile = async () => {
      meanwhile = undefined
      await change({ cpuCapacity: 0.1, cpuCores: 1 })
    }
    const small = await post()
    expect([small.status, small.body.details?.[0].message]).toEqual([
      422,
      expect.stringContaining('needs 1 cpu, resource "moving" has cpuCapacity 0.1'),
    ])
    await change({})
    meanwhile = async () => {
      meanwhile = undefined
      await change({ pricePerSecond: 5 })
    }
    const { predicted } = (await send('POST', '/schedule-plans/import/', given)) as Json
    expect(predicted.cost).toBe(5 * predicted.makespanSeconds)
  })

  test('a workflow whose deletion waits for a plan that is being stored is left', async () => {
    const { id } = await versionOf('raced')
    await send('POST', '/schedule-plans/', envelope('racing'))
    const isWaiting = sql`select exists (select from pg_stat_activity where datname = current_database()
      and wait_event_type = 'Lock')`
    const deletion = await app.db.transaction(async (tx) => {
      await storedVersion(tx, id, sql`for key share`)
      const answer = app.call('DELETE', '/workflow-definitions/raced/')
      while (!(await app.db.only(z.boolean(), isWaiting))) await sleep(20)
      await tx.run(sql`update schedule_plans set workflow_version_id = ${id} where id = 'racing'`)
      return { answer }
    })
    expect((await deletion.answer).status).toBe(422)
  })

  test('one document with every kind of violation gets all of them in one answer, and nothing is stored', async () => {
    const bad = {
      plan: plan('p1', {
        executionScopeId: 'scope',
        networkTopologyId: 'other-net',
        assignments: [
          assignment('a', 'm1', 1, {
            id: 'same',
            planId: 'elsewhere',
            predictedStartAt: 5,
            predictedFinishAt: 1,
          }),
          assignment('chain-a', 'nowhere', 1, { id: 'same' }),
          assignment('stranger', 'far', 7),
          assignment('b', 'm1', 1, { metadata: { coreIds: ['x', 'y'] }, coreId: 'z' }),
          assignment('c', 'small', 1),
        ],
        lifecycleActions: [{ id: 'x', capacityTargetId: 't', action: 'provision', dependsOn: ['y'] }],
      }),
      workflow: {
        ...stored,
        id: 'other-v1',
        dependencies: [
          ...stored.dependencies,
          { activityId: stored.activities[0].id, dependsOnActivityId: stored.activities[2].id },
        ],
        activities: stored.activities.map((each: Json) => ({ ...each, workflowVersionId: undefined })),
      },
      resources: [
        ...environment.resources.map((resource) => ({
          ...resource,
          environmentVersionId: resource.id === 'm2' ? 'away-v1' : 'env-v1',
        })),
        machine('far'),
        machine('ghost'),
      ],
      executionScope: { ...scope, environmentVersionIds: ['env-v1', 'unknown-v1'] },
      networkTopology: { ...topology, links: [{ ...topology.links[0], targetResourceId: 'nobody' }] },
    }
    expect(await paths(bad, '/schedule-plans/')).toEqual(
      [
        'executionScope.environmentVersionIds.1',
        'networkTopology.id',
        'networkTopology.links.0.targetResourceId',
        'plan.assignments.0.planId',
        'plan.assignments.0.predictedFinishAt',
        'plan.assignments.1.activityId',
        'plan.assignments.1.id',
        'plan.assignments.1.resourceId',
        'plan.assignments.2.activityId',
        'plan.assignments.2.resourceId',
        'plan.assignments.3.metadata.coreIds',
        'plan.assignments.4.resourceId',
        'plan.id',
        'plan.lifecycleActions.0.capacityTargetId',
        'plan.lifecycleActions.0.dependsOn.0',
        'plan.networkTopologyId',
        'resources.1.environmentVersionId',
        'resources.5.id',
        'workflow.dependencies',
        'workflow.id',
      ].sort(),
    )
    const small = (await details(bad, '/schedule-plans/'))
      .filter(({ path }) => path === 'plan.assignments.4.resourceId')
      .map(({ message }) => message)
    expect(small).toEqual([
      expect.stringContaining('resourceSelectorOverride'),
      expect.stringContaining('cpu'),
    ])
  })

  test('a stored resource that the envelope lacks is not said to be unknown', async () => {
    const resources = environment.resources.filter(({ id }) => id !== 'm2')
    expect(
      await details(envelope('lacks', { resources, networkTopology: topology }), '/schedule-plans/'),
    ).toEqual([
      {
        path: 'plan.assignments.1.resourceId',
        message: 'resource "m2" is not among the envelope\'s resources; add its document, or import the plan',
      },
    ])
  })

  test('a task may hold more lanes than free metadata has values', async () => {
    const coreIds = Array.from({ length: 60_000 }, (_, k) => `m1-core-of-many-${k}`)
    const wide = (metadata: object): Json => ({
      plan: plan('many-lanes', {
        assignments: [
          assignment('a', 'm1', 1, { coreId: coreIds[0], metadata }),
          assignment('b', 'm2', 1),
          assignment('c', 'm1', 2, { coreId: coreIds[1] }),
        ],
      }),
    })
    for (const metadata of [{ coreIds, others: coreIds }, { coreIds: coreIds.map((id) => [id]) }])
      expect(await paths(wide(metadata))).toContain('plan.assignments.0.metadata')
    const made = await send('POST', '/schedule-plans/import/', wide({ coreIds }))
    expect(made.assignments[0].metadata.coreIds).toHaveLength(60_000)
  })

  test('the name of a lane has a bound, wherever it stands', async () => {
    const long = 'k'.repeat(513)
    const lanes = (coreIds: string[], more: object = {}): Json => ({
      plan: plan('long-lanes', {
        assignments: [
          assignment('a', 'm1', 1, { metadata: { coreIds }, coreId: coreIds[0], ...more }),
          assignment('b', 'm2', 1),
          assignment('c', 'm1', 2),
        ],
      }),
    })
    const found = await details(lanes(['k', long], { slotId: long }))
    expect(found.map(({ path }) => path)).toEqual([
      'plan.assignments.0.slotId',
      'plan.assignments.0.metadata.coreIds.1',
    ])
    for (const { message } of found) expect(message).toMatch(/at most 512 characters/)
    await send('POST', '/schedule-plans/import/', lanes(['😀'.repeat(512), 'k']))
  })

  test('what the store knows is said beside what the schema refuses', async () => {
    expect(
      await paths({ plan: { ...plan('p1'), budget: -1, executionScopeId: 'none', workflowVersionId: '' } }),
    ).toEqual([
      'plan.budget',
      'plan.executionScopeId',
      'plan.id',
      'plan.networkTopologyId',
      'plan.workflowVersionId',
    ])
  })

  test.each<[string, Json, string]>([
    [
      'an activity without an assignment',
      { assignments: [assignment('a', 'm1', 1), assignment('b', 'm1', 2)] },
      'plan.assignments',
    ],
    [
      'a resource that is not schedulable',
      { assignments: [assignment('a', 'shelf', 1), assignment('b', 'm1', 1), assignment('c', 'm1', 2)] },
      'plan.assignments.0.resourceId',
    ],
    [
      'a resource outside the scope',
      { assignments: [assignment('a', 'far', 1), assignment('b', 'm1', 1), assignment('c', 'm1', 2)] },
      'plan.assignments.0.resourceId',
    ],
    [
      'an order that is taken in its lane',
      { assignments: [assignment('a', 'm1', 1), assignment('b', 'm1', 1), assignment('c', 'm1', 2)] },
      'plan.assignments.1.orderOnResource',
    ],
    [
      'orders against the dependencies',
      { assignments: [assignment('a', 'm1', 3), assignment('b', 'm1', 2), assignment('c', 'm1', 1)] },
      'plan.assignments.1.orderOnResource',
    ],
    ['an unknown workflow version', { workflowVersionId: 'none-v1' }, 'plan.workflowVersionId'],
    ['an unknown scope', { executionScopeId: 'none', networkTopologyId: '' }, 'plan.executionScopeId'],
    ['an unknown topology', { networkTopologyId: 'none' }, 'plan.networkTopologyId'],
    ['a blank id', { id: '' }, 'plan.id'],
    [
      'a negative time',
      {
        assignments: [
          assignment('a', 'm1', 1, { predictedStartAt: -1 }),
          assignment('b', 'm1', 2),
          assignment('c', 'm1', 3),
        ],
      },
      'plan.assignments.0.predictedStartAt',
    ],
    [
      'an order that is no whole number',
      { assignments: [assignment('a', 'm1', 0.5), assignment('b', 'm1', 2), assignment('c', 'm1', 3)] },
      'plan.assignments.0.orderOnResource',
    ],
  ])('%s is 422 at its path', async (_, more, path) => {
    expect(await paths({ plan: plan('bad', more) })).toContain(path)
  })

  test.each<[string, Json, string]>([
    ['an unknown key', { plan: plan('bad', { colour: 'red' }) }, 'plan.colour'],
    ['a wrong type', { plan: plan('bad', { assignments: 'many' }) }, 'plan.assignments'],
  ])('%s is 400', async (_, body, path) => {
    expect(await paths(body, '/schedule-plans/import/', 400)).toEqual([path])
  })

  test('orders may be negative or leave gaps, lanes are apart by core and slot, a selector can be overridden, tasks may overcommit', async () => {
    const made = await send('POST', '/schedule-plans/import/', {
      plan: plan('free', {
        assignments: [
          assignment('a', 'm2', -5, { coreId: '', slotId: 's' }),
          assignment('b', 'm2', -5, { coreId: 'core/0', slotId: 's' }),
          assignment('c', 'm2', 70, {
            coreId: 'k',
            metadata: { coreIds: ['k', 'l', 'm'], resourceSelectorOverride: true },
          }),
        ],
      }),
    })
    expect(made.assignments[2].metadata).toEqual({ coreIds: ['k', 'l', 'm'], resourceSelectorOverride: true })
  })

  test('a plan can be compared with another one of its workflow version, and with no other', async () => {
    await send('POST', '/schedule-plans/import/', { plan: plan('left') })
    await send('POST', '/schedule-plans/import/', {
      plan: plan('right', {
        assignments: [assignment('a', 'm1', 1), assignment('b', 'm1', 2), assignment('c', 'm1', 3)],
      }),
    })
    const compared = await send('GET', '/schedule-plans/left/compare/right/?pageSize=2')
    expect(compared).toMatchObject({
      a: 'left',
      b: 'right',
      totals: {
        makespanSeconds: { a: 5, b: 6, delta: 1, relative: 0.2 },
        cost: { a: 1, b: 0, delta: -1, relative: -1 },
      },
    })
    expect(compared.activities).toMatchObject({ total: 3, hasNext: true, page: 1, pageSize: 2 })
    expect(
      compared.activities.items.map(({ externalId, moved, delta }: Json) => [
        externalId,
        moved,
        delta.startAt,
        delta.finishAt,
      ]),
    ).toEqual([
      ['a', false, 0, 0],
      ['b', true, 0, 1],
    ])
    await send('POST', '/schedule-plans/import/', {
      plan: plan('foreign', {
        workflowVersionId: 'other-v1',
        assignments: [assignment('a', 'm1', 1), assignment('b', 'm2', 1), assignment('c', 'm1', 2)],
      }),
    })
    const refused = await app.call('GET', '/schedule-plans/left/compare/foreign/')
    expect([refused.status, refused.body.details.map(({ path }: Json) => path)]).toEqual([
      422,
      ['otherPlanId'],
    ])
    expect((await app.call('GET', '/schedule-plans/left/compare/none/')).status).toBe(404)
    // A plan with its own copy of the workflow is compared by the short names.
    expect((await send('GET', '/schedule-plans/left/compare/e2/')).activities.total).toBe(3)
  })

  test('64 equal creates make one plan', async () => {
    const answers = await Promise.all(
      Array.from({ length: 64 }, () => app.call('POST', '/schedule-plans/import/', { plan: plan('once') })),
    )
    expect(answers.map(({ status }) => status).sort()).toEqual([201, ...Array(63).fill(422)])
    expect((await send('GET', '/schedule-plans/')).filter(({ id }: Json) => id === 'once')).toHaveLength(1)
    for (const { status, body } of answers) if (status === 422) expect(body.details[0].path).toBe('plan.id')
  })

  test('above 10,000 activities the plan shows their number, and its pages show them', async () => {
    const names = Array.from({ length: 10_001 }, (_, k) => `t${k}`)
    await send('POST', '/workflow-definitions/', {
      name: 'wide',
      spec: { namespace: 'n', activities: names.map((name) => activity(name)) },
    })
    const made = await send('POST', '/schedule-plans/import/', {
      plan: plan('wide', {
        workflowVersionId: 'wide-v1',
        assignments: names.map((name, k) => assignment(name, 'm1', k)),
      }),
    })
    expect([made.assignmentCount, made.assignments]).toEqual([10_001, undefined])
    expect(await send('GET', '/schedule-plans/wide/')).toEqual(made)
    const last = await send('GET', '/schedule-plans/wide/assignments/?page=101&pageSize=100')
    expect([last.items.map(({ externalId }: Json) => externalId), last.hasNext]).toEqual([['t10000'], false])
  })

  test('long ids, slashes and unicode are kept; a plan is deleted once', async () => {
    const id = `плaн/${'ü'.repeat(250)}`
    const path = `/schedule-plans/${encodeURIComponent(id)}/`
    const made = await send('POST', '/schedule-plans/import/', { plan: plan(id) })
    expect(await send('GET', path)).toEqual(made)
    const assignments = made.assignments.map((each: Json) => ({ ...each, planId: 'short' }))
    const again = await send('POST', '/schedule-plans/import/', {
      plan: { ...made, id: 'short', assignments },
    })
    expect(again.assignments[0].id).toBe(`${id}-a`)
    expect((await app.call('DELETE', '/schedule-plans/short/')).status).toBe(204)
    expect((await app.call('DELETE', path)).status).toBe(204)
    expect((await app.call('DELETE', path)).status).toBe(404)
    expect((await app.call('GET', path)).status).toBe(404)
    expect((await app.call('GET', `${path}assignments/`)).status).toBe(404)
  })
})
