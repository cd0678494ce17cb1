import { expect } from '@jest/globals'
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { startLoopbackSsh, type LoopbackSite } from '../../sites/loopback.ts'
import { keyFingerprint } from '../../sites/ssh.ts'
import { poll } from '../../src/pacing/poll.ts'
import { cancelDiscovery, discoverConnection, failDiscovery } from '../../src/connections/discover.ts'
import {
  beginDiscovery,
  discoveryKind,
  readDiscovery,
  requestDiscovery,
} from '../../src/domains/environment-connections/discoveries.ts'
import { readConnection, recordCheck } from '../../src/domains/environment-connections/store.ts'
import { readOperation } from '../../src/operations/records.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { until } from '../failures/programs.ts'
import { inventoryRoutes } from '../support/inventory-routes.ts'
import { openRoutes } from '../support/open-routes.ts'
import { quietReports } from '../support/quiet-reports.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeServerKeys, startSshServer, type SshServer } from '../support/ssh-server.ts'
import { tableCounts } from '../support/table-counts.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.sshd)

type Json = any

let site: LoopbackSite
let service: TestService
let credentialRef: string
const servers: Server[] = []
/** The test of a connection to a server that says nothing. */
let silent: Promise<Json>
const sockets = new Set<Socket>()

/** A server of this machine that does with each connection what it is told. */
const serve = async (meet: (socket: Socket) => void): Promise<string> => {
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => undefined)
    meet(socket)
  })
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return `127.0.0.1:${String((server.address() as AddressInfo).port)}`
}

const keyFile = (): string => join(site.folder, 'vault.key')
const settings = (): Record<string, string> => ({
  SERVICE_VAULT_KEY_FILE: keyFile(),
  SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
  SERVICE_DENIED_NETWORKS: '192.0.2.0/24',
  SERVICE_MONITOR_INTERVAL_SECONDS: '3600',
  SERVICE_DISCOVERY_WAIT_SECONDS: '90',
})

beforeAll(async () => {
  site = await startLoopbackSsh({ hosts: 2 })
  writeFileSync(keyFile(), `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  service = await openService({ environment: settings() })
  credentialRef = (await service.post('/ssh-keys/import/', { id: 'key', privateKey: site.key.privateKey }))
    .credentialRef
  await service.post('/kubernetes-tokens/', { id: 'token', token: 'a-token-of-a-cluster' })
  // Its deadline goes by during the other tests.
  silent = service.post('/connection-tests/', login({ endpoint: await serve(() => undefined) }))
  silent.catch(() => undefined)
})
afterAll(async () => {
  for (const socket of sockets) socket.destroy()
  for (const server of servers) server.close()
  await service?.[Symbol.asyncDispose]()
  await site?.stop()
})

/** A code that a server asks after the key. */
const codeAsked = {
  rounds: [
    { prompts: [{ prompt: 'Code: ', echo: false }], judge: ([given]: string[]) => given === '123456' },
  ],
}

let serial = 0
const environment = async (): Promise<string> => {
  const id = `env-${String(++serial)}`
  await service.post('/environments/', {
    environment: { id, name: id },
    version: { id: `${id}-v1`, version: 1 },
  })
  return id
}
const login = (more: Json = {}, host = 0): Json => ({
  type: 'ssh',
  endpoint: `${site.hosts[host]!.address}:${String(site.hosts[host]!.port)}`,
  username: site.hosts[host]!.user,
  credentialRef,
  ...more,
  configuration: { hostKeyFingerprints: [site.hosts[host]!.fingerprint()], ...more.configuration },
})
const put = (id: string, document: Json) =>
  service.call('PUT', `/environment-connections/${encodeURIComponent(id)}/`, document)
const saved = async (more: Json = {}, host = 0): Promise<Json> => {
  const environmentId = await environment()
  const id = `c-${environmentId}`
  const answer = await put(id, { id, name: 'login', environmentId, ...login(more, host) })
  expect([answer.status, answer.text]).toEqual([200, expect.any(String)])
  return answer.body
}
const health = (id: string) => service.post(`/environment-connections/${id}/health/`)
/** A check behind the end of the session that stood: until then one may find the session. */
const hostKeyRefused = (check: () => Promise<Json>): Promise<Json> =>
  until('a refused host key', 120, async () => {
    const { status, message, metadata } = await check()
    return status === 'offline' && stages(metadata.stages) === 'name route host key!'
      ? { message }
      : undefined
  })
const statusOf = async (environmentId: string): Promise<string> =>
  (await service.get(`/environments/${environmentId}/`)).environment.status
const stages = (list: Json[]): string => list.map(({ stage, ok }) => `${stage}${ok ? '' : '!'}`).join(' ')
const paths = (body: Json): string[] => body.details.map(({ path }: Json) => path)
const expectFailed = (answer: Json, stage: string): void => {
  expect(answer.healthy).toBe(false)
  expect([answer.message, answer.stages.at(-1)]).toEqual([
    expect.any(String),
    expect.objectContaining({ stage, ok: false, detail: expect.any(String) }),
  ])
  expect(answer.message.length).toBeGreaterThan(5)
}

describe('testing a connection before it is saved', () => {
  test('a host that answers is healthy, stage by stage, and nothing is stored', async () => {
    const before = await tableCounts(service.db)
    const answer = await service.post('/connection-tests/', login())
    expect([answer.healthy, stages(answer.stages)]).toEqual([
      true,
      'name route host key login shell scheduler container engine rights limits',
    ])
    expect(answer.stages.find(({ stage }: Json) => stage === 'rights').detail).toContain('/.orrery')
    const after = await tableCounts(service.db)
    for (const table of ['connections', 'connection_checks', 'connection_host_keys'])
      expect(after[table]).toBe(before[table])
  })

  test('leaves no login behind at the hosts on the way, also where one asks a person', async () => {
    const keys = makeServerKeys()
    const user = { private: site.key.privateKey, public: site.key.publicKey }
    const open = await startSshServer({ keys: { ...keys, user } })
    const asking = await startSshServer({ keys: { ...keys, user }, second: codeAsked })
    const through = (...jumps: SshServer[]): Json => {
      const at = login()
      const hostKeyFingerprints = [...at.configuration.hostKeyFingerprints, keyFingerprint(keys.host.public)]
      const proxyJump = jumps.map(({ port }) => `127.0.0.1:${String(port)}`)
      return { ...at, configuration: { hostKeyFingerprints, proxyJump, scheduler: 'none' } }
    }
    try {
      expect((await service.post('/connection-tests/', through(open))).healthy).toBe(true)
      expectFailed(await service.post('/connection-tests/', through(open, asking)), 'route')
      expect([open.logins, asking.attempts > 0]).toEqual([2, true])
      // A login that nobody answers would end by itself after 100 s.
      const none = () => (open.connections.size + asking.connections.size === 0 ? true : undefined)
      expect(await poll(none, { everyMs: 50, deadlineMs: 60_000 })).toBe(true)
    } finally {
      await Promise.all([open.close(), asking.close()])
    }
  })

  test('a configuration that is nested far too deep is 400', async () => {
    for (const [open, close] of [
      ['{"a":', '}'],
      ['[', ']'],
    ] as const) {
      const deep = `{"a":${open.repeat(20_000)}1${close.repeat(20_000)}}`
      const text = JSON.stringify({ ...login(), configuration: 'deep' }).replace('"deep"', deep)
      const answer = await service.call('POST', '/connection-tests/', text, {
        'content-type': 'application/json',
      })
      expect([answer.status, answer.body.code]).toEqual([400, 'invalid'])
    }
  })

  test.each([
    // Once something came: before, whether the connection ever stood is a matter of chance.
    ['refuses', () => serve((socket) => socket.once('data', () => socket.resetAndDestroy())), 'host key'],
    [
      'speaks garbage',
      () => serve((socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'.repeat(1000))),
      'host key',
    ],
    ['is not there', async () => '127.0.0.1:1', 'route'],
    ['has a name that does not exist', async () => 'no-such-host.invalid', 'name'],
    ['is in a denied network', async () => '192.0.2.7', 'route'],
    ['is a metadata service', async () => '169.254.169.254', 'route'],
    ['is a metadata service as a mapped address', async () => '[::ffff:169.254.169.254]:22', 'route'],
  ])('a server that %s fails with its stage within the deadline', async (_, open, stage) => {
    expectFailed(await service.post('/connection-tests/', login({ endpoint: await open() })), stage)
  })

  test('a host whose key is not known shows its fingerprint; one with another key shows both', async () => {
    const shown = site.hosts[0]!.fingerprint()
    const unknown = await service.post(
      '/connection-tests/',
      login({ configuration: { hostKeyFingerprints: undefined } }),
    )
    expect([unknown.healthy, stages(unknown.stages)]).toEqual([false, 'name route host key!'])
    expect(unknown.message).toContain(shown)
    const expected = `SHA256:${'A'.repeat(43)}`
    const other = await service.post(
      '/connection-tests/',
      login({ configuration: { hostKeyFingerprints: [expected] } }),
    )
    expect(stages(other.stages)).toBe('name route host key!')
    expect(other.message).toContain(shown)
    expect(
      (
        await service.post(
          '/connection-tests/',
          login({ configuration: { hostKeyFingerprints: undefined, hostKeyPolicy: 'accept-new' } }),
        )
      ).healthy,
    ).toBe(true)
  })

  test('a partition where there is no Slurm, and a work directory that cannot be made, fail at their stages', async () => {
    // The programs of Slurm are on this machine's path, and so on its hosts'; no controller answers
    // there.
    const partition = await service.post(
      '/connection-tests/',
      login({ configuration: { partition: 'none-such' } }),
    )
    expect(stages(partition.stages)).toBe('name route host key login shell scheduler!')
    const rights = await service.post(
      '/connection-tests/',
      login({ configuration: { workDirectory: '/proc/version/none', scheduler: 'none' } }),
    )
    expect(stages(rights.stages)).toBe('name route host key login shell container engine rights!')
    expect(rights.message).toContain('/proc/version is not a directory')
  })

  test('connections of type local are checked here, cloud ones by their credential, agents not at all', async () => {
    expect(
      await service.post('/connection-tests/', {
        type: 'local',
        name: 'here',
        configuration: { scheduler: 'none' },
      }),
    ).toMatchObject({
      healthy: true,
    })
    const agent = await service.call('POST', '/connection-tests/', { type: 'agent', name: 'a' })
    expect([agent.status, agent.body.code]).toEqual([503, 'not_built'])
    const cloud = await service.post('/connection-tests/', {
      type: 'cloud',
      configuration: { provider: 'gcp' },
    })
    expect([cloud.healthy, stages(cloud.stages)]).toEqual([false, 'login!'])
    const elsewhere = await service.call('POST', '/connection-tests/', {
      type: 'cloud',
      configuration: { provider: 'gcp', region: 'us-east1/..', projectId: '..' },
    })
    const fields = elsewhere.body.details.map(({ path }: { path: string }) => path)
    expect([elsewhere.status, fields.toSorted()]).toEqual([
      422,
      ['configuration.projectId', 'configuration.region'],
    ])
  })

  test('an endpoint of Kubernetes that does not speak TLS fails there', async () => {
    const endpoint = await serve((socket) => socket.end('SSH-2.0-nothing\r\n'))
    const answer = await service.post('/connection-tests/', {
      type: 'kubernetes',
      endpoint: `https://${endpoint}`,
      credentialRef: '',
    })
    expect(answer).toMatchObject({
      healthy: false,
      stages: expect.arrayContaining([expect.objectContaining({ stage: 'host key', ok: false })]),
    })
  })
})

describe('saving a connection', () => {
  test('is an upsert: read back as it was understood, replaced in place, with its creation time', async () => {
    const first = await saved()
    const { id, environmentId, createdAt } = first
    expect(await service.get(`/environment-connections/${id}/`)).toEqual(first)
    const again = (await put(id, { ...first, name: 'renamed' })).body
    expect(again).toEqual({ ...first, name: 'renamed', createdAt })
    expect(
      (await service.get(`/environments/${environmentId}/`)).connections.map((one: Json) => one.name),
    ).toEqual(['renamed'])
    expect((await service.call('GET', '/environment-connections/none/')).status).toBe(404)
    const events = await service.get(`/audit-events/?connectionId=${id}&eventType=connection.saved`)
    expect(events).toEqual([
      expect.objectContaining({ connectionId: id, environmentId, outcome: 'succeeded' }),
      expect.objectContaining({ connectionId: id, environmentId, outcome: 'succeeded' }),
    ])
    const path = `/environment-connections/${id}/`
    const under = (headers: Record<string, string>, at = path, document: Json = first) =>
      service.call('PUT', at, document, headers)
    expect((await under({ 'if-none-match': '*' })).status).toBe(412)
    const fresh = { ...first, id: `${id}-fresh`, name: 'fresh' }
    const missing = `/environment-connections/${fresh.id}/`
    expect((await under({ 'if-match': '*' }, missing, fresh)).status).toBe(412)
    expect((await service.call('GET', missing)).status).toBe(404)
  })

  test('everything that is wrong is in one answer and nothing is stored', async () => {
    const before = await tableCounts(service.db)
    const { status, body } = await put('c', {
      id: 'd',
      name: 'x',
      type: 'ssh',
      environmentId: 'nowhere',
      endpoint: 'ssh://me@host/path',
      username: '-oProxyCommand=x',
      configuration: {
        port: 70_000,
        proxyCommand: 'nc %h %p',
        hostKeyPolicy: 'off',
        hostKeyFingerprints: ['md5:00'],
        password: 'secret',
      },
    })
    expect(status).toBe(422)
    expect(paths(body).toSorted()).toEqual(
      [
        'id',
        'environmentId',
        'endpoint',
        'username',
        'configuration.port',
        'configuration.proxyCommand',
        'configuration.hostKeyPolicy',
        'configuration.hostKeyFingerprints',
        'configuration.password',
      ].toSorted(),
    )
    expect(JSON.stringify(body)).not.toContain('"secret"')
    const after = await tableCounts(service.db)
    for (const table of [
      'connections',
      'connection_checks',
      'connection_host_keys',
      'connection_discoveries',
    ])
      expect([table, after[table]]).toEqual([table, before[table]])
  })

  test.each([
    ['a scheme', 'ssh://host'],
    ['a user', 'me@host'],
    ['a path', 'host/path'],
    ['port 0', 'host:0'],
    ['port 70000', 'host:70000'],
    ['no host', ''],
    ['10,000 characters', 'h'.repeat(10_000)],
    ['a decimal address', '2130706433'],
    ['an octal address', '0177.0.0.1'],
    ['a hexadecimal address', '0x7f000001'],
    ['a short address', '127.1'],
    ['a metadata name', 'metadata.google.internal'],
    ['a line break', 'host\nProxyCommand x'],
    ['file', 'file:///etc/passwd'],
    ['gopher', 'gopher://127.0.0.1:70/'],
  ])('an endpoint with %s is refused by its name', async (_, endpoint) => {
    const answer = await service.call('POST', '/connection-tests/', login({ endpoint }))
    expect([answer.status, paths(answer.body)]).toEqual([422, ['endpoint']])
    expect(answer.text.length).toBeLessThan(2_000)
  })

  test('names twice, another environment, and none at all are refused', async () => {
    const one = await saved()
    expect((await put('second', { ...one, id: 'second' })).body.details).toEqual([
      { path: 'name', message: expect.stringContaining(one.id) },
    ])
    const elsewhere = await environment()
    expect(paths((await put(one.id, { ...one, environmentId: elsewhere })).body)).toEqual(['environmentId'])
    for (const id of [one.id, 'new'])
      for (const environmentId of ['', null, undefined]) {
        const answer = await put(id, { ...one, id, name: id, environmentId })
        expect([id, answer.status, paths(answer.body)]).toEqual([id, 422, ['environmentId']])
      }
    expect(await service.get(`/environment-connections/${one.id}/`)).toEqual(one)
  })
})

describe('what an environment was registered with', () => {
  /** Connections as an environment may bring them; only their shape is checked. */
  const brought: Json[] = [
    {
      type: 'telnet',
      endpoint: 'telnet://host:23',
      credentialRef: 'safe-deposit-box-7',
      configuration: { baud: 9600 },
    },
    { type: 'agent', username: 'robot' },
    { type: 'ssh' },
    {
      type: 'ssh',
      endpoint: 'ssh://me@host/path',
      username: '-x',
      credentialRef: 'vault:ssh-key/none',
      configuration: {
        port: 70_000,
        hostKeyPolicy: 'off',
        knownHostsFile: '~/.ssh/known_hosts',
        proxyCommand: 'nc %h %p',
      },
    },
    { type: 'ssh', endpoint: 'host.invalid', username: 'me', credentialRef: 'vault:kubernetes-token/token' },
    {
      type: 'kubernetes',
      endpoint: 'http://cluster.invalid',
      credentialRef: 'file:/root/token',
      configuration: { caFile: '/etc/ca.pem', insecureSkipTLSVerify: true, namespace: 'Not A Name' },
    },
    {
      type: 'cloud',
      configuration: { provider: 'mars', projectId: 'p', nested: [{ deep: [null, 1.5, 'x'] }] },
    },
    {
      type: 'local',
      credentialRef: 'vault:ssh-key/key',
      configuration: { scheduler: 'pbs', workDirectory: 'here' },
    },
  ]

  test('is taken back by PUT as GET shows it, byte for byte, also without its environment', async () => {
    const id = `env-${String(++serial)}`
    const connections = brought.map((one, i) => ({
      id: `${id}-c${String(i)}`,
      name: `c${String(i)}`,
      ...one,
    }))
    await service.post('/environments/', {
      environment: { id, name: id },
      version: { id: `${id}-v1`, version: 1 },
      connections,
    })
    const before = await service.get(`/environments/${id}/`)
    expect(before.connections).toHaveLength(brought.length)
    for (const shown of before.connections as Json[]) {
      const text = (await service.call('GET', `/environment-connections/${shown.id}/`)).text
      expect(JSON.parse(text)).toEqual(shown)
      const answer = await put(shown.id, shown)
      expect([shown.type, answer.status, answer.text]).toEqual([shown.type, 200, text])
      expect((await service.call('GET', `/environment-connections/${shown.id}/`)).text).toBe(text)
    }
    expect((await service.get(`/environments/${id}/`)).connections).toEqual(before.connections)
    // A new mistake is refused where an old one is taken back.
    const [, , , old] = before.connections as Json[]
    expect(
      paths((await put(old.id, { ...old, configuration: { ...old.configuration, port: 80_000 } })).body),
    ).toEqual(['configuration.port'])
    expect(
      (await put(old.id, { ...old, endpoint: 'host.invalid', username: 'me', configuration: {} })).status,
    ).toBe(200)
  })

  test('a connection of an unknown type is kept; its test, health and discovery are 503 not_built and record nothing', async () => {
    for (const type of ['telnet', 'agent']) {
      const environmentId = await environment()
      const id = `${type}-${environmentId}`
      const answer = await put(id, { id, name: type, type, environmentId, endpoint: 'anywhere' })
      expect([answer.status, answer.body.type]).toEqual([200, type])
      const before = await tableCounts(service.db)
      for (const refused of [
        await service.call('POST', '/connection-tests/', { type, name: type }),
        await service.call('POST', `/environment-connections/${id}/health/`),
        await service.call('POST', `/environment-connections/${id}/discover/`),
      ]) {
        expect([refused.status, refused.body.code, refused.headers.get('retry-after')]).toEqual([
          503,
          'not_built',
          null,
        ])
        expect(refused.body.error).toContain(type)
      }
      const after = await tableCounts(service.db)
      for (const table of ['connection_checks', 'connection_discoveries'])
        expect(after[table]).toBe(before[table])
      expect(await statusOf(environmentId)).toBe('defined')
    }
  })

  test('a connection without a type is kept, and cannot be used', async () => {
    const environmentId = await environment()
    const id = `typeless-${environmentId}`
    const answer = await put(id, { id, name: 'typeless', type: '', environmentId })
    expect([answer.status, answer.body.type]).toEqual([200, ''])
    for (const refused of [
      await service.call('POST', '/connection-tests/', { type: '' }),
      await service.call('POST', `/environment-connections/${id}/health/`),
      await service.call('POST', `/environment-connections/${id}/discover/`),
    ])
      expect([refused.status, refused.body.details]).toEqual([
        422,
        [expect.objectContaining({ path: 'type' })],
      ])
  })

  test('a credential is opened when it is used, and the check says what is wrong with it', async () => {
    for (const [reference, reason] of [
      ['vault:ssh-key/none', /does not exist; store it first/],
      ['vault:kubernetes-token/token', /is not an SSH key; refer to one/],
      ['in the drawer', /hidden: of no known form/],
    ] as const) {
      const connection = await saved({ credentialRef: reference })
      expect(connection.credentialRef).toBe(reference)
      const check = await health(connection.id)
      expect([check.status, stages(check.metadata.stages)]).toEqual(['offline', 'login!'])
      expect(check.message).toMatch(reason)
    }
  })

  test('a known_hosts file of this machine is never read: alone it leaves the connection offline, beside a fingerprint it is only named', async () => {
    const knownHostsFile = join(site.folder, 'known_hosts')
    writeFileSync(knownHostsFile, `${site.hosts[0]!.knownHosts()}\n`)
    const alone = await saved({ configuration: { knownHostsFile, hostKeyFingerprints: undefined } })
    expect(alone.configuration.knownHostsFile).toBe(knownHostsFile)
    const check = await health(alone.id)
    expect([check.status, stages(check.metadata.stages)]).toEqual(['offline', 'name route host key!'])
    expect(check.message).toMatch(/configuration\.knownHostsFile is not read; give .* knownHosts/)
    expect(check.message).toContain(site.hosts[0]!.fingerprint())
    const beside = await health((await saved({ configuration: { knownHostsFile } })).id)
    expect([beside.status, beside.message]).toEqual([
      'online',
      expect.stringMatching(/^all stages passed; configuration\.knownHostsFile is not read/),
    ])
  })

  test('a certificate file and insecureSkipTLSVerify are never obeyed: nothing is sent, and the check says what to give', async () => {
    let met = 0
    const endpoint = `https://${await serve((socket) => {
      met += 1
      socket.destroy()
    })}`
    const environmentId = await environment()
    for (const [configuration, reason] of [
      [
        { caFile: '/etc/kubernetes/pki/ca.crt' },
        /configuration\.caFile is not read; give .* certificateAuthority/,
      ],
      [
        { insecureSkipTLSVerify: true },
        /configuration\.insecureSkipTLSVerify is not obeyed; give .* certificateAuthority/,
      ],
    ] as const) {
      const id = `distrust-${environmentId}`
      const document = {
        id,
        name: id,
        type: 'kubernetes',
        environmentId,
        endpoint,
        credentialRef: 'vault:kubernetes-token/token',
        configuration,
      }
      expect((await put(id, document)).body.configuration).toEqual(configuration)
      const check = await health(id)
      expect([check.status, stages(check.metadata.stages)]).toEqual(['offline', 'host key!'])
      expect(check.message).toMatch(reason)
      expect(await service.post('/connection-tests/', document)).toMatchObject({
        healthy: false,
        message: expect.stringMatching(reason),
      })
    }
    expect(met).toBe(0)
  })
})

/** A connection that accepts the first key that its host shows. */
const acceptNew = { configuration: { hostKeyPolicy: 'accept-new', hostKeyFingerprints: undefined } }
const recordedFor = async (connectionId: string): Promise<Json[]> =>
  service.get(`/audit-events/?eventType=connection.host-key-recorded&connectionId=${connectionId}`)

describe('the health of a stored connection', () => {
  test('is recorded with its stages; the environment is connected, degraded, unreachable and connected again, each change an audit record', async () => {
    const first = await saved()
    const { environmentId } = first
    const check = await health(first.id)
    expect(check).toMatchObject({
      connectionId: first.id,
      status: 'online',
      metadata: {
        endpoint: first.endpoint,
        connectionType: 'ssh',
        address: site.hosts[0]!.address,
        hostKey: { fingerprint: site.hosts[0]!.fingerprint() },
        banner: expect.stringContaining('OpenSSH'),
      },
    })
    expect(await statusOf(environmentId)).toBe('connected')
    const bad = `bad-${first.id}`
    await put(bad, { ...first, id: bad, name: 'bad', endpoint: '192.0.2.7' })
    const failed = await service.call('POST', `/environment-connections/${bad}/health/`)
    expect([failed.status, failed.body.status, stages(failed.body.metadata.stages)]).toEqual([
      200,
      'offline',
      'name route!',
    ])
    expect(await statusOf(environmentId)).toBe('degraded')
    await put(first.id, { ...first, endpoint: '192.0.2.7' })
    await health(first.id)
    expect(await statusOf(environmentId)).toBe('unreachable')
    await put(first.id, first)
    await put(bad, { ...first, id: bad, name: 'bad' })
    expect((await health(first.id)).status).toBe('online')
    expect((await health(bad)).status).toBe('online')
    expect(await statusOf(environmentId)).toBe('connected')

    // Before the whole: the monitor may add a check between the two.
    const newest = await service.get(`/environment-connections/${first.id}/history/?limit=1`)
    const history = await service.get(`/environment-connections/${first.id}/history/`)
    expect(history.length).toBeGreaterThanOrEqual(3)
    expect(history.map((one: Json) => one.checkedAt)).toEqual(
      history
        .map((one: Json) => one.checkedAt)
        .toSorted()
        .reverse(),
    )
    expect(newest).toHaveLength(1)
    expect(history.slice(0, 2)).toContainEqual(newest[0])
    const changes = (
      await service.get(`/audit-events/?environmentId=${environmentId}&eventType=environment.status-changed`)
    ).map((event: Json) => event.metadata.after)
    expect(changes).toEqual(expect.arrayContaining(['connecting', 'connected', 'degraded', 'unreachable']))
    const checks = await service.get(`/audit-events/?connectionId=${bad}&eventType=connection.health.checked`)
    // Each check by hand is one event; the monitor's are recorded where they change something.
    expect(
      checks.filter(({ actorType }: Json) => actorType !== 'service').map(({ outcome }: Json) => outcome),
    ).toEqual(['succeeded', 'failed'])
    expect((await service.call('POST', '/environment-connections/none/health/')).status).toBe(404)
    expect((await service.call('GET', '/environment-connections/none/history/')).status).toBe(404)
  })

  test('a key accepted at first contact is recorded; a changed one is refused with both, until somebody says it is right', async () => {
    const host = site.hosts[1]!
    const connection = await saved(
      { configuration: { hostKeyPolicy: 'accept-new', hostKeyFingerprints: undefined } },
      1,
    )
    const before = host.fingerprint()
    expect(await health(connection.id)).toMatchObject({ status: 'online' })
    expect(
      (await service.get(`/audit-events/?eventType=connection.host-key-recorded`)).filter(
        (event: Json) => event.connectionId === connection.id,
      ),
    ).toHaveLength(1)
    await host.changeHostKey()
    host.dropSessions()
    const check = await hostKeyRefused(() => health(connection.id))
    expect(check.message).toContain(before)
    expect(check.message).toContain(host.fingerprint())
    await put(connection.id, {
      ...connection,
      configuration: { hostKeyPolicy: 'accept-new', hostKeyFingerprints: [host.fingerprint()] },
    })
    expect(await health(connection.id)).toMatchObject({ status: 'online' })
  })

  test.each([
    ['saves the connection', (connection: Json) => put(connection.id, connection)],
    [
      'replaces its environment',
      async (connection: Json) => {
        const path = `/environments/${connection.environmentId}/`
        return service.call('PUT', path, { ...(await service.get(path)), connections: [connection] })
      },
    ],
  ])('a recorded key is refused where somebody pins another and %s', async (_how, save) => {
    const connection = await saved(acceptNew)
    expect(await health(connection.id)).toMatchObject({ status: 'online' })
    const strict = { hostKeyPolicy: 'strict', scheduler: 'none' }
    expect((await save({ ...connection, configuration: strict })).status).toBe(200)
    expect(await health(connection.id)).toMatchObject({ status: 'online' })
    const hostKeyFingerprints = [`SHA256:${'C'.repeat(43)}`]
    expect((await save({ ...connection, configuration: { ...strict, hostKeyFingerprints } })).status).toBe(
      200,
    )
    await hostKeyRefused(() => health(connection.id))
  })

  test('two connections of one account record its key each for itself; one goes on when the other is deleted', async () => {
    const host = site.hosts[1]!
    const [one, two] = [await saved(acceptNew, 1), await saved(acceptNew, 1)]
    for (const { id } of [one, two]) {
      expect(await health(id)).toMatchObject({ status: 'online' })
      expect(await recordedFor(id)).toHaveLength(1)
    }
    await service.ok('DELETE', `/environments/${one.environmentId}/`)
    host.dropSessions()
    await until('its login again', 60, async () => (await health(two.id)).status === 'online')
    await host.changeHostKey()
    host.dropSessions()
    await hostKeyRefused(() => health(two.id))
  })

  test('without a host key the offline health shows the fingerprint that was seen and a line that pins it', async () => {
    const connection = await saved({
      configuration: { hostKeyFingerprints: undefined, scheduler: 'none', note: "it's kept" },
    })
    const check = await health(connection.id)
    expect([check.status, stages(check.metadata.stages)]).toEqual(['offline', 'name route host key!'])
    const line = check.message.slice(check.message.indexOf('curl '))
    expect(check.message).toContain(`it shows ${site.hosts[0]!.fingerprint()}`)
    expect(line).toContain(`${service.baseUrl}/environment-connections/`)
    // Nobody has run it: nothing is pinned.
    expect((await health(connection.id)).status).toBe('offline')
    await promisify(execFile)('sh', ['-c', line])
    const { createdAt: _, ...pinned } = await service.get(`/environment-connections/${connection.id}/`)
    const { createdAt: __, ...before } = connection
    expect(pinned).toEqual({
      ...before,
      configuration: { ...before.configuration, hostKeyFingerprints: [site.hosts[0]!.fingerprint()] },
    })
    expect(await health(connection.id)).toMatchObject({ status: 'online' })
    // A key that is not the pinned one is no new key: no line helps to take it.
    const other = await saved({ configuration: { hostKeyFingerprints: [`SHA256:${'C'.repeat(43)}`] } })
    const refused = await health(other.id)
    expect([refused.status, refused.message]).toEqual(['offline', expect.not.stringContaining('curl')])
  })

  test('where the instance trusts on first use, a connection without key and policy takes the first key, and no other', async () => {
    const host = site.hosts[1]!
    const environmentId = await environment()
    const trusting = await openService({
      databaseUrl: () => service.databaseUrl,
      environment: {
        SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
        SERVICE_SSH_TRUST_ON_FIRST_USE: 'true',
        SERVICE_VAULT_KEY_FILE: keyFile(),
      },
    })
    try {
      const add = async (name: string, configuration: Json): Promise<Json> => {
        const id = `${name}-${environmentId}`
        const { configuration: _, ...rest } = login({}, 1)
        await trusting.ok('PUT', `/environment-connections/${id}/`, {
          id,
          name,
          environmentId,
          ...rest,
          configuration,
        })
        return { id, check: () => trusting.post(`/environment-connections/${id}/health/`) }
      }
      const plain = await add('plain', { scheduler: 'none' })
      const strict = await add('strict', { scheduler: 'none', hostKeyPolicy: 'strict' })
      const file = await add('file', { scheduler: 'none', knownHostsFile: '/etc/ssh/ssh_known_hosts' })
      expect(await plain.check()).toMatchObject({
        status: 'online',
        metadata: { hostKey: { fingerprint: host.fingerprint() } },
      })
      expect(await strict.check()).toMatchObject({
        status: 'offline',
        message: expect.stringContaining('curl'),
      })
      expect(await file.check()).toMatchObject({
        status: 'offline',
        message: expect.stringContaining('knownHostsFile is not read'),
      })
      const before = host.fingerprint()
      await host.changeHostKey()
      host.dropSessions()
      const check = await hostKeyRefused(plain.check)
      for (const shown of [before, host.fingerprint()]) expect(check.message).toContain(shown)
      expect(check.message).not.toContain('curl')
    } finally {
      await trusting[Symbol.asyncDispose]()
    }
  })

  test('deleting the environment takes its connections, checks and recorded keys with it', async () => {
    const connection = await saved()
    await health(connection.id)
    expect((await service.call('DELETE', `/environments/${connection.environmentId}/`)).status).toBe(204)
    expect((await service.call('GET', `/environment-connections/${connection.id}/`)).status).toBe(404)
    expect((await service.call('POST', `/environment-connections/${connection.id}/health/`)).status).toBe(404)
  })

  test('of an id that a deleted environment had is checked and discovered like any other', async () => {
    const environmentId = 'registered-twice'
    for (const _ of [1, 2]) {
      await service.post('/environments/', {
        environment: { id: environmentId, name: environmentId },
        version: { id: environmentId, version: 1 },
        connections: [{ id: environmentId, name: 'here', type: 'local' }],
      })
      expect(await health(environmentId)).toMatchObject({ status: 'online' })
      const { snapshots } = await service.post(`/environment-connections/${environmentId}/discover/`)
      expect(snapshots).toHaveLength(1)
      const events = await service.db.prepared<{ event_type: string }>(
        'events of it',
        'select event_type from operation_events where operation_id = $1 order by kind, sequence',
        [environmentId],
      )
      expect(events.map((event) => event.event_type)).toEqual([
        'connection.online',
        'resource.discovery.started',
        'resource.discovery.completed',
      ])
      expect((await service.call('DELETE', `/environments/${environmentId}/`)).status).toBe(204)
    }
  })
})

describe('a login that asks', () => {
  test('a connection without a question is connected; other types have no login', async () => {
    const connection = await saved()
    expect(['disconnected', 'connecting', 'connected']).toContain(
      (await service.get(`/environment-connections/${connection.id}/login/`)).state,
    )
    expect(
      (await service.post(`/environment-connections/${connection.id}/login/`, { answers: [] })).state,
    ).toBe('connected')
    const local = `local-${connection.id}`
    await put(local, { id: local, name: 'local', type: 'local', environmentId: connection.environmentId })
    expect((await service.call('GET', `/environment-connections/${local}/login/`)).status).toBe(422)
    expect((await service.call('POST', '/environment-connections/none/login/', { answers: [] })).status).toBe(
      404,
    )
  })
})

describe('a login that a person made', () => {
  test.each([
    ['another address', (c: Json) => other.call('PUT', `/environment-connections/${c.id}/`, c)],
    [
      'another address in its environment',
      async (c: Json) => {
        const path = `/environments/${c.environmentId}/`
        return other.call('PUT', path, { ...(await other.get(path)), connections: [c] })
      },
    ],
    [
      'the deletion of its environment',
      (c: Json) => other.call('DELETE', `/environments/${c.environmentId}/`),
    ],
  ])('ends with %s, at whatever process that is', async (_what, change) => {
    const server = await startSshServer({ second: codeAsked })
    try {
      await service.post('/ssh-keys/import/', { id: `of-${String(++serial)}`, privateKey: server.privateKey })
      const connection = await saved({
        endpoint: `127.0.0.1:${String(server.port)}`,
        credentialRef: `vault:ssh-key/of-${String(serial)}`,
        configuration: { hostKeyFingerprints: [keyFingerprint(server.hostKey)], scheduler: 'none' },
      })
      const path = `/environment-connections/${connection.id}/login/`
      await service.post(path, { answers: [] })
      expect(await service.post(path, { answers: ['123456'] })).toMatchObject({ state: 'connected' })
      await until('its check', 60, async () =>
        (await service.get(`/environment-connections/${connection.id}/history/`)).some(
          ({ status }: Json) => status === 'online',
        ),
      )
      const made = [...server.connections]
      expect((await change({ ...connection, endpoint: '192.0.2.7' })).status).toBeLessThan(300)
      // A check that began before the change may log in once more, and waits for a person then.
      const isOver = () => (made.some((each) => server.connections.has(each)) ? undefined : true)
      expect(await poll(isOver, { everyMs: 50, deadlineMs: 30_000 })).toBe(true)
    } finally {
      await server.close()
    }
  })
  let other: TestService
  beforeAll(async () => {
    other = await openService({ databaseUrl: () => service.databaseUrl, environment: settings() })
  })
  afterAll(() => other?.[Symbol.asyncDispose]())
})

const discoveriesOf = async (connectionId: string): Promise<[type: string, outcome: string][]> =>
  (await service.get(`/audit-events/?connectionId=${connectionId}`))
    .filter(({ eventType }: Json) => eventType.startsWith('resource.discovery.'))
    .map(({ eventType, outcome }: Json) => [eventType, outcome])

describe('discovery', () => {
  test('of a host finds the machine, a runtime and what it is bound to; found again, nothing changes; what a person set stays', async () => {
    const connection = await saved({
      configuration: { scheduler: 'none', workDirectory: '/tmp/orrery-work' },
    })
    const { environmentId } = connection
    const { snapshots } = await service.post(`/environment-connections/${connection.id}/discover/`)
    expect(snapshots).toMatchObject([
      { available: true, metadata: { connectionId: connection.id, discoverySource: expect.any(String) } },
    ])
    const found = await service.get(`/environments/${environmentId}/`)
    expect(found.environment.status).toBe('ready')
    expect(found.resources).toMatchObject([
      {
        id: snapshots[0].resourceId,
        name: hostname(),
        type: 'hpc_machine',
        executionTarget: 'direct',
        schedulable: true,
        computeSpeedup: 1,
      },
    ])
    expect(found.resources[0].cpuCores).toBeGreaterThan(0)
    expect(found.resources[0].memoryBytes).toBeGreaterThan(0)
    expect(found.runtimes).toMatchObject([
      { driver: 'ssh', configuration: { connectionId: connection.id, workDirectory: '/tmp/orrery-work' } },
    ])
    expect(found.resourceRuntimeBindings).toEqual([
      { resourceId: found.resources[0].id, runtimeId: found.runtimes[0].id, enabled: true },
    ])
    expect(await service.get(`/resources/${encodeURIComponent(found.resources[0].id)}/snapshot/`)).toEqual(
      snapshots[0],
    )

    await service.post(`/environment-connections/${connection.id}/discover/`)
    const { connectionChecks: _, ...same } = await service.get(`/environments/${environmentId}/`)
    const { connectionChecks: __, ...before } = found
    expect(same).toEqual(before)

    const own = {
      ...before,
      resources: [{ ...before.resources[0], cpuCores: 1, pricePerSecond: 2, name: 'mine' }],
    }
    await service.ok('PUT', `/environments/${environmentId}/`, own)
    await service.post(`/environment-connections/${connection.id}/discover/`)
    expect((await service.get(`/environments/${environmentId}/`)).resources).toMatchObject([
      { cpuCores: 1, pricePerSecond: 2, name: 'mine' },
    ])
    const history = await service.get(`/environment-connections/${connection.id}/history/`)
    expect(
      history
        .filter((one: Json) => one.metadata.discovery !== undefined)
        .map((one: Json) => one.metadata.discovery),
    ).toEqual([3, 2, 1])
  })

  test('requests at once are one discovery', async () => {
    const connection = await saved({ configuration: { scheduler: 'none' } })
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => service.post(`/environment-connections/${connection.id}/discover/`)),
    )
    expect(
      new Set(
        answers.map(({ snapshots }) => JSON.stringify(snapshots.map(({ resourceId }: Json) => resourceId))),
      ).size,
    ).toBe(1)
    const { resources, runtimes } = await service.get(`/environments/${connection.environmentId}/`)
    expect([resources.length, runtimes.length]).toEqual([1, 1])
    const events = await discoveriesOf(connection.id)
    expect(events.filter(([type]) => type !== 'resource.discovery.requested')).toEqual([
      ['resource.discovery.completed', 'succeeded'],
      ['resource.discovery.started', 'started'],
    ])
    expect(events).toHaveLength(7)
  })

  test('what cannot be discovered says so: unknown, agent, cloud, a host that is refused', async () => {
    expect((await service.call('POST', '/environment-connections/none/discover/')).status).toBe(404)
    const connection = await saved({ configuration: { hostKeyFingerprints: [`SHA256:${'B'.repeat(43)}`] } })
    const refused = await service.call('POST', `/environment-connections/${connection.id}/discover/`)
    expect([refused.status, refused.body.error]).toEqual([
      422,
      expect.stringContaining('nothing was discovered'),
    ])
    expect(await discoveriesOf(connection.id)).toEqual([
      ['resource.discovery.requested', 'failed'],
      ['resource.discovery.failed', 'failed'],
      ['resource.discovery.started', 'started'],
    ])
    const cloud = `cloud-${connection.id}`
    await put(cloud, {
      id: cloud,
      name: 'cloud',
      type: 'cloud',
      environmentId: connection.environmentId,
      configuration: { provider: 'aws' },
    })
    expect((await service.call('POST', `/environment-connections/${cloud}/discover/`)).status).toBe(422)
    const cluster = `cluster-${connection.id}`
    await put(cluster, {
      ...{ id: cluster, name: 'cluster', type: 'kubernetes', environmentId: connection.environmentId },
      ...{ endpoint: 'https://127.0.0.1:1', credentialRef: 'vault:kubernetes-token/none' },
    })
    expect((await service.call('POST', `/environment-connections/${cluster}/discover/`)).status).toBe(422)
    // The other side was not asked, so nothing is known about it.
    const history: Json[] = await service.get(`/environment-connections/${cluster}/history/`)
    expect(history.filter(({ status }) => status === 'online')).toEqual([])
    expect((await service.get(`/environments/${connection.environmentId}/`)).resources).toEqual([])
  })
})

test('what was found behind a deleted connection is not recorded for the next one of its id', async () => {
  const routes = await openRoutes(inventoryRoutes())
  const id = 'again'
  const accept = async () => {
    const { status } = await routes.call('POST', '/environments/', {
      environment: { id, name: id },
      version: { id: `${id}-v1`, version: 1 },
      connections: [{ id, name: id, type: 'local' }],
    })
    expect(status).toBe(201)
    await requestDiscovery(routes.db, id, hostname())
    return (await readOperation(routes.db, discoveryKind, { id }))!
  }
  const first = await accept()
  const connection = (await readConnection(routes.db, id))!
  const shell = openLocalShell()
  let isReplaced = false
  const localShell: Pick<SiteShell, 'run'> = {
    run: async (...command) => {
      if (!isReplaced) {
        expect((await routes.call('DELETE', `/environments/${id}/`)).status).toBe(204)
        await beginDiscovery(routes.db, await accept())
      }
      isReplaced = true
      return shell.run(...command)
    },
  }
  const parts = { db: routes.db, links: { localShell }, engineSockets: {}, reports: quietReports() } as never
  try {
    await expect(discoverConnection(parts, first, true)).rejects.toThrow('is over already')
    await failDiscovery(parts, first, { problem: 'late', transient: true, reached: true })
    expect(await cancelDiscovery(routes.db, first)).toBe(false)
    const check = { status: 'offline', message: 'late', latencyMs: 1, metadata: {} } as const
    expect(await recordCheck(routes.db, connection, check)).toBeUndefined()
    expect((await readDiscovery(routes.db, id, 1))?.status).toBe('running')
    const { body } = (await routes.call('GET', `/environments/${id}/`)) as { body: Json }
    expect([body.resources, body.runtimes, body.connectionChecks]).toEqual([[], [], []])
    // A workflow of an earlier version knows no key.
    expect(await cancelDiscovery(routes.db, { id, generation: 1 })).toBe(true)
  } finally {
    await shell.close()
    await routes.close()
  }
})

test('a server that says nothing fails with its stage within the deadline', async () => {
  expectFailed(await silent, 'host key')
})
