import { expect } from '@jest/globals'
import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { loadSystemImage, openDockerEngine, type DockerEngine } from '../../sites/docker.ts'
import { startFunctions, type FunctionsSite } from '../../sites/functions.ts'
import { startKubernetes, type KubernetesSite } from '../../sites/kubernetes.ts'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import {
  connectionTo,
  eventually,
  inCluster,
  inContainers,
  makeVaultKeyFile,
  onFunctions,
  onHost,
} from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, type World, type WorldPlace, type WorldTask } from '../support/worlds.ts'
import { checked } from './checked.ts'
import { runFolder } from '../support/run-folder.ts'
import { kubernetesStartMs } from '../../sites/kubernetes-build.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.ssh, ...sites.kubernetes, ...sites.docker)

let service: TestService
let cluster: KubernetesSite
let engine: DockerEngine
let functions: FunctionsSite
let ssh: SshSite
let image: string
const engineData = mkdtempSync(join(runFolder(), 'orrery-places-'))

beforeAll(async () => {
  ;[cluster, engine, functions, ssh, service] = await Promise.all([
    startKubernetes(),
    openDockerEngine({ data: engineData, kind: 'tasks' }),
    startFunctions(),
    startSsh({ hosts: 1 }),
    openService({
      environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' },
    }),
  ])
  image = await loadSystemImage(engine)
  await service.post('/ssh-keys/import/', { id: 'host', privateKey: ssh.key.privateKey })
  await service.post('/kubernetes-tokens/', { id: 'cluster', token: await cluster.token() })
}, kubernetesStartMs)

afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await Promise.all([cluster?.stop(), engine?.[Symbol.asyncDispose](), functions?.stop(), ssh?.stop()])
  rmSync(engineData, { recursive: true, force: true })
}, 120_000)

const clusterConnection = (id: string) => ({
  id,
  name: id,
  type: 'kubernetes',
  endpoint: cluster.server,
  credentialRef: 'vault:kubernetes-token/cluster',
  configuration: { certificateAuthority: cluster.certificateAuthority, namespace: cluster.namespace },
})
const kubernetes = (name: string, more: Record<string, unknown> = {}): WorldPlace =>
  inCluster(`${name}-cluster`, cluster, more)
const docker = (more: Record<string, unknown> = {}): WorldPlace =>
  inContainers({ containerRuntime: 'docker', containerHost: `unix://${engine.socket}`, ...more })
const serverless = (more: Record<string, unknown> = {}): WorldPlace => onFunctions(functions.gateway, more)

const worldAt = (
  name: string,
  tasks: readonly WorldTask[],
  places: readonly (WorldPlace | undefined)[],
  cores = places.map(() => 2),
) =>
  makeWorld(service, {
    name,
    tasks: tasks.map((task) => ({ memory: '64Mi', ...task })),
    cores,
    places,
    connections: [clusterConnection(`${name}-cluster`), connectionTo(`${name}-host`, ssh.hosts[0]!, 'host')],
  })
const run = async (world: World, id: string, seconds = 240) => {
  await service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
  return service.finished(id, seconds)
}
const activity = (detail: any, name: string) =>
  detail.activities.find(({ externalId }: { externalId: string }) => externalId === name)
const logOf = async (runId: string, id: string): Promise<string> =>
  (await service.call('GET', `/execution-runs/${runId}/activities/${id}/logs/`)).text

describe('one run on this machine, in containers, on a cluster, as function calls and on a host by SSH', () => {
  test('completes, its data following, and tells of each activity where it ran', async () => {
    const parts = ['here', 'docker', 'pod', 'function', 'host']
    const imageOf: Record<string, string> = { docker: image, pod: cluster.images.gnu }
    const tasks: WorldTask[] = [
      { name: 'seed', run: 'echo from seed > seed.txt', outputs: ['seed.txt'], lane: [0, 0] },
      ...parts.map((part, i): WorldTask => ({
        name: part,
        after: ['seed'],
        run: `cat seed.txt; echo ${part} > ${part}.txt`,
        outputs: [`${part}.txt`],
        ...(imageOf[part] === undefined ? {} : { image: imageOf[part] }),
        lane: [i, 1],
      })),
      {
        name: 'join',
        after: parts,
        run: 'cat docker.txt function.txt here.txt host.txt pod.txt',
        image: cluster.images.gnu,
        lane: [2, 0],
      },
    ]
    const world = await worldAt('mixed', tasks, [
      undefined,
      docker(),
      kubernetes('mixed'),
      serverless(),
      onHost('mixed-host'),
    ])
    const detail = await run(world, 'mixed-run')
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    for (const part of parts) expect(await logOf('mixed-run', `mixed-${part}`)).toBe('from seed\n')
    expect(await logOf('mixed-run', 'mixed-join')).toBe('docker\nfunction\nhere\nhost\npod\n')
    expect(activity(detail, 'pod')).toMatchObject({
      site: expect.stringMatching(/^kubernetes\//),
      metadata: {
        pod: expect.any(String),
        node: 'node1',
        image: expect.stringContaining(cluster.images.gnu),
        imageDigest: expect.stringMatching(/^sha256:/),
      },
    })
    expect(activity(detail, 'docker')).toMatchObject({
      site: expect.stringMatching(/^local@/),
      metadata: {
        engine: 'docker',
        image: expect.stringContaining(image),
        imageDigest: expect.stringMatching(/^sha256:/),
        pullSeconds: 0,
        coldStartSeconds: expect.any(Number),
      },
    })
    expect(activity(detail, 'function')).toMatchObject({
      site: expect.stringMatching(/^serverless\//),
      metadata: { requestId: expect.any(String) },
    })
    expect(
      (await service.call('GET', '/execution-runs/mixed-run/activities/mixed-pod/outputs/pod.txt')).text,
    ).toBe('pod\n')
    expect(
      (await service.call('GET', '/execution-runs/mixed-run/activities/mixed-function/outputs/function.txt'))
        .text,
    ).toBe('function\n')
    const transfers = await service.get('/execution-runs/mixed-run/data-transfers/')
    const toJoin = transfers.items.filter(
      ({ consumerActivityId }: any) => consumerActivityId === 'mixed-join',
    )
    expect(toJoin.map(({ strategy }: any) => strategy).toSorted()).toEqual([
      'gateway',
      'gateway',
      'gateway',
      'gateway',
    ])
    await checked(service, world, 'mixed-run')
  }, 300_000)

  test('is cancelled everywhere, and nothing of it lives on', async () => {
    const tasks = ['docker', 'pod', 'function'].map((name, i): WorldTask => ({
      name,
      run: `exec sleep 98765`,
      ...(name === 'docker' ? { image } : name === 'pod' ? { image: cluster.images.gnu } : {}),
      lane: [i, 0],
    }))
    const world = await worldAt('stopped', tasks, [docker(), kubernetes('stopped'), serverless()])
    await service.post('/execution-runs/', { id: 'stopped-run', schedulePlanId: world.planId, mode: 'real' })
    const statuses = async (): Promise<string[]> =>
      (await service.get('/execution-runs/stopped-run/')).activities.map(
        ({ status }: { status: string }) => status,
      )
    await eventually('all to run', 120, async () =>
      (await statuses()).every((status) => status === 'running'),
    )
    await service.post('/execution-runs/stopped-run/cancel/')
    const detail = await service.finished('stopped-run', 90)
    expect(detail.run.status).toBe('cancelled')
    expect(detail.activities.map(({ failureReason }: any) => failureReason)).toEqual([
      'cancelled',
      'cancelled',
      'cancelled',
    ])
    expect(await engine.docker('ps', '--quiet', '--filter', 'label=orrery')).toBe('')
    const running = await cluster.kubectl(
      'get',
      'pods',
      '--field-selector=status.phase=Running',
      '-o',
      'name',
    )
    expect(
      running
        .trim()
        .split('\n')
        .filter((name) => !name.includes('keeper')),
    ).toEqual([])
  }, 300_000)
})

describe('what cannot be had', () => {
  test('an image that does not exist fails its activity at once, with the words of the engine, and is not tried again', async () => {
    const tasks = [
      {
        name: 'missing',
        image: '127.0.0.1:1/no/such:1',
        run: 'true',
        policy: { maxAttempts: 3 },
        lane: [0, 0] as const,
      },
    ]
    const world = await worldAt('no-image', tasks, [docker()])
    await service.post('/execution-runs/', { id: 'no-image-run', schedulePlanId: world.planId, mode: 'real' })
    const shown = await eventually('the failure to be shown', 60, async () => {
      const { activities } = await service.get('/execution-runs/no-image-run/?attempts=all')
      return activities.length > 1 || activities[0].status === 'failed' ? activities : undefined
    })
    // Nobody listens there: the registry is away, which may pass.
    expect(shown[0]).toMatchObject({
      status: 'failed',
      failureClass: 'infrastructure',
      failureReason: expect.stringContaining('127.0.0.1:1'),
    })
    await service.post('/execution-runs/no-image-run/cancel/')
    await service.finished('no-image-run', 60)
  }, 150_000)

  test('all that a plan demands and its places do not have is told at once, before anything is stored', async () => {
    const tasks: WorldTask[] = [
      { name: 'call', run: 'true', policy: { timeoutSeconds: 7200 }, lane: [0, 0] },
      { name: 'pod', run: 'true', image: cluster.images.gnu, lane: [1, 0] },
      { name: 'contained', run: 'true', image, lane: [2, 0] },
    ]
    const world = await worldAt('refused', tasks, [
      serverless({ timeLimitSeconds: 900, endpoint: 'ftp://example.org' }),
      {
        driver: 'kubernetes',
        configuration: { connectionId: 'refused-host', overcommit: 0 },
        capabilities: { container: true },
      },
      { driver: 'local', configuration: { containerRuntime: 'docker' } },
    ])
    const answer = await service.call('POST', '/execution-runs/', {
      id: 'refused-run',
      schedulePlanId: world.planId,
      mode: 'real',
    })
    expect(answer.status).toBe(422)
    const paths = answer.body.details.map(({ path }: { path: string }) => path).toSorted()
    expect(paths).toEqual([
      'runtimes.refused-place-1.configuration.endpoint',
      'runtimes.refused-place-2.configuration',
      'runtimes.refused-place-2.configuration.connectionId',
      'runtimes.refused-place-3.capabilities.container',
    ])
    expect((await service.call('GET', '/execution-runs/refused-run/')).status).toBe(404)
  })
})
