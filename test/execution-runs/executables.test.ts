import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { Connection } from '@temporalio/client'
import { mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import type { Http } from '../../src/clients/http.ts'
import { resolveImage } from '../../src/clients/registry.ts'
import { sql, type Db } from '../../src/db/sql.ts'
import { registerStored } from '../../src/domains/artifacts/contexts.ts'
import { deleteContext, removeUnowned } from '../../src/domains/artifacts/versions.ts'
import { publishOutput, readWork } from '../../src/domains/artifacts/runs.ts'
import { findExecutables, type FindingParts } from '../../src/domains/execution-runs/executable-findings.ts'
import { removeUnnamed } from '../../src/domains/execution-runs/unnamed-bytes.ts'
import { openArtifactStore, type ArtifactStore, type BlobKind } from '../../src/drivers/build/store.ts'
import type { SiteFacts } from '../../src/executor/sites.ts'
import { contextOf, describedBuild, send, sha256, tarOf } from '../artifacts/world.ts'
import { until } from '../failures/programs.ts'
import { waitsAtHosts } from '../support/histories.ts'
import { connectionTo, inContainers, makeVaultKeyFile, onHost } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
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
/** Requests that the engine never answers. */
let silent: RegExp | undefined
/** What the engine was asked to do. */
const posted: { url: string; headers: Record<string, unknown> }[] = []
let service: TestService
let store: ArtifactStore
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
  // An engine that says it is there, and has one image, which no registry has.
  const own = JSON.stringify({ Id: digests[1], Architecture: 'amd64', Os: 'linux', Size: 1 })
  engine = createServer(({ method = '', url = '', headers }, response) => {
    if (silent?.test(url) === true) return
    if (method === 'POST') posted.push({ url, headers })
    const isPulled = posted.some((each) => each.url.includes(encodeURIComponent('/closed/base')))
    if (url.includes('/images/create')) response.end('{"status":"pulled"}\n')
    else if (url.endsWith('/closed/base:2/json') && isPulled)
      response.setHeader('content-type', 'application/json').end(own.replace('"Size":1', '"Size":2'))
    else if (url.endsWith('/_ping')) response.end('OK')
    else if (url.endsWith('/own/a:1/json')) response.setHeader('content-type', 'application/json').end(own)
    else response.writeHead(404).end('{"message":"none"}')
  })
  await Promise.all([listening(registry, 0, '127.0.0.1'), listening(engine, join(folder, 'engine.sock'))])
  service = await openService({
    environment: {
      ...{ SERVICE_SEED_ROOT: seeds, SERVICE_CONTAINER_ENGINE: join(folder, 'engine.sock') },
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
  store = openArtifactStore(join(service.dataDir, 'artifacts'))
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
    port: [from({ type: 'oci', reference: `store.example:99999/a${digest}` }), /:99999" is no host/],
    word: [from({ type: 'oci', reference: `store.example:port/a${digest}` }), /:port" is no host/],
    tag: [from({ type: 'oci', reference: 'store.example:99999/a:1' }), /:99999" is no host/],
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
    place: [
      from({ type: 'remote-file', path: join(seeds, 'inside.sif'), resourceRef: 'refused-host-1' }),
      /the file is sif, and docker/,
    ],
    older: [from({ type: 'oci', reference: join(seeds, 'inside.sif') }), /is a file, which docker/],
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

test('a file at a host that does not answer now is 503, not a fault of the request', async () => {
  await service.post('/ssh-keys/', { id: 'silent-host' })
  // A port that was just free: the host refuses connections there.
  const probe = createServer()
  await listening(probe, 0, '127.0.0.1')
  const { port } = probe.address() as AddressInfo
  probe.close()
  const host = { address: '127.0.0.1', port, user: 'ada', fingerprint: () => `SHA256:${'A'.repeat(43)}` }
  const world = await makeWorld(service, {
    name: 'silent-host',
    cores: [1],
    places: [
      { ...onHost('silent-host-c1', { containerRuntime: 'apptainer' }), capabilities: { container: true } },
    ],
    connections: [connectionTo('silent-host-c1', host, 'silent-host')],
    tasks: [
      {
        name: 'one',
        executable: from({ type: 'remote-file', path: '/data/a.sif', resourceRef: 'silent-host-host-1' }),
        lane: [0, 0],
      },
    ],
  })
  const answer = await service.call('POST', '/execution-runs/', {
    ...{ id: 'silent-host-run', schedulePlanId: world.planId, mode: 'real' },
  })
  expect([answer.status, answer.body]).toMatchObject([
    503,
    { error: expect.stringContaining('could not be asked for "/data/a.sif"') },
  ])
  expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(0)
  expect((await service.call('GET', '/execution-runs/silent-host-run/')).status).toBe(404)
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

test('what must be in place at another site is pinned so: nothing is pulled, made or converted for it', async () => {
  const digest = digests[0] ?? ''
  const away = (name: string, containerRuntime: string, executable: ReturnType<typeof from>) =>
    makeWorld(service, {
      ...{ name, cores: [2], tasks: [{ name: 'one', executable, memory: '64Mi', lane: [0, 0] }] },
      places: [{ ...onHost(`${name}-away`, { containerRuntime }), capabilities: { container: true } }],
      connections: [
        {
          ...{ id: `${name}-away`, name, type: 'ssh', endpoint: '127.0.0.1:1', username: 'ada' },
          ...{ credentialRef: 'vault:ssh-key/absent', configuration: { trustOnFirstUse: true } },
        },
      ],
    })
  const ask = async (...[name, ...rest]: Parameters<typeof away>) => {
    const { planId } = await away(name, ...rest)
    const id = `${name}-run`
    const answer = await service.call('POST', '/execution-runs/', {
      id,
      schedulePlanId: planId,
      mode: 'real',
    })
    if (answer.status !== 202) return answer.body.details[0].message
    await service.call('POST', `/execution-runs/${id}/cancel/`)
    const [row] = await service.db.prepared<{ pin: object }>(
      'pins',
      `select executables -> 'pins' -> 0 as pin from run_snapshots where execution_run_id = $1`,
      [id],
    )
    return row?.pin
  }
  const image = { type: 'oci', reference: `tools/a@${digest}` }
  const whole = { strategy: 'use-in-place', inPlace: true, digest, image: image.reference }
  expect(await ask('away', 'docker', from(image, 'use-in-place'))).toMatchObject(whole)
  // What the shell of the container runs there: over the environment of the image.
  const { text } = await service.call('GET', '/execution-runs/away-run/activities/away-one/script/')
  expect(text).toMatch(/^cd .* \|\| exit 126\nunset OLDPWD\nexec env "TMPDIR=\$tmp" .* 'sh' '-c' 'true'\n$/)
  const free = await ask('free', 'docker', from(image, 'prefer-in-place'))
  expect(free).toMatchObject({ strategy: 'destination-pull', image: image.reference })
  expect(free).not.toHaveProperty('inPlace')
  expect(await ask('made', 'apptainer', from(image, 'use-in-place'))).toMatch(
    /apptainer at .* would have to make a SIF file of "tools\/a@.*give the SIF file there as remote-file/,
  )
  const file = { type: 'oci', reference: '/srv/a.sif' }
  expect(
    await ask('file', 'apptainer', from(file, 'use-in-place', { expectedDigest: digest })),
  ).toMatchObject({ digest, image: `/srv/a.sif@${digest}` })
  const named = { ...file, reference: `/srv/a.sif@${digest}` }
  expect(
    await ask('other', 'apptainer', from(named, 'use-in-place', { expectedDigest: digests[1] ?? '' })),
  ).toMatch(/expectedDigest is sha256:2/)
})

test('an archive of an image at its site is loaded by the engine there', async () => {
  const configuration = '{"architecture":"amd64"}'
  const archive = await tarOf([
    { name: 'config.json', content: configuration },
    { name: 'manifest.json', content: '[{"Config":"config.json","Layers":[]}]' },
  ])
  writeFileSync(join(seeds, 'image.tar'), archive)
  const file = { type: 'remote-file', path: join(seeds, 'image.tar'), resourceRef: 'loaded-host-1' }
  expect((await accept('loaded', { one: from(file) })).status).toBe(202)
  const [row] = await service.db.prepared<{ image: string }>(
    'pinned image',
    `select executables #>> '{pins,0,image}' as image from run_snapshots where execution_run_id = $1`,
    ['loaded-run'],
  )
  const image = `archive:${join(seeds, 'image.tar')}@${sha256(configuration)}`
  expect(row?.image).toBe(image)
  await service.call('POST', '/execution-runs/loaded-run/cancel/')
  const sifs = await accept('unloaded', {
    one: from({ ...file, resourceRef: 'unloaded-host-1' }, 'auto', { format: 'sif' }),
  })
  expect([sifs.status, sifs.text]).toEqual([422, expect.stringMatching(/format is sif, and the file is oci/)])
})

test('an image that only the engine has that builds is brought from there', async () => {
  const image = `${address()}/own/a:1`
  const answer = await accept('own', { one: from({ type: 'oci', reference: image }, 'gateway-transfer') })
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
  await service.call('POST', '/execution-runs/own-run/cancel/')
  const builds = await service.db.prepared<{ image: string }>(
    'own_builds',
    'select image from artifact_builds where image like $1',
    [`${image}%`],
  )
  expect(builds).toEqual([{ image: `${image}@${String(digests[1])}` }])
})

test('bases of a recipe come by the login of their registry before the build, which gets none', async () => {
  const recipe =
    'ARG NAME=base\nARG TAG=1\nFROM ${REGISTRY:-none}/closed/${NAME}:${TAG} AS First\nFROM debian:13\n' +
    'COPY --from=first / /\nFROM first\n'
  const credentialRef = 'vault:registry-credential/closed'
  const buildArguments = JSON.stringify({ REGISTRY: address(), TAG: '2' })
  const files = { Dockerfile: `ARG REGISTRY\n${recipe}` }
  await describedBuild(service, 'private', files, { credentialRef, buildArguments })
  const { id } = await service.post('/artifact-builds/private/runs/', {})
  await until('its end', 120, async () => (await service.get(`/build-runs/${id}/`)).status === 'failed')
  const [pulled, ...again] = posted.filter(({ url }) => url.includes('base'))
  const others = posted.filter(({ url }) => !url.includes('/images/create'))
  const { searchParams } = new URL(pulled?.url ?? '', 'http://engine')
  const login = JSON.parse(Buffer.from(String(pulled?.headers['x-registry-auth']), 'base64').toString())
  expect([searchParams.get('fromImage'), searchParams.get('tag'), login]).toEqual([
    ...[`${address()}/closed/base`, '2'],
    { username: 'ada', password: 'secret', serveraddress: address() },
  ])
  expect([again, posted.filter(({ url }) => url.includes('debian'))]).toEqual([[], []])
  expect(others.length).toBeGreaterThan(0)
  for (const { headers } of others) expect(JSON.stringify(headers)).not.toMatch(/x-registry|secret/)

  const refused = await service.call('POST', '/artifact-builds/', {
    ...(await service.get('/artifact-builds/private/')),
    ...{ id: 'other', cacheKey: 'other', buildArguments: JSON.stringify({ REGISTRY: 'lab.example' }) },
    createdAt: undefined,
  })
  expect([refused.status, refused.body.details]).toEqual([
    422,
    [
      {
        path: 'credentialRef',
        message:
          `is a login of ${address()}, and images are of lab.example, docker.io; ` +
          'a login is used for its own registry alone',
      },
    ],
  ])
})

test.each([
  // The removal of the name afterwards is answered.
  ['looks for the image', /orrery-build.*\/json/],
  ['opens a session of BuildKit', /\/session/],
])(
  'a build ends by its cancel where the engine never answers who %s; equal starts are one',
  async (what, never) => {
    silent = never
    const id = `silent-${String(what.length)}`
    await describedBuild(service, id, { Dockerfile: `FROM debian:13\nLABEL of=${id}\n` })
    const started = await Promise.all(
      Array.from({ length: 64 }, () => service.call('POST', `/artifact-builds/${id}/runs/`, {})),
    )
    const [runId, ...others] = new Set(started.map(({ body }) => body.id as string))
    expect([others, new Set(started.map(({ status }) => status))]).toEqual([[], new Set([202])])
    const stateOf = async () => (await service.get(`/build-runs/${String(runId)}/`)).status
    await until('its build', 120, async () => (await stateOf()) === 'building')
    await service.call('POST', `/build-runs/${String(runId)}/cancel/`)
    await until('its end', 120, async () => (await stateOf()) === 'cancelled')
    silent = undefined
  },
)

test.each([
  ['registry.example.com', 'https://example.com/jwt/auth', true],
  ['registry.example.com:5050', 'https://example.com/jwt/auth', true],
  ['registry.example.com', 'https://auth.registry.example.com/token', true],
  ['registry.example.com', 'https://com/token', false],
  ['registry.example.com', 'https://ample.com/token', false],
  ['registry.example.com', 'https://auth.example.com/token', false],
  ['registry.example.com', 'https://elsewhere.org/token', false],
])('the login of %s goes to %s: %s', async (host, realm, goes) => {
  const asked: unknown[] = []
  type Answer = Awaited<ReturnType<Http['request']>>
  const request: Http['request'] = (url, options) => {
    const { authorization } = options?.headers ?? {}
    const isRealm = String(url).startsWith(realm)
    if (isRealm) asked.push(authorization)
    const status = isRealm || authorization === 'Bearer given' ? 200 : 401
    const headers = { 'www-authenticate': `Bearer realm="${realm}"`, 'docker-content-digest': digests[0] }
    const bytes = () => Promise.resolve(Buffer.from('{"token":"given"}'))
    return Promise.resolve({
      ...{ status, headers, bytes },
      body: Readable.from([]),
    } as unknown as Answer)
  }
  const login = { username: 'ada', password: 'secret' }
  expect(await resolveImage({ request }, `${host}/group/a:1`, login)).toEqual({ digest: digests[0] })
  expect(asked).toEqual([goes ? `Basic ${Buffer.from('ada:secret').toString('base64')}` : undefined])
})

/** Puts bytes into the store, as old as two days. @returns their digest */
const keptLongAgo = async (text: string, kind: BlobKind = 'images'): Promise<string> => {
  await using aside = await store.aside()
  await aside.write(Buffer.from(text))
  const digest = await aside.keep(kind)
  age(kind, digest)
  return digest
}
const age = (kind: BlobKind, digest: string): void => {
  const then = Date.now() / 1_000 - 2 * 86_400
  utimesSync(store.pathOf(kind, digest), then, then)
}
const hasContext = async (digest: string): Promise<boolean> =>
  (await store.sizeOf('contexts', digest)) !== undefined
const isKept = async (digest: string): Promise<boolean> =>
  (await store.sizeOf('images', digest)) !== undefined
/** Records a run of the build `recorded`. */
const addRun = (id: string, status: string, digest: string | null, hostId: string) =>
  service.db
    .run(sql`insert into build_runs (id, artifact_build_id, status, host_id, output_digest, output_bytes)
    values (${id}, 'recorded', ${status}, ${hostId}, ${digest}, 1)`)

/** The pins of a run that was just accepted. It is cancelled. */
const pinsOf = async (name: string): Promise<Record<string, unknown>[]> => {
  await service.call('POST', `/execution-runs/${name}-run/cancel/`)
  const [row] = await service.db.prepared<{ pins: Record<string, unknown>[] }>(
    'all pins',
    `select executables -> 'pins' as pins from run_snapshots where execution_run_id = $1`,
    [`${name}-run`],
  )
  return row?.pins ?? []
}

test('an artifact of the catalog is its variant for the site, else the build that makes one, which is started', async () => {
  const ofCatalog = (id: string, version?: string) =>
    from({ type: 'catalog', artifactRef: version === undefined ? id : { id, version } })
  const Dockerfile = 'FROM scratch\nCOPY . /\n'
  for (const id of ['stocked', 'unbuilt']) await describedBuild(service, id, { Dockerfile })
  await describedBuild(service, 'foreign', { Dockerfile }, { targetArchitecture: 'arm64' })
  const digest = await keptLongAgo('stocked')
  await service.db.run(
    sql`insert into build_runs (id, artifact_build_id, status, host_id, image_id)
        select 'of-stocked', 'stocked', 'running', host_id, ${digests[0]} from build_contexts limit 1`,
  )
  const work = await readWork(service.db, 'of-stocked')
  if (work === undefined) throw new Error('there is no work')
  await publishOutput({ db: service.db, artifactStore: store }, work, { digest, sizeBytes: 7 })
  await service.db.run(sql`update build_runs set status = 'completed' where id = 'of-stocked'`)

  expect((await accept('stock', { one: ofCatalog('stocked', '1'), two: ofCatalog('unbuilt') })).status).toBe(
    202,
  )
  const started = await service.get('/artifact-builds/unbuilt/runs/')
  expect(await pinsOf('stock')).toMatchObject([
    { source: 'catalog', format: 'oci', digest, imageId: digests[0], variantId: expect.any(String) },
    { source: 'catalog', format: 'oci', buildId: 'unbuilt' },
  ])
  expect(started).toHaveLength(1)
  // What a run has pinned stays with it.
  for (const path of [
    '/artifact-builds/unbuilt/',
    '/artifact-versions/artifact-version:stocked:1:system:/',
  ]) {
    const kept = await service.call('DELETE', path)
    expect([kept.status, kept.text]).toEqual([422, expect.stringMatching(/execution run.*stock-run/)])
  }
  const refused = await accept('strange', {
    foreign: ofCatalog('foreign'),
    build: from({ type: 'build', artifactBuildRef: 'foreign' }),
    version: ofCatalog('stocked', '2'),
    digest: from({ type: 'catalog', artifactRef: 'stocked' }, 'auto', { expectedDigest: digests[1] }),
  })
  const told = Object.fromEntries(refused.body.details?.map(({ path, message }: any) => [path, message]))
  const at = (task: string): string => `activities.strange-${task}.command.executable`
  expect(told).toEqual({
    [at('foreign')]: expect.stringMatching(/"foreign" has no oci variant for amd64, and no build/),
    [at('build')]: expect.stringMatching(/"foreign" is for arm64, and resource strange-host-1 is amd64/),
    [at('version')]: expect.stringMatching(/"stocked:2", which does not exist/),
    [at('digest')]: expect.stringMatching(/sha256:2/),
  })
})

test('the credential of an address goes to its host alone, and to no host that it redirects to', async () => {
  const asked: (string | undefined)[] = []
  const answering = (location?: () => string): Server =>
    createServer(({ headers }, response) => {
      asked.push(headers.authorization)
      if (location === undefined) response.end(sif)
      else response.writeHead(302, { location: location() }).end()
    })
  const urlOf = (server: Server) => `http://127.0.0.1:${String((server.address() as AddressInfo).port)}/a.sif`
  const behind = answering()
  const first = answering(() => urlOf(behind))
  await Promise.all([listening(behind, 0, '127.0.0.1'), listening(first, 0, '127.0.0.1')])
  await service.post('/kubernetes-tokens/', { id: 'files', token: 'of-the-files-alone' })
  const answer = await accept('moved', {
    one: from({ type: 'http', uri: urlOf(first) }, 'managed', {
      credentialRef: 'vault:kubernetes-token/files',
    }),
  })
  first.close()
  behind.close()
  // It is read: what is said is of its format.
  expect([answer.status, answer.text]).toEqual([422, expect.stringMatching(/the file is sif, and docker/)])
  expect(asked).toEqual(['Bearer of-the-files-alone', undefined])
})

test('an executable that the store has no room for is 503 with the remedy', async () => {
  const full = Object.assign(new Error('write'), { code: 'ENOSPC' })
  const aside = { write: () => Promise.reject(full), [Symbol.asyncDispose]: () => Promise.resolve() }
  const parts = {
    http: { request: () => Promise.resolve({ status: 200, body: Readable.from([sif]) }) },
    artifactStore: { aside: () => Promise.resolve(aside) },
  } as unknown as FindingParts
  const question = { kind: 'address', uri: 'https://files.example.org/a.sif' } as const
  await expect(findExecutables(parts, [question], {} as SiteFacts, [])).rejects.toMatchObject({
    code: 'unavailable',
    message: expect.stringMatching(/no room left; make room/),
  })
})

test('files of the service, images of the engine and strategies that fit are accepted', async () => {
  const configuration = '{"architecture":"amd64","of":"seeds"}'
  const path = join(seeds, 'accepted.tar')
  writeFileSync(
    path,
    await tarOf([
      { name: 'config.json', content: configuration },
      { name: 'manifest.json', content: '[{"Config":"config.json","Layers":[]}]' },
    ]),
  )
  const image = { type: 'oci', reference: `${address()}/own/a:1` }
  const given = {
    file: from({ type: 'local-file', path }),
    environment: from({ type: 'remote-file', path, environmentRef: 'fitting' }),
    local: from({ ...image, type: 'local-container-image' }),
    pulled: from({ type: 'oci', reference: `tools/a@${String(digests[0])}` }, 'destination-pull'),
    made: from(image, 'build-and-transfer'),
  }
  const answer = await accept('fitting', given)
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
  const pins = await pinsOf('fitting')
  expect(pins).toHaveLength(5)
  expect(pins).toMatchObject([
    { source: 'local-file', imageId: sha256(configuration), strategy: 'use-in-place' },
    { source: 'remote-file', image: `archive:${path}@${sha256(configuration)}`, inPlace: true },
    { source: 'local-container-image', strategy: 'use-in-place', digest: digests[1] },
    { source: 'oci', strategy: 'destination-pull' },
    { source: 'oci', strategy: 'build-and-transfer', buildId: expect.any(String) },
  ])
})

test('bytes without a record go after a day; those of builds and of runs, and young ones, stay', async () => {
  const { contextDigest } = await describedBuild(service, 'recorded', { Dockerfile: 'FROM scratch\n' })
  age('contexts', contextDigest)
  const cut = await keptLongAgo('cut', 'contexts')
  const [free, built, pinned, renewed] = await Promise.all(
    ['free', 'built', 'pinned', 'renewed'].map((text) => keptLongAgo(text)),
  )
  await addRun('of-build', 'completed', built ?? '', 'elsewhere')
  await service.db.run(sql`update run_snapshots set executables = jsonb_set(executables, '{pins,0,digest}',
    ${JSON.stringify(pinned)}) where execution_run_id = 'closed-0-run'`)
  expect(await store.renew('images', renewed ?? '')).toBe(true)
  expect(await store.renew('images', sha256('none'))).toBe(false)
  const found = await keptLongAgo('found')
  // A run looks the bytes up after they were listed.
  async function* olderThan(...given: Parameters<ArtifactStore['olderThan']>) {
    for await (const listed of store.olderThan(...given)) {
      if (listed.includes(found)) await store.renew('images', found)
      yield listed
    }
  }
  await removeUnnamed(service.db, { ...store, olderThan }, new AbortController().signal)
  expect(await isKept(found)).toBe(true)
  expect(await Promise.all([free, built, pinned, renewed].map((digest) => isKept(digest ?? '')))).toEqual([
    ...[false, true, true, true],
  ])
  expect([await hasContext(cut), await hasContext(contextDigest)]).toEqual([false, true])
})

test('a context that is sent again while it is deleted has its bytes, or is refused', async () => {
  const bytes = await contextOf({ Dockerfile: 'FROM scratch\nLABEL sent=again\n' })
  const { body } = await send(service, bytes)
  let sent: Awaited<ReturnType<typeof send>> | undefined
  const db = {
    values: service.db.values.bind(service.db),
    transaction: async <T>(work: (tx: Db) => Promise<T>): Promise<T> => {
      const done = await service.db.transaction(work)
      sent ??= await send(service, bytes)
      return done
    },
  } as Db
  await deleteContext({ db, artifactStore: store }, body.digest)
  expect([sent?.status, await hasContext(body.digest)]).toEqual([201, true])
  // The bytes go once they were found, and before they are recorded.
  let looks = 0
  const sizeOf: ArtifactStore['sizeOf'] = (...of) => {
    looks += 1
    return looks === 1 ? store.sizeOf(...of) : Promise.resolve(undefined)
  }
  const parts = {
    db: service.db,
    artifactStore: { ...store, sizeOf },
    buildContextLimitBytes: 1,
    hostId: 'a',
  }
  await expect(registerStored(parts, body)).rejects.toThrow(/deleted while it was registered/)
})

test('bytes that a build publishes while others remove them stay, or are not published', async () => {
  const digest = await keptLongAgo('published')
  await addRun('publishing', 'running', null, 'elsewhere')
  const work = await readWork(service.db, 'publishing')
  if (work === undefined) throw new Error('there is no work')
  let removal: Promise<void> | undefined
  await service.db.transaction(async (tx) => {
    await publishOutput({ db: tx, artifactStore: store }, work, { digest, sizeBytes: 9 })
    let isOver = false
    removal = removeUnowned({ db: service.db, artifactStore: store }, [digest])
    void removal.finally(() => (isOver = true))
    await until('the removal', 120, async () => {
      const [waiting] = await service.db.prepared<{ n: string }>(
        'waiting',
        `select count(*) as n from pg_locks where locktype = 'advisory' and not granted
          and database = (select oid from pg_database where datname = current_database())`,
        [],
      )
      return isOver || Number(waiting?.n) > 0
    })
  })
  await removal
  expect(await isKept(digest)).toBe(true)
  await store.remove('images', digest)
  await expect(
    publishOutput({ db: service.db, artifactStore: store }, work, { digest, sizeBytes: 9 }),
  ).rejects.toThrow(/lost sha256/)
  await service.db.run(sql`update build_runs set status = 'failed' where id = 'publishing'`)
})

test('a build whose earlier output is lost is judged as the first one', async () => {
  const { contextDigest } = await describedBuild(service, 'again', { Dockerfile: 'FROM scratch\nCOPY . /\n' })
  await service.db
    .run(sql`insert into build_runs (id, artifact_build_id, status, host_id, output_digest, output_bytes)
    select 'before', 'again', 'completed', host_id, ${sha256('lost')}, 1 from build_contexts
      where digest = ${contextDigest}`)
  rmSync(store.pathOf('contexts', contextDigest))
  const { id } = await service.post('/artifact-builds/again/runs/', {})
  await until('its end', 120, async () => (await service.get(`/build-runs/${id}/`)).status === 'failed')
  expect((await service.get(`/build-runs/${id}/`)).error).toMatch(/lost the context/)
  const connection = await Connection.connect({ address: temporalAddress() })
  const waits = await waitsAtHosts({ connection, namespace: service.namespace }, `build-run/${id}/1`)
  await connection.close()
  expect(waits).toMatchObject({ fetchBuildRun: '3000s' })
})

test('an attestation names host, image and bases, and events of a log hold whole characters', async () => {
  const [of, own] = ['2', '3'].map((digit) => digit.repeat(64))
  const bases = [
    { image: 'docker.io/library/tool:1', digest: `sha256:${of}`, digestOf: 'registry' },
    { image: 'local/tool:1', digest: `sha256:${own}`, digestOf: 'engine' },
  ]
  await service.db.run(sql`update build_runs set image_id = ${digests[0]}, packer = 'a packer',
    bases = ${JSON.stringify(bases)} where id = 'of-build'`)
  expect((await service.get('/build-runs/of-build/')).bases).toEqual(bases)
  const { payload } = await service.get('/build-runs/of-build/attestation/')
  const { predicate } = JSON.parse(Buffer.from(payload, 'base64').toString())
  expect(predicate.buildDefinition.internalParameters).toEqual({ packer: 'a packer' })
  expect(predicate.buildDefinition.resolvedDependencies.slice(2)).toEqual([
    { uri: 'docker://docker.io/library/tool:1', digest: { sha256: of } },
    { name: 'image in the engine', uri: 'docker://local/tool:1', digest: { sha256: own } },
  ])
  expect(predicate.runDetails).toMatchObject({
    builder: { id: 'https://orrery.dev/hosts/elsewhere' },
    byproducts: [{ digest: { sha256: '1'.repeat(64) } }],
  })

  const { id } = (await service.get('/artifact-builds/again/runs/')).find(
    (run: any) => run.status === 'failed',
  )
  const text = `a${'é'.repeat(600_000)}`
  await store.removeLog(id)
  await store.appendLog(id, text)
  const answer = await fetch(`${service.baseUrl}/build-runs/${id}/logs/`, {
    headers: { accept: 'text/event-stream' },
  })
  const lines = (await answer.text()).split('\n').filter((line) => line.startsWith('data: '))
  const whole = lines.map((line) => line.slice(6)).join('')
  expect([whole.length, whole === text]).toEqual([text.length, true])
})
