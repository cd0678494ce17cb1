import { afterAll, afterEach, beforeAll, describe, expect, jest } from '@jest/globals'
import type { CloudMachine, CloudSite } from '../../sites/cloud.ts'
import { sites } from '../../sites/requirements.ts'
import { machineOfInstance, openCloudService, withoutPlaybooks } from '../support/cloud.ts'
import { needs } from '../support/needs.ts'
import { eventually } from '../support/reach.ts'
import type { TestService } from '../support/service.ts'

/** Machines that are not given, give no answer, move, or are ended by others. */

const { test } = needs(...sites.ssh, 'ansible-core', 'bubblewrap')
jest.setTimeout(240_000)

let opened: Awaited<ReturnType<typeof openCloudService>>
let site: CloudSite
let service: TestService
let calls: (typeof opened)['calls']
const playbook = `- hosts: all
  gather_facts: false
  tasks:
    - {name: may take long, shell: "[ ! -e /srv/slow ] || sleep 3600"}
`
beforeAll(async () => {
  opened = await openCloudService()
  ;({ site, service, calls } = opened)
  await makeTarget('plain')
  await service.post('/machine-configurations/', { id: 'own', name: 'own' })
  await service.post('/machine-configurations/own/versions/', { id: 'own-v1', playbookYaml: playbook })
  await makeTarget('configured', {
    machineConfigurations: [
      ...withoutPlaybooks.machineConfigurations,
      { configurationVersionId: 'own-v1', executionOrder: 1 },
    ],
  })
}, 300_000)
afterAll(async () => {
  await opened?.close()
}, 60_000)
afterEach(() => {
  expect(living()).toEqual([])
})

const makeTarget = (id: string, more: object = {}) =>
  service.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id, name: id, provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-debian12' },
    ...{ vcpu: 2, memoryMiB: 8_192, maximumInstances: 5, ...withoutPlaybooks, ...more },
  })
const living = () => [...site.machines.values()].filter(({ state }) => state !== 'terminated')
/** The operation that makes an instance of this id. */
const provision = async (instanceId: string, capacityTargetId = 'plain'): Promise<string> => {
  const { status, body } = await calls.provision({ capacityTargetId, instanceId, name: instanceId })
  expect([status, body.error]).toEqual([202, undefined])
  return body.id
}
const made = async (instanceId: string, capacityTargetId = 'plain'): Promise<CloudMachine> => {
  const operation = await calls.over(await provision(instanceId, capacityTargetId))
  expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
  return machineOf(instanceId)
}
const machineOf = (instanceId: string) => machineOfInstance(service, site, instanceId)
const destroyed = async (instanceId: string): Promise<void> => {
  const { status } = await calls.over((await calls.act(instanceId, 'destroy')).body.id)
  expect(status).toBe('completed')
}
const inPhase = (operationId: string, phase: string): Promise<boolean> =>
  eventually(`the phase ${phase}`, 120, async () => {
    const { body } = await service.call('GET', `/cloud-operations/${operationId}/`)
    return body.phase === phase
  })

test.each([
  ['machines', 'InstanceLimitExceeded', /current instance limit of 0/],
  ['processors', 'VcpuLimitExceeded', /current vCPU limit of 0/],
] as const)(
  'the quota of %s is used up: the operation fails with the words of EC2 and what helps, and leaves nothing',
  async (quota, code, words) => {
    const keys = (await service.call('GET', '/ssh-keys/')).body.length
    site.faults.noQuota(quota)
    const requests = site.calls.get('RunInstances') ?? 0
    const id = await provision(`no-${quota}`)
    const failed = await calls.over(id)
    expect(failed.status).toBe('failed')
    expect(failed.failureReason).toContain(code)
    expect(failed.failureReason).toMatch(words)
    expect(failed.failureReason).toContain('have the quota of the account raised; then try again')
    // Another zone has no other quota.
    expect(site.calls.get('RunInstances')).toBe(requests + 1)
    expect(await calls.instance(`no-${quota}`)).toMatchObject({
      ...{ status: 'failed', failureReason: failed.failureReason },
    })
    expect(living()).toEqual([])
    expect((await service.call('GET', '/ssh-keys/')).body).toHaveLength(keys)
    site.faults.noQuota(undefined)
    expect((await service.call('POST', `/cloud-operations/${id}/retry/`)).status).toBe(202)
    expect((await calls.over(id)).status).toBe('completed')
    await destroyed(`no-${quota}`)
  },
)

test('a machine whose SSH gives no answer is waited for, and is ready once it does', async () => {
  site.faults.silentSsh(true)
  const id = await provision('silent')
  await inPhase(id, 'waiting-for-ssh')
  const { host } = await machineOf('silent')
  // Packets to its port came, and none was answered.
  await eventually('a try to log in', 120, async () => {
    const { stdout } = await host!.run("iptables -nvxL INPUT | awk '/DROP/ {print $1}'")
    return Number(stdout) > 0
  })
  expect((await calls.instance('silent')).status).toBe('provisioning')
  expect((await service.call('GET', `/cloud-operations/${id}/`)).body.phase).toBe('waiting-for-ssh')
  site.faults.silentSsh(false)
  await host!.heal()
  expect((await calls.over(id)).status).toBe('completed')
  await destroyed('silent')
})

test('a cancel while SSH gives no answer ends the machine', async () => {
  site.faults.silentSsh(true)
  const id = await provision('given-up')
  await inPhase(id, 'waiting-for-ssh')
  site.faults.silentSsh(false)
  expect((await service.call('POST', `/cloud-operations/${id}/cancel/`)).status).toBe(202)
  expect((await calls.over(id)).status).toBe('cancelled')
  expect((await calls.instance('given-up')).status).toBe('failed')
})

test('a machine has another address after a start, under the key that was pinned at its first one', async () => {
  const machine = await made('moved', 'configured')
  const before = machine.address
  const pinned = machine.host!.fingerprint()
  expect((await calls.instance('moved')).publicAddress).toBe(before)
  await calls.over((await calls.act('moved', 'stop')).body.id)
  const consoles = site.calls.get('GetConsoleOutput')
  expect((await calls.over((await calls.act('moved', 'start')).body.id)).status).toBe('completed')
  const { publicAddress } = await calls.instance('moved')
  expect(publicAddress).toBe(machine.address)
  expect(publicAddress).not.toBe(before)
  expect(site.calls.get('GetConsoleOutput')).toBe(consoles)
  expect(machine.host!.fingerprint()).toBe(pinned)
  // A playbook reaches it there.
  expect((await calls.over((await calls.act('moved', 'configure')).body.id)).status).toBe('completed')
  await destroyed('moved')
})

describe('a machine that others end', () => {
  /** It failed for the end at the provider, and its bill is closed. */
  const closed = async (operationId: string, instanceId: string): Promise<void> => {
    const operation = await calls.over(operationId)
    expect([operation.status, operation.failureReason]).toEqual([
      ...['failed', expect.stringMatching(/was ended at its provider \(Server.SpotInstanceTermination\)/)],
    ])
    const { status, failureReason, billing } = await calls.instance(instanceId)
    expect([status, failureReason]).toEqual(['failed', operation.failureReason])
    expect([billing.finishedAt, billing.computeStartedAt]).toEqual([expect.any(String), undefined])
  }

  test('while its login is awaited', async () => {
    site.faults.silentSsh(true)
    const id = await provision('lost')
    await inPhase(id, 'waiting-for-ssh')
    site.faults.silentSsh(false)
    site.faults.takeBack((await machineOf('lost')).id)
    await closed(id, 'lost')
  })

  test('while playbooks run on it', async () => {
    const machine = await made('torn', 'configured')
    await machine.host!.run('touch /srv/slow')
    const { id } = (await calls.act('torn', 'configure')).body
    await eventually('the slow task', 120, async () =>
      (await calls.events(id)).some(({ event }) => event === 'task.started'),
    )
    site.faults.takeBack(machine.id)
    await closed(id, 'torn')
    await destroyed('torn')
  })

  test('while it is stopped: its start fails, and it costs no more', async () => {
    const machine = await made('sold')
    await calls.over((await calls.act('sold', 'stop')).body.id)
    site.faults.takeBack(machine.id)
    const operation = await calls.over((await calls.act('sold', 'start')).body.id)
    expect(operation.status).toBe('failed')
    const { status, billing } = await calls.instance('sold')
    expect([status, billing.finishedAt]).toEqual(['failed', expect.any(String)])
  })
})

test('a destroy while a configuration runs is refused; after its cancel the machine stays until it is destroyed', async () => {
  const machine = await made('busy', 'configured')
  await machine.host!.run('touch /srv/slow')
  const { id } = (await calls.act('busy', 'configure')).body
  await eventually('the slow task', 120, async () =>
    (await calls.events(id)).some(({ event }) => event === 'task.started'),
  )
  const refused = await calls.act('busy', 'destroy')
  expect([refused.status, refused.body.state]).toEqual([409, 'configuring'])
  expect(refused.body.error).toMatch(/is under configure; wait for the end of that, or cancel it/)
  expect((await service.call('POST', `/cloud-operations/${id}/cancel/`)).status).toBe(202)
  expect((await calls.over(id)).status).toBe('cancelled')
  expect([machine.state, (await calls.instance('busy')).status]).toEqual(['running', 'failed'])
  await destroyed('busy')
  expect(machine.state).toBe('terminated')
})
