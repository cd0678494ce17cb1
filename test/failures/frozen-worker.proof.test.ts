import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { checked } from '../execution-runs/checked.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'
import { ledgerViolations, readLedger, withLedger } from './ledger.ts'
import { startProgram, until, type Program } from './programs.ts'

const hostId = 'fleet'
let service: TestService
let workers: Program[]
const startWorker = (): Promise<Program> =>
  startProgram('worker', {
    SERVICE_DATA_DIR: join(service.dataDir, 'fleet'),
    SERVICE_DATABASE_URL: service.databaseUrl,
    SERVICE_TEMPORAL_ADDRESS: temporalAddress(),
    SERVICE_TEMPORAL_NAMESPACE: service.namespace,
    SERVICE_HOST_ID: hostId,
  })
beforeAll(async () => {
  service = await openService({ environment: { SERVICE_CONSOLE_ENABLED: 'true' } })
  workers = await Promise.all([startWorker(), startWorker()])
}, 120_000)
afterAll(async () => {
  for (const { child, ended } of workers) {
    child.kill('SIGKILL')
    await ended
  }
  await service[Symbol.asyncDispose]()
})

test('a console command of a host runs at its worker; a terminal there is refused with the remedy', async () => {
  const afar = { driver: 'local', configuration: { hostId } }
  await service.post('/environments/', consoleEnvironment('desk', { afar }))
  const record = await service.post('/console-commands/', {
    ...{ resourceId: 'afar', command: 'pwd', timeoutSeconds: 600 },
  })
  expect(record).toMatchObject({ status: 'completed', externalId: expect.anything() })
  expect(record.stdout).toContain(join(service.dataDir, 'fleet'))
  expect(await service.call('POST', '/console-sessions/', { resourceId: 'afar' })).toMatchObject({
    status: 503,
    body: { code: 'not_built' },
    text: expect.stringMatching(/fleet.*\/console-commands\/.*driver ssh/),
  })
})

test('a folder that is not kept is removed on its host, whichever process closes the run', async () => {
  const tasks = [
    { name: 'made', run: 'echo x > f', outputs: ['f'], keepDisk: false },
    // A second site: the run is closed by the process that has its workflow.
    { name: 'rehearsed', launch: 'none' as const },
  ]
  const { planId } = await makeWorld(service, { name: 'unkept', hostId, tasks })
  for (let k = 0; k < 8; k++) {
    const id = `unkept-${String(k)}`
    await service.post('/execution-runs/', { id, schedulePlanId: planId, mode: 'real' })
    const { run, dataLocations } = await service.finished(id, 120)
    expect([run.status, ...dataLocations.map(({ status }: any) => status)]).toEqual(['completed', 'deleted'])
  }
  const made = await service.db.prepared<{ directory: string }>(
    'unkept',
    `select directory from task_executions where execution_run_id like 'unkept-%' and directory like $1`,
    [`${join(service.dataDir, 'fleet')}/%-made/%`],
  )
  expect(made).toHaveLength(8)
  expect(made.filter(({ directory }) => existsSync(directory))).toEqual([])
}, 300_000)

/** The process that holds the run's site now. */
const holderOf = (runId: string): Promise<number> =>
  until('a worker holds the run', 60, async () => {
    const [row] = await service.db.prepared<{ holder: string }>(
      'holder',
      'select holder from site_leases where execution_run_id = $1',
      [runId],
    )
    return row === undefined ? undefined : Number(row.holder.split('/')[1])
  })
const ledgerWorld = (name: string, count: number, seconds: number) => {
  const ledger = join(service.dataDir, `${name}.ledger`)
  writeFileSync(ledger, '')
  const tasks = Array.from({ length: count }, (_, i) => ({
    name: `t${String(i)}`,
    run: withLedger(ledger, `sleep ${String(seconds)}`),
    after: i < 2 ? [] : [`t${String(i - 2)}`],
  }))
  return makeWorld(service, { name, hostId, tasks }).then((world) => ({ world, ledger }))
}

test('a worker that was frozen while another took over changes nothing when it wakes', async () => {
  const { world, ledger } = await ledgerWorld('frozen', 40, 0.6)
  await service.post('/execution-runs/', { id: 'frozen-run', schedulePlanId: world.planId, mode: 'real' })
  const first = await holderOf('frozen-run')
  await until(
    'some tasks have ended',
    60,
    async () => (await service.get('/execution-runs/frozen-run/')).run.completedActivityCount >= 4,
  )
  process.kill(first, 'SIGSTOP')
  let second: number
  try {
    second = await until('another worker holds the run', 60, async () => {
      const pid = await holderOf('frozen-run')
      return pid === first ? undefined : pid
    })
    const { run } = await service.get('/execution-runs/frozen-run/')
    await until(
      'the other worker goes on',
      60,
      async () =>
        (await service.get('/execution-runs/frozen-run/')).run.completedActivityCount >=
        run.completedActivityCount + 4,
    )
  } finally {
    process.kill(first, 'SIGCONT')
  }
  expect(second).not.toBe(first)
  const { run } = await service.finished('frozen-run', 120)
  expect(run).toMatchObject({ status: 'completed', completedActivityCount: 40 })
  await checked(service, world, 'frozen-run')
  expect(
    ledgerViolations(
      readLedger(ledger),
      'frozen-run',
      world.tasks.map((task) => world.activityId(task.name)),
      2,
    ),
  ).toEqual([])
  // The one that slept is well and serves again.
  expect(workers.every(({ child }) => child.exitCode === null && child.signalCode === null)).toBe(true)
}, 300_000)

test('a worker that is stopped in order lets its tasks go on, and the other adopts them at once', async () => {
  const { world, ledger } = await ledgerWorld('drained', 24, 0.5)
  await service.post('/execution-runs/', { id: 'drained-run', schedulePlanId: world.planId, mode: 'real' })
  const first = await holderOf('drained-run')
  await until(
    'some tasks have ended',
    60,
    async () => (await service.get('/execution-runs/drained-run/')).run.completedActivityCount >= 4,
  )
  const leaving = workers.find(({ child }) => child.pid === first)
  const began = Date.now()
  leaving?.child.kill('SIGTERM')
  expect(await leaving?.ended).toBe(0)
  expect(Date.now() - began).toBeLessThan(20_000)
  const { run } = await service.finished('drained-run', 120)
  expect(run).toMatchObject({ status: 'completed', completedActivityCount: 24 })
  const record = await checked(service, world, 'drained-run')
  expect(record.activities).toHaveLength(24)
  expect(
    ledgerViolations(
      readLedger(ledger),
      'drained-run',
      world.tasks.map((task) => world.activityId(task.name)),
      2,
    ),
  ).toEqual([])
}, 300_000)

test('a retry still waits for its time when another worker has taken the run over', async () => {
  workers.push(await startWorker())
  const world = await makeWorld(service, {
    name: 'patient',
    hostId,
    tasks: [
      { name: 'flaky', run: '[ $AKOFLOW_ATTEMPT -ge 2 ]', policy: { maxAttempts: 2, retryDelaySeconds: 12 } },
    ],
  })
  await service.post('/execution-runs/', { id: 'patient-run', schedulePlanId: world.planId, mode: 'real' })
  await until(
    'the first attempt has failed',
    150,
    async () =>
      (await service.get('/execution-runs/patient-run/activities/?attempts=all')).items.length === 2,
  )
  const first = await holderOf('patient-run')
  process.kill(first, 'SIGKILL')
  workers.push(await startWorker())
  const { run } = await service.finished('patient-run', 90)
  expect(run).toMatchObject({ status: 'completed' })
  const { activities } = await checked(service, world, 'patient-run')
  expect(activities[1].startedAt - activities[0].finishedAt).toBeGreaterThanOrEqual(12)
}, 330_000)
