import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld, type WorldOptions } from '../support/worlds.ts'
import { activityOf, runToEnd } from './checked.ts'

let service: TestService
/** What this machine can. */
let best: string
beforeAll(async () => {
  service = await openService()
  best = (await service.get('/preflight/')).limits.memory
})
afterAll(() => service[Symbol.asyncDispose]())

let worlds = 0
/** One run of a world of its own, at a runtime with this configuration. */
const run = async (tasks: WorldOptions['tasks'], configuration: Record<string, unknown> = {}) => {
  const name = `m${String(++worlds)}`
  const world = await makeWorld(service, {
    name,
    tasks,
    cores: [1],
    places: [{ driver: 'local', configuration }],
  })
  const record = await runToEnd(service, world, { id: `${name}-run` })
  return { record, of: (activity: string, attempt?: number) => activityOf(record, world, activity, attempt) }
}

/** Takes so many MiB of memory and holds them for a moment. */
const take = (mebibytes: number): string =>
  `head -c ${String(mebibytes)}M /dev/zero | tail -c ${String(mebibytes)}M | wc -c`

describe('a task that needs more memory than it has', () => {
  test.each([
    ['by the best that this machine has', undefined],
    ['by RLIMIT_DATA, where its runtime says so', 'rlimit'],
  ])('fails by itself, %s; the reason names limit and peak', async (_how, memoryLimit) => {
    const limits = memoryLimit ?? best
    // RLIMIT_DATA is twice the memory and 256 MiB.
    const tooMuch = String((limits === 'cgroup' ? 64 : 2 * 64 + 256) + 8)
    const { record, of } = await run(
      [
        { name: 'modest', run: take(20), memory: '64Mi' },
        {
          name: 'greedy',
          run: `head -c ${tooMuch}M /dev/zero | tail -c ${tooMuch}M > /dev/null`,
          memory: '64Mi',
          after: ['modest'],
          policy: { maxAttempts: 2 },
        },
      ],
      memoryLimit === undefined ? {} : { memoryLimit },
    )
    expect(of('modest')).toMatchObject({ status: 'completed', metadata: { limits } })
    // Its own attempts are spent, not the patience with the site.
    expect(record.activities.filter(({ externalId }) => externalId === 'greedy')).toHaveLength(2)
    const greedy = of('greedy')
    expect(greedy).toMatchObject({ status: 'failed', failureClass: 'user', attempt: 2, metadata: { limits } })
    expect(greedy.failureReason).toMatch(/memory.* \(limit 64 MiB, peak \d+ MiB/)
    expect(greedy.peakMemoryBytes).toBeGreaterThan(40 * 1024 ** 2)
    expect(record.run.failureReason).toBe(greedy.failureReason)
  })

  test('is told in the same way where the program says it and used little', async () => {
    const { of } = await run(
      [{ name: 'asks', run: 'ulimit -v 100000; exec tail /dev/zero', memory: '256Mi' }],
      { memoryLimit: 'rlimit' },
    )
    expect(of('asks').failureReason).toMatch(/for want of memory \(limit 256 MiB, peak \d+ MiB/)
  })
})

test('nothing holds a task where its runtime says so, and the record says that', async () => {
  const { of } = await run([{ name: 'free', run: take(100), memory: '32Mi' }], { memoryLimit: 'none' })
  expect(of('free')).toMatchObject({ status: 'completed', metadata: { limits: 'none' } })
})

test('a limit that is smaller than a starting process needs does not keep its task from starting', async () => {
  const { of } = await run([
    { name: 'byte', run: 'true', memory: '1' },
    { name: 'pages', run: 'true', memory: '64Ki', after: ['byte'] },
  ])
  for (const activity of ['byte', 'pages'])
    expect(of(activity)).toMatchObject({ status: 'completed', attempt: 1 })
})

test('nothing holds a task whose author gave no limit, and the record says that', async () => {
  const { of } = await run([{ name: 'unlimited', run: take(100) }])
  expect(of('unlimited')).toMatchObject({ status: 'completed', metadata: { limits: 'none' } })
})

test('a task beside others has its own limit, and each its own end', async () => {
  const tasks = Array.from({ length: 12 }, (_, i) => ({
    name: `t${String(i)}`,
    run: i % 4 === 3 ? 'exec tail /dev/zero' : take(4),
    memory: i % 2 === 0 ? '48Mi' : '32Mi',
    lane: [0, i % 2] as const,
  }))
  const name = 'beside'
  const world = await makeWorld(service, { name, tasks, cores: [2] })
  const record = await runToEnd(service, world, { id: 'beside-run', onFailure: 'finish-independent' })
  const states = tasks.map((task) => activityOf(record, world, task.name).status)
  expect(states).toEqual(tasks.map((_task, i) => (i % 4 === 3 ? 'failed' : 'completed')))
})

test('an unknown memoryLimit is refused before a run is stored', async () => {
  const world = await makeWorld(service, {
    ...{ name: 'wrong', tasks: [{ name: 'a' }], cores: [1] },
    places: [{ driver: 'local', configuration: { memoryLimit: 'cgroups' } }],
  })
  const answer = await service.call('POST', '/execution-runs/', {
    id: 'wrong-run',
    schedulePlanId: world.planId,
    mode: 'real',
  })
  expect(answer).toMatchObject({
    status: 422,
    body: {
      details: [
        {
          path: expect.stringMatching(/configuration\.memoryLimit$/),
          message: 'must be one of cgroup, rlimit, none',
        },
      ],
    },
  })
})

test('the check of this machine says what holds its tasks', async () => {
  const { healthy, stages } = await service.post('/connection-tests/', { type: 'local' })
  expect(healthy).toBe(true)
  expect(stages.at(-1)).toMatchObject({
    stage: 'limits',
    ok: true,
    detail: expect.stringContaining(`${best}: `),
  })
})
