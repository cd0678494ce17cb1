import { afterAll, beforeAll, expect, jest } from '@jest/globals'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import { libfaketime, sites } from '../../sites/requirements.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openDatabase } from '../../src/db/pool.ts'
import { openPostgres, postgresFiles } from '../../src/embedded/postgres.ts'
import { findPostgresPrograms, postgresAccount } from '../../src/embedded/postgres-programs.ts'
import { openLog } from '../../src/observability/log.ts'
import {
  cloudCalls,
  cloudEnvironment,
  machineOfInstance,
  openClouds,
  withoutPlaybooks,
} from '../support/cloud.ts'
import { needs } from '../support/needs.ts'
import { eventually } from '../support/reach.ts'
import { openService, type TestService } from '../support/service.ts'
import { dataFolder, removeFolder } from './programs.ts'

/** The clock of PostgreSQL, by which bills and idle times count, is set forward and back. */

const { test } = needs(...sites.ssh, 'faketime')
jest.setTimeout(300_000)

const hour = 3_600

/** A PostgreSQL of its own, whose clock the test sets. */
const openClockedPostgres = async () => {
  const dataDir = dataFolder()
  const { cacheDir } = configFromEnvironment()
  const log = openLog('error')
  const first = await openPostgres({ dataDir, cacheDir, log, fsync: false })
  const { databaseUrl, port } = first
  {
    await using db = openDatabase(databaseUrl, { max: 1 })
    await migrate(db)
  }
  await first.stop()
  const account = postgresAccount(log)
  const { postgres } = await findPostgresPrograms(cacheDir, account)
  const offset = join(dataDir, 'offset')
  const setClock = (seconds: number): void => {
    writeFileSync(offset, `${seconds < 0 ? '' : '+'}${String(seconds)}s\n`, { mode: 0o644 })
  }
  setClock(0)
  const settings = {
    ...{ listen_addresses: '127.0.0.1', unix_socket_directories: '', port: String(port), fsync: 'off' },
    ...{ max_connections: '200', timezone: 'UTC' },
  }
  const server = spawn(
    postgres,
    [
      ...['-D', postgresFiles(dataDir).data],
      ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
    ],
    {
      ...{ cwd: '/', stdio: 'ignore', ...account },
      env: {
        ...{ PATH: '/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC', LD_PRELOAD: libfaketime },
        ...{ FAKETIME_TIMESTAMP_FILE: offset, FAKETIME_NO_CACHE: '1', FAKETIME_DONT_FAKE_MONOTONIC: '1' },
      },
    },
  )
  const ended = once(server, 'exit')
  return {
    databaseUrl,
    setClock,
    close: async () => {
      server.kill('SIGINT')
      await ended
      removeFolder(dataDir)
    },
  }
}

let site: CloudSite
let postgres: Awaited<ReturnType<typeof openClockedPostgres>>
let service: TestService
let calls: ReturnType<typeof cloudCalls>
beforeAll(async () => {
  site = await startCloud({ machines: 'ssh' })
  postgres = await openClockedPostgres()
  await eventually('PostgreSQL answers', 120, async () => {
    await using db = openDatabase(postgres.databaseUrl, { max: 1, onError: () => undefined })
    try {
      return (await db.prepared('clock', 'select now()', [])).length === 1
    } catch {
      return false
    }
  })
  service = await openService({
    databaseUrl: () => postgres.databaseUrl,
    environment: cloudEnvironment(),
  })
  calls = cloudCalls(service)
  await openClouds(service, site)
  await makeTarget('small')
  await makeTarget('kept', { lifecyclePolicy: 'keep', maximumInstances: 1 })
  await service.post('/execution-scopes/', {
    ...{ id: 'scope', name: 'scope', networkTopologyId: '', environmentVersionIds: ['clouds-v1'] },
  })
}, 300_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
  await postgres?.close()
  await site?.stop()
}, 60_000)

const makeTarget = (id: string, more: object = {}) =>
  service.post('/environments/clouds/cloud-capacity-targets/', {
    ...{ id, name: id, provider: 'aws', providerMachineType: 'm5.large', imageReference: 'ami-debian12' },
    ...{ vcpu: 2, memoryMiB: 8_192, maximumInstances: 5, ...withoutPlaybooks, ...more },
    configuration: { pricePerHour: hour, diskSizeGiB: 730, diskPricePerGiBMonth: hour, idleSeconds: hour },
  })
const machineOf = (instanceId: string) => machineOfInstance(service, site, instanceId)
const made = async (instanceId: string): Promise<void> => {
  const { body } = await calls.provision({ capacityTargetId: 'small', instanceId, name: instanceId })
  expect((await calls.over(body.id)).status).toBe('completed')
}
/** The last bill of an instance that is destroyed now. */
const lastBill = async (instanceId: string): Promise<any> => {
  const { status } = await calls.over((await calls.act(instanceId, 'destroy')).body.id)
  expect(status).toBe('completed')
  return (await calls.instance(instanceId)).billing
}
/** A second of a machine costs 1, and one of its disk costs 1. */
const expectPrices = (billing: any): void => {
  expect([billing.computePricePerSecond, billing.diskPricePerSecond]).toEqual([1, 1])
}

test('a clock that is set forward and back while a machine runs is in its last bill with no second', async () => {
  const began = performance.now()
  await made('jumped')
  postgres.setClock(hour)
  const meanwhile = (await calls.instance('jumped')).billing
  expectPrices(meanwhile)
  expect(meanwhile.currentCost).toBeGreaterThan(2 * hour)
  postgres.setClock(0)
  const last = await lastBill('jumped')
  const most = (performance.now() - began) / 1_000
  const { ranMs } = await machineOf('jumped')
  expect(last.accumulatedComputeSeconds).toBeGreaterThan(0)
  expect(last.accumulatedComputeSeconds).toBeLessThan(most)
  expect(last.currentCost).toBeLessThan(2 * most)
  expect(ranMs / 1_000).toBeLessThan(most)
})

test('the bill of a machine that was made before the clock is set back is never negative, and goes on', async () => {
  postgres.setClock(hour)
  const began = performance.now()
  await made('ahead')
  postgres.setClock(0)
  let before = 0
  for (let looks = 0; looks < 5; looks++) {
    const { accumulatedComputeSeconds, currentCost } = (await calls.instance('ahead')).billing
    expect(Math.min(accumulatedComputeSeconds, currentCost)).toBeGreaterThanOrEqual(0)
    before = currentCost
  }
  await eventually('the bill goes on', 120, async () => {
    const { currentCost } = (await calls.instance('ahead')).billing
    return currentCost > before + 2
  })
  const last = await lastBill('ahead')
  const most = (performance.now() - began) / 1_000
  expect(last.accumulatedComputeSeconds).toBeGreaterThan(1)
  expect(last.accumulatedComputeSeconds).toBeLessThan(most)
  expect(last.currentCost).toBeLessThan(2 * most)
  expect(Date.parse(last.finishedAt)).toBeGreaterThanOrEqual(Date.parse(last.startedAt))
})

test('an idle time that a set clock makes unknown ends the machine, and the receipt is its bill', async () => {
  await service.post('/workflow-definitions/', {
    name: 'one',
    spec: {
      ...{ namespace: 'tests', image: 'busybox:1.36' },
      activities: [{ name: 'one', run: 'echo one', cpuLimit: '1', memoryLimit: '64Mi' }],
    },
  })
  await service.post('/schedule-plans/import/', {
    plan: {
      ...{ id: 'one', workflowVersionId: 'one-v1', executionScopeId: 'scope', algorithm: 'by-hand' },
      assignments: [{ activityId: 'one', resourceId: 'kept', coreId: 'core-0', orderOnResource: 0 }],
    },
  })
  postgres.setClock(hour)
  const began = performance.now()
  await service.post('/execution-runs/', { id: 'one', schedulePlanId: 'one', mode: 'real' })
  const { run, activities } = await service.finished('one', 240)
  expect([run.status, run.failureReason]).toEqual(['completed', undefined])
  const instanceId: string = activities[0].cloudInstanceId
  expect((await calls.instance(instanceId)).status).toBe('ready')
  // It would stay for another hour until the time of its last use has come, and then for its idle hour.
  postgres.setClock(0)
  const receipt = await eventually('the end of the machine', 240, async () => {
    const found = await service.get('/execution-runs/one/receipt/')
    return found.final === true && found
  })
  const most = (performance.now() - began) / 1_000
  expect((await machineOf(instanceId)).state).toBe('terminated')
  const { billing } = await calls.instance(instanceId)
  const { actual } = receipt.instances[0]
  expect(actual.seconds).toBeCloseTo(billing.accumulatedComputeSeconds, 3)
  expect(actual.money).toBeCloseTo(billing.currentCost, 3)
  for (const seconds of [actual.seconds, actual.diskSeconds]) {
    expect(seconds).toBeGreaterThanOrEqual(0)
    expect(seconds).toBeLessThan(most)
  }
})
