import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { randomUUID } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { until } from '../failures/programs.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { proved } from '../support/share.ts'
import { makeWorld, type WorldTask } from '../support/worlds.ts'
import { checked, runToEnd } from './checked.ts'
import { mostAtOnce, overlapsOf } from './checker.ts'

let service: TestService
beforeAll(async () => {
  service = await openService()
})
afterAll(() => service[Symbol.asyncDispose]())

const start = (planId: string, id: string): Promise<unknown> =>
  service.post('/execution-runs/', { id, schedulePlanId: planId, mode: 'real' })
const chain = (n: number, seconds: number): WorldTask[] =>
  Array.from({ length: n }, (_, i) => ({ name: `t${String(i + 1)}`, run: `sleep ${String(seconds)}` }))

test('tasks of one lane follow each other in the planned order, whatever else is ready', async () => {
  const world = await makeWorld(service, {
    name: 'order',
    cores: [1, 1],
    tasks: Array.from({ length: 20 }, (_, i) => ({
      name: `t${String(i)}`,
      run: 'sleep 0.02',
      lane: [i % 2, 0] as const,
    })),
  })
  const record = await runToEnd(service, world, { id: 'order-run' })
  for (const resource of world.resourceIds) {
    const starts = record.activities
      .filter((task) => task.plannedResourceId === resource)
      .sort((a, b) => a.startedAt - b.startedAt)
    expect(starts).toHaveLength(10)
    expect(starts.map((task) => task.orderOnResource)).toEqual(
      starts.map((task) => task.orderOnResource).sort((a, b) => a - b),
    )
  }
})

test('a task of two cores holds both its lanes', async () => {
  const world = await makeWorld(service, {
    name: 'wide',
    cores: [2],
    tasks: [
      { name: 'a', run: 'sleep 0.3', lane: [0, 0] },
      { name: 'wide', run: 'sleep 0.3', cpu: 2, lane: [0, 0, 1] },
      { name: 'b', run: 'sleep 0.3', lane: [0, 0] },
      { name: 'c', run: 'sleep 0.3', lane: [0, 1] },
    ],
  })
  const record = await runToEnd(service, world, { id: 'wide-run' })
  expect(record.run.status).toBe('completed')
  expect(record.activities.find((task) => task.externalId === 'wide')).toMatchObject({
    coreIds: ['core-0', 'core-1'],
  })
})

test('two runs of one plan share its lanes: no overlap, all cores in use, and who waits says for whom', async () => {
  const seen = join(runFolder(), `seen-${randomUUID()}`)
  const tasks = chain(10, 0.25)
  tasks[0] = { name: 't1', run: `until [ -e ${seen} ]; do sleep 0.1; done` }
  const world = await makeWorld(service, { name: 'shared', cores: [2], tasks })
  await Promise.all([start(world.planId, 'shared-a'), start(world.planId, 'shared-b')])
  await until('a task waits for a lane of the other run', 120, async () => {
    const details = await Promise.all(
      ['shared-a', 'shared-b'].map((id) => service.get(`/execution-runs/${id}/`)),
    )
    return details
      .flatMap(({ activities }) => activities)
      .some(
        ({ status, metadata }) =>
          status === 'queued' && /shared-[ab]:shared-t\d+/.test(metadata?.queueReason ?? ''),
      )
  })
  writeFileSync(seen, '')
  await Promise.all([service.finished('shared-a'), service.finished('shared-b')])
  const records = [await checked(service, world, 'shared-a'), await checked(service, world, 'shared-b')]
  expect(records.map(({ run }) => run.status)).toEqual(['completed', 'completed'])
  expect(overlapsOf(records)).toEqual([])
})

test('processes never exceed the cores of the machine, whatever the plans say, and two runs take turns', async () => {
  const cores = availableParallelism()
  const wide = await makeWorld(service, { name: 'eight', cores: [8], tasks: chain(8 + 8 * cores, 0.2) })
  const other = await makeWorld(service, { name: 'nine', cores: [8], tasks: chain(8 + 8 * cores, 0.2) })
  await Promise.all([start(wide.planId, 'eight-run'), start(other.planId, 'nine-run')])
  await Promise.all([service.finished('eight-run'), service.finished('nine-run')])
  const records = [await checked(service, wide, 'eight-run'), await checked(service, other, 'nine-run')]
  expect(mostAtOnce(records)).toBeLessThanOrEqual(cores)
  // While both have tasks left to start, neither is starved: each gets at least a quarter of the
  // starts.
  const starts = records.map(({ activities }) =>
    activities.map((task) => task.startedAt as number).sort((x, y) => x - y),
  )
  const from = Math.max(...starts.map((times) => times[0] as number))
  const to = Math.min(...starts.map((times) => times.at(-1) as number))
  const shares = starts.map((times) => times.filter((time) => time >= from && time <= to).length)
  const both = shares.reduce((sum, share) => sum + share, 0)
  expect(both).toBeGreaterThanOrEqual(8)
  for (const share of shares) expect(share).toBeGreaterThanOrEqual(both / 4)
})

test('tasks that need several cores get them beside others that need one', async () => {
  const cores = availableParallelism()
  const tasks: WorldTask[] = Array.from({ length: 12 }, (_, i) => ({
    name: `t${String(i)}`,
    run: 'sleep 0.1',
    cpu: i % 3 === 0 ? cores : 1,
    lane: [i % 3, 0] as const,
  }))
  const world = await makeWorld(service, { name: 'mixed', cores: [cores, cores, cores], tasks })
  const record = await runToEnd(service, world, { id: 'mixed-run' })
  expect(record.run.status).toBe('completed')
  const wide = record.activities.filter((task) => Number(task.externalId.slice(1)) % 3 === 0)
  for (const task of wide) {
    const beside = record.activities.filter(
      (other) =>
        other !== task &&
        other.startedAt < task.finishedAt - 0.002 &&
        other.finishedAt > task.startedAt + 0.002,
    )
    expect(beside.map((other) => other.id)).toEqual([])
  }
})

proved('three runs that take each other’s lanes all the time come to their ends', async () => {
  const world = await makeWorld(service, {
    name: 'cross',
    launch: 'none',
    cores: [4],
    tasks: Array.from({ length: 200 }, (_, i) => ({ name: `t${String(i)}`, lane: [0, i % 4] as const })),
  })
  await Promise.all(['cross-a', 'cross-b', 'cross-c'].map((id) => start(world.planId, id)))
  const details = await Promise.all(['cross-a', 'cross-b', 'cross-c'].map((id) => service.finished(id)))
  expect(details.map(({ run }) => run.status)).toEqual(['completed', 'completed', 'completed'])
  const records = await Promise.all(
    ['cross-a', 'cross-b', 'cross-c'].map((id) => checked(service, world, id)),
  )
  expect(overlapsOf(records)).toEqual([])
})
