import { afterAll, afterEach, beforeAll, expect, jest } from '@jest/globals'
import { existsSync, mkdirSync, mkdtempSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import { sites } from '../../sites/requirements.ts'
import { cloudEnvironment, withoutPlaybooks } from '../support/cloud.ts'
import { needs } from '../support/needs.ts'
import { beforeNextLook } from '../support/pace.ts'
import { eventually } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'

/** Runs whose machines are made by an EC2 endpoint when they need them, and are gone afterwards. */

const { test } = needs(...sites.ssh)
jest.setTimeout(400_000)

const localRoot = mkdtempSync(join(runFolder(), 'shelves-'))
const shelf = join(localRoot, 'shelf')

let site: CloudSite
let service: TestService
beforeAll(async () => {
  mkdirSync(shelf)
  site = await startCloud({ machines: 'ssh' })
  service = await openService({
    environment: {
      ...cloudEnvironment(),
      SERVICE_LOCAL_STORAGE_ROOT: localRoot,
    },
  })
  const { credentialRef } = await service.post('/cloud-credentials/', {
    ...{ id: 'site', provider: 'aws', credential: site.accessKey },
  })
  await service.post('/environments/', {
    environment: { id: 'clouds', name: 'clouds' },
    version: { id: 'clouds-v1', version: 1, status: 'published' },
    runtimes: [
      { id: 'clouds-r', name: 'machines', driver: 'cloud', mode: 'execution' },
      { id: 'clouds-l', name: 'here', driver: 'local', mode: 'execution' },
      { id: 'clouds-s', name: 'rehearsal', driver: 'simgrid', mode: 'simulation' },
    ],
    resources: [
      {
        ...{ id: 'here', name: 'here', type: 'local_machine', providerId: 'here', executionTarget: 'direct' },
        ...{ cpuCores: 2, cpuCapacity: 2, memoryBytes: 2 ** 30, computeSpeedup: 1, schedulable: true },
      },
    ],
    resourceRuntimeBindings: ['clouds-l', 'clouds-s'].map((runtimeId) => ({
      ...{ resourceId: 'here', runtimeId, enabled: true },
    })),
    connections: [
      {
        ...{ id: 'account', name: 'account', type: 'cloud', endpoint: site.endpoint, credentialRef },
        configuration: { provider: 'aws', region: site.region },
      },
    ],
  })
  await makeTarget('small')
  await service.post('/execution-scopes/', {
    ...{ id: 'scope', name: 'scope', networkTopologyId: '', environmentVersionIds: ['clouds-v1'] },
  })
}, 300_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await site?.stop()
}, 60_000)
afterEach(async () => {
  await nothingLeft()
})

const makeTarget = (id: string, more: object = {}) =>
  service.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id, name: id, provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-debian12' },
    ...{ vcpu: 2, memoryMiB: 8_192, maximumInstances: 2 },
    configuration: { pricePerHour: 3_600, diskSizeGiB: 10, diskPricePerGiBMonth: 1 },
    ...withoutPlaybooks,
    ...more,
  })
const living = () =>
  [...site.machines.values()].filter(
    ({ state, tags }) => state !== 'terminated' && tags.has('orrery:service'),
  )
const nothingLeft = async (seconds = 120): Promise<void> => {
  for (const began = performance.now(); living().length > 0;) {
    if (performance.now() - began > seconds * 1_000)
      throw new Error(`${String(living().length)} machines are left`)
    await beforeNextLook(began)
  }
}

interface Step {
  run: string
  at?: string
  needs?: string[]
  core?: string
  more?: object
}
/** Stores a workflow of these steps with a plan of the same id. */
const planned = async (id: string, steps: Record<string, Step>, more: object = {}): Promise<void> => {
  await service.post('/workflow-definitions/', {
    name: id,
    spec: {
      ...{ namespace: 'tests', image: 'busybox:1.36' },
      activities: Object.entries(steps).map(([name, { run, needs: dependsOn = [], more: further = {} }]) => ({
        ...{ name, run, cpuLimit: '1', memoryLimit: '64Mi', dependsOn },
        ...further,
      })),
    },
  })
  await service.post('/schedule-plans/import/', {
    plan: {
      ...{ id, workflowVersionId: `${id}-v1`, executionScopeId: 'scope', algorithm: 'by-hand' },
      assignments: Object.entries(steps).map(([activityId, { at = 'small', core = 'core-0' }], place) => ({
        ...{ activityId, resourceId: at, coreId: core, orderOnResource: place },
      })),
      ...more,
    },
  })
}
const start = (id: string, schedulePlanId = id) =>
  service.post('/execution-runs/', { id, schedulePlanId, mode: 'real' })
const text = async (path: string): Promise<string> => (await fetch(`${service.baseUrl}${path}`)).text()

test('a run gets its machine, uses it, pays for it and leaves nothing; its files stay readable', async () => {
  await planned('mixed', {
    first: { run: 'echo one > one.txt; echo on $(hostname)' },
    second: { run: 'cat one.txt; echo two > two.txt', needs: ['first'] },
    last: { run: 'cat one.txt two.txt > all.txt', at: 'here', needs: ['second'] },
  })
  await start('mixed')
  const detail = await service.finished('mixed', 120)
  expect([detail.run.status, detail.run.failureReason]).toEqual(['completed', undefined])
  await nothingLeft()
  const [machine] = [...site.machines.values()].filter(({ tags }) => tags.has('orrery:service'))
  expect(machine!.state).toBe('terminated')
  const files = '/execution-runs/mixed/activities'
  expect(await text(`${files}/first/outputs/one.txt`)).toBe('one\n')
  expect(await text(`${files}/second/outputs/two.txt`)).toBe('two\n')
  expect(await text(`${files}/last/outputs/all.txt`)).toBe('one\ntwo\n')
  expect(await text(`${files}/first/logs/`)).toBe(`on ${machine!.id.slice(0, 12)}\n`)
  expect(await text(`${files}/second/logs/`)).toBe('one\n')
})

const operationsOf = async (runId: string): Promise<any[]> =>
  (await service.get(`/execution-runs/${runId}/`)).infrastructureRuns ?? []
const until = async <T>(what: string, look: () => Promise<T | undefined>, seconds = 120): Promise<T> => {
  for (const began = performance.now(); ;) {
    const found = await look()
    if (found !== undefined) return found
    if (performance.now() - began > seconds * 1_000) throw new Error(`${what} did not come`)
    await beforeNextLook(began)
  }
}
/** The machine on which an activity of a run runs now. */
const machineOf = (runId: string, activity: string, but: readonly string[] = []): Promise<string> =>
  until(`the start of ${activity}`, async () => {
    const { activities } = await service.get(`/execution-runs/${runId}/`)
    const task = activities.find((one: any) => one.externalId === activity && one.status === 'running')
    const { body } = await service.call('GET', `/cloud-instances/${task?.cloudInstanceId ?? 'no'}/`)
    return but.includes(body.providerId) ? undefined : body.providerId
  })

test('what the run shows: the instance of each task, the operations, their bands, the plan, a receipt to the second', async () => {
  // A target without operations yet: its plan counts the usual durations.
  await makeTarget('unmeasured')
  await planned('shown', { one: { run: 'sleep 1', at: 'unmeasured' } })
  const plan = await service.get('/schedule-plans/shown/')
  expect(plan.lifecycleActions.map(({ action }: any) => action)).toEqual([
    ...['provision', 'wait-for-ssh', 'configure', 'validate', 'destroy'],
  ])
  const { cloudCost } = plan.metadata
  expect(plan.predicted.cost).toBeCloseTo(
    plan.assignments[0].predictedCost + cloudCost.unmeasured.idle + cloudCost.unmeasured.disk,
  )
  await start('shown')
  const detail = await service.finished('shown', 120)
  expect(detail.run.status).toBe('completed')
  await nothingLeft()
  const [{ cloudInstanceId }] = detail.activities
  const operations = await until('the end of the machine', async () => {
    const all = await operationsOf('shown')
    return all.length === 2 && all[1].run.status === 'completed' ? all : undefined
  })
  expect(operations.map(({ run }) => [run.kind, run.executionRunId, run.instanceId])).toEqual([
    ['provision', 'shown', cloudInstanceId],
    ['destroy', 'shown', cloudInstanceId],
  ])
  expect(operations[0].events.map(({ event }: any) => event)).toContain('ssh.ready')
  const { phases } = await service.get('/execution-runs/shown/timeline/')
  expect(phases.map(({ category }: any) => category)).toEqual(
    expect.arrayContaining([
      'infrastructure-provision',
      'connection-validation',
      'infrastructure-destroy',
      'runtime',
    ]),
  )
  const { billing } = (await service.call('GET', `/cloud-instances/${cloudInstanceId}/`)).body
  const receipt = await service.get('/execution-runs/shown/receipt/')
  const [own] = receipt.instances
  expect([receipt.final, own.instanceId]).toEqual([true, cloudInstanceId])
  expect(own.actual.seconds).toBeCloseTo(billing.accumulatedComputeSeconds, 3)
  expect(own.actual.money).toBeCloseTo(billing.currentCost, 6)
  expect(own.planned.money).toBeCloseTo(
    cloudCost.unmeasured.compute + cloudCost.unmeasured.idle + cloudCost.unmeasured.disk,
    6,
  )
  expect(receipt.sum.actual).toEqual(own.actual)
  const settled = await until('the whole cost', async () => {
    const { run } = await service.get('/execution-runs/shown/receipt/')
    return Math.abs(run.actual - billing.currentCost) < 1e-6 ? run : undefined
  })
  expect(settled.planned).toBe(plan.predicted.cost)

  // The next plan counts what this run took, and its rehearsal is what it says.
  await planned('learnt', { one: { run: 'true', at: 'unmeasured' } })
  const learnt = await service.get('/schedule-plans/learnt/')
  const overhead: number = learnt.metadata.taskOverheadSeconds.unmeasured
  expect(overhead).toBeGreaterThan(0)
  const [task] = detail.activities
  expect(overhead).toBeLessThan(task.finishedAt - Date.parse(detail.run.startedAt) / 1_000)
  const durations = learnt.lifecycleActions.map(({ expectedDuration }: any) => expectedDuration)
  expect(durations[0]).toBeLessThan(plan.lifecycleActions[0].expectedDuration)
  const lead = durations.slice(0, 4).reduce((sum: number, one: number) => sum + one, 0)
  // A task without a duration counts one second. A makespan begins with the first task.
  expect(learnt.assignments[0].predictedFinishAt).toBeCloseTo(lead + overhead + 1, 6)
  expect(learnt.predicted.makespanSeconds).toBeCloseTo(overhead + 1, 6)
  await service.post('/execution-runs/', { id: 'learnt', schedulePlanId: 'learnt', mode: 'simulation' })
  const { run: rehearsal } = await service.finished('learnt', 120)
  expect(rehearsal.makespanSeconds).toBe(learnt.predicted.makespanSeconds)
  expect(rehearsal.cost).toBeCloseTo(learnt.predicted.cost, 9)
  expect((await service.call('GET', '/execution-runs/no/receipt/')).status).toBe(404)
})

test('runs share a machine while its lanes are free, get another up to the most, then wait and say for whom', async () => {
  const run = 'until [ -e /srv/free ]; do sleep 0.1; done'
  await planned('left', { long: { run } })
  await planned('right', { long: { run, core: 'core-1' } })
  const ids = ['shared-1', 'shared-2', 'shared-3', 'shared-4']
  await start(ids[0]!, 'left')
  await machineOf(ids[0]!, 'long')
  await start(ids[1]!, 'right')
  await machineOf(ids[1]!, 'long')
  expect(living()).toHaveLength(1)
  await start(ids[2]!, 'left')
  await until('a second machine', async () => (living().length === 2 ? true : undefined))
  await start(ids[3]!, 'left')
  const wait = await until('the wait', async () => {
    const { live } = await service.get('/execution-runs/shared-4/')
    const found = live?.waitsFor.find(({ kind }: any) => kind === 'machine')
    return found?.reason.includes('in use by run') === true ? found : undefined
  })
  expect(wait.reason).toMatch(/small has all of its 2 instances: in use by run shared-/)
  // The last run may get a third machine, once the others have given theirs back.
  await until('the ends of all', async () => {
    for (const { host } of living()) await host?.run('touch /srv/free').catch(() => undefined)
    const details = await Promise.all(ids.map((id) => service.get(`/execution-runs/${id}/`)))
    return details.every(({ run: { status } }) => status === 'completed') || undefined
  })
})

test('a machine that the provider takes back: its attempts end at once, another one takes its place', async () => {
  await planned('spot', {
    first: { run: 'echo kept > kept.txt' },
    second: { run: '[ -s kept.txt ] && { [ "$AKOFLOW_ATTEMPT" -gt 1 ] || sleep 3600; }', needs: ['first'] },
  })
  await start('spot')
  const lost = await machineOf('spot', 'second')
  site.faults.takeBack(lost)
  const failed = await until('the end of the attempt', async () => {
    const { activities } = await service.get('/execution-runs/spot/?attempts=all')
    return activities.find((one: any) => one.externalId === 'second' && one.status === 'failed')
  })
  expect(failed).toMatchObject({ attempt: 1, failureClass: 'infrastructure' })
  expect(failed.failureReason).toContain('Server.SpotInstanceTermination')
  const detail = await service.finished('spot', 120)
  expect([detail.run.status, detail.run.failureReason]).toEqual(['completed', undefined])
  const instances = detail.activities.map(({ cloudInstanceId }: any) => cloudInstanceId)
  expect(new Set(instances).size).toBe(2)
  const { instances: paid } = await service.get('/execution-runs/spot/receipt/')
  expect(paid.map(({ releaseReason }: any) => releaseReason)).toEqual(['lost', 'tasks-over'])
  expect(paid[1].planned).toBeNull()
})

test('a run that is cancelled while its machine is made, and one that fails, leave nothing', async () => {
  await planned('cut', { one: { run: 'sleep 3600' } })
  site.faults.silentConsole(true)
  try {
    await start('cut')
    await until('a machine', async () => (living().length === 1 ? true : undefined))
    expect((await service.call('POST', '/execution-runs/cut/cancel/')).status).toBe(202)
    expect((await service.finished('cut', 120)).run.status).toBe('cancelled')
    await nothingLeft()
  } finally {
    site.faults.silentConsole(false)
  }
  await planned('broken', { one: { run: 'echo why >&2; exit 3' } })
  await start('broken')
  expect((await service.finished('broken', 120)).run.status).toBe('failed')
  await nothingLeft()
  expect(await text('/execution-runs/broken/activities/one/logs/?stream=stderr')).toBe('why\n')
  site.faults.noCapacity('*')
  await start('nowhere', 'broken')
  const nowhere = (await service.finished('nowhere', 120)).run
  site.faults.noCapacity(undefined)
  expect(nowhere.status).toBe('failed')
  expect(nowhere.failureReason).toContain('InsufficientInstanceCapacity')
})

test('a machine of policy keep serves the next run, and ends when it was idle for long enough', async () => {
  await makeTarget('kept', {
    ...{ lifecyclePolicy: 'keep', maximumInstances: 1 },
    configuration: { pricePerHour: 1, idleSeconds: 4 },
  })
  await planned('keeping', { one: { run: 'true', at: 'kept' } })
  await start('kept-1', 'keeping')
  const first = await service.finished('kept-1', 120)
  await start('kept-2', 'keeping')
  const second = await service.finished('kept-2', 120)
  expect([first.run.status, second.run.status]).toEqual(['completed', 'completed'])
  expect(second.activities[0].cloudInstanceId).toBe(first.activities[0].cloudInstanceId)
  expect(living()).toHaveLength(1)
})

test('budgets: refuse, ask with an approval, stop', async () => {
  await planned('priced', { one: { run: 'true' } })
  const body = { schedulePlanId: 'priced', mode: 'real', budget: 0.001 }
  const refused = await service.call('POST', '/execution-runs/', { id: 'refused', ...body })
  expect([refused.status, refused.body.details[0].path]).toEqual([422, 'run.budget'])
  expect((await service.call('GET', '/execution-runs/refused/')).status).toBe(404)

  await service.post('/execution-runs/', { id: 'asking', ...body, onBudget: 'ask' })
  const { live } = await until('the wait for the approval', async () => {
    const detail = await service.get('/execution-runs/asking/')
    return detail.live?.waitingFor === 'approval' ? detail : undefined
  })
  expect(live.phase).toBe('opening')
  expect(living()).toEqual([])
  const approved = await service.call('POST', '/execution-runs/asking/approve/')
  expect([approved.status, typeof approved.body.approvedAt]).toEqual([202, 'string'])
  expect((await service.finished('asking', 120)).run.status).toBe('completed')
  expect((await service.call('POST', '/execution-runs/asking/approve/')).body.state).toBe('completed')
  expect((await service.call('POST', '/execution-runs/no/approve/')).status).toBe(404)

  await planned('dear', { one: { run: 'sleep 3600' } })
  await service.post('/execution-runs/', {
    ...{ id: 'stopped', schedulePlanId: 'dear', mode: 'real', budget: 23, onBudget: 'stop' },
  })
  const stopped = await service.finished('stopped', 120)
  expect(stopped.run.status).toBe('cancelled')
  await nothingLeft()
  const { sum } = await service.get('/execution-runs/stopped/receipt/')
  // The task alone would have cost 3600.
  expect(sum.actual.money).toBeLessThan(3_600)
})

test('a rehearsal of the plan is what the plan says; what no run can have is refused', async () => {
  await planned('rehearsed', {
    local: { run: 'true', at: 'here' },
    remote: { run: 'true', needs: ['local'] },
  })
  const plan = await service.get('/schedule-plans/rehearsed/')
  await service.post('/execution-runs/', { id: 'rehearsal', schedulePlanId: 'rehearsed', mode: 'simulation' })
  const { run } = await service.finished('rehearsal', 120)
  expect([run.makespanSeconds, run.cost]).toEqual([plan.predicted.makespanSeconds, plan.predicted.cost])
  expect(plan.predicted.makespanSeconds).toBeGreaterThan(1)
  const action = { id: 'v', capacityTargetId: 'small', action: 'attach-volume' }
  await planned('volumes', { one: { run: 'true' } }, { lifecycleActions: [action] })
  const volumes = await service.call('POST', '/execution-runs/', {
    ...{ id: 'volumes', schedulePlanId: 'volumes', mode: 'real' },
  })
  expect([volumes.status, volumes.body.code]).toEqual([503, 'not_built'])
})

test('what activities made on machines is in the default storage of their runtime, and stays when the run goes', async () => {
  await service.post('/environments/', {
    environment: { id: 'stored', name: 'stored' },
    version: { id: 'stored-v1', version: 1, status: 'published' },
    runtimes: [{ id: 'stored-r', name: 'machines', driver: 'cloud', mode: 'execution' }],
    connections: [
      {
        ...{ id: 'stored-account', name: 'account', type: 'cloud', endpoint: site.endpoint },
        ...{ credentialRef: 'vault:cloud-credential/site' },
        configuration: { provider: 'aws', region: site.region },
      },
    ],
    storages: [
      {
        ...{ id: 'shelf', name: 'shelf', type: 'local', endpoint: shelf },
        configuration: { browseRoots: [{ path: '/' }] },
        runtimeBindings: [{ runtimeId: 'stored-r', default: true }],
      },
    ],
  })
  await service.post('/environments/stored/cloud-capacity-targets/', {
    ...{ id: 'with-shelf', name: 'with-shelf', provider: 'aws', providerMachineType: 'm5.large' },
    ...{ imageReference: 'ami-debian12', vcpu: 1, memoryMiB: 1_024, ...withoutPlaybooks },
  })
  await service.post('/execution-scopes/', {
    ...{ id: 'shelved', name: 'shelved', networkTopologyId: '', environmentVersionIds: ['stored-v1'] },
  })
  await planned(
    'shelving',
    { one: { run: 'mkdir deep; echo shelved > deep/file.txt', at: 'with-shelf' } },
    { executionScopeId: 'shelved' },
  )
  await start('shelving')
  const detail = await service.finished('shelving', 120)
  expect([detail.run.status, detail.run.warnings]).toEqual(['completed', []])
  expect(readFileSync(join(shelf, 'runs/shelving/one/1/deep/file.txt'), 'utf8')).toBe('shelved\n')
  expect(detail.dataLocations.map(({ uri }: any) => uri)).toContain(
    'storage://shelf/runs/shelving/one/1/deep/file.txt',
  )
  await nothingLeft()
  const [row] = await service.db.prepared<{ kept: string }>(
    'kept',
    `select metadata ->> 'keptAt' as kept from task_executions where execution_run_id = 'shelving'`,
    [],
  )
  const kept = row!.kept
  expect(existsSync(join(kept, 'deep/file.txt'))).toBe(true)
  await eventually('the run is deleted', 20, async () => {
    const { status } = await service.call('DELETE', '/execution-runs/shelving/')
    return status === 204
  })
  await eventually('the copy here is gone', 20, () => Promise.resolve(!existsSync(dirname(dirname(kept)))))
  expect(existsSync(join(shelf, 'runs/shelving/one/1/deep/file.txt'))).toBe(true)
})
