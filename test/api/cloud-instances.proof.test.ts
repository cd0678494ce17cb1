import { afterAll, beforeAll, describe, expect, jest } from '@jest/globals'
import { existsSync } from 'node:fs'
import { parse } from 'yaml'
import type { CloudSite } from '../../sites/cloud.ts'
import { sites } from '../../sites/requirements.ts'
import { cloudCalls, openClouds, openCloudService, withoutPlaybooks } from '../support/cloud.ts'
import { needs } from '../support/needs.ts'
import { beforeNextLook } from '../support/pace.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'

/** Machines of an EC2 endpoint that are hosts with sshd, from the request to the end, over HTTP. */

const { test } = needs(...sites.ssh)
jest.setTimeout(120_000)

let opened: Awaited<ReturnType<typeof openCloudService>>
let site: CloudSite
let service: TestService
let calls: (typeof opened)['calls']
beforeAll(async () => {
  opened = await openCloudService()
  ;({ site, service, calls } = opened)
  await makeTarget('small')
}, 300_000)
afterAll(async () => {
  await opened?.close()
}, 60_000)

const target = (id: string, more: object = {}) => ({
  ...{ id, name: id, provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-debian12' },
  ...{ vcpu: 2, memoryMiB: 8_192, maximumInstances: 5 },
  configuration: {
    ...{ pricePerHour: 3_600, diskSizeGiB: 10, diskPricePerGiBMonth: 1 },
    sshSourceRanges: ['192.0.2.0/24'],
  },
  ...withoutPlaybooks,
  ...more,
})
const makeTarget = (id: string, more: object = {}) =>
  service.post('/environments/clouds/cloud-capacity-targets/', target(id, more))
const provision = (body: object) => calls.provision(body)
const act = (id: string, action: string) => calls.act(id, action)
const instance = (id: string) => calls.instance(id)
const over = (id: string) => calls.over(id)
const events = (id: string) => calls.events(id)
const living = () =>
  [...site.machines.values()].filter(
    ({ state, tags }) => state !== 'terminated' && tags.has('orrery:service'),
  )
/** Provisions and waits. */
const made = async (body: object): Promise<any> => {
  const answer = await provision(body)
  expect([answer.status, answer.body]).toEqual([202, expect.anything()])
  return over(answer.body.id)
}

test('a machine is made, takes a login, is stopped, started with another address, and ended with its key', async () => {
  const operation = await made({ capacityTargetId: 'small', instanceId: 'one' })
  expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
  expect(operation).toMatchObject({
    ...{ kind: 'provision', capacityTargetId: 'small', instanceId: 'one', environmentId: 'clouds' },
    ...{ phase: 'ready', request: { capacityTargetId: 'small', instanceId: 'one' } },
  })
  const ready = await instance('one')
  const [machine] = living()
  expect(ready).toMatchObject({
    ...{ id: 'one', status: 'ready', provider: 'aws', providerId: machine!.id, sshUsername: 'akoflow' },
    ...{ publicAddress: machine!.address, disk: { sizeGiB: 10 } },
    billing: { computePricePerSecond: 1 },
  })
  expect(ready.billing.currentCost).toBeGreaterThan(0)
  expect(machine!.userData).toContain('ssh_authorized_keys')
  expect(machine!.host!.log()).toContain('Accepted publickey for akoflow')
  const list = await events(operation.id)
  expect(list.map(({ event }) => event)).toEqual([
    ...['operation.started', 'resource.creating', 'resource.created', 'ssh.waiting', 'ssh.ready'],
    ...['resource.ready', 'operation.completed'],
  ])
  expect(list.every((one, i) => one.sequence === i + 1 && one.operationId === operation.id)).toBe(true)
  const { log } = (await service.call('GET', '/cloud-instances/one/provisioning-log/')).body
  expect(log.trim().split('\n')).toHaveLength(list.length)

  expect((await act('one', 'start')).body.status).toBe('completed')
  expect((await over((await act('one', 'stop')).body.id)).status).toBe('completed')
  const stopped = await instance('one')
  expect([stopped.status, stopped.publicAddress, machine!.state]).toEqual(['stopped', undefined, 'stopped'])
  expect(stopped.billing.computeStartedAt).toBeUndefined()
  expect((await act('one', 'validate')).body.state).toBe('stopped')
  expect((await over((await act('one', 'start')).body.id)).status).toBe('completed')
  expect((await instance('one')).status).toBe('ready')

  expect((await service.call('DELETE', '/cloud-capacity-targets/small/')).body.state).toBe('ready')
  const keys = (await service.call('GET', '/ssh-keys/')).body.length
  expect((await over((await act('one', 'destroy')).body.id)).status).toBe('completed')
  const gone = await instance('one')
  expect([gone.status, gone.publicAddress, machine!.state]).toEqual(['destroyed', undefined, 'terminated'])
  expect(gone.destroyedAt).toBeDefined()
  expect((await service.call('GET', '/ssh-keys/')).body).toHaveLength(keys - 1)
  expect((await act('one', 'destroy')).body.status).toBe('completed')
  expect((await act('one', 'stop')).body.state).toBe('destroyed')
  expect(living()).toEqual([])
})

test('an equal request is the operation that is under way, another name is another machine, and there is a most', async () => {
  await makeTarget('two', { maximumInstances: 2 })
  const body = { capacityTargetId: 'two' }
  const first = (await provision(body)).body
  expect((await provision(body)).body.id).toBe(first.id)
  const second = (await provision({ ...body, name: 'other' })).body
  expect(second.id).not.toBe(first.id)
  const third = await provision({ ...body, name: 'third' })
  expect([third.status, third.body.state]).toEqual([409, 'maximum-instances'])
  expect((await act(first.instanceId, 'destroy')).status).toBe(409)
  expect((await over(first.id)).status).toBe('completed')
  expect((await over(second.id)).status).toBe('completed')
  await over((await act(first.instanceId, 'stop')).body.id)
  const again = (await provision(body)).body
  expect(again.instanceId).toBe(first.instanceId)
  expect((await over(again.id)).status).toBe('completed')
  const all = (await service.call('GET', '/environments/clouds/cloud-instances/')).body
  expect(all.map(({ id }: { id: string }) => id)).toEqual([second.instanceId, first.instanceId, 'one'])
  for (const { instanceId } of [first, second]) await over((await act(instanceId, 'destroy')).body.id)
  expect(living()).toEqual([])
})

describe('trouble at the provider', () => {
  test('lost answers and throttling make one machine', async () => {
    site.faults.loseAnswers('RunInstances', 2)
    site.faults.throttle('DescribeInstances', 3)
    site.faults.hideNew(1_500)
    try {
      const operation = await made({ capacityTargetId: 'small', instanceId: 'lost' })
      expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
    } finally {
      site.faults.hideNew(0)
    }
    expect(living()).toHaveLength(1)
    await over((await act('lost', 'destroy')).body.id)
    expect(living()).toEqual([])
  })

  test('a zone without capacity: the next one; none: the operation fails and leaves nothing', async () => {
    site.faults.noCapacity('us-east-1a')
    expect((await made({ capacityTargetId: 'small', instanceId: 'zoned' })).status).toBe('completed')
    expect(living()[0]!.zone).toBe('us-east-1b')
    await over((await act('zoned', 'destroy')).body.id)
    site.faults.noCapacity('*')
    const failed = await made({ capacityTargetId: 'small', instanceId: 'nowhere' })
    site.faults.noCapacity(undefined)
    expect(failed).toMatchObject({
      status: 'failed',
      failureReason: expect.stringContaining('InsufficientInstanceCapacity'),
    })
    expect(await instance('nowhere')).toMatchObject({ status: 'failed' })
    expect(living()).toEqual([])
    const retry = `/cloud-operations/${failed.id}/retry/`
    expect((await service.call('POST', retry)).status).toBe(202)
    expect(await over(failed.id)).toMatchObject({ status: 'completed' })
    expect(living()).toHaveLength(1)
    expect((await service.call('POST', retry)).body.state).toBe('completed')
    const list = '/environments/clouds/cloud-instances/'
    const listed = async (query: string) =>
      (await service.call('GET', `${list}?${query}`)).body.map(({ id }: { id: string }) => id)
    expect(await listed('status=ready')).toEqual(['nowhere'])
    expect(await listed('capacityTargetId=none')).toEqual([])
    await over((await act('nowhere', 'destroy')).body.id)
    expect((await service.call('POST', retry)).body.state).toBe('completed')
    expect(living()).toEqual([])
  })

  test('a machine that shows another host key than its console fails its provisioning, and is ended', async () => {
    site.faults.otherHostKey(true)
    const operation = await made({ capacityTargetId: 'small', instanceId: 'other-key', name: 'other-key' })
    site.faults.otherHostKey(false)
    expect([operation.status, operation.failureReason]).toEqual([
      'failed',
      expect.stringContaining('another host key than its console'),
    ])
    expect(living()).toEqual([])
    const { status, failureReason } = await instance('other-key')
    expect([status, failureReason]).toEqual(['failed', operation.failureReason])
  })
  test('a cancel while the machine is made ends it', async () => {
    site.faults.silentConsole(true)
    const { id } = (await provision({ capacityTargetId: 'small', instanceId: 'cut' })).body
    for (const began = performance.now(); (await instance('cut')).publicAddress === undefined;)
      await beforeNextLook(began)
    expect((await service.call('POST', `/cloud-operations/${id}/cancel/`)).status).toBe(202)
    expect((await over(id)).status).toBe('cancelled')
    site.faults.silentConsole(false)
    expect((await instance('cut')).status).toBe('failed')
    expect(living()).toEqual([])
  })

  test('wrong parameters and a wrong key fail with the words of the provider', async () => {
    await makeTarget('wrong', { imageReference: 'ami-none' })
    expect(await made({ capacityTargetId: 'wrong' })).toMatchObject({ status: 'failed' })
    const { credentialRef } = await service.post('/cloud-credentials/', {
      ...{ id: 'bad', provider: 'aws', credential: { ...site.accessKey, secretAccessKey: 'x'.repeat(40) } },
    })
    await service.ok('PUT', '/environment-connections/account/', {
      ...{ id: 'account', environmentId: 'clouds', name: 'account', type: 'cloud', credentialRef },
      ...{ endpoint: site.endpoint, configuration: { provider: 'aws', region: site.region } },
    })
    const health = await service.call('POST', '/environment-connections/account/health/')
    expect(health.body.message).toContain('InvalidClientTokenId')
    const refused = await service.call('POST', '/environments/clouds/cloud-catalog/refresh/')
    expect([refused.status, refused.body.error]).toEqual([422, expect.stringContaining('AuthFailure')])
    await service.ok('PUT', '/environment-connections/account/', {
      ...{ id: 'account', environmentId: 'clouds', name: 'account', type: 'cloud' },
      credentialRef: 'vault:cloud-credential/site',
      ...{ endpoint: site.endpoint, configuration: { provider: 'aws', region: site.region } },
    })
    const right = await service.call('POST', '/environment-connections/account/health/')
    expect(right.body.message).toContain('all stages passed')
  })
})

test('the sweep ends what bears our tags and has no living record, and nothing else', async () => {
  const path = '/environments/clouds/cloud-orphans/'
  expect((await made({ capacityTargetId: 'small', instanceId: 'kept' })).status).toBe('completed')
  const [kept] = living()
  const stranger = site.foreign()
  const orphan = site.foreign()
  for (const [name, value] of kept!.tags) orphan.tags.set(name, value)
  const other = site.foreign()
  other.tags.set('orrery:service', 'of another service')
  const found = (await service.call('GET', path)).body
  expect(found).toMatchObject([{ providerId: orphan.id, connectionId: 'account', instanceId: 'kept' }])
  expect((await service.call('POST', `${path}sweep/`)).body).toEqual(found)
  expect([kept, stranger, orphan, other].map((one) => one!.state)).toEqual([
    ...['running', 'running', 'terminated', 'running'],
  ])
  expect((await service.call('GET', path)).body).toEqual([])
  other.tags.clear()
  await over((await act('kept', 'destroy')).body.id)
})

test('hostile names and ids reach the provider as they are, and neither XML, YAML nor a shell', async () => {
  const text = '"\'; touch hostile #$(id)`id`\\ <&>%0A {{ 7*7 }} ../é😀: - x'
  await makeTarget(`t ${text}`)
  const operation = await made({ capacityTargetId: `t ${text}`, instanceId: text, name: text })
  expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
  const machine = living().find(({ tags }) => tags.get('orrery:instance') === text)!
  expect(machine.tags.get('Name')).toBe(text)
  const [, userData] = machine.userData.split('#cloud-config\n')
  const { users } = parse(userData!) as { users: { name: string; ssh_authorized_keys: string[] }[] }
  expect(users).toMatchObject([
    { name: 'akoflow', ssh_authorized_keys: [expect.stringMatching(/^ssh-ed25519 /)] },
  ])
  expect(users[0]!.ssh_authorized_keys).toHaveLength(1)
  expect((await machine.host!.run('ls -A', 'account')).stdout).not.toContain('hostile')
  expect(existsSync('hostile')).toBe(false)
  expect((await over((await act(encodeURIComponent(text), 'destroy')).body.id)).status).toBe('completed')
  expect(machine.state).toBe('terminated')
})

test('the timer ends them too, and asks the provider once in its pause', async () => {
  await using own = await openService({
    environment: {
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
      SERVICE_CLOUD_SWEEP_SECONDS: '1',
    },
  })
  await openClouds(own, site)
  await own.post('/environments/clouds/cloud-capacity-targets/', target('small'))
  const asked = cloudCalls(own)
  const { body } = await asked.provision({ capacityTargetId: 'small', instanceId: 'swept' })
  expect((await asked.over(body.id)).status).toBe('completed')
  const kept = site.machines.get((await asked.instance('swept')).providerId)!
  const [stranger, orphan, unknown] = [site.foreign(), site.foreign(), site.foreign()]
  for (const one of [orphan, unknown]) for (const [name, value] of kept.tags) one.tags.set(name, value)
  // No record has the reference.
  unknown.tags.set('orrery:reference', '6f1f5f0e-9d3c-4f5e-8a27-0c3f0e3c9a11')
  for (const began = performance.now(); orphan.state === 'running' || unknown.state === 'running';) {
    expect(performance.now() - began).toBeLessThan(30_000)
    await beforeNextLook(began)
  }
  expect([kept.state, stranger.state]).toEqual(['running', 'running'])

  // Others stop one machine and end another: neither bill goes on.
  const second = (await asked.provision({ capacityTargetId: 'small', instanceId: 'ended', name: 'ended' }))
    .body
  expect((await asked.over(second.id)).status).toBe('completed')
  const [{ publicAddress }, ended] = [await asked.instance('swept'), await asked.instance('ended')]
  expect(publicAddress).toBeDefined()
  kept.state = 'stopped'
  site.faults.takeBack(ended.providerId)
  const settled = async (id: string): Promise<any> => {
    for (const began = performance.now(); ;) {
      const now = await asked.instance(id)
      if (now.status !== 'ready') return now
      expect(performance.now() - began).toBeLessThan(30_000)
      await beforeNextLook(began)
    }
  }
  expect(await settled('swept')).toMatchObject({
    status: 'stopped',
    failureReason: expect.stringMatching(/was stopped/),
  })
  const gone = await settled('ended')
  expect(gone).toMatchObject({
    status: 'failed',
    failureReason: expect.stringMatching(/was ended at its provider/),
  })
  expect(gone.billing.finishedAt).toBeDefined()
  expect((await asked.instance('swept')).billing.finishedAt).toBeUndefined()
  expect(kept.state).toBe('stopped')
  await asked.over((await asked.act('swept', 'destroy')).body.id)
})

test('the catalog is what the provider offers, once it was read', async () => {
  const path = '/environments/clouds/cloud-catalog/'
  expect((await service.call('GET', path)).status).toBe(404)
  const read = await service.call('POST', `${path}refresh/`)
  expect(read.status).toBe(200)
  expect(read.body).toMatchObject({ provider: 'aws', region: 'us-east-1', source: 'provider' })
  expect(read.body.machines).toContainEqual(
    expect.objectContaining({ providerTypeId: 'm5.large', vcpu: 2, memoryMiB: 8_192, architecture: 'amd64' }),
  )
  expect(read.body.images[0]).toMatchObject({ providerImageId: 'ami-debian12', architecture: 'amd64' })
  expect((await service.call('GET', path)).body).toEqual(read.body)
  const told = { priceCurrency: 'USD', priceSource: 'aws-pricing' }
  const offer = ({ machines }: any) => machines.find((one: any) => one.providerTypeId === 'm5.large')
  expect(offer(read.body)).toMatchObject({ pricePerHour: 0.096, pricePerMinute: 0.0016, ...told })
  expect(read.body.disks[0]).toMatchObject({ providerTypeId: 'gp3', pricePerGiBMonth: 0.08, ...told })
  expect(read.body.warnings).toEqual([expect.stringMatching(/no price of 1 machine types \(m7g.large\)/)])

  // The catalog's prices are those of targets without their own; a month has 730 hours.
  await makeTarget('priced', { configuration: { diskSizeGiB: 73, sshSourceRanges: ['192.0.2.0/24'] } })
  expect((await made({ capacityTargetId: 'priced', instanceId: 'priced' })).status).toBe('completed')
  const { billing } = await instance('priced')
  expect(billing.computePricePerSecond).toBeCloseTo(0.096 / 3_600, 12)
  expect(billing.diskPricePerSecond).toBeCloseTo((73 * 0.08) / (730 * 3_600), 12)
  await over((await act('priced', 'destroy')).body.id)

  // A refusal of prices is a warning; without an answer the catalog stays as it was.
  site.faults.noPrices(true)
  const without = (await service.call('POST', `${path}refresh/`)).body
  site.faults.noPrices(false)
  expect(offer(without).pricePerHour).toBeUndefined()
  expect(without.warnings).toEqual([expect.stringContaining('AccessDeniedException')])
  expect(offer((await service.call('POST', `${path}refresh/`)).body).pricePerHour).toBe(0.096)
  site.faults.throttle('GetProducts', 1)
  expect((await service.call('POST', `${path}refresh/`)).status).toBe(503)
  expect(offer((await service.call('GET', path)).body).pricePerHour).toBe(0.096)
  const later = await service.call('POST', `${path}refresh/?async=true`)
  expect([later.status, later.body]).toEqual([202, { status: 'running', environmentId: 'clouds' }])
  const { discoveredAt } = (await service.call('GET', path)).body
  const isRead = async () => (await service.call('GET', path)).body.discoveredAt !== discoveredAt
  for (const began = performance.now(); !(await isRead());) {
    expect(performance.now() - began).toBeLessThan(60_000)
    await beforeNextLook(began)
  }
})

test('a credential is valid where the provider says so, wrong where it says so, and neither without an answer', async () => {
  const path = '/cloud-credentials/validate/'
  const asked = { provider: 'aws', credential: site.accessKey, endpoint: site.endpoint }
  const right = await service.call('POST', path, asked)
  expect([right.status, right.body]).toMatchObject([
    200,
    {
      valid: true,
      checked: 'provider',
      reason: expect.stringMatching(/arn:aws:iam::\d{12}:user\/test/),
    },
  ])
  const credential = { ...site.accessKey, secretAccessKey: 'x'.repeat(40) }
  const wrong = await service.call('POST', path, { ...asked, credential })
  expect([wrong.status, wrong.body.details[0].path]).toEqual([422, 'credential'])
  expect(JSON.stringify(wrong.body)).not.toContain('xxxx')
  const silent = await service.call('POST', path, { ...asked, endpoint: 'http://127.0.0.1:9' })
  expect([silent.status, silent.body.code]).toEqual([503, 'unavailable'])
  const google = { provider: 'gcp', credential: site.google.credential, endpoint: site.google.endpoint }
  expect((await service.call('POST', path, google)).body).toMatchObject({
    valid: true,
    project: 'orrery-site',
  })
  const metadata = await service.call('POST', path, { ...google, endpoint: 'http://169.254.169.254' })
  expect(metadata.status).toBe(422)
})

test('a question to the provider whose connection breaks off is asked once more, and no further time', async () => {
  const ask = () => service.call('GET', '/environments/clouds/cloud-orphans/')
  expect((await ask()).body).toEqual([])
  const asked = site.calls.get('DescribeInstances')!
  site.faults.loseAnswers('DescribeInstances', 1)
  expect((await ask()).status).toBe(200)
  expect(site.calls.get('DescribeInstances')).toBe(asked + 2)
  site.faults.loseAnswers('DescribeInstances', 2)
  expect((await ask()).status).toBe(503)
  expect(site.calls.get('DescribeInstances')).toBe(asked + 4)
})

describe('what is refused leaves nothing', () => {
  test('unknown ids, another environment, an unknown action, a provider that is not built', async () => {
    const before = await service.call('GET', '/cloud-operations/')
    expect((await provision({ capacityTargetId: 'no' })).status).toBe(422)
    expect((await provision({ capacityTargetId: 'small', sshUsername: 'A b' })).status).toBe(422)
    expect((await provision({ capacityTargetId: 'small', instanceId: 'one' })).status).toBe(422)
    expect((await service.call('POST', '/environments/no/cloud-instances/', {})).status).toBe(422)
    expect((await act('no', 'stop')).status).toBe(404)
    expect((await act('one', 'explode')).status).toBe(404)
    for (const path of ['/cloud-operations/no/', '/cloud-operations/no/events/', '/cloud-instances/no/'])
      expect((await service.call('GET', path)).status).toBe(404)
    expect((await service.call('GET', '/cloud-instances/no/provisioning-log/')).status).toBe(404)
    const after = await service.call('GET', '/cloud-operations/')
    expect(after.body).toHaveLength(before.body.length)
  })
})
