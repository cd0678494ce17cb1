import fc from '../support/fast-check.ts'
import type { PlanningProblem, ProblemLink, ProblemResource } from '../../src/schedulers/problem.ts'

/**
 * Numbers with few digits, so that shrunk counterexamples can be read; 0 is frequent because traces
 * have it.
 */
const seconds = fc.oneof(
  { weight: 1, arbitrary: fc.constant(0) },
  { weight: 5, arbitrary: fc.integer({ min: 1, max: 400 }).map((n) => n / 8) },
)
const bytes = fc.oneof(
  { weight: 1, arbitrary: fc.constant(0) },
  { weight: 4, arbitrary: fc.integer({ min: 1, max: 5000 }).map((n) => n * 1000) },
)

const resourceShape = fc.record({
  lanes: fc.integer({ min: 1, max: 4 }),
  target: fc.integer({ min: 0, max: 9 }).map((n) => ({ batch: n < 3, opaque: n === 0 })),
  memoryBytes: fc.integer({ min: 1, max: 8 }).map((n) => n * 1000),
  pricePerSecond: fc.integer({ min: 0, max: 3 }).map((n) => n / 1000),
  bootOverheadSeconds: fc.oneof(
    fc.constant(0),
    fc.integer({ min: 1, max: 20 }).map((n) => n / 4),
  ),
  containerOverheadSeconds: fc.oneof(
    fc.constant(0),
    fc.integer({ min: 1, max: 8 }).map((n) => n / 8),
  ),
  activeWindow: fc.integer({ min: 0, max: 5 }).map((n) => n === 0),
})

const linkShape = fc.record({
  bandwidthBitsPerSecond: fc.constantFrom(8e5, 1e6, 4e6, 1e7),
  latencySeconds: fc.oneof(
    fc.constant(0),
    fc.integer({ min: 1, max: 16 }).map((n) => n / 16),
  ),
  pricePerByte: fc.integer({ min: 0, max: 2 }).map((n) => n * 1e-9),
  maxConcurrentTransfers: fc.constantFrom(0, 0, 0, 1, 2),
  shared: fc.boolean(),
  duplexSplit: fc.boolean(),
})

export interface InstanceOptions {
  maxActivities?: number
  /**
   * A spanning tree of bidirectional links joins all resources (default); otherwise links are where
   * chance puts them.
   */
  connected?: boolean
  limits?: boolean
}

/**
 * Problems of every shape: several roots, zero runtimes and sizes, wide tasks, tight memory,
 * selectors, multi-hop topologies, none at all.
 */
export function instance({
  maxActivities = 12,
  connected = true,
  limits = true,
}: InstanceOptions = {}): fc.Arbitrary<PlanningProblem> {
  return fc
    .record({
      resources: fc.array(resourceShape, { minLength: 1, maxLength: 5 }),
      n: fc.integer({ min: 1, max: maxActivities }),
    })
    .chain(({ resources, n }) => {
      const width = resources.length
      const pairs = Array.from(
        { length: width * width },
        (_, k) => [Math.floor(k / width), k % width] as const,
      ).filter(([a, b]) => a !== b)
      return fc.record({
        resources: fc.constant(resources),
        activities: fc.array(
          fc.record({
            cpu: fc.constantFrom(0.5, 1, 1, 1, 2, 3),
            memoryBytes: fc.constantFrom(0, 0, 500, 1000, 3000),
            selector: fc.option(fc.integer({ min: 0, max: width - 1 }), { nil: undefined, freq: 6 }),
          }),
          { minLength: n, maxLength: n },
        ),
        edges: fc.uniqueArray(
          fc
            .record({
              from: fc.integer({ min: 0, max: n - 1 }),
              to: fc.integer({ min: 0, max: n - 1 }),
              bytes,
            })
            .filter(({ from, to }) => from < to),
          { maxLength: n === 1 ? 0 : 2 * n, selector: ({ from, to }) => `${from}-${to}` },
        ),
        durations: fc.array(seconds, { minLength: n * width, maxLength: n * width }),
        tree: fc.array(linkShape, { minLength: width - 1, maxLength: width - 1 }),
        extra:
          width === 1
            ? fc.constant([])
            : fc.uniqueArray(fc.tuple(fc.constantFrom(...pairs), linkShape, fc.boolean()), {
                maxLength: 4,
                selector: ([pair]) => pair.join(),
              }),
        network: fc.integer({ min: 0, max: 9 }).map((k) => k > 0),
      })
    })
    .map(({ resources, activities, edges, durations, tree, extra, network }): PlanningProblem => {
      const links: ProblemLink[] = connected
        ? tree.map((shape, k) => ({
            ...shape,
            id: `tree-${k}`,
            source: Math.floor(k / 2),
            target: k + 1,
            bidirectional: true,
          }))
        : []
      for (const [[source, target], shape, bidirectional] of extra) {
        if (!links.some((link) => link.source === source && link.target === target))
          links.push({ ...shape, id: `link-${source}-${target}`, source, target, bidirectional })
      }
      return {
        activities: activities.map(({ selector, ...activity }, k) => ({
          ...activity,
          id: `t${String(k).padStart(3, '0')}`,
          priority: 0,
          ...(selector === undefined ? {} : { selector }),
        })),
        edges,
        resources: resources.map(({ target, ...shape }, k): ProblemResource => ({
          ...shape,
          ...target,
          id: `r${k}`,
          cpuCapacity: shape.lanes,
        })),
        links: network
          ? links.map((link) => (limits ? link : { ...link, maxConcurrentTransfers: 0 }))
          : undefined,
        durations: Float64Array.from(durations),
        durationSource: new Uint8Array(durations.length),
      }
    })
}

/**
 * A small problem by hand: `durations[activity][resource]`; one lane per resource, a direct link
 * between each two unless given.
 */
export function problem(options: {
  durations: readonly (readonly number[])[]
  edges: readonly (readonly [number, number, number])[]
  links?: readonly (Partial<ProblemLink> & { source: number; target: number })[] | undefined
  resources?: readonly Partial<ProblemResource>[]
  activities?: readonly { cpu?: number; memoryBytes?: number; selector?: number }[]
}): PlanningProblem {
  const width = options.durations[0]!.length
  const full = Array.from({ length: width * width }, (_, k) => ({
    source: Math.floor(k / width),
    target: k % width,
  })).filter(({ source, target }) => source < target)
  const links = 'links' in options ? options.links : full
  return {
    activities: options.durations.map((_, k) => ({
      id: `a${k + 1}`,
      cpu: 1,
      memoryBytes: 0,
      priority: 0,
      ...options.activities?.[k],
    })),
    edges: options.edges.map(([from, to, bytes]) => ({ from, to, bytes })),
    resources: Array.from({ length: width }, (_, k) => ({
      id: `r${k + 1}`,
      lanes: 1,
      cpuCapacity: options.resources?.[k]?.lanes ?? 1,
      memoryBytes: 1e9,
      batch: false,
      opaque: false,
      pricePerSecond: 0,
      bootOverheadSeconds: 0,
      containerOverheadSeconds: 0,
      activeWindow: false,
      ...options.resources?.[k],
    })),
    links: links?.map((link) => ({
      id: `l${link.source}-${link.target}`,
      bandwidthBitsPerSecond: 8,
      latencySeconds: 0,
      pricePerByte: 0,
      maxConcurrentTransfers: 0,
      bidirectional: true,
      shared: true,
      duplexSplit: false,
      ...link,
    })),
    durations: Float64Array.from(options.durations.flat()),
    durationSource: new Uint8Array(width * options.durations.length),
  }
}
