import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { existsSync, mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { closeRun, runKind } from '../../src/domains/execution-runs/operation.ts'
import { readOperation } from '../../src/operations/records.ts'
import { until } from '../failures/programs.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'
import { checked } from './checked.ts'
import { runFolder } from '../support/run-folder.ts'

let service: TestService
let folder: string
beforeAll(async () => {
  service = await openService()
  folder = mkdtempSync(join(runFolder(), 'orrery-steering-'))
})
afterAll(() => service[Symbol.asyncDispose]())

test('a failed run is opened again: what completed stays, what failed and what waited behind it is run', async () => {
  const world = await makeWorld(service, {
    name: 'retry',
    tasks: [
      { name: 'first', run: 'echo once >> "$LEDGER"', environment: { LEDGER: join(folder, 'first') } },
      {
        name: 'flaky',
        run: 'test -e "$GATE"',
        environment: { GATE: join(folder, 'gate') },
        after: ['first'],
      },
      { name: 'last', after: ['flaky'] },
    ],
  })
  await service.post('/execution-runs/', { id: 'retry', schedulePlanId: world.planId, mode: 'real' })
  const failed = await service.finished('retry')
  expect(failed.run).toMatchObject({ status: 'failed', generation: 1, failedActivityCount: 1 })
  expect(failed.activities.map((task: any) => task.status)).toEqual(['completed', 'failed', 'cancelled'])
  writeFileSync(join(folder, 'gate'), '')

  const retried = await service.call('POST', '/execution-runs/retry/retry/')
  expect([retried.status, retried.body.status, retried.body.generation]).toEqual([202, 'running', 2])
  const { run, activities, events } = await service.finished('retry')
  expect(run).toMatchObject({ status: 'completed', completedActivityCount: 3, failedActivityCount: 0 })
  expect(run.failureReason).toBeUndefined()
  expect(activities.map((task: any) => [task.status, task.attempt])).toEqual([
    ['completed', 1],
    ['completed', 2],
    ['completed', 1],
  ])
  expect(
    events.map((event: any) => event.eventType).filter((type: string) => type.startsWith('execution.run')),
  ).toEqual([
    'execution.run.started',
    'execution.run.failed',
    'execution.run.reopened',
    'execution.run.completed',
  ])
  expect((await service.call('GET', '/execution-runs/retry/activities/retry-first/logs/')).status).toBe(200)

  const late = await service.call('POST', '/execution-runs/retry/retry/')
  expect([late.status, late.body.state]).toEqual([409, 'completed'])
})

test('what is left of a failed run does not close it after it was opened again', async () => {
  const gate = join(folder, 'late-gate')
  const world = await makeWorld(service, {
    name: 'late',
    tasks: [
      {
        name: 'only',
        run: 'test -e "$GATE" && while [ ! -e "$GATE-go" ]; do sleep 0.05; done',
        environment: { GATE: gate },
      },
    ],
  })
  await service.post('/execution-runs/', { id: 'late', schedulePlanId: world.planId, mode: 'real' })
  expect((await service.finished('late')).run.status).toBe('failed')
  writeFileSync(gate, '')
  await service.post('/execution-runs/late/retry/')
  // As the workflow of the first generation does when it hears late of the end of its site, and
  // again when its answer was lost.
  const { key } = (await readOperation(service.db, runKind, { id: 'late' }))!
  expect(await closeRun(service.db, { id: 'late', generation: 1, key })).toMatchObject({ status: 'running' })
  writeFileSync(`${gate}-go`, '')
  expect((await service.finished('late')).run).toMatchObject({ status: 'completed', generation: 2 })
})

test('a paused run starts nothing until it is resumed', async () => {
  const go = (i: number): string => join(folder, `pause-${String(i)}`)
  const world = await makeWorld(service, {
    name: 'pause',
    cores: [1],
    tasks: Array.from({ length: 4 }, (_, i) => ({
      name: `t${String(i)}`,
      run: `until [ -e ${go(i)} ]; do sleep 0.05; done`,
    })),
  })
  await service.post('/execution-runs/', { id: 'pause', schedulePlanId: world.planId, mode: 'real' })
  const states = async (): Promise<string[]> =>
    (await service.get('/execution-runs/pause/')).activities.map((task: any) => task.status)
  writeFileSync(go(0), '')
  await until('the second runs', 120, async () => (await states())[1] === 'running')
  await service.post('/execution-runs/pause/pause/')
  expect((await service.call('POST', '/execution-runs/pause/pause/')).status).toBe(202)
  writeFileSync(go(1), '')
  await until('the end of what ran', 120, async () => (await states())[1] === 'completed')
  // A start that should not be would come with the next steps of the site.
  await sleep(1_200)
  const { run, activities } = await service.get('/execution-runs/pause/')
  expect(run).toMatchObject({ status: 'running', paused: true, completedActivityCount: 2 })
  expect(activities.map((task: any) => task.startedAt !== undefined)).toEqual([true, true, false, false])
  for (const i of [2, 3]) writeFileSync(go(i), '')
  await service.post('/execution-runs/pause/resume/')
  expect((await service.finished('pause')).run).toMatchObject({ status: 'completed', paused: false })
  await checked(service, world, 'pause')
})

test('a paused run can be cancelled, and an unknown one is missing', async () => {
  const world = await makeWorld(service, {
    name: 'pc',
    cores: [1],
    tasks: [
      { name: 'a', run: 'sleep 86400' },
      { name: 'b', run: `touch ${join(folder, 'never')}` },
    ],
  })
  await service.post('/execution-runs/', { id: 'pc', schedulePlanId: world.planId, mode: 'real' })
  await until('the first runs', 120, async () =>
    (await service.get('/execution-runs/pc/')).activities.some((task: any) => task.status === 'running'),
  )
  await service.post('/execution-runs/pc/pause/')
  await service.post('/execution-runs/pc/cancel/')
  expect((await service.finished('pc')).run).toMatchObject({ status: 'cancelled', paused: false })
  expect(existsSync(join(folder, 'never'))).toBe(false)
  for (const verb of ['cancel', 'pause', 'resume', 'retry'])
    expect((await service.call('POST', `/execution-runs/nobody/${verb}/`)).status).toBe(404)
})
