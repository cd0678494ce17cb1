import { afterAll, beforeAll, expect, jest } from '@jest/globals'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import { sites } from '../../sites/requirements.ts'
import {
  cloudCalls,
  cloudEnvironment,
  machineOfInstance,
  openClouds,
  withoutPlaybooks,
} from '../support/cloud.ts'
import { needs } from '../support/needs.ts'
import { eventually } from '../support/reach.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { openProxy, type TcpProxy } from '../support/tcp-proxy.ts'

/** Temporal is away while machines cost money. */

const { test } = needs(...sites.ssh)
jest.setTimeout(300_000)

let site: CloudSite
let temporal: TcpProxy
let service: TestService
let calls: ReturnType<typeof cloudCalls>
beforeAll(async () => {
  site = await startCloud({ machines: 'ssh' })
  temporal = await openProxy(Number(temporalAddress().split(':')[1]))
  service = await openService({
    temporalAddress: `127.0.0.1:${String(temporal.port)}`,
    environment: cloudEnvironment(),
  })
  calls = cloudCalls(service)
  await openClouds(service, site)
  await service.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id: 'small', name: 'small', provider: 'aws', providerMachineType: 'm5.large' },
    ...{ imageReference: 'ami-debian12', vcpu: 2, memoryMiB: 8_192, maximumInstances: 5 },
    configuration: { pricePerHour: 3_600, diskSizeGiB: 10, diskPricePerGiBMonth: 1 },
    ...withoutPlaybooks,
  })
  await service.post('/execution-scopes/', {
    ...{ id: 'scope', name: 'scope', networkTopologyId: '', environmentVersionIds: ['clouds-v1'] },
  })
  await service.post('/workflow-definitions/', {
    name: 'waits',
    spec: {
      ...{ namespace: 'tests', image: 'busybox:1.36' },
      activities: ['first', 'second'].map((name) => ({
        ...{ name, cpuLimit: '1', memoryLimit: '64Mi' },
        run: name === 'first' ? 'until [ -e /srv/go ]; do sleep 0.1; done; echo went' : 'echo after',
        dependsOn: name === 'first' ? [] : ['first'],
      })),
    },
  })
  await service.post('/schedule-plans/import/', {
    plan: {
      ...{ id: 'waits', workflowVersionId: 'waits-v1', executionScopeId: 'scope', algorithm: 'by-hand' },
      assignments: ['first', 'second'].map((activityId, orderOnResource) => ({
        ...{ activityId, resourceId: 'small', coreId: 'core-0', orderOnResource },
      })),
    },
  })
}, 300_000)
afterAll(async () => {
  await temporal?.restore().catch(() => undefined)
  await service?.[Symbol.asyncDispose]()
  await site?.stop()
  await temporal?.close()
}, 60_000)

const machineOf = (instanceId: string) => machineOfInstance(service, site, instanceId)

/** When an event of an instance's operations was recorded, in seconds since the epoch. */
const timeOf = async (operationId: string, event: string): Promise<number> => {
  const found = (await calls.events(operationId)).find((one) => one.event === event)
  return Date.parse(found.timestamp) / 1_000
}

/**
 * The bill is the provider's as exactly as anybody who asks for machines can know: both begin
 * between the answer to the request and the look that saw it run, and both end between the request
 * to end it and the look that saw its end.
 */
const expectBill = async (instanceId: string, provision: string, destroy: string): Promise<number> => {
  const { billing } = await calls.instance(instanceId)
  const { ranMs } = await machineOf(instanceId)
  const least = (await timeOf(destroy, 'resource.destroying')) - (await timeOf(provision, 'ssh.waiting'))
  const most = (await timeOf(destroy, 'resource.destroyed')) - (await timeOf(provision, 'resource.created'))
  for (const seconds of [ranMs / 1_000, billing.accumulatedComputeSeconds]) {
    // Times of events have milliseconds.
    expect(seconds).toBeGreaterThan(least - 0.01)
    expect(seconds).toBeLessThan(most + 0.01)
  }
  const life = (Date.parse(billing.finishedAt) - Date.parse(billing.startedAt)) / 1_000
  expect(billing.currentCost).toBeCloseTo(
    billing.accumulatedComputeSeconds * billing.computePricePerSecond + life * billing.diskPricePerSecond,
    3,
  )
  return billing.accumulatedComputeSeconds
}

test('with Temporal away bills go on to the second, nothing is lost, and machines end once it is back', async () => {
  const ready = (await calls.provision({ capacityTargetId: 'small', instanceId: 'ready', name: 'ready' }))
    .body
  expect((await calls.over(ready.id)).status).toBe('completed')
  site.faults.silentConsole(true)
  const open = (await calls.provision({ capacityTargetId: 'small', instanceId: 'open', name: 'open' })).body
  await eventually('the wait for a login', 120, async () =>
    (await calls.events(open.id)).some(({ event }) => event === 'ssh.waiting'),
  )
  await temporal.cut()
  const cut = Date.now()
  site.faults.silentConsole(false)

  // What is asked for meanwhile is accepted, and waits.
  const late = (await calls.provision({ capacityTargetId: 'small', instanceId: 'late', name: 'late' })).body
  const destroy = (await calls.act('ready', 'destroy')).body
  expect([late.status, destroy.status]).toEqual(['queued', 'queued'])
  const costOf = async (id: string): Promise<number> => (await calls.instance(id)).billing.currentCost
  for (const id of ['ready', 'open']) {
    const before = await costOf(id)
    // A second costs 1.
    await eventually(
      `the cost of ${id} grows by two seconds`,
      120,
      async () => (await costOf(id)) > before + 2,
    )
  }
  const states = await Promise.all(
    [late.id, destroy.id].map(
      async (id) => (await service.call('GET', `/cloud-operations/${id}/`)).body.status,
    ),
  )
  expect(states).toEqual(['queued', 'queued'])
  expect((await machineOf('ready')).state).toBe('running')
  const away = (Date.now() - cut) / 1_000
  await temporal.restore()

  for (const { id } of [open, late, destroy])
    expect([id, (await calls.over(id)).status]).toEqual([id, 'completed'])
  expect((await machineOf('ready')).state).toBe('terminated')
  expect(await expectBill('ready', ready.id, destroy.id)).toBeGreaterThan(away)
  for (const { id, instanceId } of [open, late]) {
    const ended = (await calls.act(instanceId, 'destroy')).body
    expect((await calls.over(ended.id)).status).toBe('completed')
    await expectBill(instanceId, id, ended.id)
  }
  // Each was made once.
  expect(site.machines.size).toBe(3)
  expect([...site.machines.values()].map(({ state }) => state)).toEqual(Array(3).fill('terminated'))
})

test('a run whose machine works while Temporal is away completes, and its receipt is the bill', async () => {
  await service.post('/execution-runs/', { id: 'through', schedulePlanId: 'waits', mode: 'real' })
  const instanceId: string = await eventually('the first task', 120, async () => {
    const { activities } = await service.get('/execution-runs/through/')
    return activities.find(({ status }: any) => status === 'running')?.cloudInstanceId
  })
  const machine = await machineOf(instanceId)
  await temporal.cut()
  const before = (await calls.instance(instanceId)).billing.currentCost
  await eventually(
    'the cost grows by two seconds',
    120,
    async () => (await calls.instance(instanceId)).billing.currentCost > before + 2,
  )
  await machine.host!.run('touch /srv/go')
  await temporal.restore()
  const { run } = await service.finished('through', 240)
  expect([run.status, run.failureReason, run.completedActivityCount]).toEqual(['completed', undefined, 2])
  const receipt = await eventually('the end of the machine', 120, async () => {
    const found = await service.get('/execution-runs/through/receipt/')
    return found.final === true && found
  })
  expect(machine.state).toBe('terminated')
  const { infrastructureRuns } = await service.get('/execution-runs/through/')
  const of = (kind: string): string => infrastructureRuns.find((one: any) => one.run.kind === kind).run.id
  const seconds = await expectBill(instanceId, of('provision'), of('destroy'))
  const { billing } = await calls.instance(instanceId)
  expect(receipt.instances).toHaveLength(1)
  expect(receipt.instances[0].actual.seconds).toBeCloseTo(seconds, 3)
  expect(receipt.sum.actual.money).toBeCloseTo(billing.currentCost, 3)
})
