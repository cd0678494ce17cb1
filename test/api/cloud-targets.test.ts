import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { z } from 'zod'
import { CredentialVariables } from '../../src/config.ts'
import { sql } from '../../src/db/sql.ts'
import { recordAudit } from '../../src/domains/audit-events/store.ts'
import { usableTarget } from '../../src/domains/cloud/accept.ts'
import type { CloudConnection, Clouds } from '../../src/domains/cloud/clouds.ts'
import { openConfigurations } from '../../src/domains/cloud/configurations.ts'
import { instanceRoutes, type InstanceParts } from '../../src/domains/cloud/instance-routes.ts'
import { listOrphans } from '../../src/domains/cloud/orphans.ts'
import { moveVariables, openVariables } from '../../src/domains/cloud/target-secrets.ts'
import { targetRoutes } from '../../src/domains/cloud/target-routes.ts'
import { environmentRoutes } from '../../src/domains/environments/routes.ts'
import { resourceRoutes } from '../../src/domains/resources/routes.ts'
import type { Feed } from '../../src/operations/feed.ts'
import { uses } from '../../src/uses.ts'
import { openVaultKeys } from '../../src/vault/keys.ts'
import { openVault, type Vault } from '../../src/vault/vault.ts'
import { withoutPlaybooks } from '../support/cloud.ts'
import { openRoutes, type OpenedRoutes } from '../support/open-routes.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { rowsOf } from '../support/traces-of.ts'

let app: OpenedRoutes
let vault: Vault
/** `SERVICE_CLOUD_SSH_SOURCE_RANGES`. */
let cloudSshSourceRanges: readonly string[] = []
/** No workflow works for what is asked for. */
const engine = { start: async () => {} } as unknown as InstanceParts['engine']
const outside = { variables: new CredentialVariables([]), folders: [] }
beforeAll(async () => {
  const keys = await openVaultKeys(makeVaultKeyFile())
  app = await openRoutes((db) => {
    vault = openVault({ db, keys, outside, audit: (event) => recordAudit(db, event) })
    return [
      ...environmentRoutes({ db, uses, links: { changing: (_of, change) => change() } }),
      ...resourceRoutes({ db, uses }),
      ...targetRoutes({ db, vault }),
      ...instanceRoutes({
        ...{ db, vault, engine, feed: {} as Feed, unused: sql`true` },
        get cloudSshSourceRanges() {
          return cloudSshSourceRanges
        },
      }),
    ]
  })
  for (const [id, driver] of [
    ['clouds', 'cloud'],
    ['plain', 'local'],
  ])
    await app.call('POST', '/environments/', {
      environment: { id, name: id },
      version: { id: `${id}-v1`, version: 1, status: 'published' },
      runtimes: [{ id: `${id}-r`, name: 'r', driver, mode: 'execution' }],
    })
})
afterAll(() => app.close())

const path = '/environments/clouds/cloud-capacity-targets/'
const least = {
  ...{ provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-1' },
  ...{ vcpu: 2, memoryMiB: 4_096 },
}
const post = (body: object, at = path) => app.call('POST', at, { ...least, ...body })

test('a target has the defaults of the reference and becomes a resource of the cloud runtime', async () => {
  const made = await post({ name: 'small', configuration: { pricePerHour: 3.6, diskPricePerGiBMonth: 0.08 } })
  expect(made.status).toBe(201)
  const { id, createdAt, ...rest } = made.body
  expect(id).toMatch(/^cloud-capacity-[0-9a-f-]{36}$/)
  expect(Date.parse(createdAt)).not.toBeNaN()
  expect(rest).toEqual({
    ...{ environmentId: 'clouds', name: 'small', ...least, region: '', zonePolicy: 'any-compatible' },
    ...{ architecture: 'amd64', provisioningMode: 'standard', maximumInstances: 1, enabled: true },
    lifecyclePolicy: 'destroy-after-execution',
    configuration: { pricePerHour: 3.6, diskPricePerGiBMonth: 0.08 },
    machineConfigurations: [
      {
        ...{ configurationVersionId: 'akoflow-scientific-worker-v7', executionOrder: 0 },
        ...{ required: true, enabled: true },
      },
    ],
  })
  const environment = (await app.call('GET', '/environments/clouds/')).body
  expect(environment.resources.find((one: { id: string }) => one.id === id)).toMatchObject({
    ...{ type: 'cloud_vm', executionTarget: 'provisioned', tier: 'cloud', schedulable: true, cpuCores: 2 },
    ...{ cpuCapacity: 2, memoryBytes: 2 ** 32, pricePerSecond: 0.001 },
    metadata: {
      ...{ capacityTargetId: id, providerMachineType: 'm5.large', maximumInstances: 1 },
      ...{ lifecyclePolicy: 'destroy-after-execution', provisioningMode: 'standard' },
      diskPricePerGiBMonth: 0.08,
    },
  })
  expect(environment.resourceRuntimeBindings).toContainEqual({
    ...{ resourceId: id, runtimeId: 'clouds-r', enabled: true },
  })
})

test('targets are listed by name; a deleted one is in no list, its resource in no plan, its name free', async () => {
  const made = await post({ id: 'gone', name: 'a first' })
  expect((await app.call('GET', path)).body.map(({ name }: { name: string }) => name)).toEqual([
    'a first',
    'small',
  ])
  expect((await app.call('DELETE', `/cloud-capacity-targets/${made.body.id}/`)).status).toBe(204)
  expect((await app.call('GET', path)).body).toHaveLength(1)
  const { resources } = (await app.call('GET', '/environments/clouds/')).body
  expect(resources.find((one: { id: string }) => one.id === 'gone').schedulable).toBe(false)
  expect((await app.call('DELETE', '/cloud-capacity-targets/gone/')).status).toBe(404)
  expect((await post({ id: 'again', name: 'a first' })).status).toBe(201)
  expect((await post({ id: 'gone', name: 'other' })).status).toBe(422)
})

test('an answer can be sent back; a target that is not enabled is no target of plans', async () => {
  const { body: first } = await post({ id: 'first', name: 'sent back', fixedZone: 'a' })
  const again = await app.call('POST', path, {
    ...first,
    id: 'second',
    name: 'sent back too',
    updatedAt: 'now',
  })
  expect([again.status, again.body]).toEqual([
    201,
    { ...first, id: 'second', name: 'sent back too', createdAt: again.body.createdAt },
  ])
  expect((await post({ id: 'third', name: 'of no path', environmentId: '' })).status).toBe(201)
  const off = await app.call('POST', path, { ...first, id: 'off', enabled: false })
  expect([off.status, off.body.enabled]).toEqual([201, false])
  const listed = (await app.call('GET', path)).body.map(({ id }: { id: string }) => id)
  expect(listed).toEqual(expect.arrayContaining(['first', 'second', 'third']))
  expect(listed).not.toContain('off')
  const schedulable = async (id: string) => (await app.call('GET', `/resources/${id}/`)).body.schedulable
  expect([await schedulable('off'), await schedulable('second')]).toEqual([false, true])
  await expect(
    app.db.transaction((tx) => usableTarget(tx, 'clouds', { capacityTargetId: 'off' })),
  ).rejects.toMatchObject({ code: 'unacceptable', details: [{ path: 'capacityTargetId' }] })
  const strange = await post({ name: 'strange', environmentId: 'plain' })
  expect([strange.status, strange.body.details]).toEqual([
    422,
    [{ path: 'environmentId', message: 'must be "clouds" as in the path, or be left out' }],
  ])
})

describe('what is refused leaves nothing', () => {
  const configuration = (
    executionOrder: number,
    configurationVersionId = 'akoflow-scientific-worker-v7',
  ) => ({
    configurationVersionId,
    executionOrder,
  })
  beforeAll(async () => {
    await app.db.run(sql`insert into machine_configurations (id, name, enabled)
      values ('on', 'on', true), ('off', 'off', false)`)
    await app.db.run(sql`insert into machine_configuration_versions
        (id, machine_configuration_id, version, status, playbook_yaml, content_sha256, compatibility)
      values ('deprecated', 'on', 1, 'deprecated', '- hosts: all', 'x', '{}'),
        ('of-disabled', 'off', 1, 'published', '- hosts: all', 'x', '{}'),
        ('for-gcp', 'on', 2, 'published', '- hosts: all', 'x', '{"providers": ["gcp"]}')`)
  })

  test.each([
    ['debian-12', 'lab', 'my-project'],
    ['global/images/family/debian-12', 'regions/us-east1/subnetworks/lab', 'example.org:my-project'],
    [
      'projects/debian-cloud/global/images/debian-12-bookworm-v20240110',
      'projects/a/regions/us-east1/subnetworks/b',
      '',
    ],
    [
      'https://www.googleapis.com/compute/v1/projects/debian-cloud/global/images/family/debian-12',
      'https://compute.googleapis.com/compute/v1/projects/a/regions/us-east1/subnetworks/b',
      'p',
    ],
    [
      'projects/123456789012/global/images/lab',
      'projects/123456789012/regions/us-east1/subnetworks/b',
      '12345678901234567890',
    ],
  ])('but the image %s and the subnet %s of Google are taken', async (imageReference, network, projectId) => {
    const made = await post({
      ...{ name: 'of google', provider: 'gcp', imageReference, providerMachineType: 'n2-custom-4-8192-ext' },
      configuration: { network, projectId, diskType: 'hyperdisk-balanced' },
    })
    expect([made.status, made.body.details]).toEqual([201, undefined])
    expect((await app.call('DELETE', `/cloud-capacity-targets/${made.body.id}/`)).status).toBe(204)
  })

  test('but an id that the service made of a long one, and a version for all, are taken', async () => {
    const long = `${'c'.repeat(255)}-00000000-0000-4000-8000-000000000000`
    await app.db.run(sql`insert into machine_configuration_versions
        (id, machine_configuration_id, version, status, playbook_yaml, content_sha256, compatibility)
      values (${long}, 'on', 3, 'published', '- hosts: all', 'x', '{}'),
        ('for-all', 'on', 4, 'published', '- hosts: all', 'x', '{"providers": [], "architectures": []}')`)
    const named = [configuration(1, long), configuration(2, 'for-all')]
    const made = await post({ name: 'of a long id', machineConfigurations: named })
    expect([made.status, made.body.details]).toEqual([201, undefined])
    expect((await app.call('DELETE', `/cloud-capacity-targets/${made.body.id}/`)).status).toBe(204)
  })

  test.each<[string, object, string]>([
    ['no name', {}, 'name'],
    ['a name that is taken', { name: 'small' }, 'name'],
    ['no machines', { name: 'x', maximumInstances: 0 }, 'maximumInstances'],
    ['a negative price', { name: 'x', configuration: { pricePerHour: -1 } }, 'configuration.pricePerHour'],
    ['a policy that there is not', { name: 'x', lifecyclePolicy: 'Keep' }, 'lifecyclePolicy'],
    ['another policy of zones', { name: 'x', zonePolicy: 'any' }, 'zonePolicy'],
    ['a fixed zone without its name', { name: 'x', zonePolicy: 'fixed' }, 'fixedZone'],
    [
      'a fixed zone that is no name',
      { name: 'x', zonePolicy: 'fixed', fixedZone: 'us-east1-b/../../x' },
      'fixedZone',
    ],
    ['a zone with a query', { name: 'x', fixedZone: 'a?key=1' }, 'fixedZone'],
    ['a fixed zone with a blank name', { name: 'x', zonePolicy: 'fixed', fixedZone: '' }, 'fixedZone'],
    ['a port that there is not', { name: 'x', configuration: { sshPort: 0 } }, 'configuration.sshPort'],
    ['an unknown provider', { name: 'x', provider: 'dirt' }, 'provider'],
    [
      'a secret in its configuration',
      { name: 'x', configuration: { proxy: { password: 'pw' } } },
      'configuration.proxy.password',
    ],
    ['no cores', { name: 'x', vcpu: 0 }, 'vcpu'],
    [
      'everybody at SSH',
      { name: 'x', configuration: { sshSourceRanges: ['0.0.0.0/0'] } },
      'configuration.sshSourceRanges',
    ],
    [
      'what is no network',
      { name: 'x', configuration: { sshSourceRanges: ['here'] } },
      'configuration.sshSourceRanges.0',
    ],
    [
      'an unknown machine configuration',
      { name: 'x', machineConfigurations: [configuration(1, 'no')] },
      'machineConfigurations.0.configurationVersionId',
    ],
    [
      'one order twice',
      { name: 'x', machineConfigurations: [configuration(1), configuration(1)] },
      'machineConfigurations.1.executionOrder',
    ],
    [
      'variables that the schema does not know',
      { name: 'x', machineConfigurations: [{ ...configuration(1), variables: { other: 1 } }] },
      'machineConfigurations.0.variables',
    ],
    [
      'an architecture that the configuration is not for',
      { name: 'x', architecture: 'arm64', machineConfigurations: [configuration(1)] },
      'machineConfigurations.0.configurationVersionId',
    ],
    ...Object.entries({
      providerMachineType: 'e2-standard-2/../e2-standard-4',
      imageReference: 'projects/debian-cloud/global/images/../../x',
      region: 'us-east1?alt=media',
      'configuration.network': 'regions/us-east1/subnetworks/../../../zones',
      'configuration.diskType': 'pd-ssd#',
      'configuration.projectId': '..',
    }).map(([path, text]): [string, object, string] => {
      const [member = '', inner] = path.split('.')
      const google = {
        name: 'x',
        provider: 'gcp',
        providerMachineType: 'e2-standard-2',
        imageReference: 'debian-12',
      }
      return [`no name at Google: ${path}`, { ...google, [member]: inner ? { [inner]: text } : text }, path]
    }),
    ...['deprecated', 'of-disabled', 'for-gcp'].map((version): [string, object, string] => [
      `the version ${version} of a configuration`,
      { name: 'x', machineConfigurations: [configuration(1, version)] },
      'machineConfigurations.0.configurationVersionId',
    ]),
  ])('%s', async (_, body, field) => {
    const before = await app.counts()
    const answer = await post(body)
    expect([answer.status, answer.body.details[0]?.path]).toEqual([422, field])
    const { audit_events: _a, audit_head: _h, ...after } = await app.counts()
    expect(before).toMatchObject(after)
  })

  test('a provider that is not built: 503 and no row', async () => {
    const before = await app.counts()
    const answer = await post({ name: 'x', provider: 'azure' })
    expect([answer.status, answer.body.code, answer.headers.get('retry-after')]).toEqual([
      503,
      'not_built',
      null,
    ])
    const { audit_events: _a, audit_head: _h, ...after } = await app.counts()
    expect(before).toMatchObject(after)
  })

  test('no cloud runtime, no environment', async () => {
    const before = await app.counts()
    expect((await post({ name: 'x' }, '/environments/plain/cloud-capacity-targets/')).status).toBe(422)
    expect((await post({ name: 'x' }, '/environments/no/cloud-capacity-targets/')).status).toBe(404)
    expect((await app.call('GET', '/environments/no/cloud-capacity-targets/')).status).toBe(404)
    expect(await app.counts()).toMatchObject({
      cloud_capacity_targets: before['cloud_capacity_targets'],
      resources: before['resources'],
    })
  })
})

describe('a machine of a target', () => {
  const all = ['0.0.0.0/0']
  const some = ['192.0.2.0/24']
  const place = (id: string) => `/environments/${id}/cloud-instances/`
  beforeAll(async () => {
    for (const [id, providers] of [
      ['none', ['gcp']],
      ['one', ['aws', 'gcp']],
      ['two', ['aws', 'aws']],
    ] as const)
      await app.call('POST', '/environments/', {
        environment: { id, name: id },
        version: { id: `${id}-v1`, version: 1, status: 'published' },
        runtimes: [{ id: `${id}-r`, name: 'r', driver: 'cloud', mode: 'execution' }],
        connections: providers.map((provider, at) => ({
          ...{ id: `${id}-${String(at)}`, name: `c${String(at)}`, type: 'cloud', endpoint: '' },
          configuration: { provider, region: 'us-east-1' },
        })),
      })
  })
  /** Asks for a machine of a new target. */
  const asked = async (environment: string, id: string, configuration: object, ranges: readonly string[]) => {
    const at = `/environments/${environment}/cloud-capacity-targets/`
    const target = await post({ id, name: id, configuration, ...withoutPlaybooks }, at)
    expect([target.status, target.body.error]).toEqual([201, undefined])
    cloudSshSourceRanges = ranges
    const before = await app.counts()
    const answer = await app.call('POST', place(environment), { capacityTargetId: id, instanceId: id })
    const { audit_events: _a, audit_head: _h, ...after } = await app.counts()
    return { answer, isStored: JSON.stringify({ ...before, ...after }) !== JSON.stringify(before) }
  }

  test.each<[string, string, object, readonly string[], RegExp]>([
    ['without a connection', 'none', {}, some, /has no cloud connection of aws; save one first/],
    ['with two', 'two', {}, some, /more than one cloud connection of aws; name one in configuration/],
    ['with that of another', 'one', { connectionId: 'two-0' }, some, /"two-0" is no cloud connection of aws/],
    [
      'with another provider',
      'one',
      { connectionId: 'one-1' },
      some,
      /"one-1" is no cloud connection of aws/,
    ],
    ['without networks', 'one', {}, [], /no networks are named.*SERVICE_CLOUD_SSH_SOURCE_RANGES/],
    ['for everybody', 'one', {}, all, /every address would reach SSH.*allowPublicSsh: true/],
    ['for everybody by IPv6', 'one', {}, [...some, '::/0'], /every address would reach SSH/],
  ])('%s is refused, and nothing is stored', async (name, environment, configuration, ranges, text) => {
    const { answer, isStored } = await asked(environment, name, configuration, ranges)
    expect([answer.status, answer.body.error, isStored]).toEqual([422, expect.stringMatching(text), false])
  })

  test.each<[string, string, object, readonly string[], string]>([
    ['of the only connection', 'one', {}, some, 'one-0'],
    ['of the one that is named', 'two', { connectionId: 'two-1' }, some, 'two-1'],
    ['with networks of its own', 'one', { sshSourceRanges: some }, [], 'one-0'],
    ['of everybody, as is wanted', 'one', { allowPublicSsh: true }, all, 'one-0'],
    ['of all', 'one', { allowPublicSsh: true, sshSourceRanges: all }, [], 'one-0'],
  ])('%s is asked for', async (name, environment, configuration, ranges, connectionId) => {
    const { answer } = await asked(environment, name, configuration, ranges)
    expect([answer.status, answer.body.error]).toEqual([202, undefined])
    const row = await app.db.one(
      z.object({ connectionId: z.string() }),
      sql`select connection_id from cloud_instances where id = ${name}`,
    )
    expect(row).toEqual({ connectionId })
  })
})

describe('what is asked for again', () => {
  const at = '/environments/one/cloud-instances/'
  const cancel = (id: string) =>
    app.db.run(
      sql`update cloud_operations set status = 'running', cancel_requested_at = now() where id = ${id}`,
    )
  const busy = [409, '10', expect.stringMatching(/which is being cancelled; wait for its end/)]
  const ask = async (where: string, body?: object) => {
    const answer = await app.call('POST', where, body)
    return { answer, told: [answer.status, answer.headers.get('retry-after'), answer.body.error] }
  }
  beforeAll(async () => {
    cloudSshSourceRanges = ['192.0.2.0/24']
    const target = { id: 'repeats', name: 'repeats', maximumInstances: 3, ...withoutPlaybooks }
    expect((await post(target, '/environments/one/cloud-capacity-targets/')).status).toBe(201)
  })

  test('a machine is another one where the first is being cancelled, and busy under an id of its own', async () => {
    const body = { capacityTargetId: 'repeats' }
    const first = (await ask(at, body)).answer.body
    expect((await ask(at, body)).answer.body.id).toBe(first.id)
    await cancel(first.id)
    const second = (await ask(at, body)).answer
    expect([second.status, second.body.id === first.id]).toEqual([202, false])
    expect(second.body.instanceId).not.toBe(first.instanceId)
    const named = { ...body, instanceId: 'named' }
    await cancel((await ask(at, named)).answer.body.id)
    expect((await ask(at, named)).told).toEqual(busy)
  })

  test('a target with its most machines has room later where one of them will end, and not by itself where none does', async () => {
    const body = { capacityTargetId: 'single' }
    const target = { id: 'single', name: 'single', maximumInstances: 1, ...withoutPlaybooks }
    expect((await post(target, '/environments/one/cloud-capacity-targets/')).status).toBe(201)
    const first = (await ask(at, { ...body, instanceId: 'only' })).answer.body
    const full = (after: string | null, remedy: RegExp) => [409, after, expect.stringMatching(remedy)]
    expect((await ask(at, body)).told).toEqual(full(null, /which is its most; destroy one/))
    await cancel(first.id)
    expect((await ask(at, body)).told).toEqual(full('10', /which is its most, and 1 of them will end; wait/))
    await app.db.run(sql`update cloud_operations set kind = 'destroy' where id = ${first.id}`)
    expect((await ask(at, body)).told).toEqual(full(null, /destroy one/))
    await app.db.run(sql`update cloud_operations set cancel_requested_at = null where id = ${first.id}`)
    expect((await ask(at, body)).told).toEqual(full('10', /will end/))
  })

  test('an action is busy while an equal one is being cancelled', async () => {
    await app.db
      .run(sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id, provider,
      name, status, region, ssh_username) values ('calm', 'repeats', 'one', 'c', 'aws', 'm', 'ready', 'r', 'u')`)
    const first = (await ask('/cloud-instances/calm/stop/')).answer
    expect((await ask('/cloud-instances/calm/stop/')).answer.body.id).toBe(first.body.id)
    await cancel(first.body.id)
    expect((await ask('/cloud-instances/calm/stop/')).told).toEqual(busy)
  })
})

test('orphans of a connection are looked for in the regions of its provider', async () => {
  for (const [id, more] of [
    ['far', { region: 'eu-west-1' }],
    [
      'cold',
      {
        ...{ provider: 'gcp', region: 'europe-north1' },
        ...{ providerMachineType: 'e2-medium', imageReference: 'debian-12' },
      },
    ],
  ] as const)
    await post({ id, name: id, ...more }, '/environments/one/cloud-capacity-targets/')
  await app.db
    .run(sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id, provider,
      name, status, region, ssh_username)
    values ('before', 'cold', 'one', 'deleted', 'gcp', 'm', 'failed', 'asia-east1', 'u')`)
  const asked: string[] = []
  const of = async ({ provider }: CloudConnection, region: string) => ({
    driver: { list: async () => (asked.push(`${provider} ${region}`), []) },
  })
  expect(await listOrphans({ db: app.db, clouds: { of } as unknown as Clouds }, 'one')).toEqual([])
  expect([...new Set(asked)].filter((one) => !/ (r|us-east-1)$/.test(one)).toSorted()).toEqual([
    ...['aws eu-west-1', 'gcp asia-east1', 'gcp europe-north1'],
  ])
})

describe('secret variables of playbooks', () => {
  const named = (variables: object) => ({
    machineConfigurations: [{ configurationVersionId: 'with-secrets', executionOrder: 1, variables }],
  })
  const stored = async (id: string): Promise<any> =>
    (
      await app.db.one(
        z.object({ held: z.array(z.any()) }),
        sql`select machine_configurations as held from cloud_capacity_targets where id = ${id}`,
      )
    ).held
  const given = { api_token: 'canary-1', lab: { password: 'canary-2' }, list: [{ secret: 7_011_999 }], n: 5 }
  beforeAll(async () => {
    await app.db.run(sql`insert into machine_configurations (id, name) values ('secrets', 'secrets')`)
    await app.db.run(sql`insert into machine_configuration_versions
        (id, machine_configuration_id, version, status, playbook_yaml, content_sha256)
      values ('with-secrets', 'secrets', 1, 'published', '- hosts: all', 'x')`)
  })

  test('they are in the vault, masked in rows and answers, and go with the target', async () => {
    const made = await post({ id: 'hides', name: 'hides', ...named(given) })
    const masked = {
      ...{ api_token: '********', lab: { password: '********' }, list: [{ secret: '********' }], n: 5 },
    }
    expect(made.body.machineConfigurations[1].variables).toEqual(masked)
    expect((await stored('hides'))[1].variables).toEqual(masked)
    expect(await rowsOf(app.db)).not.toMatch(/canary|7011999/)
    const opened = await openVariables(vault, 'hides', 'clouds', await stored('hides'))
    expect(opened[1]!.variables).toEqual(given)
    const again = await app.call('POST', path, { ...made.body, id: 'shows', name: 'shows' })
    expect([again.status, again.body.details.map((one: { path: string }) => one.path).sort()]).toEqual([
      422,
      ['api_token', 'lab.password', 'list.0.secret'].map((at) => `machineConfigurations.1.variables.${at}`),
    ])
    expect((await app.call('DELETE', '/cloud-capacity-targets/hides/')).status).toBe(204)
    await expect(openVariables(vault, 'hides', 'clouds', await stored('hides'))).rejects.toThrow(
      'store it first',
    )
  })

  test('those that an earlier version kept in rows move to the vault', async () => {
    await post({ id: 'earlier', name: 'earlier', ...named({ n: 5 }) })
    const [builtIn, own] = await stored('earlier')
    const before = JSON.stringify([builtIn, { ...own, variables: given }])
    await app.db.run(sql`update cloud_capacity_targets set machine_configurations = ${before}::jsonb
      where id = 'earlier'`)
    expect(await moveVariables(app.db, vault)).toBe(1)
    expect(await rowsOf(app.db)).not.toMatch(/canary|7011999/)
    const opened = await openVariables(vault, 'earlier', 'clouds', await stored('earlier'))
    expect(opened[1]!.variables).toEqual(given)
    expect(await moveVariables(app.db, vault)).toBe(0)
  })
})

test('a version that a target names twice runs twice, also where its worker dies in between', async () => {
  await app.db.run(sql`insert into machine_configurations (id, name) values ('disks', 'disks')`)
  await app.db.run(sql`insert into machine_configuration_versions
      (id, machine_configuration_id, version, status, playbook_yaml, content_sha256)
    values ('disk', 'disks', 1, 'published', '- hosts: all', 'x')`)
  const uses = ['a', 'b'].map((disk, place) => ({
    ...{ configurationVersionId: 'disk', executionOrder: place + 1, variables: { disk } },
  }))
  const { body } = await post({ id: 'disks', name: 'disks', machineConfigurations: uses })
  const ended: string[] = []
  const open = () => openConfigurations(body.machineConfigurations, ended)
  const disks = () => open().map(({ named }) => named.variables?.['disk'])
  expect(disks()).toEqual([undefined, 'a', 'b'])
  // As the record of a version that knows ids alone.
  ended.push('disk', 'akoflow-scientific-worker-v7')
  expect(disks()).toEqual(['b'])
  ended.push(open()[0]!.end)
  expect(disks()).toEqual([])
})

test('a target stays while an instance of it may cost money, also one that has failed', async () => {
  await post({ id: 'busy', name: 'busy' })
  await app.db
    .run(sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id, provider,
    name, status, region, ssh_username) values ('m', 'busy', 'clouds', 'c', 'aws', 'm', 'failed', 'r', 'u')`)
  const refused = await app.call('DELETE', '/cloud-capacity-targets/busy/')
  expect([refused.status, refused.body.state]).toEqual([409, 'failed'])
  expect((await app.call('DELETE', '/environments/clouds/')).status).toBe(422)
  await app.db.run(sql`update cloud_instances set machine_gone = true where id = 'm'`)
  expect((await app.call('DELETE', '/cloud-capacity-targets/busy/')).status).toBe(204)
})

test('a replacing document leaves the resource and the bindings of an enabled target as they are', async () => {
  const id = 'kept'
  await app.call('POST', '/environments/', {
    environment: { id, name: id },
    version: { id: `${id}-v1`, version: 1, status: 'published' },
    runtimes: [{ id: `${id}-r`, name: 'r', driver: 'cloud', mode: 'execution' }],
  })
  await post({ id: 'mine', name: 'mine' }, `/environments/${id}/cloud-capacity-targets/`)
  const read = async () => (await app.call('GET', `/environments/${id}/`)).body
  const before = await read()
  const put = (runtimes: object[], resources: object[] = []) =>
    app.call('PUT', `/environments/${id}/`, {
      environment: { id, name: 'another name' },
      version: { id: `${id}-v2`, version: 2, status: 'published' },
      ...{ runtimes, resources },
    })
  const [own] = before.resources
  const changed = { ...own, environmentVersionId: `${id}-v2`, name: 'mine no more', schedulable: false }
  expect((await put(before.runtimes, [changed])).status).toBe(200)
  const after = await read()
  expect(after.environment.name).toBe('another name')
  expect(after.resources).toEqual([{ ...own, environmentVersionId: `${id}-v2` }])
  expect(after.resourceRuntimeBindings).toEqual(before.resourceRuntimeBindings)
  const without = await put([])
  expect([without.status, without.body.details[0].path]).toEqual([422, 'runtimes'])

  await app.db
    .run(sql`insert into cloud_instances (id, capacity_target_id, environment_id, connection_id, provider,
    name, status, region, ssh_username) values ('n', 'mine', ${id}, 'c', 'aws', 'n', 'ready', 'r', 'u')`)
  const living = await put(before.runtimes)
  expect([living.status, living.body.error]).toEqual([422, expect.stringContaining('may cost money')])
  expect((await read()).version.id).toBe(`${id}-v2`)
})
