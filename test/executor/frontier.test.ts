import { expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import { completed, createFrontier, dead, inFlight, waiting } from '../../src/executor/frontier.ts'

interface Instance {
  n: number
  edges: [number, number][]
  lanes: string[][]
  orders: number[]
  mine: boolean[]
}

/**
 * Random DAGs whose positions are shuffled, with lanes that follow a topological order, as every
 * valid plan has it.
 */
const instance: fc.Arbitrary<Instance> = fc.integer({ min: 1, max: 14 }).chain((n) =>
  fc
    .record({
      pairs: fc.uniqueArray(fc.tuple(fc.nat(n - 1), fc.nat(n - 1)), {
        maxLength: 3 * n,
        selector: ([a, b]) => a * n + b,
      }),
      place: fc.shuffledSubarray([...Array(n).keys()], { minLength: n, maxLength: n }),
      lanes: fc.array(fc.uniqueArray(fc.constantFrom('x', 'y', 'z'), { minLength: 1, maxLength: 2 }), {
        minLength: n,
        maxLength: n,
      }),
      mine: fc.array(fc.boolean(), { minLength: n, maxLength: n }),
    })
    .map(({ pairs, place, lanes, mine }) => ({
      n,
      // place[k] is the position of the k-th task in topological order.
      edges: [
        ...new Map(
          pairs
            .filter(([a, b]) => a !== b)
            .map(([a, b]): [string, [number, number]] => [
              `${String(Math.min(a, b))} ${String(Math.max(a, b))}`,
              [place[Math.min(a, b)] as number, place[Math.max(a, b)] as number],
            ]),
        ).values(),
      ],
      lanes,
      orders: [...Array(n).keys()].map((position) => place.indexOf(position)),
      mine,
    })),
)

/** The definition, computed anew from all states each time. */
const naive = ({ n, edges, lanes, orders, mine }: Instance, states: readonly number[]) => {
  const doomed = [...states]
  for (let again = true; again;) {
    again = false
    for (const [from, to] of edges) {
      if (doomed[from] === dead && doomed[to] === waiting) {
        doomed[to] = dead
        again = true
      }
    }
  }
  const over = (i: number): boolean => (doomed[i] as number) >= completed
  const shares = (a: number, b: number): boolean =>
    (lanes[a] as string[]).some((lane) => (lanes[b] as string[]).includes(lane))
  const ready = [...Array(n).keys()].filter(
    (i) =>
      mine[i] === true &&
      doomed[i] === waiting &&
      edges.every(([from, to]) => to !== i || doomed[from] === completed) &&
      [...Array(n).keys()].every(
        (other) => !shares(i, other) || (orders[other] as number) >= (orders[i] as number) || over(other),
      ),
  )
  return {
    states: doomed,
    ready,
    open: [...Array(n).keys()].filter((i) => mine[i] === true && !over(i)).length,
  }
}

const build = (given: Instance, states: readonly number[]) =>
  createFrontier({
    states: Uint8Array.from(states),
    from: given.edges.map(([from]) => from),
    to: given.edges.map(([, to]) => to),
    lanes: given.lanes,
    orders: given.orders,
    mine: given.mine,
  })

test('a frontier that is told of each step says what the definition says', () => {
  fc.assert(
    fc.property(
      instance,
      fc.array(fc.tuple(fc.nat(), fc.constantFrom('take', 'complete', 'kill', 'putBack')), { maxLength: 60 }),
      (given, steps) => {
        let model: number[] = new Array<number>(given.n).fill(waiting)
        const frontier = build(given, model)
        const offered = new Set(frontier.ready())
        expect([...offered].sort((a, b) => a - b)).toEqual(naive(given, model).ready)
        for (const [pick, kind] of steps) {
          // Own tasks are taken when they are ready; what other sites do arrives as an end.
          const { ready } = naive(given, model)
          const flying = model.flatMap((state, i) => (state === inFlight ? [i] : []))
          const elsewhere = model.flatMap((state, i) =>
            given.mine[i] === false &&
            state === waiting &&
            given.edges.every(([from, to]) => to !== i || model[from] === completed)
              ? [i]
              : [],
          )
          const among = kind === 'take' ? ready : kind === 'putBack' ? flying : [...flying, ...elsewhere]
          if (among.length === 0) continue
          const i = among[pick % among.length] as number
          if (kind === 'take') {
            frontier.take(i)
            offered.delete(i)
            model[i] = inFlight
          } else if (kind === 'putBack') {
            frontier.putBack(i)
            offered.add(i)
            model[i] = waiting
          } else {
            const freed = kind === 'complete' ? frontier.complete(i) : frontier.kill(i)
            for (const task of freed) {
              expect(offered.has(task)).toBe(false)
              offered.add(task)
            }
            model[i] = kind === 'complete' ? completed : dead
          }
          const expected = naive(given, model)
          model = expected.states
          for (const task of [...offered]) if (model[task] !== waiting) offered.delete(task)
          expect([...frontier.states]).toEqual(model)
          expect([...offered].sort((a, b) => a - b)).toEqual(expected.ready)
          expect(frontier.open).toBe(expected.open)
        }
      },
    ),
    { seed: 20_260, numRuns: 3_000 },
  )
})

test('a frontier loaded in the middle of a run is the one that was told of each step', () => {
  fc.assert(
    fc.property(
      instance,
      fc.array(fc.tuple(fc.nat(), fc.constantFrom('take', 'complete', 'kill')), { maxLength: 40 }),
      (given, steps) => {
        const everything = { ...given, mine: given.mine.map(() => true) }
        const frontier = build(everything, new Array<number>(given.n).fill(waiting))
        for (const [pick, kind] of steps) {
          const among =
            kind === 'take'
              ? naive(everything, [...frontier.states]).ready
              : [...frontier.states.keys()].filter((i) => frontier.states[i] === inFlight)
          if (among.length === 0) continue
          const i = among[pick % among.length] as number
          if (kind === 'take') frontier.take(i)
          else if (kind === 'complete') frontier.complete(i)
          else frontier.kill(i)
        }
        const loaded = build(given, [...frontier.states])
        expect(loaded.ready()).toEqual(naive(given, [...frontier.states]).ready)
        expect([...loaded.states]).toEqual([...frontier.states])
        expect(loaded.open).toBe(naive(given, [...frontier.states]).open)
      },
    ),
    { seed: 20_261, numRuns: 2_000 },
  )
})

test('predecessors are the sources of a task’s edges', () => {
  fc.assert(
    fc.property(instance, (given) => {
      const frontier = build(given, new Array<number>(given.n).fill(waiting))
      for (let i = 0; i < given.n; i++) {
        expect([...frontier.predecessorsOf(i)].sort((a, b) => a - b)).toEqual(
          given.edges.flatMap(([from, to]) => (to === i ? [from] : [])).sort((a, b) => a - b),
        )
      }
    }),
    { seed: 20_262, numRuns: 500 },
  )
})

test('the tasks of other sites that an end opens, or that die by it, are told once', () => {
  // 0 and 5 are here: 1 needs 0, 2 needs 1, 3 needs 0 and 4; 6 follows 5 in its lane.
  const given = {
    ...{ n: 7, lanes: [['a'], ['b'], ['b'], ['c'], ['d'], ['e'], ['e']], orders: [0, 0, 1, 0, 0, 0, 1] },
    edges: [
      [0, 1],
      [1, 2],
      [0, 3],
      [4, 3],
    ] as [number, number][],
    mine: [true, false, false, false, false, true, false],
  }
  const states = Array.from({ length: 7 }, () => waiting)
  const frontier = build(given, states)
  expect(frontier.complete(0)).toEqual([])
  expect(frontier.takeElsewhere()).toEqual([1])
  expect(frontier.takeElsewhere()).toEqual([])
  frontier.complete(4)
  expect(frontier.takeElsewhere()).toEqual([3])
  frontier.complete(5)
  expect(frontier.takeElsewhere()).toEqual([6])
  const failed = build(given, states)
  failed.kill(0)
  expect(failed.takeElsewhere().sort()).toEqual([1, 2, 3])
})
