import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { Infeasible } from '../../src/schedulers/algorithm.ts'
import type { PlanningProblem, Schedule } from '../../src/schedulers/problem.ts'
import { choicesOf } from '../../src/schedulers/fit.ts'
import { algorithms } from '../../src/schedulers/registry.ts'
import { networkModels } from '../../src/simulator/channel.ts'
import type { NetworkModel } from '../../src/simulator/channel.ts'
import { networkRoutesOf } from '../../src/schedulers/routes.ts'
import { Network } from '../../src/simulator/network.ts'
import { simulate } from '../../src/simulator/simulate.ts'
import type { Placed, SimulationResult } from '../../src/simulator/simulate.ts'
import { fastest } from '../schedulers/checker.ts'
import { instance, problem } from '../schedulers/instances.ts'
import { placedFrom } from './documents.ts'

const runs = { numRuns: 200, seed: 20261121 }

type Completed = Extract<SimulationResult, { state: 'completed' }>

function play(given: PlanningProblem, placed: readonly Placed[], model?: NetworkModel): Completed {
  const result = simulate(given, placed, model)
  if (result.state === 'failed') throw new Error(result.reason)
  return result
}

const heftOf = (given: PlanningProblem): Schedule => [...algorithms.heft.plan(given, {})].at(-1)!.best!
const fitsSomewhere = (given: PlanningProblem): boolean =>
  choicesOf(given).every(({ resources }) => resources.length > 0)

/** The specification's worked example: edge, cloud, edge over one link of 100 Mbit/s and 50 ms. */
function edgeCloud(change: (given: PlanningProblem) => void = () => undefined): PlanningProblem {
  const given = problem({
    durations: [
      [4, 1],
      [12, 3],
      [2, 0.5],
    ],
    edges: [
      [0, 1, 100_000_000],
      [1, 2, 20_000_000],
    ],
    resources: [
      { lanes: 2, containerOverheadSeconds: 0.1 },
      { lanes: 8, pricePerSecond: 0.001, bootOverheadSeconds: 0.5, containerOverheadSeconds: 0.2 },
    ],
    links: [
      {
        source: 0,
        target: 1,
        bandwidthBitsPerSecond: 1e8,
        latencySeconds: 0.05,
        pricePerByte: 1e-10,
        maxConcurrentTransfers: 1,
      },
    ],
  })
  change(given)
  return given
}
const edgeCloudPlan: Placed[] = [
  { resource: 0, lanes: ['core-0'], orderOnResource: 1 },
  { resource: 1, lanes: ['core-0'], orderOnResource: 1 },
  { resource: 0, lanes: ['core-0'], orderOnResource: 2 },
]

/**
 * One source, N workers on one machine, one sink; every edge 10 GB over 80 Gbit/s, so a stage of N
 * transfers takes N seconds.
 */
function fanOut(workers: number, link: object = {}): { given: PlanningProblem; placed: Placed[] } {
  const sink = workers + 1
  const between = { bandwidthBitsPerSecond: 8e10, ...link }
  return {
    given: problem({
      durations: Array.from({ length: workers + 2 }, () => [10, 10, 10]),
      edges: Array.from(
        { length: workers },
        (_, k) =>
          [
            [0, k + 1, 1e10],
            [k + 1, sink, 1e10],
          ] as [number, number, number][],
      ).flat(),
      resources: [{}, { lanes: workers }, {}],
      links: [
        { source: 0, target: 1, ...between },
        { source: 1, target: 2, ...between },
      ],
    }),
    placed: [
      { resource: 0, lanes: ['c'], orderOnResource: 1 },
      ...Array.from({ length: workers }, (_, k) => ({ resource: 1, lanes: [`c${k}`], orderOnResource: 1 })),
      { resource: 2, lanes: ['c'], orderOnResource: 1 },
    ],
  }
}

describe('known answers', () => {
  test('edge and cloud: 19.6 s and 0.0157, times and breakdown as in the reference', () => {
    for (const model of ['contention-free', 'max-min', 'by-policy'] as const) {
      const result = play(edgeCloud(), edgeCloudPlan, model)
      expect(result.makespanSeconds).toBeCloseTo(19.6, 9)
      expect(result.cost).toBeCloseTo(0.0157, 12)
      expect(result.tasks.map(({ startedAt }) => startedAt)).toEqual([
        0,
        expect.closeTo(12.15, 9),
        expect.closeTo(17.5, 9),
      ])
      expect(result.tasks.map(({ finishedAt }) => finishedAt)).toEqual([
        4.1,
        expect.closeTo(15.85, 9),
        expect.closeTo(19.6, 9),
      ])
      expect(
        result.transfers.map(({ startedAt, finishedAt, links }) => [finishedAt - startedAt, links]),
      ).toEqual([
        [expect.closeTo(8.05, 9), ['l0-1']],
        [expect.closeTo(1.65, 9), ['l0-1']],
      ])
      expect(result.breakdown).toMatchObject({
        computeSeconds: 9,
        transferSeconds: expect.closeTo(9.7, 9),
        queueSeconds: 0,
        interferenceSeconds: 0,
        overheadSeconds: expect.closeTo(0.9, 9),
      })
      expect(result.transferredBytes).toBe(120_000_000)
    }
  })

  test('the same under lv08: 21.593 s, of which 11.693 s transfer; under cm02 1.05 times the bytes', () => {
    const lv08 = play(edgeCloud(), edgeCloudPlan, 'lv08')
    expect(lv08.makespanSeconds).toBeCloseTo(9.9 + 2 * 13.01 * 0.05 + (1.05 * 120e6 * 8) / (0.97 * 1e8), 9)
    expect(lv08.makespanSeconds.toFixed(3)).toBe('21.593')
    expect(lv08.breakdown.computeSeconds).toBe(9)
    expect(lv08.breakdown.transferSeconds.toFixed(3)).toBe('11.693')
    expect(play(edgeCloud(), edgeCloudPlan, 'cm02').makespanSeconds).toBeCloseTo(
      9.9 + 0.1 + (1.05 * 120e6 * 8) / 1e8,
      9,
    )
  })

  test('fan-out over a shared link: 36 s with three workers, 30 + 2 N with N', () => {
    for (const workers of [3, 50, 100, 1000]) {
      const { given, placed } = fanOut(workers)
      expect(play(given, placed).makespanSeconds).toBeCloseTo(30 + 2 * workers, 7)
      expect(play(given, placed, 'contention-free').makespanSeconds).toBeCloseTo(32, 9)
    }
    const { given, placed } = fanOut(3, { maxConcurrentTransfers: 3 })
    const result = play(given, placed)
    expect(result.makespanSeconds).toBeCloseTo(36, 9)
    expect(result.tasks.at(-1)).toMatchObject({
      readyAt: expect.closeTo(23, 9),
      dataReadyAt: expect.closeTo(26, 9),
      transferSeconds: expect.closeTo(3, 9),
      interferenceSeconds: expect.closeTo(2, 9),
    })
  })
})

describe('sharing', () => {
  test('a fat pipe and an independent link give every flow the whole bandwidth by policy, and share when all links are to be shared', () => {
    const { given, placed } = fanOut(5, { shared: false })
    expect(play(given, placed, 'by-policy').makespanSeconds).toBeCloseTo(32, 9)
    expect(play(given, placed, 'max-min').makespanSeconds).toBeCloseTo(40, 9)
  })

  test('a link used in both directions shares one capacity unless it is split', () => {
    const both = (duplexSplit: boolean): number =>
      play(
        problem({
          durations: [
            [0, 0],
            [0, 0],
            [0, 0],
            [0, 0],
          ],
          edges: [
            [0, 1, 10],
            [2, 3, 10],
          ],
          links: [{ source: 0, target: 1, duplexSplit }],
        }),
        [0, 1, 1, 0].map((resource, k) => ({ resource, lanes: [`c${k}`], orderOnResource: 1 })),
      ).makespanSeconds
    expect(both(false)).toBeCloseTo(20, 9)
    expect(both(true)).toBeCloseTo(10, 9)
  })

  test('the share of a flow is weighted by one over the latency of its route', () => {
    // Two flows of 30 bytes over one link of 1 byte/s, 1 s and 2 s of latency: rates 2/3 and 1/3
    // once both move.
    const given = problem({
      durations: [
        [0, 0, 0],
        [0, 0, 0],
        [0, 0, 0],
      ],
      edges: [
        [0, 1, 30],
        [0, 2, 30],
      ],
      links: [
        { source: 0, target: 1, latencySeconds: 1 },
        { source: 1, target: 2, latencySeconds: 1, bandwidthBitsPerSecond: 8e9 },
      ],
    })
    const placed = [0, 1, 2].map((resource) => ({ resource, lanes: ['c'], orderOnResource: 1 }))
    const { transfers } = play(given, placed)
    // From 1 s to 2 s the first flow is alone (1 byte), then it needs 29 / (2/3) s; the second has
    // 30 − 14.5 bytes left then.
    expect(transfers[0]!.finishedAt).toBeCloseTo(2 + 43.5, 9)
    expect(transfers[1]!.finishedAt).toBeCloseTo(45.5 + 15.5, 9)
  })

  test('max-min: what a flow cannot use for another bottleneck goes to the others', () => {
    const given = problem({
      durations: Array.from({ length: 4 }, () => [0, 0, 0]),
      edges: [
        [0, 2, 10],
        [0, 3, 10],
        [1, 3, 90],
      ],
      // r1 → r3 with 3 byte/s, r2 → r3 … the flows to r3's side share the second link of 10 byte/s.
      links: [
        { source: 0, target: 1, bandwidthBitsPerSecond: 16 },
        { source: 1, target: 2, bandwidthBitsPerSecond: 80 },
      ],
    })
    const placed = [0, 1, 2, 2].map((resource, k) => ({ resource, lanes: [`c${k}`], orderOnResource: 1 }))
    const { transfers } = play(given, placed)
    // Two flows share 2 byte/s (1 each); the third has 10 − 2 = 8 until they end at 10 s, then 10.
    expect(transfers.map(({ finishedAt }) => finishedAt)).toEqual([
      expect.closeTo(10, 9),
      expect.closeTo(10, 9),
      expect.closeTo(11, 9),
    ])
  })

  test('a limit of concurrent transfers serves by ready time, then by activity id', () => {
    const { given, placed } = fanOut(4, { maxConcurrentTransfers: 1 })
    ;[given.activities[1]!.id, given.activities[4]!.id] = ['z', 'a']
    const { transfers, tasks } = play(given, placed)
    const first = transfers.filter(({ producer }) => producer === 0).sort((a, b) => a.startedAt - b.startedAt)
    expect(first.map(({ consumer }) => given.activities[consumer]!.id)).toEqual(['a', 'a3', 'a4', 'z'])
    expect(first.map(({ startedAt }) => startedAt)).toEqual([10, 11, 12, 13])
    expect(first.every(({ readyAt }) => readyAt === 10)).toBe(true)
    expect(tasks.at(-1)!.finishedAt).toBeCloseTo(10 + 4 + 10 + 1 + 10, 9)
  })
})

describe('properties', () => {
  test('a flow waits for a limited link with few comparisons, however many wait there', () => {
    const comparisons = (n: number): number => {
      const given = problem({
        durations: Array.from({ length: n }, () => [0, 0]),
        edges: Array.from({ length: n }, (_, k) => [k, k, 1] as const),
        links: [{ source: 0, target: 1, maxConcurrentTransfers: 1 }],
      })
      let compared = 0
      const counted = (rank: number) => ({ valueOf: () => (compared++, rank) }) as unknown as number
      const network = new Network(given, networkRoutesOf(given), 'by-policy')
      network.request(
        Array.from({ length: n }, (_, id) => ({ id, from: 0, to: 1, bytes: 1, rank: counted(n - id) })),
      )
      const arrived: number[] = []
      while (arrived.length < n) arrived.push(...network.advance(network.nextTime()))
      expect(arrived).toEqual(Array.from({ length: n }, (_, k) => n - 1 - k))
      return compared
    }
    expect(comparisons(2_000) / comparisons(1_000)).toBeLessThan(2.5)
  })

  test('without contention the simulation of a plan is the planner’s own estimate', () => {
    fc.assert(
      fc.property(instance(), (given) => {
        fc.pre(fitsSomewhere(given))
        const schedule = heftOf(given)
        const result = play(given, placedFrom(schedule), 'contention-free')
        const near = (value: number): unknown => expect.closeTo(value, 9)
        expect(
          result.tasks.map((task) => [
            task.startedAt,
            task.finishedAt,
            task.dataReadyAt,
            task.transferSeconds,
            task.cost,
          ]),
        ).toEqual(
          schedule.assignments.map((each) => [
            near(each.startAt),
            near(each.finishAt),
            near(each.readyAt),
            near(each.transferSeconds),
            near(each.cost),
          ]),
        )
        expect(result.makespanSeconds).toBeCloseTo(schedule.makespanSeconds, 9)
        expect(result.cost).toBeCloseTo(schedule.cost, 9)
        expect(result.breakdown.interferenceSeconds).toBe(0)
      }),
      runs,
    )
  })

  test('under every model: nothing before its data, its predecessors and its lanes; no link beyond its bandwidth or its limit', () => {
    fc.assert(
      fc.property(instance({ maxActivities: 16 }), fc.constantFrom(...networkModels), (given, model) => {
        fc.pre(fitsSomewhere(given))
        const placed = placedFrom(heftOf(given))
        const result = play(given, placed, model)
        const slack = 1e-7
        for (const task of result.tasks) {
          expect(task.startedAt).toBeCloseTo(task.readyAt + task.transferSeconds + task.queueSeconds, 9)
          expect(task.finishedAt).toBeCloseTo(task.startedAt + task.overheadSeconds + task.runtimeSeconds, 9)
          expect(task.interferenceSeconds).toBeLessThanOrEqual(task.transferSeconds + slack)
          expect(
            Math.min(task.transferSeconds, task.queueSeconds, task.interferenceSeconds),
          ).toBeGreaterThanOrEqual(0)
        }
        for (const { from, to } of given.edges)
          expect(result.tasks[to]!.startedAt).toBeGreaterThanOrEqual(result.tasks[from]!.finishedAt - slack)
        for (const { consumer, producer, readyAt, startedAt, finishedAt } of result.transfers) {
          expect(readyAt).toBe(result.tasks[producer]!.finishedAt)
          expect(startedAt).toBeGreaterThanOrEqual(readyAt)
          expect(result.tasks[consumer]!.dataReadyAt).toBeGreaterThanOrEqual(finishedAt)
        }
        const lanes = new Map<string, number[]>()
        placed.forEach(({ resource, lanes: held }, k) =>
          held.forEach((lane) =>
            lanes.set(`${resource} ${lane}`, [...(lanes.get(`${resource} ${lane}`) ?? []), k]),
          ),
        )
        for (const tasks of lanes.values()) {
          tasks.sort((a, b) => placed[a]!.orderOnResource - placed[b]!.orderOnResource)
          for (let i = 1; i < tasks.length; i++)
            expect(result.tasks[tasks[i]!]!.startedAt).toBeGreaterThanOrEqual(
              result.tasks[tasks[i - 1]!]!.finishedAt,
            )
        }
        for (const link of given.links ?? []) {
          const using = result.transfers.filter(({ links }) => links.includes(link.id))
          if (model === 'max-min' || (model !== 'contention-free' && link.shared)) {
            // In any window a link moves no more than its bandwidth allows; every transfer's own
            // span is such a window.
            for (const { startedAt, finishedAt } of using) {
              const within = using.filter(
                (each) => each.startedAt >= startedAt && each.finishedAt <= finishedAt,
              )
              const capacity =
                (link.bandwidthBitsPerSecond / 8) * (finishedAt - startedAt) * (link.duplexSplit ? 2 : 1)
              expect(within.reduce((sum, { bytes }) => sum + bytes, 0)).toBeLessThanOrEqual(
                capacity * (1 + 1e-9) + 1e-3,
              )
            }
          }
          if (model !== 'contention-free' && link.maxConcurrentTransfers > 0) {
            for (const { startedAt } of using) {
              const together = using.filter(
                (each) => each.startedAt <= startedAt && each.finishedAt > startedAt + slack,
              )
              expect(together.length).toBeLessThanOrEqual(
                link.maxConcurrentTransfers * (link.duplexSplit ? 2 : 1),
              )
            }
          }
        }
        expect(play(given, placed, model)).toEqual(result)
      }),
      runs,
    )
  })
})

describe('plans that cannot run', () => {
  test('a missing route fails with the pair and the activities', () => {
    const result = simulate(
      edgeCloud((given) => (given.links = [])),
      edgeCloudPlan,
    )
    expect(result).toEqual({
      state: 'failed',
      reason:
        'no route for 100000000 bytes from "a1" on "r1" to "a2" on "r2", 20000000 bytes from "a2" ' +
        'on "r2" to "a3" on "r1"',
    })
  })

  test('data against one-way links fails, all else completes, and so does what a planner places', () => {
    const found = { completed: 0, failed: 0, planned: 0 }
    const placements = fc.array(fc.nat(4), { minLength: 6, maxLength: 6 })
    fc.assert(
      fc.property(instance({ connected: false, maxActivities: 6 }), placements, (given, chosen) => {
        const placed = given.activities.map((_, k): Placed => ({
          resource: chosen[k]! % given.resources.length,
          lanes: [`c${k}`],
          orderOnResource: 1,
        }))
        const isBlocked = given.edges.some(({ from, to, bytes }) => {
          const [source, target] = [placed[from]!.resource, placed[to]!.resource]
          return bytes > 0 && source !== target && fastest(given, source, target, bytes).seconds === Infinity
        })
        const { state } = simulate(given, placed)
        expect(state).toBe(isBlocked ? 'failed' : 'completed')
        found[state]++
        try {
          expect(simulate(given, placedFrom(heftOf(given))).state).toBe('completed')
          found.planned++
        } catch (error) {
          if (!(error instanceof Infeasible)) throw error
        }
      }),
      runs,
    )
    expect(Math.min(...Object.values(found))).toBeGreaterThan(30)
  })

  test('orders against the dependencies fail with the activities that wait for each other', () => {
    const placed = [
      { resource: 0, lanes: ['c'], orderOnResource: 2 },
      { resource: 1, lanes: ['c'], orderOnResource: 1 },
      { resource: 0, lanes: ['c'], orderOnResource: 1 },
    ]
    expect(simulate(edgeCloud(), placed)).toEqual({
      state: 'failed',
      reason: 'the lane orders contradict the dependencies: "a1" → "a2" → "a3" → "a1"',
    })
  })

  test('a time that is not a number ends the simulation instead of keeping it going', () => {
    for (const seconds of [
      [NaN, 1],
      [1, NaN],
    ]) {
      const given = problem({
        durations: seconds.map((each) => [each]),
        edges: [],
        resources: [{ lanes: 2 }],
      })
      const placed = ['x', 'y'].map((lane) => ({ resource: 0, lanes: [lane], orderOnResource: 1 }))
      expect(() => simulate(given, placed)).toThrow('not a number')
    }
  })

  test('without a topology there is no network', () => {
    expect(
      play(
        edgeCloud((given) => (given.links = undefined)),
        edgeCloudPlan,
      ).makespanSeconds,
    ).toBeCloseTo(9.9, 9)
  })
})

describe('every input matters, as predicted', () => {
  const base = play(edgeCloud(), edgeCloudPlan)
  const cases: [string, (given: PlanningProblem) => void, { makespan: number; cost: number }, Placed[]?][] = [
    ['bytes', (given) => (given.edges[0]!.bytes += 12_500_000), { makespan: 1, cost: 0.00125 }],
    ['bandwidth', (given) => (given.links![0]!.bandwidthBitsPerSecond /= 2), { makespan: 9.6, cost: 0 }],
    ['latency', (given) => (given.links![0]!.latencySeconds += 1), { makespan: 2, cost: 0 }],
    ['link price', (given) => (given.links![0]!.pricePerByte *= 2), { makespan: 0, cost: 0.012 }],
    ['resource price', (given) => (given.resources[1]!.pricePerSecond *= 2), { makespan: 0, cost: 0.0037 }],
    ['boot', (given) => (given.resources[1]!.bootOverheadSeconds += 2), { makespan: 2, cost: 0.002 }],
    ['container', (given) => (given.resources[0]!.containerOverheadSeconds += 1), { makespan: 2, cost: 0 }],
    ['runtime', (given) => (given.durations[3]! += 5), { makespan: 5, cost: 0.005 }],
    ['window', (given) => (given.resources[1]!.activeWindow = true), { makespan: 0, cost: 0 }],
  ]
  test.each(cases)('%s', (_, change, predicted) => {
    const changed = play(edgeCloud(change), edgeCloudPlan)
    expect(changed.makespanSeconds - base.makespanSeconds).toBeCloseTo(predicted.makespan, 9)
    expect(changed.cost - base.cost).toBeCloseTo(predicted.cost, 12)
  })

  test('cores, lane order, sharing, limit', () => {
    const given = problem({ durations: [[5], [3]], edges: [] })
    const lanes = (a: string, b: string, orderA: number, orderB: number): number[] =>
      play(given, [
        { resource: 0, lanes: [a], orderOnResource: orderA },
        { resource: 0, lanes: [b], orderOnResource: orderB },
      ]).tasks.map(({ startedAt }) => startedAt)
    expect(lanes('x', 'y', 1, 2)).toEqual([0, 0])
    expect(lanes('x', 'x', 1, 2)).toEqual([0, 5])
    expect(lanes('x', 'x', 2, 1)).toEqual([3, 0])
    const wide = play(given, [
      { resource: 0, lanes: ['x', 'y'], orderOnResource: 1 },
      { resource: 0, lanes: ['y'], orderOnResource: 2 },
    ])
    expect(wide.tasks[1]).toMatchObject({ startedAt: 5, queueSeconds: 5 })
    const makespan = (link: object): number => {
      const { given: fan, placed } = fanOut(4, link)
      return play(fan, placed).makespanSeconds
    }
    expect(makespan({ shared: true }) - makespan({ shared: false })).toBeCloseTo(6, 9)
    // One at a time, the workers start and end one after the other, so the second stage overlaps
    // the first.
    expect(makespan({ maxConcurrentTransfers: 1 }) - makespan({})).toBeCloseTo(35 - 38, 9)
  })
})
