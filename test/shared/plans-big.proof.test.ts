import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { needs } from '../support/needs.ts'
import { startPlanning, startPlanningWorker, type PlanningApp } from '../support/planning-app.ts'
import { startTemporal, type TestTemporal } from '../support/temporal.ts'
import { shared } from './trace.ts'

const { afterAll, beforeAll, describe, test } = needs('shared')

const text = (name: string): string => readFileSync(join(shared('samples'), name), 'utf8')
type Json = ReturnType<typeof JSON.parse>

describe('planning the big workflows', () => {
  let temporal: TestTemporal
  let planner: PlanningApp
  let stopWorker: () => Promise<void>
  beforeAll(async () => {
    temporal = await startTemporal()
    planner = await startPlanning(temporal)
    stopWorker = await startPlanningWorker(temporal, planner.db)
  })
  afterAll(async () => {
    await stopWorker()
    await planner.close()
    await temporal.stop()
  })

  test('the 6,448 activities of wf-montage-200d plan, and the selected plan reads back', async () => {
    const call = async (method: string, path: string, body?: unknown): Promise<Json> => {
      const answer = await planner.call(method, path, body)
      if (answer.status >= 300)
        throw new Error(`${method} ${path}: ${answer.status} ${answer.text.slice(0, 400)}`)
      return answer.body
    }
    const imported = await planner.call(
      'POST',
      '/workflow-definitions/import/?name=big',
      text('legacy-workflows/wf-montage-200d.yml'),
    )
    expect([imported.status, imported.status === 201 ? '' : imported.text.slice(0, 400)]).toEqual([201, ''])
    expect(imported.body.version.activityCount).toBe(6448)
    const machines = Array.from({ length: 8 }, (_, k) => ({
      id: `machine-${k}`,
      name: `machine ${k}`,
      providerId: `machine-${k}`,
      type: 'cloud_vm',
      executionTarget: 'direct',
      cpuCores: 8,
      cpuCapacity: 8,
      memoryBytes: 2 ** 36,
      computeSpeedup: 1 + k,
      schedulable: true,
    }))
    await call('POST', '/environments/', {
      environment: { id: 'cluster', name: 'cluster' },
      version: { id: 'cluster-v1', version: 1, status: 'published' },
      runtimes: [{ id: 'simulator', name: 'simulator', driver: 'simgrid', mode: 'simulation' }],
      resources: machines,
      resourceRuntimeBindings: machines.map(({ id }) => ({
        resourceId: id,
        runtimeId: 'simulator',
        enabled: true,
      })),
    })
    await call('POST', '/execution-scopes/', {
      id: 'cluster',
      name: 'cluster',
      environmentVersionIds: ['cluster-v1'],
    })
    await call('POST', '/planning-sessions/', {
      id: 'big',
      workflowVersionId: imported.body.version.id,
      executionScopeId: 'cluster',
      algorithms: [{ id: 'heft' }],
    })
    const { session, algorithmRuns } = (await planner.ended('big')).body
    expect(session).toMatchObject({
      status: 'completed',
      progress: 1,
      candidateCount: 1,
      defaultedDurations: 6448,
    })
    expect(algorithmRuns[0].estimate).toMatchObject({
      activityCount: 6448,
      compatibleResources: 8,
      expandedStates: 6448 * 8,
    })
    const [summary] = await call('GET', '/planning-sessions/big/candidates/')
    expect(summary.plan).toMatchObject({ assignmentCount: 6448 })
    expect(summary.plan.assignments).toBeUndefined()
    const candidate = await call('GET', `/planning-sessions/big/candidates/${summary.id}/`)
    const selected = await call('POST', `/planning-sessions/big/candidates/${summary.id}/select/`)
    expect(selected.assignments).toEqual(candidate.plan.assignments)
    const read = await call('GET', `/schedule-plans/${selected.id}/`)
    expect(read).toEqual(selected)
    expect(new Set(read.assignments.map((assignment: Json) => assignment.activityId)).size).toBe(6448)
    // What was planned can be sent back as it was read, under another id.
    const again = await call('POST', '/schedule-plans/import/', {
      plan: {
        ...read,
        id: 'again',
        assignments: read.assignments.map((assignment: Json) => ({ ...assignment, id: '', planId: '' })),
      },
    })
    expect(again.assignmentCount).toBe(6448)
  })
})
