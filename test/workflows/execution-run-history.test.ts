import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { ApplicationFailure } from '@temporalio/common'
import { NativeConnection, Worker } from '@temporalio/worker'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beating } from '../../activities/beating.ts'
import { runKind } from '../../src/domains/execution-runs/operation.ts'
import { claimSite, commitSite, LeasePassedOn } from '../../src/executor/journal.ts'
import { intentName } from '../../src/executor/names.ts'
import { emptyEntry } from '../../src/executor/scheduling-state.ts'
import { readOperation } from '../../src/operations/records.ts'
import { until } from '../failures/programs.ts'
import {
  historiesFolder as folder,
  historyOf as readHistory,
  replayed as replay,
} from '../support/histories.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { makeWorld } from '../support/worlds.ts'
import { workflowBundle } from '../support/workflow-bundle.ts'

const canary = 'canary-0f3b7c'

let service: TestService
let bundle: { codePath: string }
let connection: Connection
let client: Client
beforeAll(async () => {
  service = await openService()
  bundle = await workflowBundle()
  connection = await Connection.connect({ address: temporalAddress() })
  client = new Client({ connection, namespace: service.namespace })
})
afterAll(async () => {
  await connection.close()
  await service[Symbol.asyncDispose]()
})

/** Texts of all payloads of a history, however deep. */
const payloads = (value: unknown, found: string[] = []): string[] => {
  if (typeof value !== 'object' || value === null) return found
  for (const [key, item] of Object.entries(value)) {
    if (key === 'data' && typeof item === 'string') found.push(Buffer.from(item, 'base64').toString('utf8'))
    else payloads(item, found)
  }
  return found
}

const historyOf = (workflowId: string) =>
  readHistory({ connection, namespace: service.namespace }, workflowId)
const replayed = (name: string, workflowId: string) =>
  replay({ connection, namespace: service.namespace }, name, workflowId)

test('a run of 300 activities costs a handful of events, carries ids and small facts only, and replays', async () => {
  const world = await makeWorld(service, {
    name: 'history',
    launch: 'none',
    cores: [16],
    tasks: Array.from({ length: 300 }, (_, i) => ({
      name: `t${String(i)}`,
      run: `echo ${canary}`,
      environment: { SECRET: canary },
      after: i < 16 ? [] : [`t${String(i - 16)}`],
    })),
  })
  await service.post('/execution-runs/', {
    id: 'history',
    schedulePlanId: world.planId,
    mode: 'real',
    title: `title ${canary}`,
  })
  expect((await service.finished('history')).run.status).toBe('completed')
  const { events, json } = await historyOf('execution-run/history/1')
  expect(events.length).toBeLessThan(60)
  // Not the queue of plans, simulations and operations: a run keeps its slot for as long as it lasts.
  const queues = json.events.flatMap(
    ({ activityTaskScheduledEventAttributes: activity }: any) => activity?.taskQueue.name ?? [],
  )
  expect(queues).toEqual(['orrery/runs'])
  expect(JSON.stringify(json).length).toBeLessThan(64 * 1024)
  const texts = payloads(json)
  expect(texts.length).toBeGreaterThan(3)
  expect(texts.filter((text) => text.length > 4_096)).toEqual([])
  expect(texts.filter((text) => text.includes(canary))).toEqual([])
  await Worker.runReplayHistory({ workflowBundle: bundle }, json, 'execution-run/history/1')
})

test('simulation, failure, cancel and planning replay as well', async () => {
  const world = await makeWorld(service, {
    name: 'shapes',
    cores: [2],
    tasks: [
      { name: 'a', run: 'true' },
      { name: 'b', run: 'exit 3', after: ['a'] },
      { name: 'c', run: 'sleep 86400' },
    ],
  })
  await service.post('/execution-runs/', {
    id: 'simulated',
    schedulePlanId: world.planId,
    mode: 'simulation',
  })
  await service.post('/execution-runs/', {
    id: 'failed',
    schedulePlanId: world.planId,
    mode: 'real',
    onFailure: 'finish-independent',
  })
  await service.finished('simulated')
  await until(
    'the failure',
    120,
    async () => (await service.get('/execution-runs/failed/')).run.failedActivityCount === 1,
  )
  await service.post('/execution-runs/failed/cancel/')
  expect((await service.finished('failed')).run.status).toBe('cancelled')
  await service.post('/planning-sessions/', {
    id: 'planned',
    workflowVersionId: world.workflowVersionId,
    executionScopeId: 'shapes-scope',
    networkTopologyId: 'shapes-network',
    algorithms: [{ id: 'heft' }],
  })
  await until(
    'the session',
    120,
    async () => (await service.get('/planning-sessions/planned/')).session.status === 'completed',
  )
  for (const [name, workflowId, end] of [
    ['execution-run-simulation', 'execution-run/simulated/1', 'COMPLETED'],
    ['execution-run-cancelled', 'execution-run/failed/1', 'CANCELLED'],
    ['planning-session', 'planning-session/planned/1', 'COMPLETED'],
  ] as const) {
    await client.workflow
      .getHandle(workflowId)
      .result()
      .catch(() => undefined)
    expect([workflowId, (await client.workflow.getHandle(workflowId).describe()).status.name]).toEqual([
      workflowId,
      end,
    ])
    await replayed(name, workflowId)
  }
})

test('a workflow ends as its record, and each end replays', async () => {
  const long = await makeWorld(service, {
    name: 'ends',
    cores: [4],
    tasks: [{ name: 'a' }, { name: 'b', run: 'sleep 86400', after: ['a'] }],
  })
  const broken = await makeWorld(service, { name: 'broken', tasks: [{ name: 'a', run: 'exit 3' }] })
  const start = (id: string, planId: string) =>
    service.post('/execution-runs/', { id, schedulePlanId: planId, mode: 'real' })
  await start('broken', broken.planId)
  for (const id of ['pressed', 'unheard']) {
    await start(id, long.planId)
    await until(
      `the first end of ${id}`,
      120,
      async () => (await service.get(`/execution-runs/${id}/`)).run.completedActivityCount > 0,
    )
  }
  await client.workflow.getHandle('execution-run/pressed/1').cancel()
  // As the API leaves a run that it cancels while Temporal is away.
  await service.db.prepared(
    'unheard',
    'update execution_runs set cancel_requested_at = now() where id = $1',
    ['unheard'],
  )
  await service.post('/environments/', {
    environment: { id: 'here', name: 'here' },
    version: { id: 'here-v1', version: 1 },
  })
  const connection = {
    id: 'here',
    name: 'here',
    type: 'ssh',
    environmentId: 'here',
    endpoint: '169.254.0.1',
    username: 'nobody',
  }
  await service.ok('PUT', '/environment-connections/here/', connection)
  await service.call('POST', '/environment-connections/here/discover/')
  for (const [name, workflowId, end] of [
    ['execution-run-ended-failed', 'execution-run/broken/1', 'FAILED'],
    ['execution-run-temporal-cancel', 'execution-run/pressed/1', 'CANCELLED'],
    ['execution-run-asked-for-cancel', 'execution-run/unheard/1', 'CANCELLED'],
    ['connection-discovery-ended-failed', 'connection-discovery/here/1', 'FAILED'],
  ] as const) {
    await client.workflow
      .getHandle(workflowId)
      .result()
      .catch(() => undefined)
    expect([workflowId, (await client.workflow.getHandle(workflowId).describe()).status.name]).toEqual([
      workflowId,
      end,
    ])
    await replayed(name, workflowId)
  }
})

proved('a site that rests goes on when another site has ended what it waits for', async () => {
  const gate = join(runFolder(), 'resting-site-go')
  const waits = (name: string): string => `until [ -e ${gate}-${name} ]; do sleep 0.05; done`
  const world = await makeWorld(service, {
    name: 'resting',
    cores: [1, 1],
    tasks: [
      // Their ends open nothing elsewhere.
      ...Array.from({ length: 10 }, (_, i) => ({
        name: `own-${String(i)}`,
        run: 'sleep 0.6',
        lane: [0, 0] as [number, number],
      })),
      { name: 'a', run: waits('a'), lane: [0, 0] },
      { name: 'b', after: ['a'], lane: [1, 0], launch: 'none' },
      { name: 'c', run: waits('c'), after: ['b'], lane: [0, 0] },
      { name: 'd', after: ['c'], lane: [1, 0], launch: 'none' },
      { name: 'e', run: 'true', after: ['d'], lane: [0, 0] },
    ],
  })
  await service.post('/execution-runs/', { id: 'resting', schedulePlanId: world.planId, mode: 'real' })
  for (const name of ['a', 'c']) {
    await until(`the other site rests while ${name} runs`, 120, async () => {
      const { activities, live } = await service.get('/execution-runs/resting/')
      const task = activities.find(({ externalId }: any) => externalId === name)
      return (
        task?.status === 'running' &&
        live?.sites.some(
          ({ site, state }: any) => site === 'rehearsal' && state === 'waiting for other sites',
        )
      )
    })
    writeFileSync(`${gate}-${name}`, '')
  }
  const { run, activities } = await service.finished('resting')
  expect(run).toMatchObject({ status: 'completed', completedActivityCount: 15 })
  expect(activities.slice(-5).map((task: any) => task.runtimeId)).toEqual(
    ['local', 'none', 'local', 'none', 'local'].map((way) => `resting-${way}`),
  )
  // A site rests until a timer fires. The end elsewhere comes as a wake: the workflow's next task after
  // it ends each rest, however long the timers are.
  const { json } = await historyOf('execution-run/resting/1')
  const types = json.events.map(({ eventType }: any) => eventType.replace('EVENT_TYPE_', ''))
  const wakes = json.events.flatMap(({ workflowExecutionSignaledEventAttributes: signal }: any, at: number) =>
    signal?.signalName === 'wake' ? [at] : [],
  )
  expect(wakes.length).toBeGreaterThan(0)
  // The ends of a, b, c and d alone.
  expect(wakes.length).toBeLessThanOrEqual(4)
  for (const wake of wakes) {
    const handled = types.indexOf('WORKFLOW_TASK_COMPLETED', types.indexOf('WORKFLOW_TASK_STARTED', wake))
    const late = json.events
      .slice(handled)
      .flatMap(({ timerFiredEventAttributes: fired }: any) =>
        fired !== undefined && Number(fired.startedEventId) <= wake ? [fired] : [],
      )
    expect([wake, late]).toEqual([wake, []])
  }
})

proved('a long history begins anew while a task is in flight, and the task goes on', async () => {
  const go = join(runFolder(), 'long-history-go')
  const world = await makeWorld(service, {
    name: 'renewed',
    tasks: [{ name: 'only', run: `echo once >> ${go}.ledger; while [ ! -e ${go} ]; do sleep 0.05; done` }],
  })
  await service.post('/execution-runs/', { id: 'renewed', schedulePlanId: world.planId, mode: 'real' })
  await until('it runs', 120, () => existsSync(`${go}.ledger`))
  const handle = client.workflow.getHandle('execution-run/renewed/1')
  const first = (await handle.describe()).runId
  await until('its history begins anew', 120, async () => {
    await Promise.all(Array.from({ length: 100 }, () => handle.signal('wake')))
    return (await handle.describe()).runId !== first
  })
  writeFileSync(go, '')
  const { run, activities } = await service.finished('renewed')
  expect([run.status, activities[0].attempt]).toEqual(['completed', 1])
  expect(readFileSync(`${go}.ledger`, 'utf8')).toBe('once\n')
})

test('a cancelled run ends though the host of its site never comes back, and replays', async () => {
  const id = 'hostless'
  const world = await makeWorld(service, {
    name: id,
    cores: [2],
    hostId: 'gone',
    tasks: [
      { name: 'a', run: 'sleep 86400' },
      { name: 'b', after: ['a'] },
    ],
  })
  await service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' })
  const site = 'local@gone'
  await until('it waits for its host', 120, async () => {
    const { run, live } = await service.get(`/execution-runs/${id}/`)
    return run.status === 'running' && live?.sites[0]?.site === site
  })
  // As its host leaves a run that goes on while the host is away.
  const { epoch } = await claimSite(service.db, id, site, 'gone/1')
  const lanes: [string, string, string][] = [[`${id}-host-1`, 'core-0', 'default']]
  const start = { id: `${id}:${id}-a`, directory: null, host: 'gone', readyAt: 1, startedAt: 2, lanes }
  const key = (await readOperation(service.db, runKind, { id }))?.key ?? ''
  const name = intentName(key, 0, 1)
  const intents = [{ ...start, name, ahead: false }]
  expect((await commitSite(service.db, id, site, epoch, { ...emptyEntry(), intents })).acquired).toHaveLength(
    1,
  )
  expect((await service.call('POST', `/execution-runs/${id}/cancel/`)).status).toBe(202)
  const age = async (table: string, column: string, of: string): Promise<void> => {
    const sql = `update ${table} set ${column} = now() - interval '1 hour' where ${of} = $1`
    await service.db.prepared(`age_${table}`, sql, [id])
  }
  await age('site_leases', 'renewed_at', 'execution_run_id')
  await age('execution_runs', 'cancel_requested_at', 'id')
  const { run, activities } = await service.finished(id)
  expect([run.status, run.failureReason]).toEqual(['cancelled', 'cancelled on request'])
  expect(activities.map(({ status, failureReason }: any) => [status, failureReason])).toEqual([
    ['cancelled', `no worker serves the site ${site}: what runs there is ended when one does`],
    ['cancelled', 'the run was cancelled'],
  ])
  const left = await service.db.prepared(
    'left_of',
    'select * from site_leftovers where execution_run_id = $1',
    [id],
  )
  expect(left).toMatchObject([{ site, name }])
  // The host, should it come back, writes nothing more.
  await expect(commitSite(service.db, id, site, epoch, emptyEntry())).rejects.toThrow(LeasePassedOn)
  await replayed('execution-run-abandoned', `execution-run/${id}/1`)
  expect((await service.call('DELETE', `/execution-runs/${id}/`)).status).toBe(204)
})

test('a site that rests waits for nothing on the page, and its run replays', async () => {
  const taskQueue = 'rests'
  /** By site: ends the activity that runs there. */
  const release = new Map<string, (outcome: { settled: boolean; completed: number }) => void>()
  const activities = {
    openRun: () =>
      Promise.resolve({
        state: 'execute',
        total: 2,
        sites: ['near', 'far'].map((site) => ({ site, taskQueue })),
      }),
    runSite: (_run: string, _generation: number, site: string) =>
      beating(() => new Promise((resolve) => release.set(site, resolve))),
    closeRun: () => Promise.resolve({ status: 'completed', completed: 2 }),
  }
  const native = await NativeConnection.connect({ address: temporalAddress() })
  const at = { connection: native, namespace: service.namespace, taskQueue }
  const worker = await Worker.create({ ...at, workflowBundle: bundle, activities })
  const workflowId = 'execution-run/rests/1'
  await worker.runUntil(async () => {
    const handle = await client.workflow.start('executionRun', { taskQueue, workflowId, args: ['rests', 1] })
    const reasonIs = (reason: string | undefined) =>
      until(`the reason ${String(reason)} on the page`, 120, async () => {
        const { searchAttributes } = await handle.describe()
        return (searchAttributes['WaitsFor']?.[0] ?? undefined) === reason
      })
    const end = async (site: string, settled: boolean): Promise<void> => {
      const ends = await until(`the work at ${site}`, 120, () => release.get(site))
      release.delete(site)
      ends({ settled, completed: 1 })
    }
    await until('the work at both sites', 120, () => release.size === 2)
    // What a site signals just before it has nothing left to do.
    const waits = [{ kind: 'cores', site: 'near', reason: 'waits for a core', tasks: 1 }]
    await handle.signal('progress', 'near', 1, 0, { paused: false, waits })
    await reasonIs('cores near')
    await end('near', false)
    await reasonIs(undefined)
    await end('far', true)
    await end('near', true)
    await handle.result()
  })
  await native.close()
  await replayed('execution-run-rests', workflowId)
})

test('a wake that comes while a site is being left ends its rest, and replays', async () => {
  const taskQueue = 'leaves'
  const site = { site: 'near', taskQueue: `${taskQueue}/runs` }
  const opened = { state: 'execute', total: 1, sites: [site] }
  const activities = {
    openRun: () => Promise.resolve(opened),
    closeRun: () => Promise.resolve({ status: 'completed', completed: 1 }),
  }
  const leave: ((outcome: { settled: boolean; completed: number }) => void)[] = []
  const runSite = () => beating(() => new Promise((resolve) => leave.push(resolve)))
  const native = await NativeConnection.connect({ address: temporalAddress() })
  const at = { connection: native, namespace: service.namespace }
  const withWorkflows = async (work: () => Promise<unknown>) =>
    (await Worker.create({ ...at, taskQueue, workflowBundle: bundle, activities })).runUntil(work)
  const workflowId = 'execution-run/leaves/1'
  const typesOf = async () => (await historyOf(workflowId)).json.events.map(({ eventType }: any) => eventType)
  const sites = await Worker.create({ ...at, taskQueue: site.taskQueue, activities: { runSite } })
  await sites.runUntil(async () => {
    const handle = await client.workflow.start('executionRun', { taskQueue, workflowId, args: ['leaves', 1] })
    await withWorkflows(() => until('the work', 120, () => leave.length === 1))
    // No worker takes the workflow meanwhile: it sees both at once.
    await handle.signal('wake')
    leave[0]?.({ settled: false, completed: 0 })
    await until('the end of the work', 120, async () =>
      (await typesOf()).includes('EVENT_TYPE_ACTIVITY_TASK_COMPLETED'),
    )
    await withWorkflows(async () => {
      await until('the work again', 120, () => leave.length === 2)
      leave[1]?.({ settled: true, completed: 1 })
      await handle.result()
    })
  })
  await native.close()
  expect(await typesOf()).not.toContain('EVENT_TYPE_TIMER_STARTED')
  await replayed('execution-run-leaves', workflowId)
})

test('workers of the host with files of a run finish them before its end, or refuse; both replay', async () => {
  const taskQueue = 'closes'
  const filesAt = `${taskQueue}@keeper`
  const steps: string[] = []
  const activities = {
    openRun: () => Promise.resolve({ state: 'execute', total: 1, sites: [] }),
    closeRun: (id: string, _generation: number, files: string) => {
      steps.push(`${id}: ${files}`)
      return Promise.resolve(files === 'to finish' ? { filesAt } : { status: 'completed', completed: 1 })
    },
  }
  const finishFiles = (id: string) => {
    steps.push(`${id}: finishes`)
    return id === 'refused' ? Promise.reject(ApplicationFailure.nonRetryable('no')) : Promise.resolve()
  }
  const native = await NativeConnection.connect({ address: temporalAddress() })
  const at = { connection: native, namespace: service.namespace }
  const shared = await Worker.create({ ...at, taskQueue, workflowBundle: bundle, activities })
  const keeper = await Worker.create({ ...at, taskQueue: filesAt, activities: { finishFiles } })
  await keeper.runUntil(() =>
    shared.runUntil(async () => {
      for (const id of ['brought', 'refused'])
        await client.workflow.execute('executionRun', {
          ...{ taskQueue, workflowId: `execution-run/${id}/1`, args: [id, 1] },
        })
    }),
  )
  await native.close()
  expect(steps).toEqual([
    ...['brought: to finish', 'brought: finishes', 'brought: finished'],
    ...['refused: to finish', 'refused: finishes', 'refused: left'],
  ])
  for (const id of ['brought', 'refused']) await replayed(`execution-run-${id}`, `execution-run/${id}/1`)
})

test('a run that waits for an approval says on the page which run it is', async () => {
  const world = await makeWorld(service, { name: 'asks', launch: 'none', tasks: [{ name: 'a' }] })
  const body = { id: 'asks', schedulePlanId: world.planId, mode: 'real', budget: 1e-9, onBudget: 'ask' }
  const { warnings } = await service.post('/execution-runs/', body)
  const warning = {
    path: 'run.budget',
    message: expect.stringMatching(/counts 1 activities of unknown runtime/),
  }
  expect(warnings).toEqual([warning])
  expect(await service.get('/execution-runs/asks/receipt/')).toMatchObject({
    warnings: [`run.budget ${String(warnings[0].message)}`],
  })
  await until(
    'its question',
    120,
    async () => (await service.get('/execution-runs/asks/')).live?.waitingFor === 'approval',
  )
  const handle = client.workflow.getHandle('execution-run/asks/1')
  const { currentDetails } = await handle.query<{ currentDetails: string }>('__temporal_workflow_metadata')
  expect(currentDetails).toMatch(/^asks.*\n\nwaits for the approval/)
  await service.post('/execution-runs/asks/approve/')
  expect((await service.finished('asks')).run.status).toBe('completed')
  await handle.result()
  await replayed('execution-run-approved', 'execution-run/asks/1')
})

test('every recorded history of earlier releases replays on this code, and each workflow has one', async () => {
  const files = readdirSync(folder).filter((file) => file.endsWith('.json'))
  const types = new Set<unknown>()
  for (const file of files) {
    const history = JSON.parse(readFileSync(join(folder, file), 'utf8'))
    types.add(history.events[0].workflowExecutionStartedEventAttributes.workflowType.name)
    await Worker.runReplayHistory({ workflowBundle: bundle }, history, file)
  }
  const exported = readFileSync(join(import.meta.dirname, '..', '..', 'workflows', 'index.ts'), 'utf8')
  const known = [...exported.matchAll(/\{ (.*) \}/g)].flatMap(([, names = '']) => names.split(', '))
  expect([...types].sort()).toEqual(known.sort())
})

test('a finished run is read whole when every history is gone', async () => {
  const before = await service.get('/execution-runs/failed/')
  const deleted = [
    'execution-run/history/1',
    'execution-run/simulated/1',
    'execution-run/failed/1',
    'planning-session/planned/1',
  ].map(async (workflowId) => {
    await client.workflowService.deleteWorkflowExecution({
      namespace: service.namespace,
      workflowExecution: { workflowId },
    })
    const gone = () =>
      client.workflow
        .getHandle(workflowId)
        .fetchHistory()
        .then(
          () => false,
          () => true,
        )
    await until(`${workflowId} is deleted`, 120, gone)
  })
  await Promise.all(deleted)
  expect(await service.get('/execution-runs/failed/')).toEqual(before)
  expect((await service.get('/execution-runs/history/activities/?pageSize=100')).items).toHaveLength(100)
})
