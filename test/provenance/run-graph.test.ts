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

test('the work for a step along the uses grows with the ends and the given, not with their pairs', () => {
  /** A step that leaves files for as many tasks. @returns how often their facts are read */
  const fan = (wide: number) => {
    let reads = 0
    const counted = <T extends object>(row: T): T =>
      new Proxy(row, { get: (of, key) => (reads++, of[key as keyof T]) })
    const tasks = Array.from({ length: wide }, (_, i) => i + 1)
    const [from, to] = [Int32Array.from(tasks.map(() => 0)), Int32Array.from(tasks)]
    const graph = new RunGraph({
      positions: wide + 1,
      before: neighboursOf(wide + 1, to, from),
      after: neighboursOf(wide + 1, from, to),
      declaredOnly: new Map(),
    })
    const name = (n: number): string => String(n).padStart(5, '0')
    graph.putTasks(
      [0, ...tasks].map((position) =>
        counted({
          ...{ id: `t${name(position)}`, activityId: `a${String(position)}`, position },
          ...{ attempt: 1, completed: true, given: true },
        }),
      ),
    )
    const files = tasks.map((n) => `f${name(n)}`)
    graph.putFiles(files.map((id) => counted({ id, path: id, activityId: 'a0', attempt: 1 })))
    reads = 0
    const known = `t${name(wide)}`
    const step = graph.usesOf('data_instances', files, (end) => end === known, 3)
    expect(step).toEqual([1, 2, 3, wide].map((n) => ({ end: `t${name(n)}`, from: files })))
    return reads
  }
  expect(fan(400)).toBeLessThanOrEqual(2 * fan(200))
})
