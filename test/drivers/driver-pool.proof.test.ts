import { afterEach, beforeEach, expect, test } from '@jest/globals'
import { mkdtempSync, readdirSync, readlinkSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openSiteDrivers, type SiteDrivers } from '../../src/executor/drivers.ts'
import { openHostCores } from '../../src/executor/host-cores.ts'
import { placeOf, type SiteFacts } from '../../src/executor/sites.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { RuntimeDriver } from '../../src/drivers/runtime/contract/driver.ts'
import { openNoneDriver } from '../../src/drivers/runtime/none/driver.ts'
import { openSshDriver } from '../../src/drivers/runtime/remote/ssh.ts'
import { runFolder } from '../support/run-folder.ts'
import { until } from '../../sites/ground.ts'
import { plainIntent, taskName } from './intent.ts'

/** Drivers stay open as long as somebody uses them, and no longer. */

let scratch: string
let shell: ReturnType<typeof openLocalShell>
let sites: SiteDrivers | undefined
beforeEach(() => {
  scratch = mkdtempSync(join(runFolder(), 'orrery-pool-'))
  shell = openLocalShell()
})
afterEach(async () => {
  await sites?.close()
  sites = undefined
  await shell.close()
  rmSync(scratch, { recursive: true, force: true })
})

const absent = (): never => {
  throw new Error('not asked for in these tests')
}
const open = (idleMs: number): SiteDrivers => {
  const none = openNoneDriver()
  return openSiteDrivers({
    local: { ...none, closeScope: () => Promise.resolve() },
    rehearsal: none,
    ways: {
      shellOf: () => shell,
      machineShell: () => shell,
      clusterOf: absent,
      slurmrestd: { http: { request: absent }, tokenOf: absent },
      functions: { root: scratch, invoke: absent, credentialOf: absent },
    },
    localShell: shell,
    reachOf: () => Promise.resolve([]),
    hostId: 'host',
    workRoot: scratch,
    cores: openHostCores(1),
    taskVariable: 'ORRERY_TASK',
    idleMs,
  })
}
/** A runtime that has been changed so often: its tasks lie elsewhere each time. */
const factsAfter = (changes: number): SiteFacts => ({
  hostId: 'host',
  runtimes: [
    {
      id: 'runtime',
      driver: 'ssh',
      configuration: { connectionId: 'c', workDirectory: join(scratch, String(changes)) },
    },
  ],
  resources: [],
  runtimeBindings: [{ resourceId: 'resource', runtimeId: 'runtime' }],
})
const driverAfter = (changes: number): RuntimeDriver => {
  const facts = factsAfter(changes)
  return sites!.at(placeOf(facts, 'runtime', 'resource'), facts).driver
}
const ended = (driver: RuntimeDriver, name: string): Promise<void> =>
  new Promise((resolve) => {
    driver.watch([name], () => resolve())
  })
let count = 0
const run = async (driver: RuntimeDriver, changes: number): Promise<void> => {
  const name = taskName(++count)
  const [outcome] = await driver.submit([
    plainIntent(name, join(scratch, String(changes), 'work', name), ['true']),
  ])
  expect(outcome).toMatchObject({ ok: true })
  await ended(driver, name)
}
/** Streams of ends: processes that work in a folder of records. */
const streams = (): number =>
  readdirSync('/proc').filter((pid) => {
    try {
      const folder = /^\d+$/.test(pid) ? readlinkSync(`/proc/${pid}/cwd`) : ''
      return folder.startsWith(`${scratch}/`) && folder.endsWith('/tasks')
    } catch {
      return false
    }
  }).length

test('a configuration that changes 100 times leaves no driver and no watch behind', async () => {
  sites = open(200)
  let most = 0
  for (let changes = 0; changes < 100; changes++) {
    await run(driverAfter(changes), changes)
    most = Math.max(most, sites.opened())
  }
  // Those that were used within the last moments.
  expect(most).toBeLessThan(50)
  await until('all drivers to be closed', async () => sites?.opened() === 0)
  await until('their watches to be gone', async () => streams() === 0)
  // A run that goes on with what it was accepted with finds its driver again.
  await run(driverAfter(3), 3)
  expect(sites.opened()).toBe(1)
}, 300_000)

test('a driver stays as long as a task is waited for, and is shared by all that ask for the same', async () => {
  sites = open(100)
  const [one, other] = [driverAfter(0), driverAfter(0)]
  const name = taskName(++count)
  await one.submit([plainIntent(name, join(scratch, '0', 'work', name), ['sleep', '1'])])
  const over = ended(one, name)
  await sleep(500)
  expect(sites.opened()).toBe(1)
  expect((await other.find([name])).get(name)).toMatchObject({ state: 'running' })
  expect(sites.opened()).toBe(1)
  await over
  await until('it to be closed', async () => sites?.opened() === 0)
  expect((await other.find([name])).get(name)).toMatchObject({ state: 'ended', exitCode: 0 })
}, 60_000)

test('a watch that is stopped holds its driver no more', async () => {
  sites = open(100)
  const driver = driverAfter(0)
  const stop = driver.watch(['never-started'], absent)
  await sleep(400)
  expect(sites.opened()).toBe(1)
  stop()
  await until('it to be closed', async () => sites?.opened() === 0)
}, 60_000)

test('a stream of ends without tasks closes after two seconds, and stands again for the next task', async () => {
  const driver = openSshDriver({
    shell,
    root: join(scratch, 'root'),
    runtime: 'ssh',
    taskVariable: 'ORRERY_TASK',
    pollMilliseconds: 500,
  })
  try {
    const begin = async (seconds: string): Promise<string> => {
      const name = taskName(++count)
      await driver.submit([plainIntent(name, join(scratch, 'work', name), ['sleep', seconds])])
      return name
    }
    const first = await begin('3')
    const over = ended(driver, first)
    // Longer than an idle stream stays: somebody waits.
    await sleep(2600)
    expect(streams()).toBeGreaterThan(0)
    await over
    const at = performance.now()
    await until('the stream to be closed', async () => streams() === 0)
    expect(performance.now() - at).toBeGreaterThan(1000)
    await ended(driver, await begin('0'))
    expect(streams()).toBeGreaterThan(0)
  } finally {
    await driver.close()
  }
}, 60_000)
