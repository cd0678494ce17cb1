import { expect, test } from '@jest/globals'
import { neighboursOf, RunGraph } from '../../src/domains/provenance/run-graph.ts'

/** `wide` producers of a file each, one step without files, `wide` consumers. */
const barrier = (wide: number): RunGraph => {
  const positions = 2 * wide + 1
  const all = Array.from({ length: wide }, (_, i) => i)
  const from = Int32Array.from([...all, ...all.map(() => wide)])
  const to = Int32Array.from([...all.map(() => wide), ...all.map((i) => wide + 1 + i)])
  const graph = new RunGraph({
    positions,
    before: neighboursOf(positions, to, from),
    after: neighboursOf(positions, from, to),
    declaredOnly: new Map(),
  })
  const tasks = Array.from({ length: positions }, (_, position) => ({
    ...{ id: `t${String(position)}`, activityId: `a${String(position)}`, position },
    ...{ attempt: 1, completed: true, given: true },
  }))
  graph.putTasks(tasks)
  graph.putFiles(
    all.map((i) => ({ id: `f${String(i)}`, path: 'out', activityId: `a${String(i)}`, attempt: 1 })),
  )
  return graph
}

test('a step without files hands on what it was given, and the pairs of a wide run are bounded', () => {
  expect(barrier(3).uses()).toHaveLength(3 + 9)
  expect(barrier(3).uses(12)).toHaveLength(12)
  // The step itself has 5,000, and each of the first consumers as many: 25 million are never made.
  expect(barrier(5_000).uses(12_000)).toHaveLength(15_000)
})
