import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { choicesOf } from '../../src/schedulers/fit.ts'
import { algorithms } from '../../src/schedulers/registry.ts'
import { assignedCores, validatePlan } from '../../src/schedulers/validate.ts'
import type { ResolvedPlan, PlannedAssignment } from '../../src/schedulers/validate.ts'
import { instance } from './instances.ts'

const paths = { assignments: 'plan.assignments', dependencies: 'workflow.dependencies' }
const resource = { inScope: true, schedulable: true, batch: false, cpuCapacity: 2, memoryBytes: 1000 }

function plan(change: Partial<ResolvedPlan> = {}): ResolvedPlan {
  return {
    activities: ['a', 'b', 'c'].map((id) => ({ id, cpu: 1, memoryBytes: 100 })),
    edges: [{ from: 'a', to: 'b' }, { from: 'b', to: 'c' }],
    resources: new Map([['r', resource], ['s', resource]]),
    assignments: [assign('a', 1), assign('b', 2), assign('c', 3)],
    ...change,
  } // oxfmt-ignore
}

const assign = (
  activityId: string,
  orderOnResource: number,
  change: Partial<PlannedAssignment> = {},
): PlannedAssignment => ({
  activityId,
  resourceId: 'r',
  coreId: 'core-0',
  slotId: '',
  orderOnResource,
  predictedStartAt: 0,
  predictedFinishAt: 0,
  ...change,
})

const messages = (change: Partial<ResolvedPlan>): [string, string][] =>
  validatePlan(plan(change), paths).map(({ path, message }) => [path, message])

describe('plans', () => {
  test('a good plan has no violations, whatever its orders are called and however bare it is', () => {
    expect(messages({})).toEqual([])
    expect(messages({ assignments: [assign('a', -7), assign('b', 0), assign('c', 900)] })).toEqual([])
    expect(
      messages({
        assignments: ['a', 'b', 'c'].map((activityId, orderOnResource) => ({
          activityId,
          resourceId: 's',
          orderOnResource,
        })),
      }),
    ).toEqual([])
  })

  test('every plan of a planner is valid', () => {
    fc.assert(
      fc.property(instance(), (given) => {
        fc.pre(choicesOf(given).every(({ resources }) => resources.length > 0))
        const { assignments } = [...algorithms.heft.plan(given, {})].at(-1)!.best!
        const id = (activity: number): string => given.activities[activity]!.id
        const document: ResolvedPlan = {
          activities: given.activities.map(({ selector, ...activity }) => ({
            ...activity,
            resourceSelector: selector === undefined ? undefined : given.resources[selector]!.id,
          })),
          edges: given.edges.map(({ from, to }) => ({ from: id(from), to: id(to) })),
          resources: new Map(
            given.resources.map((each) => [each.id, { ...each, inScope: true, schedulable: true }]),
          ),
          assignments: assignments.map((each) => ({
            activityId: id(each.activity),
            resourceId: given.resources[each.resource]!.id,
            coreId: each.coreIds[0],
            slotId: each.slotId,
            orderOnResource: each.orderOnResource,
            predictedStartAt: each.startAt,
            predictedFinishAt: each.finishAt,
            metadata: { coreIds: each.coreIds },
          })),
        }
        expect(validatePlan(document, paths)).toEqual([])
      }),
      { numRuns: 150, seed: 20261121 },
    )
  })

  test('one violation of each kind gives all of them at once, each where it stands', () => {
    expect(
      messages({
        activities: [
          ...['a', 'b', 'c'].map((id) => ({ id, cpu: 1, memoryBytes: 100 })),
          { id: 'wide', cpu: 3, memoryBytes: 0 },
          { id: 'big', cpu: 1, memoryBytes: 5000 },
          { id: 'picky', cpu: 1, memoryBytes: 0, resourceSelector: 's' },
          { id: 'forgotten', cpu: 1, memoryBytes: 0 },
          { id: 'lost', cpu: 1, memoryBytes: 0 },
        ],
        resources: new Map([
          ['r', resource],
          ['s', resource],
          ['out', { ...resource, inScope: false }],
          ['idle', { ...resource, schedulable: false }],
        ]),
        assignments: [
          assign('a', 1, { predictedStartAt: 5, predictedFinishAt: 4 }),
          assign('b', 2, { resourceId: 'out' }),
          assign('c', 3, { resourceId: 'idle' }),
          assign('wide', 4),
          assign('big', 5),
          assign('picky', 6),
          assign('lost', 7, { resourceId: 'nowhere' }),
          assign('stranger', 8),
          assign('a', 9),
          assign('c', 4, { coreId: 'core-1', metadata: { coreIds: ['core-2'] } }),
        ],
      }),
    ).toEqual([
      ['plan.assignments.0.predictedFinishAt', 'finish 4 is before start 5'],
      ['plan.assignments.1.resourceId', 'resource "out" is outside the execution scope'],
      ['plan.assignments.2.resourceId', 'resource "idle" is not schedulable'],
      ['plan.assignments.3.resourceId', 'activity "wide" needs 3 cpu, resource "r" has cpuCapacity 2'],
      ['plan.assignments.4.resourceId', 'activity "big" needs 5000 bytes of memory, resource "r" has 1000'],
      [
        'plan.assignments.5.resourceId',
        'activity "picky" selects resource "s", not "r"; set metadata.resourceSelectorOverride to true to override',
      ],
      ['plan.assignments.6.resourceId', 'resource "nowhere" does not exist'],
      ['plan.assignments.7.activityId', 'activity "stranger" is not part of the workflow'],
      [
        'plan.assignments.8.activityId',
        'activity "a" is already assigned at plan.assignments.0; assign it once',
      ],
      [
        'plan.assignments.9.activityId',
        'activity "c" is already assigned at plan.assignments.2; assign it once',
      ],
      ['plan.assignments.9.metadata.coreIds', 'must contain coreId "core-1", the first core of the task'],
      ['plan.assignments', 'activity "forgotten" is not assigned; every activity needs one assignment'],
    ])
  })

  test('a selector is overridden by the metadata of its assignment', () => {
    const activities = [{ id: 'a', cpu: 1, memoryBytes: 0, resourceSelector: 's' }]
    expect(
      messages({
        activities,
        edges: [],
        assignments: [assign('a', 1, { metadata: { resourceSelectorOverride: true } })],
      }),
    ).toEqual([])
  })

  test('several tasks may overcommit a resource together; a batch target takes any task', () => {
    const many = ['a', 'b', 'c'].map((activityId, k) => assign(activityId, 1, { slotId: `slot-${k}` }))
    expect(messages({ edges: [], assignments: many })).toEqual([])
    const batch = new Map([['r', { ...resource, batch: true, cpuCapacity: 0, memoryBytes: 0 }]])
    expect(
      messages({
        resources: batch,
        activities: [{ id: 'a', cpu: 64, memoryBytes: 1e12 }],
        edges: [],
        assignments: [assign('a', 1)],
      }),
    ).toEqual([])
  })

  test('orders are unique on a lane, not across lanes', () => {
    expect(
      messages({ assignments: [assign('a', 1), assign('b', 1), assign('c', 1, { coreId: 'core-1' })] }),
    ).toEqual([
      [
        'plan.assignments.1.orderOnResource',
        'order 1 on lane (resource "r", core "core-0", slot "") is already taken by plan.assignments.0',
      ],
    ])
    const both = { metadata: { coreIds: ['core-0', 'core-1'] } }
    expect(
      messages({
        edges: [],
        assignments: [assign('a', 1, both), assign('b', 2), assign('c', 1, { coreId: 'core-1' })],
      }),
    ).toEqual([
      [
        'plan.assignments.2.orderOnResource',
        'order 1 on lane (resource "r", core "core-1", slot "") is already taken by plan.assignments.0',
      ],
    ])
  })

  test('orders against the dependencies are named, directly and across lanes', () => {
    expect(messages({ assignments: [assign('a', 2), assign('b', 1), assign('c', 3)] })).toEqual([
      [
        'plan.assignments.0.orderOnResource',
        'on lane (resource "r", core "core-0", slot "") "a" comes after "b", against the dependencies: "a" → "b" → "a"',
      ],
    ])
    // Each order alone is possible; together a waits for d, d for c, c for b and b for a.
    const crossed = messages({
      activities: ['a', 'b', 'c', 'd'].map((id) => ({ id, cpu: 1, memoryBytes: 0 })),
      edges: [
        { from: 'a', to: 'b' },
        { from: 'c', to: 'd' },
      ],
      assignments: [
        assign('a', 2),
        assign('b', 1, { resourceId: 's' }),
        assign('c', 2, { resourceId: 's' }),
        assign('d', 1),
      ],
    })
    expect(crossed).toHaveLength(1)
    expect(crossed[0]![1]).toContain('"a" → "b" → "c" → "d" → "a"')
  })

  test('of the orders on the way of a contradiction, those that follow the dependencies are not named', () => {
    const chain = Array.from({ length: 30 }, (_, k) => `t${k}`)
    const crossed = messages({
      activities: [...chain, 'first'].map((id) => ({ id, cpu: 1, memoryBytes: 0 })),
      edges: chain.map((to, k) => ({ from: k === 0 ? 'first' : chain[k - 1]!, to })),
      assignments: [
        ...chain.map((id, k) => (k < 29 ? assign(id, k) : assign(id, 1, { coreId: 'core-1' }))),
        assign('first', 2, { coreId: 'core-1' }),
      ],
    })
    expect(crossed).toEqual([
      [
        'plan.assignments.30.orderOnResource',
        expect.stringMatching(/^on lane .*"core-1".* "first" comes after "t29", against the dependencies: /),
      ],
    ])
  })

  test('a cycle of the dependencies is named at the workflow', () => {
    expect(
      messages({
        edges: [
          { from: 'a', to: 'b' },
          { from: 'b', to: 'a' },
        ],
      }),
    ).toEqual([['workflow.dependencies', 'the dependencies have a cycle: "a" → "b" → "a"']])
  })

  test('ids with any characters do not run into each other', () => {
    const odd = ['x', 'x\u0000', 'x","y', 'ü/%2F'].map((id) => ({ id, cpu: 1, memoryBytes: 0 }))
    expect(
      messages({
        activities: odd,
        edges: [],
        assignments: odd.map(({ id }) => assign(id, 1, { coreId: id })),
      }),
    ).toEqual([])
  })

  test('the cores of an assignment', () => {
    expect(assignedCores({ coreId: 'x' })).toEqual(['x'])
    expect(assignedCores({ metadata: null })).toEqual([''])
    expect(assignedCores({ coreId: 'x', metadata: { coreIds: ['x', 'y', 'x'] } })).toEqual(['x', 'y'])
    expect(
      messages({
        activities: [{ id: 'a', cpu: 1, memoryBytes: 0 }],
        edges: [],
        assignments: [assign('a', 1, { metadata: { coreIds: 'x' } })],
      }),
    ).toEqual([['plan.assignments.0.metadata.coreIds', 'must be a list of core ids']])
  })
})
