import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { configurationSecrets, recordsWithSecrets } from '../../src/domains/environments/store.ts'
import { until } from '../failures/programs.ts'
import { openService, type TestService } from '../support/service.ts'
import { tableCounts } from '../support/table-counts.ts'
import { makeWorld } from '../support/worlds.ts'

type Json = any

const mask = '********'
/**
 * What was stored while secrets were not refused yet; the text of each is found nowhere in an
 * answer, a log or a snapshot.
 */
const canary = 'canary-5e1f'

let service: TestService
beforeAll(async () => {
  service = await openService({ environment: { SERVICE_MONITOR_INTERVAL_SECONDS: '86400' } })
})
afterAll(() => service?.[Symbol.asyncDispose]())

let serial = 0
/** An environment with a record of every kind that has a configuration. */
const definition = (configuration: Json = {}, of = 'none'): Json => {
  const id = `env-${String(++serial)}`
  const given = (kind: string): Json => (kind === of ? configuration : { plain: 1 })
  return {
    environment: { id, name: id },
    version: { id: `${id}-v1`, version: 1 },
    runtimes: [
      { id: `${id}-r`, name: 'r', driver: 'local', mode: 'execution', configuration: given('runtime') },
    ],
    resources: [
      { id: `${id}-m`, name: 'm', providerId: 'm', cpuCores: 1, cpuCapacity: 1, schedulable: true },
    ],
    resourceRuntimeBindings: [
      { resourceId: `${id}-m`, runtimeId: `${id}-r`, enabled: true, configuration: given('binding') },
    ],
    storages: [
      {
        id: `${id}-s`,
        name: 's',
        type: 's3',
        configuration: given('storage'),
        runtimeBindings: [{ runtimeId: `${id}-r`, configuration: given('storage binding') }],
      },
    ],
    connections: [
      {
        id: `${id}-c`,
        name: 'c',
        type: 'ssh',
        endpoint: 'h.invalid',
        username: 'u',
        configuration: given('connection'),
      },
    ],
  }
}
const places: Record<string, string> = {
  runtime: 'runtimes.0',
  binding: 'resourceRuntimeBindings.0',
  storage: 'storages.0',
  'storage binding': 'storages.0.runtimeBindings.0',
  connection: 'connections.0',
}
const tables: Record<string, [table: string, key: string]> = {
  runtime: ['runtimes', 'id'],
  binding: ['resource_runtime_bindings', 'runtime_id'],
  storage: ['storages', 'id'],
  'storage binding': ['storage_runtime_bindings', 'storage_id'],
  connection: ['connections', 'id'],
}
/** Stored configurations of a kind that hold the canary. */
const stored = async (kind: string): Promise<Json[]> => {
  const [table] = tables[kind]!
  const rows = await service.db.prepared(
    `stored-${kind}`,
    `select configuration from ${table} where configuration::text like $1`,
    [`%${canary}%`],
  )
  return rows.map(({ configuration }: Json) => configuration)
}
/** Puts a configuration under every record of an environment, as an older version stored it. */
const age = async (id: string, configuration: Json): Promise<void> => {
  for (const [kind, [table, key]] of Object.entries(tables))
    await service.db.prepared(`age-${kind}`, `update ${table} set configuration = $1 where ${key} like $2`, [
      JSON.stringify(configuration),
      `${id}-%`,
    ])
}
const paths = (body: Json): string[] => body.details.map(({ path }: Json) => path).toSorted()

test.each(Object.keys(places))(
  'a secret in the configuration of a %s is refused with the route that stores it',
  async (kind) => {
    const secrets = {
      bearerToken: canary,
      API_KEY: canary,
      deep: [{ of: { 'private-key': { pem: canary } } }, { secretAccessKey: 5_150_515 }],
    }
    const before = await tableCounts(service.db)
    const answer = await service.call(
      'POST',
      '/environments/',
      definition({ ...secrets, accessKeyId: 'x', token: 'vault:kubernetes-token/t' }, kind),
    )
    const at = `${places[kind] ?? ''}.configuration`
    expect([answer.status, paths(answer.body)]).toEqual([
      422,
      [
        `${at}.API_KEY`,
        `${at}.bearerToken`,
        `${at}.deep.0.of.private-key.pem`,
        `${at}.deep.1.secretAccessKey`,
      ],
    ])
    for (const { message } of answer.body.details)
      expect(message).toMatch(
        /store it by POST \/(ssh-keys\/import|kubernetes-tokens|cloud-credentials)\/ and give the credentialRef/,
      )
    expect(answer.text).not.toContain(canary)
    expect(answer.text).not.toContain('5150515')
    // The refusal is audited, and the first record that is sealed makes the head of the chain,
    // whenever that is.
    const withoutAudit = (counts: Record<string, number>) =>
      Object.fromEntries(Object.entries(counts).filter(([table]) => !table.startsWith('audit_')))
    expect(withoutAudit(await tableCounts(service.db))).toEqual(withoutAudit(before))
  },
)

test('every form of a secret’s name is refused by PUT of a connection and of an environment; references, flags and other keys are not', async () => {
  const document = definition({}, 'connection')
  await service.post('/environments/', document)
  const [connection] = document.connections
  const put = (configuration: Json) =>
    service.call('PUT', `/environment-connections/${connection.id}/`, {
      ...connection,
      environmentId: document.environment.id,
      configuration,
    })
  for (const key of [
    'bearerToken',
    'token',
    'password',
    'passwd',
    'passphrase',
    'privateKey',
    'private_key',
    'secretAccessKey',
    'client-secret',
    'kubeconfig',
    'Authorization',
    'credentials',
    'clientKeyData',
    'accountKey',
  ]) {
    const answer = await put({ [key]: canary })
    expect([key, answer.status, paths(answer.body)]).toEqual([key, 422, [`configuration.${key}`]])
    expect(answer.body.error).toContain('POST /ssh-keys/import/')
    const whole = await service.call('PUT', `/environments/${document.environment.id}/`, {
      ...document,
      connections: [{ ...connection, configuration: { in: { [key]: canary } } }],
    })
    expect([key, whole.status, paths(whole.body)]).toEqual([
      key,
      422,
      [`connections.0.configuration.in.${key}`],
    ])
  }
  const harmless = {
    accessKeyId: 'AK',
    tokenFile: '/run/token',
    automountServiceAccountToken: false,
    password: '',
    imagePullSecrets: ['regcred'],
    apiKey: 'env:LAB',
  }
  expect((await put(harmless)).body.configuration).toEqual(harmless)
  // A mask stands for a stored secret and for nothing else.
  expect(paths((await put({ password: mask })).body)).toEqual(['configuration.password'])
})

test('what an older version stored is masked wherever it is shown', async () => {
  const document = definition()
  const { id } = document.environment
  await service.post('/environments/', document)
  await age(id, { token: canary, nested: [{ password: canary, user: 'ada' }], port: 22 })
  const shown = { token: mask, nested: [{ password: mask, user: 'ada' }], port: 22 }
  const one = await service.call('GET', `/environments/${id}/`)
  for (const holder of [
    one.body.runtimes[0],
    one.body.resourceRuntimeBindings[0],
    one.body.storages[0],
    one.body.storages[0].runtimeBindings[0],
    one.body.connections[0],
  ])
    expect(holder.configuration).toEqual(shown)
  const connection = await service.call('GET', `/environment-connections/${id}-c/`)
  expect(connection.body.configuration).toEqual(shown)
  const storages = await service.call('GET', `/environments/${id}/storages/`)
  expect(storages.body).toEqual(one.body.storages)
  for (const answer of [one, connection, storages, await service.call('GET', '/environments/')])
    expect(answer.text).not.toContain(canary)
  // Its checks go on: a key that nothing reads is no reason to be offline.
  expect((await service.post(`/environment-connections/${id}-c/health/`)).message).not.toMatch(/token|secret/)
})

test.each(['pass_word', 'p a s s w o r d', 'to\nken', 'private"key', 'api\u001fkey'])(
  'a secret is masked whatever stands between the letters of its name: %j',
  async (key) => {
    const document = definition()
    const { id } = document.environment
    await service.post('/environments/', document)
    await age(id, { [key]: canary })
    const whole = await service.get(`/environments/${id}/`)
    expect(whole.connections[0].configuration).toEqual({ [key]: mask })
    expect(await recordsWithSecrets(service.db)).toContainEqual({
      record: `connection ${id}-c`,
      paths: [key],
    })
  },
)

test('a PUT that sends the mask back leaves the secret as it is; one without it removes it', async () => {
  const document = definition()
  const { id } = document.environment
  await service.post('/environments/', document)
  const old = { token: canary, nested: [{ password: canary }], port: 22 }
  await age(id, old)
  const read = await service.get(`/environment-connections/${id}-c/`)
  const renamed = await service.call('PUT', `/environment-connections/${id}-c/`, { ...read, name: 'renamed' })
  expect([renamed.status, renamed.body]).toEqual([200, { ...read, name: 'renamed' }])
  expect(await stored('connection')).toContainEqual(old)

  const whole = await service.get(`/environments/${id}/`)
  const replaced = await service.call('PUT', `/environments/${id}/`, whole)
  expect(replaced.status).toBe(200)
  expect(replaced.text).not.toContain(canary)
  for (const kind of Object.keys(tables)) expect(await stored(kind)).toContainEqual(old)

  await service.ok('PUT', `/environment-connections/${id}-c/`, {
    ...read,
    configuration: { ...read.configuration, token: undefined },
  })
  const [kept] = (await service.db.prepared('kept', 'select configuration from connections where id = $1', [
    `${id}-c`,
  ])) as Json[]
  expect(kept.configuration).toEqual({ nested: [{ password: canary }], port: 22 })
})

test('secrets of older versions stay out of the snapshots of runs', async () => {
  const world = await makeWorld(service, { name: 'aged', tasks: [{ name: 'a' }], launch: 'none' })
  await service.db.prepared(
    'age-runtimes',
    `update runtimes set configuration = configuration || $1 where id like 'aged-%' and configuration is not null`,
    [JSON.stringify({ apiToken: canary })],
  )
  await service.db.prepared(
    'age-bindings',
    `update resource_runtime_bindings set configuration = $1 where runtime_id like 'aged-%'`,
    [JSON.stringify({ password: canary })],
  )
  await service.post('/execution-runs/', { id: 'aged-run', schedulePlanId: world.planId, mode: 'real' })
  expect((await service.finished('aged-run')).run.status).toBe('completed')
  const [snapshot] = (await service.db.prepared(
    'snapshot',
    'select runtimes::text || runtime_bindings::text as text from run_snapshots where execution_run_id = $1',
    ['aged-run'],
  )) as Json[]
  expect(snapshot.text).toContain(mask)
  expect(snapshot.text).not.toContain(canary)
})

test('records with stored secrets are named at start, the secrets are not', async () => {
  const document = definition()
  const { id } = document.environment
  await service.post('/environments/', document)
  await age(id, { deep: { token: canary } })
  let log = ''
  const second = await openService({
    databaseUrl: () => service.databaseUrl,
    environment: { SERVICE_LOG_LEVEL: 'warn' },
    log: { write: (line) => void (log += line) },
  })
  await second[Symbol.asyncDispose]()
  for (const record of [`connection ${id}-c`, `runtime ${id}-r`, `storage ${id}-s`])
    expect(log).toContain(JSON.stringify(record))
  expect(log).toContain('deep.token')
  expect(log).not.toContain(canary)
})

const connectionEndpoints = {
  refused: [
    `lab:${canary}@host`,
    `lab:${canary}@host:22`,
    `:${canary}@host`,
    ` lab:${canary}@host`,
    `me@corp.example:${canary}@host`,
    `lab:1@${canary}@host`,
    `lab:${canary}/x@host`,
    `lab:/${canary}?x@host`,
    `lab:white ${canary}@host`,
    `https://lab:${canary}@host`,
    `HTTPS://lab:${canary}@host:6443/`,
    `https://lab:x/${canary}@host`,
    `https:///lab:${canary}@host`,
    `https:lab:${canary}@host`,
  ],
  taken: [
    'host',
    'host:22',
    'me@host:22',
    '[2001:db8::1]:22',
    'https://[::1]:6443/a@b',
    'https://host:6443/clusters/a@b',
    'https://me@host:6443/a@b',
    'unix:///run/a@b',
  ],
}
const storageEndpoints = {
  refused: [
    `https://AKIA:${canary}@minio:9000/bucket`,
    `s3://AKIA:x/${canary}@bucket`,
    `sftp://me@corp.example:${canary}@host/data`,
  ],
  taken: [
    'host:/export/a@b',
    '10.0.0.1@tcp:10.0.0.2@tcp:/fs',
    'one:two@tcp:/fs',
    'me@host:/data',
    '/data/a:b@c',
    's3://bucket/a:b@c',
    'https://minio:9000/bucket/a@b',
    'sftp://me@host:/data/a@b',
  ],
}
/** A new environment with a connection and a storage for each of these endpoints. */
const withEndpoints = (connections: string[], storages: string[]): Json => {
  const document = definition()
  const { id } = document.environment
  const [connection] = document.connections
  return {
    ...document,
    storages: storages.map((endpoint, at) => ({ id: `${id}-s${at}`, name: `s${at}`, type: 's3', endpoint })),
    connections: connections.map((endpoint, at) => ({
      ...connection,
      id: `${id}-c${at}`,
      name: `c${at}`,
      endpoint,
    })),
  }
}

test('a password in an endpoint is refused, and shown nowhere; other endpoints are taken', async () => {
  const asked = withEndpoints(
    [...connectionEndpoints.taken, ...connectionEndpoints.refused],
    [...storageEndpoints.taken, ...storageEndpoints.refused],
  )
  const places = [
    ...connectionEndpoints.refused.map(
      (_, at) => `connections.${connectionEndpoints.taken.length + at}.endpoint`,
    ),
    ...storageEndpoints.refused.map((_, at) => `storages.${storageEndpoints.taken.length + at}.endpoint`),
  ]
  const taken = withEndpoints(connectionEndpoints.taken, storageEndpoints.taken)
  await service.post('/environments/', taken)
  const { id } = taken.environment
  const refused = await service.call('POST', '/environments/', asked)
  const replaced = await service.call('PUT', `/environments/${id}/`, {
    ...asked,
    environment: taken.environment,
  })
  for (const { status, body, text } of [refused, replaced]) {
    expect([status, paths(body)]).toEqual([422, places.toSorted()])
    expect(body.error).toContain(
      'holds a password, which has no place in a document; store it as a credential',
    )
    expect(text).not.toContain(canary)
  }
  const [connection] = taken.connections
  for (const endpoint of connectionEndpoints.refused)
    for (const type of ['ssh', 'kubernetes', 'cloud']) {
      const document = {
        ...{ ...connection, type, endpoint, environmentId: id },
        configuration: type === 'cloud' ? { provider: 'aws' } : {},
      }
      const put = await service.call('PUT', `/environment-connections/${connection.id}/`, document)
      const tested = await service.call('POST', '/connection-tests/', document)
      for (const { status, body, text } of [put, tested]) {
        expect([endpoint, status, new Set(paths(body))]).toEqual([endpoint, 422, new Set(['endpoint'])])
        expect(text).not.toContain(canary)
      }
    }
  const gate = await service.call('PUT', `/environment-connections/${connection.id}/`, {
    ...{ ...connection, environmentId: id, username: `lab:${canary}` },
    configuration: { proxyJump: `lab:${canary}@gate` },
  })
  expect([gate.status, paths(gate.body)]).toEqual([422, ['configuration.proxyJump', 'username']])
  expect(gate.text).not.toContain(canary)
  expect((await service.call('GET', '/audit-events/')).text).not.toContain(canary)
})

test('a password in an endpoint of an older version is masked, kept, and copied nowhere', async () => {
  const document = definition()
  const { id } = document.environment
  await service.post('/environments/', document)
  const old = { connection: `lab:${canary}@h.invalid`, storage: `https://AKIA:${canary}@minio.invalid/` }
  await service.db.prepared('age-c', 'update connections set endpoint = $1 where id = $2', [
    old.connection,
    `${id}-c`,
  ])
  await service.db.prepared('age-s', 'update storages set endpoint = $1 where id = $2', [
    old.storage,
    `${id}-s`,
  ])
  const stored = async (): Promise<Json> =>
    (
      await service.db.prepared(
        'endpoints',
        `select c.endpoint as connection, s.endpoint as storage from connections c, storages s
          where c.id = $1 and s.id = $2`,
        [`${id}-c`, `${id}-s`],
      )
    )[0]

  const read = await service.get(`/environment-connections/${id}-c/`)
  expect(read.endpoint).toBe(`lab:${mask}@h.invalid`)
  const whole = await service.get(`/environments/${id}/`)
  expect([whole.connections[0].endpoint, whole.storages[0].endpoint]).toEqual([
    read.endpoint,
    `https://AKIA:${mask}@minio.invalid/`,
  ])
  expect(await service.get(`/environments/${id}/storages/`)).toEqual(whole.storages)
  expect((await service.call('GET', '/environments/')).text).not.toContain(canary)

  // What was read is saved again, and wakes the monitor, whose check is an audit record.
  await service.ok('PUT', `/environment-connections/${id}-c/`, read)
  const audits = async () => (await service.call('GET', `/audit-events/?connectionId=${id}-c`)).text
  await until('the check of the monitor is recorded', 120, async () =>
    (await audits()).includes('is offline: name: endpoint'),
  )
  await service.ok('PUT', `/environments/${id}/`, whole)
  expect(await stored()).toEqual(old)
  // The stored password is no new mistake, under its mask and as it is; at another host it is one.
  const moved = (connection: string, storage: string) =>
    service.call('PUT', `/environments/${id}/`, {
      ...whole,
      connections: [{ ...whole.connections[0], endpoint: connection }],
      storages: [{ ...whole.storages[0], endpoint: storage }],
    })
  expect((await moved(old.connection, old.storage)).status).toBe(200)
  expect(paths((await moved(`lab:${mask}@elsewhere`, `https://AKIA:${mask}@elsewhere/b`)).body)).toEqual([
    'connections.0.endpoint',
    'storages.0.endpoint',
  ])
  expect(await stored()).toEqual(old)

  await service.post(`/environment-connections/${id}-c/health/`)
  const health = await service.call('POST', `/storages/${id}-s/health/`)
  expect([health.status, health.body.error]).toEqual([422, expect.stringContaining(`AKIA:${mask}@`)])
  for (const path of [`environments/${id}`, `environment-connections/${id}-c/history`, 'audit-events'])
    expect((await service.call('GET', `/${path}/`)).text).not.toContain(canary)

  for (const kind of ['connection', 'storage'])
    expect(await recordsWithSecrets(service.db)).toContainEqual({
      record: `${kind} ${id}-${kind.slice(0, 1)}`,
      paths: ['endpoint'],
    })
  expect(await configurationSecrets(service.db)).toContain(canary)
})

test('a URL with a password is a secret at every key of a configuration', async () => {
  const url = `https://AKIA:${canary}-url@minio.invalid/`
  const image = `docker://alpine:3@sha256:${'a'.repeat(64)}`
  const addresses = [url, `https://AKIA:x/${canary}@minio.invalid/ of a@b`]
  const kinds = Object.keys(places)
  for (const [place, endpointUrl] of kinds.flatMap((kind) => addresses.map((one) => [kind, one] as const))) {
    const refused = await service.call('POST', '/environments/', definition({ endpointUrl, image }, place))
    expect([place, refused.status, paths(refused.body)]).toEqual([
      ...[place, 422, [expect.stringMatching(/\.configuration\.endpointUrl$/)]],
    ])
    expect(refused.body.error).toContain('give the credentialRef of the answer')
    expect(refused.text).not.toContain(canary)
  }
  const words = 'http://proxy:3128, mail admin@site'
  const document = definition({ endpointUrl: 'https://minio.invalid/', image, words }, 'storage')
  const { id } = document.environment
  await service.post('/environments/', document)
  await service.db.prepared('age-u', 'update storages set configuration = $1, endpoint = $2 where id = $3', [
    ...[JSON.stringify({ endpointUrl: url, image, words }), 's3://bucket', `${id}-s`],
  ])
  const whole = await service.get(`/environments/${id}/`)
  expect(whole.storages[0].configuration).toEqual({ endpointUrl: mask, image, words })
  expect(await service.get(`/environments/${id}/storages/`)).toEqual(whole.storages)
  await service.ok('PUT', `/environments/${id}/`, whole)
  const health = await service.call('POST', `/storages/${id}-s/health/`)
  for (const path of ['environments', `environments/${id}/storages`, 'audit-events'])
    expect((await service.call('GET', `/${path}/`)).text).not.toContain(canary)
  expect(health.text).not.toContain(canary)
  expect(await recordsWithSecrets(service.db)).toContainEqual({
    record: `storage ${id}-s`,
    paths: ['endpointUrl'],
  })
  expect(await configurationSecrets(service.db)).toEqual(expect.arrayContaining([url, `${canary}-url`]))
})

test('records with references hide no record with a secret, however many there are', async () => {
  const document = definition()
  const { id } = document.environment
  const named = (_: unknown, n: number): Json => ({
    ...{ id: `${id}-r${n}`, name: `r${n}`, driver: 'local', mode: 'execution' },
    configuration: { token: 'env:LAB' },
  })
  document.runtimes.push(...Array.from({ length: 101 }, named))
  await service.post('/environments/', document)
  await service.db.prepared('age-r', 'update storages set configuration = $1 where id = $2', [
    ...[JSON.stringify({ token: canary }), `${id}-s`],
  ])
  expect(await recordsWithSecrets(service.db)).toContainEqual({ record: `storage ${id}-s`, paths: ['token'] })
})
