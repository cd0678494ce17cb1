import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { openCompute } from '../../src/compute/compute.ts'
import type { Compute } from '../../src/compute/compute.ts'
import type { PlanningProblem } from '../../src/schedulers/problem.ts'
import { algorithms } from '../../src/schedulers/registry.ts'
import { placedFrom } from '../simulator/documents.ts'
import { simulate } from '../../src/simulator/simulate.ts'
import { problem } from '../schedulers/instances.ts'

const wide = (n: number): PlanningProblem =>
  problem({
    durations: Array.from({ length: n }, (_, k) => [1 + (k % 7), 2 + (k % 5), 3]),
    edges: Array.from({ length: n - 1 }, (_, k) => [k >> 1, k + 1, 1 + (k % 3)] as const),
  })

describe('planning and simulation on threads', () => {
  let compute: Compute
  beforeAll(() => {
    compute = openCompute({ threads: 2 })
  })
  afterAll(async () => {
    await compute[Symbol.asyncDispose]()
  })

  test('give what the functions give, with progress on the way', async () => {
    const given = wide(9000)
    const seen: number[] = []
    const { schedules, bound } = await compute.plan(
      { problem: given, algorithm: 'heft' },
      { onProgress: ({ progress }) => seen.push(progress) },
    )
    const direct = [...algorithms.heft.plan(given, {})].at(-1)!
    expect(schedules).toEqual([direct.best])
    expect(bound).toBe(direct.bound)
    expect(seen.length).toBeGreaterThanOrEqual(2)
    const placed = placedFrom(schedules[0]!)
    expect(await compute.simulate({ problem: given, placed, model: 'max-min' })).toEqual(
      simulate(given, placed, 'max-min'),
    )
  })

  test('leave the event loop free', async () => {
    let ticks = 0
    const timer = setInterval(() => ticks++, 5)
    const planning = compute.plan({ problem: wide(60_000), algorithm: 'heft' })
    await new Promise((resolve) => setTimeout(resolve, 0))
    const before = ticks
    await planning
    clearInterval(timer)
    expect(ticks - before).toBeGreaterThan(3)
  })

  test('refusals keep their kind and their words', async () => {
    const given = problem({ durations: [[1], [1]], edges: [], activities: [{ cpu: 9 }, { cpu: 9 }] })
    await expect(compute.plan({ problem: given, algorithm: 'heft' })).rejects.toMatchObject({
      name: 'Infeasible',
      activities: [{ id: 'a1' }, { id: 'a2' }],
    })
    const cyclic = problem({
      durations: [[1], [1]],
      edges: [
        [0, 1, 0],
        [1, 0, 0],
      ],
    })
    await expect(compute.plan({ problem: cyclic, algorithm: 'heft' })).rejects.toMatchObject({
      name: 'CyclicWorkflow',
      cycle: ['a1', 'a2'],
    })
  })

  test('an aborted request ends at once with its reason, before and during the work, and the next one is served', async () => {
    await expect(
      compute.plan(
        { problem: wide(10), algorithm: 'heft' },
        { signal: AbortSignal.abort(new Error('too late')) },
      ),
    ).rejects.toThrow('too late')
    const controller = new AbortController()
    const planning = compute.plan(
      { problem: wide(60_000), algorithm: 'heft' },
      { signal: controller.signal, onProgress: () => controller.abort(new Error('enough')) },
    )
    await expect(planning).rejects.toThrow('enough')
    await expect(compute.plan({ problem: wide(10), algorithm: 'heft' })).resolves.toMatchObject({
      schedules: [{ assignments: { length: 10 } }],
    })
  })

  test('an algorithm that has no plan at its limit fails with a remedy, and the next one is served', async () => {
    await expect(compute.plan({ problem: wide(9_000), algorithm: 'heft', maxSeconds: 0 })).rejects.toThrow(
      'no plan was found in 0 s; plan fewer activities',
    )
    await expect(compute.plan({ problem: wide(10), algorithm: 'heft' })).resolves.toBeDefined()
  })

  test('a failure in a thread is an error of its request only', async () => {
    const broken = { ...wide(10), edges: [{ from: 0, to: 99, bytes: 1 }] }
    await expect(
      compute.simulate({
        problem: broken,
        placed: placedFrom((await compute.plan({ problem: wide(10), algorithm: 'heft' })).schedules[0]!),
      }),
    ).rejects.toThrow()
    await expect(compute.plan({ problem: wide(10), algorithm: 'heft' })).resolves.toBeDefined()
  })
})
