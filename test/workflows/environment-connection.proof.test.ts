import { expect } from '@jest/globals'
import { Connection, Client } from '@temporalio/client'
import { randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import { endDiscovery, requestDiscovery } from '../../src/domains/environment-connections/discoveries.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, test } = needs(...sites.ssh)

type Json = any

let site: SshSite
let service: TestService
let temporal: Connection
beforeAll(async () => {
  site = await startSsh({ hosts: 1 })
  const keyFile = join(site.folder, 'vault.key')
  writeFileSync(keyFile, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  service = await openService({
    environment: {
      SERVICE_VAULT_KEY_FILE: keyFile,
      SERVICE_MONITOR_INTERVAL_SECONDS: '1',
      SERVICE_DISCOVERY_WAIT_SECONDS: '0',
    },
  })
  temporal = await Connection.connect({ address: temporalAddress() })
}, 120_000)
afterAll(async () => {
  await temporal?.close()
  await service?.[Symbol.asyncDispose]()
  await site?.stop()
}, 120_000)

const until = async (what: string, ask: () => Promise<boolean>, seconds = 90): Promise<void> => {
  const end = Date.now() + seconds * 1_000
  while (!(await ask())) {
    if (Date.now() > end) throw new Error(`${what}: not within ${String(seconds)} s`)
    await new Promise((resolve) => setTimeout(resolve, 250))
  }
}
const connectionOf = async (id: string, at = site): Promise<Json> => ({
  id,
  name: id,
  type: 'ssh',
  endpoint: at.hosts[0].address,
  username: at.user,
  credentialRef: (await service.post('/ssh-keys/import/', { id, privateKey: at.key.privateKey }))
    .credentialRef,
  configuration: { hostKeyFingerprints: [at.hosts[0].fingerprint()], scheduler: 'none' },
})
const statusOf = async (id: string): Promise<string> =>
  (await service.get(`/environments/${id}/`)).environment.status
const workflow = (id: string) =>
  new Client({ connection: temporal, namespace: service.namespace }).workflow.getHandle(id)

test('a monitor keeps the status of an environment true by itself, and ends with it', async () => {
  const document = await connectionOf('watched')
  await service.post('/environments/', {
    environment: { id: 'watched-env', name: 'watched' },
    version: { id: 'watched-v1', version: 1 },
    connections: [document],
  })
  await until('the environment is connected', async () => (await statusOf('watched-env')) === 'connected')
  await site.hosts[0].stopSshd()
  await site.hosts[0].dropSessions()
  await until('the environment is unreachable', async () => (await statusOf('watched-env')) === 'unreachable')
  await site.hosts[0].startSshd()
  await until(
    'the environment is connected again',
    async () => (await statusOf('watched-env')) === 'connected',
  )
  const changes = (
    await service.get('/audit-events/?environmentId=watched-env&eventType=environment.status-changed')
  )
    .map((event: Json) => event.metadata.after)
    .toReversed()
  expect(changes).toEqual(['connecting', 'connected', 'unreachable', 'connected'])

  const handle = workflow('connection-monitor/watched/1')
  expect((await handle.describe()).status.name).toBe('RUNNING')
  expect((await service.call('DELETE', '/environments/watched-env/')).status).toBe(204)
  await until('the monitor has ended', async () => (await handle.describe()).status.name === 'COMPLETED')
}, 300_000)

test('a discovery that takes longer than the request waits is polled at its Location, and in the history', async () => {
  await service.post('/environments/', {
    environment: { id: 'later-env', name: 'later' },
    version: { id: 'later-v1', version: 1 },
  })
  await service.ok('PUT', '/environment-connections/later/', {
    ...(await connectionOf('later')),
    environmentId: 'later-env',
  })
  const answer = await service.call('POST', '/environment-connections/later/discover/')
  expect([answer.status, answer.headers.get('location'), answer.body]).toEqual([
    202,
    '/api/environment-connections/later/discoveries/1/',
    { snapshots: [], status: 'running' },
  ])
  const discovery = (): Promise<Json> => service.get('/environment-connections/later/discoveries/1/')
  await until('the discovery is over', async () => (await discovery())['status'] === undefined)
  expect((await discovery())['snapshots']).toHaveLength(1)
  for (const number of ['2', '0', 'one'])
    expect([
      number,
      (await service.call('GET', `/environment-connections/later/discoveries/${number}/`)).status,
    ]).toEqual([number, 404])
  const discoveries = async (): Promise<Json[]> =>
    (await service.get('/environment-connections/later/history/')).filter(
      (check: Json) => check.metadata?.discovery === 1,
    )
  await until('the discovery is in the history', async () => (await discoveries()).length === 1)
  expect(await discoveries()).toMatchObject([
    { status: 'online', message: expect.stringContaining('discovered 1 resources') },
  ])
  await until('the environment is ready', async () => (await statusOf('later-env')) === 'ready')
}, 180_000)

test('a local connection is offline while the host that it was discovered at takes no check', async () => {
  const environmentId = 'local-env'
  await service.post('/environments/', {
    environment: { id: environmentId, name: 'local' },
    version: { id: 'local-v1', version: 1 },
  })
  const document = { id: 'machine', name: 'machine', type: 'local', environmentId }
  await service.ok('PUT', '/environment-connections/machine/', document)
  const other = await requestDiscovery(service.db, 'machine', 'another')
  await endDiscovery(
    service.db,
    { id: 'machine', environmentId },
    { id: 'machine', generation: other.number },
    { snapshotIds: [] },
  )
  await workflow('connection-monitor/machine/1').signal('wake')
  const newest = async (): Promise<Json> =>
    (await service.get('/environment-connections/machine/history/?limit=1'))[0]
  const isAway = /^no worker of the host "another", which the connection is about, took the check: start/
  await until('its host is away', async () => isAway.test((await newest())?.message ?? ''), 300)
  expect((await newest()).status).toBe('offline')
  // Its discovery at this host makes it one of this host.
  await service.call('POST', '/environment-connections/machine/discover/')
  await until('it is back', async () => (await newest()).status === 'online')
}, 480_000)

test('a check that waits for a host is due elsewhere once the connection has moved from that host', async () => {
  const environmentId = 'moved-env'
  await service.post('/environments/', {
    environment: { id: environmentId, name: 'moved' },
    version: { id: 'moved-v1', version: 1 },
  })
  const document = { id: 'moved', name: 'moved', type: 'local', environmentId }
  await service.ok('PUT', '/environment-connections/moved/', document)
  const gone = await requestDiscovery(service.db, 'moved', 'gone')
  await endDiscovery(
    service.db,
    { id: 'moved', environmentId },
    { id: 'moved', generation: gone.number },
    { snapshotIds: [] },
  )
  const monitor = workflow('connection-monitor/moved/1')
  await monitor.signal('wake')
  const scheduled = async (): Promise<string[]> =>
    ((await monitor.fetchHistory()).events ?? []).flatMap(({ activityTaskScheduledEventAttributes: each }) =>
      each ? [`${each.activityType?.name ?? ''} at ${each.taskQueue?.name ?? ''}`] : [],
    )
  const away = /^checkConnection at .*@gone\//
  await until('a check waits for the host', async () => (await scheduled()).some((each) => away.test(each)))
  await service.call('POST', '/environment-connections/moved/discover/')
  const later = async (): Promise<string[]> =>
    (await scheduled()).slice((await scheduled()).findIndex((each) => each.startsWith('recordUnchecked')) + 1)
  const here = (each: string): boolean => each.startsWith('checkConnection') && !away.test(each)
  await until(
    'it is checked at its host',
    async () =>
      (await scheduled()).some((each) => each.startsWith('recordUnchecked')) &&
      (await later()).filter(here).length > 1,
    300,
  )
  const checks: Json[] = await service.get('/environment-connections/moved/history/')
  expect(checks.filter(({ status }) => status === 'offline')).toEqual([])
}, 480_000)

test('a monitor that was terminated or cancelled is started again, and says so', async () => {
  await service.post('/environments/', {
    environment: { id: 'lost-env', name: 'lost' },
    version: { id: 'lost-v1', version: 1 },
  })
  await service.ok('PUT', '/environment-connections/lost/', {
    ...(await connectionOf('lost')),
    environmentId: 'lost-env',
  })
  const handle = workflow('connection-monitor/lost/1')
  await until(
    'the monitor runs',
    async () => (await handle.describe().catch(() => undefined))?.status.name === 'RUNNING',
  )
  const restarts = async (): Promise<Json[]> =>
    service.get('/audit-events/?eventType=connection.monitor.restarted&connectionId=lost')
  const presses = [() => handle.terminate('as if Temporal had lost it'), () => handle.cancel()]
  for (const [before, press] of presses.entries()) {
    const { runId } = await handle.describe()
    await press()
    await until(
      'the monitor runs again',
      async () => {
        const now = await handle.describe()
        return now.status.name === 'RUNNING' && now.runId !== runId
      },
      150,
    )
    await until('the restart is told', async () => (await restarts()).length === before + 1)
  }
  expect(await restarts()).toMatchObject([{ actorId: 'temporal' }, { actorId: 'temporal' }])
  expect(await service.metrics.registry.getSingleMetricAsString('orrery_workflows_restarted_total')).toMatch(
    /kind="connection-monitor"\} 2$/m,
  )
}, 480_000)

test('the history of a monitor stays bounded: it begins a new one, and goes on', async () => {
  await service.post('/environments/', {
    environment: { id: 'busy-env', name: 'busy' },
    version: { id: 'busy-v1', version: 1 },
  })
  await service.ok('PUT', '/environment-connections/busy/', {
    ...(await connectionOf('busy')),
    environmentId: 'busy-env',
    endpoint: '169.254.0.1',
  })
  const handle = workflow('connection-monitor/busy/1')
  await until(
    'the monitor runs',
    async () => (await handle.describe().catch(() => undefined))?.status.name === 'RUNNING',
  )
  const { runId } = await handle.describe()
  for (let wakes = 0; wakes < 4_000; wakes += 20) {
    await Promise.all(Array.from({ length: 20 }, () => handle.signal('wake')))
    if ((await handle.describe()).runId !== runId) break
  }
  const now = await handle.describe()
  expect([now.runId === runId, now.status.name, now.historyLength < 2_000]).toEqual([false, 'RUNNING', true])
  const before = (await service.get('/environment-connections/busy/history/?limit=1000')).length
  await until(
    'it still checks',
    async () => (await service.get('/environment-connections/busy/history/?limit=1000')).length > before,
  )
}, 300_000)

test('the status changes in time while every place for activities is taken by work that lasts', async () => {
  const hanging = await startSsh({ hosts: 1, sshdConfig: ['ForceCommand sleep 600'] })
  try {
    await service.post('/environments/', {
      environment: { id: 'prompt-env', name: 'prompt' },
      version: { id: 'prompt-v1', version: 1 },
      connections: [await connectionOf('prompt')],
    })
    await service.post('/environments/', {
      environment: { id: 'slow-env', name: 'slow' },
      version: { id: 'slow-v1', version: 1 },
    })
    await service.ok('PUT', '/environment-connections/slow/', {
      ...(await connectionOf('slow', hanging)),
      environmentId: 'slow-env',
    })
    await until('the environment is connected', async () => (await statusOf('prompt-env')) === 'connected')
    const { taskQueue } = await workflow('connection-monitor/prompt/1').describe()
    expect((await service.call('POST', '/environment-connections/slow/discover/')).status).toBe(202)
    const client = new Client({ connection: temporal, namespace: service.namespace })
    // More than the 200 activities that a process takes at once, all of them at the host that never
    // answers; the next ones take their places where a login is given up.
    for (let started = 0; started < 600; started += 50)
      await Promise.all(
        Array.from({ length: 50 }, (_, position) =>
          client.workflow.start('connectionDiscovery', {
            taskQueue,
            workflowId: `slow-${String(started + position)}`,
            args: ['slow', 1],
          }),
        ),
      )
    const waiting = async (): Promise<number> => {
      const { stats } = await temporal.workflowService.describeTaskQueue({
        namespace: service.namespace,
        taskQueue: { name: taskQueue },
        // Activities.
        taskQueueType: 2 as never,
        reportStats: true,
      })
      return Number(stats?.approximateBacklogCount ?? 0)
    }
    await until('activities wait for a place', async () => (await waiting()) > 20)
    await site.hosts[0].stopSshd()
    await site.hosts[0].dropSessions()
    const from = Date.now()
    await until(
      'the environment is unreachable',
      async () => (await statusOf('prompt-env')) === 'unreachable',
    )
    const took = Date.now() - from
    expect(await waiting()).toBeGreaterThan(0)
    // The work that fills the places lasts 600 s.
    expect(took).toBeLessThan(60_000)
  } finally {
    await site.hosts[0].startSshd()
    await hanging.stop()
  }
}, 300_000)
