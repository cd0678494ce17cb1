import fc from '../support/fast-check.ts'

/** How an attempt ends when nothing disturbs it. */
export type Fate = 'done' | 'user' | 'lost' | 'refused'

export interface ScenarioTask {
  /** Number of its site; each has a resource of its own. */
  site: number
  /** Cores of the resource. */
  lanes: readonly number[]
  /** The site's own scheduler decides when it runs: it has no lane. */
  free: boolean
  cpu: number
  /** By attempt; later attempts are `done`. */
  fates: readonly Fate[]
}

/** A run, what its site can do, and what happens to it; by position. */
export interface Scenario {
  tasks: readonly ScenarioTask[]
  edges: readonly (readonly [from: number, to: number])[]
  /** Place in the lanes. */
  orders: readonly number[]
  hostCores: number | undefined
  aheadPerLane: number
  onFailure: 'stop' | 'finish-independent'
  maxAttempts: number
  /** Kinds and picks; see `kinds`. */
  moves: readonly number[]
}

/** Moves by weight: a move is a number, its kind the remainder, what it is about the quotient. */
export const kinds = [
  ...Array<'go'>(14).fill('go'),
  ...Array<'end'>(4).fill('end'),
  ...Array<'deliver'>(4).fill('deliver'),
  // The same at once.
  ...Array<'endHeard'>(6).fill('endHeard'),
  ...Array<'pass'>(3).fill('pass'),
  'kill',
  'freeze',
  'drain',
  'lose',
  'seen',
  'silence',
  'takeLane',
  'freeLane',
  'contend',
  'pause',
  'resume',
  'cancel',
] as const
export type Kind = (typeof kinds)[number]

export const moveOf = (move: number): { kind: Kind; pick: number } => ({
  kind: kinds[move % kinds.length] as Kind,
  pick: Math.floor(move / kinds.length),
})

/** The number of a move. */
export const move = (kind: Kind, pick: number): number => pick * kinds.length + kinds.indexOf(kind)

/**
 * The first moves of a row: its first task is started, ends, and those after it are intended ahead.
 */
const warmUp = ['go', 'go', 'go', 'go', 'go', 'endHeard', 'go', 'go', 'go'] as const
/** Moves after which a row is in the hands of another holder, or its flags are old. */
const trouble = [
  'go',
  'go',
  'go',
  'endHeard',
  'endHeard',
  'endHeard',
  'kill',
  'freeze',
  'pass',
  'pass',
  'end',
  'pause',
  'cancel',
] as const

const movesOf = (shape: Shape, longest: number): fc.Arbitrary<number[]> => {
  const any = fc.nat(kinds.length * 24 - 1)
  if (shape === 'any') return fc.array(any, { maxLength: longest, size: 'max' })
  const rough = fc.tuple(fc.constantFrom(...trouble), fc.nat(23)).map(([kind, pick]) => move(kind, pick))
  return fc
    .array(fc.oneof(rough, rough, any), { maxLength: longest - warmUp.length, size: 'max' })
    .map((moves) => [...warmUp.map((kind) => move(kind, 0)), ...moves])
}

/** `row`: short tasks that follow each other in one lane, which are intended ahead. */
type Shape = 'any' | 'row'

const task = (sites: number, shape: Shape): fc.Arbitrary<ScenarioTask> =>
  fc.record({
    site: sites === 1 ? fc.constant(0) : fc.nat(sites - 1),
    lanes:
      shape === 'row'
        ? fc.constantFrom([0], [0], [0], [0], [0], [1])
        : fc.constantFrom([0], [0], [0], [1], [0, 1]),
    free: shape === 'row' ? fc.constant(false) : fc.integer({ min: 0, max: 15 }).map((n) => n === 0),
    cpu: shape === 'row' ? fc.constant(1) : fc.constantFrom(1, 1, 1, 2),
    fates:
      shape === 'row'
        ? fc.array(fc.constantFrom<Fate>('done', 'done', 'done', 'done', 'done', 'done', 'user', 'lost'), {
            maxLength: 2,
          })
        : fc.array(fc.constantFrom<Fate>('done', 'done', 'done', 'user', 'lost', 'refused'), {
            maxLength: 3,
          }),
  })

/**
 * Random runs; positions are shuffled, lanes follow a topological order, as every valid plan has
 * it.
 */
export const scenarios = (options: { moves: number; tasks?: number }): fc.Arbitrary<Scenario> =>
  fc
    .tuple(
      fc.integer({ min: 1, max: options.tasks ?? 8 }),
      fc.constantFrom(1, 1, 1, 2),
      fc.constantFrom<Shape>('any', 'row'),
    )
    .chain(([n, sites, shape]) =>
      fc
        .record({
          tasks: fc.array(task(sites, shape), { minLength: n, maxLength: n }),
          pairs: fc.uniqueArray(fc.tuple(fc.nat(n - 1), fc.nat(n - 1)), {
            maxLength: shape === 'row' ? 2 : n,
            selector: ([a, b]) => Math.min(a, b) * n + Math.max(a, b),
          }),
          place: fc.shuffledSubarray([...Array(n).keys()], { minLength: n, maxLength: n }),
          hostCores: fc.constantFrom(undefined, 1, 2, 3),
          aheadPerLane: shape === 'row' ? fc.constantFrom(2, 8) : fc.constantFrom(0, 1, 3, 8),
          onFailure: fc.constantFrom(
            'stop' as const,
            'finish-independent' as const,
            'finish-independent' as const,
          ),
          maxAttempts: fc.integer({ min: 1, max: 3 }),
          moves: movesOf(shape, options.moves),
        })
        .map(({ pairs, place, ...scenario }) => ({
          ...scenario,
          edges: pairs.flatMap(([a, b]) =>
            a === b ? [] : [[place[Math.min(a, b)] as number, place[Math.max(a, b)] as number] as const],
          ),
          orders: [...place.keys()].map((position) => place.indexOf(position)),
        })),
    )
