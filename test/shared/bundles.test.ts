import { expect } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'
import { needs } from '../support/needs.ts'
import { openService, type TestService } from '../support/service.ts'
import { shared } from './trace.ts'

const { afterAll, beforeAll, test } = needs('shared')

const samples = shared('samples')
const text = (path: string): string => readFileSync(join(samples, path), 'utf8')

let service: TestService
beforeAll(async () => {
  service = await openService()
})
afterAll(() => service[Symbol.asyncDispose]())

const inventory = async (bundle: string): Promise<void> => {
  for (const [path, file] of [
    ['/environments/', 'environment'],
    ['/execution-scopes/', 'scope'],
    ['/network-topologies/', 'topology'],
    ['/workflow-definitions/', 'workflow'],
  ] as const) {
    await service.post(path, text(`${bundle}/${file}.yaml`))
  }
}

test('the simulation bundle runs as it is and takes 19.6 s and 0.0157', async () => {
  await inventory('simulation')
  await service.post('/schedule-plans/', text('simulation/plan-request.yaml'))
  const accepted = await service.call('POST', '/execution-runs/', text('simulation/execution-request.yaml'))
  expect(accepted.status).toBe(202)
  expect(accepted.body).toMatchObject({ id: 'simulation-example-run-v1', activityCount: 3 })
  expect(accepted.headers.get('location')).toBe('/api/execution-runs/simulation-example-run-v1/')
  const detail = await service.finished('simulation-example-run-v1')
  expect(detail.run.status).toBe('completed')
  expect(detail.run.makespanSeconds).toBeCloseTo(19.6, 9)
  expect(detail.run.cost).toBeCloseTo(0.0157, 12)
  expect(detail.run.transferredBytes).toBe(120_000_000)
  expect(
    detail.activities.map((task: any) => [task.activityId, task.externalId, task.startedAt, task.finishedAt]),
  ).toEqual([
    ['prepare', 'prepare', 0, expect.closeTo(4.1, 9)],
    ['analyze', 'analyze', expect.closeTo(12.15, 9), expect.closeTo(15.85, 9)],
    ['summarize', 'summarize', expect.closeTo(17.5, 9), expect.closeTo(19.6, 9)],
  ])
  expect(detail.dataTransfers).toHaveLength(2)
})

test('the same plan under the LV08 model takes what SimGrid says, 21.593 s', async () => {
  await service.post('/execution-runs/', {
    id: 'lv08',
    schedulePlanId: 'simulation-example-plan-v1',
    mode: 'simulation',
    networkModel: 'lv08',
  })
  const { run } = await service.finished('lv08')
  expect(run.makespanSeconds).toBeCloseTo(21.593, 3)
})

test('the local bundle runs as it is and leaves its output', async () => {
  await inventory('local-direct-hello')
  await service.post('/schedule-plans/import/', text('local-direct-hello/plan.yaml'))
  await service.post('/execution-runs/', text('local-direct-hello/execution-request.yaml'))
  const detail = await service.finished('local-direct-hello-run-v1')
  expect(detail.run).toMatchObject({ status: 'completed', completedActivityCount: 1 })
  expect(detail.activities[0]).toMatchObject({ status: 'completed', exitCode: 0, attempt: 1 })
  expect(detail.dataObjects).toEqual([
    expect.objectContaining({
      relativePath: 'result.txt',
      sizeBytes: 24,
      checksum: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
    }),
  ])
  const output = await service.call(
    'GET',
    '/execution-runs/local-direct-hello-run-v1/activities/local-direct-hello-write-report/outputs/result.txt',
  )
  expect(output.text).toBe('Akoflow local execution\n')
})

test('the fan-out of 30 GB shares its link and takes 36 s', async () => {
  const request = parse(text('simulation-30gb-fanout/plan-request.yaml')) as any
  const versionId = request.executionScope.environmentVersionIds[0]
  await service.post('/environments/', {
    environment: { id: 'fanout', name: 'Fan-out' },
    version: { id: versionId, version: 1 },
    resources: request.resources.map((resource: any) => ({
      providerId: resource.id,
      ...resource,
      environmentVersionId: versionId,
    })),
    runtimes: [{ id: 'simgrid-30gb', name: 'SimGrid', driver: 'simgrid', mode: 'simulation' }],
    resourceRuntimeBindings: request.resources.map((resource: any) => ({
      resourceId: resource.id,
      runtimeId: 'simgrid-30gb',
      enabled: true,
    })),
  })
  await service.post('/execution-scopes/', request.executionScope)
  await service.post('/network-topologies/', request.networkTopology)
  await service.post('/workflow-definitions/', text('simulation-30gb-fanout/workflow.yaml'))
  await service.post('/schedule-plans/', text('simulation-30gb-fanout/plan-request.yaml'))
  await service.post('/execution-runs/', {
    id: 'fanout',
    schedulePlanId: request.plan.id,
    mode: 'simulation',
  })
  const { run } = await service.finished('fanout')
  expect(run).toMatchObject({ status: 'completed', makespanSeconds: expect.closeTo(36, 9) })
})
