import { expect } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { lookup } from 'node:dns/promises'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { z } from 'zod'
import { sql } from '../../src/db/sql.ts'
import { startSlurm, type SlurmSite } from '../../sites/slurm.ts'
import { openService, type TestService } from '../support/service.ts'
import { startSshServer, type SshServer } from '../support/ssh-server.ts'
import { runFolder } from '../support/run-folder.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.slurm)

type Json = any

let folder: string
let service: TestService
beforeAll(async () => {
  folder = mkdtempSync(join(runFolder(), 'orrery-connections-'))
  const keyFile = join(folder, 'vault.key')
  writeFileSync(keyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  service = await openService({
    environment: {
      SERVICE_VAULT_KEY_FILE: keyFile,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_MONITOR_INTERVAL_SECONDS: '3600',
      SERVICE_DISCOVERY_WAIT_SECONDS: '120',
    },
  })
}, 120_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

let serial = 0
const saved = async (connection: Json): Promise<Json> => {
  const environmentId = `env-${String(++serial)}`
  await service.post('/environments/', {
    environment: { id: environmentId, name: environmentId },
    version: { id: `${environmentId}-v1`, version: 1 },
  })
  const id = `c-${environmentId}`
  return service.ok('PUT', `/environment-connections/${id}/`, {
    id,
    name: 'site',
    environmentId,
    ...connection,
  })
}
const keyOf = async (id: string, privateKey: string): Promise<string> =>
  (await service.post('/ssh-keys/import/', { id, privateKey })).credentialRef

describe('a login with a second factor', () => {
  let server: SshServer
  let accepted = 0
  beforeAll(async () => {
    server = await startSshServer({
      second: {
        rounds: [
          {
            name: 'Second factor',
            instruction: 'from your phone',
            prompts: [{ prompt: 'Code: ', echo: false }],
            judge: (answers) => answers[0] === '123456' && ++accepted === 1,
          },
        ],
      },
    })
  }, 60_000)
  afterAll(() => server?.close(), 60_000)

  test('waits for a person, is answered once, and everything goes on over the one session', async () => {
    const { id } = await saved({
      type: 'ssh',
      endpoint: `127.0.0.1:${String(server.port)}`,
      username: 'me',
      credentialRef: await keyOf('factor', server.privateKey),
      configuration: { hostKeyPolicy: 'accept-new', scheduler: 'none' },
    })
    const path = `/environment-connections/${id}/login/`
    const check = await service.post(`/environment-connections/${id}/health/`)
    expect(check).toMatchObject({ status: 'offline', metadata: { waitsForLogin: true } })
    const asked = await service.get(path)
    expect(asked).toMatchObject({
      state: 'waiting for login',
      prompts: {
        name: 'Second factor',
        instruction: 'from your phone',
        prompts: [{ prompt: 'Code:', echo: false }],
      },
    })
    expect((await service.post(path, { answers: ['000000'] })).state).toBe('waiting for login')
    let answered: Json
    for (let tries = 0; tries < 20; tries++) {
      answered = await service.post(path, { answers: ['123456'] })
      if (answered.state === 'connected') break
      await new Promise((resolve) => setTimeout(resolve, 500))
    }
    expect(answered.state).toBe('connected')
    expect(await service.post(`/environment-connections/${id}/health/`)).toMatchObject({ status: 'online' })
    const { snapshots } = await service.post(`/environment-connections/${id}/discover/`)
    expect(snapshots).toHaveLength(1)
    expect(server.logins).toBe(1)
    const texts = await service.db.many(
      z.object({ text: z.string() }),
      sql`select row_to_json(a)::text as text from audit_events a union all select row_to_json(k)::text
        from connection_checks k`,
    )
    expect(texts.filter(({ text }) => text.includes('123456'))).toEqual([])
  }, 120_000)
})

describe('a Slurm cluster', () => {
  let site: SlurmSite
  beforeAll(async () => {
    site = await startSlurm()
  }, 300_000)
  afterAll(() => site?.stop(), 120_000)

  test('shows its partitions, nodes and login node; a partition that does not exist is named with those that do', async () => {
    const connection = {
      type: 'ssh',
      endpoint: site.login.address,
      username: site.user,
      credentialRef: await keyOf('slurm', site.key.privateKey),
      configuration: { hostKeyFingerprints: [site.login.fingerprint()], scheduler: 'slurm' },
    }
    const wrong = await service.post('/connection-tests/', {
      ...connection,
      configuration: { ...connection.configuration, partition: 'nowhere' },
    })
    expect(wrong).toMatchObject({ healthy: false, message: expect.stringContaining('main') })
    expect(wrong.stages.at(-1)).toMatchObject({ stage: 'scheduler', ok: false })

    const { id, environmentId } = await saved(connection)
    expect(await service.post(`/environment-connections/${id}/health/`)).toMatchObject({ status: 'online' })
    const { snapshots } = await service.post(`/environment-connections/${id}/discover/`)
    const environment = await service.get(`/environments/${environmentId}/`)
    expect(environment.environment.status).toBe('ready')
    const byType = (type: string): string[] =>
      environment.resources
        .filter((one: Json) => one.type === type)
        .map((one: Json) => one.name)
        .toSorted()
    expect(byType('cluster')).toHaveLength(1)
    expect(byType('hpc_partition')).toEqual([...site.partitions].toSorted())
    expect(byType('hpc_machine')).toEqual([...site.nodes.map(({ name }) => name), site.login.name].toSorted())
    const main = environment.resources.find((one: Json) => one.name === 'main')
    expect(main).toMatchObject({
      executionTarget: 'batch',
      schedulable: true,
      metadata: { partition: 'main', default: true },
    })
    expect(main.cpuCores).toBe(8)
    expect(
      environment.resources.find((one: Json) => one.name === site.nodes.at(-1)!.name).metadata.gpus,
    ).toBe(2)
    expect(environment.runtimes.map((one: Json) => one.driver).toSorted()).toEqual(['slurm', 'ssh'])
    const slurm = environment.runtimes.find((one: Json) => one.driver === 'slurm')
    expect(slurm).toMatchObject({
      configuration: { connectionId: id },
      capabilities: { batch: true, gpu: true },
    })
    expect(
      environment.resourceRuntimeBindings.filter((one: Json) => one.runtimeId === slurm.id),
    ).toHaveLength(4)
    expect(environment.resourceRelations.every((one: Json) => one.type === 'contains')).toBe(true)
    expect(snapshots).toHaveLength(environment.resources.length)
    await service.post(`/environment-connections/${id}/discover/`)
    const again = await service.get(`/environments/${environmentId}/`)
    expect([again.resources, again.runtimes, again.resourceRelations]).toEqual([
      environment.resources,
      environment.runtimes,
      environment.resourceRelations,
    ])
  }, 300_000)
})

describe('a Kubernetes API', () => {
  let server: Server
  let asked: { url: string; authorization: string | undefined }[] = []
  let answer: (url: string) => [status: number, body: object, headers?: Record<string, string>]
  let authority: string
  let endpoint: string
  const usual = (url: string): [number, object] => {
    if (url === '/version') return [200, { gitVersion: 'v1.31.0' }]
    if (url.includes('selfsubjectaccessreviews')) return [201, { status: { allowed: true } }]
    if (url.startsWith('/api/v1/nodes'))
      return [
        200,
        {
          items: [
            {
              metadata: { name: 'worker', labels: {} },
              spec: {},
              status: {
                allocatable: { cpu: '4', memory: '8Gi' },
                conditions: [{ type: 'Ready', status: 'True' }],
                nodeInfo: { architecture: 'amd64', kubeletVersion: 'v1' },
              },
            },
          ],
        },
      ]
    if (url.startsWith('/api/v1/namespaces?')) return [200, { items: [{ metadata: { name: 'lab' } }] }]
    if (url.includes('resourcequotas')) return [403, {}]
    return [200, { items: [] }]
  }
  beforeAll(async () => {
    const openssl = (...words: string[]): void =>
      void execFileSync('openssl', words, { cwd: folder, stdio: 'ignore' })
    openssl(
      'req',
      '-x509',
      '-newkey',
      'rsa:2048',
      '-nodes',
      '-keyout',
      'tls.key',
      '-out',
      'tls.crt',
      '-days',
      '2',
      '-subj',
      '/CN=localhost',
      '-addext',
      'subjectAltName=DNS:localhost,IP:127.0.0.1',
    )
    authority = readFileSync(join(folder, 'tls.crt'), 'utf8')
    server = createServer(
      { key: readFileSync(join(folder, 'tls.key')), cert: authority },
      (request, response) => {
        asked.push({ url: request.url ?? '', authorization: request.headers.authorization })
        const [status, body, headers] = answer(request.url ?? '')
        response
          .writeHead(status, { 'content-type': 'application/json', ...headers })
          .end(JSON.stringify(body))
      },
    )
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { address } = await lookup('localhost', { family: 4 })
    endpoint = `https://${address}:${String((server.address() as AddressInfo).port)}`
    answer = usual
    await service.post('/kubernetes-tokens/', { id: 'k8s', token: 'token-of-the-cluster' })
  }, 60_000)
  afterAll(() => {
    server?.closeAllConnections()
    server?.close()
  })
  const connection = (more: Json = {}): Json => ({
    type: 'kubernetes',
    endpoint,
    credentialRef: 'vault:kubernetes-token/k8s',
    ...more,
    configuration: { certificateAuthority: authority, namespace: 'lab', ...more.configuration },
  })

  test('is checked to the rights of its token, and its nodes and namespace are discovered', async () => {
    const answered = await service.post('/connection-tests/', connection())
    expect([answered.healthy, answered.stages.map(({ stage }: Json) => stage)]).toEqual([
      true,
      ['name', 'route', 'host key', 'login', 'rights'],
    ])
    const { id, environmentId } = await saved(connection())
    await service.post(`/environment-connections/${id}/discover/`)
    const { resources, runtimes } = await service.get(`/environments/${environmentId}/`)
    expect(resources.map((one: Json) => [one.type, one.name])).toEqual([
      ['cluster', '127.0.0.1'],
      ['kubernetes_namespace', 'lab'],
      ['kubernetes_machine', 'worker'],
    ])
    expect(runtimes).toMatchObject([
      { driver: 'kubernetes', configuration: { connectionId: id, namespace: 'lab' } },
    ])
  }, 60_000)

  test.each([
    ['a token that is refused', () => [401, {}] as const, 'login'],
    ['something else than Kubernetes', () => [200, { hello: 'world' }] as const, 'login'],
    [
      'rights that are missing',
      (url: string) => (url === '/version' ? usual(url) : ([201, { status: { allowed: false } }] as const)),
      'rights',
    ],
  ])('%s fails at its stage', async (_, how, stage) => {
    answer = how as typeof answer
    try {
      const answered = await service.post('/connection-tests/', connection())
      expect(answered.stages.at(-1)).toMatchObject({ stage, ok: false })
      expect(answered.message).not.toContain('token-of-the-cluster')
    } finally {
      answer = usual
    }
  })

  test('a redirect is not followed, and the token goes nowhere else', async () => {
    asked = []
    answer = () => [302, {}, { location: `${endpoint}/elsewhere` }]
    try {
      const answered = await service.post('/connection-tests/', connection())
      expect(answered).toMatchObject({ healthy: false, message: expect.stringContaining('redirect') })
      expect(asked.map(({ url }) => url)).toEqual(['/version'])
    } finally {
      answer = usual
    }
  })

  test('a certificate of somebody else is refused before the token is sent', async () => {
    asked = []
    const { certificateAuthority: _, ...rest } = connection().configuration
    const answered = await service.post('/connection-tests/', { ...connection(), configuration: rest })
    expect(answered.stages.at(-1)).toMatchObject({ stage: 'host key', ok: false })
    expect(asked).toEqual([])
  })

  test('plain http, a path and a text that is no namespace are refused; what is not obeyed is no reason', async () => {
    const refused = await service.call(
      'POST',
      '/connection-tests/',
      connection({
        endpoint: 'http://127.0.0.1/api',
        configuration: { insecureSkipTLSVerify: true, caFile: '/etc/passwd', namespace: 'A b' },
      }),
    )
    expect([refused.status, refused.body.details.map(({ path }: Json) => path).toSorted()]).toEqual([
      422,
      ['configuration.namespace', 'endpoint'],
    ])
  })
})
