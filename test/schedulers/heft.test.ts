import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { CyclicWorkflow, Infeasible, problemSize } from '../../src/schedulers/algorithm.ts'
import type { PlanningProblem, Schedule } from '../../src/schedulers/problem.ts'
import { algorithms } from '../../src/schedulers/registry.ts'
import { choicesOf } from '../../src/schedulers/fit.ts'
import { networkRoutesOf } from '../../src/schedulers/routes.ts'
import { violations } from './checker.ts'
import { instance, problem } from './instances.ts'

const { heft } = algorithms
const runs = { numRuns: 300, seed: 20261121 }

function plan(given: PlanningProblem): { schedule: Schedule; bound: number } {
  const last = [...heft.plan(given, {})].at(-1)!
  expect(last.progress).toBe(1)
  return { schedule: last.best!, bound: last.bound }
}

const fitsSomewhere = (given: PlanningProblem): boolean =>
  choicesOf(given).every(({ resources }) => resources.length > 0)

/** Whether some placement, of all that there are, has a route for all data. */
function hasPlacement(given: PlanningProblem): boolean {
  const routes = networkRoutesOf(given)
  const choices = choicesOf(given)
  const fits = (placed: readonly number[]): boolean =>
    placed.length === choices.length ||
    choices[placed.length]!.resources.some(
      (at) =>
        given.edges.every(
          ({ from, to, bytes }) => to !== placed.length || bytes === 0 || routes.reachable(placed[from]!, at),
        ) && fits([...placed, at]),
    )
  return fits([])
}

/**
 * Topcuoglu, Hariri, Wu: figure 2 and table 1 of the paper; costs are seconds, communication 1 s
 * per byte.
 */
const textbook = problem({
  durations: [
    [14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10],
    [13, 16, 9], [7, 15, 11], [5, 11, 14], [18, 12, 20], [21, 7, 16],
  ],
  edges: [
    [0, 1, 18], [0, 2, 12], [0, 3, 9], [0, 4, 11], [0, 5, 14], [1, 7, 19], [1, 8, 16], [2, 6, 23],
    [3, 7, 27], [3, 8, 23], [4, 8, 13], [5, 7, 15], [6, 9, 17], [7, 9, 11], [8, 9, 13],
  ],
}) // oxfmt-ignore

describe('HEFT', () => {
  test('gives the schedule of the paper: 80', () => {
    const { schedule } = plan(textbook)
    expect(violations(textbook, schedule)).toEqual([])
    expect(schedule.makespanSeconds).toBe(80)
    expect(schedule.assignments.map(({ resource }) => resource + 1)).toEqual([3, 1, 3, 2, 3, 2, 3, 1, 2, 2])
    expect(schedule.assignments.map(({ startAt }) => startAt)).toEqual([0, 27, 9, 18, 28, 26, 38, 57, 56, 73])
  })

  test('every schedule passes the judge and is no shorter than its bound', () => {
    fc.assert(
      fc.property(instance(), (given) => {
        fc.pre(fitsSomewhere(given))
        const { schedule, bound } = plan(given)
        expect(violations(given, schedule)).toEqual([])
        expect(schedule.makespanSeconds).toBeGreaterThanOrEqual(bound * (1 - 1e-12))
      }),
      runs,
    )
  })

  test('also where not every resource reaches every other; what it refuses, it refuses for a reason', () => {
    let planned = 0
    fc.assert(
      fc.property(instance({ connected: false, maxActivities: 6 }), (given) => {
        try {
          expect(violations(given, plan(given).schedule)).toEqual([])
          planned++
        } catch (error) {
          if (!(error instanceof Infeasible)) throw error
          expect(error.activities.length).toBeGreaterThan(0)
          expect(given.links === undefined ? fitsSomewhere(given) : false).toBe(false)
        }
      }),
      runs,
    )
    expect(planned).toBeGreaterThan(50)
  })

  test('the same problem gives the same schedule', () => {
    fc.assert(
      fc.property(instance(), (given) => {
        fc.pre(fitsSomewhere(given))
        expect(plan(structuredClone(given))).toEqual(plan(given))
      }),
      { ...runs, numRuns: 50 },
    )
  })

  test('a resource that only forwards data has no part in the mean of the network', () => {
    // With the slow links of r3 in the mean, a2 and a3 come before the long a1.
    const given = problem({
      durations: [10, 5, 5, 0.1, 0.1].map((seconds) => [seconds, seconds, Infinity]),
      edges: [
        [1, 3, 1000],
        [2, 4, 1000],
      ],
      links: [
        { source: 0, target: 1, bandwidthBitsPerSecond: 8e6 },
        { source: 0, target: 2 },
        { source: 1, target: 2 },
      ],
      resources: [{}, {}, { cpuCapacity: -1, memoryBytes: -1 }],
    })
    expect(plan(given).schedule.makespanSeconds).toBeCloseTo(10.1, 9)
  })

  test('a task is put into a gap between two others', () => {
    // a1 → a2 leaves r1 idle from 1 to 11 while its data goes to the pinned a2 and a3 waits for it;
    // a4 fits into that gap.
    const given = problem({
      durations: [
        [1, 99],
        [99, 1],
        [1, 99],
        [3, 99],
      ],
      edges: [
        [0, 1, 5],
        [1, 2, 4],
      ],
    })
    const { schedule } = plan(given)
    expect(schedule.assignments[2]).toMatchObject({ startAt: 11, finishAt: 12, orderOnResource: 3 })
    expect(schedule.assignments[3]).toMatchObject({
      resource: 0,
      startAt: 1,
      finishAt: 4,
      orderOnResource: 2,
    })
  })

  test('equal finishes are decided by cost, then by the order of the resources', () => {
    const cheap = problem({
      durations: [[2, 2, 2]],
      edges: [],
      resources: [{ pricePerSecond: 3 }, { pricePerSecond: 1 }, { pricePerSecond: 1 }],
    })
    expect(plan(cheap).schedule.assignments[0]).toMatchObject({ resource: 1, cost: 2 })
    expect(plan(problem({ durations: [[2, 2]], edges: [] })).schedule.assignments[0]).toMatchObject({
      resource: 0,
    })
  })

  test('data takes several hops, and a wide detour when it is large', () => {
    const links = [
      { source: 0, target: 1, bandwidthBitsPerSecond: 8, latencySeconds: 0 },
      { source: 0, target: 2, bandwidthBitsPerSecond: 800, latencySeconds: 5 },
      { source: 2, target: 1, bandwidthBitsPerSecond: 800, latencySeconds: 5 },
    ]
    const pinned = [{ selector: 0 }, { selector: 1 }]
    const small = plan(
      problem({
        durations: [
          [1, 9, 9],
          [9, 1, 9],
        ],
        edges: [[0, 1, 3]],
        links,
        activities: pinned,
      }),
    )
    expect(small.schedule.makespanSeconds).toBe(1 + 3 + 1)
    const large = plan(
      problem({
        durations: [
          [1, 9, 9],
          [9, 1, 9],
        ],
        edges: [[0, 1, 1000]],
        links,
        activities: pinned,
      }),
    )
    expect(large.schedule.makespanSeconds).toBe(1 + (10 + 10) + 1)
  })

  test('a missing route is never free: the consumer stays, or the plan is refused with its name', () => {
    const stays = plan(
      problem({
        durations: [
          [5, 1],
          [5, 1],
        ],
        edges: [[0, 1, 8]],
        links: [],
        activities: [{ selector: 0 }, {}],
      }),
    )
    expect(stays.schedule.assignments.map(({ resource }) => resource)).toEqual([0, 0])
    const apart = problem({
      durations: [
        [5, 1],
        [5, 1],
      ],
      edges: [[0, 1, 8]],
      links: [],
      activities: [{ selector: 0 }, { selector: 1 }],
    })
    expect(() => plan(apart)).toThrow(
      'activity "a1" fits nowhere: no resource that it fits on has a route to the resources of its consumers',
    )
    // Without bytes nothing travels, so no route is needed.
    expect(plan({ ...apart, edges: [{ from: 0, to: 1, bytes: 0 }] }).schedule.makespanSeconds).toBe(6)
  })

  test('a greedy choice that strands a later activity is taken back', () => {
    // a1 runs best on r1, a2 on r2, and no link joins them; a3 needs data of both.
    const given = problem({
      durations: [
        [1, 4],
        [4, 1],
        [1, 1],
      ],
      edges: [
        [0, 2, 8],
        [1, 2, 8],
      ],
      links: [],
    })
    const { schedule } = plan(given)
    expect(violations(given, schedule)).toEqual([])
    expect(schedule.makespanSeconds).toBe(6)
  })

  test('activities that no data joins are planned on resources that no link joins', () => {
    // As above, with a2 on r2 alone; a4, which has no data of the others, must run on r1.
    const given = problem({
      durations: [
        [1, 4],
        [4, 1],
        [1, 1],
        [1, 1],
      ],
      edges: [
        [0, 2, 8],
        [1, 2, 8],
      ],
      links: [],
      activities: [{}, { selector: 1 }, {}, { selector: 0 }],
    })
    const { schedule } = plan(given)
    expect(violations(given, schedule)).toEqual([])
    expect(schedule.makespanSeconds).toBe(6)
  })

  test('a choice that strands a later activity is taken back also where links go one way', () => {
    // a1 ends first on r1, whose data reaches r4 alone; a2 runs on r3, whose data reaches r5 alone.
    const given = problem({
      durations: [
        [1, 2, Infinity, Infinity, Infinity],
        [Infinity, Infinity, 1, Infinity, Infinity],
        [Infinity, Infinity, Infinity, 1, 1],
      ],
      edges: [
        [0, 2, 1],
        [1, 2, 1],
      ],
      links: [
        { source: 0, target: 3, bidirectional: false },
        { source: 1, target: 4, bidirectional: false },
        { source: 2, target: 4, bidirectional: false },
      ],
    })
    const { schedule } = plan(given)
    expect(violations(given, schedule)).toEqual([])
    expect(schedule.makespanSeconds).toBe(4)
  })

  test('resources that do not reach each other are tried alone, but no more of them where there are more', () => {
    // a1 ends first on r1, from where its data goes to the others and takes long.
    const star = (leaves: number): PlanningProblem => {
      const leaf = Array.from({ length: leaves }, (_, k) => 10 - k / 100)
      return problem({
        durations: [
          [1, ...leaf.map(() => 2)],
          [1000, ...leaf],
        ],
        edges: [[0, 1, 500]],
        links: leaf.map((_, k) => ({ source: 0, target: k + 1, bidirectional: false })),
      })
    }
    const examined = (given: PlanningProblem): number => {
      const { best, workDone } = [...heft.plan(given, {})].at(-1)!
      expect(violations(given, best!)).toEqual([])
      expect(best!.makespanSeconds).toBe(2 + given.durations.at(-1)!)
      return workDone - given.activities.length * given.resources.length
    }
    expect(examined(star(80))).toBe(examined(star(40)))
  })

  test('where links go both ways, what has a place is planned', () => {
    const n = 6
    const width = 3
    const list = <T>(items: fc.Arbitrary<T>, length: number) =>
      fc.array(items, { minLength: length, maxLength: length })
    const islands = fc.record({
      seconds: list(fc.integer({ min: 1, max: 9 }), n * width),
      selectors: list(fc.constantFrom(undefined, undefined, 0, 1, 2), n),
      bytes: list(fc.constantFrom(0, 0, 0, 0, 8), n * n),
      isLinked: fc.boolean(),
    })
    let planned = 0
    fc.assert(
      fc.property(islands, ({ seconds, selectors, bytes, isLinked }) => {
        const given = problem({
          durations: selectors.map((_, k) => seconds.slice(k * width, (k + 1) * width)),
          edges: bytes.flatMap((size, k) =>
            size > 0 && Math.floor(k / n) < k % n ? [[Math.floor(k / n), k % n, size] as const] : [],
          ),
          links: isLinked ? [{ source: 1, target: 2 }] : [],
          activities: selectors.map((selector) => (selector === undefined ? {} : { selector })),
        })
        fc.pre(hasPlacement(given))
        expect(violations(given, plan(given).schedule)).toEqual([])
        planned++
      }),
      runs,
    )
    expect(planned).toBeGreaterThan(100)
  })

  test('all activities without a place are named, each with its reason', () => {
    const given = problem({
      durations: [
        [1, 1],
        [1, 1],
        [1, 1],
        [1, 1],
      ],
      edges: [],
      resources: [
        { lanes: 2, cpuCapacity: 2, memoryBytes: 100 },
        { lanes: 1, cpuCapacity: 4, memoryBytes: 1000 },
      ],
      activities: [{ cpu: 8 }, { memoryBytes: 5000 }, { memoryBytes: 200, selector: 0 }, {}],
    })
    const error = refusal(given)
    expect(error.activities).toEqual([
      {
        id: 'a1',
        reason: 'needs 8 cpu and 0 bytes of memory; "r1" has cpuCapacity 2; "r2" has cpuCapacity 4',
      },
      {
        id: 'a2',
        reason:
          'needs 1 cpu and 5000 bytes of memory; "r1" has 100 bytes of memory; "r2" has 1000 bytes of memory',
      },
      {
        id: 'a3',
        reason:
          'its resourceSelector allows only "r1": needs 1 cpu and 200 bytes of memory; has 100 bytes of memory',
      },
    ])
    expect(error.message).toContain('(and 2 more activities)')
  })

  test('a cycle is named', () => {
    const given = problem({
      durations: [[1], [1], [1], [1]],
      edges: [
        [0, 1, 0],
        [1, 2, 0],
        [2, 3, 0],
        [3, 1, 0],
      ],
    })
    expect(() => plan(given)).toThrow(CyclicWorkflow)
    expect(() => plan(given)).toThrow('the dependencies have a cycle: "a2" → "a3" → "a4" → "a2"')
  })

  test('tasks that together need more memory than there is do not run together', () => {
    const resources = [{ lanes: 2, memoryBytes: 1000 }]
    const tight = problem({
      durations: [[3], [3]],
      edges: [],
      resources,
      activities: [{ memoryBytes: 600 }, { memoryBytes: 400 }],
    })
    expect(plan(tight).schedule.makespanSeconds).toBe(6)
    const loose = problem({
      durations: [[3], [3]],
      edges: [],
      resources,
      activities: [{ memoryBytes: 500 }, { memoryBytes: 500 }],
    })
    expect(plan(loose).schedule.makespanSeconds).toBe(3)
  })

  test('boot is paid once per lane by its first task, the container by every task', () => {
    const given = problem({
      durations: [[2], [2]],
      edges: [[0, 1, 0]],
      resources: [{ bootOverheadSeconds: 10, containerOverheadSeconds: 1, pricePerSecond: 2 }],
    })
    const { schedule } = plan(given)
    expect(schedule.assignments.map(({ startAt, finishAt, cost }) => ({ startAt, finishAt, cost }))).toEqual([
      { startAt: 0, finishAt: 13, cost: 26 },
      { startAt: 13, finishAt: 16, cost: 6 },
    ])
  })

  test('a resource that is paid by window costs its window once, shared by runtime', () => {
    const given = problem({
      durations: [[1], [3]],
      edges: [[0, 1, 0]],
      resources: [{ activeWindow: true, pricePerSecond: 2, containerOverheadSeconds: 1 }],
    })
    const { schedule } = plan(given)
    expect(schedule).toMatchObject({ makespanSeconds: 6, cost: 12 })
    expect(schedule.assignments.map(({ cost }) => cost)).toEqual([3, 9])
  })

  test('nothing to plan is planned', () => {
    const empty = {
      ...problem({ durations: [[1]], edges: [] }),
      activities: [],
      durations: new Float64Array(0),
    }
    expect(plan(empty).schedule).toEqual({ assignments: [], makespanSeconds: 0, cost: 0 })
  })

  test('a chain of 20,000 tasks needs no stack, and progress is told on the way', () => {
    const n = 20_000
    const given = problem({
      durations: Array.from({ length: n }, () => [1, 2]),
      edges: Array.from({ length: n - 1 }, (_, k) => [k, k + 1, 1] as const),
    })
    const steps = [...heft.plan(given, {})]
    expect(steps.length).toBeGreaterThan(3)
    expect(steps.map(({ progress }) => progress)).toEqual(
      steps.map(({ progress }) => progress).toSorted((a, b) => a - b),
    )
    expect(steps.at(-1)!.best!.makespanSeconds).toBe(n)
    expect(steps.at(-1)!.bound).toBe(n)
  })

  test('the expected effort counts what can be used', () => {
    const given = problem({
      durations: [
        [1, 1],
        [1, 1],
      ],
      edges: [[0, 1, 0]],
      activities: [{ selector: 1 }, {}],
    })
    expect(problemSize(given)).toEqual({
      activityCount: 2,
      dependencyCount: 1,
      compatibleResources: 2,
      expandedStates: 3,
    })
    expect(
      heft.estimate(
        {
          activityCount: 0,
          dependencyCount: 100_000,
          compatibleResources: 0,
          expandedStates: 1_000_000,
        },
        {},
      ),
    ).toEqual({ durationSeconds: 0.7 })
  })
})

function refusal(given: PlanningProblem): Infeasible {
  try {
    plan(given)
  } catch (error) {
    if (error instanceof Infeasible) return error
    throw error
  }
  throw new Error('was planned')
}
