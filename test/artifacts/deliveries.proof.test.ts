import { expect } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import {
  appendFileSync,
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { randomBytes } from 'node:crypto'
import { Readable } from 'node:stream'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { allowApptainer, haveApptainer } from '../../sites/apptainer.ts'
import {
  openDockerEngine,
  startHostEngine,
  startLoopbackRegistry,
  type DockerEngine,
  type HostEngine,
} from '../../sites/docker.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { archiveImageId } from '../../src/drivers/build/archive.ts'
import { sites } from '../../sites/requirements.ts'
import { startS3 } from '../../sites/s3.ts'
import { startSsh, type SshHost, type SshSite } from '../../sites/ssh.ts'
import { activityOf } from '../execution-runs/checked.ts'
import { bucketStorage, environmentOf } from '../storages/world.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, inContainers, makeVaultKeyFile, onHost } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, type World, type WorldPlace, type WorldTask } from '../support/worlds.ts'
import { until } from '../failures/programs.ts'
import { describedBuild, openHeldWay, sha256 } from './world.ts'

/**
 * Executables of runs, from builds, files, addresses and registries, in a Docker engine of this
 * machine, and in Apptainer and Docker on a host by SSH.
 */

const { afterAll, beforeAll, describe, test } = needs(
  ...([...sites.ssh, 'docker.io', 'runc', 'docker-registry', 'skopeo', 'squashfs-tools'] as const),
)

/** Busybox alone: its SIF file is made in a moment. */
const base = 'local/bb:1'
const folder = mkdtempSync(join(runFolder(), 'deliveries-'))
const seeds = join(folder, 'seeds')
let engine: DockerEngine
let registry: Awaited<ReturnType<typeof startLoopbackRegistry>>
let ssh: SshSite
let host: SshHost
/** The engine of that host, which the service's account there may use. */
let hostEngine: HostEngine
/** A second host, which has files and no Apptainer. */
let source: SshHost
let service: TestService
let web: Server

beforeAll(async () => {
  await haveApptainer()
  mkdirSync(seeds)
  ;[engine, registry, ssh] = await Promise.all([
    openDockerEngine({ data: '/var/cache/orrery/test-asked', kind: 'asked', buildkit: true }),
    startLoopbackRegistry(join(folder, 'registry')),
    startSsh({ hosts: 2 }),
  ])
  ;[host, source] = ssh.hosts as [SshHost, SshHost]
  await allowApptainer(host)
  hostEngine = await startHostEngine(host, ssh.user)
  const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
  await engine.docker('load', '--quiet', '--input', busybox)
  await forget()
  execFileSync('apptainer', ['-q', 'build', join(seeds, 'system.sif'), `docker-archive:${busybox}`])
  web = createServer((request, response) => {
    if (request.url === '/moved.sif') response.writeHead(302, { location: '/system.sif' }).end()
    else if (request.url === '/away.sif')
      response.writeHead(302, { location: 'http://169.254.169.254/a' }).end()
    else if (request.url === '/system.sif') response.end(readFileSync(join(seeds, 'system.sif')))
    else response.writeHead(404).end()
  }).listen(0, '127.0.0.1')
  service = await openService({
    environment: {
      SERVICE_CONTAINER_ENGINE: engine.socket,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_ARTIFACT_ROOT: join(folder, 'artifacts'),
      SERVICE_SEED_ROOT: seeds,
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
  await service.post('/ssh-keys/import/', { id: 'host', privateKey: ssh.key.privateKey })
}, 900_000)
/** Removes names of images that runs of this file made, by name: the system's image stays. */
const forget = (): Promise<void> => engine.forget('orrery-build/*', 'orrery-artifact', '*/delivered/*')
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  web?.close()
  await Promise.all([engine?.[Symbol.asyncDispose](), registry?.stop(), ssh?.stop()])
  await hostEngine?.leave()
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

const docker = (): WorldPlace =>
  inContainers({ containerRuntime: 'docker', containerHost: `unix://${engine.socket}` })
const apptainer = (name: string, more: Record<string, unknown> = {}): WorldPlace => ({
  ...onHost(`${name}-host`, { containerRuntime: 'apptainer', ...more }),
  capabilities: { container: true },
})
const worldAt = (name: string, tasks: readonly WorldTask[], places: readonly (WorldPlace | undefined)[]) =>
  makeWorld(service, {
    name,
    tasks: tasks.map((task) => ({ memory: '64Mi', ...task })),
    cores: places.map(() => 2),
    places,
    connections: [connectionTo(`${name}-host`, host, 'host')],
  })
const accept = (world: World, id: string) =>
  service.call('POST', '/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
const run = async (world: World, id: string): Promise<any> => {
  const answer = await accept(world, id)
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
  return service.finished(id, 240)
}
const logOf = async (runId: string, id: string): Promise<string> =>
  (await service.call('GET', `/execution-runs/${runId}/activities/${id}/logs/`)).text
const from = (source: Record<string, unknown>, strategy = 'auto', more: object = {}) => ({
  ...{ source, delivery: { strategy } },
  ...more,
})
const artifactsAt = (): string => join(host.folder, 'home/ada/.orrery/artifacts')
/** Files below a folder, by path. */
const filesBelow = (path: string): string[] =>
  existsSync(path)
    ? readdirSync(path, { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => join(entry.parentPath, entry.name))
    : []
const sifsBelow = (path: string): string[] => filesBelow(path).filter((file) => file.endsWith('.sif'))

const recipe = (text: string) => ({
  Dockerfile: `FROM ${base}\nRUN mkdir -p /srv && echo ${text} > /srv/text\n`,
})
/** A folder with that recipe, for the engine's own client. */
const recipeFolder = (text: string): string => {
  const path = join(folder, `recipe-${text}`)
  mkdirSync(path)
  writeFileSync(join(path, 'Dockerfile'), recipe(text).Dockerfile)
  return path
}

describe('a build', () => {
  test('is made for the run that needs it; its bytes come once to each place, with records', async () => {
    await describedBuild(service, 'sift', recipe('sifted'), { targetFormat: 'sif' })
    await describedBuild(service, 'layer', recipe('layered'), { targetFormat: 'oci' })
    const sif = from({ type: 'build', artifactBuildRef: 'sift' })
    const tasks: WorldTask[] = [
      ...['one', 'two', 'three'].map((name): WorldTask => ({
        ...{ name, run: 'cat /srv/text', executable: sif, lane: [1, name === 'one' ? 0 : 1] },
      })),
      {
        ...{ name: 'here', run: 'cat /srv/text', lane: [0, 0] },
        executable: from({ type: 'build', artifactBuildRef: { id: 'layer' } }),
      },
    ]
    const world = await worldAt('built', tasks, [docker(), apptainer('built')])
    const detail = await run(world, 'built-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(await logOf('built-run', 'built-two')).toBe('sifted\n')
    expect(await logOf('built-run', 'built-here')).toBe('layered\n')

    const [sifted] = await service.get('/artifact-builds/sift/runs/')
    const [layered] = await service.get('/artifact-builds/layer/runs/')
    const hex = sifted.outputDigest.slice(7)
    expect(detail.artifactMaterializations).toHaveLength(2)
    expect(detail.artifactMaterializations).toEqual(
      expect.arrayContaining([
        expect.objectContaining({
          ...{ variantId: sifted.outputVariantId, digest: sifted.outputDigest, status: 'committed' },
          ...{ runId: 'built-run', resourceId: 'built-host-2', verifiedDigest: sifted.outputDigest },
          destinationPath: expect.stringMatching(new RegExp(`/artifacts/${hex}\\.sif$`)),
        }),
        expect.objectContaining({ variantId: layered.outputVariantId, digest: layered.outputDigest }),
      ]),
    )
    const size = Number(
      (await fetch(`${service.baseUrl}/build-runs/${sifted.id}/output/`)).headers.get('content-length'),
    )
    expect(detail.artifactTransferRuns).toEqual([
      expect.objectContaining({
        ...{ executionRunId: 'built-run', status: 'completed', strategy: 'gateway-transfer', bytes: size },
        reason: expect.stringContaining('gateway'),
      }),
    ])
    expect(detail.artifactTransferRuns[0].networkBytes).toBeLessThan(size * 1.02 + 65_536)
    for (const name of ['one', 'here']) {
      const { metadata, startedAt, finishedAt } = activityOf(detail, world, name)
      expect(metadata.preparationFinishedAt).toBeGreaterThan(startedAt)
      expect(metadata.preparationFinishedAt).toBeLessThan(finishedAt)
    }
    const timeline = await service.get('/execution-runs/built-run/timeline/')
    expect(timeline.phases.map(({ category }: any) => category)).toContain('executable-preparation')

    // Another run finds it there; altered bytes are noticed and replaced.
    const again = await run(world, 'built-again')
    expect([again.run.status, again.artifactTransferRuns]).toEqual(['completed', []])
    const file = join(artifactsAt(), `${hex}.sif`)
    chmodSync(file, 0o644)
    appendFileSync(file, 'altered')
    const healed = await run(world, 'built-healed')
    expect([healed.run.status, healed.artifactTransferRuns.length]).toEqual(['completed', 1])
    expect(healed.artifactTransferRuns[0].reason).toContain('had changed')
    expect(sha256(readFileSync(file))).toBe(sifted.outputDigest)
    for (const [name, spoil] of Object.entries({
      removed: () => rmSync(file),
      cut: () => truncateSync(file, 1_000),
    })) {
      spoil()
      const after = await run(world, `built-${name}`)
      expect([name, after.run.status, after.artifactTransferRuns.length]).toEqual([name, 'completed', 1])
      expect(sha256(readFileSync(file))).toBe(sifted.outputDigest)
    }
  }, 600_000)

  test('that fails, fails its tasks with its cause', async () => {
    await describedBuild(
      service,
      'broken',
      { Dockerfile: `FROM ${base}\nRUN false\n` },
      { targetFormat: 'sif' },
    )
    const executable = from({ type: 'build', artifactBuildRef: 'broken' })
    const world = await worldAt('broken', [{ name: 'one', executable, lane: [0, 0] }], [apptainer('broken')])
    const detail = await run(world, 'broken-run')
    expect([detail.run.status, activityOf(detail, world, 'one').failureReason]).toEqual([
      'failed',
      expect.stringMatching(/the build broken of its image is failed.*start it again/),
    ])
  }, 240_000)
})

test('the least recently used files go above artifactCacheBytes, and files of open runs stay', async () => {
  await describedBuild(service, 'old', recipe('old'), { targetFormat: 'sif' })
  await describedBuild(service, 'new', recipe('new'), { targetFormat: 'sif' })
  const only = (name: string): WorldTask => ({
    ...{ name, run: 'cat /srv/text', lane: [0, 0] },
    executable: from({ type: 'build', artifactBuildRef: name }),
  })
  const place = (name: string) => apptainer(name, { artifactCacheBytes: 1, workDirectory: '/home/ada/small' })
  const files = () =>
    ['old', 'new'].map(async (id) => {
      const [made] = await service.get(`/artifact-builds/${id}/runs/`)
      return existsSync(join(host.folder, 'home/ada/small/artifacts', `${made.outputDigest.slice(7)}.sif`))
    })
  const both = await worldAt('both', [only('old'), only('new')], [place('both')])
  expect((await run(both, 'both-run')).run.status).toBe('completed')
  expect(await Promise.all(files())).toEqual([true, true])
  const later = await worldAt('later', [only('new')], [place('later')])
  expect((await run(later, 'later-run')).run.status).toBe('completed')
  expect(await Promise.all(files())).toEqual([true, true])
  await describedBuild(service, 'newest', recipe('newest'), { targetFormat: 'sif' })
  const last = await worldAt('last', [only('newest')], [place('last')])
  expect((await run(last, 'last-run')).run.status).toBe('completed')
  expect(await Promise.all(files())).toEqual([false, false])
}, 600_000)

describe('an archive of an image for Docker on a host by SSH', () => {
  const docked = (name: string): WorldPlace => ({
    ...onHost(`${name}-host`, { containerRuntime: 'docker' }),
    capabilities: { container: true },
  })
  const idsThere = async (): Promise<string[]> =>
    (await hostEngine.docker('images', '--all', '--quiet', '--no-trunc')).split('\n').filter(Boolean)

  test('comes once, and its tasks run from it; altered or lost there, it is noticed and comes again', async () => {
    await describedBuild(service, 'docked', recipe('docked'), { targetFormat: 'oci' })
    const executable = from({ type: 'build', artifactBuildRef: 'docked' })
    const tasks = ['one', 'two'].map((name, core): WorldTask => ({
      ...{ name, executable, run: 'cat /srv/text; id -un', lane: [0, core] },
    }))
    const world = await worldAt('docked', tasks, [docked('docked')])
    const detail = await run(world, 'docked-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    for (const name of ['one', 'two'])
      expect(await logOf('docked-run', `docked-${name}`)).toBe(`docked\n${ssh.user}\n`)
    const [made] = await service.get('/artifact-builds/docked/runs/')
    const hex = made.outputDigest.slice(7)
    const output = await fetch(`${service.baseUrl}/build-runs/${made.id}/output/`)
    const bytes = Buffer.from(await output.arrayBuffer())
    const id = await archiveImageId(Readable.from([bytes]) as AsyncIterable<Buffer>)
    expect(activityOf(detail, world, 'one').metadata).toMatchObject({ engine: 'docker', imageDigest: id })
    expect(detail.artifactMaterializations).toEqual([
      expect.objectContaining({
        ...{ variantId: made.outputVariantId, digest: made.outputDigest, status: 'committed' },
        ...{ runId: 'docked-run', resourceId: 'docked-host-1', verifiedDigest: made.outputDigest },
        destinationPath: expect.stringMatching(new RegExp(`/artifacts/${hex}\\.oci\\.tar$`)),
      }),
    ])
    expect(detail.artifactTransferRuns).toEqual([
      expect.objectContaining({
        ...{ executionRunId: 'docked-run', status: 'completed', strategy: 'gateway-transfer' },
        bytes: bytes.length,
      }),
    ])
    expect(await idsThere()).toEqual([id])

    const again = await run(world, 'docked-again')
    expect([again.run.status, again.artifactTransferRuns]).toEqual(['completed', []])
    const file = join(artifactsAt(), `${hex}.oci.tar`)
    const spoiled: readonly (readonly [name: string, spoil: () => unknown, reasons: readonly unknown[]])[] = [
      [
        'altered',
        () => {
          const other = Buffer.from(bytes)
          other[other.length >> 1]! ^= 1
          chmodSync(file, 0o644)
          writeFileSync(file, other)
        },
        [expect.stringContaining('had changed')],
      ],
      ['removed', () => rmSync(file), [expect.any(String)]],
      // The engine loads it anew from the archive that is there.
      ['forgotten', () => hostEngine.docker('rmi', '--force', id), []],
    ]
    for (const [name, spoil, reasons] of spoiled) {
      await spoil()
      const after = await run(world, `docked-${name}`)
      const told = after.artifactTransferRuns.map(({ reason }: any) => reason)
      expect([name, after.run.status, told]).toEqual([name, 'completed', reasons])
      expect(await logOf(`docked-${name}`, 'docked-one')).toBe(`docked\n${ssh.user}\n`)
      expect([sha256(readFileSync(file)), await idsThere()]).toEqual([made.outputDigest, [id]])
    }
  }, 600_000)

  test('runs too where a definition made it, and where it is one of docker save below the seed root', async () => {
    const name = `it's "own" $(touch planted) \`touch planted\` ; touch planted #-rf.tar`
    await engine.docker('save', '--output', join(seeds, name), base)
    const text = 'Bootstrap: docker\nFrom: local/bb:1\n%post\n    echo defined > /srv-text\n'
    await describedBuild(
      service,
      'defined',
      { 'apptainer.def': text },
      { sourceType: 'definition', recipeDigest: sha256(text), targetFormat: 'oci' },
    )
    const tasks: WorldTask[] = [
      {
        ...{ name: 'saved', run: 'cat /srv-text 2> /dev/null || echo none', lane: [0, 0] },
        executable: from({ type: 'local-file', path: name }),
      },
      {
        ...{ name: 'defined', run: 'cat /srv-text', lane: [0, 1] },
        executable: from({ type: 'build', artifactBuildRef: 'defined' }),
      },
    ]
    const world = await worldAt('layered', tasks, [docked('layered')])
    const detail = await run(world, 'layered-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(await logOf('layered-run', 'layered-saved')).toBe('none\n')
    expect(await logOf('layered-run', 'layered-defined')).toBe('defined\n')
    const [made] = await service.get('/artifact-builds/defined/runs/')
    expect(detail.artifactMaterializations.map(({ digest }: any) => digest).toSorted()).toEqual(
      [sha256(readFileSync(join(seeds, name))), made.outputDigest].toSorted(),
    )
    const written = filesBelow(join(host.folder, 'home')).filter((path) => path.endsWith('planted'))
    expect([written, existsSync('planted')]).toEqual([[], false])
  }, 400_000)
})

describe('files and addresses', () => {
  test('below the seed root, at their site and by redirects run by their digest', async () => {
    const { port } = web.address() as AddressInfo
    const digest = sha256(readFileSync(join(seeds, 'system.sif')))
    const hostile = 'it\'s "$(touch planted)" `touch planted`; touch planted #-rf.sif'
    for (const path of [
      join(host.folder, 'srv/own.sif'),
      join(host.folder, 'srv', hostile),
      join(seeds, hostile),
    ])
      copyFileSync(join(seeds, 'system.sif'), path)
    const tasks = Object.entries({
      file: from({ type: 'local-file', path: 'system.sif' }),
      fetched: from({ type: 'http', uri: `http://127.0.0.1:${port}/moved.sif` }, 'managed', {
        expectedDigest: digest,
      }),
      there: from({ type: 'remote-file', path: '/srv/own.sif', resourceRef: 'files-host-1' }, 'use-in-place'),
      odd: from({ type: 'local-file', path: hostile }),
      strange: from(
        { type: 'remote-file', path: `/srv/${hostile}`, resourceRef: 'files-host-1' },
        'use-in-place',
      ),
      named: from({ type: 'oci', reference: '/srv/own.sif' }, 'use-in-place', { expectedDigest: digest }),
    }).map(([name, executable]): WorldTask => ({ name, executable, run: 'echo it ran', lane: [0, 0] }))
    const world = await worldAt('files', tasks, [apptainer('files')])
    const detail = await run(world, 'files-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    for (const name of ['there', 'odd', 'strange', 'named'])
      expect([name, await logOf('files-run', `files-${name}`)]).toEqual([name, 'it ran\n'])
    expect(new Set(detail.artifactMaterializations.map((each: any) => each.digest))).toEqual(
      new Set([digest]),
    )
    const written = filesBelow(join(host.folder, 'home')).filter((path) => path.endsWith('planted'))
    expect([written, existsSync('planted')]).toEqual([[], false])
  }, 300_000)

  test('that have to be in place fail their attempts where the site has other bytes or none', async () => {
    writeFileSync(join(host.folder, 'srv/other.sif'), randomBytes(4_096))
    const expectedDigest = sha256(readFileSync(join(seeds, 'system.sif')))
    const wanted = (path: string) =>
      from({ type: 'oci', reference: path }, 'use-in-place', { expectedDigest })
    const tasks = ['other', 'none'].map((name): WorldTask => ({
      ...{ name, executable: wanted(`/srv/${name}.sif`), run: 'true', lane: [0, 0] },
    }))
    for (const task of tasks) {
      const world = await worldAt(`place-${task.name}`, [task], [apptainer(`place-${task.name}`)])
      const detail = await run(world, `place-${task.name}-run`)
      expect([detail.run.status, activityOf(detail, world, task.name).failureReason]).toEqual([
        'failed',
        expect.stringMatching(
          task.name === 'none'
            ? /has no image at \/srv\/none\.sif.*put the file there/
            : new RegExp(`digest of /srv/other\\.sif differs: asked for ${expectedDigest}`),
        ),
      ])
    }
  }, 300_000)

  test('in a bucket run by the storage that has it; so do promoted ones', async () => {
    const bytes = readFileSync(join(seeds, 'system.sif'))
    await using site = await startS3()
    const bucket = site.bucket('images')
    mkdirSync(join(bucket, 'tools'))
    const { credentialRef } = await service.post('/cloud-credentials/', {
      ...{ id: 'bucket', provider: 'aws', credential: site.accessKey },
    })
    await service.post(
      '/environments/',
      environmentOf('images', [bucketStorage('images', site, 's3://images/tools', credentialRef)]),
    )
    const put = await fetch(`${service.baseUrl}/storages/images/entries/?path=bucket.sif`, {
      ...{ method: 'PUT', body: Uint8Array.from(bytes) },
      headers: { 'content-type': 'application/octet-stream' },
    })
    expect([put.status, await put.text()]).toEqual([201, expect.any(String)])
    await service.post('/storages/images/promote-artifact/', { path: 'bucket.sif', id: 'promoted' })
    const sources = {
      address: { type: 'object-storage', uri: 's3://images/tools/bucket.sif' },
      promoted: { type: 'catalog', artifactRef: 'promoted' },
    }
    const tasks = Object.entries(sources).map(([name, source]): WorldTask => ({
      name,
      executable: from(source),
      run: 'echo it ran',
      lane: [0, 0],
    }))
    const world = await worldAt('bucket', tasks, [apptainer('bucket')])
    const detail = await run(world, 'bucket-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(new Set(detail.artifactMaterializations.map((each: any) => each.digest))).toEqual(
      new Set([sha256(bytes)]),
    )

    const wrong: Record<string, [string, RegExp]> = {
      absent: ['s3://images/tools/none.sif', /none\.sif/],
      elsewhere: ['s3://others/a.sif', /no storage of this service/],
      above: ['storage://images/../a.sif', /\.\./],
    }
    const refused = Object.entries(wrong).map(([name, [uri]]): WorldTask => ({
      ...{ name, executable: from({ type: 'object-storage', uri }), lane: [0, 0] },
    }))
    const answer = await accept(await worldAt('unstored', refused, [apptainer('unstored')]), 'unstored-run')
    const told = new Map(answer.body.details.map(({ path, message }: any) => [path, message]))
    for (const [name, [, words]] of Object.entries(wrong))
      expect(told.get(`activities.unstored-${name}.command.executable`)).toMatch(words)
  }, 300_000)

  test('are refused with all problems at once', async () => {
    const { port } = web.address() as AddressInfo
    const other = `sha256:${'0'.repeat(64)}`
    const wrong: Record<string, [Record<string, unknown>, RegExp]> = {
      outside: [from({ type: 'local-file', path: '../../etc/passwd' }), /no file below SERVICE_SEED_ROOT/],
      absent: [from({ type: 'build', artifactBuildRef: 'none' }), /does not exist/],
      nothing: [from({ type: 'catalog', artifactRef: 'none' }), /does not exist/],
      layers: [from({ type: 'build', artifactBuildRef: 'layer' }), /makes oci, and .* needs sif/],
      differing: [
        from({ type: 'local-file', path: 'system.sif' }, 'auto', { expectedDigest: other }),
        new RegExp(`${other}.*sha256:`),
      ],
      away: [from({ type: 'http', uri: `http://127.0.0.1:${port}/away.sif` }), /https/],
      plain: [from({ type: 'http', uri: 'http://example.org/a.sif' }), /must be https/],
      gone: [
        from({ type: 'remote-file', path: '/srv/none.sif', resourceRef: 'wrong-host-1' }),
        /has no file/,
      ],
      blanks: [from({ type: 'oci', reference: 'a b' }), /no name of an image/],
    }
    const tasks = Object.entries(wrong).map(([name, [executable]]): WorldTask => ({
      name,
      executable,
      lane: [0, 0],
    }))
    const world = await worldAt('wrong', tasks, [apptainer('wrong')])
    const answer = await accept(world, 'wrong-run')
    expect(answer.status).toBe(422)
    const told = new Map(answer.body.details.map(({ path, message }: any) => [path, message]))
    for (const [name, [, words]] of Object.entries(wrong))
      expect([name, told.get(`activities.wrong-${name}.command.executable`)]).toEqual([
        name,
        expect.stringMatching(words),
      ])
  }, 120_000)
})

test('a file for pods is refused before it is asked for', async () => {
  await service.post('/kubernetes-tokens/', { id: 'pods', token: 'of-no-cluster' })
  const world = await makeWorld(service, {
    ...{ name: 'pods', cores: [2] },
    tasks: [{ name: 'one', executable: from({ type: 'local-file', path: 'system.sif' }), memory: '64Mi' }],
    places: [
      {
        driver: 'kubernetes',
        configuration: {
          ...{ connectionId: 'pods', namespace: 'tests', helperImage: 'gnu:1' },
          volume: { persistentVolumeClaim: 'work' },
        },
        capabilities: { container: true },
      },
    ],
    connections: [
      {
        ...{ id: 'pods', name: 'pods', type: 'kubernetes', endpoint: 'https://127.0.0.1:1' },
        ...{ credentialRef: 'vault:kubernetes-token/pods', configuration: { namespace: 'tests' } },
      },
    ],
  })
  const answer = await accept(world, 'pods-run')
  expect([answer.status, answer.text]).toEqual([422, expect.stringMatching(/pods (take|cannot)/)])
}, 60_000)

describe('an image', () => {
  test('is pinned by the digest of its registry, and pulled once', async () => {
    const archive = join(folder, 'image.tar')
    await engine.docker('save', '--output', archive, base)
    const digest = await registry.push(archive, 'delivered/pinned:1')
    const image = `${registry.address}/delivered/pinned:1`
    const tasks = ['a', 'b'].map((name): WorldTask => ({ name, image, run: 'echo it ran', lane: [0, 0] }))
    const world = await worldAt('pulled', tasks, [docker()])
    const detail = await run(world, 'pulled-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(activityOf(detail, world, 'a').metadata).toMatchObject({
      image: `${image}@${digest}`,
      imageDigest: digest,
    })
    expect(detail.artifactMaterializations).toEqual([
      expect.objectContaining({
        digest,
        variantId: digest,
        status: 'committed',
        destinationPath: `${image}@${digest}`,
      }),
    ])
    expect(detail.artifactTransferRuns).toEqual([expect.objectContaining({ strategy: 'destination-pull' })])
    expect(detail.artifactTransferRuns[0].bytes).toBeGreaterThan(100_000)
  }, 240_000)

  test('is converted here where the host has Apptainer and its registry is out of the host’s reach', async () => {
    const image = `${registry.address}/delivered/pinned:1`
    const executable = from({ type: 'oci', reference: image }, 'managed')
    const world = await worldAt(
      'converted',
      [{ name: 'one', executable, run: 'echo it ran', lane: [0, 0] }],
      [apptainer('converted')],
    )
    const detail = await run(world, 'converted-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(detail.artifactTransferRuns).toEqual([
      expect.objectContaining({ strategy: 'managed', status: 'completed' }),
    ])
    expect(detail.artifactMaterializations[0].destinationPath).toMatch(/\.sif$/)
  }, 300_000)

  test('that its registry lost after the run was accepted fails its task, with name and digest', async () => {
    const [archive, gate] = [join(folder, 'lost.tar'), join(folder, 'gate')]
    const image = `${registry.address}/delivered/lost:1`
    await engine.docker('build', '--tag', image, recipeFolder('lost'))
    await engine.docker('save', '--output', archive, image)
    await engine.docker('rmi', image)
    const digest = await registry.push(archive, 'delivered/lost:1')
    const world = await makeWorld(service, {
      ...{ name: 'lost', cores: [2, 2], places: [docker()], bandwidthBitsPerSecond: 1e9 },
      tasks: [
        { name: 'gate', run: `until [ -e ${gate} ]; do sleep 0.1; done`, lane: [1, 0] },
        { name: 'one', image, after: ['gate'], memory: '64Mi', lane: [0, 0] },
      ],
    })
    const answer = await accept(world, 'lost-run')
    expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
    const manifest = `http://${registry.address}/v2/delivered/lost/manifests/${digest}`
    expect((await fetch(manifest, { method: 'DELETE' })).status).toBe(202)
    writeFileSync(gate, '')
    const detail = await service.finished('lost-run', 240)
    expect([detail.run.status, activityOf(detail, world, 'one').failureReason]).toEqual([
      'failed',
      expect.stringMatching(new RegExp(`delivered/lost.*${digest}.*(unknown|not found)`, 's')),
    ])
    expect(await engine.containers()).toEqual([])
  }, 240_000)
})

describe('a delivery', () => {
  test('for a run that is cancelled while the engine of its site pulls ends with the pull', async () => {
    await using way = await openHeldWay(registry.address)
    const archive = join(folder, 'held.tar')
    const image = `${way.address}/delivered/held:1`
    await engine.docker('build', '--tag', image, recipeFolder('held'))
    await engine.docker('save', '--output', archive, image)
    await engine.docker('rmi', image)
    await registry.push(archive, 'delivered/held:1')
    const world = await worldAt('held', [{ name: 'one', image, run: 'true', lane: [0, 0] }], [docker()])
    const answer = await accept(world, 'held-run')
    expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
    await until('the engine pulls', 120, () => way.waiting() > 0)
    await service.post('/execution-runs/held-run/cancel/')
    expect((await service.finished('held-run', 120)).run.status).toBe('cancelled')
    // The engine notices the end of a pull between two requests.
    way.letGo()
    await until('the engine asks no more', 60, () => way.waiting() === 0)
    expect(await engine.docker('images', '--quiet', `${way.address}/*/*`)).toBe('')
    expect(await engine.containers()).toEqual([])
  }, 240_000)

  test('to a full disk is told with its cause, leaves nothing half, and works once there is room', async () => {
    const disk = host.smallDisk
    const filler = `${disk}/filler`
    await host.run(
      `mkdir -m 777 ${disk}/full; head -c 200M /dev/zero > ${filler}; truncate -s -256K ${filler}`,
      'root',
    )
    const executable = from({ type: 'local-file', path: 'system.sif' })
    const world = await worldAt(
      'full',
      [{ name: 'one', executable, run: 'echo it ran', lane: [0, 0] }],
      [apptainer('full', { workDirectory: `${disk}/full` })],
    )
    expect((await accept(world, 'full-run')).status).toBe(202)
    const attempt = await until('an attempt that says why', 120, async () => {
      const { activities } = await service.get('/execution-runs/full-run/?attempts=all')
      return activities.find(({ failureReason }: any) => /no space left/i.test(failureReason ?? ''))
    })
    expect(attempt).toMatchObject({ failureClass: 'infrastructure' })
    const artifacts = host.see(`${disk}/full/artifacts`)
    expect(sifsBelow(artifacts)).toEqual([])
    await host.run(`rm ${filler}`)
    const detail = await service.finished('full-run', 180)
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(detail.artifactTransferRuns).toEqual([expect.objectContaining({ status: 'completed' })])
    expect(sifsBelow(artifacts).map((file) => sha256(readFileSync(file)))).toEqual([
      sha256(readFileSync(join(seeds, 'system.sif'))),
    ])
    expect(filesBelow(join(artifacts, 'arriving'))).toEqual([])
  }, 300_000)

  test('for a run that is cancelled while its bytes arrive leaves nothing; the next run brings them', async () => {
    // Apptainer does not read what stands behind the file system.
    const bytes = Buffer.concat([readFileSync(join(seeds, 'system.sif')), randomBytes(32 * 2 ** 20)])
    writeFileSync(join(source.folder, 'srv/large.sif'), bytes)
    const executable = from({ type: 'remote-file', path: '/srv/large.sif', resourceRef: 'cut-host-2' })
    const world = await makeWorld(service, {
      ...{ name: 'cut', cores: [2, 2] },
      tasks: [
        { name: 'one', executable, memory: '64Mi', lane: [0, 0] },
        { name: 'there', lane: [1, 0] },
      ],
      places: [apptainer('cut', { workDirectory: '/home/ada/cut' }), onHost('cut-source')],
      connections: [connectionTo('cut-host', host, 'host'), connectionTo('cut-source', source, 'host')],
    })
    await source.limit('1mbit')
    try {
      const answer = await accept(world, 'cut-run')
      expect([answer.status, answer.text]).toEqual([202, expect.any(String)])
      const artifacts = join(host.folder, 'home/ada/cut/artifacts')
      await until('its bytes arrive', 120, () =>
        filesBelow(join(artifacts, 'arriving')).some((file) => statSync(file).size > 0),
      )
      const place = { resourceId: expect.any(String), digest: sha256(bytes) }
      const open = await service.get('/execution-runs/cut-run/')
      expect([open.artifactMaterializations, open.artifactTransferRuns]).toMatchObject([
        [{ ...place, status: 'transferring', destinationPath: expect.stringContaining('/cut/artifacts/') }],
        [{ status: 'running', bytes: 0, materializationId: open.artifactMaterializations[0]?.id }],
      ])
      expect(open.artifactTransferRuns[0]).not.toHaveProperty('finishedAt')
      await service.post('/execution-runs/cut-run/cancel/')
      const over = await service.finished('cut-run', 120)
      expect(over.run.status).toBe('cancelled')
      expect([over.artifactMaterializations, over.artifactTransferRuns]).toMatchObject([
        [{ ...place, status: 'failed' }],
        [
          {
            status: 'failed',
            finishedAt: expect.any(Number),
            failureReason: expect.stringContaining('arrived'),
          },
        ],
      ])
      await until('nothing of it is left', 60, () =>
        ['arriving', 'uses'].every((name) => filesBelow(join(artifacts, name)).length === 0),
      )
      expect(sifsBelow(artifacts)).toEqual([])
    } finally {
      await source.limit()
    }
    const { run: whole, ...brought } = await run(world, 'cut-again')
    expect([whole.status, whole.failureReason]).toEqual(['completed', undefined])
    expect([brought.artifactMaterializations, brought.artifactTransferRuns]).toMatchObject([
      [{ digest: sha256(bytes), status: 'committed', verifiedDigest: sha256(bytes) }],
      [{ status: 'completed', bytes: bytes.length }],
    ])
  }, 300_000)
})
