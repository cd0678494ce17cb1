import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { inContainers, makeVaultKeyFile } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, type WorldTask } from '../support/worlds.ts'

/** What admission says of executables: no engine and no site is behind these tests. */

const folder = mkdtempSync(join(runFolder(), 'executables-'))
const seeds = join(folder, 'seeds')
const sif = Buffer.concat([Buffer.alloc(32), Buffer.from('SIF_MAGIC'), Buffer.alloc(100)])
const digests = ['1', '2'].map((digit) => `sha256:${digit.repeat(64)}`)
/** What the tag of the registry names. */
let tagged = digests[0]
let registry: Server
let engine: Server
let service: TestService
const listening = (server: Server, ...at: unknown[]): Promise<void> =>
  new Promise((resolve) => server.listen(...(at as [string]), resolve))

beforeAll(async () => {
  mkdirSync(seeds)
  writeFileSync(join(seeds, 'inside.sif'), sif)
  writeFileSync(join(folder, 'outside.sif'), sif)
  registry = createServer(({ headers, url = '' }, response) => {
    const isIn = headers.authorization === `Basic ${Buffer.from('ada:secret').toString('base64')}`
    if (!isIn) response.writeHead(401, { 'www-authenticate': 'Basic realm="closed"' }).end()
    else if (!url.endsWith('/manifests/1')) response.writeHead(404).end()
    else response.writeHead(200, { 'docker-content-digest': tagged }).end()
  })
  // An engine that says it is there, and has nothing.
  engine = createServer(({ url = '' }, response) =>
    url.endsWith('/_ping') ? response.end('OK') : response.writeHead(404).end('{"message":"none"}'),
  )
  await Promise.all([listening(registry, 0, '127.0.0.1'), listening(engine, join(folder, 'engine.sock'))])
  service = await openService({
    environment: {
      ...{ SERVICE_SEED_ROOT: seeds, SERVICE_CONTAINER_ENGINE: join(folder, 'engine.sock') },
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
})
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  registry?.close()
  engine?.close()
})

const from = (source: Record<string, unknown>, strategy = 'auto', more: object = {}) => ({
  ...{ source, delivery: { strategy } },
  ...more,
})

/** Asks for a run whose tasks have these executables. */
const accept = async (name: string, executables: Record<string, ReturnType<typeof from>>) => {
  const tasks = Object.entries(executables).map(([task, executable]): WorldTask => ({
    ...{ name: task, executable, memory: '64Mi', lane: [0, 0] },
  }))
  const containers = { containerRuntime: 'docker', containerHost: `unix://${folder}/engine.sock` }
  const world = await makeWorld(service, { name, tasks, cores: [2], places: [inContainers(containers)] })
  return service.call('POST', '/execution-runs/', {
    ...{ id: `${name}-run`, schedulePlanId: world.planId, mode: 'real' },
  })
}
const address = (): string => `127.0.0.1:${String((registry.address() as AddressInfo).port)}`

test('an image of a denied network, one that the engine lacks, and a file beside the roots are 422', async () => {
  const digest = `@sha256:${'0'.repeat(64)}`
  const wrong: Record<string, [ReturnType<typeof from>, RegExp]> = {
    metadata: [from({ type: 'oci', reference: '169.254.169.254/a:1' }), /must not be pulled: 169/],
    pinned: [from({ type: 'oci', reference: `169.254.169.254/a${digest}` }), /must not be pulled: 169/],
    name: [from({ type: 'oci', reference: 'metadata.google.internal/a:1' }), /metadata service/],
    number: [from({ type: 'oci', reference: '127.1/a:1' }), /neither a name nor an address/],
    local: [from({ type: 'local-container-image', reference: '169.254.169.254/a:1' }), /must not be pulled/],
    lacking: [from({ type: 'oci', reference: 'tools/a:1' }, 'use-in-place'), /does not have "tools\/a:1"/],
    outside: [
      from({ type: 'remote-file', path: join(folder, 'outside.sif'), resourceRef: 'refused-host-1' }),
      /no file below SERVICE_SEED_ROOT/,
    ],
    root: [
      from({ type: 'remote-file', path: '/etc/passwd', resourceRef: 'refused-host-1' }),
      /no file below SERVICE_SEED_ROOT/,
    ],
    // It is read: what follows is said of its format.
    inside: [
      from(
        { type: 'remote-file', path: join(seeds, 'inside.sif'), resourceRef: 'refused-host-1' },
        'managed',
      ),
      /the file is sif, and docker/,
    ],
  }
  const answer = await accept(
    'refused',
    Object.fromEntries(Object.entries(wrong).map(([name, [executable]]) => [name, executable])),
  )
  const told = new Map(answer.body.details?.map(({ path, message }: any) => [path, message]))
  expect([answer.status, told.size]).toEqual([422, Object.keys(wrong).length])
  for (const [name, [, words]] of Object.entries(wrong))
    expect([name, told.get(`activities.refused-${name}.command.executable`)]).toEqual([
      name,
      expect.stringMatching(words),
    ])
})

test('a tag of a closed registry is resolved by its login: each digest has a build of its own', async () => {
  for (const [id, password] of [
    ['closed', 'secret'],
    ['wrong', 'none'],
  ])
    await service.post('/registry-credentials/', {
      ...{ id, registry: address(), username: 'ada', password },
    })
  const closed = (id: string) =>
    from({ type: 'oci', reference: `${address()}/closed/a:1` }, 'managed', {
      credentialRef: `vault:registry-credential/${id}`,
    })
  for (const [at, digest] of digests.entries()) {
    tagged = digest
    const name = `closed-${String(at)}`
    const answer = await accept(name, { one: closed('closed') })
    expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
    await service.call('POST', `/execution-runs/${name}-run/cancel/`)
  }
  const { usedBy } = await service.get('/registry-credentials/closed/')
  const images = await Promise.all(
    usedBy.map(async ({ buildId }: any) => (await service.get(`/artifact-builds/${buildId}/`)).image),
  )
  expect(images.toSorted()).toEqual(digests.map((digest) => `${address()}/closed/a:1@${digest}`))

  const refused = await accept('unresolved', { one: closed('wrong') })
  expect([refused.status, refused.text]).toEqual([
    422,
    expect.stringMatching(/could not be resolved to a digest \(.*401.*name@sha256/),
  ])
})
