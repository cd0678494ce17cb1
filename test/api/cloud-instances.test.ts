import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { userInfo } from 'node:os'
import { join } from 'node:path'
import { z } from 'zod'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import { sql } from '../../src/db/sql.ts'
import { openHttp } from '../../src/clients/http.ts'
import { makeSshKey } from '../../src/clients/ssh/keys.ts'
import { CredentialVariables } from '../../src/config.ts'
import { openTurns } from '../../src/db/each-record.ts'
import { openClouds, type Cloud } from '../../src/domains/cloud/clouds.ts'
import { keyIdOf } from '../../src/domains/cloud/instance-keys.ts'
import { noteLosses, recordLost } from '../../src/domains/cloud/loss.ts'
import { createMachine, recordProviderWait, type CloudWorkParts } from '../../src/domains/cloud/work.ts'
import { endUnusedMachines, unusedByRuns } from '../../src/domains/execution-runs/machines.ts'
import { openVaultKeys } from '../../src/vault/keys.ts'
import { openVault } from '../../src/vault/vault.ts'
import { machineOfInstance, machinesOf, openCloudService, withoutPlaybooks } from '../support/cloud.ts'
import { until } from '../failures/programs.ts'
import { replayed } from '../support/histories.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, temporalAddress } from '../support/service.ts'
import { proved } from '../support/share.ts'

/** Machines of an EC2 endpoint, each an sshd on loopback, from the request to the end, over HTTP. */

let opened: Awaited<ReturnType<typeof openCloudService>>
let { site, service, calls } = {} as typeof opened
let keyFile: string
beforeAll(async () => {
  keyFile = makeVaultKeyFile()
  opened = await openCloudService({ machines: 'loopback' }, { keyFile })
  ;({ site, service, calls } = opened)
  await makeTarget('small')
})
afterAll(() => opened?.close())
afterEach(() => {
  expect(living()).toEqual([])
})

const makeTarget = (
  id: string,
  { configuration = {}, ...more }: Record<string, object | string | number> = {},
) =>
  service.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id, name: id, provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-ubuntu2404' },
    ...{ vcpu: 2, memoryMiB: 8_192, maximumInstances: 2, ...withoutPlaybooks },
    configuration: {
      ...{ sshPort: site.sshPort, sshUsername: userInfo().username, diskSizeGiB: 20 },
      ...(configuration as object),
    },
    ...more,
  })
const living = () =>
  [...site.machines.values()]
    .filter(({ state, tags }) => state !== 'terminated' && tags.has('orrery:service'))
    .map(({ id }) => id)
/** Provisions, waits, and answers with the operation. */
const made = async (instanceId: string, capacityTargetId = 'small'): Promise<any> => {
  const { status, body } = await calls.provision({ capacityTargetId, instanceId, name: instanceId })
  expect([status, body.error]).toEqual([202, undefined])
  return calls.over(body.id)
}
const act = async (instanceId: string, action: string): Promise<any> =>
  calls.over((await calls.act(instanceId, action)).body.id)
/** What the timer does with machines of the environment, and its errors. */
const noted = async () => {
  const { db } = service
  const outside = { variables: new CredentialVariables([]), folders: [] }
  const secrets = openVault({ db, keys: await openVaultKeys(keyFile), outside, audit: async () => {} })
  const http = openHttp({ addressAllowed: () => true })
  const errors: string[] = []
  const clouds = openClouds({ db, http, secrets })
  const losses = await noteLosses({ db, clouds, unused: unusedByRuns }, 'clouds', (error) => {
    errors.push((error as Error).message)
  })
  http.close()
  return { ids: losses.map(({ instanceId }) => instanceId).toSorted(), errors }
}

test('a machine is made with its disk, stopped, started with another address, and ended; its target stays till then', async () => {
  const operation = await made('one')
  expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
  const machine = await machineOfInstance(service, site, 'one')
  const ready = await calls.instance('one')
  expect(ready).toMatchObject({
    ...{ status: 'ready', providerId: machine.id, publicAddress: machine.address },
    sshUsername: userInfo().username,
  })
  expect(machine.sshd!.log()).toContain(`Accepted publickey for ${userInfo().username}`)
  // The instance's id, which is a text of a user, is no part of what the machine boots with.
  expect(machine.userData).toMatch(/- "ssh-ed25519 [\w+/=]+"\n/)
  const key = (await service.get('/ssh-keys/')).find(({ usedBy }: any) => usedBy[0]?.instanceId === 'one')
  const kept = await service.call('DELETE', `/ssh-keys/${key.id}/`)
  expect([kept.status, kept.body.error]).toEqual([422, expect.stringMatching(/instance "one".*destroy/)])
  const { privateKey } = makeSshKey('another')
  const replaced = await service.call('PUT', `/ssh-keys/${key.id}/`, { privateKey })
  expect([replaced.status, replaced.body.error]).toEqual([
    409,
    expect.stringMatching(/instance "one".*destroy/),
  ])
  // The root device of this image is not that of the others.
  expect([...machine.disks]).toEqual([['/dev/sda1', 20]])

  expect(await act('one', 'stop')).toMatchObject({ kind: 'stop', status: 'completed' })
  const stopped = await calls.instance('one')
  expect([stopped.status, stopped.publicAddress, machine.state]).toEqual(['stopped', undefined, 'stopped'])
  expect(stopped.billing.computeStartedAt).toBeUndefined()
  expect(await act('one', 'start')).toMatchObject({ kind: 'start', status: 'completed' })
  const again = await calls.instance('one')
  expect(again).toMatchObject({ status: 'ready', publicAddress: machine.address })
  expect(again.publicAddress).not.toBe(ready.publicAddress)

  const removal = await service.call('DELETE', '/cloud-capacity-targets/small/')
  expect([removal.status, removal.body.state]).toEqual([409, 'ready'])
  expect(await act('one', 'destroy')).toMatchObject({ kind: 'destroy', status: 'completed' })
  expect(await calls.instance('one')).toMatchObject({ status: 'destroyed' })
  expect(machine.state).toBe('terminated')
  expect((await service.call('GET', `/ssh-keys/${key.id}/`)).status).toBe(404)

  const connection = await Connection.connect({ address: temporalAddress() })
  const { namespace } = service
  const keys = await openVaultKeys(keyFile)
  await replayed({ connection, namespace, keys }, 'cloud-operation', `cloud-operation/${operation.id}/1`)
  await connection.close()
})

test('an operation whose provider limits the rate goes on, and its events and the log say once why it waits', async () => {
  await made('limited')
  site.faults.throttle('StopInstances', 2)
  const { id, status } = await act('limited', 'stop')
  expect(status).toBe('completed')
  const waits = (await calls.events(id)).filter(({ event }) => event === 'resource.waiting')
  expect(waits).toMatchObject([
    { level: 'info', phase: 'stopping', message: expect.stringContaining('RequestLimitExceeded') },
  ])
  const { log } = await service.get('/cloud-instances/limited/provisioning-log/')
  expect(log).toContain(`[stopping] resource.waiting: ${waits[0].message}`)
  const forged = '2026-01-01T00:00:00Z [ready] resource.ready'
  for (const reason of ['one', 'two', 'one', `three\r\n${forged}`])
    await recordProviderWait(service.db, id, reason)
  const { log: longer } = await service.get('/cloud-instances/limited/provisioning-log/')
  expect(longer.slice(log.length).replace(/^\S+/gm, 'at')).toBe(
    ['one', 'two', `three ${forged}`].map((reason) => `at [stopping] resource.waiting: ${reason}\n`).join(''),
  )
  await act('limited', 'destroy')
})

proved(
  'a start waits for the end of a stop, and fails with the reason where the machine falls back to stopped',
  async () => {
    await made('fallen')
    await act('fallen', 'stop')
    const machine = await machineOfInstance(service, site, 'fallen')
    // As others stop it: the record is `stopped` before the machine is.
    machine.state = 'stopping'
    site.faults.noStart(true)
    const looks = site.calls.get('DescribeInstances') ?? 0
    const { id } = (await calls.act('fallen', 'start')).body
    await until('a look at it', 120, () => (site.calls.get('DescribeInstances') ?? 0) > looks)
    machine.state = 'stopped'
    const failed = await calls.over(id)
    site.faults.noStart(false)
    expect([failed.status, failed.failureReason]).toEqual([
      ...['failed', expect.stringMatching(/was stopped at its provider \(Server.InternalError\).*retry/)],
    ])
    expect((await calls.instance('fallen')).failureReason).toBe(failed.failureReason)
    await service.post(`/cloud-operations/${id}/retry/`)
    expect((await calls.over(id)).status).toBe('completed')
    await act('fallen', 'destroy')
  },
)

proved.each(['runs', 'falls back'])('a machine whose start is cancelled can be used: it %s', async (end) => {
  const instance = `called-off-${end.slice(0, 4)}`
  await made(instance)
  await act(instance, 'stop')
  const machine = await machineOfInstance(service, site, instance)
  // It is neither running nor stopped until its start is cancelled.
  machine.state = 'stopping'
  const looks = site.calls.get('DescribeInstances') ?? 0
  const { id } = (await calls.act(instance, 'start')).body
  await until('a look at it', 120, () => (site.calls.get('DescribeInstances') ?? 0) > looks)
  await service.post(`/cloud-operations/${id}/cancel/`)
  const before = site.calls.get('DescribeInstances') ?? 0
  await until('two looks after it', 120, () => (site.calls.get('DescribeInstances') ?? 0) > before + 1)
  const runs = end === 'runs'
  site.faults.noStart(true)
  Object.assign(machine, runs ? { state: 'running', address: '127.0.0.1' } : { state: 'stopped' })
  expect(await calls.over(id)).toMatchObject({ status: 'cancelled' })
  site.faults.noStart(false)
  const { status, publicAddress, billing, failureReason } = await calls.instance(instance)
  expect([status, publicAddress, failureReason]).toEqual(
    runs ? ['ready', '127.0.0.1', undefined] : ['stopped', undefined, undefined],
  )
  expect(billing.computeStartedAt !== undefined).toBe(runs)
  expect(await act(instance, runs ? 'stop' : 'start')).toMatchObject({ status: 'completed' })
  await act(instance, 'destroy')
})

proved('a machine whose start is refused for its address counts while it runs', async () => {
  await makeTarget('of-address', { configuration: { sshAddress: 'public' } })
  await made('unreached', 'of-address')
  await act('unreached', 'stop')
  site.faults.noPublicAddress(true)
  const failed = await act('unreached', 'start')
  expect([failed.status, failed.failureReason]).toEqual(['failed', expect.stringMatching(/public address/)])
  expect((await calls.instance('unreached')).billing.computeStartedAt).toBeDefined()
  site.faults.noPublicAddress(false)
  await service.post(`/cloud-operations/${failed.id}/retry/`)
  expect(await calls.over(failed.id)).toMatchObject({ status: 'completed' })
  await act('unreached', 'destroy')
})

test('a machine and an action are asked for once where the answer was lost with the daemon', async () => {
  const once = async (path: string, body: object | undefined, key: string) => {
    const ask = () => service.call('POST', path, body, { 'idempotency-key': key })
    const first = await ask()
    expect([first.status, first.body.error]).toEqual([202, undefined])
    await calls.over(first.body.id)
    await service.db.run(sql`delete from idempotency_keys`)
    const second = await ask()
    expect([second.status, second.body.id]).toEqual([202, first.body.id])
    return first.body
  }
  const { instanceId } = await once(
    '/environments/clouds/cloud-instances/',
    { capacityTargetId: 'small' },
    'provision',
  )
  expect(living()).toHaveLength(1)
  await once(`/cloud-instances/${instanceId}/destroy/`, undefined, 'destroy')
})

test("Request Cancellation on Temporal's page cancels the operation, and the machine that it makes is ended", async () => {
  const temporal = await Connection.connect({ address: temporalAddress() })
  site.faults.silentSsh(true)
  try {
    const { body } = await calls.provision({ capacityTargetId: 'small', instanceId: 'unwanted' })
    await until(
      'its wait for a login',
      120,
      async () => (await service.get(`/cloud-operations/${body.id}/`)).live?.phase === 'waiting-for-ssh',
    )
    expect(living()).toHaveLength(1)
    const { workflow } = new Client({ connection: temporal, namespace: service.namespace })
    await workflow.getHandle(`cloud-operation/${body.id}/1`).cancel()
    expect(await calls.over(body.id)).toMatchObject({ status: 'cancelled' })
  } finally {
    site.faults.silentSsh(false)
    await temporal.close()
  }
})

test('events of cloud operations come under their topic', async () => {
  const { items } = await service.get('/events/?after=0&topic=cloud-operation')
  expect(new Set(items.map(({ kind }: any) => kind))).toEqual(new Set(['cloud-operation']))
})

test('the stream of the events of a cloud operation has the documents of their list', async () => {
  const [{ id }] = await service.get('/cloud-operations/?status=completed')
  const path = `/cloud-operations/${encodeURIComponent(id)}/events/`
  const answer = await fetch(`${service.baseUrl}${path}`, { headers: { accept: 'text/event-stream' } })
  const data = [...(await answer.text()).matchAll(/^data: (.*)$/gm)].map(([, line = '']) => JSON.parse(line))
  expect(data).not.toEqual([])
  expect(data).toEqual(await service.get(path))
})

test('a target makes as many machines as it may', async () => {
  await makeTarget('single', { maximumInstances: 1 })
  expect((await made('first', 'single')).status).toBe('completed')
  const second = await calls.provision({ capacityTargetId: 'single', instanceId: 'second', name: 'second' })
  expect([second.status, second.body.state]).toEqual([409, 'maximum-instances'])
  await act('first', 'destroy')
})

proved(
  'where a zone has no capacity or lacks the type the next one is asked, but a subnet has one zone only',
  async () => {
    await makeTarget('in-subnet', { configuration: { network: 'subnet-a' } })
    site.faults.noCapacity('us-east-1a')
    site.faults.unsupported('us-east-1b')
    expect((await made('elsewhere')).status).toBe('completed')
    expect((await machineOfInstance(service, site, 'elsewhere')).zone).toBe('us-east-1c')
    site.faults.unsupported(undefined)
    await act('elsewhere', 'destroy')
    const before = site.calls.get('RunInstances')!
    expect(await made('nowhere', 'in-subnet')).toMatchObject({
      status: 'failed',
      failureReason: expect.stringContaining('InsufficientInstanceCapacity'),
    })
    expect(site.calls.get('RunInstances')).toBe(before + 1)
    site.faults.noCapacity(undefined)
  },
)

test('a machine whose making fails is ended, and a retry makes another one, also where a connection keeps its key', async () => {
  const credentialRef = `vault:ssh-key/${keyIdOf('other-key')}`
  await service.post('/environments/', {
    environment: { id: 'login', name: 'login' },
    version: { id: 'login-v1', version: 1 },
    connections: [
      { id: 'login-c', name: 'c', type: 'ssh', endpoint: 'localhost', username: 'ada', credentialRef },
    ],
  })
  site.faults.otherHostKey(true)
  site.faults.throttle('RunInstances', 1)
  site.faults.throttle('TerminateInstances', 1)
  const failed = await made('other-key')
  site.faults.otherHostKey(false)
  site.faults.throttle('RunInstances', 1)
  expect(failed).toMatchObject({
    status: 'failed',
    failureReason: expect.stringContaining('another host key than its console'),
  })
  expect(await calls.instance('other-key')).toMatchObject({ status: 'failed' })
  expect(living()).toEqual([])
  expect((await service.call('POST', `/cloud-operations/${failed.id}/retry/`)).status).toBe(202)
  expect(await calls.over(failed.id)).toMatchObject({ status: 'completed' })
  // Each try says why it waited, and so does the end of what the first one has left.
  const waits = (await calls.events(failed.id)).filter(({ event }) => event === 'resource.waiting')
  expect(waits.map(({ phase }) => phase)).toEqual(['provisioning', 'destroying', 'provisioning'])
  expect(await act('other-key', 'destroy')).toMatchObject({ status: 'completed' })
  expect(await service.get(`/ssh-keys/${keyIdOf('other-key')}/`)).toMatchObject({
    usedBy: [{ connectionId: 'login-c' }],
  })
})

proved(
  'a machine without a public address is used at its private one, unless its target wants the public one',
  async () => {
    site.faults.noPublicAddress(true)
    await makeTarget('public', { configuration: { sshAddress: 'public' } })
    const failed = await made('no-address', 'public')
    expect(failed.failureReason).toMatch(
      /^the machine i-[0-9a-f]+ runs without a public address; name a subnet .*let sshAddress be private$/,
    )
    expect(living()).toEqual([])
    expect((await made('private')).status).toBe('completed')
    site.faults.noPublicAddress(false)
    const instance = await calls.instance('private')
    expect([instance.status, instance.publicAddress]).toEqual(['ready', undefined])
    expect(instance.privateAddress).toMatch(/^127\./)
    expect((await act('private', 'validate')).status).toBe('completed')
    await act('private', 'destroy')
  },
)

proved(
  'what a failed check says is masked before it is cut; one that writes too much fails, and any ends with its operation and its machine',
  async () => {
    const { db } = service
    await makeTarget('checked')
    await made('checked', 'checked')
    const folder = mkdtempSync(join(runFolder(), 'checks-'))
    const command = `cat /proc/$$/cmdline /proc/$PPID/cmdline > ${folder}/lines
      printf '%0493d%s' 1 "$api_token" >&2; exit 3`
    await db.run(sql`insert into machine_configurations (id, name) values ('checks', 'checks')`)
    await db.run(sql`insert into machine_configuration_versions
      (id, machine_configuration_id, version, status, playbook_yaml, content_sha256, validation_checks)
    values ('checks-v1', 'checks', 1, 'published', '- hosts: all', 'x',
      ${JSON.stringify([{ name: 'tells', command }])}::jsonb)`)
    const variables = { api_token: 'canary-0123456789' }
    const own = {
      configurationVersionId: 'checks-v1',
      executionOrder: 1,
      required: true,
      enabled: true,
      variables,
    }
    await db.run(sql`update cloud_capacity_targets set machine_configurations = ${JSON.stringify([own])}::jsonb
    where id = 'checked'`)
    const { id, failureReason } = await act('checked', 'validate')
    expect(failureReason).toMatch(/^the check "tells" of checks-v1 ended with 3: …0+1\*{8}$/)
    expect(JSON.stringify(await calls.events(id))).not.toContain('canary')
    const lines = readFileSync(`${folder}/lines`, 'utf8')
    expect(lines).toContain('/bin/sh')
    expect(lines).not.toContain('canary')

    const check = (name: string, script: string) =>
      db.run(sql`update machine_configuration_versions
      set validation_checks = ${JSON.stringify([{ name, command: script }])}::jsonb where id = 'checks-v1'`)
    await check('writes', 'head -c 2000000 /dev/zero')
    const long = await act('checked', 'validate')
    expect([long.status, long.failureReason]).toEqual([
      ...['failed', 'the check "writes" of checks-v1 wrote more than 1048576 bytes'],
    ])
    const begun = async (name: string): Promise<string> => {
      await check(name, `touch ${folder}/${name}; while [ -e ${folder}/${name} ]; do sleep 0.1; done`)
      const { body } = await calls.act('checked', 'validate')
      await until('the check', 120, () => existsSync(`${folder}/${name}`))
      return body.id
    }
    const cancelled = await begun('cancelled')
    await service.post(`/cloud-operations/${cancelled}/cancel/`)
    await until('the end of the check', 30, async () => {
      const { status } = await service.get(`/cloud-operations/${cancelled}/`)
      return status === 'cancelled'
    })
    const lost = await begun('lost')
    site.faults.takeBack((await machineOfInstance(service, site, 'checked')).id)
    expect(await calls.over(lost)).toMatchObject({
      ...{ status: 'failed', failureReason: expect.stringMatching(/ended at its provider .*worked on it/) },
    })
    await act('checked', 'destroy')
  },
)

test('a machine of Google is made, looked at and ended in the project of its target', async () => {
  const { credential, endpoint, region } = site.google
  const { credentialRef } = await service.post('/cloud-credentials/', {
    ...{ id: 'google', provider: 'gcp', credential },
  })
  await service.post('/environments/', {
    environment: { id: 'google', name: 'google' },
    version: { id: 'google-v1', version: 1 },
    runtimes: [{ id: 'google-r', name: 'r', driver: 'cloud', mode: 'execution' }],
    connections: [
      {
        ...{ id: 'google-c', name: 'c', type: 'cloud', endpoint, credentialRef },
        configuration: { provider: 'gcp', region, projectId: 'another-project' },
      },
    ],
  })
  await service.post('/environments/google/cloud-capacity-targets/', {
    ...{ id: 'of-project', name: 'of-project', provider: 'gcp', providerMachineType: 'e2-standard-2' },
    ...{ imageReference: 'projects/debian-cloud/global/images/family/debian-12', vcpu: 2, memoryMiB: 8_192 },
    configuration: {
      ...{ sshPort: site.sshPort, sshUsername: userInfo().username, projectId: credential.project_id },
    },
    ...withoutPlaybooks,
  })
  const asked = { capacityTargetId: 'of-project', instanceId: 'of-project' }
  const { status, body } = await service.call('POST', '/environments/google/cloud-instances/', asked)
  expect([status, body.error]).toEqual([202, undefined])
  const operation = await calls.over(body.id)
  expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
  expect(await act('of-project', 'destroy')).toMatchObject({ status: 'completed' })
  expect([...site.machines.values()].at(-1)).toMatchObject({ state: 'terminated' })
})

test('an expired credential and one of another provider are refused with the reason', async () => {
  const given = { provider: 'aws', credential: site.accessKey, endpoint: site.endpoint }
  site.faults.expired(true)
  const verdict = await service.call('POST', '/cloud-credentials/validate/', given)
  const failed = await made('expired')
  site.faults.expired(false)
  expect([verdict.status, verdict.body.valid, verdict.body.error]).toEqual([
    ...[422, false, expect.stringContaining('ExpiredToken')],
  ])
  expect([failed.status, failed.failureReason]).toEqual(['failed', expect.stringMatching(/Expired/)])
  // The provider could not be asked for its end either.
  expect(await act('expired', 'destroy')).toMatchObject({ status: 'completed' })
  const { credentialRef } = await service.post('/cloud-credentials/', {
    ...{ id: 'of-google', provider: 'gcp', credential: site.google.credential },
  })
  await service.post('/environments/', {
    environment: { id: 'mixed', name: 'mixed' },
    version: { id: 'mixed-v1', version: 1 },
    connections: [
      {
        ...{ id: 'mixed-c', name: 'c', type: 'cloud', endpoint: site.endpoint, credentialRef },
        configuration: { provider: 'aws', region: site.region },
      },
    ],
  })
  for (const path of [
    '/environments/mixed/cloud-catalog/refresh/',
    '/environments/mixed/cloud-orphans/sweep/',
  ]) {
    const { status, body } = await service.call('POST', path)
    expect([status, body.error]).toEqual([
      422,
      expect.stringContaining('"vault:cloud-credential/of-google" is no credential of aws; refer to one'),
    ])
  }
})

proved('a connection that leads to another account says nothing about a machine', async () => {
  await made('stays')
  const machine = await machineOfInstance(service, site, 'stays')
  const connection = await service.get('/environment-connections/account/')
  const lead = async ({ accessKey: credential, endpoint }: CloudSite) => {
    const key = await service.call('PUT', '/cloud-credentials/site/', { provider: 'aws', credential })
    const saved = await service.call('PUT', '/environment-connections/account/', { ...connection, endpoint })
    expect([key.status, saved.status]).toEqual([200, 200])
  }
  await using other = await startCloud()
  try {
    await lead(other)
    const elsewhere = expect.stringMatching(
      /leads to the account \d{12} of aws, and the machine is in \d{12};/,
    )
    expect(await noted()).toEqual({ ids: [], errors: [elsewhere] })
    expect(await act('stays', 'destroy')).toMatchObject({ status: 'failed', failureReason: elsewhere })
    expect(await noted()).toEqual({ ids: [], errors: [elsewhere] })
    const kept = await calls.instance('stays')
    expect([kept.status, kept.sshCredentialRef, machine.state]).toEqual([
      'failed',
      expect.any(String),
      'running',
    ])
    expect(kept.billing.finishedAt).toBeUndefined()
  } finally {
    await lead(site)
  }
  expect(await act('stays', 'destroy')).toMatchObject({ status: 'completed' })
  expect(machine.state).toBe('terminated')
})

proved('what others end is noted in every state of its record, and its bill is closed', async () => {
  const { db } = service
  await makeTarget('watched', { maximumInstances: 4, lifecyclePolicy: 'keep' })
  const ids = ['broken', 'halted', 'idle', 'resting']
  for (const { status } of await Promise.all(ids.map((id) => made(id, 'watched'))))
    expect(status).toBe('completed')
  await act('resting', 'stop')
  const set = (id: string, columns: ReturnType<typeof sql>) =>
    db.run(sql`update cloud_instances set ${columns} where id = ${id}`)
  await set('broken', sql`status = 'failed', failure_reason = 'its stop failed'`)
  await set('halted', sql`status = 'failed', failure_reason = 'its stop failed'`)
  // As a run has left it, whose machines are kept for a while.
  await set('idle', sql`execution_run_id = 'over', account = null`)
  expect(await noted()).toEqual({ ids: [], errors: [] })
  // An earlier version did not record it.
  expect(await db.run(sql`select from cloud_instances where id = 'idle' and account is not null`)).toBe(1)

  const at = await Promise.all(ids.map((id) => machineOfInstance(service, site, id)))
  at[1]!.state = 'stopped'
  for (const machine of [at[0], at[2], at[3]]) site.faults.takeBack(machine!.id)
  expect(await noted()).toEqual({ ids, errors: [] })
  const gone = await Promise.all(['broken', 'idle', 'resting'].map((id) => calls.instance(id)))
  for (const { status, failureReason, billing } of gone) {
    expect([status, failureReason]).toEqual(['failed', expect.stringMatching(/was ended at its provider/)])
    expect(billing.finishedAt).toBeDefined()
  }
  expect(gone[0].failureReason).toMatch(/^its stop failed; the machine/)
  const { status, failureReason, billing } = await calls.instance('halted')
  expect([status, failureReason]).toEqual(['failed', 'its stop failed'])
  expect([billing.computeStartedAt, billing.finishedAt]).toEqual([undefined, undefined])
  expect(await noted()).toEqual({ ids: [], errors: [] })
  await act('halted', 'destroy')
})

test('a machine without a record is an orphan, and a sweep ends it and no other', async () => {
  await made('kept')
  const kept = await machineOfInstance(service, site, 'kept')
  const stranger = site.foreign()
  const orphan = site.foreign()
  for (const [name, value] of kept.tags) orphan.tags.set(name, value)
  orphan.tags.set('orrery:reference', '00000000-0000-4000-8000-000000000000')
  const path = '/environments/clouds/cloud-orphans/'
  expect((await service.call('GET', path)).body).toEqual([expect.objectContaining({ providerId: orphan.id })])
  expect((await service.call('POST', `${path}sweep/`)).status).toBe(200)
  expect([kept.state, stranger.state, orphan.state]).toEqual(['running', 'running', 'terminated'])
  expect(await service.get('/audit-events/?eventType=cloud.orphan.ended')).toEqual([
    expect.objectContaining({
      ...{ environmentId: 'clouds', connectionId: 'account', externalId: orphan.id, outcome: 'succeeded' },
    }),
  ])
  await act('kept', 'destroy')
})

test('a machine whose provider never answered about it is recorded with its bill by a sweep, and stays', async () => {
  const sweep = () => service.post('/environments/clouds/cloud-orphans/sweep/')
  site.faults.loseAnswers('RunInstances', 1_000)
  site.faults.hideNew(3_600_000)
  const { body } = await calls.provision({ capacityTargetId: 'small', instanceId: 'unanswered' })
  await until('the machine', 120, () => living().length === 1)
  site.faults.expired(true)
  const { status, finishedAt } = await calls.over(body.id)
  expect(status).toBe('failed')
  site.faults.expired(false)
  site.faults.loseAnswers('RunInstances', 0)
  site.faults.hideNew(0)
  const [machine] = living()
  const failed = await calls.instance('unanswered')
  expect([failed.status, failed.providerId, failed.billing]).toEqual(['failed', undefined, undefined])
  expect(await service.get('/environments/clouds/cloud-orphans/')).toEqual([])

  expect(await sweep()).toEqual([])
  const { billing, ...found } = await calls.instance('unanswered')
  expect(found).toMatchObject({
    ...{ status: 'failed', providerId: machine },
    failureReason: expect.stringMatching(`Expired.*; its machine ${machine!} was found later`),
  })
  expect([billing.startedAt, billing.finishedAt]).toEqual([billing.computeStartedAt, undefined])
  expect(Date.parse(billing.startedAt)).toBeLessThan(Date.parse(finishedAt))
  expect(await sweep()).toEqual([])
  expect(await service.get('/audit-events/?eventType=cloud.instance.found')).toEqual([
    expect.objectContaining({ externalId: machine, metadata: { instanceId: 'unanswered' } }),
  ])
  expect(await act('unanswered', 'destroy')).toMatchObject({ status: 'completed' })
})

test('an instance whose machine was never asked for ends without an answer of its provider', async () => {
  await service.post('/environments/', {
    environment: { id: 'silent', name: 'silent' },
    version: { id: 'silent-v1', version: 1 },
    runtimes: [{ id: 'silent-r', name: 'r', driver: 'cloud', mode: 'execution' }],
    connections: [
      {
        ...{ id: 'silent-account', name: 'account', type: 'cloud', endpoint: 'http://127.0.0.1:9' },
        credentialRef: 'vault:cloud-credential/site',
        configuration: { provider: 'aws', region: site.region },
      },
    ],
  })
  const target = { id: 'silent', name: 'silent', ...machinesOf('aws'), ...withoutPlaybooks }
  await service.post('/environments/silent/cloud-capacity-targets/', target)
  const document = { capacityTargetId: 'silent', instanceId: 'never-asked' }
  const { id } = await service.post('/environments/silent/cloud-instances/', document)
  await service.post(`/cloud-operations/${id}/cancel/`)
  expect(await calls.over(id)).toMatchObject({ status: 'cancelled' })
  expect(await act('never-asked', 'destroy')).toMatchObject({ status: 'completed' })
  expect(await calls.instance('never-asked')).toMatchObject({ status: 'destroyed' })
  // An attempt of the operation gets its answer only now.
  const cloud = { account: () => Promise.resolve('late') } as Cloud
  const parts = { db: service.db, clouds: { at: () => Promise.resolve(cloud) }, failpoint: () => {} }
  await expect(createMachine(parts as unknown as CloudWorkParts, id)).rejects.toThrow(
    'the instance never-asked is over, so no machine is made for it',
  )
})

proved('a machine that others stop or end is in the audit, once, with the reason', async () => {
  for (const [id, state] of [
    ['stopped', 'stopped'],
    ['ended', 'terminated'],
  ] as const) {
    await made(id)
    const machine = await machineOfInstance(service, site, id)
    // The loss of a machine that the instance had before it was provisioned again.
    const former = { instanceId: id, providerId: 'i-former' }
    for (const stays of [true, false])
      expect(await recordLost(service.db, former, { reason: 'it was ended', stays })).toBe(false)
    expect(await calls.instance(id)).toMatchObject({ status: 'ready', providerId: machine.id })
    machine.state = state
    expect(await noted()).toEqual({ ids: [id], errors: [] })
    expect(await noted()).toEqual({ ids: [], errors: [] })
    const events = await service.get('/audit-events/?eventType=cloud.instance.lost')
    const ofThis = events.filter(({ metadata }: any) => metadata.instanceId === id)
    expect(ofThis).toHaveLength(1)
    expect(ofThis[0]).toMatchObject({
      ...{ environmentId: 'clouds', connectionId: 'account', externalId: machine.id },
      ...{ outcome: 'failed', metadata: { instanceId: id } },
      summary: expect.stringContaining(`cloud instance ${id} lost: the machine ${machine.id} was ${id}`),
    })
    await act(id, 'destroy')
  }
})

proved('a refresh of the catalog whose process has ended is taken up by another one', async () => {
  await service.db.run(sql`insert into cloud_catalogs (environment_id, connection_id, refreshing_since)
    values ('clouds', 'account', now() - interval '1 minute'), ('clouds', 'gone', now() + interval '1 day')`)
  await until('the catalog', 120, async () => {
    const { status, body } = await service.call('GET', '/environments/clouds/cloud-catalog/')
    return status === 200 && body.machines.length > 0
  })
  const waiting = () =>
    service.db
      .run(sql`select from cloud_catalogs where refreshing_since is not null`)
      .then((count) => count > 0)
  await until('no refresh that is under way', 120, async () => !(await waiting()))
})

describe('a run whose plan stops and starts its machine', () => {
  const folder = mkdtempSync(join(runFolder(), 'gates-'))
  beforeAll(async () => {
    await service.post('/environments/', {
      environment: { id: 'here', name: 'here' },
      version: { id: 'here-v1', version: 1, status: 'published' },
      runtimes: [{ id: 'here-r', name: 'here', driver: 'local', mode: 'execution' }],
      resources: [
        {
          ...{
            id: 'here',
            name: 'here',
            type: 'local_machine',
            providerId: 'here',
            executionTarget: 'direct',
          },
          ...{ cpuCores: 2, cpuCapacity: 2, memoryBytes: 2 ** 30, computeSpeedup: 1, schedulable: true },
        },
      ],
      resourceRuntimeBindings: [{ resourceId: 'here', runtimeId: 'here-r', enabled: true }],
    })
  })
  /** Stores a workflow of tasks one after the other (`name: place`), and a plan of the same id. */
  const planned = async (
    id: string,
    targetId: string,
    tasks: readonly string[],
    actions: readonly object[],
  ) => {
    await service.post('/execution-scopes/', {
      ...{ id, name: id, networkTopologyId: '', environmentVersionIds: ['clouds-v1', 'here-v1'] },
    })
    const activities = tasks.map((place, at) => ({
      ...{ name: `t${String(at)}`, cpuLimit: '1', memoryLimit: '64Mi' },
      run: place === 'here' ? `until [ -e ${folder}/${id}-${String(at)} ]; do sleep 0.1; done` : 'true',
      dependsOn: at === 0 ? [] : [`t${String(at - 1)}`],
    }))
    await service.post('/workflow-definitions/', {
      name: id,
      spec: { namespace: 'tests', image: 'busybox:1.36', activities },
    })
    await service.post('/schedule-plans/import/', {
      plan: {
        ...{ id, workflowVersionId: `${id}-v1`, executionScopeId: id, algorithm: 'by-hand' },
        assignments: tasks.map((place, at) => ({
          ...{ activityId: `t${String(at)}`, coreId: 'core-0', orderOnResource: at },
          resourceId: place === 'here' ? 'here' : targetId,
        })),
        lifecycleActions: actions.map((action, at) => ({
          ...{ id: `${id}-${String(at)}`, capacityTargetId: targetId, ...action },
        })),
      },
    })
  }
  const start = (id: string) =>
    service.call('POST', '/execution-runs/', { id, schedulePlanId: id, mode: 'real' })
  const open = (id: string, at: number) => writeFileSync(`${folder}/${id}-${String(at)}`, '')
  const kindsOf = async (instanceId: string): Promise<string[]> =>
    (await service.get(`/cloud-operations/?instanceId=${encodeURIComponent(instanceId)}`))
      .map(({ kind }: { kind: string }) => kind)
      .toReversed()

  proved(
    'it is stopped while nothing can run there, started for the next task, and ends with the run',
    async () => {
      await makeTarget('resting', { lifecyclePolicy: 'destroy-after-run', maximumInstances: 1 })
      await planned(
        'rests',
        'resting',
        ['cloud', 'here', 'cloud', 'here'],
        [{ action: 'provision' }, { action: 'stop' }],
      )
      expect((await start('rests')).status).toBe(202)
      const instance = await until('a stopped machine', 120, async () => {
        const [one] = await service.get('/environments/clouds/cloud-instances/?capacityTargetId=resting')
        return one?.status === 'stopped' ? (one.id as string) : undefined
      })
      // The run has it: a person gets another one.
      const other = await calls.provision({ capacityTargetId: 'resting' })
      expect([other.status, other.body.state]).toEqual([409, 'maximum-instances'])
      open('rests', 1)
      await until('the task behind the stop', 120, async () => {
        const { run } = await service.get('/execution-runs/rests/')
        return run.completedActivityCount === 3
      })
      // Its last task is over, and the run is not.
      expect(await calls.instance(instance)).toMatchObject({ status: 'ready' })
      open('rests', 3)
      expect((await service.finished('rests')).run.status).toBe('completed')
      await until('the end of the machine', 120, () => living().length === 0)
      await until(
        'the record of its end',
        120,
        async () => (await calls.instance(instance)).status === 'destroyed',
      )
      expect(await kindsOf(instance)).toEqual(['provision', 'stop', 'start', 'destroy'])
    },
  )

  proved(
    'a start takes the machine of a person that it names, which is stopped again; no other one',
    async () => {
      await made('sleeping')
      await act('sleeping', 'stop')
      await planned('wakes', 'small', ['cloud'], [{ action: 'start', cloudInstanceId: 'sleeping' }])
      expect((await start('wakes')).status).toBe(202)
      expect((await service.finished('wakes')).run.status).toBe('completed')
      await until(
        'the stop of the machine',
        120,
        async () => (await calls.instance('sleeping')).status === 'stopped',
      )
      const kinds = ['provision', 'stop', 'start', 'stop']
      expect(await kindsOf('sleeping')).toEqual(kinds)
      await planned('wakes-any', 'small', ['cloud'], [{ action: 'start' }])
      expect((await start('wakes-any')).status).toBe(202)
      expect((await service.finished('wakes-any')).run.status).toBe('completed')
      expect(await kindsOf('sleeping')).toEqual(kinds)
      await until('the end of the other machine', 120, () => living().length === 1)
      // As a stop that failed long ago leaves it.
      const { db } = service
      await db.run(
        sql`update cloud_operations set finished_at = now() - interval '1 year' where instance_id = 'sleeping'`,
      )
      await db.run(sql`update cloud_instances set status = 'failed' where id = 'sleeping'`)
      const turns = openTurns(
        ({ id }: { id: string }) => id,
        (error) => expect(error).toBeUndefined(),
      )
      const engine = { start: () => Promise.resolve(), cancel: () => Promise.resolve(true) } as never
      await endUnusedMachines({ db, engine }, turns)
      expect(await kindsOf('sleeping')).toEqual(kinds)
      // As a version that did not check them has stored them.
      const wrong = { sshPort: 'none', idleSeconds: 'long', sshSourceRanges: 7, connectionId: null }
      const targets = await service.get('/environments/clouds/cloud-capacity-targets/')
      const { configuration } = targets.find(({ id }: { id: string }) => id === 'small')
      const configure = (members: object) =>
        db.run(
          sql`update cloud_capacity_targets set configuration = ${JSON.stringify(members)}::jsonb where id = 'small'`,
        )
      await configure({ ...configuration, ...wrong })
      await endUnusedMachines({ db, engine }, turns)
      expect(await act('sleeping', 'destroy')).toMatchObject({ status: 'completed' })
      await configure(configuration)
    },
  )

  proved('a machine that a run has left is the machine of the person who asks for one', async () => {
    await makeTarget('left', { lifecyclePolicy: 'keep' })
    await made('left', 'left')
    await act('left', 'stop')
    await service.db.run(sql`update cloud_instances set execution_run_id = 'over' where id = 'left'`)
    const { status, body } = await calls.provision({ capacityTargetId: 'left' })
    expect([status, body.instanceId]).toEqual([202, 'left'])
    expect(await calls.over(body.id)).toMatchObject({ status: 'completed' })
    const own = sql`select from cloud_instances where id = 'left' and execution_run_id is null`
    expect(await service.db.run(own)).toBe(1)
    await act('left', 'destroy')
  })

  proved(
    'a run pays for the time in which the machine ran while the run had it, and not while it was stopped',
    async () => {
      const { db } = service
      const [{ id, billing }] = await service.get(
        '/environments/clouds/cloud-instances/?capacityTargetId=resting',
      )
      // As if another run had taken it at its stop.
      await db.run(sql`update run_machines set released_at = (select min(upper(ran)) from cloud_instances i,
      unnest(i.compute_spans) ran where i.id = instance_id) where execution_run_id = 'rests'`)
      await db.run(sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id,
        acquired_at, released_at, settled)
        select 'wakes', capacity_target_id, ordinal, instance_id, released_at, now(), true
      from run_machines where execution_run_id = 'rests'`)
      const times = await db.many(
        z.object({ seconds: z.number() }),
        sql`select extract(epoch from upper(ran) - lower(ran))::double precision as seconds
        from cloud_instances i, unnest(i.compute_spans) ran where i.id = ${id} order by ran`,
      )
      const paid = await Promise.all(
        ['rests', 'wakes'].map(async (run): Promise<number> => {
          const { instances } = await service.get(`/execution-runs/${run}/receipt/`)
          return instances.find(({ instanceId }: any) => instanceId === id).actual.seconds
        }),
      )
      expect(times).toHaveLength(2)
      times.forEach(({ seconds }, at) => expect(paid[at]).toBeCloseTo(seconds, 3))
      expect(paid[0]! + paid[1]!).toBeCloseTo(billing.accumulatedComputeSeconds, 3)
    },
  )

  proved('a run pays for the disks of both machines where a retry has made another one', async () => {
    const { db } = service
    await makeTarget('again', { configuration: { pricePerHour: 3_600, diskPricePerGiBMonth: 131_400 } })
    site.faults.otherHostKey(true)
    const failed = await made('again', 'again')
    site.faults.otherHostKey(false)
    // As if the first machine had been there for an hour, and had ended an hour ago.
    await db.run(sql`update cloud_instances set billing_started_at = billing_started_at - interval '2 hours',
      billing_finished_at = billing_finished_at - interval '1 hour' where id = 'again'`)
    await service.post(`/cloud-operations/${failed.id}/retry/`)
    expect(await calls.over(failed.id)).toMatchObject({ status: 'completed' })
    const billOf = async () => (await calls.instance('again')).billing
    const columns = sql`select billing_started_at::text as started, billing_gaps::text as gaps
      from cloud_instances where id = 'again'`
    const kept = await db.one(z.object({ started: z.string(), gaps: z.string() }), columns)
    // As a worker of an earlier version begins the bill of a second machine.
    await db.run(sql`update cloud_instances set billing_started_at = now() - interval '1 hour',
      billing_finished_at = now() - interval '2 hours', billing_gaps = '{}' where id = 'again'`)
    const anew = await billOf()
    expect([anew.finishedAt, Math.floor(anew.currentCost / 3_600)]).toEqual([undefined, 1])
    // As where the clock was set back behind a gap.
    await db.run(sql`update cloud_instances set billing_finished_at = null,
      billing_gaps = tstzmultirange(tstzrange(billing_started_at, now() + interval '1 day')) where id = 'again'`)
    const back = await billOf()
    expect(back.currentCost).toBeCloseTo(back.accumulatedComputeSeconds, 3)
    await db.run(sql`update cloud_instances set billing_started_at = ${kept.started}::timestamptz,
      billing_finished_at = ${kept.started}::timestamptz - interval '1 hour',
      billing_gaps = ${kept.gaps}::tstzmultirange where id = 'again'`)
    await act('again', 'destroy')
    await db.run(sql`insert into run_machines (execution_run_id, capacity_target_id, ordinal, instance_id, acquired_at,
      released_at, settled) values ('rests', 'again', 1, 'again', now(), now(), true)`)
    const { billing } = await calls.instance('again')
    const { instances } = await service.get('/execution-runs/rests/receipt/')
    const { actual } = instances.find(({ instanceId }: any) => instanceId === 'again')
    expect(Date.parse(billing.finishedAt)).toBeGreaterThan(Date.parse(billing.startedAt))
    expect(Math.floor(actual.diskSeconds / 3_600)).toBe(1)
    expect(actual.seconds).toBeCloseTo(billing.accumulatedComputeSeconds, 3)
    expect(actual.money).toBeCloseTo(billing.currentCost, 2)
  })

  test('EC2 cannot stop a spot machine: neither a person nor a plan stops one', async () => {
    await makeTarget('spots', { provisioningMode: 'spot' })
    await made('cheap', 'spots')
    const stop = await calls.act('cheap', 'stop')
    expect([stop.status, stop.body.state]).toEqual([409, 'spot'])
    expect(await calls.instance('cheap')).toMatchObject({ status: 'ready' })
    await act('cheap', 'destroy')
    await planned('stops', 'spots', ['cloud'], [{ action: 'provision' }, { action: 'stop' }])
    const { status, body } = await start('stops')
    expect([status, body.details]).toEqual([
      422,
      [expect.objectContaining({ path: 'lifecycleActions.1.action' })],
    ])
  })

  test('a simulation counts the measured times of a machine that no action of the plan sets up', async () => {
    await makeTarget('measured')
    await made('known', 'measured')
    await act('known', 'destroy')
    await planned('rehearsed', 'measured', ['cloud'], [{ action: 'destroy', earliestStart: 100 }])
    const { assignments, metadata } = await service.get('/schedule-plans/rehearsed/')
    const { predictedStartAt } = assignments[0]
    expect(predictedStartAt).not.toBe(95)
    expect(metadata.machineSetupSeconds).toEqual({ measured: predictedStartAt })
    await service.post('/execution-runs/', {
      ...{ id: 'rehearsed', schedulePlanId: 'rehearsed', mode: 'simulation' },
      runtimes: [{ id: 'rehearsal', name: 'rehearsal', driver: 'simgrid', mode: 'simulation' }],
      runtimeBindings: [{ resourceId: 'measured', runtimeId: 'rehearsal', enabled: true }],
    })
    const { run, activities } = await service.finished('rehearsed')
    expect([run.status, activities[0].startedAt]).toEqual(['completed', predictedStartAt])
  })

  test('a start of an instance that the target does not have is refused', async () => {
    await planned('unknown', 'small', ['cloud'], [{ action: 'start', cloudInstanceId: 'nobody' }])
    const { status, body } = await start('unknown')
    expect([status, body.details]).toEqual([
      422,
      [expect.objectContaining({ path: 'lifecycleActions.0.cloudInstanceId' })],
    ])
  })

  test.each(['configure', 'validate'])(
    'a second %s of a machine is refused before a run begins',
    async (action) => {
      await planned(`twice-${action}`, 'small', ['cloud'], [{ action }, { action: 'provision' }, { action }])
      const { status, body } = await start(`twice-${action}`)
      expect([status, body.code, body.error]).toEqual([
        503,
        'not_built',
        expect.stringContaining(`a second ${action}`),
      ])
    },
  )
})

test('a run shows why no machine can be asked for, and waits', async () => {
  await using keyless = await openService({
    environment: {
      ...{ SERVICE_CLOUD_SSH_SOURCE_RANGES: '192.0.2.0/24', SERVICE_CREDENTIAL_ENVIRONMENT: 'LAB_CLOUD' },
      LAB_CLOUD: JSON.stringify(site.accessKey),
    },
  })
  await keyless.post('/environments/', {
    environment: { id: 'clouds', name: 'clouds' },
    version: { id: 'clouds-v1', version: 1, status: 'published' },
    runtimes: [{ id: 'clouds-r', name: 'r', driver: 'cloud', mode: 'execution' }],
    connections: [
      {
        ...{ id: 'account', name: 'account', type: 'cloud', endpoint: '', credentialRef: 'env:LAB_CLOUD' },
        configuration: { provider: 'aws', region: 'us-east-1' },
      },
    ],
  })
  await keyless.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id: 't', name: 't', provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-1' },
    ...{ vcpu: 2, memoryMiB: 8_192, maximumInstances: 1, ...withoutPlaybooks },
  })
  await keyless.post('/execution-scopes/', {
    ...{ id: 's', name: 's', networkTopologyId: '', environmentVersionIds: ['clouds-v1'] },
  })
  await keyless.post('/workflow-definitions/', {
    name: 'w',
    spec: { namespace: 'tests', image: 'busybox:1.36', activities: [{ name: 'a', run: 'true' }] },
  })
  const plan = { id: 'p', workflowVersionId: 'w-v1', executionScopeId: 's', algorithm: 'by-hand' }
  const assignments = [{ activityId: 'a', coreId: 'core-0', orderOnResource: 0, resourceId: 't' }]
  await keyless.post('/schedule-plans/import/', { plan: { ...plan, assignments } })
  await keyless.post('/execution-runs/', { id: 'waits', schedulePlanId: 'p', mode: 'real' })
  await until('the reason of the wait', 120, async () => {
    const { live } = await keyless.get('/execution-runs/waits/')
    return live?.waitsFor.some(({ text }: any) =>
      text.startsWith('waits for a machine: the vault has no key'),
    )
  })
  await keyless.post('/execution-runs/waits/cancel/', {})
  expect((await keyless.finished('waits')).run.status).toBe('cancelled')
})
