import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { eventually, makeVaultKeyFile, onHost } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { startSshServer } from '../support/ssh-server.ts'
import { makeWorld, type World, type WorldTask } from '../support/worlds.ts'

// Why an activity waits: what the run says is true now, and what waits does not count as running.

type Json = any

const cores = availableParallelism()
let service: TestService
beforeAll(async () => {
  service = await openService({
    environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(), SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' },
  })
}, 240_000)
afterAll(() => service?.[Symbol.asyncDispose](), 120_000)

const start = (id: string, world: World): Promise<Json> =>
  service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
const taskOf = async (runId: string, name: string): Promise<Json> => {
  const { activities } = await service.get(`/execution-runs/${runId}/`)
  return activities.find(({ externalId }: Json) => externalId === name)
}
const liveOf = async (runId: string): Promise<Json> => (await service.get(`/execution-runs/${runId}/`)).live
const waits = (runId: string, name: string, waitsFor: string | undefined, seconds = 50): Promise<Json> =>
  eventually(`${name} of ${runId} waits for ${String(waitsFor)}`, seconds, async () => {
    const task = await taskOf(runId, name)
    return task?.metadata?.waitsFor === waitsFor && task
  })
const isRunning = (runId: string, name: string): Promise<Json> =>
  eventually(`${name} of ${runId} runs`, 20, async () => {
    const task = await taskOf(runId, name)
    return task?.status === 'running' && task
  })
const stop = async (...ids: string[]): Promise<void> => {
  for (const id of ids) await service.post(`/execution-runs/${id}/cancel/`)
  for (const id of ids) await service.finished(id)
}
/** Activities that hold one core of this machine each, on lanes of their own. */
const many = (count: number, run: string, extra: Partial<WorldTask> = {}): WorldTask[] =>
  Array.from({ length: count }, (_, k) => ({ name: `t${String(k)}`, run, lane: [0, k] as const, ...extra }))

describe('on this machine', () => {
  test('a lane: said while another run has it, gone within a second of that run, and the wait began once', async () => {
    const world = await makeWorld(service, {
      name: 'lane',
      cores: [1],
      tasks: [{ name: 'a', run: `while [ ! -e ${service.dataDir}/over ]; do sleep 0.05; done` }],
    })
    await start('has-lane', world)
    await isRunning('has-lane', 'a')
    await start('wants-lane', world)
    const waiting = await waits('wants-lane', 'a', 'lane')
    expect(waiting).toMatchObject({
      status: 'queued',
      metadata: { queueReason: expect.stringContaining('its lane is held by') },
    })
    const live = await liveOf('wants-lane')
    expect(live.sites).toMatchObject([{ state: 'waiting', running: 0 }])
    expect(live.waitsFor).toMatchObject([
      { kind: 'lane', activities: 1, since: waiting.queuedAt, text: expect.stringMatching(/, since \d+ s$/) },
    ])
    writeFileSync(`${service.dataDir}/over`, '')
    const { activities } = await service.finished('has-lane')
    const after = await eventually('nothing is said any more', 5, async () => {
      const task = await taskOf('wants-lane', 'a')
      return task.metadata?.queueReason === undefined && task
    })
    expect(after.startedAt - activities[0].finishedAt).toBeLessThan(1)
    expect(after.queuedAt).toBe(waiting.queuedAt)
    await service.finished('wants-lane')
  }, 60_000)

  test('a lane and then a core are two reasons of one wait', async () => {
    const over = `${service.dataDir}/both-over`
    const shared = await makeWorld(service, {
      name: 'both',
      cores: [1],
      tasks: [
        { name: 'a', run: `[ ! -e ${over} ] || sleep 60; while [ ! -e ${over} ]; do sleep 0.05; done` },
      ],
    })
    const others = await makeWorld(service, {
      name: 'others',
      cores: [cores - 1],
      tasks: many(cores - 1, 'sleep 60'),
    })
    const last = await makeWorld(service, { name: 'last', cores: [1], tasks: many(1, 'sleep 60') })
    await start('both-1', shared)
    await isRunning('both-1', 'a')
    await start('fill-others', others)
    await isRunning('fill-others', 't0')
    await start('both-2', shared)
    const first = await waits('both-2', 'a', 'cores')
    await start('fill-last', last)
    await waits('fill-last', 't0', 'cores')
    writeFileSync(over, '')
    await service.finished('both-1')
    // One of the two has the core, and the other says so.
    const behind = await eventually('one runs and the other waits for a core', 10, async () => {
      const found = [await taskOf('both-2', 'a'), await taskOf('fill-last', 't0')]
      const waiting = found.filter(({ status }) => status !== 'running')
      return waiting.length === 1 && waiting[0].metadata?.waitsFor === 'cores' && waiting[0]
    })
    expect(behind).toMatchObject({
      status: 'queued',
      metadata: { queueReason: expect.stringContaining('waiting for a free core of host') },
    })
    expect((await taskOf('both-2', 'a')).queuedAt).toBe(first.queuedAt)
    await stop('fill-others', 'fill-last', 'both-2')
  }, 90_000)

  test('the time of the next attempt', async () => {
    const task = {
      name: 'a',
      run: 'test $AKOFLOW_ATTEMPT = 2',
      policy: { maxAttempts: 2, retryDelaySeconds: 12 },
    }
    const world = await makeWorld(service, { name: 'again', cores: [1], tasks: [task] })
    await start('again-run', world)
    const waiting = await waits('again-run', 'a', 'retry')
    expect(waiting).toMatchObject({
      attempt: 2,
      status: 'queued',
      metadata: { queueReason: 'waiting for its next attempt, 12 s after the last' },
    })
    expect((await liveOf('again-run')).waitsFor).toMatchObject([
      { kind: 'retry', text: expect.stringMatching(/^waits for its next attempt/) },
    ])
    const { run, activities } = await service.finished('again-run')
    expect([run.status, activities[0].metadata?.queueReason]).toEqual(['completed', undefined])
    expect(await service.metrics.text()).toMatch(
      /orrery_task_wait_seconds_count\{driver="local",cause="retry"\} 1/,
    )
  }, 60_000)

  test('another attempt of an earlier run waits for one task of later runs at most', async () => {
    const task = {
      name: 'a',
      run: 'test $AKOFLOW_ATTEMPT = 2',
      policy: { maxAttempts: 2, retryDelaySeconds: 12 },
    }
    const early = await makeWorld(service, { name: 'early', cores: [1], tasks: [task] })
    await start('early-run', early)
    await waits('early-run', 'a', 'retry')
    const ids = ['later-1', 'later-2', 'later-3']
    for (const id of ids) {
      const world = await makeWorld(service, { name: id, cores: [20], tasks: many(20, 'sleep 0.7') })
      await start(id, world)
    }
    const { activities } = await service.finished('early-run')
    const [again] = activities
    const [row] = await service.db.prepared<{ due: number }>(
      'due_of_attempt',
      'select not_before as due from task_executions where execution_run_id = $1 and attempt = 2',
      ['early-run'],
    )
    const due = row?.due ?? 0
    const started = (
      await Promise.all(ids.map(async (id) => (await service.get(`/execution-runs/${id}/`)).activities))
    )
      .flat()
      .map(({ startedAt }: Json) => startedAt as number)
    // Before it was due they had all cores; those that start between are ahead of it.
    expect(started.filter((at) => at < due).length).toBeGreaterThanOrEqual(cores)
    expect(started.filter((at) => at > due && at < again.startedAt).length).toBeLessThanOrEqual(1)
    await stop(...ids)
  }, 120_000)

  test('runs share the cores: one that comes later has its turn while an earlier one has many activities left', async () => {
    const long = await makeWorld(service, { name: 'crowd', cores: [40], tasks: many(40, 'sleep 0.5') })
    const brief = await makeWorld(service, { name: 'brief', cores: [1], tasks: many(1, 'true') })
    await start('crowd-run', long)
    await eventually(
      'the crowd runs',
      20,
      async () => (await service.get('/execution-runs/crowd-run/')).run.completedActivityCount > 0,
    )
    await start('brief-run', brief)
    await service.finished('brief-run', 20)
    expect((await service.get('/execution-runs/crowd-run/')).run.completedActivityCount).toBeLessThan(30)
    await stop('crowd-run')
  }, 120_000)
})

describe('at a site behind a connection', () => {
  test('refused: nothing runs, and the run says since when; then a login; then it runs', async () => {
    const server = await startSshServer({
      second: {
        rounds: [{ prompts: [{ prompt: 'Code: ', echo: false }], judge: ([given]) => given === '12' }],
      },
    })
    const { port } = server
    await service.post('/ssh-keys/import/', { id: 'far', privateKey: server.privateKey })
    const connection = (endpoint: string) => ({
      ...{
        id: 'far-c',
        name: 'far-c',
        type: 'ssh',
        endpoint,
        username: 'root',
        credentialRef: 'vault:ssh-key/far',
      },
      configuration: { knownHosts: `[127.0.0.1]:${String(port)} ${server.hostKey}` },
    })
    const world = await makeWorld(service, {
      ...{ name: 'far', cores: [1], tasks: [{ name: 'a', run: 'sleep 2' }] },
      places: [onHost('far-c', { workDirectory: `${service.dataDir}/far` })],
      // Nothing listens on the discard port of this machine.
      connections: [connection('127.0.0.1:9')],
    })
    await start('far-run', world)
    expect(await waits('far-run', 'a', 'site')).toMatchObject({ status: 'queued' })
    const live = await liveOf('far-run')
    expect(live.sites).toMatchObject([{ site: 'ssh/far-c', state: 'waiting', running: 0 }])
    expect(live.waitsFor).toMatchObject([
      { kind: 'site', text: expect.stringMatching(/^waits for ssh\/far-c: .*refused.*, since \d+ s$/i) },
    ])

    const { environmentId } = await service.get('/environment-connections/far-c/')
    await service.ok('PUT', '/environment-connections/far-c/', {
      ...connection(`127.0.0.1:${String(port)}`),
      environmentId,
    })
    await waits('far-run', 'a', 'login', 60)
    expect((await liveOf('far-run')).waitsFor).toMatchObject([
      { kind: 'login', text: expect.stringMatching(/^waits for login to ssh\/far-c/) },
    ])
    await service.post('/environment-connections/far-c/login/', { answers: ['12'] })
    const running = await eventually('it runs', 60, async () => {
      const task = await taskOf('far-run', 'a')
      return task.status === 'running' && task
    })
    expect(running.metadata?.queueReason).toBeUndefined()
    expect((await service.finished('far-run')).run.status).toBe('completed')
    await server.close()
  }, 180_000)
})
