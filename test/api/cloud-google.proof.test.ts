import { afterAll, beforeAll, expect, jest } from '@jest/globals'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { CloudSite } from '../../sites/cloud.ts'
import { sites } from '../../sites/requirements.ts'
import { until } from '../failures/programs.ts'
import { machinesOf, openCloudService, withoutPlaybooks } from '../support/cloud.ts'
import { needs } from '../support/needs.ts'
import type { TestService } from '../support/service.ts'

/** Machines of Compute Engine that are hosts with sshd, over HTTP. */

const { test } = needs(...sites.ssh)
jest.setTimeout(400_000)

let opened: Awaited<ReturnType<typeof openCloudService>>
let site: CloudSite
let service: TestService
let calls: (typeof opened)['calls']
beforeAll(async () => {
  opened = await openCloudService({ machines: 'ssh' }, { providers: ['gcp'] })
  ;({ site, service, calls } = opened)
  await makeTarget('t')
}, 300_000)
afterAll(async () => {
  await opened?.close()
}, 60_000)

const makeTarget = (id: string, more: object = {}) =>
  service.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id, name: id, ...machinesOf('gcp'), maximumInstances: 5, ...withoutPlaybooks },
    ...more,
  })

const made = async (instanceId: string): Promise<any> => {
  const { status, body } = await calls.provision({ capacityTargetId: 't', instanceId })
  expect([status, body.error]).toEqual([202, undefined])
  return calls.over(body.id)
}

test('a machine lives from its request to its end, with the host key from its guest attributes', async () => {
  const stranger = site.google.foreign()
  site.faults.noCapacity('us-east1-b')
  site.faults.throttle('instances.aggregatedList', 2)
  const operation = await made('one')
  site.faults.noCapacity(undefined)
  expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
  const ready = await calls.instance('one')
  expect(ready).toMatchObject({
    status: 'ready',
    provider: 'gcp',
    providerId: expect.stringMatching(/^us-east1-c\/orrery-/),
  })
  const machine = site.machines.get(ready.providerId)!
  expect(machine.host!.log()).toContain('Accepted publickey for akoflow')
  expect(site.calls.get('instances.getGuestAttributes')).toBeGreaterThan(0)
  expect((await calls.over((await calls.act('one', 'stop')).body.id)).status).toBe('completed')
  expect((await calls.over((await calls.act('one', 'start')).body.id)).status).toBe('completed')
  const orphan = site.google.foreign()
  for (const [key, value] of machine.tags) orphan.tags.set(key, value)
  const swept = await service.call('POST', '/environments/clouds/cloud-orphans/sweep/')
  expect(swept.body).toMatchObject([{ providerId: orphan.id }])
  expect((await calls.over((await calls.act('one', 'destroy')).body.id)).status).toBe('completed')
  expect([machine, stranger, orphan].map(({ state }) => state)).toEqual([
    'terminated',
    'running',
    'terminated',
  ])
})

test.each([
  ['machines', "quotaExceeded: Quota 'INSTANCES' exceeded"],
  ['processors', "QUOTA_EXCEEDED: Quota 'CPUS' exceeded"],
] as const)(
  'the quota of %s is used up: the operation fails with the words of Google and what helps, and leaves nothing',
  async (quota, words) => {
    const living = () => [...site.machines.values()].filter(({ state }) => state !== 'terminated').length
    const before = living()
    site.faults.noQuota(quota)
    const failed = await made(`no-${quota}`)
    site.faults.noQuota(undefined)
    expect([failed.status, failed.failureReason]).toEqual(['failed', expect.stringContaining(words)])
    expect(failed.failureReason).toContain('have the quota of the account raised; then try again')
    expect((await calls.instance(`no-${quota}`)).status).toBe('failed')
    expect(living()).toBe(before)
    await service.call('POST', `/cloud-operations/${failed.id}/retry/`)
    expect((await calls.over(failed.id)).status).toBe('completed')
    expect((await calls.over((await calls.act(`no-${quota}`, 'destroy')).body.id)).status).toBe('completed')
    expect(living()).toBe(before)
  },
)

test('a run goes on at another machine where Google takes one back, pays for both and leaves nothing', async () => {
  await makeTarget('spots', { provisioningMode: 'spot', configuration: { pricePerHour: 3_600 } })
  await service.post('/execution-scopes/', {
    ...{ id: 'scope', name: 'scope', networkTopologyId: '', environmentVersionIds: ['clouds-v1'] },
  })
  const limits = { cpuLimit: '1', memoryLimit: '64Mi' }
  const second = '[ -s kept.txt ] && { [ "$AKOFLOW_ATTEMPT" -gt 1 ] || sleep 3600; }'
  await service.post('/workflow-definitions/', {
    name: 'taken',
    spec: {
      ...{ namespace: 'tests', image: 'busybox:1.36' },
      activities: [
        { name: 'first', run: 'echo kept > kept.txt', ...limits },
        { name: 'second', run: second, dependsOn: ['first'], ...limits },
      ],
    },
  })
  await service.post('/schedule-plans/import/', {
    plan: {
      ...{ id: 'taken', workflowVersionId: 'taken-v1', executionScopeId: 'scope', algorithm: 'by-hand' },
      assignments: ['first', 'second'].map((activityId, orderOnResource) => ({
        ...{ activityId, resourceId: 'spots', coreId: 'core-0', orderOnResource },
      })),
    },
  })
  await service.post('/execution-runs/', { id: 'taken', schedulePlanId: 'taken', mode: 'real' })
  const lost = await until('the second task', 120, async () => {
    const { activities } = await service.get('/execution-runs/taken/')
    return activities.find((one: any) => one.externalId === 'second' && one.status === 'running')
  })
  site.faults.takeBack((await calls.instance(lost.cloudInstanceId)).providerId)
  const { run, activities } = await service.finished('taken', 120)
  expect([run.status, run.failureReason]).toEqual(['completed', undefined])
  expect(new Set(activities.map(({ cloudInstanceId }: any) => cloudInstanceId)).size).toBe(2)
  const receipt = await until('the whole receipt', 120, async () => {
    const found = await service.get('/execution-runs/taken/receipt/')
    return found.final === true ? found : undefined
  })
  expect(receipt.instances.map(({ status, releaseReason }: any) => [status, releaseReason])).toEqual([
    ['destroyed', 'lost'],
    ['destroyed', 'tasks-over'],
  ])
  for (const { actual } of receipt.instances) expect(actual.money).toBeGreaterThan(0)
  const own = [...site.machines.values()].filter(({ spot }) => spot)
  expect(own.map(({ state }) => state)).toEqual(['terminated', 'terminated'])
})

test('the address for tokens in a key is never contacted, and a denied endpoint is asked nothing', async () => {
  let contacts = 0
  const listener = createServer().on('connection', (socket) => {
    contacts++
    socket.destroy()
  })
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve))
  const address = `127.0.0.1:${String((listener.address() as AddressInfo).port)}/token`
  const { credential, endpoint, region } = site.google
  const given = { provider: 'gcp', region, credential }
  const path = '/cloud-credentials/validate/'
  try {
    const withUri = (uri: string) => ({ ...given, endpoint, credential: { ...credential, token_uri: uri } })
    const right = await service.call('POST', path, withUri(`https://${address}`))
    expect([right.status, right.body.valid]).toEqual([200, true])
    const plain = await service.call('POST', path, withUri(`http://${address}`))
    expect([plain.status, plain.body.details]).toEqual([
      422,
      [expect.objectContaining({ path: 'credential.token_uri' })],
    ])
    for (const denied of [
      'http://169.254.169.254',
      'http://metadata.google.internal',
      'http://[fd00:ec2::254]',
    ]) {
      const refused = await service.call('POST', path, {
        ...given,
        endpoint: denied,
      })
      expect([denied, refused.status]).toEqual([denied, 422])
      const saved = await service.call('PUT', '/environment-connections/denied/', {
        ...{ id: 'denied', environmentId: 'clouds', name: 'denied', type: 'cloud', endpoint: denied },
        ...{ credentialRef: 'vault:cloud-credential/site', configuration: { provider: 'gcp', region } },
      })
      expect(saved.status).toBeLessThan(300)
      const refresh = await service.call(
        'POST',
        '/environments/clouds/cloud-catalog/refresh/?connectionId=denied',
      )
      expect(refresh.status).toBe(422)
      expect(refresh.body.error).not.toContain('is no cloud connection')
    }
    expect(contacts).toBe(0)
  } finally {
    listener.close()
  }
})

test('the catalog and the check of the connection ask Compute Engine', async () => {
  const { status, body } = await service.call(
    'POST',
    '/environments/clouds/cloud-catalog/refresh/?connectionId=account',
  )
  expect([status, body.provider, body.project, body.region]).toEqual([200, 'gcp', 'orrery-site', 'us-east1'])
  const offer = body.machines.find((one: any) => one.providerTypeId === 'e2-standard-2')
  expect(offer.pricePerHour).toBeCloseTo(2 * 0.02181159 + 8 * 0.00292353, 9)
  const health = await service.call('POST', '/environment-connections/account/health/')
  expect(health.body.message).toContain('all stages passed')
})
