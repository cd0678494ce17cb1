import { z } from 'zod'
import { TransferTime } from './schemas.ts'

/**
 * The timeline of a run: the phases of its time on one clock. Pure; `timeline-page.ts` draws the
 * same input as a page.
 */

export interface TimelineInput {
  title: string
  run: {
    id: string
    status: string
    mode: string
    /**
     * The zero of the bars, in seconds since epoch; absent where the clock is simulated and starts
     * at 0.
     */
    startedAt?: number
    /** Stands for the start of a run that has not started, in seconds since epoch. */
    acceptedAt?: number
    /**
     * Seconds from the run's start to its recorded end, where the closing of the run makes that
     * later than its last task.
     */
    wallSeconds?: number
    makespanSeconds: number | null
    cost: number | null
  }
  /** Work on machines that were made for the run, in seconds from its start. */
  infrastructure?: InfrastructurePhase[]
  /** At most one of each label. A band without bars equals an absent one. */
  bands: TimelineBand[]
}

export const infrastructureCategories = [
  ...(['infrastructure-provision', 'infrastructure-start', 'connection-validation'] as const),
  ...(['infrastructure-stop', 'infrastructure-destroy'] as const),
] as const

/** One step of an operation at a cloud provider. */
export interface InfrastructurePhase {
  operationId: string
  category: (typeof infrastructureCategories)[number]
  status: string
  from: number
  /** Of one that goes on: now. */
  to: number
}

export type BandLabel = 'planned' | 'simulated' | 'measured'

export interface TimelineBand {
  label: BandLabel
  bars: TimelineBar[]
}

/**
 * One attempt of one task. Times in seconds from the run's start, finite, `startAt` ≤ `finishAt`.
 */
export interface TimelineBar {
  activityId: string
  name: string
  type: string
  /** Core or slot within the resource; may be empty. */
  lane: string
  resource: string
  /**
   * The predecessors are done. From here to `startAt` the task waits: for its data, then for its
   * lane.
   */
  readyAt?: number | undefined
  queuedAt?: number | undefined
  /** Before the overheads (boot, container, launch). */
  startAt: number
  /** For a running task: now. */
  finishAt: number
  status?: string | undefined
  attempt?: number | undefined
  cost?: number | undefined
  transferSeconds?: number | undefined
  /** The part of `startAt` … `finishAt` before the program ran. */
  overheadSeconds?: number | undefined
  /** When its executable was there, and how long that took: within its overhead. */
  preparedAt?: number | undefined
  preparationSeconds?: number | undefined
}

const phaseCategories = [
  ...(['workspace-transfer', 'resource-queue', 'executable-preparation'] as const),
  ...(['launch', 'runtime'] as const),
] as const
type PhaseCategory = (typeof phaseCategories)[number]

/**
 * The phases of a run's time, on the clock of its activities. `totals` are sums over phases and can
 * exceed the wall time.
 */
export const Timeline = z
  .strictObject({
    startedAt: TransferTime,
    finishedAt: TransferTime,
    wallSeconds: z.number(),
    computeMakespanSeconds: z.number().describe('last end minus first start of a program'),
    coveredWallSeconds: z.number().describe('time in which at least one phase was going on'),
    unclassifiedWallSeconds: z.number(),
    totals: z.strictObject({
      workspaceTransferSeconds: z.number(),
      resourceQueueSeconds: z.number(),
      executablePreparationSeconds: z.number().describe('bringing the images of containers'),
      launchSeconds: z.number(),
      runtimeSeconds: z.number(),
      infrastructureSeconds: z.number().optional().describe('of operations on cloud machines'),
    }),
    phases: z.array(
      z.strictObject({
        id: z.string(),
        category: z.enum([...phaseCategories, ...infrastructureCategories]),
        activityId: z.string().optional().describe('absent for a phase of a machine'),
        operationId: z.string().optional().describe('of the cloud operation, for a phase of a machine'),
        status: z.string(),
        source: z.string(),
        startedAt: TransferTime,
        finishedAt: TransferTime,
        durationSeconds: z.number(),
      }),
    ),
  })
  .meta({ id: 'Timeline' })

interface Interval {
  from: number
  to: number
}

/**
 * A bar cut at its recorded times, without gap or overlap from its ready time to its end; parts may
 * be empty. A transfer longer than the wait is cut at its start: data moved earlier belongs to the
 * time before the task was ready.
 */
export const partsOf = (bar: TimelineBar): Record<PhaseCategory, Interval> => {
  const ready = Math.min(bar.readyAt ?? bar.queuedAt ?? bar.startAt, bar.startAt)
  const moved = Math.min(ready + Math.max(0, bar.transferSeconds ?? 0), bar.startAt)
  const launched = Math.min(bar.startAt + Math.max(0, bar.overheadSeconds ?? 0), bar.finishAt)
  // The clock of a site may differ: what lies outside of the overhead is cut.
  const within = (at: number): number => Math.min(Math.max(at, bar.startAt), launched)
  const prepared = bar.preparedAt === undefined ? bar.startAt : within(bar.preparedAt)
  const preparing = within(prepared - Math.max(0, bar.preparationSeconds ?? 0))
  return {
    'workspace-transfer': { from: ready, to: moved },
    // Before it is prepared the task waits in the site's own queue.
    'resource-queue': { from: moved, to: preparing === prepared ? bar.startAt : preparing },
    'executable-preparation': { from: preparing, to: prepared },
    launch: { from: preparing === prepared ? bar.startAt : prepared, to: launched },
    runtime: { from: launched, to: bar.finishAt },
  }
}

/** Length of the union of intervals. */
const measure = (intervals: readonly Interval[]): number => {
  let covered = 0
  let reached = -Infinity
  for (const { from, to } of intervals.toSorted((a, b) => a.from - b.from)) {
    if (to <= reached) continue
    covered += to - Math.max(from, reached)
    reached = to
  }
  return covered
}

/** Numbers that a timeline cannot show are a fault of the caller. */
export const assertBar = (bar: TimelineBar): void => {
  const numbers: [string, number | undefined][] = [
    ['readyAt', bar.readyAt],
    ['queuedAt', bar.queuedAt],
    ['startAt', bar.startAt],
    ['finishAt', bar.finishAt],
    ['transferSeconds', bar.transferSeconds],
    ['overheadSeconds', bar.overheadSeconds],
  ]
  for (const [name, value] of numbers) {
    if (value !== undefined && !Number.isFinite(value))
      throw new RangeError(`${name} of ${bar.activityId} is ${value}: a timeline needs finite seconds`)
  }
  if (bar.finishAt < bar.startAt) {
    throw new RangeError(
      `finishAt ${bar.finishAt} of ${bar.activityId} is before its startAt ${bar.startAt}: a ` +
        'timeline needs them in order',
    )
  }
}

/**
 * What happened in the run itself. The plan, and another run of it, are for comparison: none of their
 * times are phases of this run.
 */
const ownBars = ({ bands, run }: TimelineInput): TimelineBar[] =>
  bands.find(({ label }) => label === sourceOf(run))?.bars ?? []

const sourceOf = ({ mode }: TimelineInput['run']): 'simulated' | 'measured' =>
  mode === 'simulation' ? 'simulated' : 'measured'

/**
 * The timeline as data. Phases are in order of their start; empty ones, and those of tasks that have
 * not started, are left out.
 * @throws RangeError naming the activity whose times are not finite or not in order.
 */
export const timelineSummary = (input: TimelineInput): z.output<typeof Timeline> => {
  const bars = ownBars(input)
  bars.forEach(assertBar)
  const origin = input.run.startedAt ?? input.run.acceptedAt ?? 0
  const pieces = bars.flatMap((bar) =>
    Object.entries(partsOf(bar))
      .filter(([, part]) => part.to > part.from)
      .map(([category, part]) => ({ bar, category: category as PhaseCategory, part })),
  )
  const total = (category: PhaseCategory): number =>
    pieces.reduce(
      (sum, piece) => (piece.category === category ? sum + piece.part.to - piece.part.from : sum),
      0,
    )
  const runtimes = bars.map((bar) => partsOf(bar).runtime)
  const machines = (input.infrastructure ?? []).filter(({ from, to }) => to > from)
  // No task begins before the run's start, but clocks of machines differ: the earlier time counts
  // as the start.
  const start = pieces.reduce((least, { part }) => Math.min(least, part.from), 0)
  const end = bars.reduce(
    (most, bar) => Math.max(most, bar.finishAt),
    Math.max(0, input.run.wallSeconds ?? 0),
  )
  const covered = measure([
    ...pieces.map(({ part }) => part),
    ...machines.map(({ from, to }) => ({ from: Math.max(from, start), to: Math.min(to, end) })),
  ])
  return {
    startedAt: origin + start,
    finishedAt: origin + end,
    wallSeconds: end - start,
    computeMakespanSeconds:
      runtimes.length === 0
        ? 0
        : runtimes.reduce((most, { to }) => Math.max(most, to), -Infinity) -
          runtimes.reduce((least, { from }) => Math.min(least, from), Infinity),
    coveredWallSeconds: covered,
    unclassifiedWallSeconds: Math.max(0, end - start - covered),
    totals: {
      workspaceTransferSeconds: total('workspace-transfer'),
      resourceQueueSeconds: total('resource-queue'),
      executablePreparationSeconds: total('executable-preparation'),
      launchSeconds: total('launch'),
      runtimeSeconds: total('runtime'),
      ...(machines.length === 0
        ? {}
        : { infrastructureSeconds: machines.reduce((sum, { from, to }) => sum + to - from, 0) }),
    },
    phases: [
      ...machines.map(({ operationId, category, status, from, to }) => ({
        ...{ id: `${input.run.id}:${operationId}:${category}`, category, operationId, status },
        ...{ source: 'measured' as const, startedAt: origin + from, finishedAt: origin + to },
        durationSeconds: to - from,
      })),
      ...pieces.map(({ bar, category, part }) => ({
        id: `${input.run.id}:${bar.activityId}:${bar.attempt ?? 1}:${category}`,
        category,
        activityId: bar.activityId,
        status: bar.status ?? 'completed',
        source: sourceOf(input.run),
        startedAt: origin + part.from,
        finishedAt: origin + part.to,
        durationSeconds: part.to - part.from,
      })),
    ].toSorted((a, b) => a.startedAt - b.startedAt),
  }
}
