import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import {
  availability,
  lifecycleMembers,
  lifecycleOf,
  taskOverheads,
  withOverheads,
  type TimedAction,
} from '../../src/domains/schedule-plans/lifecycle.ts'
import type { LifecycleAction } from '../../src/domains/schedule-plans/schemas.ts'
import type { PlannedResource } from '../../src/domains/schedule-plans/problem.ts'

/** The actions around a plan's tasks on machines that are made for it, and what they cost. */

const target = (metadata: object = {}): PlannedResource => ({
  ...{ id: 't', environmentVersionId: 'v', type: 'cloud_vm', executionTarget: 'provisioned', cpuCores: 1 },
  ...{ cpuCapacity: 1, memoryBytes: 1, computeSpeedup: 1, pricePerSecond: 2, bootOverheadSeconds: 0 },
  ...{ containerOverheadSeconds: 0, schedulable: true },
  metadata: { capacityTargetId: 't', lifecyclePolicy: 'destroy-after-execution', ...metadata },
})
const measured = new Map<string, object>()
const tasks = [
  { resourceId: 't', startAt: 200, finishAt: 230 },
  { resourceId: 't', startAt: 240, finishAt: 260 },
  { resourceId: 'other', startAt: 0, finishAt: 500 },
]
const of = (resource: PlannedResource, more: object = {}) =>
  lifecycleOf('p', { resources: [resource], measured, tasks, ...more })

test('the machine is there when the first task starts, by the defaults of the reference', () => {
  expect(availability([target()], measured).get('t')).toBe(95)
  const { actions } = of(target())
  expect(
    actions.map(({ action, earliestStart, expectedDuration }) => [action, earliestStart, expectedDuration]),
  ).toEqual([
    ['provision', 105, 40],
    ['wait-for-ssh', 145, 20],
    ['configure', 165, 30],
    ['validate', 195, 5],
    ['destroy', 260, 20],
  ])
  expect(actions[1]!.dependsOn).toEqual([actions[0]!.id])
  expect(availability([target()], measured, actions).get('t')).toBe(200)
})

test('by the actions of a plan its machine is there when the first task starts, to the last digit', () => {
  const seconds = fc.integer({ min: 0, max: 10_000 }).map((n) => n / 7)
  fc.assert(
    fc.property(
      seconds,
      seconds,
      seconds,
      seconds,
      (more, terraformSeconds, sshWaitSeconds, validationSeconds) => {
        const resource = target({ terraformSeconds, sshWaitSeconds, validationSeconds })
        const startAt = availability([resource], measured).get('t')! + more
        const { actions } = of(resource, { tasks: [{ resourceId: 't', startAt, finishAt: startAt + 1 }] })
        const there = availability([resource], measured, actions).get('t')!
        expect(there).toBeLessThanOrEqual(startAt)
        expect(there).toBeCloseTo(startAt, 9)
      },
    ),
    { seed: 20261127 },
  )
})

test('a start behind a stop is of a machine that was there before', () => {
  type Given = readonly [LifecycleAction['action'], number, number]
  const there = (...all: Given[]) => {
    const actions = all.map(([action, earliestStart, expectedDuration]) => ({
      ...{ capacityTargetId: 't', action, earliestStart, expectedDuration },
    }))
    return availability([target()], measured, actions).get('t')
  }
  const rest: Given[] = [
    ['stop', 1_000, 20],
    ['start', 5_000, 40],
    ['wait-for-ssh', 5_040, 20],
  ]
  expect(there(['provision', 0, 40], ['validate', 90, 5], ...rest)).toBe(95)
  expect(there(['start', 10, 30], ...rest)).toBe(40)
  // Without one before it, the machine comes by the start.
  expect(there(['stop', 0, 20], ['start', 5_000, 40])).toBe(5_040)
})

test('metadata of the resource comes before the defaults, measurements before both', () => {
  const resource = target({
    terraformSeconds: 10,
    sshWaitSeconds: 5,
    configurationSeconds: 0,
    validationSeconds: 0,
  })
  expect(availability([resource], measured).get('t')).toBe(15)
  const known = new Map([['t', { provision: 3, waitForSsh: 2, configure: 1, stop: 4 }]])
  expect(availability([resource], known).get('t')).toBe(6)
  const picked = new Map([['t', { ...known.get('t')!, pickUp: 0.5 }]])
  expect(availability([resource], picked).get('t')).toBe(6.5)
  expect(of(resource, { measured: known }).actions.at(-1)).toMatchObject({
    action: 'destroy',
    expectedDuration: 4,
  })
})

test('what tasks hold their lanes for beside their runtimes is an overhead of the resource', () => {
  const known = new Map([['t', { perTask: 0.4 }]])
  const overheads = taskOverheads([target()], known)
  expect(overheads).toEqual({ t: 0.4 })
  expect(withOverheads([{ ...target(), containerOverheadSeconds: 1 }], overheads)).toMatchObject([
    { id: 't', containerOverheadSeconds: 1.4 },
  ])
  const lifecycle = of(target(), { measured: known })
  expect(lifecycleMembers(lifecycle, { note: 'mine' }).metadata).toMatchObject({
    ...{ note: 'mine', taskOverheadSeconds: { t: 0.4 } },
  })
  // What an author writes there is none, on no machine and of no kind.
  for (const more of ['x', -1, null, {}, Infinity])
    expect(withOverheads([target()], { t: more as number })).toEqual([target()])
  const lasting = { ...target(), executionTarget: 'direct' }
  expect(withOverheads([lasting], { t: 9 })).toEqual([lasting])
  const own = { note: 'mine', taskOverheadSeconds: { t: 'x' } }
  expect(lifecycleMembers(of(lasting), own).metadata).toEqual({ note: 'mine' })
  expect(lifecycleMembers(undefined, undefined).metadata).toBeUndefined()
  // A plan that comes back has the overheads that are measured now.
  expect(lifecycleMembers(of(target()), { taskOverheadSeconds: { t: 9 } }).metadata).not.toHaveProperty(
    'taskOverheadSeconds',
  )
})

test('a plan keeps the measured time of a machine that its own actions do not set up', () => {
  const known = new Map([['t', { provision: 3, waitForSsh: 2, configure: 1 }]])
  const own = { capacityTargetId: 't', action: 'destroy', earliestStart: 300, expectedDuration: 0 }
  const setups = (given: object) =>
    lifecycleMembers(of(target(), given), { machineSetupSeconds: 'mine' }).metadata?.['machineSetupSeconds']
  expect(setups({ measured: known, actions: [own] })).toEqual({ t: 6 })
  expect(availability([target()], measured, [own as TimedAction], { t: 6 }).get('t')).toBe(6)
  // The steps that the service adds, and the usual times, need no record.
  expect([setups({ measured: known }), setups({ actions: [own] })]).toEqual([undefined, undefined])
})

describe('the machine costs beside its tasks', () => {
  test('idle time from running to gone, and its disk from made to gone', () => {
    const monthly = 730 * 3_600
    const { cloudCost, cost } = of(target({ diskPricePerGiBMonth: monthly, diskSizeGiB: 0.5 }))
    // Made at 105, running at 145, gone at 280; the tasks pay for 200 to 260.
    expect(cloudCost['t']).toEqual({ compute: 120, disk: 87.5, idle: 150, activeSeconds: 60 })
    expect(cost).toBe(237.5)
  })
  test.each([
    ['destroy-after-run', 500],
    ['keep', 1_400],
  ])('policy %s ends it at %i', (lifecyclePolicy, end) => {
    expect(of(target({ lifecyclePolicy })).actions.at(-1)!.earliestStart).toBe(end)
  })
  test('a machine that stops and starts again costs its disk all the time, and nothing else meanwhile', () => {
    const monthly = 730 * 3_600
    const resource = target({ diskPricePerGiBMonth: monthly, diskSizeGiB: 1 })
    const costOf = (...steps: [LifecycleAction['action'], number, number][]) => {
      const actions = steps.map(([action, earliestStart, expectedDuration]) => ({
        ...{ id: action, capacityTargetId: 't', action, earliestStart, expectedDuration },
      }))
      const { cloudCost, cost } = of(resource, { actions: actions.toReversed() })
      return { ...cloudCost['t'], beside: cost }
    }
    // It runs from 140 to 235 and from 238 to 320; the tasks have it from 200 to 260, and pay for all of that.
    expect(costOf(['provision', 100, 40], ['stop', 230, 5], ['start', 236, 2], ['destroy', 300, 20])).toEqual(
      {
        ...{ compute: 114, disk: 220, idle: 2 * (95 + 82 - 57), activeSeconds: 57, beside: 220 + 240 - 6 },
      },
    )
    // It runs from 140 to 270.
    expect(costOf(['provision', 100, 40], ['stop', 265, 5], ['destroy', 3_600, 20])).toEqual({
      ...{ compute: 120, disk: 3_520, idle: 140, activeSeconds: 60, beside: 3_660 },
    })
  })
  test('a plan without such resources has none of it', () => {
    expect(of({ ...target(), executionTarget: 'direct' })).toEqual({
      actions: [],
      cloudCost: {},
      overheads: {},
      setups: {},
      cost: 0,
    })
  })
})

test('actions of the author stay, and no cost is negative', () => {
  fc.assert(
    fc.property(fc.nat(300), fc.nat(100), fc.nat(400), (earliestStart, expectedDuration, endAt) => {
      const own = [
        { id: 'a', capacityTargetId: 't', action: 'provision' as const, earliestStart, expectedDuration },
        {
          id: 'b',
          capacityTargetId: 't',
          action: 'destroy' as const,
          earliestStart: endAt,
          expectedDuration: 1,
        },
      ]
      const { actions, cloudCost, cost } = of(target(), { actions: own })
      expect(actions).toEqual(own)
      expect(cost).toBeGreaterThanOrEqual(0)
      expect(cloudCost['t']!.idle).toBeGreaterThanOrEqual(0)
    }),
  )
})

test('the order in which the machines are read changes nothing of what they cost', () => {
  const price = fc.integer({ min: 1, max: 1_000 }).map((n) => n / 7_000)
  fc.assert(
    fc.property(fc.array(price, { minLength: 3, maxLength: 6 }), (prices) => {
      const resources = prices.map((pricePerSecond, k) => {
        const id = `t${k}`
        return { ...target({ capacityTargetId: id }), id, pricePerSecond }
      })
      const own = resources.map(({ id }, k) => ({ resourceId: id, startAt: 200, finishAt: 230 + k }))
      const [one, other] = [resources, resources.toReversed()].map((given) =>
        lifecycleOf('p', { resources: given, measured, tasks: own }),
      )
      expect(one!.cost).toBe(other!.cost)
    }),
    { seed: 20261128 },
  )
})
