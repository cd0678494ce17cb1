import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { rankCandidates } from '../../src/domains/planning-sessions/ranking.ts'
import { infeasibilities } from '../../src/domains/schedule-plans/prediction.ts'
import {
  defaultedDurations,
  placementOf,
  problemOf,
  type PlannedActivity,
  type PlannedResource,
  type ProblemDocuments,
} from '../../src/domains/schedule-plans/problem.ts'
import { whyNowhere } from '../../src/schedulers/fit.ts'
import { durationSources } from '../../src/schedulers/problem.ts'

const machine = (id: string, more: Partial<PlannedResource> = {}): PlannedResource => ({
  id,
  environmentVersionId: 'v',
  type: 'cloud_vm',
  executionTarget: 'direct',
  cpuCores: 2,
  cpuCapacity: 2,
  memoryBytes: 100,
  computeSpeedup: 4,
  pricePerSecond: 1,
  bootOverheadSeconds: 0,
  containerOverheadSeconds: 0,
  schedulable: true,
  ...more,
})
const activity = (more: Partial<PlannedActivity> = {}): PlannedActivity => ({
  id: 'a',
  typeId: 't',
  cpu: 1,
  memoryBytes: 1,
  priority: 0,
  ...more,
})
const problem = (given: PlannedActivity, resource = machine('m'), more: Partial<ProblemDocuments> = {}) =>
  problemOf({
    graph: { activities: [given], edges: [] },
    resources: [resource],
    versions: [{ id: 'v' }],
    profiles: [],
    links: undefined,
    ...more,
  })
const first = (...args: Parameters<typeof problem>) => {
  const made = problem(...args)
  return {
    seconds: made.durations[0],
    source: durationSources[made.durationSource[0]!],
    defaulted: defaultedDurations(made),
  }
}

describe('durations', () => {
  const profile = { activityTypeId: 't', resourceId: 'm', runtimeSeconds: 7 }
  const everything = activity({ baseRuntimeSeconds: 8, simulation: { durationSeconds: 12, flops: 4e9 } })
  const { baseRuntimeSeconds: _, ...unmeasured } = everything
  test.each([
    ['9', '10'],
    ['1.9', '1.10'],
    ['v2', 'v10-b'],
    ['', '0'],
    ['1', '1.0'],
    ['99999999999999999998', '99999999999999999999'],
  ])('of the models %j and %j the second is newer, in any order', (older, newer) => {
    const models = [older, newer].map((modelVersion, i) => ({
      ...profile,
      modelVersion,
      runtimeSeconds: 8 + i,
    }))
    for (const profiles of [models, models.toReversed()])
      expect(first(activity(), machine('m'), { profiles }).seconds).toBe(9)
  })

  test.each<[string, ReturnType<typeof first>, number, string]>([
    [
      'base runtime over speedup before everything',
      first(everything, machine('m'), { profiles: [profile] }),
      2,
      'baseRuntime',
    ],
    ['then the profile as it is', first(unmeasured, machine('m'), { profiles: [profile] }), 7, 'profile'],
    [
      'a profile without a runtime says nothing',
      first(unmeasured, machine('m'), { profiles: [{ ...profile, runtimeSeconds: 0 }] }),
      3,
      'simulation',
    ],
    [
      'a profile of another resource says nothing',
      first(unmeasured, machine('m'), { profiles: [{ ...profile, resourceId: 'x' }] }),
      3,
      'simulation',
    ],
    [
      'of several models the newest counts',
      first(activity(), machine('m'), {
        profiles: [
          { ...profile, modelVersion: '2', runtimeSeconds: 9 },
          { ...profile, modelVersion: '1' },
        ],
      }),
      9,
      'profile',
    ],
    ['then the simulated duration over speedup', first(unmeasured), 3, 'simulation'],
    [
      'then operations at the reference rate times speedup',
      first(activity({ simulation: { flops: 8e9 } })),
      2,
      'flops',
    ],
    [
      'operations may stand among the parameters',
      first(activity({ simulation: { parameters: { flops: 8e9 } } })),
      2,
      'flops',
    ],
    [
      'the resource may know its own rate',
      first(activity({ simulation: { flops: 8e9 } }), machine('m', { metadata: { flopsPerSecond: 1e9 } })),
      8,
      'flops',
    ],
    ['an explicit 0 is 0', first(activity({ simulation: { durationSeconds: 0 } })), 0, 'simulation'],
    [
      'an explicit base runtime of 0 is 0',
      first(activity({ baseRuntimeSeconds: 0, simulation: { durationSeconds: 5 } })),
      0,
      'baseRuntime',
    ],
    [
      'a speedup that nobody set is 1',
      first(activity({ simulation: { durationSeconds: 5 } }), machine('m', { computeSpeedup: 0 })),
      5,
      'simulation',
    ],
    [
      'in a run the plan is asked before the default',
      first(activity(), machine('m'), { runtimes: [{ predictedRuntimeSeconds: 6 }] }),
      6,
      'plan',
    ],
    [
      'its base runtime before its prediction',
      first(activity(), machine('m'), {
        runtimes: [{ predictedRuntimeSeconds: 6, executionBaseRuntimeSeconds: 5 }],
      }),
      5,
      'plan',
    ],
    [
      'a prediction that nobody made says nothing',
      first(activity(), machine('m'), { runtimes: [{ predictedRuntimeSeconds: 0 }] }),
      0.25,
      'default',
    ],
    ['else one second over speedup', first(activity()), 0.25, 'default'],
  ])('%s', (_name, { seconds, source, defaulted }, wanted, from) => {
    expect([seconds, source, defaulted]).toEqual([wanted, from, from === 'default' ? 1 : 0])
  })
})

test('a default duration counts only on resources that can run the activity', () => {
  const profiles = [{ activityTypeId: 't', resourceId: 'm', runtimeSeconds: 7 }]
  const defaulted = (more: Partial<PlannedResource>): number =>
    defaultedDurations(
      problem(activity(), machine('m'), { profiles, resources: [machine('m'), machine('n', more)] }),
    )
  expect([defaulted({}), defaulted({ cpuCapacity: 0.5 }), defaulted({ schedulable: false })]).toEqual([
    1, 0, 0,
  ])
})

describe('resources', () => {
  test('lanes are cores, else whole units of capacity, at least one; a queue shows one slot', () => {
    const lanes = (more: Partial<PlannedResource>): number =>
      problem(activity(), machine('m', more)).resources[0]!.lanes
    expect([
      lanes({ cpuCores: 3 }),
      lanes({ cpuCores: 0, cpuCapacity: 2.9 }),
      lanes({ cpuCores: 0, cpuCapacity: 0.5 }),
    ]).toEqual([3, 2, 1])
    expect(lanes({ type: 'batch_queue', executionTarget: 'batch' })).toBe(1)
    expect(
      problem(activity(), machine('m', { type: 'batch_queue', executionTarget: 'direct' })).resources[0],
    ).toMatchObject({
      batch: false,
      opaque: false,
      lanes: 2,
    })
  })

  test('what is not schedulable takes no task and passes data on; a run takes every resource as it was planned', () => {
    const documents = {
      graph: { activities: [activity()], edges: [] },
      resources: [machine('z'), machine('switch', { schedulable: false }), machine('b')],
      versions: [{ id: 'v', costModel: 'active-window' }],
      profiles: [],
      links: [
        {
          id: 'l',
          sourceResourceId: 'z',
          targetResourceId: 'switch',
          bandwidthBitsPerSecond: 1,
          latencySeconds: 0,
          pricePerByte: 0,
          bidirectional: true,
          maxConcurrentTransfers: 0,
          sharingPolicy: 'fatpipe',
          metadata: { duplex: 'split' },
        },
      ],
    }
    const planning = problemOf(documents)
    expect(planning.resources.map(({ id }) => id)).toEqual(['b', 'z', 'switch'])
    expect([...planning.durations]).toEqual([0.25, 0.25, Infinity])
    expect(planning.links).toEqual([
      expect.objectContaining({ source: 1, target: 2, shared: false, duplexSplit: true }),
    ])
    expect(planning.resources.map(({ activeWindow }) => activeWindow)).toEqual([true, true, false])
    const why = (more: Partial<PlannedActivity>, resources = documents.resources): string =>
      whyNowhere(
        problemOf({ ...documents, resources, graph: { activities: [activity(more)], edges: [] } }),
        0,
      )
    expect(why({ cpu: 3 })).toBe(
      'needs 3 cpu and 1 bytes of memory; "b" has cpuCapacity 2; "z" has cpuCapacity 2',
    )
    expect(why({ resourceSelector: 'switch' })).toContain('not schedulable in this scope')
    expect(why({}, [])).toBe('the scope has no schedulable resource')
    expect(problemOf({ ...documents, runtimes: [{}] }).resources.map(({ id }) => id)).toEqual([
      'b',
      'switch',
      'z',
    ])
  })

  test('a selector that names nothing schedulable allows nothing; placements name lanes and refuse strangers', () => {
    const made = problem(activity({ resourceSelector: 'elsewhere' }))
    expect(made.resources[made.activities[0]!.selector!]).toBeUndefined()
    const placed = { coreIds: ['x', ''], slotId: 's', orderOnResource: 3 }
    const [placement] = placementOf(made, [{ ...placed, resourceId: 'm' }])
    expect(placement).toMatchObject({ resource: 0, orderOnResource: 3 })
    expect(new Set(placement!.lanes).size).toBe(2)
    expect(() => placementOf(made, [{ ...placed, resourceId: 'n' }])).toThrow(RangeError)
  })
})

test('a deadline or budget is met by what differs from it by rounding alone, and missed by any more', () => {
  const given = { makespanSeconds: 0.1 + 0.2, cost: 0.1 + 0.2, deadlineSeconds: 0.3, budget: 0.3 }
  expect(infeasibilities(given)).toEqual([])
  expect(infeasibilities({ ...given, makespanSeconds: 0.31, cost: 0.31 })).toEqual([
    'its makespan 0.31 s is beyond the deadline 0.3 s',
    'its cost 0.31 is beyond the budget 0.3',
  ])
  expect(
    infeasibilities({ makespanSeconds: 9, cost: 9, deadlineSeconds: 0, budget: 0, failure: 'no route' }),
  ).toEqual(['no route'])
})

test('candidates: feasible first, the front before the rest, then by time and price; ranks count from 1', () => {
  const candidate = fc.record({
    feasible: fc.boolean(),
    makespanSeconds: fc.integer({ min: 1, max: 5 }),
    cost: fc.integer({ min: 0, max: 5 }),
  })
  fc.assert(
    fc.property(fc.array(candidate, { maxLength: 12 }), (given) => {
      const candidates = given.map((each, k) => ({ ...each, id: `c${k}` }))
      const ranked = rankCandidates(candidates)
      const of = (id: string) => candidates.find((each) => each.id === id)!
      expect(ranked.map(({ rank }) => rank)).toEqual(candidates.map((_, k) => k + 1))
      for (const { id, dominated, paretoOptimal } of ranked) {
        const self = of(id)
        const better = candidates.filter(
          (each) =>
            each.feasible &&
            each.makespanSeconds <= self.makespanSeconds &&
            each.cost <= self.cost &&
            each.makespanSeconds + each.cost < self.makespanSeconds + self.cost,
        )
        expect([dominated, paretoOptimal]).toEqual([better.length > 0, self.feasible && better.length === 0])
      }
      const keys = ranked.map(({ id, paretoOptimal }) => [
        Number(!of(id).feasible),
        Number(!paretoOptimal),
        of(id).makespanSeconds,
        of(id).cost,
      ])
      const before = (a: number[], b: number[]): boolean =>
        a.some((value, k) => value < b[k]! && a.slice(0, k).every((same, i) => same === b[i])) ||
        a.every((value, k) => value === b[k])
      for (let k = 1; k < keys.length; k++) expect(before(keys[k - 1]!, keys[k]!)).toBe(true)
    }),
    { seed: 11, numRuns: 300 },
  )
})
