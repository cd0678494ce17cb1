import { describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { describeCycle, findCycle, topologicalOrder } from '../../src/schedulers/graph.ts'
import type { IndexEdge } from '../../src/schedulers/graph.ts'

const anyGraph = fc.integer({ min: 1, max: 12 }).chain((n) =>
  fc.record({
    n: fc.constant(n),
    edges: fc.array(fc.record({ from: fc.nat(n - 1), to: fc.nat(n - 1) }), { maxLength: 20 }),
  }),
)

/** Whether some node reaches itself, by closing the relation. */
function hasCycle(n: number, edges: readonly IndexEdge[]): boolean {
  const reaches = Array.from({ length: n }, () => new Array<boolean>(n).fill(false))
  for (const { from, to } of edges) reaches[from]![to] = true
  for (let k = 0; k < n; k++)
    for (let a = 0; a < n; a++)
      for (let b = 0; b < n; b++) if (reaches[a]![k]! && reaches[k]![b]!) reaches[a]![b] = true
  return reaches.some((row, node) => row[node])
}

describe('order and cycles', () => {
  test('there is an order exactly when there is no cycle, and both are what they claim', () => {
    fc.assert(
      fc.property(anyGraph, ({ n, edges }) => {
        const order = topologicalOrder(n, edges)
        const cycle = findCycle(n, edges)
        expect(order === undefined).toBe(hasCycle(n, edges))
        expect(cycle === undefined).toBe(order !== undefined)
        if (order !== undefined) {
          const position = new Map([...order].map((node, index) => [node, index]))
          expect(position.size).toBe(n)
          for (const { from, to } of edges) expect(position.get(from)!).toBeLessThan(position.get(to)!)
        }
        if (cycle !== undefined) {
          expect(new Set(cycle).size).toBe(cycle.length)
          expect(cycle[0]).toBe(Math.min(...cycle))
          cycle.forEach((from, k) =>
            expect(edges).toContainEqual({ from, to: cycle[(k + 1) % cycle.length]! }),
          )
        }
      }),
      { numRuns: 500, seed: 20261121 },
    )
  })

  test('a cycle at the end of a chain of 200,000 is found without a stack', () => {
    const n = 200_000
    const edges = Array.from({ length: n - 1 }, (_, k) => ({ from: k, to: k + 1 }))
    expect(findCycle(n, edges)).toBeUndefined()
    expect(findCycle(n, [...edges, { from: n - 1, to: n - 2 }])).toEqual([n - 2, n - 1])
  })

  test('a cycle in words repeats its first name and leaves out the middle of a long one', () => {
    expect(describeCycle(['a', 'b'])).toBe('"a" → "b" → "a"')
    const long = describeCycle(Array.from({ length: 100 }, (_, k) => `n${k}`))
    expect(long).toMatch(/^"n0" → .*"n5" → … 89 more … → "n95" → .*"n99" → "n0"$/)
  })
})
