import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { windowCosts } from '../../src/schedulers/estimate.ts'
import type { ProblemResource } from '../../src/schedulers/problem.ts'
import { openService, type TestService } from '../support/service.ts'
import { allOf, makeWorld, worldDocuments, type World, type WorldOptions } from '../support/worlds.ts'
import { activityOf, runToEnd } from './checked.ts'

let service: TestService
beforeAll(async () => {
  service = await openService()
})
afterAll(() => service[Symbol.asyncDispose]())

const pricePerByte = 1e-6
/** Two machines of one site, and a link that costs. */
const between = (name: string, tasks: WorldOptions['tasks']): WorldOptions => ({
  ...{ name, tasks, cores: [1, 1], bandwidthBitsPerSecond: 8_000_000, pricePerByte },
})
const transfersOf = (runId: string): Promise<any[]> =>
  allOf(service, `/execution-runs/${runId}/data-transfers/`)
const routeKeys = ['from', 'links', 'reason', 'strategy', 'to']

const made = 'mkdir deep; head -c 200000 /dev/zero > deep/zeros; printf abc > b; ln -s b link'
/**
 * What is declared is far from what is made; one edge is declared and leaves nothing, one is not
 * declared at all.
 */
const tasks = (): WorldOptions['tasks'] => [
  { name: 'make', run: made, lane: [0, 0] },
  { name: 'nothing', run: 'true', lane: [0, 0] },
  { name: 'beside', run: 'cat deep/zeros | wc -c', after: ['make'], lane: [0, 0] },
  {
    name: 'use',
    run: 'cat b',
    after: ['make', 'nothing'],
    inputs: [{ from: 'nothing', file: 'never', bytes: 3_000_000 }],
    lane: [1, 0],
  },
]

describe('transfers inside one site', () => {
  test('are measured: the files that were copied, not those that were declared, at the price of the route', async () => {
    const world = await makeWorld(service, between('inside', tasks()))
    const record = await runToEnd(service, world, { id: 'inside-run' })
    expect(record.run.status).toBe('completed')
    const transfers = await transfersOf('inside-run')
    const use = activityOf(record, world, 'use')
    expect(await service.metrics.registry.getSingleMetricAsString('orrery_transfer_bytes_total')).toMatch(
      /\{strategy="runtime-local"\} 200003$/m,
    )
    expect(transfers).toEqual([
      expect.objectContaining({
        ...{ producerActivityId: 'inside-make', consumerActivityId: 'inside-use' },
        ...{ sourceResourceId: 'inside-host-1', targetResourceId: 'inside-host-2' },
        ...{
          bytes: 200_003,
          networkBytes: 0,
          filesTransferred: 3,
          strategy: 'runtime-local',
          cost: expect.closeTo(0.200003, 12),
        },
        route: {
          links: ['inside-link-1'],
          strategy: 'runtime-local',
          reason: expect.stringMatching(/./),
          from: use.site,
          to: use.site,
        },
      }),
    ])
    expect(use.transferBytes).toBe(200_003)
    expect(use.cost).toBeCloseTo((use.finishedAt - use.startedAt) * 0.001 + 0.200003, 9)
    expect(record.run.transferredBytes).toBe(200_003)
    expect(record.run.cost).toBeCloseTo(
      record.activities.reduce((sum, { cost }) => sum + cost, 0),
      9,
    )
  })

  test('are those of their own producers, also where these have one externalId', async () => {
    const { environment, scope, topology, workflow, plan, world } = worldDocuments(
      between('same', [
        { name: 'one', run: 'printf 12345 > one', lane: [0, 0] },
        { name: 'two', run: 'printf 1234567 > two', lane: [0, 0] },
        { name: 'use', run: 'cat one two', after: ['one', 'two'], lane: [1, 0] },
      ]),
    )
    await service.post('/environments/', environment)
    await service.post('/execution-scopes/', scope)
    await service.post('/network-topologies/', topology)
    await service.post('/workflow-definitions/import/', workflow)
    const { version } = await service.get('/workflow-definitions/same/')
    const renamed = (metadata: object) => ({
      ...version,
      activities: version.activities.map((each: any) => ({
        ...each,
        metadata: { ...each.metadata, ...metadata },
        externalId: each.externalId === 'use' ? 'use' : 'make',
      })),
    })
    await service.post('/schedule-plans/', {
      ...{ plan, workflow: renamed({}), executionScope: scope, networkTopology: topology },
      resources: environment.resources,
    })
    await runToEnd(service, world, { id: 'same-run' })
    const transfers = await transfersOf('same-run')
    expect(transfers.map(({ producerActivityId: from, bytes }) => [from, bytes]).toSorted()).toEqual([
      ['same-one', 5],
      ['same-two', 7],
    ])
    // A run may bring such a workflow itself.
    await service.post('/execution-runs/', {
      run: { id: 'same-own', schedulePlanId: plan.id, mode: 'real' },
      workflow: renamed({ own: true }),
    })
    expect((await service.finished('same-own')).run.status).toBe('completed')
  })

  test('are charged once where a resource is paid for its active window, also when a failed run is opened again', async () => {
    const options = between('window', [
      { name: 'make', run: made, lane: [0, 0] },
      {
        name: 'use',
        run:
          'if [ -e /tmp/$AKOFLOW_RUN_ID ]; then rm /tmp/$AKOFLOW_RUN_ID; else touch ' +
          '/tmp/$AKOFLOW_RUN_ID; exit 3; fi',
        after: ['make'],
        lane: [1, 0],
      },
    ])
    const { environment, scope, topology, workflow, plan, world } = worldDocuments(options)
    await service.post('/environments/', {
      ...environment,
      version: { ...environment.version, costModel: 'active-window' },
    })
    await service.post('/execution-scopes/', scope)
    await service.post('/network-topologies/', topology)
    await service.post('/workflow-definitions/import/', workflow)
    await service.post('/schedule-plans/import/', { plan })
    await service.post('/execution-runs/', { id: 'window-run', schedulePlanId: plan.id, mode: 'real' })
    const failed = await service.finished('window-run')
    expect(failed.run.status).toBe('failed')
    await service.post('/execution-runs/window-run/retry/')
    const again = await service.finished('window-run')
    expect(again.run.status).toBe('completed')
    const { activities } = await service.get('/execution-runs/window-run/?attempts=all')
    const window = (resource: string): number => {
      const own = activities.filter(({ plannedResourceId }: any) => plannedResourceId === resource)
      return (
        Math.max(...own.map(({ finishedAt }: any) => finishedAt)) -
        Math.min(...own.map(({ startedAt }: any) => startedAt))
      )
    }
    // Both attempts were given the files.
    const transfers = await transfersOf('window-run')
    expect(transfers.map(({ bytes }) => bytes)).toEqual([200_003, 200_003])
    const compute = world.resourceIds.reduce((sum, resource) => sum + window(resource) * 0.001, 0)
    expect(again.run.cost).toBeCloseTo(compute + 0.400006, 9)
    // By the rule of planner and simulator, attempt by attempt; what was moved is with the last
    // one.
    const paid = { pricePerSecond: 0.001, activeWindow: true } as ProblemResource
    const shares = windowCosts(
      { resources: world.resourceIds.map(() => paid) },
      activities.map((task: any) => ({
        resource: world.resourceIds.indexOf(task.plannedResourceId),
        ...{ startAt: task.startedAt, finishAt: task.finishedAt, runtimeSeconds: task.runtimeSeconds },
      })),
    )
    const last = activities.findLast(({ activityId }: any) => activityId === world.activityId('use'))
    for (const [i, task] of activities.entries())
      expect(task.cost).toBeCloseTo((shares[i] as number) + (task === last ? 0.400006 : 0), 9)
  })
})

test('the route of a transfer has one shape in real runs and in simulations', async () => {
  const declared: WorldOptions['tasks'] = [
    { name: 'make', run: 'head -c 1000 /dev/zero > x', seconds: 1, lane: [0, 0] },
    {
      name: 'use',
      run: 'cat x',
      seconds: 1,
      after: ['make'],
      inputs: [{ from: 'make', file: 'x', bytes: 1_000 }],
      lane: [1, 0],
    },
  ]
  const world: World = await makeWorld(service, between('shape', declared))
  for (const mode of ['real', 'simulation']) {
    await runToEnd(service, world, { id: `shape-${mode}`, mode })
    const transfers = await transfersOf(`shape-${mode}`)
    expect(transfers).toHaveLength(1)
    expect(Object.keys(transfers[0].route).toSorted()).toEqual(routeKeys)
    expect(transfers[0]).toMatchObject({
      route: {
        links: ['shape-link-1'],
        strategy: transfers[0].strategy,
        reason: expect.any(String),
        from: expect.any(String),
      },
      bytes: 1_000,
      cost: expect.closeTo(0.001, 12),
    })
  }
  expect((await transfersOf('shape-simulation'))[0].route).toMatchObject({
    from: 'shape-host-1',
    to: 'shape-host-2',
  })
  const { components } = (await (await fetch(`${service.rootUrl}/openapi.json`)).json()) as any
  const route = components.schemas.DataTransfer.properties.route
  const schema = route.$ref === undefined ? route : components.schemas[route.$ref.split('/').at(-1)]
  expect(Object.keys(schema.properties).toSorted()).toEqual(routeKeys)
  expect(schema.properties.links).toMatchObject({ type: 'array', items: { type: 'string' } })
})
