import { expect } from '@jest/globals'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect, createServer, type Server } from 'node:net'
import { join } from 'node:path'
import { listWorkers } from '../../src/clients/buildkit.ts'
import { describeEngine, imageDigest, pingEngine } from '../../src/clients/docker.ts'
import { startBuildkit, type Buildkit } from '../../sites/buildkit.ts'
import {
  loadSystemImage,
  openDockerEngine,
  startLoopbackRegistry,
  type DockerEngine,
} from '../../sites/docker.ts'
import { startPodman, type Podman } from '../../sites/podman.ts'
import { needs } from '../support/needs.ts'
import { inContainers } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'

/**
 * What the service says of the engines of its machine: a real Docker, a real Podman, and BuildKit,
 * as a daemon of its own and inside that Docker.
 */

const { afterAll, beforeAll, describe, test } = needs(
  'root',
  'docker.io',
  'runc',
  'iproute2',
  'podman',
  'docker-registry',
)

const folder = mkdtempSync(join(runFolder(), 'engines-'))
const at = (name: string): string => join(folder, name)
/** What the engine's own answers name; a test compares with its programs. */
const digestForm = /^sha256:[0-9a-f]{64}$/

let engine: DockerEngine
let podman: Podman
let buildkit: Buildkit
let podmanSocket: string
let image: string
let service: TestService
const servers: Server[] = []
/** First lines and agents of what the service asked Docker over `watched`. */
const requests: string[] = []

const listen = async (name: string, server: Server): Promise<string> => {
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(at(name), resolve))
  return at(name)
}

/** Hands everything on to Docker and notes what is asked. */
const watched = (): Server =>
  createServer((client) => {
    const docker = connect(engine.socket)
    client.on('data', (bytes: Buffer) => requests.push(bytes.toString('latin1')))
    client.pipe(docker).pipe(client)
    for (const socket of [client, docker])
      socket.on('error', () => client.destroy(docker.destroy().errored ?? undefined))
  })

/**
 * The gRPC of the BuildKit inside Docker, which Docker gives to those that upgrade `/grpc`, as
 * BuildKit's own daemon listens: for gRPC at once.
 */
const builderOf = (): Server =>
  createServer((client) => {
    client.pause()
    const docker = connect(engine.socket)
    docker.write('POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n')
    let head = Buffer.alloc(0)
    const upgrade = (bytes: Buffer): void => {
      head = Buffer.concat([head, bytes])
      const end = head.indexOf('\r\n\r\n')
      if (end < 0) return
      docker.off('data', upgrade)
      expect(head.toString('latin1', 0, end)).toContain(' 101 ')
      client.write(head.subarray(end + 4))
      client.pipe(docker).pipe(client)
    }
    docker.on('data', upgrade)
    for (const socket of [client, docker])
      socket.on('error', () => client.destroy(docker.destroy().errored ?? undefined))
  })

beforeAll(async () => {
  ;[engine, podman, buildkit] = await Promise.all([
    openDockerEngine({ data: '/var/cache/orrery/test-asked', kind: 'asked', buildkit: true }),
    startPodman(),
    startBuildkit(),
  ])
  ;[image, podmanSocket] = await Promise.all([loadSystemImage(engine), podman.serve()])
  service = await openService({
    environment: {
      SERVICE_DOCKER_SOCKET: engine.socket,
      SERVICE_PODMAN_SOCKET: podmanSocket,
      SERVICE_BUILDKIT_SOCKET: buildkit.socket,
      SERVICE_DISCOVERY_WAIT_SECONDS: '120',
      SERVICE_MONITOR_INTERVAL_SECONDS: '3600',
    },
  })
}, 1_800_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  for (const server of servers) server.close()
  await Promise.all([engine?.[Symbol.asyncDispose](), podman?.stop(), buildkit?.stop()])
  rmSync(folder, { recursive: true, force: true })
}, 120_000)

test('preflight: the engine answers, and BuildKit’s daemon lists its worker', async () => {
  expect(await service.get('/preflight/')).toMatchObject({
    docker: { available: true, message: 'the container engine answers (API 1.41)' },
    buildkit: { available: true, message: `BuildKit ${buildkit.version} answers with 1 worker` },
  })
})

describe('an engine at its socket', () => {
  test('Docker gives version, builder and images, whatever DOCKER_HOST says', async () => {
    const before = process.env['DOCKER_HOST']
    process.env['DOCKER_HOST'] = 'tcp://192.0.2.1:2375'
    try {
      expect(await pingEngine(engine.socket)).toEqual({ apiVersion: '1.41', builderVersion: '2' })
      const { product, version, apiVersion, images } = await describeEngine(engine.socket)
      expect([product, version, apiVersion]).toEqual([
        'docker',
        await engine.docker('version', '--format', '{{.Server.Version}}'),
        '1.41',
      ])
      const id = await engine.docker('image', 'inspect', '--format', '{{.Id}}', image)
      expect(images).toContainEqual({ name: image, digest: id })
      expect(await imageDigest(engine.socket, id, image)).toBe(id)
      expect(await imageDigest(engine.socket, `sha256:${'0'.repeat(64)}`, image)).toBeUndefined()
    } finally {
      if (before === undefined) delete process.env['DOCKER_HOST']
      else process.env['DOCKER_HOST'] = before
    }
  })

  test('Podman does too; it does not build with BuildKit', async () => {
    expect(await pingEngine(podmanSocket)).toEqual({ apiVersion: '1.41', builderVersion: '' })
    const { product, version, images } = await describeEngine(podmanSocket)
    expect([product, `podman version ${version}`]).toEqual(['podman', await podman.podman('--version')])
    const [id = '', digests = ''] = (
      await podman.podman('image', 'inspect', '--format', '{{.Id}} {{.Digest}}', podman.image)
    ).split(' ')
    const [own] = images.filter(({ name }) => name === podman.image)
    expect(own?.digest).toMatch(digestForm)
    expect([digests, `sha256:${id}`]).toContain(own?.digest)
    expect(await imageDigest(podmanSocket, id, podman.image)).toBe(own?.digest)
    expect(await imageDigest(podmanSocket, 'f'.repeat(64), podman.image)).toBeUndefined()
  })

  test('of an image from a registry the digest is the registry’s, also where the engine has it under several names', async () => {
    const registry = await startLoopbackRegistry(at('registry'))
    const names = [`${registry.address}/app/one:1`, `${registry.address}/app/other:1`] as const
    const [one, other] = names
    for (const name of names) await engine.docker('tag', image, name)
    try {
      for (const name of names) await engine.docker('push', '--quiet', name)
      const [id = '', pushed = ''] = (
        await engine.docker('image', 'inspect', '--format', '{{.Id}} {{index .RepoDigests 0}}', one)
      ).split(' ')
      const digest = pushed.slice(pushed.indexOf('@') + 1)
      expect(digest).toMatch(digestForm)
      expect(digest).not.toBe(id)
      expect(await imageDigest(engine.socket, id, other)).toBe(digest)
      expect(await imageDigest(engine.socket, id, `${one.replace(/:1$/, '')}@${digest}`)).toBe(digest)
      expect((await describeEngine(engine.socket)).images).toContainEqual({ name: other, digest })
    } finally {
      await engine.docker('rmi', ...names)
      await registry.stop()
    }
  }, 180_000)
})

test('the older BuildKit inside Docker lists its worker too; the socket of an engine is none of BuildKit', async () => {
  expect(await listWorkers(await listen('builder', builderOf()), 3_000)).toMatchObject({ workers: 1 })
  await expect(listWorkers(engine.socket, 3_000)).rejects.toThrow(
    /^(it is not started|what answers is no BuildKit)/,
  )
})

describe('a connection of type local', () => {
  const saved = async (id: string): Promise<{ path: string; environmentId: string }> => {
    await service.post('/environments/', {
      environment: { id, name: id },
      version: { id: `${id}-v1`, version: 1 },
    })
    const path = `/environment-connections/${id}/`
    await service.ok('PUT', path, { id, name: id, environmentId: id, type: 'local', endpoint: 'localhost' })
    return { path, environmentId: id }
  }

  test('its check names each engine with its version, and says what answers', async () => {
    const { path } = await saved('checked')
    const { status, metadata } = await service.post(`${path}health/`)
    expect(status).toBe('online')
    const { detail } = metadata.stages.find(({ stage }: { stage: string }) => stage === 'container engine')
    const { version } = await describeEngine(engine.socket)
    expect(detail).toMatch(
      /^docker \S+ \(API 1\.41, \d+ images?\), podman \d+\.\d+\.\d+ \(API 1\.41, 1 image\)/,
    )
    expect(detail).toContain(`docker ${version} `)
  }, 60_000)

  test('its discovery keeps engines and versions with the machine, and images with the snapshot', async () => {
    const { path, environmentId } = await saved('discovered')
    const { snapshots } = await service.post(`${path}discover/`)
    const { resources } = await service.get(`/environments/${environmentId}/`)
    const machine = resources.find(({ type }: { type: string }) => type === 'local_machine')
    const { version } = await describeEngine(engine.socket)
    expect(machine.metadata).toMatchObject({
      containerEngines: expect.arrayContaining(['docker', 'podman']),
      containerEngineVersions: { docker: version, podman: expect.any(String) },
    })
    const id = await engine.docker('image', 'inspect', '--format', '{{.Id}}', image)
    const images = snapshots[0].metadata.containerImages
    expect(images).toContainEqual({ engine: 'docker', name: image, digest: id })
    expect(images).toContainEqual({
      engine: 'podman',
      name: podman.image,
      digest: expect.stringMatching(digestForm),
    })
  }, 120_000)
})

test('the digest that a task on this machine ran is the engine’s own answer', async () => {
  const socket = await listen('watched', watched())
  const world = await makeWorld(service, {
    name: 'task',
    tasks: [{ name: 'one', run: 'echo from inside', image, memory: '64Mi', lane: [0, 0] }],
    cores: [2],
    places: [inContainers({ containerRuntime: 'docker', containerHost: `unix://${socket}` })],
  })
  await service.post('/execution-runs/', { id: 'task-run', schedulePlanId: world.planId, mode: 'real' })
  const { run, activities } = await service.finished('task-run', 120)
  expect([run.failureReason, run.status]).toEqual([undefined, 'completed'])
  const id = await engine.docker('image', 'inspect', '--format', '{{.Id}}', image)
  expect(activities[0].metadata).toMatchObject({
    ...{ engine: 'docker', imageDigest: id },
    // Pinned when the run was accepted.
    image: `${image}@${id}`,
  })
  // The program `docker`, which the launcher uses, writes the version of the API before the path.
  expect(requests.filter((request) => request.startsWith(`GET /images/${id}/json `))).toHaveLength(1)
}, 180_000)
