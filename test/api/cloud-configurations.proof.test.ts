import { afterAll, beforeAll, describe, expect, jest } from '@jest/globals'
import { readFileSync } from 'node:fs'
import type { CloudSite } from '../../sites/cloud.ts'
import { sites } from '../../sites/requirements.ts'
import { sql } from '../../src/db/sql.ts'
import { machineOfInstance, machinesOf, openCloudService, type Provider } from '../support/cloud.ts'
import { needs } from '../support/needs.ts'
import { beforeNextLook } from '../support/pace.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import type { TestService } from '../support/service.ts'
import { historiesOf, rowsOf, watchProcesses } from '../support/traces-of.ts'

/** Machines with a Debian of their own, and the playbooks that make them what they are for. */

const { test } = needs(...sites.ssh, 'ansible-core', 'bubblewrap', 'debootstrap')
jest.setTimeout(240_000)

const keyFile = makeVaultKeyFile()
const providers = ['aws', 'gcp'] as const
let opened: Awaited<ReturnType<typeof openCloudService>>
let site: CloudSite
let service: TestService
let calls: (typeof opened)['calls']
beforeAll(async () => {
  opened = await openCloudService({ machines: 'debian', trixie: true }, { providers, keyFile })
  ;({ site, service, calls } = opened)
  await service.post('/machine-configurations/', { id: 'own', name: 'own' })
}, 900_000)
afterAll(async () => {
  await opened?.close()
}, 60_000)

const builtIn = { configurationVersionId: 'akoflow-scientific-worker-v7', executionOrder: 0 }
/** A target whose machines get the playbook, and not the built-in one. */
const makeTarget = async (
  id: string,
  playbookYaml: string,
  more: object = {},
  { provider = 'aws', ...named }: { provider?: Provider; [member: string]: unknown } = {},
) => {
  await service.post('/machine-configurations/own/versions/', { id: `own-${id}`, playbookYaml, ...more })
  await service.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id, name: id, ...machinesOf(provider), maximumInstances: 5 },
    machineConfigurations: [
      { ...builtIn, enabled: false },
      { configurationVersionId: `own-${id}`, executionOrder: 1, ...named },
    ],
  })
}
const machineOf = (instance: string) => machineOfInstance(service, site, instance)
const made = async (instance: string): Promise<any> => {
  const { status, body } = await calls.provision({ capacityTargetId: instance, instanceId: instance })
  expect([status, body.error]).toEqual([202, undefined])
  return calls.over(body.id)
}
const configured = async (instance: string) => calls.over((await calls.act(instance, 'configure')).body.id)

test.each(providers)(
  '%s: a machine is configured before it is ready, with an event a task and its secrets masked',
  async (provider) => {
    const id = `first-${provider}`
    await makeTarget(
      id,
      [
        '- hosts: all',
        '  become: true',
        '  tasks:',
        '    - {name: the motd, copy: {dest: /etc/motd, content: "for {{ project }}"}}',
        '    - {name: "use {{ api_token }}", command: "false", ignore_errors: true}',
        '    - {name: says it, shell: "echo {{ api_token | quote }} >&2; exit 1", ignore_errors: true}',
        '',
      ].join('\n'),
      {
        variablesSchema: {
          type: 'object',
          properties: { api_token: { type: 'string' }, project: { type: 'string', default: 'stars' } },
        },
        validationChecks: [{ name: 'motd', command: 'grep -qx "for $project" /etc/motd' }],
      },
      { provider, variables: { api_token: 'canary-4711' } },
    )
    const operation = await made(id)
    expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
    expect(await calls.instance(id)).toMatchObject({ status: 'ready' })
    const list = await calls.events(operation.id)
    expect(list.map(({ event, task }) => (task === undefined ? event : `${event} ${task}`))).toEqual([
      ...['operation.started', 'resource.creating', 'resource.created', 'ssh.waiting', 'ssh.ready'],
      ...['command.started', 'task.started Gathering Facts', 'task.completed Gathering Facts'],
      ...['task.started the motd', 'task.completed the motd', 'task.started use {{ api_token }}'],
      ...['task.failed use ********', 'task.started says it', 'task.failed says it', 'command.completed'],
      ...['task.started motd', 'task.completed motd', 'validation.completed'],
      ...['resource.ready', 'operation.completed'],
    ])
    expect(list.find(({ event, task }) => event === 'task.failed' && task === 'says it')).toMatchObject({
      ...{
        tool: 'ansible',
        phase: 'configuration',
        host: id,
        message: expect.stringContaining('********'),
      },
    })
    const { log } = (await service.call('GET', `/cloud-instances/${id}/provisioning-log/`)).body
    const targets = (await service.call('GET', '/environments/clouds/cloud-capacity-targets/')).body
    expect(JSON.stringify([list, log, targets])).not.toContain('canary')
    await calls.over((await calls.act(id, 'destroy')).body.id)
  },
)

test('secret variables reach the machine and are in no row, history, event, log or command line', async () => {
  await makeTarget(
    'secret',
    [
      '- hosts: all',
      '  become: true',
      '  tasks:',
      '    - {name: writes it, copy: {dest: /srv/secret, content: "{{ lab.api_token }} {{ password }} {{ plain }}"}}',
      '    - {name: takes its time, pause: {seconds: 2}}',
      '    - {name: "says {{ password }}", fail: {msg: "{{ password }}"}, ignore_errors: true}',
      '',
    ].join('\n'),
    { validationChecks: [{ name: 'it is there', command: 'grep -q "$password" /srv/secret && sleep 1' }] },
    { variables: { lab: { api_token: 'linnet-nested' }, password: "linnet' $(id)", plain: 'as it is' } },
  )
  const processes = watchProcesses()
  const operation = await made('secret')
  const seen = processes.stop()
  expect([operation.status, operation.failureReason]).toEqual(['completed', undefined])
  const { host, userData } = await machineOf('secret')
  expect((await host!.run('cat /srv/secret', 'root')).stdout).toBe("linnet-nested linnet' $(id) as it is")
  const [events, log, rows, histories] = await Promise.all([
    calls.events(operation.id),
    service.get('/cloud-instances/secret/provisioning-log/'),
    rowsOf(service.db),
    historiesOf(service.namespace, keyFile),
  ])
  expect(rows).toContain('as it is')
  expect(histories).toContain(operation.id)
  expect(userData).toContain('akoflow')
  for (const text of [JSON.stringify([events, log]), rows, histories, seen, userData])
    expect(text).not.toMatch(/linnet|PRIVATE KEY/)
  await calls.over((await calls.act('secret', 'destroy')).body.id)
  const held = () => service.db.run(sql`select from credentials where kind = 'machine-variables'`)
  const before = await held()
  expect((await service.call('DELETE', '/cloud-capacity-targets/secret/')).status).toBe(204)
  expect(await held()).toBe(before - 1)
})

test('a configuration that fails leaves the machine failed, to be configured again', async () => {
  await makeTarget(
    'again',
    '- hosts: all\n  tasks:\n    - {name: what is needed, command: test -e /srv/needed}\n',
    { validationChecks: [{ name: 'more', command: 'test -e /srv/more' }] },
  )
  const operation = await made('again')
  expect(operation).toMatchObject({
    ...{
      status: 'failed',
      failureReason: expect.stringMatching(/own-again failed: the task "what is needed"/),
    },
  })
  const failed = await calls.instance('again')
  expect(failed).toMatchObject({ status: 'failed', failureReason: operation.failureReason })
  const machine = await machineOf('again')
  expect(machine.state).toBe('running')
  expect((await service.call('DELETE', '/cloud-capacity-targets/again/')).body.state).toBe('failed')
  await machine.host!.run('touch /srv/needed')
  expect((await configured('again')).failureReason).toMatch(/the check "more" of own-again ended with 1/)
  await machine.host!.run('touch /srv/more')
  expect((await configured('again')).status).toBe('completed')
  expect(await calls.instance('again')).toMatchObject({ status: 'ready', providerId: machine.id })
  await calls.over((await calls.act('again', 'stop')).body.id)
  expect((await calls.act('again', 'configure')).body.state).toBe('stopped')
  await calls.over((await calls.act('again', 'destroy')).body.id)
  expect((await calls.act('again', 'configure')).body.state).toBe('destroyed')
})

test('a machine whose configuration failed is ended after the idle time', async () => {
  await makeTarget('idle', '- hosts: all\n  gather_facts: false\n  tasks: [{command: "false"}]\n')
  await service.db.run(
    sql`update cloud_capacity_targets set configuration = '{"idleSeconds": 2}' where id = 'idle'`,
  )
  const operation = await made('idle')
  expect(operation.status).toBe('failed')
  const machine = await machineOf('idle')
  expect(machine.state).toBe('running')
  for (const began = performance.now(); (await calls.instance('idle')).status !== 'destroyed';)
    await beforeNextLook(began)
  expect(machine.state).toBe('terminated')
  const [last] = (await service.get('/cloud-operations/?instanceId=idle')) as {
    kind: string
    createdAt: string
  }[]
  expect(last!.kind).toBe('destroy')
  expect(Date.parse(last!.createdAt) - Date.parse(operation.finishedAt)).toBeGreaterThanOrEqual(2_000)
})

test('machines that wait for the same version share a run; a retry goes on where a provisioning failed', async () => {
  await makeTarget(
    'many',
    '- hosts: all\n  gather_facts: false\n  tasks: [{name: t, command: test -e /srv/needed}]\n',
  )
  const ids = ['many-1', 'many-2']
  const operations = await Promise.all(
    ids.map(async (name) => {
      const { body } = await calls.provision({ capacityTargetId: 'many', instanceId: name, name })
      return calls.over(body.id)
    }),
  )
  expect(operations.map(({ status }) => status)).toEqual(['failed', 'failed'])
  for (const id of ids) await (await machineOf(id)).host!.run('touch /srv/needed')
  await Promise.all(operations.map(({ id }) => service.call('POST', `/cloud-operations/${id}/retry/`)))
  for (const { id, instanceId } of operations) {
    expect((await calls.over(id)).status).toBe('completed')
    const tasks = (await calls.events(id)).filter(({ task }) => task === 't')
    expect(tasks.map(({ event, host }) => [event, host])).toEqual([
      ...[
        ['task.started', instanceId],
        ['task.failed', instanceId],
      ],
      ...[
        ['task.started', instanceId],
        ['task.completed', instanceId],
      ],
    ])
    await calls.over((await calls.act(instanceId, 'destroy')).body.id)
  }
})

test.each(providers)('%s: a cancel while playbooks run ends them and the machine', async (provider) => {
  const instance = `cut-${provider}`
  const playbook = '- hosts: all\n  tasks:\n    - {name: takes long, command: sleep 600}\n'
  await makeTarget(instance, playbook, {}, { provider })
  const { id } = (await calls.provision({ capacityTargetId: instance, instanceId: instance })).body
  const isAtIt = async () => (await calls.events(id)).some(({ task }) => task === 'takes long')
  for (const began = performance.now(); !(await isAtIt());) await beforeNextLook(began)
  expect((await calls.instance(instance)).status).toBe('configuring')
  expect((await calls.act(instance, 'destroy')).body.state).toBe('configuring')
  const machine = await machineOf(instance)
  expect((await service.call('POST', `/cloud-operations/${id}/cancel/`)).status).toBe(202)
  expect((await calls.over(id)).status).toBe('cancelled')
  expect([machine.state, (await calls.instance(instance)).status]).toEqual(['terminated', 'failed'])
})

test('what a playbook runs on the worker, by a lookup that no rule finds, sees nothing of the service', async () => {
  const { port } = new URL(service.baseUrl)
  const script = [
    `cat ${keyFile}; env; ls -A / /root /home /var /etc /tmp; cat /proc/[0-9]*/environ | tr '\\0' ' '`,
    `python3 -c 'import socket; socket.create_connection(("127.0.0.1", ${port}), 2); print("re" + "ached")' 2>&1`,
    'cat /proc/net/dev',
  ].join('; ')
  // No quotes of the script reach the template.
  const pipe = `echo ${Buffer.from(script).toString('base64')} | base64 -d | sh`
  const tasks = '- hosts: all\n  gather_facts: false\n  tasks:\n'
  const playbook = `${tasks}    - fail: {msg: "{% set f = lookup %}{{ f('pipe', '${pipe}') }}"}\n`
  await makeTarget('hostile', `${tasks}    - command: id\n`)
  await service.db.run(
    sql`update machine_configuration_versions set playbook_yaml = ${playbook} where id = 'own-hostile'`,
  )
  const operation = await made('hostile')
  expect(operation.failureReason).toMatch(/own-hostile failed: the task "fail" failed: .*ANSIBLE_/s)
  const seen = JSON.stringify([operation, await calls.events(operation.id)])
  expect(seen).not.toContain(readFileSync(keyFile, 'utf8').trim())
  expect(seen).not.toMatch(/SERVICE_|reached|eth0|orrery-test|PRIVATE KEY/)
  await calls.over((await calls.act('hostile', 'destroy')).body.id)
})

test('a configuration for another system fails; one that is not required does not', async () => {
  const nothing = '- hosts: all\n  tasks:\n    - {name: nothing, command: "true"}\n'
  await makeTarget('other', nothing, { compatibility: { operatingSystems: ['ubuntu-24.04'] } })
  expect((await made('other')).failureReason).toMatch(/is for ubuntu-24.04, and the machine runs debian-12/)
  await calls.over((await calls.act('other', 'destroy')).body.id)
  const forAll = { compatibility: { operatingSystems: [] } }
  await makeTarget('spare', '- hosts: all\n  tasks: [{command: "false"}]\n', forAll, { required: false })
  const spare = await made('spare')
  expect(JSON.stringify(await calls.events(spare.id))).not.toContain('it is for')
  expect(spare.status).toBe('completed')
  await calls.over((await calls.act('spare', 'destroy')).body.id)
})

describe('the configuration that comes with the service', () => {
  test('it makes Debian 12 of both providers and Debian 13 scientific workers, and a second time changes nothing', async () => {
    const workers = [
      ['worker', machinesOf('aws'), '12'],
      ['worker-google', machinesOf('gcp'), '12'],
      ['worker-13', { ...machinesOf('aws'), imageReference: 'ami-debian13' }, '13'],
    ] as const
    const check = async ([id, machines, version]: (typeof workers)[number]): Promise<void> => {
      await service.post('/environments/clouds/cloud-capacity-targets/', { id, name: id, ...machines })
      const operation = await made(id)
      const list = await calls.events(operation.id)
      expect([operation.status, operation.failureReason, list.at(-3)]).toEqual([
        ...['completed', undefined, expect.objectContaining({ event: 'validation.completed' })],
      ])
      const { host } = await machineOf(id)
      expect((await host!.run('. /etc/os-release; echo "$ID-$VERSION_ID"')).stdout).toBe(
        `debian-${version}\n`,
      )
      expect((await host!.run('docker version --format "{{.Server.Version}}"', 'account')).stdout).toMatch(
        /^\d+\./,
      )
      expect((await host!.run('/usr/local/bin/akoflow-run pwd', 'account')).stdout).toBe(
        '/akoflow/workspace\n',
      )
      const again = await configured(id)
      expect([again.status, again.failureReason]).toEqual(['completed', undefined])
      const second = await calls.events(again.id)
      expect(second.filter(({ message }) => message === 'changed')).toEqual([])
      await calls.over((await calls.act(id, 'destroy')).body.id)
    }
    await Promise.all(workers.map(check))
  }, 900_000)
})
