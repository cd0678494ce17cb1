import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { parse } from 'yaml'
import { needs } from '../support/needs.ts'
import { startPlanning, type PlanningApp } from '../support/planning-app.ts'
import { shared } from './trace.ts'

const { afterAll, beforeAll, describe, test } = needs('shared')

const samples = shared('samples')
const text = (name: string): string => readFileSync(join(samples, name), 'utf8')
type Json = ReturnType<typeof JSON.parse>
const document = (name: string): Json => parse(text(name), { maxAliasCount: 200 })

let app: PlanningApp
beforeAll(async () => {
  app = await startPlanning()
})
afterAll(() => app.close())

const accept = async (path: string, name: string): Promise<Json> => {
  const answer = await app.call('POST', path, text(name))
  if (answer.status !== 201) throw new Error(`${name}: ${answer.status} ${answer.text}`)
  return answer.body
}

/**
 * An environment with the resources that a sample only names, each on a runtime that simulates and
 * on those that its assignments name.
 */
const environmentOf = (id: string, versionId: string, resources: Json[], assignments: Json[] = []): Json => {
  const simulator = { id: `${id}-simulator`, name: 'simulator', driver: 'simgrid', mode: 'simulation' }
  const named = new Set<string>(assignments.map(({ metadata }) => metadata.runtimeId))
  const pairs = new Map<string, { resourceId: string; runtimeId: string }>()
  for (const { id: resourceId } of resources) pairs.set(resourceId, { resourceId, runtimeId: simulator.id })
  for (const { resourceId, metadata } of assignments)
    pairs.set(`${resourceId} ${metadata.runtimeId}`, { resourceId, runtimeId: metadata.runtimeId })
  return {
    environment: { id, name: id },
    version: { id: versionId, version: 1, status: 'published' },
    runtimes: [
      simulator,
      ...[...named].map((name) => ({ id: name, name, driver: 'local', mode: 'execution' })),
    ],
    resources,
    resourceRuntimeBindings: [...pairs.values()].map((pair) => ({ ...pair, enabled: true })),
  }
}

describe('the sample plans, as they are', () => {
  test('simulation: a plan with its own copies of workflow and resources', async () => {
    await accept('/environments/', 'simulation/environment.yaml')
    await accept('/execution-scopes/', 'simulation/scope.yaml')
    await accept('/network-topologies/', 'simulation/topology.yaml')
    await accept('/workflow-definitions/import/', 'simulation/workflow.yaml')
    const stored = await app.call('GET', '/workflow-definitions/simulation-example-workflow/')
    const plan = await accept('/schedule-plans/', 'simulation/plan-request.yaml')
    const request = document('simulation/plan-request.yaml')
    expect(plan).toMatchObject({
      id: 'simulation-example-plan-v1',
      source: 'imported',
      predicted: {
        makespanSeconds: expect.closeTo(19.6, 9),
        cost: expect.closeTo(0.0157, 9),
        feasible: true,
      },
      submittedPrediction: { makespanSeconds: 19.6, cost: 0.0157, feasible: true },
      assignmentCount: 3,
    })
    expect(plan.embedded).toEqual(['workflow', 'resources'])
    for (const [at, sent] of request.plan.assignments.entries()) {
      const got = plan.assignments.find((assignment: Json) => assignment.activityId === sent.activityId)
      // The simulator's times are those of the document, but for the last digit.
      const times = Object.entries<Json>(request.plan.assignments[at]).map(([name, value]) => [
        name,
        name.startsWith('predicted') ? expect.closeTo(value, 9) : value,
      ])
      expect(got).toMatchObject(Object.fromEntries(times))
      expect(got.externalId).toBe(sent.activityId)
    }
    // What came with the plan changed no stored record.
    expect((await app.call('GET', '/workflow-definitions/simulation-example-workflow/')).body).toEqual(
      stored.body,
    )
    expect(
      (await app.call('GET', '/resources/')).body.find((resource: Json) => resource.id === 'simulated-edge'),
    ).toMatchObject({
      tier: 'edge',
    })
  })

  test('simulation-30gb-fanout: environment, scope and topology made from its plan request', async () => {
    const request = document('simulation-30gb-fanout/plan-request.yaml')
    await accept('/workflow-definitions/import/', 'simulation-30gb-fanout/workflow.yaml')
    const made = [
      [
        '/environments/',
        environmentOf(
          'simgrid-30gb-environment',
          request.resources[0].environmentVersionId,
          request.resources,
        ),
      ],
      ['/execution-scopes/', request.executionScope],
      ['/network-topologies/', request.networkTopology],
    ] as const
    for (const [path, body] of made) expect((await app.call('POST', path, body)).status).toBe(201)
    const plan = await accept('/schedule-plans/', 'simulation-30gb-fanout/plan-request.yaml')
    expect(
      plan.assignments.map((assignment: Json) => [
        assignment.externalId,
        assignment.resourceId,
        assignment.coreId,
      ]),
    ).toEqual([
      ['t1', 'simgrid-30gb-m1', 'core-0'],
      ['t2', 'simgrid-30gb-m2', 'core-0'],
      ['t3', 'simgrid-30gb-m2', 'core-1'],
      ['t4', 'simgrid-30gb-m2', 'core-2'],
      ['t5', 'simgrid-30gb-m3', 'core-0'],
    ])
  })

  test('local-direct-hello: an import of four words per assignment', async () => {
    for (const [path, name] of [
      ['environments', 'environment'],
      ['execution-scopes', 'scope'],
      ['network-topologies', 'topology'],
      ['workflow-definitions/import', 'workflow'],
      ['schedule-plans/import', 'plan'],
    ])
      await accept(`/${path}/`, `local-direct-hello/${name}.yaml`)
    const plan = await app.call('GET', '/schedule-plans/local-direct-hello-plan-v1/')
    expect(plan.body.assignments).toEqual([
      expect.objectContaining({
        id: 'local-direct-hello-plan-v1-local-direct-hello-write-report',
        activityId: 'local-direct-hello-write-report',
        externalId: 'write-report',
        resourceId: 'local-host',
        orderOnResource: 0,
        metadata: { runtimeId: 'local' },
      }),
    ])
    expect(plan.body.embedded).toBeUndefined()
  })

  test.each([
    ['roundtrip-hpc-k8s-cloud', 'workflow.yaml', 'scope.json', 'network.json', 'plan.yaml'],
    [
      'transfer-strategy-matrix',
      'workflow-roundtrip.json',
      'scope.json',
      'topology.json',
      'plan-roundtrip.json',
    ],
  ])('%s, on machines made from the names in it', async (folder, workflow, scope, topology, plan) => {
    const own = await startPlanning()
    try {
      const { environmentVersionIds } = document(`${folder}/${scope}`)
      const { id, assignments } = document(`${folder}/${plan}`).plan
      const names = new Set<string>(assignments.map((assignment: Json) => assignment.resourceId))
      const machines = [...names].map((name) => ({
        id: name,
        name,
        providerId: name,
        type: 'cloud_vm',
        executionTarget: 'direct',
        cpuCores: 2,
        cpuCapacity: 2,
        memoryBytes: 2 ** 31,
        computeSpeedup: 1,
        schedulable: true,
      }))
      for (const [at, versionId] of environmentVersionIds.entries()) {
        const made =
          at === 0
            ? environmentOf(`made-${versionId}`, versionId, machines, assignments)
            : environmentOf(`made-${versionId}`, versionId, [])
        expect((await own.call('POST', '/environments/', made)).status).toBe(201)
      }
      for (const [path, name] of [
        ['/workflow-definitions/import/', workflow],
        ['/execution-scopes/', scope],
        ['/network-topologies/', topology],
        ['/schedule-plans/import/', plan],
      ] as const) {
        const answer = await own.call('POST', path, text(`${folder}/${name}`))
        expect([answer.status, answer.status === 201 ? '' : answer.text]).toEqual([201, ''])
      }
      const read = await own.call('GET', `/schedule-plans/${id}/`)
      expect(read.body.assignments.map((assignment: Json) => [assignment.id, assignment.activityId])).toEqual(
        assignments.map((assignment: Json) => [assignment.id, assignment.activityId]),
      )
    } finally {
      await own.close()
    }
  })
})
