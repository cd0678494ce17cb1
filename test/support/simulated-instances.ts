import { expect } from '@jest/globals'
import { beforeNextLook } from './pace.ts'
import { openService, type TestService } from './service.ts'

/** Machines of different speed and size in a row, so that most transfers take several hops. */
const machines = [
  { id: 'edge', speedup: 0.5, cores: 8 },
  { id: 'office', speedup: 1, cores: 16 },
  { id: 'cluster', speedup: 1, cores: 48 },
  { id: 'cloud', speedup: 2, cores: 32 },
]
const fastest = 2

/** The service with an environment of these machines; a link joins each to the next. */
export const openSite = async (): Promise<TestService> => {
  const service = await openService()
  await service.post('/environments/', {
    environment: { id: 'site', name: 'site' },
    version: { id: 'site-v1', version: 1, status: 'published' },
    runtimes: [{ id: 'site-simulator', name: 'simulator', driver: 'simgrid', mode: 'simulation' }],
    resources: machines.map(({ id, speedup, cores }) => ({
      id,
      name: id,
      providerId: id,
      type: 'cloud_vm',
      executionTarget: 'direct',
      cpuCores: cores,
      cpuCapacity: cores,
      memoryBytes: 2 ** 40,
      computeSpeedup: speedup,
      pricePerSecond: speedup * 1e-5,
      bootOverheadSeconds: 1,
      containerOverheadSeconds: 0.1,
      schedulable: true,
    })),
    resourceRuntimeBindings: machines.map(({ id }) => ({
      resourceId: id,
      runtimeId: 'site-simulator',
      enabled: true,
    })),
  })
  await service.post('/execution-scopes/', {
    id: 'site-scope',
    name: 'site',
    environmentVersionIds: ['site-v1'],
  })
  await service.post('/network-topologies/', {
    id: 'site-network',
    name: 'site',
    version: 1,
    executionScopeId: 'site-scope',
    links: machines.slice(1).map(({ id }, i) => ({
      id: `site-link-${String(i)}`,
      sourceResourceId: machines[i]!.id,
      targetResourceId: id,
      bandwidthBitsPerSecond: 1e9 * (i + 1),
      latencySeconds: 0.002,
      pricePerByte: 1e-12,
      bidirectional: true,
    })),
  })
  return service
}

/** Plans a workflow version with HEFT and selects the only candidate. */
export const planned = async (service: TestService, id: string, workflowVersionId: string): Promise<any> => {
  await service.post('/planning-sessions/', {
    id,
    workflowVersionId,
    executionScopeId: 'site-scope',
    networkTopologyId: 'site-network',
    algorithms: [{ id: 'heft' }],
  })
  for (const began = performance.now(); ;) {
    const { session, algorithmRuns } = await service.get(`/planning-sessions/${id}/`)
    if (session.status === 'failed')
      throw new Error(`planning of ${id} failed: ${JSON.stringify({ session, algorithmRuns })}`)
    if (session.status === 'completed') break
    await beforeNextLook(began)
  }
  const [candidate, ...others] = await service.get(`/planning-sessions/${id}/candidates/`)
  expect(others).toEqual([])
  return service.post(`/planning-sessions/${id}/candidates/${encodeURIComponent(candidate.id)}/select/`)
}

/** Simulates a plan to its end. It polls the list, because the detail of a large run is long. */
export const simulated = async (service: TestService, id: string, schedulePlanId: string): Promise<any> => {
  await service.post('/execution-runs/', { id, schedulePlanId, mode: 'simulation' })
  for (const began = performance.now(); ;) {
    const { items } = await service.get('/execution-runs/?pageSize=5')
    const run = items.find((item: any) => item.run.id === id)?.run
    if (run === undefined || ['completed', 'failed', 'cancelled'].includes(run.status)) break
    await beforeNextLook(began)
  }
  return service.get(`/execution-runs/${id}/`)
}

interface Task {
  id: string
  parents: Set<string>
  seconds: number
}

/** Tasks of a trace in the order of its graph, read from the file alone. */
const tasksOf = (text: string): Task[] => {
  const { specification, execution } = JSON.parse(text).workflow
  const seconds = new Map<string, number>(
    execution.tasks.map((task: any) => [task.id, task.runtimeInSeconds]),
  )
  const tasks = new Map<string, Task>(
    specification.tasks.map((task: any) => [
      task.id,
      { id: task.id, parents: new Set(task.parents ?? []), seconds: seconds.get(task.id) ?? 1 },
    ]),
  )
  for (const task of specification.tasks)
    for (const child of task.children ?? []) tasks.get(child)?.parents.add(task.id)
  const ordered = new Map<string, Task>()
  const visit = (task: Task): void => {
    if (ordered.has(task.id)) return
    for (const parent of task.parents) visit(tasks.get(parent)!)
    ordered.set(task.id, task)
  }
  for (const task of tasks.values()) visit(task)
  return [...ordered.values()]
}

/** Seconds of the longest chain with every task on the fastest machine and no transfers. */
const criticalPath = (tasks: readonly Task[]): number => {
  const finish = new Map<string, number>()
  for (const { id, parents, seconds } of tasks)
    finish.set(id, Math.max(0, ...[...parents].map((parent) => finish.get(parent)!)) + seconds / fastest)
  return Math.max(...finish.values())
}

const everyActivity = async (service: TestService, workflowId: string): Promise<any[]> => {
  const all: any[] = []
  for (let page = 1; ; page++) {
    const { items, hasNext } = await service.get(
      `/workflow-definitions/${encodeURIComponent(workflowId)}/activities/?page=${String(page)}&pageSize=1000`,
    )
    all.push(...items)
    if (hasNext !== true) return all
  }
}

/**
 * Imports an instance (WfFormat as text) over HTTP, plans it with HEFT and simulates the plan.
 * Every task runs as long as the text gives for its machine, after its parents; the makespan is
 * within the bounds of critical path and work. Throws, or fails the test, where that does not hold.
 */
export const expectSimulated = async (service: TestService, name: string, text: string): Promise<void> => {
  const tasks = tasksOf(text)
  const imported = await service.call('POST', `/workflow-definitions/import/?name=${name}`, text, {
    'content-type': 'application/json',
  })
  expect([imported.status, imported.body.error]).toEqual([201, undefined])
  const plan = await planned(service, name, imported.body.version.id)
  expect(plan.assignmentCount).toBe(tasks.length)
  const { run, activities } = await simulated(service, name, plan.id)
  expect(run).toMatchObject({
    status: 'completed',
    activityCount: tasks.length,
    completedActivityCount: tasks.length,
    failedActivityCount: 0,
    defaultedDurations: 0,
  })

  const bound = criticalPath(tasks)
  const work = tasks.reduce((sum, { seconds }) => sum + seconds, 0)
  expect(run.makespanSeconds).toBeGreaterThanOrEqual(bound * (1 - 1e-9))
  expect(run.makespanSeconds).toBeGreaterThanOrEqual(
    (work / machines.reduce((sum, { cores, speedup }) => sum + cores * speedup, 0)) * (1 - 1e-9),
  )
  // All tasks in sequence on the slowest machine, with all overheads and without transfers, would
  // take less than ten times this.
  expect(run.makespanSeconds).toBeLessThan(10 * (work / 0.5 + tasks.length + 10))

  expect(activities).toHaveLength(tasks.length)
  const { items } = await service.get(
    `/workflow-definitions/${encodeURIComponent(imported.body.id)}/activities/?pageSize=1`,
  )
  expect(items[0].metadata.taskId).toEqual(expect.any(String))
  const taskOf = new Map<string, string>(
    (imported.body.version.activities ?? (await everyActivity(service, imported.body.id))).map(
      (activity: any) => [activity.id, activity.metadata.taskId],
    ),
  )
  const times = new Map<string, any>(
    activities.map((task: any) => [
      taskOf.get(task.activityId) ?? taskOf.get(`${imported.body.id}-${String(task.activityId)}`),
      task,
    ]),
  )
  for (const { id, parents, seconds } of tasks) {
    const task = times.get(id)
    const speedup = machines.find((machine) => machine.id === task.allocatedResourceId)!.speedup
    expect(task.runtimeSeconds).toBeCloseTo(seconds / speedup, 6)
    for (const parent of parents)
      if (task.startedAt < times.get(parent).finishedAt - 1e-6)
        throw new Error(
          `${id} starts at ${task.startedAt as number}, before ${parent} has ended at ` +
            `${times.get(parent).finishedAt as number}`,
        )
  }
  expect(Math.max(...activities.map((task: any) => task.finishedAt))).toBeCloseTo(run.makespanSeconds, 6)
}
