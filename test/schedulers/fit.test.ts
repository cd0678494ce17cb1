import { describe, expect, test } from '@jest/globals'
import { lanesFor, laneName, misfit } from '../../src/schedulers/fit.ts'

const host = { lanes: 4, cpuCapacity: 4, memoryBytes: 1000, batch: false, opaque: false }

describe('lanes of a task', () => {
  test.each([
    ['half a core takes a lane', { cpu: 0.5, memoryBytes: 0 }, 1],
    ['no core takes a lane', { cpu: 0, memoryBytes: 0 }, 1],
    ['cores are rounded up', { cpu: 2.1, memoryBytes: 0 }, 3],
    ['a rounding error is no core', { cpu: 0.1 + 0.2 + 0.7 + 1, memoryBytes: 0 }, 2],
    ['a share of the memory takes as many lanes', { cpu: 1, memoryBytes: 501 }, 3],
    ['a fitting share does not', { cpu: 1, memoryBytes: 250 }, 1],
    ['too much cpu fits nowhere', { cpu: 5, memoryBytes: 0 }, undefined],
    ['too much memory fits nowhere', { cpu: 1, memoryBytes: 1001 }, undefined],
  ])('%s', (_, task, lanes) => {
    expect(lanesFor(task, host)).toBe(lanes)
  })

  test('fewer cpus than lanes: tasks take more lanes, so that they never exceed the capacity together', () => {
    expect(lanesFor({ cpu: 1, memoryBytes: 0 }, { ...host, cpuCapacity: 2 })).toBe(2)
  })

  test('a task that wants more cores than there are lanes takes all of them', () => {
    expect(lanesFor({ cpu: 6, memoryBytes: 0 }, { ...host, cpuCapacity: 8 })).toBe(4)
    expect(misfit({ cpu: 6, memoryBytes: 0 }, { ...host, cpuCapacity: 8 })).toBeUndefined()
  })

  test('a batch target takes every task, with all of its lanes at most', () => {
    const batch = { ...host, batch: true }
    expect([
      misfit({ cpu: 99, memoryBytes: 1e15 }, batch),
      lanesFor({ cpu: 99, memoryBytes: 0 }, batch),
    ]).toEqual([undefined, 4])
    expect([
      lanesFor({ cpu: 1, memoryBytes: 1e15 }, batch),
      lanesFor({ cpu: 1, memoryBytes: 501 }, batch),
    ]).toEqual([4, 3])
    expect(lanesFor({ cpu: 3, memoryBytes: 1e15 }, { ...batch, cpuCapacity: 0, memoryBytes: 0 })).toBe(3)
  })

  test('an opaque batch target takes everything in its one slot', () => {
    const queue = { id: 'q', lanes: 1, cpuCapacity: 0, memoryBytes: 0, batch: true, opaque: true }
    expect(lanesFor({ cpu: 99, memoryBytes: 1e15 }, queue)).toBe(1)
    expect(laneName(queue, 0)).toEqual({ coreId: '', slotId: 'q-slot' })
    expect(laneName({ id: 'r', opaque: false }, 3)).toEqual({ coreId: 'r-core-3', slotId: '' })
  })
})
