import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { Infeasible, type AlgorithmOptions } from '../../src/schedulers/algorithm.ts'
import { choicesOf } from '../../src/schedulers/fit.ts'
import type { PlanningProblem, Schedule } from '../../src/schedulers/problem.ts'
import { algorithms } from '../../src/schedulers/registry.ts'
import { violations } from './checker.ts'
import { instance, problem } from './instances.ts'

const both = ['prism-time', 'prism-cost'] as const
const runs = { numRuns: 60, seed: 20261126 }
const few = { beamWidth: 12 }

/** All schedules that the algorithm offers, the best one first. */
function offers(id: (typeof both)[number], given: PlanningProblem, options: AlgorithmOptions = {}) {
  const last = [...algorithms[id].plan(given, options)].at(-1)!
  expect(last.progress).toBe(1)
  return [last.best!, ...(last.others ?? [])]
}

const heftOf = (given: PlanningProblem): Schedule => [...algorithms.heft.plan(given, {})].at(-1)!.best!
const isPlannable = (given: PlanningProblem): boolean =>
  choicesOf(given).every(({ resources }) => resources.length > 0)

/**
 * Every makespan and cost that a problem on resources of one lane allows, where each task starts as
 * soon as its data and its lane are there: all orders, all placements.
 */
function allOutcomes(given: PlanningProblem): { time: number; cost: number }[] {
  const { edges, resources, links, durations } = given
  const n = given.activities.length
  const found: { time: number; cost: number }[] = []
  const walk = (placed: ReadonlyMap<number, { at: number; start: number; finish: number; cost: number }>) => {
    if (placed.size === n) {
      const all = [...placed.values()]
      found.push({
        time: Math.max(...all.map(({ finish }) => finish)) - Math.min(...all.map(({ start }) => start)),
        cost: all.reduce((sum, { cost }) => sum + cost, 0),
      })
      return
    }
    for (let task = 0; task < n; task++) {
      const inputs = edges.filter(({ to }) => to === task)
      if (placed.has(task) || inputs.some(({ from }) => !placed.has(from))) continue
      resources.forEach((resource, at) => {
        let start = Math.max(0, ...[...placed.values()].filter((one) => one.at === at).map((o) => o.finish))
        let cost = durations[task * resources.length + at]! * resource.pricePerSecond
        for (const { from, bytes } of inputs) {
          const producer = placed.get(from)!
          const link = links!.find(
            ({ source, target }) =>
              (source === producer.at && target === at) || (target === producer.at && source === at),
          )
          const moved = producer.at === at ? 0 : bytes
          start = Math.max(start, producer.finish + (moved * 8) / (link?.bandwidthBitsPerSecond ?? Infinity))
          cost += moved * (link?.pricePerByte ?? 0)
        }
        const finish = start + durations[task * resources.length + at]!
        walk(new Map([...placed, [task, { at, start, finish, cost }]]))
      })
    }
  }
  walk(new Map())
  return found
}

/** Three to four tasks on two or three resources of one lane, with odd numbers: no two are equal. */
const small = fc
  .record({
    n: fc.integer({ min: 3, max: 4 }),
    width: fc.integer({ min: 2, max: 3 }),
    numbers: fc.array(fc.integer({ min: 1, max: 100_000 }), { minLength: 40, maxLength: 40 }),
    pairs: fc.array(fc.boolean(), { minLength: 6, maxLength: 6 }),
  })
  .map(({ n, width, numbers, pairs }) => {
    let at = 0
    const number = (): number => numbers[at++ % numbers.length]! / 997 + at / 1013
    const edges: [number, number, number][] = []
    for (let to = 1, k = 0; to < n; to++)
      for (let from = 0; from < to; from++) if (pairs[k++ % 6]) edges.push([from, to, number()])
    return problem({
      durations: Array.from({ length: n }, () => Array.from({ length: width }, number)),
      edges,
      resources: Array.from({ length: width }, () => ({ pricePerSecond: number() })),
      links: [
        [0, 1],
        [0, 2],
        [1, 2],
      ]
        .filter(([, target]) => target! < width)
        .map(([source, target]) => ({ source: source!, target: target!, pricePerByte: number() / 100 })),
    })
  })

describe('PRISM', () => {
  test.each(both)('%s: every schedule that it offers passes the judge', (id) => {
    fc.assert(
      fc.property(instance(), (given) => {
        fc.pre(isPlannable(given))
        const all = offers(id, given, few)
        for (const schedule of all) expect(violations(given, schedule)).toEqual([])
        const figures = all.map(({ makespanSeconds, cost }) => `${makespanSeconds} ${cost}`)
        expect(new Set(figures).size).toBe(figures.length)
      }),
      runs,
    )
  })

  test('the best is never longer, or dearer, than the one of HEFT', () => {
    fc.assert(
      fc.property(instance(), (given) => {
        fc.pre(isPlannable(given))
        const usual = heftOf(given)
        expect(offers('prism-time', given, few)[0]!.makespanSeconds).toBeLessThanOrEqual(
          usual.makespanSeconds,
        )
        expect(offers('prism-cost', given, few)[0]!.cost).toBeLessThanOrEqual(usual.cost)
      }),
      runs,
    )
  })

  test('a beam as wide as the problem finds the optimum and the whole front of makespan and cost', () => {
    const wide = { beamWidth: 10_000, optionCount: 1_000, readyBranchLimit: 16 }
    fc.assert(
      fc.property(small, (given) => {
        const outcomes = allOutcomes(given)
        for (const id of both) {
          const all = offers(id, given, wide)
          const missed = outcomes.filter(
            ({ time, cost }) =>
              !all.some((one) => one.makespanSeconds <= time * (1 + 1e-9) && one.cost <= cost * (1 + 1e-9)),
          )
          expect(missed).toEqual([])
        }
        // HEFT takes part and may fill gaps, so that it can be shorter than what is only appended.
        expect(offers('prism-time', given, wide)[0]!.makespanSeconds).toBeLessThanOrEqual(
          Math.min(...outcomes.map(({ time }) => time)) * (1 + 1e-9),
        )
        expect(offers('prism-cost', given, wide)[0]!.cost).toBeLessThanOrEqual(
          Math.min(...outcomes.map(({ cost }) => cost)) * (1 + 1e-9),
        )
      }),
      { ...runs, numRuns: 25 },
    )
  })

  /** Two tasks; a fast resource that costs ten times the slow one. */
  const choice = problem({
    durations: [
      [1, 5],
      [1, 5],
    ],
    edges: [[0, 1, 0]],
    resources: [{ pricePerSecond: 10 }, { pricePerSecond: 1 }],
  })
  const figures = (schedules: readonly Schedule[]): number[][] =>
    schedules.map(({ makespanSeconds, cost }) => [makespanSeconds, cost])

  test('it offers the alternatives between fast and cheap, the best by its objective first', () => {
    const alternatives = [
      [2, 20],
      [6, 15],
      [10, 10],
    ]
    expect(figures(offers('prism-time', choice))).toEqual(alternatives)
    expect(figures(offers('prism-cost', choice))).toEqual(alternatives.toReversed())
  })

  test('optionCount cuts what is offered to the ends of the front', () => {
    expect(figures(offers('prism-cost', choice, { optionCount: 2 }))).toEqual([
      [10, 10],
      [2, 20],
    ])
    expect(figures(offers('prism-time', choice, { optionCount: 1 }))).toEqual([[2, 20]])
  })

  test('schedules that keep the deadline and the budget come before cheaper and shorter ones', () => {
    expect(figures(offers('prism-cost', choice, { deadlineSeconds: 7 }))[0]).toEqual([6, 15])
    expect(figures(offers('prism-time', choice, { budget: 15 }))[0]).toEqual([6, 15])
    // A cut to few leaves those that keep them.
    expect(figures(offers('prism-time', choice, { deadlineSeconds: 7, optionCount: 2 }))).toEqual([
      [2, 20],
      [6, 15],
    ])
  })

  test('a limit that is missed by rounding alone is kept', () => {
    // 0.1 + 0.2 is above 0.3 by its last digit.
    const given = problem({
      durations: [
        [0.1, 0.01],
        [0.2, 0.02],
      ],
      edges: [[0, 1, 0]],
      resources: [{ pricePerSecond: 1 }, { pricePerSecond: 100 }],
    })
    expect(offers('prism-cost', given, { deadlineSeconds: 0.3, optionCount: 1 })[0]!.cost).toBeCloseTo(0.3, 9)
    expect(offers('prism-time', given, { budget: 0.3, optionCount: 1 })[0]!.cost).toBeCloseTo(0.3, 9)
  })

  test('resources are told apart by the data that lies there, and by who can run there alone', () => {
    // The first two fit both hosts alike; the third can only run on the second, and takes the data of
    // the first over a slow link.
    const given = problem({
      durations: [
        [10, 10],
        [10, 10],
        [99, 10],
      ],
      edges: [[0, 2, 800]],
      activities: [{}, {}, { selector: 1 }],
    })
    for (const id of both) {
      const [best] = offers(id, given)
      expect(violations(given, best!)).toEqual([])
      expect(best!.makespanSeconds).toBe(20)
    }
  })

  test('resources are told apart by the routes that they have, and to which others', () => {
    // a1 is as fast on r1 as on r2, and its data reaches r4 soon from r2 alone.
    const given = problem({
      durations: [
        [10, 10, 1000, 1000],
        [99, 99, 99, 10],
      ],
      edges: [[0, 1, 800]],
      activities: [{}, { selector: 3 }],
      links: [
        { source: 0, target: 2, bandwidthBitsPerSecond: 8e9 },
        { source: 1, target: 3, bandwidthBitsPerSecond: 8e9 },
        { source: 2, target: 3 },
      ],
    })
    for (const id of both) expect(offers(id, given)[0]!.makespanSeconds).toBeCloseTo(20, 5)
  })

  test('equal resources do not fill the beam with one schedule under many names', () => {
    const price = { pricePerSecond: 0.013 }
    const given = problem({
      durations: [10.1, 7.3, 3.7, 2.9].map((seconds) => [seconds, seconds, seconds, seconds, 40 * seconds]),
      edges: [],
      resources: [price, price, price, price, { pricePerSecond: 0.0001 }],
    })
    // A narrow beam finds the trade between the four equal ones and the cheap one.
    const all = offers('prism-cost', given, { beamWidth: 24, readyBranchLimit: 4 })
    expect(all[0]!.cost).toBeCloseTo(24 * 40 * 0.0001, 9)
    expect(all.map(({ makespanSeconds }) => makespanSeconds)).toContain(10.1)
    expect(all.length).toBeGreaterThan(8)
  })

  test('resources are equal whichever end of the link between them they are', () => {
    const given = problem({
      durations: [8, 7, 6, 5, 4].map((seconds) => [seconds, seconds]),
      edges: [[4, 0, 1]],
    })
    // Only a beam without the same schedules on exchanged hosts is wide enough for the optimum.
    expect(offers('prism-time', given, { beamWidth: 24, readyBranchLimit: 4 })[0]!.makespanSeconds).toBe(15)
  })

  test('a task on lanes in use pays no boot; of all that an active window costs nothing is left out', () => {
    const given = problem({
      durations: [[4], [4], [4]],
      edges: [[0, 2, 0]],
      resources: [{ lanes: 2, bootOverheadSeconds: 3, pricePerSecond: 2, activeWindow: true }],
    })
    const all = offers('prism-cost', given)
    for (const schedule of all) expect(violations(given, schedule)).toEqual([])
    expect(figures(all)[0]).toEqual([11, 22])
  })

  test('where not every resource reaches every other it refuses no more than HEFT', () => {
    fc.assert(
      fc.property(instance({ connected: false, maxActivities: 6 }), (given) => {
        let usual: Schedule | undefined
        try {
          usual = heftOf(given)
          for (const schedule of offers('prism-cost', given, few))
            expect(violations(given, schedule)).toEqual([])
        } catch (error) {
          if (!(error instanceof Infeasible)) throw error
          expect(usual).toBeUndefined()
        }
      }),
      runs,
    )
  })

  test('it plans where only one of many choices reaches a later activity, which HEFT refuses', () => {
    // a1 runs on r1 to r40, and r40 alone reaches r43, to which the data of a2 goes.
    const many = 40
    const seconds = (from: number, to: number): number[] =>
      Array.from({ length: many + 3 }, (_, k) => (k >= from && k < to ? 1 + k - from : Infinity))
    const given = problem({
      durations: [seconds(0, many), seconds(many, many + 1), seconds(many + 1, many + 3)],
      edges: [
        [0, 2, 1],
        [1, 2, 1],
      ],
      links: Array.from({ length: many + 1 }, (_, k) => ({
        source: k,
        target: k < many - 1 ? many + 1 : many + 2,
        bidirectional: false,
      })),
    })
    expect(() => heftOf(given)).toThrow('activity "a3" fits nowhere')
    expect(() => offers('prism-time', given, few)).toThrow('activity "a3" fits nowhere')
    for (const id of both) {
      const [best] = offers(id, given)
      expect(violations(given, best!)).toEqual([])
      expect(best!.makespanSeconds).toBe(many + 1 + 2)
    }
  })

  test.each(['heft', ...both] as const)('%s weighs links in proportion to the resources', (id) => {
    const weighed = (width: number): number => {
      const given = problem({
        durations: [2, 1, 1].map((seconds) => Array.from({ length: width }, () => seconds)),
        edges: [[0, 1, 1]],
        links: Array.from({ length: width - 1 }, (_, k) => ({ source: 0, target: k + 1 })),
      })
      let count = 0
      for (const link of given.links!)
        Object.defineProperty(link, 'bandwidthBitsPerSecond', { get: () => (count++, 8) })
      const { best } = [...algorithms[id].plan(given, few)].at(-1)!
      expect(best!.makespanSeconds).toBe(3)
      return count
    }
    expect(weighed(512) / weighed(256)).toBeLessThan(2.5)
  })

  test('the same problem gives the same schedules', () => {
    fc.assert(
      fc.property(instance(), (given) => {
        fc.pre(isPlannable(given))
        for (const id of both) expect(offers(id, structuredClone(given), few)).toEqual(offers(id, given, few))
      }),
      { ...runs, numRuns: 20 },
    )
  })

  test('a problem too large for its limit of work gets the schedule of HEFT, and the estimate says so', () => {
    const size = { activityCount: 2, dependencyCount: 1, compatibleResources: 2, expandedStates: 4 }
    const { 'prism-time': time } = algorithms
    expect(time.estimate(size, {})).toMatchObject({ beamWidth: 120, readyBranchLimit: 3 })
    expect(time.estimate(size, { maxWork: 1 })).toMatchObject({ beamWidth: 0 })
    expect(offers('prism-time', choice, { maxWork: 1 })).toEqual([heftOf(choice)])
    // A million tasks on 16 resources are planned and not searched.
    const large = { activityCount: 1e6, dependencyCount: 2e6, compatibleResources: 16, expandedStates: 16e6 }
    expect(time.estimate(large, {}).beamWidth).toBe(0)
  })

  test('it has a schedule from its first step on, and reports its progress', () => {
    const given = problem({ durations: Array.from({ length: 40 }, (_, k) => [k + 1, 2 * k + 1]), edges: [] })
    const steps = [...algorithms['prism-time'].plan(given, { beamWidth: 4 })]
    expect(steps.every(({ best }) => best !== undefined)).toBe(true)
    expect(steps.length).toBeGreaterThan(4)
    expect(steps.map(({ progress }) => progress)).toEqual(
      steps.map(({ progress }) => progress).sort((a, b) => a - b),
    )
    // A caller can also cut it off while it makes the schedules of a wide beam.
    const wide = [...algorithms['prism-time'].plan(given, { beamWidth: 64 })]
    expect(wide.length).toBeGreaterThan(steps.length + 4)
  })
})
